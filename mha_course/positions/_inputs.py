"""What positions ask of their arguments."""

import operator
import sys

import torch
from jaxtyping import Float
from torch import Tensor


def check_integer(name: str, n: int, least: int = 0) -> int:
    """Return n as an int; raise unless it is an integer of at least `least`."""
    try:
        if isinstance(n, bool | Tensor):
            raise TypeError
        # A SymInt is a length that torch.export does not know yet; an integer of NumPy's would overflow later.
        n = n if isinstance(n, int | torch.SymInt) else operator.index(n)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(n).__name__}") from None
    if n < least:
        raise ValueError(f"{name} must be at least {least}, got {n}")
    return n


def check_number(name: str, x: float, least: float, *, above: bool = False) -> float:
    """Return x as a float; raise unless it is a finite number of at least `least`, or above it."""
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise TypeError(f"{name} must be a number, got {type(x).__name__}")
    if not (least < x if above else least <= x) or not x <= sys.float_info.max:
        raise ValueError(f"{name} must be finite and {'above' if above else 'at least'} {least:g}, got {x}")
    return float(x)


def check_dtype(dtype: torch.dtype) -> None:
    """Raise unless dtype is floating point."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating point type, got {dtype}")


def check_vectors(x: Tensor, letter: str, width: int) -> None:
    """Raise unless x is floating point of shape (..., T, width)."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point, got {x.dtype}")
    if x.ndim < 2 or x.shape[-1] != width:
        raise ValueError(f"x must have shape (..., T, {letter}) with {letter} = {width}, got {tuple(x.shape)}")


def positions(length: int, offset: int, device: torch.device | str | None, dtype: torch.dtype) -> Float[Tensor, " T"]:
    """The positions offset, offset + 1, ... of `length` tokens, in float32 or wider."""
    wide = torch.promote_types(dtype, torch.float32)
    return (torch.arange(length, device=device) + offset).to(wide)
