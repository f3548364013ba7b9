"""Optional arguments of unknown name as a second stream, layers of one's own as linear maps, learned numbers."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mha_course.checks.diagnosis import calling, maps
from mha_course.checks.diagnosis.copying import draw_parameters
from mha_course.checks.diagnosis.entry import diagnose
from mha_course.checks.diagnosis.projections import linears
from mha_course.checks.diagnosis.subject import Subject

pytestmark = pytest.mark.unchecked


class Heads(nn.Module):
    """Right attention of three streams, times `factor`."""

    def __init__(self, linear=nn.Linear, E=18, H=3):
        super().__init__()
        self.num_heads = H
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (linear(E, E) for _ in range(4))

    def run(self, q, k, v, factor=6**-0.5):
        q, k, v = (
            m(y).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for m, y in ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v))
        )
        return self.out_proj(((q @ k.mT * factor).softmax(-1) @ v).transpose(1, 2).flatten(2))


def using(name, sources):
    """A module whose optional argument has this name; q, k and v from x, from it, or from y: it or else x."""
    first = f"def forward(self, x, {name}=None):\n    y = x if {name} is None else {name}\n"
    made = {"torch": torch}
    exec(f"{first}    return self.run({sources})\n", made)
    return type("Made", (Heads,), {"forward": made["forward"]})()


@pytest.mark.parametrize("name", ["xa", "z", "anything"])
@pytest.mark.parametrize(
    ("sources", "fault"),
    [("x, y, y", ()), ("x, x, y", ("keys_from_query",)), ("x, y, x", ("values_from_query",))],
)
def test_an_optional_second_stream_is_given(name, sources, fault):
    verdict = diagnose(using(name, sources))
    assert verdict.judged
    assert verdict.names == fault
    assert verdict.ok is (not fault)
    taken = f"`{name}` was taken as the second stream."
    assert (taken in verdict.remarks) is (name != "xa")


def test_an_optional_argument_may_be_what_asks():
    verdict = diagnose(using("latents", "y, x, x"))
    assert verdict.ok
    assert "`latents` was taken as the second stream." in verdict.remarks


@pytest.mark.parametrize("name", ["xa", "cond"])
def test_a_second_stream_that_is_not_read_is_a_fault_where_the_name_tells(name):
    assert diagnose(using(name, "x, x, x")).names == ("cross_reads_query_stream",)


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("rest", "x, x, x"),
        ("rest", "x if rest is None else x + rest, x, x"),
        ("mems", "x, *(y if mems is None else torch.cat([mems, x], 1),) * 2"),
    ],
)
def test_what_is_no_second_stream_is_said_and_no_fault(name, sources):
    verdict = diagnose(using(name, sources))
    assert verdict.ok
    assert f"`{name}` was never given: only calls without it were judged." in verdict.remarks


@pytest.mark.parametrize(
    ("parameters", "spare"),
    [
        ("x, foo=None", ("foo",)),
        ("x, foo=None, *, bar=None", ("foo", "bar")),
        ("x, use_cache=None, layer_past=None, need_weights=None, mask=None", ()),
        ("x, foo=False, bar=0", ()),
        ("x, foo: bool | None = None, bar: torch.Tensor | None = None", ("bar",)),
        ("x, context=None, foo=None", ()),
        ("query, key, value, foo=None", ()),
    ],
)
def test_which_arguments_might_be_a_stream(parameters, spare):
    made = {}
    exec(f"import torch\ndef fn({parameters}): pass\n", made)
    assert calling.signature(made["fn"], False).spare == spare


def test_a_needed_argument_whose_name_tells_is_the_second_stream():
    made = calling.signature(lambda x, cond: None, False)
    assert made.inputs == (calling.Argument("x", "query"), calling.Argument("cond", "context"))


ROOT = 6**-0.5


class Learned(Heads):
    def __init__(self, start, shape=(), of=lambda t: t):
        super().__init__()
        self.temperature, self.of = nn.Parameter(torch.full(shape, start)), of

    def forward(self, x):
        return self.run(x, x, x, self.of(self.temperature))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Learned(ROOT),
        lambda: Learned(ROOT, (1,)),
        lambda: Learned(ROOT, (3, 1, 1)),
        lambda: Learned(math.log(ROOT), (1, 3, 1, 1), torch.exp),
        lambda: Learned(1.0, (), lambda t: t * ROOT),
    ],
)
def test_a_learned_scale_is_judged_where_it_starts(make):
    verdict = diagnose(make())
    assert verdict.ok
    assert any("`temperature`: the scale is learned" in remark for remark in verdict.remarks)


def test_a_learned_scale_that_starts_wrong_is_a_fault():
    assert diagnose(Learned(1 / 6, (3, 1, 1))).names == ("scale_by_d",)


def test_a_frozen_scale_is_no_learned_one():
    made = Learned(ROOT)
    made.temperature.requires_grad_(False)
    verdict = diagnose(made)
    assert verdict.ok
    assert not any("learned" in remark for remark in verdict.remarks)


def test_which_parameters_keep_their_numbers():
    made = Heads()
    made.one, made.per_head = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(1, 3, 1))
    made.table = nn.Parameter(torch.ones(7, 7), requires_grad=False)
    made.bias, made.norm = nn.Parameter(torch.ones(5)), nn.LayerNorm(3)
    made.score = nn.Linear(2, 1)
    made.k_proj.weight.requires_grad_(False)
    before = {name: p.clone() for name, p in made.named_parameters()}
    assert draw_parameters(made, 0, 3) == ["one", "per_head"]
    same = {name for name, p in made.named_parameters() if torch.equal(p, before[name])}
    assert same == {"one", "per_head", "table"}


def test_a_row_of_numbers_is_no_map():
    made = Heads()
    made.per_head = nn.Parameter(torch.ones(3, 1, 1))
    assert "per_head" not in [found.name for found in linears(made)]
    alone = nn.Module()
    alone.tau = nn.Parameter(torch.ones(1, 1))
    alone.forward = lambda q, k, v: q
    assert not Subject(alone).is_module


class Low(nn.Linear):
    """A linear map with one of low rank beside it."""

    def __init__(self, n_in, n_out):
        super().__init__(n_in, n_out)
        self.A, self.B = nn.Parameter(torch.randn(2, n_in)), nn.Parameter(torch.randn(n_out, 2))

    def forward(self, x):
        return super().forward(x) + F.linear(F.linear(x, self.A), self.B)


class Whole8(nn.Module):
    """Whole numbers times a scale, in buffers."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.register_buffer("whole", torch.randint(-9, 10, (n_out, n_in), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(n_out, 1) / 9)

    def forward(self, x):
        return F.linear(x, self.whole.to(x.dtype) * self.scales.to(x.dtype))


class Bent(Whole8):
    def forward(self, x):
        return super().forward(x).relu()


class Mixing(Whole8):
    def forward(self, x):
        return super().forward(x.roll(1, -2))


class Plain(Heads):
    def forward(self, x):
        return self.run(x, x, x)


class Unscaled(Heads):
    def forward(self, x):
        return self.run(x, x, x, 1.0)


@pytest.mark.parametrize("linear", [Low, Whole8])
def test_layers_of_ones_own_are_read_as_linear_maps(linear):
    verdict = diagnose(Plain(linear))
    assert verdict.ok
    assert any("q_proj, k_proj, v_proj, out_proj" in remark for remark in verdict.remarks)
    assert diagnose(Unscaled(linear)).names == ("no_scale",)


@pytest.mark.parametrize("linear", [Low, Whole8])
def test_the_linear_maps_give_what_the_layers_give(linear):
    made = Plain(linear).double()
    plain = maps.as_linears(made)
    x = torch.randn(2, 5, 18, dtype=torch.float64)
    torch.testing.assert_close(plain.module(x), made(x))
    assert type(plain.module.q_proj) is nn.Linear
    assert type(made.q_proj) is linear


@pytest.mark.parametrize("linear", [Bent, Mixing, nn.Linear])
def test_other_layers_are_left(linear):
    assert maps.as_linears(Plain(linear)) is None
    assert maps.as_linears(lambda q, k, v: q) is None


def test_weights_that_are_not_found_are_said_to_be_not_found():
    verdict = diagnose(Plain(Bent))
    assert not verdict.judged
    assert "it takes x, and no weights of projections were found among its parameters" in verdict.fault


def square_causal(q, k, v):
    T = q.shape[-2]
    s = q @ k.mT / math.sqrt(q.shape[-1]) + torch.full((T, T), -torch.inf, dtype=q.dtype).triu(1)
    return s.softmax(-1) @ v


@pytest.mark.parametrize("stated", [{}, {"causal": True}, {"layout": "T D"}])
def test_a_causal_function_for_as_many_keys_as_queries_is_right(stated):
    verdict = diagnose(square_causal, **stated)
    assert verdict.ok
    assert "It takes as many keys as queries, and no other number." in verdict.remarks


def with_mask(q, k, v, mask=None):
    T = q.shape[-2]
    s = q @ k.mT / math.sqrt(q.shape[-1]) + torch.full((T, T), -torch.inf, dtype=q.dtype).triu(1)
    return (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1) @ v


def uncausal(q, k, v):
    T = q.shape[-2]
    return (q @ k.mT / math.sqrt(q.shape[-1]) + torch.zeros(T, T, dtype=q.dtype)).softmax(-1) @ v


@pytest.mark.parametrize("function", [with_mask, uncausal])
def test_other_functions_that_take_the_length_from_the_query_are_wrong(function):
    assert diagnose(function).names == ("key_length_from_query",)


class Late(Heads):
    """The future is hidden after the softmax, or filled with 0, and the scale is missing."""

    def __init__(self, late):
        super().__init__()
        self.late = late

    def forward(self, x):
        q, k, v = (m(x).unflatten(-1, (3, -1)).transpose(1, 2) for m in (self.q_proj, self.k_proj, self.v_proj))
        s = q @ k.mT
        weights = s.softmax(-1).tril() if self.late else s.tril().softmax(-1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("late", "name"), [(True, "causal_after_softmax"), (False, "mask_fill_zero")])
@pytest.mark.parametrize("causal", [None, True])
def test_causal_faults_beside_another(late, name, causal):
    assert set(diagnose(Late(late), causal=causal).names) == {"no_scale", name}


class CutsItsMask(Heads):
    """The mask is a matrix for the longest input, of which each call takes its part."""

    def forward(self, x, context=None, mask=None):
        y = x if context is None else context
        q, k, v = (
            m(z).unflatten(-1, (3, -1)).transpose(1, 2)
            for m, z in ((self.q_proj, x), (self.k_proj, y), (self.v_proj, y))
        )
        s = q @ k.mT * ROOT
        if mask is not None:
            s = s + mask[: q.shape[2], : k.shape[2]]
        return self.out_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_a_matrix_that_is_cut_is_a_mask_of_queries_and_keys():
    verdict = diagnose(CutsItsMask())
    assert verdict.ok
    assert any("axes (T, S)" in remark for remark in verdict.remarks)
    assert diagnose(CutsItsMask(), mask_axes="B 1 T S").names == ("fails_at_size_one",)
