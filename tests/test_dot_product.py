"""`attention`: by hand, against loops and torch, in every precision, and where rows see nothing."""

import copy
import math
import sys

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course import AttentionTrace, attention
from mha_course.masks import causal
from tests import reference

B, H, T, S, D, DV = 2, 3, 5, 7, 11, 13
BATCHES = {"rank 2": (), "rank 3": (B,), "rank 4": (B, H)}
OFF = -math.inf


def inputs(
    *batch: int, T: int = T, S: int = S, D: int = D, Dv: int = DV, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((*batch, T, D), (*batch, S, D), (*batch, S, Dv))
    q, k, v = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def random_mask(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def random_bias(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_trace(got: AttentionTrace, want: tuple[Tensor, Tensor, Tensor]) -> None:
    for name, a, b in zip(got._fields, got, want, strict=True):
        assert_close(a, b, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


# By hand


def test_two_by_two_by_hand() -> None:
    # D = 4, so the scale is 1/2; scores are 0 and ln 3, so the weights are 1 : 3.
    q = torch.tensor([[2 * math.log(3), 0, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    k = torch.tensor([[0.0, 5, 0, 0], [1, 0, 0, 0]], dtype=torch.float64)
    v = torch.tensor([[0.0, 8], [4, 0]], dtype=torch.float64)
    scores, weights, out = attention(q, k, v)
    assert_close(scores, torch.tensor([[0, math.log(3)], [0, 0]], dtype=torch.float64))
    assert_close(weights, torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64))
    assert_close(out, torch.tensor([[3.0, 2], [2, 4]], dtype=torch.float64))


def test_two_by_two_by_hand_with_mask_bias_and_scale() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    mask = torch.tensor([[True, False], [True, True]])
    bias = torch.tensor([[7.0, 7.0], [math.log(9), 0.0]], dtype=torch.float64)
    scores, weights, out = attention(eye, eye, 10 * eye, mask=mask, score_bias=bias, scale=math.log(3))
    # row 1: scores ln 9 and ln 3, hence 3 : 1
    assert_close(scores, torch.tensor([[7 + math.log(3), OFF], [math.log(9), math.log(3)]], dtype=torch.float64))
    assert_close(weights, torch.tensor([[1, 0], [0.75, 0.25]], dtype=torch.float64))
    assert_close(out, torch.tensor([[10, 0], [7.5, 2.5]], dtype=torch.float64))


def test_the_scale_is_one_over_root_of_d_not_of_dv() -> None:
    q, k, v = inputs(D=11, Dv=13)
    assert_close(attention(q, k, v).scores, q @ k.T / math.sqrt(11))
    assert_close(attention(q, k, v, scale=-0.3).scores, q @ k.T * -0.3)
    assert_close(attention(q, k, v, scale=0.0).weights, torch.full((T, S), 1 / S, dtype=torch.float64))


# Against loops and torch

CASES = {
    "plain": {},
    "mask": {"mask": random_mask(T, S)},
    "score_bias": {"score_bias": random_bias(T, S)},
    "scale": {"scale": 0.7},
    "all": {"mask": random_mask(T, S), "score_bias": random_bias(T, S), "scale": 0.7},
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_equals_the_loops(batch: tuple[int, ...], options: dict) -> None:
    assert_trace(attention(*inputs(*batch), **options), reference.attention(*inputs(*batch), **options))


@pytest.mark.parametrize("shape", sorted(reference.broadcastable((B, H, T, S))), ids=str)
def test_mask_and_bias_of_every_broadcastable_shape(shape: tuple[int, ...]) -> None:
    q, k, v = inputs(B, H)
    mask, bias = random_mask(*shape), random_bias(*shape)
    for options in ({"mask": mask}, {"score_bias": bias}):
        whole = {name: x.expand(B, H, T, S).clone() for name, x in options.items()}
        assert_trace(attention(q, k, v, **options), tuple(attention(q, k, v, **whole)))
        attn_mask = options.get("mask", options.get("score_bias"))
        want = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask.expand(B, H, T, S))
        assert_close(attention(q, k, v, **options).out, want)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_outputs_and_gradients_equal_torch(batch: tuple[int, ...], options: dict, dtype: torch.dtype) -> None:
    bias = options.get("score_bias", torch.zeros(T, S, dtype=dtype)).to(dtype)
    ours, theirs = leaves(*inputs(*batch, dtype=dtype), bias), leaves(*inputs(*batch, dtype=dtype), bias)
    mask, scale = options.get("mask"), options.get("scale")

    q, k, v, score_bias = ours
    out = attention(q, k, v, mask=mask, score_bias=score_bias, scale=scale).out
    q, k, v, score_bias = theirs
    added = score_bias if mask is None else score_bias.masked_fill(~mask, OFF)
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)

    assert_close(out, want)
    up = torch.randn(want.shape, generator=torch.Generator().manual_seed(3), dtype=dtype)
    for name, a, b in zip(
        ("q", "k", "v", "score_bias"),
        torch.autograd.grad(out, ours, up),
        torch.autograd.grad(want, theirs, up),
        strict=True,
    ):
        assert_close(a, b, msg=lambda text, name=name: f"gradient of {name}: {text}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_error_in_half_precision_is_at_most_twice_the_references(dtype: torch.dtype, options: dict) -> None:
    many = 40  # the largest error of one small draw says little
    low = leaves(*inputs(many * B, H, dtype=dtype))
    exact, other = leaves(*(x.double() for x in low)), leaves(*low)

    def reference_in_this_precision(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) * options.get("scale", 1 / math.sqrt(D))
        if "score_bias" in options:
            scores = scores + options["score_bias"].to(dtype)
        if "mask" in options:
            assert options["mask"].any(-1).all()
            scores = scores.masked_fill(~options["mask"], OFF)
        return torch.einsum("bhts,bhsd->bhtd", scores.softmax(-1), v)

    outs = attention(*low, **options).out, attention(*exact, **options).out, reference_in_this_precision(*other)
    assert outs[0].dtype == dtype
    up = torch.randn(outs[0].shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    ours, truth, theirs = (
        (out, *torch.autograd.grad(out, x, up.to(out.dtype))) for out, x in zip(outs, (low, exact, other), strict=True)
    )
    for name, a, b, c in zip(("out", "q.grad", "k.grad", "v.grad"), ours, truth, theirs, strict=True):
        error, allowed = (a - b).abs().max().item(), 2 * (c - b).abs().max().item()
        assert 0 < error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"


def test_large_queries_stay_in_range_in_float16() -> None:
    # q.k = 64 * 40 * 40 = 102,400 overflows float16; divided by sqrt(64) it does not.
    x = torch.full((1, 64), 40.0, dtype=torch.float16)
    assert_close(attention(x, x, x).scores, torch.tensor([[12800.0]], dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_results_have_the_type_of_q_whatever_the_bias(dtype: torch.dtype) -> None:
    for bias in (torch.float16, torch.float32, torch.float64):
        trace = attention(*inputs(dtype=dtype), score_bias=torch.zeros(T, S, dtype=bias))
        assert [x.dtype for x in trace] == [dtype] * 3


# Gradients


@pytest.mark.parametrize("blind", [False, True], ids=["all rows see", "some rows see nothing"])
@pytest.mark.parametrize("through", ["mask", "score_bias"])
def test_gradcheck(blind: bool, through: str) -> None:
    q, k, v = leaves(*inputs(2, T=3, S=4, D=2, Dv=3))
    may = random_mask(3, 4)
    may[:, 0] = True
    may[1] = not blind
    (bias,) = leaves(random_bias(3, 4))
    mask, added = (
        (may, 0) if through == "mask" else (None, torch.zeros(3, 4, dtype=torch.float64).masked_fill(~may, OFF))
    )

    def out(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        trace = attention(q, k, v, mask=mask, score_bias=bias + added, scale=0.9)
        return trace.weights, trace.out

    assert torch.autograd.gradcheck(out, (q, k, v, bias))
    assert torch.autograd.gradgradcheck(out, (q, k, v, bias))


def test_gradients_flow_to_each_input_alone() -> None:
    tensors = inputs(B)
    for i in range(3):
        mixed = [x.clone().requires_grad_(j == i) for j, x in enumerate(tensors)]
        attention(*mixed).out.square().sum().backward()
        assert [x.grad is not None and x.grad.abs().sum() > 0 for x in mixed] == [j == i for j in range(3)]
    assert not attention(*tensors).out.requires_grad


# Rows that see nothing


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("through", ["mask", "score_bias", "both"])
def test_a_row_that_sees_nothing_is_zero_and_so_is_its_gradient(through: str, dtype: torch.dtype) -> None:
    blind = 2
    may = torch.ones(T, S, dtype=torch.bool)
    # "both": neither the mask nor the bias hides the row by itself
    may[blind] = torch.arange(S) < 3 if through == "both" else False
    hidden = torch.zeros(T, S, dtype=dtype)
    hidden[blind] = OFF
    if through == "both":
        hidden[blind, :3] = OFF
        hidden[blind, 3:] = 0
    q, k, v, bias = leaves(*inputs(B, H, dtype=dtype), hidden)
    options = {"mask": {"mask": may}, "score_bias": {"score_bias": bias}, "both": {"mask": may, "score_bias": bias}}
    trace = attention(q, k, v, **options[through])

    assert_close(trace.scores[..., blind, :], torch.full((B, H, S), OFF, dtype=dtype))
    assert_close(trace.weights[..., blind, :], torch.zeros(B, H, S, dtype=dtype), rtol=0, atol=0)
    assert_close(trace.out[..., blind, :], torch.zeros(B, H, DV, dtype=dtype), rtol=0, atol=0)
    assert (trace.out[..., [0, 1, 3, 4], :] != 0).all()

    trace.out.square().sum().backward()
    for name, x in zip("qkv", (q, k, v), strict=True):
        assert x.grad.isfinite().all(), name
    assert_close(q.grad[..., blind, :], torch.zeros(B, H, D, dtype=dtype), rtol=0, atol=0)
    assert (q.grad[..., [0, 1, 3, 4], :] != 0).any(-1).all()
    if through != "mask":
        assert_close(bias.grad[blind], torch.zeros(S, dtype=dtype), rtol=0, atol=0)
        assert bias.grad.isfinite().all()
    # the row adds nothing to the gradients of k and v either
    k2, v2 = leaves(k, v)
    seeing = [0, 1, 3, 4]
    attention(q.detach()[..., seeing, :], k2, v2).out.square().sum().backward()
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(dtype, 1e-5)
    assert_close(k.grad, k2.grad, rtol=tolerance, atol=tolerance)
    assert_close(v.grad, v2.grad, rtol=tolerance, atol=tolerance)


def test_gradients_through_the_weights_and_scores_of_a_blind_row_are_finite() -> None:
    may = torch.ones(T, S, dtype=torch.bool)
    may[1] = False
    tensors = leaves(*inputs(B))
    trace = attention(*tensors, mask=may)
    (trace.weights.square().sum() + trace.scores[:, [0, 2, 3, 4]].sum()).backward()
    q, k, _ = tensors
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()
    assert_close(q.grad[:, 1], torch.zeros(B, D, dtype=torch.float64), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("batch", "T", "S"), [((B, H), T, 0), ((B, H), 0, S), ((B, H), 0, 0), ((0, H), T, S), ((B, 0), T, S), ((), T, 0)]
)
@pytest.mark.parametrize("with_mask", [False, True])
def test_empty_sizes(batch: tuple[int, ...], T: int, S: int, with_mask: bool) -> None:
    tensors = leaves(*inputs(*batch, T=T, S=S))
    options = {"mask": torch.ones(T, S, dtype=torch.bool), "score_bias": torch.zeros(T, S)} if with_mask else {}
    scores, weights, out = attention(*tensors, **options)
    assert scores.shape == weights.shape == (*batch, T, S)
    assert_close(out, torch.zeros(*batch, T, DV, dtype=torch.float64))  # S = 0, or there is nothing to compare
    out.sum().backward()
    for x in tensors:
        assert x.grad.isfinite().all()
        assert x.grad.shape == x.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scores_hold_everything_that_the_softmax_saw(dtype: torch.dtype) -> None:
    mask = random_mask(B, H, T, S)
    mask[0, 1, 2] = False
    q, k, v = inputs(B, H, dtype=dtype)
    trace = attention(q, k, v, mask=mask, score_bias=random_bias(T, S), scale=0.4)
    sees = mask.any(-1)
    assert not sees.all()
    assert_close(trace.scores.softmax(-1)[sees], trace.weights[sees])
    assert torch.equal(trace.scores == OFF, ~mask)
    assert_close(trace.weights.sum(-1), sees.to(dtype))


# Dropout


def test_dropout_acts_on_the_weights_that_are_returned_and_used() -> None:
    q, k, v = inputs(B, H)
    torch.manual_seed(0)
    scores, weights, out = attention(q, k, v, dropout_p=0.4)
    kept = attention(q, k, v)
    assert_close(scores, kept.scores)
    assert_close(weights @ v, out)
    dropped = weights == 0
    assert 0 < dropped.sum() < dropped.numel()
    assert_close(weights[~dropped], (kept.weights / 0.6)[~dropped])


def test_dropout_zero_and_one() -> None:
    q, k, v = inputs(B, H)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert_trace(attention(q, k, v, dropout_p=0.0), tuple(attention(q, k, v)))
    assert torch.equal(torch.get_rng_state(), state), "dropout_p = 0 draws no random numbers"
    tensors = leaves(q, k, v)
    trace = attention(*tensors, dropout_p=1.0)
    assert_close(trace.weights, torch.zeros(B, H, T, S, dtype=torch.float64))
    assert_close(trace.out, torch.zeros(B, H, T, DV, dtype=torch.float64))
    trace.out.sum().backward()
    assert_close([x.grad for x in tensors], [torch.zeros_like(x) for x in tensors])


def test_dropout_statistics() -> None:
    torch.manual_seed(0)
    zeros = torch.zeros(1, 1, dtype=torch.float64)
    n, p = 40_000, 0.3
    weights = attention(zeros.expand(n, 1), zeros, zeros, dropout_p=p).weights  # undropped weights are all 1
    share = (weights == 0).double().mean().item()
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / n)
    assert_close(weights[weights != 0].unique(), torch.tensor([1 / (1 - p)], dtype=torch.float64))


# Properties


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    size = st.integers(1, 5)
    batch, T, S = draw(st.integers(1, 3)), draw(size), draw(size)
    q, k, v = inputs(batch, T=T, S=S, D=draw(size), Dv=draw(size), dtype=torch.float32, seed=draw(st.integers(0, 999)))
    cells = st.lists(st.booleans(), min_size=T * S, max_size=T * S)
    return (q * draw(st.sampled_from([0.1, 1.0, 30.0])), k, v), torch.tensor(draw(cells)).view(T, S)


@settings(max_examples=100)
@given(problems(), st.data())
def test_rows_that_may_not_see_a_key_stay_bit_equal_when_it_changes(problem: tuple, data: st.DataObject) -> None:
    (q, k, v), mask = problem
    j = data.draw(st.integers(0, k.shape[-2] - 1), label="j")
    new = data.draw(st.sampled_from([0.0, -3.5, 1e30]), label="new value")
    before = attention(q, k, v, mask=mask)
    k2, v2 = k.clone(), v.clone()
    k2[:, j], v2[:, j] = new, new + 1
    after = attention(q, k2, v2, mask=mask)
    blind = ~mask[:, j]
    for name in ("weights", "out"):
        assert_close(getattr(after, name)[:, blind], getattr(before, name)[:, blind], rtol=0, atol=0)
    # and the rows that may see it do change, or the test above would say nothing
    assert torch.equal((after.scores != before.scores)[..., j].any(0), ~blind & (q.sum(-1) != 0).any(0))


@settings(max_examples=100)
@given(problems(), st.randoms(use_true_random=False))
def test_permutations(problem: tuple, random: object) -> None:
    (q, k, v), mask = problem
    rows, columns = list(range(q.shape[-2])), list(range(k.shape[-2]))
    random.shuffle(rows)
    random.shuffle(columns)
    base = attention(q, k, v, mask=mask)
    of_keys = attention(q, k[:, columns], v[:, columns], mask=mask[:, columns])
    assert_close(of_keys.out, base.out)
    assert_close(of_keys.weights, base.weights[..., columns])
    of_queries = attention(q[:, rows], k, v, mask=mask[rows])
    assert_close(of_queries.out, base.out[:, rows])
    assert_close(of_queries.weights, base.weights[:, rows])


@settings(max_examples=100)
@given(problems())
def test_rows_sum_to_one_or_zero_and_out_is_between_the_values(problem: tuple) -> None:
    (q, k, v), mask = problem
    _, weights, out = attention(q, k, v, mask=mask)
    assert_close(weights.sum(-1), mask.any(-1).float().expand(len(q), -1))
    assert (weights >= 0).all()
    assert not weights.masked_select(~mask).any()
    for t, row in enumerate(mask):
        if row.any():
            assert (out[:, t] <= v[:, row].amax(1) + 1e-5).all()
            assert (out[:, t] >= v[:, row].amin(1) - 1e-5).all()


# Leaks


@pytest.mark.parametrize("big", [1e4, 1e30])
@pytest.mark.parametrize("through", ["mask", "score_bias"])
def test_large_finite_values_that_are_hidden_do_not_leak(big: float, through: str) -> None:
    may = causal(T)
    hidden = {"mask": may, "score_bias": torch.zeros(T, T).masked_fill(~may, OFF)}

    def run(last: float) -> tuple[Tensor, list[Tensor]]:
        q, k, v = inputs(B, S=T, dtype=torch.float32)
        k[:, -1], v[:, -1] = last, -last
        tensors = leaves(q, k, v)
        out = attention(*tensors, **{through: hidden[through]}).out[:, :-1]  # what may not see the last
        return out, list(torch.autograd.grad(out.square().sum(), tensors))

    out, grads = run(big)
    want, want_grads = run(1.0)
    assert_close(out, want, rtol=0, atol=0)
    assert_close(grads, want_grads, rtol=0, atol=0)


def test_a_hidden_key_that_overflows_the_scores_does_not_leak() -> None:
    q, k, v = inputs(B, S=T, dtype=torch.float32)
    k2 = k.clone()
    k2[:, -1] = 3e38
    before, after = attention(q, k, v, mask=causal(T)), attention(q, k2, v, mask=causal(T))
    assert_close(after.out[:, :-1], before.out[:, :-1], rtol=0, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_behind_a_mask_does_leak_as_documented_and_as_in_torch(bad: float) -> None:
    q, k, v = inputs(B, H, S=T)
    v[..., -1, :] = bad
    out = attention(q, k, v, mask=causal(T)).out
    assert out.isnan()[..., :-1, :].all()
    assert F.scaled_dot_product_attention(q, k, v, attn_mask=causal(T)).isnan()[..., :-1, :].all()


def test_nan_in_a_hidden_key_stays_behind_the_mask_forwards() -> None:
    q, k, v = inputs(B, S=T)
    want = attention(q, k, v, mask=causal(T)).out[:, :-1]
    k[:, -1] = math.nan
    assert_close(attention(q, k, v, mask=causal(T)).out[:, :-1], want, rtol=0, atol=0)


def test_nan_in_a_hidden_key_reaches_the_gradient_of_q_as_documented() -> None:
    q, k, v = inputs(B, S=T)
    k[:, -1] = math.nan
    q.requires_grad_()
    attention(q, k, v, mask=causal(T)).out[:, :-1].sum().backward()
    assert q.grad is not None
    assert q.grad.isnan().any()


def test_scores_that_overflow_to_minus_infinity_give_gradient_0() -> None:
    q = torch.full((1, 2), 1e30, requires_grad=True)
    k = torch.full((3, 2), -1e30, requires_grad=True)
    trace = attention(q, k, torch.ones(3, 2))
    assert (trace.scores == -math.inf).all()
    assert_close(trace.weights.detach(), torch.zeros(1, 3))
    trace.out.sum().backward()
    assert_close([q.grad, k.grad], [torch.zeros(1, 2), torch.zeros(3, 2)])


def test_scale_may_be_a_large_integer() -> None:
    q, k, v = torch.full((1, 1), 1e-30), torch.ones(2, 1), torch.eye(2)
    assert_close(attention(q, k, v, scale=10**30).scores, torch.ones(1, 2))


def test_scale_may_be_the_largest_number() -> None:
    zeros = torch.zeros(T, D, dtype=torch.float64)
    assert_close(
        attention(zeros, zeros, zeros, scale=sys.float_info.max).scores, torch.zeros(T, T, dtype=torch.float64)
    )


def test_annotations_are_checked_in_these_tests() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        attention(torch.ones(1, 2), torch.ones(3, 4), torch.ones(3, 2))


# Memory layouts, transforms, compilation


def test_layout_in_memory_does_not_matter_and_inputs_are_left_alone() -> None:
    q, k, v = inputs(B, H)
    mask, bias = random_mask(T, S), random_bias(T, S)
    want = attention(q, k, v, mask=mask, score_bias=bias)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]  # as split from heads
    strided = [torch.stack([x, x + 1], dim=-1)[..., 0] for x in (q, k, v)]
    for other in (turned, strided):
        assert not any(x.is_contiguous() for x in other)
        copies = [x.clone() for x in other]
        assert_trace(attention(*other, mask=mask.T.contiguous().T, score_bias=bias.T.contiguous().T), tuple(want))
        assert_close(other, copies, rtol=0, atol=0)


def test_expanded_inputs_and_their_gradients() -> None:
    one = leaves(*inputs(1, 1))
    full = leaves(*(x.expand(B, H, -1, -1) for x in one))
    trace = attention(*(x.expand(B, H, -1, -1) for x in one), mask=random_mask(1, 1, 1, S).expand(B, H, T, S))
    want = attention(*full, mask=random_mask(1, 1, 1, S).expand(B, H, T, S).clone())
    assert_trace(trace, tuple(want))
    trace.out.square().sum().backward()
    want.out.square().sum().backward()
    assert_close([x.grad for x in one], [x.grad.sum((0, 1), keepdim=True) for x in full])


@pytest.mark.unchecked
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_compiles_whole(options: dict) -> None:
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    assert_trace(compiled(*inputs(B, H), **options), tuple(attention(*inputs(B, H), **options)))


@pytest.mark.unchecked
def test_vmap_over_everything_and_over_masks() -> None:
    q, k, v = inputs(B, H)
    mask = random_mask(B, T, S)
    got = torch.vmap(lambda q, k, v, mask: attention(q, k, v, mask=mask))(q, k, v, mask)
    assert_trace(got, tuple(attention(q, k, v, mask=mask[:, None])))
    got = torch.vmap(lambda mask: attention(q[0, 0], k[0, 0], v[0, 0], mask=mask))(mask)
    want = attention(*(x[0, 0].expand(B, -1, -1) for x in (q, k, v)), mask=mask)
    assert_trace(got, tuple(want))


@pytest.mark.unchecked
def test_autocast_computes_in_the_low_type_and_stays_close() -> None:
    q, k, v = inputs(B, H, dtype=torch.float32)
    mask = random_mask(T, S)
    mask[2] = False
    with torch.autocast("cpu", torch.bfloat16):
        trace = attention(q, k, v, mask=mask, score_bias=torch.zeros(T, S))
    assert trace.out.dtype == torch.bfloat16
    assert_close(trace.out.float(), attention(q, k, v, mask=mask).out, rtol=2e-2, atol=2e-2)
    assert_close(trace.out[..., 2, :], torch.zeros(B, H, DV, dtype=torch.bfloat16))


def test_a_trace_can_be_copied_and_unpacked() -> None:
    trace = attention(*inputs())
    twin = copy.deepcopy(trace)
    assert isinstance(twin, AttentionTrace)
    assert_trace(twin, tuple(trace))
    assert twin.out.data_ptr() != trace.out.data_ptr()
    assert trace._fields == ("scores", "weights", "out")


# Bad input

q, k, v = inputs(B, H, dtype=torch.float32)
true = torch.ones(T, S, dtype=torch.bool)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"q": [[1.0]]}, TypeError, r"^q must be a tensor, got list$"),
        ({"k": None}, TypeError, r"^k must be a tensor, got NoneType$"),
        ({"v": np.zeros((2, 2))}, TypeError, r"^v must be a tensor, got ndarray$"),
        ({"q": q.long()}, TypeError, r"^q must be floating point, got torch\.int64$"),
        ({"k": k.bool()}, TypeError, r"^k must be floating point, got torch\.bool$"),
        ({"v": v.to(torch.complex64)}, TypeError, r"^v must be floating point, got torch\.complex64$"),
        ({"k": k.double()}, TypeError, r"^k must have the type of q, torch\.float32, got torch\.float64$"),
        ({"v": v.half()}, TypeError, r"^v must have the type of q, torch\.float32, got torch\.float16$"),
        ({"mask": true.float()}, TypeError, r"^mask must be bool \(True = may attend\), got torch\.float32$"),
        ({"mask": true.long()}, TypeError, r"^mask must be bool \(True = may attend\), got torch\.int64$"),
        ({"mask": True}, TypeError, r"^mask must be a bool \(True = may attend\) tensor, got bool$"),
        ({"score_bias": true}, TypeError, r"^score_bias must be floating point, got torch\.bool$"),
        ({"score_bias": 0.5}, TypeError, r"^score_bias must be a floating point tensor, got float$"),
        ({"scale": "1"}, TypeError, r"^scale must be a number, got str$"),
        ({"scale": True}, TypeError, r"^scale must be a number, got bool$"),
        ({"scale": torch.tensor(1.0)}, TypeError, r"^scale must be a number, got Tensor$"),
        ({"dropout_p": None}, TypeError, r"^dropout_p must be a number, got NoneType$"),
        ({"dropout_p": True}, TypeError, r"^dropout_p must be a number, got bool$"),
        ({"q": q[0, 0, 0]}, ValueError, r"^q must have at least two axes \(length, width\), got \(11,\)$"),
        ({"v": v.sum()}, ValueError, r"^v must have at least two axes \(length, width\), got \(\)$"),
        ({"q": q[..., :0], "k": k[..., :0]}, ValueError, r"^q must have width D of at least 1, got \(2, 3, 5, 0\)$"),
        ({"q": q[..., 1:]}, ValueError, r"one width D, got q \(2, 3, 5, 10\) and k \(2, 3, 7, 11\)$"),
        ({"v": v[..., 1:, :]}, ValueError, r"one length S, got k \(2, 3, 7, 11\) and v \(2, 3, 6, 13\)$"),
        ({"q": q[:1]}, ValueError, r"same leading sizes, got q \(1, 3, 5, 11\), k \(2, 3, 7, 11\) and v \(2, 3"),
        ({"k": k[:, :1]}, ValueError, r"same leading sizes, got q \(2, 3, 5, 11\), k \(2, 1, 7, 11\)"),
        ({"v": v[0]}, ValueError, r"same leading sizes, .* and v \(3, 7, 13\)$"),
        ({"k": k.to("meta")}, ValueError, r"^k must be on q's device, cpu, got meta$"),
        ({"v": v.to("meta")}, ValueError, r"^v must be on q's device, cpu, got meta$"),
        ({"mask": true.to("meta")}, ValueError, r"^mask must be on q's device, cpu, got meta$"),
        ({"score_bias": torch.zeros(T, S, device="meta")}, ValueError, r"^score_bias must be on q's device, cpu, got"),
        ({"mask": true.T}, ValueError, r"^mask must broadcast to \(\.\.\., T, S\) = \(2, 3, 5, 7\), got \(7, 5\)$"),
        ({"mask": true[:, :1].expand(T, 2)}, ValueError, r"^mask must broadcast .* got \(5, 2\)$"),
        ({"mask": true[None, None, None]}, ValueError, r"^mask must broadcast .* got \(1, 1, 1, 5, 7\)$"),
        ({"mask": true[:, :0]}, ValueError, r"^mask must broadcast .* got \(5, 0\)$"),
        ({"score_bias": torch.zeros(B, S, S)}, ValueError, r"^score_bias must broadcast .* got \(2, 7, 7\)$"),
        ({"scale": math.nan}, ValueError, r"^scale must be finite, got nan$"),
        ({"scale": -math.inf}, ValueError, r"^scale must be finite, got -inf$"),
        ({"scale": 10**400}, ValueError, r"^scale must be finite, got 1000"),
        ({"dropout_p": -0.1}, ValueError, r"^dropout_p must lie in \[0, 1\], got -0\.1$"),
        ({"dropout_p": 1.5}, ValueError, r"^dropout_p must lie in \[0, 1\], got 1\.5$"),
        ({"dropout_p": math.nan}, ValueError, r"^dropout_p must lie in \[0, 1\], got nan$"),
    ],
)
def test_bad_input(change: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        attention(**{"q": q, "k": k, "v": v, **change})


def test_a_score_that_overflows_behind_a_bias_of_minus_infinity_does_not_leak() -> None:
    q = torch.ones(1, 2, requires_grad=True)
    k = torch.tensor([[1.0, 0.0], [3e38, 3e38]], requires_grad=True)
    bias = torch.tensor([[0.0, -math.inf]])
    trace = attention(q, k, torch.eye(2), score_bias=bias)
    torch.testing.assert_close(trace.weights.detach(), torch.tensor([[1.0, 0.0]]))
    trace.out.sum().backward()
    torch.testing.assert_close(k.grad, torch.zeros(2, 2))
    torch.testing.assert_close(q.grad, torch.zeros(1, 2))


@pytest.mark.unchecked
def test_options_go_by_name() -> None:
    with pytest.raises(TypeError, match="takes 3 positional arguments but 4 were given"):
        attention(q, k, v, true)
    with pytest.raises(TypeError, match="unexpected keyword argument 'is_causal'"):
        attention(q, k, v, is_causal=True)
