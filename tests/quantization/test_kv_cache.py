"""Int8KVCache: what was written comes back in 8 bits, in order, and the rest is as KVCache has it."""

import copy

import pytest
import torch
from torch.testing import assert_close

from mha_course import KVCache, MultiHeadAttention
from mha_course.positions import Rotary
from mha_course.quantization import Int8KVCache, fake_quantize, find_affine
from tests.quantization.drawn import drawn, relative

B, HKV, ROOM, D, DV = 2, 3, 7, 11, 5
EXACT = {"rtol": 0, "atol": 0}


def new(T: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return drawn(B, HKV, T, D, seed=seed), drawn(B, HKV, T, DV, seed=seed + 100)


def empty(**options) -> Int8KVCache:
    return Int8KVCache(B, HKV, ROOM, D, v_head_dim=DV, **options)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """8 bits for each token of each head by itself."""
    rows = [fake_quantize(row, find_affine(row, 8, per="tensor")) for row in x.flatten(0, 2)]
    return torch.stack(rows).view(x.shape) if rows else x


@pytest.mark.parametrize("parts", [(7,), (1,) * 7, (3, 1, 2), (0, 4, 0)], ids=str)
def test_what_was_written_comes_back_in_order(parts):
    cache, (k, v) = empty(), new(sum(parts))
    done = 0
    for T, k_new, v_new in zip(parts, k.split(parts, 2), v.split(parts, 2), strict=True):
        got = cache.update(k_new, v_new)
        done += T
        assert_close(got, (rounded(k[:, :, :done]), rounded(v[:, :, :done])), **EXACT)
        assert_close((cache.k, cache.v), got, **EXACT)
        assert cache.length == done


def test_memory_is_a_byte_a_number_and_two_scales():
    cache = empty()
    assert cache.nbytes == B * ROOM * HKV * (D + DV + 8)
    held = {id(x.untyped_storage()): x.untyped_storage().nbytes() for x in (cache._k, cache._v)}
    assert max(held.values()) == 4, "no float is kept for each"
    cache.update(*new(5))
    assert cache.nbytes == B * ROOM * HKV * (D + DV + 8)
    large = {"batch_size": 1, "num_kv_heads": 8, "max_len": 16, "head_dim": 64}
    assert Int8KVCache(**large).nbytes / KVCache(**large).nbytes == 68 / 256


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types(dtype):
    cache, (k, v) = empty(dtype=dtype), new(3)
    got = cache.update(k.to(dtype), v.to(dtype))
    assert got[0].dtype == got[1].dtype == dtype
    assert relative(got[0].float(), k) < 0.02


@pytest.mark.parametrize("positions", [None, Rotary(22)], ids=["plain", "rotary"])
def test_attention_with_it_is_near_attention_without(positions):
    torch.manual_seed(0)
    layer = MultiHeadAttention(66, 3, num_kv_heads=1, head_dim=22, rotary=positions).eval()
    x = drawn(B, 9, 66)
    with torch.no_grad():
        full = layer(x, is_causal=True)
        for pieces in ((1,) * 9, (4, 2, 3), (9,)):
            cache = Int8KVCache(B, 1, 9, 22)
            out = torch.cat([layer(part, is_causal=True, cache=cache) for part in x.split(pieces, 1)], 1)
            assert 0 < relative(out, full) < 0.02


def test_crop_reset_and_reorder():
    cache, (k, v) = empty(), new(5)
    cache.update(k, v)
    cache.reorder(torch.tensor([1, 0]))
    assert_close((cache.k, cache.v), (rounded(k)[[1, 0]], rounded(v)[[1, 0]]), **EXACT)
    cache.reorder(torch.tensor([0, 0]))
    cache.crop(2)
    more = new(3, seed=1)
    got, _ = cache.update(*more)
    assert_close(got, torch.cat([rounded(k)[[1, 1], :, :2], rounded(more[0])], 2), **EXACT)
    cache.reset()
    assert (cache.length, cache.k.shape[2], cache.window) == (0, 0, None)
    assert_close(cache.update(*new(7))[0], rounded(new(7)[0]), **EXACT)


def test_masks_are_those_of_the_other_cache():
    cache, plain = empty(), KVCache(B, HKV, ROOM, D, v_head_dim=DV)
    for T in (1, 3):
        assert cache.mask(T) is None
    for each in (cache, plain):
        each.update(*new(4))
    assert_close(cache.mask(3), plain.mask(3))
    assert cache.mask(1) is None


def test_inference_mode_and_copies():
    with torch.inference_mode():
        cache = empty()
    cache.update(*new(2))
    other = copy.deepcopy(cache)
    other.update(*new(3, seed=1))
    assert (cache.length, other.length) == (2, 5)
    assert_close(cache.k, rounded(new(2)[0]), **EXACT)
    assert repr(cache) == "Int8KVCache(k=(2, 3, 7, 11), v=(2, 3, 7, 5), dtype=torch.float32, length=2)"


def test_zeros_and_an_outlier_stay_in_their_token():
    k, v = new(3)
    k[:, :, 0] = 0
    k[:, :, 1, 0] = 1e6
    got, _ = empty().update(k, v)
    assert_close(got[:, :, 0], torch.zeros(B, HKV, D), **EXACT)
    assert relative(got[:, :, 2], k[:, :, 2]) < 0.01


@pytest.mark.unchecked
class TestBadInput:
    def refused(self, error, says, cache, call):
        before = cache.length, cache.k.clone(), [x.clone() for x in (*cache._codes, *cache._scales)]
        with pytest.raises(error, match=says):
            call()
        assert_close((cache.length, cache.k, [*cache._codes, *cache._scales]), before, **EXACT)

    def test_update(self):
        cache = empty()
        cache.update(*new(5), owner=self)
        k, v = new(2)
        self.refused(
            ValueError, "the cache is full: 5 tokens are held, max_len is 7", cache, lambda: cache.update(*new(3))
        )
        self.refused(TypeError, "k must have the cache's type", cache, lambda: cache.update(k.half(), v))
        self.refused(ValueError, "k and v must have one length T", cache, lambda: cache.update(k, new(1)[1]))
        self.refused(ValueError, r"v must be \(B, Hkv, T, Dv\)", cache, lambda: cache.update(k, k))
        self.refused(ValueError, "another module", cache, lambda: cache.update(k, v, owner=object))
        grad = k.clone().requires_grad_()
        self.refused(RuntimeError, "k requires gradients", cache, lambda: cache.update(grad, v))
        for bad in (float("nan"), float("inf")):
            wrong = v.clone()
            wrong[0, 0, 0, 0] = bad
            self.refused(ValueError, "v must be finite, got NaN or infinity", cache, lambda: cache.update(k, wrong))  # noqa: B023

    def test_reorder(self):
        cache = empty()
        cache.update(*new(2))
        self.refused(
            ValueError, "indices must have B = 2 entries, got 3", cache, lambda: cache.reorder(torch.tensor([0, 1, 0]))
        )
        self.refused(ValueError, r"indices must lie in \[0, 1\]", cache, lambda: cache.reorder(torch.tensor([0, 2])))
        self.refused(TypeError, "indices must be an integer tensor", cache, lambda: cache.reorder([0, 1]))

    def test_sizes(self):
        with pytest.raises(ValueError, match=r"max_len must be at least 1, got 0"):
            Int8KVCache(1, 1, 0, 4)
        with pytest.raises(TypeError, match=r"dtype must be a floating point type, got torch.int8"):
            Int8KVCache(1, 1, 3, 4, dtype=torch.int8)
