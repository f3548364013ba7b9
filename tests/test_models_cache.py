"""A decoder and a block with a cache say what they say without one, token by token."""

import re

import pytest
import torch
from torch.testing import assert_close

from mha_course import masks
from mha_course.block import Block
from mha_course.cache import KVCache, RingCache, bytes_per_token
from mha_course.models import Decoder
from mha_course.positions import Sinusoidal
from tests.multihead.modules import BACKENDS, fill, numbers

V, E, H, L, B, N = 17, 12, 3, 2, 2, 11
PLACES = {"learned": {"positions": "learned", "max_length": N}, "rotary": {"positions": "rotary"}}
PLACES["none"] = {"positions": None}
PARTS = [(1,) * N, (N,), (4, 1, 3, 1, 1, 1), (0, 5, 6)]
tokens = torch.randint(V, (B, N), generator=torch.Generator().manual_seed(0))


def decoder(places: str = "learned", **options) -> Decoder:
    model = Decoder(V, E, H, L, **PLACES[places], dtype=torch.float64, **options)
    fill(model)
    return model


def in_parts(model: Decoder, cache: list[KVCache], parts=(1,) * N, mask=None) -> torch.Tensor:
    outs, done = [], 0
    with torch.no_grad():
        for T in parts:
            given = None if mask is None else mask[..., : done + T]
            outs.append(model(tokens[:, done : done + T], mask=given, cache=cache))
            done += T
            assert [kept.length for kept in cache] == [done] * L
    return torch.cat(outs, 1)


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("places", PLACES)
def test_cached_equals_full_at_every_step(places: str, norm: str, parts: tuple[int, ...]) -> None:
    model = decoder(places, norm=norm)
    assert_close(in_parts(model, model.new_cache(B, N), parts), model(tokens))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_on_every_backend_with_padding_on_the_left(kv_heads: int, backend: str) -> None:
    model = decoder("rotary", num_kv_heads=kv_heads, backend=BACKENDS[backend])
    mask = ~masks.padding(torch.tensor([2, 0]), N)
    assert_close(in_parts(model, model.new_cache(B, N), (5, 1, 1, 4), mask), model(tokens, mask=mask))


def test_rings_equal_a_window_in_every_layer() -> None:
    model = decoder("rotary", num_kv_heads=1)
    rings = [RingCache(B, 1, 4, E // H, dtype=torch.float64) for _ in range(L)]
    assert_close(in_parts(model, rings, (6, 1, 1, 3)), model(tokens, mask=masks.sliding_window(N, 4)))


def test_other_positions_that_take_an_offset() -> None:
    model = decoder("none")
    model.positions = Sinusoidal(E)
    assert_close(in_parts(model, model.new_cache(B, N)), model(tokens))
    assert (model(tokens) - decoder("none")(tokens)).abs().max() > 0.01


def test_new_cache_fits() -> None:
    model = Decoder(V, E, H, L, positions=None, num_kv_heads=1, dtype=torch.bfloat16, device="meta")
    caches = model.new_cache(3, 7)
    assert len({id(cache) for cache in caches}) == L
    for cache in caches:
        assert type(cache) is KVCache
        assert (cache.length, cache.k.dtype, cache.k.device.type) == (0, torch.bfloat16, "meta")
        assert cache._k.shape == (3, 1, 7, E // H)
    assert sum(cache.nbytes for cache in caches) == 3 * 7 * bytes_per_token(L, 1, E // H, torch.bfloat16)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_block(norm: str) -> None:
    block = Block(E, H, norm=norm, num_kv_heads=1, dtype=torch.float64)
    fill(block)
    x, bias, cache = numbers(B, N, E), numbers(H, N, N), KVCache(B, 1, N, E // H, dtype=torch.float64)
    with torch.no_grad():
        outs = [
            block(x[:, t : t + 1], score_bias=bias[:, t : t + 1, : t + 1], is_causal=True, cache=cache)
            for t in range(N)
        ]
    assert_close(torch.cat(outs, 1), block(x, score_bias=bias, is_causal=True))


def refuses(error: type[Exception], message: str):
    return pytest.raises(error, match=re.escape(message))


def full(lengths=(4, 4), **options) -> list[KVCache]:
    """A cache of that length for each layer, written by hand."""
    options = {"batch": B, "heads": H, "room": N, "dtype": torch.float64, **options}
    caches = []
    for length in lengths:
        cache = KVCache(options["batch"], options["heads"], options["room"], E // H, dtype=options["dtype"])
        cache.update(*[numbers(options["batch"], options["heads"], length, E // H, dtype=options["dtype"])] * 2)
        caches.append(cache)
    return caches


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("cache", "error", "message"),
    [
        (full()[0], TypeError, "cache must be a list of KVCaches, one for each block, got KVCache("),
        ([None, None], TypeError, "cache must be a list of KVCaches, one for each block, got [None, None]"),
        ([], ValueError, "cache must have one KVCache for each of 2 blocks (at least 1), got []"),
        (full()[:1], ValueError, "cache must have one KVCache for each of 2 blocks (at least 1), got [KVCache("),
        (full((4, 4, 4)), ValueError, "cache must have one KVCache for each of 2 blocks (at least 1), got [KVCache("),
        (full()[:1] * 2, ValueError, "cache must have one KVCache for each of 2 blocks (at least 1), got [KVCache("),
        (
            full((4, 3)),
            ValueError,
            "the caches must be alike in length, batch size and type, got [(3, 2, torch.float64), (4, 2,",
        ),
        (
            full()[:1] + full(batch=1)[:1],
            ValueError,
            "the caches must be alike in length, batch size and type, got [(4, 1, torch.float64), (4, 2,",
        ),
        (
            full()[:1] + full(dtype=torch.float32)[:1],
            ValueError,
            "the caches must be alike in length, batch size and type, got [(4, 2, torch.float32), (4, 2, torch.float64",
        ),
        (full(batch=1), ValueError, "k must be (B, Hkv, T, D) = (1, 3, T, 4) as the cache has it, got (2, 3, 2, 4)"),
        (full(room=5), ValueError, "the cache is full: 4 tokens are held, max_len is 5, got 2 more"),
        (full((10, 10)), ValueError, "the table ends at position 10 (max_length 11), got 11"),
    ],
    ids=[*"abcdefghijkl"],
)
def test_caches_that_do_not_fit_are_refused_and_unchanged(cache, error: type[Exception], message: str) -> None:
    caches = [kept for kept in (cache if isinstance(cache, list) else [cache]) if kept is not None]
    before = [(kept.length, kept.k.clone(), kept.v.clone()) for kept in caches]
    with refuses(error, message), torch.no_grad():
        decoder()(tokens[:, :2], cache=cache)
    assert_close([(kept.length, kept.k, kept.v) for kept in caches], before, rtol=0, atol=0)


@pytest.mark.unchecked
def test_tokens_masks_and_gradients_that_are_refused_change_nothing() -> None:
    model = decoder()
    cache = model.new_cache(B, N)
    in_parts(model, cache, (4,))
    with refuses(ValueError, "tokens must lie between 0 and 16"), torch.no_grad():
        model(tokens[:, :2] + V, cache=cache)
    with refuses(ValueError, "mask must broadcast to (..., T, S) = (2, 3, 2, 6), got (2, 2)"), torch.no_grad():
        model(tokens[:, :2], mask=masks.causal(2), cache=cache)
    with refuses(RuntimeError, "a cache carries no gradients: call inside torch.no_grad()"):
        model(tokens[:, :2], cache=cache)
    assert [kept.length for kept in cache] == [4, 4]
    with torch.no_grad():
        assert_close(model(tokens[:, 4:], cache=cache), model(tokens)[:, 4:])


def of_other_heads() -> list[KVCache]:
    return [KVCache(B, heads, N, E // H, dtype=torch.float64) for heads in (H, 1)]


def of_other_rooms() -> list[KVCache]:
    return [KVCache(B, H, room, E // H, dtype=torch.float64) for room in (N, 5)]


def rings_of_other_heads() -> list[KVCache]:
    return [RingCache(B, heads, 6, E // H, dtype=torch.float64) for heads in (H, 1)]


@pytest.mark.parametrize(
    ("make", "held"),
    [(of_other_heads, 0), (of_other_rooms, 4), (rings_of_other_heads, 0)],
    ids=["heads", "room", "ring"],
)
def test_what_the_second_block_refuses_the_first_forgets(make, held: int) -> None:
    model, caches = decoder(), make()
    if held:
        in_parts(model, caches, (held,))
    with pytest.raises(ValueError, match=r"as the cache has it|the cache is full"), torch.no_grad():
        model(tokens[:, held : held + 2], cache=caches)
    assert [kept.length for kept in caches] == [held] * L


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_after_an_interrupt_the_call_can_be_made_again(error: type[BaseException]) -> None:
    def stop(*_: object) -> None:
        raise error

    model = decoder()
    caches = model.new_cache(B, N)
    in_parts(model, caches, (4,))
    for part in (model.blocks[1], model.blocks[1].mlp):
        handle = part.register_forward_pre_hook(stop)
        with pytest.raises(error), torch.no_grad():
            model(tokens[:, 4:7], cache=caches)
        handle.remove()
        assert [kept.length for kept in caches] == [4, 4]
    with torch.no_grad():
        assert_close(model(tokens[:, 4:], cache=caches), model(tokens)[:, 4:])


def test_an_interrupt_is_not_hidden_by_a_ring_that_cannot_go_back() -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    model, rings = decoder(), [RingCache(B, H, 3, E // H, dtype=torch.float64) for _ in range(L)]
    in_parts(model, rings, (4,))
    model.blocks[1].register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        model(tokens[:, 4:5], cache=rings)
    with refuses(ValueError, "the caches must be alike in length"), torch.no_grad():
        model(tokens[:, 4:5], cache=rings)


def test_a_block_that_stands_twice_has_two_caches() -> None:
    model = decoder("rotary")
    model.blocks[1] = model.blocks[0]
    assert_close(in_parts(model, model.new_cache(B, N), (4, 1, 6)), model(tokens))


def test_depth_0_keeps_nothing() -> None:
    model = Decoder(V, E, H, 0, positions=None)
    with refuses(ValueError, "cache must have one KVCache for each of 0 blocks (at least 1), got []"):
        model(tokens, cache=model.new_cache(B, N))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((-1, 7), ValueError, "batch_size must be at least 0, got -1"),
        ((2, 0), ValueError, "max_len must be at least 1, got 0"),
        ((2.0, 7), TypeError, "batch_size must be an integer, got float"),
    ],
)
def test_new_cache_refuses(args: tuple, error: type[Exception], message: str) -> None:
    with refuses(error, message):
        decoder().new_cache(*args)
