"""That each timed step computes what it is named after, checked by running what would be timed."""

import inspect
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from mha_course import MultiHeadAttention
from mha_course.measure import Timing
from mha_course.profiling import Cost, Machine, attention_costs, compare, counted, step_times, steps

B, S, E, H = 2, 7, 30, 6
NAMES = ["q_proj", "k_proj", "v_proj", "scores", "softmax", "weighted sum", "out_proj"]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Callable]:
    """The functions that would be timed."""
    found: list[Callable] = []

    def instead(fn: Callable) -> float:
        if fn not in found:
            found.append(fn)
        return 1.0

    monkeypatch.setattr(steps, "_seconds", instead)
    return found


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("Hkv", [6, 3])
def test_forward_steps_compute_what_the_module_does(ran: list[Callable], bias: bool, Hkv: int) -> None:
    layer, x = MultiHeadAttention(E, H, num_kv_heads=Hkv, bias=bias), torch.randn(B, S, E)
    assert [*step_times(layer, x)] == NAMES
    run = layer.trace(x)
    got = dict(zip(NAMES, (fn() for fn in ran), strict=True))
    assert_close(got["q_proj"], layer.q_proj(x).flatten(0, 1))
    assert_close(got["k_proj"], layer.k_proj(x).flatten(0, 1))
    assert_close(got["v_proj"], layer.v_proj(x).flatten(0, 1))
    assert_close(got["scores"], run.scores.flatten(0, 1))
    assert_close(got["softmax"], run.weights.flatten(0, 1))
    assert_close(got["weighted sum"], run.heads.flatten(0, 1))
    assert_close(got["out_proj"], run.out.flatten(0, 1))


@pytest.mark.parametrize("backward", [True, False])
def test_steps_take_the_operations_that_are_counted(ran: list[Callable], backward: bool) -> None:
    step_times(MultiHeadAttention(E, H), torch.randn(B, S, E), backward=backward)
    costs = attention_costs(B, S, S, E, H, backward=backward)
    for (name, cost), fn in zip(costs.items(), ran, strict=True):
        assert counted(fn).total == (0 if name == "softmax" else cost.flops), name


def closed(fn: Callable, name: str) -> Tensor:
    """A variable that a function closes over."""
    fn = inspect.unwrap(fn)  # from the check of its annotations
    return dict(zip(fn.__code__.co_freevars, (cell.cell_contents for cell in fn.__closure__), strict=True))[name]


def test_backward_steps_are_the_gradients(ran: list[Callable]) -> None:
    layer, x = MultiHeadAttention(E, H), torch.randn(B, S, E)
    step_times(layer, x, backward=True)
    calls = dict(zip(NAMES, ran, strict=True))
    for fn in calls.values():
        fn()
    rows = x.flatten(0, 1).requires_grad_()
    grads = torch.autograd.grad(layer.v_proj(rows), (rows, *layer.v_proj.parameters()), closed(calls["v_proj"], "dy"))
    assert_close(tuple(closed(calls["v_proj"], name) for name in ("dx", "d_weight", "d_bias")), grads)
    for name in ("scores", "weighted sum"):
        a, b = (closed(calls[name], letter).clone().requires_grad_() for letter in "ab")
        grads = torch.autograd.grad(a @ b, (a, b), closed(calls[name], "d_out"))
        assert_close((closed(calls[name], "da"), closed(calls[name], "db")), grads)
    scores = layer.trace(x).scores.detach().flatten(0, 1).requires_grad_()
    (grad,) = torch.autograd.grad(scores.softmax(-1), scores, closed(calls["softmax"], "d_weights"))
    assert_close(closed(calls["softmax"], "d_scores"), grad)


@pytest.mark.parametrize("backward", [True, False])
def test_dropout_is_not_used_and_nothing_is_changed(ran: list[Callable], backward: bool) -> None:
    layer, x = MultiHeadAttention(E, H, dropout=0.5), torch.randn(B, S, E, requires_grad=True)
    before = torch.get_rng_state()
    step_times(layer, x, backward=backward)
    assert torch.equal(torch.get_rng_state(), before)
    assert layer.training
    assert x.requires_grad
    assert x.grad is None
    if not backward:
        assert_close(ran[-1](), layer.eval()(x).flatten(0, 1))


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype, backward: bool) -> None:
    times = step_times(MultiHeadAttention(4, 2, dtype=dtype), torch.randn(1, 1, 4).to(dtype), backward=backward)
    assert [*times] == NAMES


def test_numbers_that_are_not_ordinary_are_timed_as_well() -> None:
    for value in (0.0, 1e-40, math.inf, math.nan):
        assert [*step_times(MultiHeadAttention(4, 2), torch.full((1, 3, 4), value), repeats=1)] == NAMES


def test_steps_are_really_timed() -> None:
    times = step_times(MultiHeadAttention(E, H), torch.randn(B, S, E), repeats=3)
    assert all(len(timing.seconds) == 3 and timing.median > 0 for timing in times.values())


def test_each_round_starts_with_another_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(steps, "_seconds", lambda _: float(next(clock)))
    times = step_times(MultiHeadAttention(E, H), torch.randn(B, S, E), repeats=9)
    assert [*times] == NAMES
    for i, name in enumerate(NAMES):
        assert times[name].seconds == tuple(7.0 * turn + (i - turn) % 7 for turn in range(9))


def test_comparison() -> None:
    machine = Machine(peak=100.0, bandwidth=10.0, exp_rate=1.0)
    costs = {"one": Cost(200, 1, 1), "two": Cost(100, 15, 15, 2), "three": Cost(1, 1, 1, 4)}
    times = {"three": Timing((4.0,)), "one": Timing((9.0, 3.0, 1.0)), "two": Timing((6.0,))}
    rows = compare(costs, times, machine)
    assert rows == (("one", 2, 3, "compute"), ("two", 3, 6, "memory"), ("three", 4, 4, "exp"))
    assert [row.ratio for row in rows] == [1.5, 2, 1]
    assert repr(rows).splitlines() == [
        "step              predicted     measured   ratio  bound",
        "one             2000.000 ms  3000.000 ms    1.50  compute",
        "two             3000.000 ms  6000.000 ms    2.00  memory",
        "three           4000.000 ms  4000.000 ms    1.00  exp",
        "sum             9000.000 ms 13000.000 ms    1.44",
    ]


def test_a_step_that_takes_nothing_and_a_long_name() -> None:
    costs, times = {"nothing": Cost(), "a step of 19 letters": Cost(100)}, {"nothing": Timing((1.0,))}
    rows = compare(costs, times | {"a step of 19 letters": Timing((3.0,))}, Machine(100.0, 10.0))
    assert [row.ratio for row in rows] == [math.inf, 3]
    assert repr(rows).splitlines() == [
        "step                     predicted     measured   ratio  bound",
        "nothing                   0.000 ms  1000.000 ms     inf  memory",
        "a step of 19 letters   1000.000 ms  3000.000 ms    3.00  compute",
        "sum                    1000.000 ms  4000.000 ms    4.00",
    ]
    assert repr(compare({}, {}, Machine(1.0, 1.0))).splitlines()[1].split() == ["sum", *["0.000", "ms"] * 2, "inf"]


def test_comparison_of_other_steps() -> None:
    with pytest.raises(ValueError, match=r"costs and times must be of the same steps, got \['one'\] and \['two'\]"):
        compare({"one": Cost()}, {"two": Timing((1.0,))}, Machine(1.0, 1.0))


@pytest.mark.unchecked
class TestBadInput:
    def test_module(self) -> None:
        with pytest.raises(TypeError, match="module must be a MultiHeadAttention, got Linear"):
            step_times(nn.Linear(2, 2), torch.ones(1, 1, 2))

    def test_projection(self) -> None:
        layer = MultiHeadAttention(4, 2)
        layer.v_proj = nn.Identity()
        with pytest.raises(TypeError, match=r"module.v_proj must be an nn.Linear, got Identity"):
            step_times(layer, torch.ones(1, 1, 4))

    def test_x(self) -> None:
        layer = MultiHeadAttention(4, 2)
        with pytest.raises(ValueError, match=r"query must be \(B, T, E\) with E = 4"):
            step_times(layer, torch.ones(1, 1, 5))
        with pytest.raises(TypeError, match="query must be a tensor"):
            step_times(layer, [[[1.0]]])
        for shape in ((0, 3, 4), (3, 0, 4)):
            with pytest.raises(ValueError, match="x must hold at least one sample and one token"):
                step_times(layer, torch.ones(shape))

    def test_meta(self) -> None:
        with pytest.raises(ValueError, match="x must hold numbers, got a tensor on meta"):
            step_times(MultiHeadAttention(4, 2, device="meta"), torch.ones(1, 1, 4, device="meta"))

    def test_autocast(self) -> None:
        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            pytest.raises(RuntimeError, match="step_times must run outside of autocast"),
        ):
            step_times(MultiHeadAttention(4, 2), torch.ones(1, 1, 4))

    def test_backward(self) -> None:
        with pytest.raises(TypeError, match="backward must be True or False, got str"):
            step_times(MultiHeadAttention(4, 2), torch.ones(1, 1, 4), backward="no")

    def test_repeats(self) -> None:
        with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
            step_times(MultiHeadAttention(4, 2), torch.ones(1, 1, 4), repeats=0)
        with pytest.raises(TypeError, match="repeats must be an integer, got float"):
            step_times(MultiHeadAttention(4, 2), torch.ones(1, 1, 4), repeats=1.0)
