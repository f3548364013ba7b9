"""KVCache: what is written is read, in place and in order; what is refused changes nothing."""

import copy
import pickle
import re

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from mha_course import masks
from mha_course.cache import KVCache, RingCache, bytes_per_token

B, HKV, ROOM, D, DV = 2, 3, 7, 11, 5


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def new(T: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of T tokens."""
    return numbers(B, HKV, T, D, seed=seed), numbers(B, HKV, T, DV, seed=seed + 100)


def empty(**options) -> KVCache:
    return KVCache(B, HKV, ROOM, D, v_head_dim=DV, **options)


def filled(T: int = 5) -> KVCache:
    cache = empty()
    cache.update(*new(T))
    return cache


def state(cache: KVCache) -> tuple:
    """Everything that a cache is, copied."""
    return cache.length, cache._owner, cache._k.clone(), cache._v.clone()


def unchanged(cache: KVCache, before: tuple) -> bool:
    """Whether it still is that."""
    same = torch.equal(cache._k, before[2]) and torch.equal(cache._v, before[3])
    return same and (cache.length, cache._owner) == before[:2]


@pytest.mark.parametrize("parts", [(7,), (1,) * 7, (3, 1, 2), (0, 4, 0)], ids=str)
def test_what_was_written_comes_back_in_order(parts: tuple[int, ...]) -> None:
    cache = empty()
    k, v = new(sum(parts))
    done = 0
    for T, k_new, v_new in zip(parts, k.split(parts, 2), v.split(parts, 2), strict=True):
        got = cache.update(k_new, v_new)
        done += T
        assert_close(got, (k[:, :, :done], v[:, :, :done]), rtol=0, atol=0)
        assert_close((cache.k, cache.v), got, rtol=0, atol=0)
        assert cache.length == done


def test_memory_is_the_formula_and_stays_where_it_is() -> None:
    cache = empty(dtype=torch.float16)
    assert cache.nbytes == B * HKV * ROOM * (D + DV) * 2
    assert cache.nbytes == B * ROOM * bytes_per_token(1, HKV, D, torch.float16, v_head_dim=DV)
    places = set()
    for _ in range(ROOM):
        k, v = cache.update(numbers(B, HKV, 1, D).half(), numbers(B, HKV, 1, DV).half())
        places.add((k.data_ptr(), v.data_ptr(), k.untyped_storage().nbytes() + v.untyped_storage().nbytes()))
    assert len(places) == 1, "nothing was copied"
    assert next(iter(places))[2] == cache.nbytes
    assert KVCache(B, HKV, ROOM, D).v.shape == (B, HKV, 0, D), "values are as wide as keys"


def test_crop_and_go_on() -> None:
    cache = filled(5)
    k, v = new(5)
    cache.crop(5)
    assert cache.length == 5
    cache.crop(2)
    assert_close((cache.length, cache.k, cache.v), (2, k[:, :, :2], v[:, :, :2]), rtol=0, atol=0)
    more = new(3, seed=1)
    got = cache.update(*more)
    assert_close(got, (torch.cat([k[:, :, :2], more[0]], 2), torch.cat([v[:, :, :2], more[1]], 2)), rtol=0, atol=0)


def test_reset() -> None:
    cache = filled(5)
    before = cache.nbytes
    cache.reset()
    assert (cache.length, cache.k.shape[2], cache.nbytes) == (0, 0, before)
    assert_close(cache.update(*new(7, seed=1)), new(7, seed=1), rtol=0, atol=0)


@pytest.mark.parametrize("indices", [[1, 0], [0, 0], [1, 1], [0, 1]], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_reorder_takes_samples_in_place(indices: list[int], dtype: torch.dtype) -> None:
    cache = filled(5)
    k, v = new(5)
    place = cache.k.data_ptr()
    cache.reorder(torch.tensor(indices, dtype=dtype))
    assert_close(cache.k, torch.stack([k[i] for i in indices]), rtol=0, atol=0)
    assert_close(cache.v, torch.stack([v[i] for i in indices]), rtol=0, atol=0)
    assert (cache.k.data_ptr(), cache.length) == (place, 5)


class Full(TorchDispatchMode):
    """No memory for a second copy."""

    copies = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.copies += func is torch.ops.aten.index.Tensor
        if self.copies == 2:
            raise MemoryError
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [KVCache, RingCache])
def test_a_reorder_that_finds_no_memory_changes_nothing(kind: type[KVCache]) -> None:
    cache = kind(B, HKV, ROOM, D, v_head_dim=DV)
    cache.update(*new(5))
    before = state(cache)
    with pytest.raises(MemoryError), Full():
        cache.reorder(torch.tensor([1, 0]))
    assert unchanged(cache, before)


def test_on_the_meta_device() -> None:
    cache = empty(device="meta")
    cache.update(*(x.to("meta") for x in new(2)))
    cache.reorder(torch.tensor([1, 0], device="meta"))
    assert cache.k.shape == (B, HKV, 2, D)


@pytest.mark.parametrize("kind", [KVCache, RingCache])
def test_what_lies_in_slots_that_hold_nothing_is_not_read(kind: type[KVCache]) -> None:
    cache = kind(B, HKV, ROOM, D, v_head_dim=DV)
    for x in (cache._k, cache._v):
        x.fill_(torch.nan)
    k, v = new(ROOM)
    for T in (3, 1, 2, 1):
        assert_close(
            cache.update(k[:, :, cache.length :][:, :, :T], v[:, :, cache.length :][:, :, :T]),
            (k[:, :, : cache.length], v[:, :, : cache.length]),
            rtol=0,
            atol=0,
        )


def test_mask_is_aligned_to_the_lower_right() -> None:
    cache = filled(4)
    for T in (2, 3):
        assert_close(cache.mask(T), masks.causal(T, 4 + T, alignment="lower_right"))
    assert cache.mask(1) is None, "one query sees all"
    assert cache.mask(0) is None
    assert empty().mask(5) is None, "T = S"
    assert cache.length == 4


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda cache: pickle.loads(pickle.dumps(cache))}


@pytest.mark.parametrize("kind", [KVCache, RingCache])
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_made_in_inference_mode_is_used_outside(copied, kind: type[KVCache]) -> None:
    cache = kind(B, HKV, 4, D, v_head_dim=DV)
    cache.update(*new(3))
    with torch.inference_mode():
        twin = copied(cache)
    twin.update(*new(1, seed=1))
    twin.reorder(torch.tensor([1, 0]))
    k, v = (x[[1, 0]] for x in new(3))
    assert_close((twin.k[:, :, :3], twin.v[:, :, :3]), (k, v), rtol=0, atol=0)
    assert_close((cache.k, cache.v), new(3), rtol=0, atol=0)


class Owner:
    """A module, say."""


class TestOwner:
    one, other = Owner(), Owner()

    def test_tokens_of_two_owners_do_not_mix(self) -> None:
        cache = empty()
        cache.update(*new(1), owner=self.one)
        cache.update(*new(1), owner=self.one)
        before = state(cache)
        with pytest.raises(ValueError, match=r"^the cache holds tokens of another module: each layer needs its own"):
            cache.update(*new(1), owner=self.other)
        assert unchanged(cache, before)

    @pytest.mark.parametrize("forget", [KVCache.reset, lambda cache: cache.crop(0)], ids=["reset", "crop"])
    def test_an_empty_cache_is_free(self, forget) -> None:
        cache = empty()
        cache.update(*new(2), owner=self.one)
        forget(cache)
        cache.update(*new(2), owner=self.other)
        assert cache.length == 2

    def test_tokens_written_by_hand_are_nobodys(self) -> None:
        cache = filled(2)
        cache.update(*new(2), owner=self.one)
        cache.update(*new(2))
        cache.update(*new(1), owner=self.other)
        assert cache.length == 7

    def test_an_owner_that_is_no_more_is_not_mistaken_for_another(self) -> None:
        cache = empty()
        cache.update(*new(2), owner=Owner())
        with pytest.raises(ValueError, match="tokens of another module"):
            cache.update(*new(2), owner=self.other)

    @pytest.mark.parametrize("kind", [KVCache, RingCache])
    def test_one_that_cannot_be_an_owner_changes_nothing(self, kind: type[KVCache]) -> None:
        cache = kind(B, HKV, 4, D, v_head_dim=DV)
        cache.update(*new(4))
        cache.reset()
        before = state(cache)
        with pytest.raises(TypeError, match="weak reference to 'str' object"):
            cache.update(*new(3, seed=1), owner="me")
        assert unchanged(cache, before)

    @pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
    def test_a_copy_is_apart_and_free(self, copied) -> None:
        cache = empty()
        cache.update(*new(2), owner=self.one)
        twin = copied(cache)
        assert_close((twin.length, twin.k, twin.v), (cache.length, cache.k, cache.v), rtol=0, atol=0)
        twin.update(*new(2), owner=self.other)
        twin.k.zero_()
        assert (cache.length, cache.k.any().item()) == (2, True)
        with pytest.raises(ValueError, match="tokens of another module"):
            cache.update(*new(1), owner=self.other)


def test_gradients_are_refused_and_frozen_ones_are_not() -> None:
    cache = filled(2)
    before = state(cache)
    for i, name in enumerate("kv"):
        pair = list(new(1, seed=1))
        pair[i].requires_grad_()
        with pytest.raises(RuntimeError, match=rf"^{name} requires gradients, .* call inside torch\.no_grad\(\)$"):
            cache.update(*pair)
        assert unchanged(cache, before)
        with torch.no_grad():
            got = cache.update(*pair)
        assert not any(x.requires_grad for x in got)
        cache.crop(2)
        before = state(cache)
    cache.update(*new(1))
    assert cache.length == 3


@pytest.mark.parametrize("kind", [KVCache, RingCache])
def test_made_in_inference_mode_and_used_outside(kind: type[KVCache]) -> None:
    with torch.inference_mode():
        cache = kind(B, HKV, ROOM, D)
        cache.update(*[numbers(B, HKV, 2, D)] * 2)
    cache.update(*[numbers(B, HKV, 2, D)] * 2)
    cache.reorder(torch.tensor([1, 0]))
    assert cache.length == 4


def test_type_and_device() -> None:
    assert KVCache(B, HKV, ROOM, D).k.dtype == torch.get_default_dtype()
    cache = KVCache(B, HKV, ROOM, D, dtype=torch.bfloat16, device="meta")
    assert {(x.dtype, x.device.type) for x in (cache.k, cache.v)} == {(torch.bfloat16, "meta")}


def test_no_samples() -> None:
    cache = KVCache(0, HKV, ROOM, D)
    cache.update(numbers(0, HKV, 2, D), numbers(0, HKV, 2, D))
    cache.reorder(torch.tensor([], dtype=torch.int64))
    assert (cache.length, cache.nbytes) == (2, 0)


def test_what_print_shows() -> None:
    assert repr(filled(5)) == "KVCache(k=(2, 3, 7, 11), v=(2, 3, 7, 5), dtype=torch.float32, length=5)"
    assert repr(RingCache(2, 3, 5, 1)) == "RingCache(k=(2, 3, 5, 1), v=(2, 3, 5, 1), dtype=torch.float32, length=0)"


def refuses(error: type[Exception], message: str):
    return pytest.raises(error, match=f"^{re.escape(message)}")


@pytest.mark.unchecked
def test_sizes_may_be_numpy_integers() -> None:
    cache = KVCache(np.uint8(2), np.uint8(3), np.uint8(200), np.uint8(200), v_head_dim=np.uint8(5))
    assert cache.nbytes == 2 * 3 * 200 * 205 * 4
    cache.update(numbers(2, 3, 150, 200), numbers(2, 3, 150, 5))
    cache.crop(np.uint8(140))
    cache.update(numbers(2, 3, 60, 200), numbers(2, 3, 60, 5))
    assert cache.length == 200


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"batch_size": 2.0}, TypeError, "batch_size must be an integer, got float"),
        ({"batch_size": -1}, ValueError, "batch_size must be at least 0, got -1"),
        ({"num_kv_heads": True}, TypeError, "num_kv_heads must be an integer, got bool"),
        ({"num_kv_heads": 0}, ValueError, "num_kv_heads must be at least 1, got 0"),
        ({"max_len": "7"}, TypeError, "max_len must be an integer, got str"),
        ({"max_len": 0}, ValueError, "max_len must be at least 1, got 0"),
        ({"head_dim": None}, TypeError, "head_dim must be an integer, got NoneType"),
        ({"head_dim": 0}, ValueError, "head_dim must be at least 1, got 0"),
        ({"v_head_dim": torch.tensor(3)}, TypeError, "v_head_dim must be an integer, got Tensor"),
        ({"v_head_dim": 0}, ValueError, "v_head_dim must be at least 1, got 0"),
        ({"dtype": torch.int8}, TypeError, "dtype must be a floating point type, got torch.int8"),
        ({"dtype": "float16"}, TypeError, "dtype must be a floating point type, got float16"),
    ],
    ids=str,
)
def test_construction_refuses(change: dict, error: type[Exception], message: str) -> None:
    with refuses(error, message):
        KVCache(**{"batch_size": B, "num_kv_heads": HKV, "max_len": ROOM, "head_dim": D, **change})


k1, v1 = new(1)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("k", "v", "error", "message"),
    [
        ([1.0], v1, TypeError, "k must be a tensor, got list"),
        (k1, None, TypeError, "v must be a tensor, got NoneType"),
        (k1.double(), v1, TypeError, "k must have the cache's type, torch.float32, got torch.float64"),
        (k1, v1.half(), TypeError, "v must have the cache's type, torch.float32, got torch.float16"),
        (k1.to("meta"), v1, ValueError, "k must be on the cache's device, cpu, got meta"),
        (k1, v1.to("meta"), ValueError, "v must be on the cache's device, cpu, got meta"),
        (k1[:1], v1, ValueError, "k must be (B, Hkv, T, D) = (2, 3, T, 11) as the cache has it, got (1, 3, 1, 11)"),
        (k1, v1[:0], ValueError, "v must be (B, Hkv, T, Dv) = (2, 3, T, 5) as the cache has it, got (0, 3, 1, 5)"),
        (k1[:, :2], v1, ValueError, "k must be (B, Hkv, T, D) = (2, 3, T, 11) as the cache has it, got (2, 2, 1, 11)"),
        (k1, k1, ValueError, "v must be (B, Hkv, T, Dv) = (2, 3, T, 5) as the cache has it, got (2, 3, 1, 11)"),
        (k1[:, :, 0], v1, ValueError, "k must be (B, Hkv, T, D) = (2, 3, T, 11) as the cache has it, got (2, 3, 11)"),
        (k1, v1[..., :0, :], ValueError, "k and v must have one length T, got 1 and 0"),
    ],
    ids=[*"abcdefghijkl"],
)
@pytest.mark.parametrize("kind", ["preallocated", "ring"])
def test_update_refuses_and_changes_nothing(kind: str, k, v, error: type[Exception], message: str) -> None:
    cache = empty() if kind == "preallocated" else RingCache(B, HKV, 4, D, v_head_dim=DV)
    cache.update(*new(3))
    before = state(cache)
    with refuses(error, message):
        cache.update(k, v)
    assert unchanged(cache, before)


@pytest.mark.parametrize(("held", "T"), [(7, 1), (5, 3), (0, 8)])
def test_overflow_changes_nothing(held: int, T: int) -> None:
    cache = filled(held)
    before = state(cache)
    with refuses(
        ValueError, f"the cache is full: {held} tokens are held, max_len is 7, got {T} more: make a longer one"
    ):
        cache.update(*new(T))
    assert unchanged(cache, before)
    cache.update(*new(ROOM - held))
    assert cache.length == ROOM


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c.crop(6), ValueError, "length must be at most the 5 tokens held, got 6"),
        (lambda c: c.crop(-1), ValueError, "length must be at least 0, got -1"),
        (lambda c: c.crop(2.0), TypeError, "length must be an integer, got float"),
        (lambda c: c.reorder([1, 0]), TypeError, "indices must be an integer tensor, got list"),
        (lambda c: c.reorder(torch.zeros(2)), TypeError, "indices must be an integer tensor, got torch.float32"),
        (lambda c: c.reorder(torch.ones(2).bool()), TypeError, "indices must be an integer tensor, got torch.bool"),
        (
            lambda c: c.reorder(torch.ones(2).cfloat()),
            TypeError,
            "indices must be an integer tensor, got torch.complex",
        ),
        (lambda c: c.reorder(torch.tensor([[1, 0]])), ValueError, "indices must have 1 axis, got (1, 2)"),
        (lambda c: c.reorder(torch.tensor([1])), ValueError, "indices must have B = 2 entries, got 1"),
        (lambda c: c.reorder(torch.tensor([0, 2])), ValueError, "indices must lie in [0, 1], got 0 to 2"),
        (lambda c: c.reorder(torch.tensor([-1, 0])), ValueError, "indices must lie in [0, 1], got -1 to 0"),
    ],
)
def test_crop_and_reorder_refuse_and_change_nothing(call, error: type[Exception], message: str) -> None:
    cache = filled(5)
    before = state(cache)
    with refuses(error, message):
        call(cache)
    assert unchanged(cache, before)
