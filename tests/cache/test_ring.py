"""RingCache: the last tokens and the first few, each where it says, against a list of all that ever came."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from mha_course import masks
from mha_course.cache import KVCache, RingCache
from tests.cache.test_preallocated import new, refuses, state, unchanged

B, HKV, D, DV = 2, 3, 11, 5


def ring(window: int, sinks: int = 0) -> RingCache:
    return RingCache(B, HKV, window, D, sinks=sinks, v_head_dim=DV)


@given(
    st.integers(1, 6),
    st.integers(0, 3),
    st.lists(st.one_of(st.just(1), st.integers(0, 7)), min_size=1, max_size=9),
)
def test_each_call_returns_what_its_tokens_may_see_and_says_where_it_is(window, sinks, parts) -> None:
    cache = ring(window, sinks)
    N = sum(parts)
    k, v = new(N)
    full = masks.sliding_window(N, window) | (masks.causal(N) & (torch.arange(N) < sinks))
    done = 0
    for T in parts:
        positions, mask = cache.positions(T), cache.mask(T)
        assert cache.length == done, "asking changes nothing"
        here = slice(done, done + T)
        got = cache.update(k[:, :, here], v[:, :, here])
        assert_close(got, (k[:, :, positions], v[:, :, positions]), rtol=0, atol=0)
        assert len(set(positions.tolist())) == len(positions)
        rows = full[here]
        seen = set(rows.any(0).nonzero().flatten().tolist())
        assert seen <= set(positions.tolist()), "none that a query may see is missing"
        if mask is not None:
            assert_close(mask, rows[:, positions])
        elif T == 1:
            assert seen == set(positions.tolist()), "no other key"
        elif T:
            assert_close(rows[:, positions], masks.causal(T))
        done += T
        assert (cache.length, cache.k.shape[2]) == (done, min(done, window + sinks))


def test_by_hand() -> None:
    """Window 3, one sink: after 6 tokens the slots hold 0, then 4, 5, 3."""
    cache = ring(3, sinks=1)
    k, v = new(6)
    cache.update(k[:, :, :5], v[:, :, :5])
    assert cache.positions(1).tolist() == [0, 4, 5, 3]
    got = cache.update(k[:, :, 5:], v[:, :, 5:])
    assert_close(got, (k[:, :, [0, 4, 5, 3]], v[:, :, [0, 4, 5, 3]]), rtol=0, atol=0)
    assert_close((cache.k, cache.v), got, rtol=0, atol=0)


def test_memory_does_not_grow() -> None:
    cache = ring(4, sinks=2)
    assert cache.nbytes == B * HKV * 6 * (D + DV) * 4 == KVCache(B, HKV, 6, D, v_head_dim=DV).nbytes
    place = cache._k.data_ptr()
    for i in range(20):
        k, v = cache.update(*new(1, seed=i))
        assert (k.data_ptr(), v.data_ptr()) == (place, cache.v.data_ptr())
    assert (cache.length, k.shape[2]) == (20, 6)


def test_crop_until_something_was_dropped() -> None:
    cache = ring(3, sinks=1)
    k, v = new(4)
    cache.update(k, v)
    cache.crop(2)
    assert_close((cache.k, cache.v), (k[:, :, :2], v[:, :, :2]), rtol=0, atol=0)
    cache.update(k, v)
    before = state(cache)
    for length in (1, 5):
        with refuses(ValueError, f"length must be 0, as the first tokens are no longer held, got {length}"):
            cache.crop(length)
        assert unchanged(cache, before)
    cache.crop(0)
    assert cache.length == 0
    cache.update(k, v)
    cache.update(k, v)
    cache.reset()
    assert_close(cache.update(k, v), (k, v), rtol=0, atol=0)


@pytest.mark.unchecked
def test_crop_asks_for_an_integer() -> None:
    cache = ring(1)
    for _ in range(2):
        with refuses(TypeError, "length must be an integer, got float"):
            cache.crop(1.0)
        cache.update(*new(2))


def test_reorder_takes_all_that_is_held() -> None:
    cache = ring(3)
    cache.update(*new(7))
    k, v = cache.k.clone(), cache.v.clone()
    cache.reorder(torch.tensor([1, 1]))
    assert_close((cache.k, cache.v), (k[[1, 1]], v[[1, 1]]), rtol=0, atol=0)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"window": 0}, ValueError, "window must be at least 1, got 0"),
        ({"window": 1.5}, TypeError, "window must be an integer, got float"),
        ({"sinks": -1}, ValueError, "sinks must be at least 0, got -1"),
        ({"sinks": None}, TypeError, "sinks must be an integer, got NoneType"),
        ({"batch_size": -1}, ValueError, "batch_size must be at least 0, got -1"),
        ({"dtype": torch.int8}, TypeError, "dtype must be a floating point type, got torch.int8"),
    ],
    ids=str,
)
def test_construction_refuses(options: dict, error: type[Exception], message: str) -> None:
    with refuses(error, message):
        RingCache(**{"batch_size": B, "num_kv_heads": HKV, "window": 4, "head_dim": D, **options})


def test_a_ring_of_another_owner_is_refused_and_unchanged() -> None:
    cache, one, other = ring(3), torch.nn.Identity(), torch.nn.Identity()
    cache.update(*new(5), owner=one)
    before = state(cache)
    with refuses(ValueError, "the cache holds tokens of another module"):
        cache.update(*new(1), owner=other)
    assert unchanged(cache, before)
