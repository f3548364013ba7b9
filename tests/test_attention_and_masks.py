"""Attention under every kind of mask, in every type, against the loops of reference.py: drawn cases.

200 cases in the test command, 2,000 with --hypothesis-profile=long.
"""

import itertools
import math
from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mha_course import attention, masks
from tests import reference

OFF = -math.inf
ALIGNMENTS = st.sampled_from(["upper_left", "lower_right"])


class Problem(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    score_bias: Tensor | None
    scale: float | None


@st.composite
def orders(draw: st.DrawFn, T: int, S: int) -> Tensor:
    """A mask (T, S) from the order of the tokens."""
    aligned = {"S": S, "alignment": draw(ALIGNMENTS)}
    limits = st.none() | st.integers(0, 5)
    kind = draw(st.sampled_from(["causal", "window", "band", "prefix", *(["blocks"] if T == S else [])]))
    if kind == "causal":
        return masks.causal(T, **aligned)
    if kind == "window":
        return masks.sliding_window(T, draw(st.integers(1, 6)), **aligned)
    if kind == "band":
        return masks.band(T, draw(limits), draw(limits), **aligned)
    if kind == "prefix":
        return masks.prefix(T, draw(st.integers(0, S)), **aligned)
    cuts = sorted(draw(st.lists(st.integers(0, S), max_size=3)))
    lengths = [b - a for a, b in itertools.pairwise([0, *cuts])]
    return masks.block_diagonal(torch.tensor(lengths, dtype=torch.int64), S)


@st.composite
def contents(draw: st.DrawFn, B: int, T: int, S: int) -> Tensor:
    """A mask (B, 1, 1 or T, S) from what the sequences hold."""
    lengths = torch.tensor(draw(st.lists(st.integers(0, S), min_size=B, max_size=B)), dtype=torch.int64)
    ids = torch.tensor(draw(st.lists(st.integers(0, 2), min_size=B * S, max_size=B * S)), dtype=torch.int64)
    kind = draw(st.sampled_from(["padding", "tokens", "prefix", *(["ids"] if T == S else [])]))
    if kind == "padding":
        return masks.padding(lengths, S)
    if kind == "tokens":
        return masks.padding_from_tokens(ids.view(B, S), draw(st.integers(0, 2)))
    if kind == "prefix":
        return masks.prefix(T, lengths, S, alignment=draw(ALIGNMENTS))
    return masks.block_diagonal_from_ids(ids.view(B, S))


@st.composite
def any_cells(draw: st.DrawFn, *shape: int) -> Tensor:
    """Any mask of that shape, through a converter."""
    n = math.prod(shape)
    mask = torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=torch.bool).view(shape)
    kind = draw(st.sampled_from(["plain", "blocked", "additive", "integers"]))
    if kind == "blocked":
        return masks.from_blocked(masks.to_blocked(mask))
    if kind == "additive":
        dtype = draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
        return masks.from_additive(masks.to_additive(mask, dtype=dtype))
    return masks.from_integers(mask.int()) if kind == "integers" else mask


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    batch = draw(st.sampled_from([(), (2,), (2, 3), (1, 2), (3, 1), (0, 2)]))
    T, S = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    S = draw(st.sampled_from([S, T]))
    D, Dv = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from([0.1, 1.0, 3.0]))
    shapes = ((*batch, T, D), (*batch, S, D), (*batch, S, Dv))
    q, k, v = (torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    shapes = st.sampled_from(sorted(reference.broadcastable((*batch, T, S))))

    kinds = [st.none(), orders(T, S), shapes.flatmap(lambda shape: any_cells(*shape))]
    if len(batch) == 2:
        of_samples = contents(batch[0], T, S)
        kinds += [of_samples, st.builds(torch.logical_and, orders(T, S), of_samples)]
        kinds += [st.builds(torch.logical_or, orders(T, S), of_samples), of_samples.map(torch.logical_not)]
    mask = draw(st.one_of(kinds))
    bias = None
    if draw(st.booleans()):
        shape = draw(shapes)
        bias = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        bias = bias.masked_fill(torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.3])), OFF)
    return Problem((q * size).to(dtype), k, v, mask, bias, draw(st.sampled_from([None, 0.7, -1.3])))


def assert_near(name: str, got: Tensor, want: Tensor, tolerance: float) -> None:
    assert got.shape == want.shape, name
    assert torch.equal(got == OFF, want == OFF), f"{name}: -inf in other places"
    error = (got.double() - want).masked_fill(want == OFF, 0.0)
    assert not error.isnan().any(), name
    largest = error.abs().max().item() if error.numel() else 0.0
    assert largest <= tolerance, f"{name}: error {largest:.2e}, allowed {tolerance:.2e}"


@settings(max_examples=max(200, settings().max_examples))
@given(problems())
def test_equals_the_loops_whatever_the_mask(problem: Problem) -> None:
    q, k, v, mask, bias, scale = problem
    got = attention(q, k, v, mask=mask, score_bias=bias, scale=scale)
    scores, weights, out = reference.attention(
        *(x.double() for x in (q, k, v)), mask=mask, score_bias=None if bias is None else bias.double(), scale=scale
    )
    assert {x.dtype for x in got} == {q.dtype}
    # what rounding can do: each step errs by a few eps of the largest number in it
    eps = torch.finfo(q.dtype).eps
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else abs(scale)
    terms = factor * (q.double().abs() @ k.double().abs().mT)
    size = (terms.max().item() if terms.numel() else 0.0) + (
        0.0 if bias is None or not bias.numel() else bias.double().nan_to_num(0, 0, 0).abs().max().item()
    )
    allowed = 4 * eps * (size + 1)
    assert_near("scores", got.scores, scores, allowed)
    assert_near("weights", got.weights, weights, 2 * allowed)
    assert_near("out", got.out, out, 2 * allowed * (1 + (v.double().abs().max().item() if v.numel() else 0.0)))
    sees_nothing = (scores == OFF).all(-1)
    assert not got.out[sees_nothing].any()
    assert not got.weights[got.scores == OFF].any()


def test_the_cases_are_of_all_kinds() -> None:
    """Of the drawn cases enough have a mask, a bias, rows that see nothing, empty sizes."""
    seen = {"mask": 0, "four axes": 0, "bias": 0, "blind": 0, "empty": 0, "half": 0, "all": 0}

    @settings(max_examples=200, database=None)
    @given(problems())
    def count(problem: Problem) -> None:
        q, k, _, mask, bias, _ = problem
        seen["all"] += 1
        seen["mask"] += mask is not None
        seen["four axes"] += mask is not None and mask.ndim == 4
        seen["bias"] += bias is not None
        seen["blind"] += mask is not None and bool((~mask.any(-1)).any())
        seen["empty"] += q.numel() == 0 or k.numel() == 0
        seen["half"] += q.dtype in (torch.float16, torch.bfloat16)

    count()
    assert seen["all"] >= 150
    assert min(seen.values()) >= 15, seen
