"""Cached equals full: after every call the module returns what one call over all tokens returns for the new ones."""

import copy
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from mha_course import MultiHeadAttention, masks
from mha_course.cache import KVCache, RingCache
from mha_course.positions import Rotary, T5Bias
from tests.multihead.modules import BACKENDS, bools, numbers, ours

B, H, HKV, D, E, N = 2, 6, 2, 10, 13, 11
x = numbers(B, N, E)


def attentive(backend="sdpa", *, kv_heads: int = HKV, rotary: bool = True, **options) -> MultiHeadAttention:
    turn = Rotary(D) if rotary else None
    return ours(E, H, num_kv_heads=kv_heads, head_dim=D, rotary=turn, backend=backend, **options)


def new_cache(room: int = N, *, kv_heads: int = HKV, batch: int = B, dtype: torch.dtype = torch.float64) -> KVCache:
    return KVCache(batch, kv_heads, room, D, dtype=dtype)


def new_ring(window: int, sinks: int = 0) -> RingCache:
    return RingCache(B, HKV, window, D, sinks=sinks, dtype=torch.float64)


def rows(x: Tensor | None, done: int, T: int) -> Tensor | None:
    """What a mask or bias for all tokens says of the new ones and those before them."""
    if x is None or x.ndim == 0:
        return x
    x = x if x.shape[-1] == 1 else x[..., : done + T]
    return x if x.ndim == 1 or x.shape[-2] == 1 else x[..., done : done + T, :]


def in_parts(module: MultiHeadAttention, cache: KVCache, parts, **options) -> Tensor:
    """The tokens of x, part by part."""
    mask, bias, outs, done = options.pop("mask", None), options.pop("score_bias", None), [], 0
    with torch.no_grad():
        for T in parts:
            given = {"mask": rows(mask, done, T), "score_bias": rows(bias, done, T)}
            outs.append(module(x[:, done : done + T], **given, **options, cache=cache))
            done += T
            assert cache.length == done
    return torch.cat(outs, dim=1)


@st.composite
def partitions(draw) -> list[int]:
    """Some of the N tokens, or all, one by one or several at once."""
    parts = draw(st.lists(st.one_of(st.just(1), st.integers(0, 5)), min_size=1, max_size=N))
    while sum(parts) > N:
        parts.pop()
    return parts


MASKS = {
    "none": None,
    "all": torch.tensor(True),
    "(N,)": bools(N),
    "(N, N)": bools(N, N),
    "(N, 1)": torch.tensor([[True]] * N),
    "padding on the left": ~masks.padding(torch.tensor([3, 0]), N),
    "(B, H, N, N)": bools(B, H, N, N),
}
BIASES = {"none": None, "(H, N, N)": numbers(H, N, N, seed=5), "(N,)": numbers(N, seed=6)}


@settings(max_examples=150)
@given(
    partitions(),
    st.sampled_from(sorted(BACKENDS)),
    st.sampled_from(sorted(MASKS)),
    st.sampled_from(sorted(BIASES)),
    st.booleans(),
    st.sampled_from([1, 2, 6]),
)
def test_cached_equals_full_at_every_step(parts, backend, mask, bias, rotary, kv_heads) -> None:
    module = attentive(BACKENDS[backend], kv_heads=kv_heads, rotary=rotary)
    options = {"mask": MASKS[mask], "score_bias": BIASES[bias], "is_causal": True}
    want = module(x, **options)
    got = in_parts(module, new_cache(kv_heads=kv_heads), parts, **options)
    assert_close(got, want[:, : sum(parts)])


@settings(max_examples=150)
@given(
    partitions(),
    st.integers(1, N + 1),
    st.integers(0, 3),
    st.sampled_from(sorted(BACKENDS)),
    st.sampled_from(sorted(MASKS)),
    st.sampled_from(sorted(BIASES)),
)
def test_a_ring_equals_full_under_its_window_at_every_step(parts, window, sinks, backend, mask, bias) -> None:
    module = attentive(BACKENDS[backend])
    may = masks.sliding_window(N, window) | (masks.causal(N) & (torch.arange(N) < sinks))
    given = MASKS[mask]
    want = module(x, mask=may if given is None else may & given, score_bias=BIASES[bias])
    options = {"mask": given, "score_bias": BIASES[bias], "is_causal": True}
    assert_close(in_parts(module, new_ring(window, sinks), parts, **options), want[:, : sum(parts)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_is_causal_every_new_token_sees_all_new_ones(backend: str) -> None:
    module = attentive(BACKENDS[backend])
    may = masks.causal(N) | masks.prefix(N, 4)
    may[4:7, 4:7] = True
    got = in_parts(module, new_cache(), (4, 3, 1, 1, 1, 1))
    assert_close(got, module(x, mask=may))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prompt_gives_the_very_numbers_of_a_call_without_a_cache(backend: str) -> None:
    module = attentive(BACKENDS[backend])
    with torch.no_grad():
        got = module(x, is_causal=True, cache=new_cache(N + 5))
        assert_close(got, module(x, is_causal=True), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("backend", ["sdpa", "explicit"])
def test_the_error_is_that_of_the_full_call_in_that_type(backend: str, dtype: torch.dtype) -> None:
    exact = attentive()(x.to(dtype).double(), is_causal=True)
    low = attentive(backend, dtype=dtype)
    exact_of = copy.deepcopy(low).double()
    exact = exact_of(x.to(dtype).double(), is_causal=True)
    full = low(x.to(dtype), is_causal=True)
    with torch.no_grad():
        cache = new_cache(dtype=dtype)
        outs = [low(token, is_causal=True, cache=cache) for token in x.to(dtype).split(1, 1)]
    error, allowed = ((y.double() - exact).norm() for y in (torch.cat(outs, 1), full))
    assert 0 < error <= 2 * allowed


def test_autocast_fills_a_cache_of_the_low_type() -> None:
    module = attentive(dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cache = new_cache(dtype=torch.bfloat16)
        outs = [module(token, is_causal=True, cache=cache) for token in x.float().split(1, 1)]
        assert_close(torch.cat(outs, 1), module(x.float(), is_causal=True), rtol=5e-2, atol=5e-2)
        with pytest.raises(TypeError, match=r"^k must have the cache's type, torch\.float32, got torch\.bfloat16$"):
            module(x.float(), cache=new_cache(dtype=torch.float32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_trace_adds_to_the_cache_once_and_holds_all_keys(backend: str) -> None:
    module, cache = attentive(BACKENDS[backend]), new_cache()
    full = module.trace(x, is_causal=True)
    with torch.no_grad():
        module(x[:, :4], is_causal=True, cache=cache)
        trace = module.trace(x[:, 4:9], is_causal=True, cache=cache)
        assert cache.length == 9
        last = module.trace(x[:, 9:], mask=masks.causal(2, 11, alignment="lower_right"), cache=cache)
    for got, new, S in ((trace, slice(4, 9), 9), (last, slice(9, 11), 11)):
        assert_close((got.k, got.v), (full.k[:, :, :S], full.v[:, :, :S]))
        assert_close((got.q, got.heads, got.out), (full.q[:, :, new], full.heads[:, :, new], full.out[:, new]))
        assert_close((got.scores, got.weights), (full.scores[..., new, :S], full.weights[..., new, :S]))


def test_a_refused_draft_is_cropped() -> None:
    module, cache = attentive(), new_cache()
    want = module(x, is_causal=True)
    in_parts(module, cache, [4])
    with torch.no_grad():
        module(x[:, :3] + 1, is_causal=True, cache=cache)
        cache.crop(4)
        assert_close(module(x[:, 4:], is_causal=True, cache=cache), want[:, 4:])


def test_a_beam_goes_on_from_another() -> None:
    module, cache = attentive(), new_cache()
    in_parts(module, cache, [5])
    cache.reorder(torch.tensor([1, 1]))
    tokens = torch.cat([x[[1, 1], :5], x[:, 5:]], 1)
    with torch.no_grad():
        got = module(x[:, 5:], is_causal=True, cache=cache)
    assert_close(got, module(tokens, is_causal=True)[:, 5:])


def test_key_and_value_may_be_query_itself() -> None:
    module, cache = attentive(), new_cache()
    with torch.no_grad():
        got = [module(token, token, token, is_causal=True, cache=cache) for token in x.split(1, 1)]
    assert_close(torch.cat(got, 1), module(x, is_causal=True))


def test_a_rotary_of_ones_own_is_told_where_it_stands() -> None:
    told = []

    def turn(x: Tensor, *, offset: int = 0) -> Tensor:
        told.append(offset)
        return x

    module = ours(E, H, num_kv_heads=HKV, head_dim=D, rotary=turn)
    in_parts(module, new_cache(), (3, 1))
    assert told == [0, 0, 3, 3]
    plain = ours(E, H, num_kv_heads=HKV, head_dim=D, rotary=lambda x: x)
    plain(x)


def test_the_module_keeps_nothing() -> None:
    module = attentive()
    before = copy.copy(module.__dict__)
    in_parts(module, new_cache(), (3, 1))
    assert module.__dict__ == before


@pytest.mark.unchecked
@pytest.mark.parametrize("kind", ["preallocated", "ring"])
def test_compiles_whole_for_every_length(kind: str) -> None:
    torch._dynamo.reset()
    module = attentive()
    cache = new_cache() if kind == "preallocated" else new_ring(4, sinks=1)
    may = masks.causal(N)
    if kind == "ring":
        may = masks.sliding_window(N, 4) | (may & (torch.arange(N) < 1))
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    with torch.no_grad():
        got = [compiled(token, is_causal=True, cache=cache) for token in x.split(1, 1)]
        assert_close(torch.cat(got, 1), module(x, mask=may))


# What is refused


def state(cache: KVCache) -> tuple:
    return cache.length, cache._owner, cache._k.clone(), cache._v.clone()


def unchanged(cache: KVCache, before: tuple) -> bool:
    same = torch.equal(cache._k, before[2]) and torch.equal(cache._v, before[3])
    return same and (cache.length, cache._owner) == before[:2]


def refuses(error: type[Exception], message: str):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


query = x[:, :2]
LONG = "k must be (B, Hkv, T, D) = (2, 2, T, 10) as the cache has it, got"


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": x[:1, :2]}, ValueError, f"{LONG} (1, 2, 2, 10)"),
        (
            {"query": x},
            ValueError,
            "the cache is full: 5 tokens are held, max_len is 11, got 11 more: "
            "make a longer one, or drop some with crop or reset",
        ),
        (
            {"key": x[:, 2:4]},
            ValueError,
            "cache is for self-attention, where key and value are query: leave them out, or cache",
        ),
        (
            {"key": query, "value": x[:, 2:4]},
            ValueError,
            "cache is for self-attention, where key and value are query: leave them out, or cache",
        ),
        ({"mask": bools(2, 2)}, ValueError, "mask must broadcast to (..., T, S) = (2, 6, 2, 7), got (2, 2)"),
        ({"mask": bools(2, 5)}, ValueError, "mask must broadcast to (..., T, S) = (2, 6, 2, 7), got (2, 5)"),
        ({"mask": torch.ones(2, 7)}, TypeError, "mask must be bool (True = may attend), got torch.float32"),
        (
            {"score_bias": numbers(7, 7)},
            ValueError,
            "score_bias must broadcast to (..., T, S) = (2, 6, 2, 7), got (7, 7)",
        ),
        ({"is_causal": 1}, TypeError, "is_causal must be True or False, got int"),
        ({"query": query.float()}, TypeError, "query must have the parameters' type, torch.float64, got torch.float32"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
@pytest.mark.parametrize("method", ["forward", "trace"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_that_is_refused_changes_nothing(backend: str, method: str, change: dict, error, message: str) -> None:
    module, cache = attentive(BACKENDS[backend]), new_cache()
    in_parts(module, cache, [5])
    before = state(cache)
    with refuses(error, message), torch.no_grad():
        getattr(module, method)(**{"query": query, "is_causal": True, "cache": cache, **change})
    assert unchanged(cache, before)
    with torch.no_grad():
        assert_close(module(x[:, 5:], is_causal=True, cache=cache), module(x, is_causal=True)[:, 5:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_modules_do_not_share_a_cache(backend: str) -> None:
    module, other, cache = attentive(BACKENDS[backend]), attentive(BACKENDS[backend]), new_cache()
    in_parts(module, cache, [5])
    before = state(cache)
    with torch.no_grad():
        message = "the cache holds tokens of another module: each layer needs its own (reset it to reuse)"
        with refuses(ValueError, message):
            other(query, is_causal=True, cache=cache)
        assert unchanged(cache, before)
        cache.reset()
        other(query, is_causal=True, cache=cache)
    assert cache.length == 2


@pytest.mark.parametrize("what", ["query", "parameters", "q_proj", "score_bias"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_through_a_cache_are_refused(backend: str, what: str) -> None:
    module, cache = attentive(BACKENDS[backend]).requires_grad_(what == "parameters"), new_cache()
    in_parts(module, cache, [5])
    before = state(cache)
    args, options = query.clone(), {}
    if what == "query":
        args.requires_grad_()
    elif what == "q_proj":
        module.q_proj.requires_grad_()
    elif what == "score_bias":
        options["score_bias"] = T5Bias(H, dtype=torch.float64)(2, 7, offset=5)
    message = "a cache carries no gradients: call inside torch.no_grad() or torch.inference_mode()"
    with refuses(RuntimeError, message):
        module(args, is_causal=True, cache=cache, **options)
    assert unchanged(cache, before)
    with torch.inference_mode():
        module(args, is_causal=True, cache=cache, **options)
    assert cache.length == 7


def test_frozen_parameters_need_no_switch() -> None:
    module, cache = attentive().requires_grad_(False), new_cache()
    module.out_proj.requires_grad_()
    module(query, is_causal=True, cache=cache)
    assert module(query, is_causal=True, cache=cache).requires_grad


@pytest.mark.unchecked
@pytest.mark.parametrize("cache", [{}, [new_cache()], "cache", torch.zeros(2)], ids=["dict", "list", "str", "Tensor"])
def test_what_is_no_cache(cache) -> None:
    message = f"cache must be a KVCache, one for each attention layer, got {type(cache).__name__}"
    with refuses(TypeError, message):
        attentive()(query, cache=cache)


def test_caches_of_another_size_or_type() -> None:
    module = attentive()
    with torch.no_grad():
        with refuses(ValueError, "k must be (B, Hkv, T, D) = (2, 6, T, 10) as the cache has it, got (2, 2, 2, 10)"):
            module(query, cache=KVCache(B, H, N, D, dtype=torch.float64))
        with refuses(TypeError, "k must have the cache's type, torch.float32, got torch.float64"):
            module(query, cache=new_cache(dtype=torch.float32))


def test_a_window_needs_causality() -> None:
    module, cache = attentive(), new_ring(3)
    message = "cache has a window of 3 tokens, all in the past: is_causal must be True"
    for T in (1, 2):
        with refuses(ValueError, message), torch.no_grad():
            module(x[:, :T], cache=cache)
    assert cache.length == 0


@pytest.mark.unchecked
def test_an_unknown_backend_and_a_wrong_rotary_change_nothing() -> None:
    def short(x: Tensor, *, offset: int) -> Tensor:
        return x[..., 1:]

    options = {"num_kv_heads": HKV, "head_dim": D}
    unknown = ours(E, H, **options)
    unknown.backend = "flash"
    for name, module in (("backend", unknown), ("rotary", ours(E, H, rotary=short, **options))):
        cache = new_cache()
        with pytest.raises(ValueError, match=name), torch.no_grad():
            module(query, is_causal=True, cache=cache)
        assert cache.length == 0
