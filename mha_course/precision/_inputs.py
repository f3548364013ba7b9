"""What the tools for number formats ask of their arguments."""

import math
import numbers

from torch import Tensor


def check_floating(name: str, x: Tensor) -> None:
    """Raise unless x is a floating point tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a floating point tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be a floating point tensor, got {x.dtype}")


def check_real(name: str, x: float) -> float:
    """Return x as a float, infinite where it is too large for one; raise unless it is a number."""
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(x).__name__}")
    try:
        return float(x)
    except OverflowError:  # integers and fractions have no largest
        return math.inf if x > 0 else -math.inf
