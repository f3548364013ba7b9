"""What the functions that make masks ask of their arguments."""

import operator

import torch
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


def integers(name: str, x: Tensor, *axes: str) -> Tensor:
    """Return an integer tensor with these axes as int64: S would wrap around in a narrow type."""
    form = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be an integer tensor {form}, got {type(x).__name__}")
    if x.dtype == torch.bool or x.is_floating_point() or x.is_complex():
        raise TypeError(f"{name} must be an integer tensor {form}, got {x.dtype}")
    if x.ndim != len(axes):
        count = {1: "one axis", 2: "two axes"}[len(axes)]
        raise ValueError(f"{name} must have {count} {form}, got {tuple(x.shape)}")
    return x.long()


def can_be_read(x: Tensor) -> bool:
    """Whether x holds values now: not while a graph is traced, nor on the device "meta"."""
    if torch.compiler.is_compiling() or x.is_meta:
        return False
    try:
        bool((x == x).all())
    except RuntimeError:  # under torch.vmap and in a FakeTensorMode
        return False
    return True


def refuse(bad: Tensor, x: Tensor, must: str, instead: str = "") -> None:
    """Raise a ValueError that names the first entry of x where bad is True, if it can be read."""
    if not can_be_read(bad) or not bad.any():
        return
    index = bad.nonzero()[0].tolist()
    place = index[0] if len(index) == 1 else tuple(index)
    raise ValueError(f"{must}, got {x[tuple(index)].item()} at index {place}{instead}")


def check_bool(name: str, x: Tensor, meaning: str = "may attend") -> None:
    """Raise unless x is a bool tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a bool (True = {meaning}) tensor, got {type(x).__name__}")
    if x.dtype != torch.bool:
        raise TypeError(f"{name} must be bool (True = {meaning}), got {x.dtype}")
