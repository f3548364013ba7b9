"""What `MultiHeadAttention` asks of its arguments."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mha_course.cache import KVCache
from mha_course.dot_product import autocasts
from mha_course.masks._inputs import check_integer
from mha_course.positions import Rotary


def size(name: str, n: int | None, default: int) -> int:
    """Return n, or the default if it is None; raise unless it is an integer of at least 1."""
    return check_integer(name, default if n is None else n, least=1)


def check_backend(backend: object) -> None:
    """Raise unless backend has a known name or can be called."""
    if not callable(backend) and backend not in ("sdpa", "explicit"):
        raise ValueError(f'backend must be "sdpa", "explicit" or callable, got {backend!r}')


def check_input(name: str, x: Tensor, length: str, letter: str, width: int, linear: nn.Module) -> None:
    """Raise unless x is a floating point tensor (B, length, width) that the projection can take."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {x.dtype}")
    if x.ndim != 3 or x.shape[-1] != width:
        raise ValueError(f"{name} must be (B, {length}, {letter}) with {letter} = {width}, got {tuple(x.shape)}")
    # a projection that was replaced, by a quantized one for example, answers for itself
    if type(linear) is nn.Linear and x.dtype != linear.weight.dtype and not autocasts(x.device):
        raise TypeError(f"{name} must have the parameters' type, {linear.weight.dtype}, got {x.dtype}")


def check_lengths(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> None:
    """Raise unless the sizes of query, key and value fit each other."""
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be True or False, got {type(is_causal).__name__}")
    if key is value is query:
        return
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        sizes = f"{query.shape[0]}, {key.shape[0]} and {value.shape[0]}"
        raise ValueError(f"query, key and value must have one batch size B, got {sizes}")
    if key.shape[1] != value.shape[1]:
        raise ValueError(f"key and value must have one length S, got {key.shape[1]} and {value.shape[1]}")
    T, S = query.shape[1], key.shape[1]
    if is_causal and T != S:
        raise ValueError(f"is_causal needs T = S, got T = {T} and S = {S}: pass mask=causal(T, S, alignment=...)")


def check_cache(cache: KVCache, query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> None:
    """Raise unless the new tokens, those of query, can be added to what cache holds."""
    if not isinstance(cache, KVCache):
        raise TypeError(f"cache must be a KVCache, one for each attention layer, got {type(cache).__name__}")
    if key is not query or value is not query:
        raise ValueError("cache is for self-attention, where key and value are query: leave them out, or cache")
    if cache.window is not None and not is_causal:
        raise ValueError(f"cache has a window of {cache.window} tokens, all in the past: is_causal must be True")


def check_heads(heads: Tensor, q: Tensor) -> None:
    """Raise unless a backend returned what it must."""
    if not isinstance(heads, Tensor):
        raise TypeError(f"backend must return a tensor (B, H, T, D), got {type(heads).__name__}")
    if heads.shape != q.shape:
        raise ValueError(f"backend must return (B, H, T, D) = {tuple(q.shape)}, got {tuple(heads.shape)}")


def turn(rotary: Callable[..., Tensor], q: Tensor, k: Tensor, **offset: int) -> tuple[Tensor, Tensor]:
    """Return what rotary makes of q and k; raise unless they keep their shapes and types."""
    if type(rotary) is Rotary and q.shape[2] == k.shape[2] == 1:  # knows no heads: one call for a single token
        both = rotary(torch.cat((q, k), 1), **offset)
        return both[:, : q.shape[1]], both[:, q.shape[1] :]
    return _check_turned(rotary(q, **offset), q), _check_turned(rotary(k, **offset), k)


def _check_turned(turned: Tensor, x: Tensor) -> Tensor:
    if not isinstance(turned, Tensor):
        raise TypeError(f"rotary must return a tensor (B, H, T, D), got {type(turned).__name__}")
    if turned.shape != x.shape:
        raise ValueError(f"rotary must return (B, H, T, D) = {tuple(x.shape)}, got {tuple(turned.shape)}")
    if turned.dtype != x.dtype:
        raise TypeError(f"rotary must return the type of its input, {x.dtype}, got {turned.dtype}")
    return turned
