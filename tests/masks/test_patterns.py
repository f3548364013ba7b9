"""Sparse masks: by hand, against loops, at lengths 0 and 1, and what is drawn."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from mha_course.masks import block_diagonal, blocks, causal, dilated, random_links, sliding_window
from tests.masks.drawn import drawn


def test_dilated_by_hand() -> None:
    assert drawn(dilated(5, 2, 2)) == ["x....", ".x...", "x.x..", ".x.x.", "..x.x"]
    assert drawn(dilated(5, 3, 2)) == ["x....", ".x...", "x.x..", ".x.x.", "x.x.x"]
    assert drawn(dilated(4, 1, 3)) == ["x...", ".x..", "..x.", "...x"]


@given(st.integers(0, 12), st.integers(1, 5), st.integers(1, 5))
def test_dilated_equals_the_loop(T: int, window: int, dilation: int) -> None:
    want = [[any(s == t - i * dilation for i in range(window)) for s in range(T)] for t in range(T)]
    got = dilated(T, window, dilation)
    assert (got.shape, got.tolist()) == ((T, T), want)
    assert_close(dilated(T, window, 1), sliding_window(T, window))


@pytest.mark.parametrize(("window", "dilation"), [(2**70, 1), (2, 2**70), (2**40, 2**40), (2**70, 2)])
def test_dilated_with_more_than_an_int64(window: int, dilation: int) -> None:
    assert_close(dilated(7, window, dilation), dilated(7, min(window, 7), min(dilation, 7)))
    assert dilated(0, window, dilation).shape == (0, 0)


def test_a_block_larger_than_the_mask_takes_no_more_than_it() -> None:
    layout = torch.tensor([[True]])
    for block in (10**12, 2**70):
        assert_close(blocks(layout, block, 3, 5), torch.ones(3, 5, dtype=torch.bool))
        assert blocks(layout[:0], block, 0, 5).shape == (0, 5)


def test_blocks_by_hand() -> None:
    layout = torch.tensor([[True, False], [True, True]])
    assert drawn(blocks(layout, 2)) == ["xx..", "xx..", "xxxx", "xxxx"]
    assert drawn(blocks(layout, 2, 3, 3)) == ["xx.", "xx.", "xxx"]
    assert drawn(blocks(layout[:, :1], 2, 3)) == ["xx", "xx", "xx"]
    assert drawn(blocks(layout, 1)) == ["x.", "xx"]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4), st.integers(0, 99))
def test_blocks_equal_the_loop(T: int, S: int, block: int, seed: int) -> None:
    shape = (-(-T // block), -(-S // block))
    layout = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    want = [[bool(layout[t // block, s // block]) for s in range(S)] for t in range(T)]
    got = blocks(layout, block, T, S)
    assert (got.shape, got.tolist()) == ((T, S), want)


def test_kin_of_blocks() -> None:
    assert_close(blocks(torch.eye(3).bool(), 4), block_diagonal(torch.tensor([4, 4, 4])))
    assert (blocks(causal(3), 4) & causal(12)).equal(causal(12))


@pytest.mark.parametrize("links", [0, 1, 3, 7, 20])
def test_random_links_are_so_many_of_the_past(links: int) -> None:
    mask = random_links(8, links, generator=torch.Generator().manual_seed(0))
    assert mask.sum(1).tolist() == [min(t, links) + 1 for t in range(8)]
    assert mask.diagonal().all()
    assert not mask.triu(1).any()


def test_random_links_are_equally_likely_whatever_the_default_type() -> None:
    T = 1000
    torch.set_default_dtype(torch.bfloat16)
    try:
        mask = random_links(T, 1, generator=torch.Generator().manual_seed(0))
    finally:
        torch.set_default_dtype(torch.float32)
    query, key = (mask & ~torch.eye(T, dtype=torch.bool)).nonzero().double().unbind(1)
    place = ((key + 0.5) / query).mean()  # uniform in (0, 1): mean 1 / 2, variance 1 / 12
    assert_close(place.item(), 0.5, rtol=0, atol=5 * (12 * T) ** -0.5)


def test_random_links_are_equally_likely_and_drawn_from_the_generator() -> None:
    generator = torch.Generator().manual_seed(0)
    share = torch.stack([random_links(6, 2, generator=generator) for _ in range(4000)]).double().mean(0)
    assert_close(share[5, :5], torch.full((5,), 0.4, dtype=torch.float64), rtol=0, atol=5 * (0.24 / 4000) ** 0.5)
    one, again, other = (random_links(30, 2, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert one.equal(again)
    assert not one.equal(other)


@pytest.mark.parametrize("T", [0, 1])
def test_lengths_zero_and_one(T: int) -> None:
    for mask in (dilated(T, 3, 2), random_links(T, 2), random_links(T, 0)):
        assert (mask.shape, mask.dtype) == ((T, T), torch.bool)
        assert mask.all()


def test_where_they_are_made() -> None:
    assert dilated(3, 2, 2, device="meta").is_meta
    assert random_links(3, 2, device="meta").is_meta
    assert blocks(torch.ones(2, 2, dtype=torch.bool, device="meta"), 3).is_meta


layout = torch.ones(2, 2, dtype=torch.bool)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: dilated(3.0, 1, 1), TypeError, r"^T must be an integer, got float$"),
        (lambda: dilated(3, None, 1), TypeError, r"^window must be an integer, got NoneType$"),
        (lambda: dilated(3, 1, True), TypeError, r"^dilation must be an integer, got bool$"),
        (lambda: dilated(-1, 1, 1), ValueError, r"^T must be at least 0, got -1$"),
        (lambda: dilated(3, 0, 1), ValueError, r"^window must be at least 1, got 0$"),
        (lambda: dilated(3, 1, 0), ValueError, r"^dilation must be at least 1, got 0$"),
        (lambda: blocks(layout.float(), 2), TypeError, r"^layout must be bool .* got torch\.float32$"),
        (lambda: blocks([[True]], 2), TypeError, r"^layout must be a bool .* tensor, got list$"),
        (lambda: blocks(layout, 2.0), TypeError, r"^block must be an integer, got float$"),
        (lambda: blocks(layout, 2, 3.0), TypeError, r"^T must be an integer, got float$"),
        (lambda: blocks(layout, 2, 3, "3"), TypeError, r"^S must be an integer, got str$"),
        (lambda: blocks(layout[0], 2), ValueError, r"^layout must have two axes .* got \(2,\)$"),
        (lambda: blocks(layout, 0), ValueError, r"^block must be at least 1, got 0$"),
        (lambda: blocks(layout, 2, -1), ValueError, r"^T must be at least 0, got -1$"),
        (lambda: blocks(layout, 2, 4, -1), ValueError, r"^S must be at least 0, got -1$"),
        (lambda: blocks(layout, 2, 5), ValueError, r"^layout must be .* = \(3, 2\), rounded up, got \(2, 2\)$"),
        (lambda: blocks(layout, 2, 4, 2), ValueError, r"^layout must be .* = \(2, 1\), rounded up, got \(2, 2\)$"),
        (lambda: random_links("3", 1), TypeError, r"^T must be an integer, got str$"),
        (lambda: random_links(3, 1.0), TypeError, r"^links must be an integer, got float$"),
        (lambda: random_links(-3, 1), ValueError, r"^T must be at least 0, got -3$"),
        (lambda: random_links(3, -1), ValueError, r"^links must be at least 0, got -1$"),
    ],
)
def test_bad_input(make, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()
