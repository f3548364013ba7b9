"""What caches ask of their arguments."""

import operator

import torch
from torch import Tensor


def check_integer(name: str, n: int, least: int = 0) -> int:
    """Return n as an int; raise unless it is an integer of at least `least`."""
    try:
        if isinstance(n, bool | Tensor):
            raise TypeError
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(n).__name__}") from None
    if n < least:
        raise ValueError(f"{name} must be at least {least}, got {n}")
    return n


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return dtype; raise unless it is floating point."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating point type, got {dtype}")
    return dtype


def check_new(name: str, x: Tensor, held: Tensor) -> None:
    """Raise unless x, the k or v of new tokens, may be written into held, (B, Hkv, slots, D)."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    (B, Hkv, _, D), sizes = held.shape, x.shape  # each .shape takes time, and this is done for every token
    if len(sizes) != 4 or sizes[0] != B or sizes[1] != Hkv or sizes[3] != D:
        want = f"(B, Hkv, T, {'D' if name == 'k' else 'Dv'}) = ({B}, {Hkv}, T, {D})"
        raise ValueError(f"{name} must be {want} as the cache has it, got {tuple(sizes)}")
    if x.dtype != held.dtype:
        raise TypeError(f"{name} must have the cache's type, {held.dtype}, got {x.dtype}")
    if x.device != held.device:
        raise ValueError(f"{name} must be on the cache's device, {held.device}, got {x.device}")
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{name} requires gradients, which a cache does not carry: call inside torch.no_grad()")


def rows(name: str, x: Tensor, ndim: int, count: int) -> Tensor:
    """Return x as int64 (uint8 would be taken for a mask); raise unless it holds 0 to count - 1 on ndim axes."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be an integer tensor, got {type(x).__name__}")
    if x.dtype == torch.bool or x.is_floating_point() or x.is_complex():
        raise TypeError(f"{name} must be an integer tensor, got {x.dtype}")
    if x.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} {'axis' if ndim == 1 else 'axes'}, got {tuple(x.shape)}")
    x = x.long()
    if not x.is_meta and ((x < 0) | (x >= count)).any():
        raise ValueError(f"{name} must lie in [0, {count - 1}], got {x.min()} to {x.max()}")
    return x
