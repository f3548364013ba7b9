"""The comparison: differences made by hand, errors as rows, and what is handed to the measuring kit."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mha_course import MultiHeadAttention, attention, backends
from mha_course.backends import Comparison, Row, calling, compare
from mha_course.measure import PairedRatio

X = torch.arange(6.0).view(2, 3)
NAN = torch.tensor([1.0, math.nan])


def leaf(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def same(x):
    return x + 0


def shifted(x):
    return x + 0.5 * (x == 4)


def test_the_largest_difference_of_the_output():
    found = compare(same, shifted, inputs=[X])
    assert found.reference == "same"
    assert not found.backward
    assert [(row.name, row.error, row.difference) for row in found.rows] == [("same", "", None), ("shifted", "", 0.5)]
    assert found["shifted"].gradients == ()
    with pytest.raises(KeyError, match="else"):
        found["else"]


def test_the_largest_difference_of_each_gradient():
    x, y, z = leaf(5, 7), leaf(5, 7, seed=1), leaf(5, 7, seed=2).detach()
    found = compare({"a": lambda x, z, y: x + y + z, "b": lambda x, z, y: x + 3 * y}, inputs=(x, z, y))
    drawn = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    assert found.backward
    assert found["a"].gradients == ()
    assert dict(found["b"].gradients) == pytest.approx({"0": 0, "2": 2 * drawn.abs().max().item()})
    assert x.grad is None


def test_an_input_without_a_part_in_it_has_gradient_0():
    x, y = leaf(5), leaf(5, seed=1)
    found = compare({"a": lambda x, y: x * 2, "b": lambda x, y: x.detach() * 2}, inputs={"x": x, "y": y}, seed=3)
    drawn = torch.randn(5, generator=torch.Generator().manual_seed(3), dtype=torch.float64).float()
    assert dict(found["b"].gradients) == pytest.approx({"x": 2 * drawn.abs().max().item(), "y": 0})


def test_inputs_that_depend_on_each_other_count_as_inputs():
    x = leaf(5)
    found = compare({"a": lambda x, y: x + y, "b": lambda x, y: x + 3 * y}, inputs={"x": x, "y": x * x})
    assert dict(found["b"].gradients)["x"] == 0


def test_gradients_are_on_only_if_an_input_needs_one():
    on = []
    functions = {"a": lambda x: on.append(torch.is_grad_enabled()) or x * 1, "b": same}
    compare(functions, inputs=[X])
    assert set(on) == {False}
    on.clear()
    with torch.no_grad():
        compare(functions, inputs=[leaf(5)])
    assert set(on) == {True}


def test_a_function_that_leaves_float64_has_no_rounding():
    assert compare({"a": lambda x: x.float(), "b": same}, inputs=[X])["b"].rounding is None


def test_inputs_by_name_and_other_things_than_tensors():
    found = compare(
        torch.add, lambda other, alpha, input: input + alpha * other, inputs={"input": X, "other": X, "alpha": 2}
    )
    assert [row.difference for row in found.rows] == [None, 0]


def test_an_error_is_a_row_and_the_first_that_runs_is_the_reference():
    def fails(x):
        raise OSError("no\nsecond line")

    functions = {"fails": fails, "same": same, "short": lambda x: x[:1], "text": lambda x: "text", "silent": _silent}
    found = compare(functions, inputs=[X])
    assert found.reference == "same"
    assert {row.name: row.error for row in found.rows} == {
        "fails": "OSError: no",
        "same": "",
        "short": "returns (1, 3) where same returns (2, 3)",
        "text": "TypeError: returns no tensor",
        "silent": "ValueError: ",
    }
    assert found["short"].memory is None


def _silent(x):
    raise ValueError


def test_all_fail():
    found = compare({"a": _silent, "b": _silent}, inputs=[X])
    assert found.reference is None
    assert str(found) == "a: ValueError: \nb: ValueError: "


@pytest.mark.parametrize(
    ("a", "b", "difference"),
    [
        (NAN, NAN, 0),
        (NAN, torch.tensor([1.0, 2.0]), math.nan),
        (torch.tensor([math.inf, 1.0]), torch.tensor([math.inf, 3.0]), 2),
        (torch.tensor([math.inf, 1.0]), torch.tensor([-math.inf, 1.0]), math.inf),
        (torch.ones(0), torch.ones(0), 0),
        (torch.ones(1).half(), torch.ones(1) * 1.25, 0.25),
    ],
)
def test_nan_and_infinity(a, b, difference):
    found = compare({"a": lambda: a, "b": lambda: b}, inputs=())
    assert found["b"].difference == pytest.approx(difference, nan_ok=True)


def test_the_first_tensor_of_what_is_returned():
    found = compare({"a": same, "b": lambda x: (None, {"y": x + 1, "z": x}), "c": lambda x: [x + 2, x]}, inputs=[X])
    assert [row.difference for row in found.rows] == [None, 1, 2]


def test_rounding_is_measured_against_the_reference_in_float64():
    third = torch.tensor([1.0])
    found = compare({"a": lambda x: x / 3, "b": lambda x: x / 3 + 0.25, "low": lambda x: x.half() / 3}, inputs=[third])
    assert found["a"].rounding == pytest.approx(abs(torch.tensor(1 / 3).item() - 1 / 3), rel=1e-6)
    assert found["b"].rounding == pytest.approx(0.25, rel=1e-6)
    assert found["low"].rounding == pytest.approx(abs(torch.tensor(1 / 3).half().item() - 1 / 3), rel=1e-6)


def test_a_module_goes_to_float64_as_a_copy():
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(12, 4, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    x = leaf(2, 5, 12)
    found = compare(theirs, ours, inputs=(x, x, x))
    assert [row.name for row in found.rows] == ["MultiheadAttention", "MultiHeadAttention"]
    assert 0 < found.rows[0].rounding < 1e-5
    assert found.rows[1].difference < 1e-5
    assert all(difference < 1e-5 for _, difference in found.rows[1].gradients)
    assert [name for name, _ in found.rows[1].gradients] == ["0", "1", "2"]
    assert theirs.out_proj.weight.dtype == torch.float32
    assert all(p.grad is None for p in theirs.parameters())
    closed = compare({"a": lambda x: theirs(x, x, x)[0], "b": ours}, inputs=[x])
    assert closed["a"].rounding is None  # a function that holds parameters cannot go to float64
    assert closed["b"].difference < 1e-5


def test_random_functions_draw_the_same_and_the_global_generator_stands_still():
    before = torch.get_rng_state()
    found = compare({"a": lambda x: F.dropout(x, 0.5), "b": lambda x: F.dropout(x, 0.5)}, inputs=[torch.ones(99)])
    assert found["b"].difference == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_drawn_follows_the_seed():
    drawn = []

    def draws(x):
        drawn.append(torch.rand(3))
        return x

    for seed in (0, 0, 1):
        torch.manual_seed(len(drawn))
        compare({"a": draws, "b": same}, inputs=[X], seed=seed)
    each = len(drawn) // 3
    assert torch.equal(drawn[0], drawn[each])
    assert (drawn[0] != drawn[2 * each]).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_call_gets_the_same_inputs_and_leaves_yours_alone(dtype, monkeypatch):
    def paired(fn, reference, *, rounds):
        fn()
        reference()
        return PairedRatio(1.0, 1.0, 1.0, 1.0)

    monkeypatch.setattr(calling, "paired_ratio", paired)
    x, y, *listed = (torch.ones(3, dtype=dtype) for _ in range(3))
    twice = {"a": lambda x, y, z: x.mul_(2) + y.mul_(3) + z[0].mul_(5), "b": lambda x, y, z: x + 2 * y + 7 * z[0]}
    found = compare(twice, inputs=(x, y, listed), rounds=6)
    assert found["b"].difference == 0
    assert found["a"].rounding == found["b"].rounding == 0
    assert [z.tolist() for z in (x, y, *listed)] == [[1, 1, 1]] * 3


def test_copies_keep_strides_and_that_two_inputs_are_one():
    seen = []

    def look(x, y, z):
        seen.append((x is y, x.stride(), x.data_ptr() == z.data_ptr(), x.requires_grad))
        return x + y

    x = torch.zeros(5, 12)[:, ::3]
    compare({"a": look, "b": look}, inputs=(x, x, x[:2]))
    assert set(seen[:2]) == {(True, (12, 3), True, False)}
    assert x.data_ptr() not in seen


def test_buffers_and_gradients_of_a_module_stay(monkeypatch):
    module = nn.BatchNorm1d(3)
    module.weight.grad = kept = torch.ones(3)
    module.register_buffer("calls", torch.zeros(()))
    read = nn.BatchNorm1d(3)

    def forward(x):
        module.calls = module.calls + 1
        (module.weight + module.bias).sum().backward()
        return nn.BatchNorm1d.forward(module, x) + module.calls

    module.forward = forward
    before = {name: x.clone() for name, x in module.state_dict().items()}
    x = leaf(5, 3)

    def paired(fn, reference, *, rounds):
        fn()
        reference()
        return PairedRatio(1.0, 1.0, 1.0, 1.0)

    monkeypatch.setattr(calling, "paired_ratio", paired)
    found = compare({"a": module, "b": module, "read": lambda x: read(x) + 1}, inputs=[x], rounds=6)
    assert not any(row.error for row in found.rows)
    assert found["b"].difference == found["read"].difference == 0
    for name, now in module.state_dict().items():
        assert torch.equal(now, before[name]), name
    assert module.weight.grad is kept
    assert kept.tolist() == [1, 1, 1]
    assert module.bias.grad is None


def test_a_buffer_that_is_returned_is_not_set_back_in_the_result():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(1))

        def forward(self, x):
            return self.n.add_(x.sum())

    found = compare({"a": lambda x: x.sum()[None], "b": Counts()}, inputs=[X])
    assert found["b"].difference == 0


def test_complex_outputs_are_compared_as_complex():
    x = leaf(5).detach().to(torch.complex64).requires_grad_()
    found = compare({"a": lambda x: x * 1j, "b": lambda x: x * 1j + 2j, "c": lambda x: x * 3j}, inputs=[x])
    assert found["b"].difference == pytest.approx(2, rel=1e-6)
    assert found["b"].gradients == (("0", 0),)
    assert found["b"].rounding == pytest.approx(2, rel=1e-6)
    drawn = torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=torch.complex128)
    assert dict(found["c"].gradients) == pytest.approx({"0": 2 * drawn.abs().max().item()}, rel=1e-6)
    real = compare({"a": lambda x: x, "b": lambda x: torch.complex(x, x + 1)}, inputs=[X])
    assert real["b"].difference == 6


@pytest.mark.parametrize("first", [False, True])
def test_an_output_that_cannot_be_compared_is_an_error_of_its_row(first):
    functions = {"sparse": lambda x: x.to_sparse(), "a": same, "meta": lambda x: x.to("meta"), "b": shifted}
    names = list(functions) if first else ["a", "sparse", "meta", "b"]
    found = compare({name: functions[name] for name in names}, inputs=[X])
    assert found.reference == "a"
    assert found["sparse"].error.startswith("NotImplementedError: ")
    assert "meta" in found["meta"].error
    assert found["b"].difference == 0.5


def test_memory_is_that_of_a_call_and_nothing_else():
    x = torch.zeros(1000)
    found = compare({"one": lambda x: x + x, "two": lambda x: (x + x) + x}, inputs=[x])
    assert (found["one"].memory, found["two"].memory) == (4000, 8000)
    trained = compare({"one": lambda x: x.neg(), "two": lambda x: x.neg()}, inputs=[x.requires_grad_()])
    assert trained["one"].memory == trained["two"].memory == 8000  # output and gradient of the input


def test_times_are_paired_with_the_reference(monkeypatch):
    calls, ran, timed = [], [], []

    def paired(fn, reference, *, rounds):
        calls.append(rounds)
        ran.clear()
        fn()
        reference()
        timed.extend(ran)
        return PairedRatio(2.0, 1.0, 3.0, 1.01)

    monkeypatch.setattr(calling, "paired_ratio", paired)
    found = compare({"a": lambda x: ran.append("a") or x, "b": lambda x: ran.append("b") or x}, inputs=[X], rounds=7)
    assert calls == [7]
    assert found["a"].time is None
    assert found["b"].time == PairedRatio(2.0, 1.0, 3.0, 1.01)
    assert timed == ["b", "a"]
    assert "2 (95 % interval 1 to 3; a against itself 1.01)" in str(found)


def test_without_rounds_nothing_is_timed(monkeypatch):
    monkeypatch.setattr(calling, "paired_ratio", None)
    found = compare(same, shifted, inputs=[X])
    assert [row.time for row in found.rows] == [None, None]
    assert "time" not in str(found)


@pytest.mark.parametrize("n", [1, 2])
def test_threads_inside_and_after(n):
    seen = []
    before = torch.get_num_threads()
    compare({"a": lambda x: seen.append(torch.get_num_threads()) or x, "b": same}, inputs=[X], num_threads=n)
    assert set(seen) == {n}
    assert torch.get_num_threads() == before


def test_the_kernels_of_attention_side_by_side():
    q, k, v = leaf(2, 3, 5, 8), leaf(2, 3, 7, 8, seed=1), leaf(2, 3, 7, 8, seed=2)

    def explicit(q, k, v):
        return attention(q, k, v).out

    kernels = [partial(backends.attention, backend=name) for name in ("math", "flash", "cudnn")]
    found = compare(explicit, *kernels, inputs={"q": q, "k": k, "v": v})
    for name in ("attention(backend='math')", "attention(backend='flash')"):
        assert found[name].difference < 1e-5
        assert [letter for letter, _ in found[name].gradients] == ["q", "k", "v"]
        assert max(difference for _, difference in found[name].gradients) < 1e-5
    assert found["attention(backend='cudnn')"].error.startswith('Refused: backend "cudnn" does not take this call')


def test_prints_as_a_table():
    rows = (
        Row("a", rounding=2.5e-8, memory=2**20),
        Row("long name", difference=1.24e-7, gradients=(("q", 0.0), ("k", 3.0)), rounding=3e-8, memory=1536),
        Row("c", error="ValueError: no"),
    )
    assert str(Comparison(rows, "a", True)) == (
        "           out    grad q  grad k  rounding  memory\n"
        "a                                 2e-08     1 MiB\n"
        "long name  1e-07  0       3e+00   3e-08     1.5 KiB\n"
        "c          ValueError: no\n"
        "\n"
        "out and grad: largest difference from a.\n"
        "rounding: largest error of out, against a in float64.\n"
        "memory: peak of a call.\n"
        "Calls: forward and backward."
    )
    short = Comparison((Row("a"), Row("b", difference=0.5, memory=None)), "a", False)
    assert repr(short) == "   out\na\nb  5e-01\n\nout: largest difference from a.\nCalls: forward only."


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("functions", "wrong", "error", "match"),
    [
        ((same, 3), {}, TypeError, "int must be a function or module, got int"),
        (({"a": same, "b": 3},), {}, TypeError, "b must be a function or module, got int"),
        ((same, shifted), {"inputs": X}, TypeError, "inputs must be a sequence or a mapping, got Tensor"),
        ((same, shifted), {"rounds": 6.0}, TypeError, "rounds must be an integer, got float"),
        ((same, shifted), {"num_threads": "1"}, TypeError, "num_threads must be an integer, got str"),
        ((same, shifted), {"seed": None}, TypeError, "seed must be an integer, got NoneType"),
        ((same,), {}, ValueError, "at least two functions, got 1"),
        ((), {}, ValueError, "at least two functions, got 0"),
        ((same, same), {}, ValueError, "two functions have the name 'same': pass a mapping"),
        ((same, shifted), {"rounds": 5}, ValueError, "rounds must be 0 or at least 6, got 5"),
        ((same, shifted), {"rounds": -1}, ValueError, "rounds must be at least 0, got -1"),
        ((same, shifted), {"num_threads": 0}, ValueError, "num_threads must be at least 1, got 0"),
        ((same, shifted), {"seed": -1}, ValueError, "seed must be at least 0, got -1"),
    ],
)
def test_bad_input(functions, wrong, error, match):
    with pytest.raises(error, match=match):
        compare(*functions, **{"inputs": [X], **wrong})


def test_while_a_profiler_records():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with pytest.raises(RuntimeError, match="while another profiler is recording"):
            compare(same, shifted, inputs=[X])
