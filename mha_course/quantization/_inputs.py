"""What quantization asks of its arguments."""

import operator

import torch
from torch import Tensor


def check_integer(name: str, n: int, least: int, most: int | None = None) -> int:
    """Return n as an int; raise unless it is an integer from least to most."""
    try:
        if isinstance(n, bool | Tensor):
            raise TypeError
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(n).__name__}") from None
    if n < least or (most is not None and n > most):
        limits = f"be at least {least}" if most is None else f"lie in [{least}, {most}]"
        raise ValueError(f"{name} must {limits}, got {n}")
    return n


def check_bits(bits: int) -> int:
    """Return bits; raise unless it is an integer from 2 to 16."""
    if bits == 1 and not isinstance(bits, bool):
        raise ValueError("bits must lie in [2, 16], got 1: with a code for 0, one bit leaves at most one other value")
    return check_integer("bits", bits, 2, 16)


def check_bool(name: str, answer: bool) -> bool:
    """Return answer; raise unless it is True or False."""
    if not isinstance(answer, bool):
        raise TypeError(f"{name} must be True or False, got {type(answer).__name__}")
    return answer


def check_float(name: str, x: Tensor) -> Tensor:
    """Return x; raise unless it is a floating point tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {x.dtype}")
    return x


def check_finite(name: str, x: Tensor) -> Tensor:
    """Return x; raise if it is no floating point tensor, or holds NaN or infinity, for which there is no code."""
    if not torch.isfinite(check_float(name, x)).all():
        bad = int((~torch.isfinite(x)).sum())
        raise ValueError(f"{name} must be finite, got NaN or infinity at {bad} of {x.numel()} places")
    return x


def check_choice(name: str, choice: str, known: tuple[str, ...]) -> str:
    """Return choice; raise unless it is one of the known."""
    if choice not in known:
        raise ValueError(f"{name} must be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}, got {choice!r}")
    return choice


def check_per(per: str | int) -> None:
    """Raise unless per says how many numbers share a scale: "tensor", "channel" or the size of a group."""
    if isinstance(per, str):
        if per not in ("tensor", "channel"):
            raise ValueError(f"per must be 'tensor', 'channel' or the size of a group, got {per!r}")
    else:
        check_integer("per", per, 1)
