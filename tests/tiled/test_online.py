"""The online softmax: partial results, by hand and merged in every order."""

import itertools
import math
from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from mha_course import attention
from mha_course.tiled import Partial, finish, merge, nothing, partial
from tests.tiled.problems import DV, OFF, B, H, S, T, bools, explicit, inputs, leaves, numbers

SHAPES = {"(T, D)": (), "(B, T, D)": (B,), "(B, H, T, D)": (B, H)}


def parts(tensors: list[Tensor], cuts: list[int], **options: Tensor) -> list[Partial]:
    """What is found in each piece of the keys."""
    q, k, v = tensors
    found = []
    for start, stop in itertools.pairwise([0, *cuts, k.shape[-2]]):
        own = {name: x[..., start:stop] for name, x in options.items()}
        found.append(partial(q, k[..., start:stop, :], v[..., start:stop, :], **own))
    return found


def test_two_blocks_by_hand() -> None:
    # scores ln 2 and 0, then ln 8 and ln 2; values 1, 4 and 2, 3
    q = torch.ones(1, 1, dtype=torch.float64)
    k = torch.tensor([[2.0], [1], [8], [2]], dtype=torch.float64).log()
    v = torch.tensor([[1.0], [4], [2], [3]], dtype=torch.float64)
    first, second = partial(q, k[:2], v[:2]), partial(q, k[2:], v[2:])

    def row(*x: float) -> Tensor:
        return torch.tensor(x, dtype=torch.float64)

    assert_close(first, Partial(row(math.log(2)), row(1 + 1 / 2), row(1 + 4 / 2)[:1, None]))
    assert_close(second, Partial(row(math.log(8)), row(1 + 1 / 4), row(2 + 3 / 4)[:1, None]))
    both = merge(first, second)
    assert_close(both, Partial(row(math.log(8)), row(13 / 8), row(2 / 8 + 4 / 8 + 2 + 3 / 4)[:1, None]))
    assert_close(both.logsumexp, row(math.log(13)))
    assert_close(finish(both), row((2 + 4 + 16 + 6) / 13)[:, None])


@pytest.mark.parametrize("batch", SHAPES.values(), ids=SHAPES)
def test_any_pieces_in_any_order_give_attention_and_its_gradients(batch: tuple[int, ...]) -> None:
    tensors = leaves(*(x[(*[slice(None)] * len(batch), *[0] * (2 - len(batch)))] for x in inputs()))
    mask, bias = bools(*batch, T, S), numbers(*batch, T, S, seed=4)
    mask[..., 1, :] = False
    trace = attention(*tensors, mask=mask, score_bias=bias)
    up = numbers(*trace.out.shape, seed=9)
    want = torch.autograd.grad(trace.out, tensors, up, retain_graph=True)
    for cuts in ([], [3], [1, 2, 6]):
        for order in itertools.permutations(range(len(cuts) + 1)):
            found = parts(tensors, cuts, mask=mask, score_bias=bias)
            seen = reduce(merge, [found[i] for i in order])
            out = finish(seen)
            assert_close(out, trace.out)
            assert_close(torch.autograd.grad(out, tensors, up), want)
            assert_close(seen.logsumexp, trace.scores.logsumexp(-1))


@pytest.mark.parametrize("Hkv", [1, 2, 3, 6])
def test_grouped_heads(Hkv: int) -> None:
    tensors = inputs(H=6, Hkv=Hkv)
    assert_close(finish(reduce(merge, parts(tensors, [3]))), explicit(*tensors))


def test_nothing_changes_nothing_and_is_zero() -> None:
    q, k, v = inputs()
    found, none = partial(q, k, v), nothing(q, DV)
    assert_close(merge(found, none), found, rtol=0, atol=0)
    assert_close(merge(none, found), found, rtol=0, atol=0)
    both = merge(none, none)
    assert_close(both, none, rtol=0, atol=0)
    assert_close(finish(both), torch.zeros(B, H, T, DV, dtype=torch.float64), rtol=0, atol=0)
    assert_close(both.logsumexp, torch.full((B, H, T), OFF, dtype=torch.float64))


def test_a_row_that_sees_nothing_in_one_piece_or_in_all() -> None:
    tensors = inputs()
    mask = torch.ones(T, S, dtype=torch.bool)
    mask[1, :3], mask[2, 3:], mask[3] = False, False, False
    seen = reduce(merge, parts(tensors, [3], mask=mask))
    assert_close(finish(seen), explicit(*tensors, mask=mask))
    assert not torch.autograd.grad(finish(seen)[:, :, 3].sum(), tensors[0])[0].any()
    assert (seen.logsumexp[:, :, 3] == OFF).all()


@pytest.mark.parametrize("scale", [1e3, 1e5])
def test_scores_far_apart_do_not_overflow(scale: float) -> None:
    q, k, v = (x.detach() for x in inputs(dtype=torch.float32))
    found = [partial(q, *kv, scale=scale) for kv in ((k[:, :, :3], v[:, :, :3]), (k[:, :, 3:], v[:, :, 3:]))]
    assert_close(finish(merge(*found)), attention(q, k, v, scale=scale).out)


@settings(max_examples=40)
@given(st.lists(st.floats(-800, 800), min_size=3, max_size=9), st.data())
def test_merging_is_associative(scores: list[float], data: st.DataObject) -> None:
    q, k = torch.ones(1, 1, dtype=torch.float64), torch.tensor(scores, dtype=torch.float64)[:, None]
    v = numbers(len(scores), 2)
    i = data.draw(st.integers(1, len(scores) - 2))
    j = data.draw(st.integers(i + 1, len(scores) - 1))
    a, b, c = parts([q, k, v], [i, j])
    left, right = merge(merge(a, b), c), merge(a, merge(b, c))
    assert_close(left, right)
    assert_close(left.total, (k - k.max()).exp().sum().view(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_kept_in_float32(dtype: torch.dtype) -> None:
    q, k, v = inputs(dtype=dtype)
    found = partial(q, k, v)
    assert {x.dtype for x in (*found, *nothing(q, DV))} == {torch.float32}
    assert_close(finish(found), explicit(*(x.float() for x in (q, k, v))))


@pytest.mark.unchecked
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_autocast_does_not_narrow_it(dtype: torch.dtype) -> None:
    tensors = inputs(dtype=dtype)
    want = partial(*tensors)
    with torch.autocast("cpu", torch.bfloat16):
        found = partial(*tensors)
    assert {x.dtype for x in found} == {torch.float32}
    assert_close(found, want, rtol=0, atol=0)


def test_factors_act_on_the_values_not_on_the_total() -> None:
    q, k, v = inputs()
    factors = 2.0 * bools(B, H, T, S)
    found, plain = partial(q, k, v, factors=factors), partial(q, k, v)
    assert_close(found[:2], plain[:2])
    assert_close(finish(found), (attention(q, k, v).weights * factors) @ v)
