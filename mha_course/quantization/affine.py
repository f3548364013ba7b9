"""Affine quantization: a number becomes an integer code, and a scale and a zero point turn it back."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from mha_course.quantization._inputs import check_bits, check_bool, check_finite, check_float


class Affine(NamedTuple):
    """How numbers become codes: x is about scale (code - zero_point).

    Attributes:
        scale: the step from one code to the next, positive. It broadcasts to what is quantized; with one axis more,
            (..., G, 1), each row of the last axis is cut into G groups.
        zero_point: the code of 0.0, int32, shaped as scale; 0 where symmetric.
        bits: width of a code.
        symmetric: codes from -(2^(bits-1) - 1) to 2^(bits-1) - 1 if True, from 0 to 2^bits - 1 if not.
    """

    scale: Float[Tensor, "..."]
    zero_point: Integer[Tensor, "..."]
    bits: int
    symmetric: bool

    @property
    def lowest(self) -> int:
        """The smallest code."""
        return -self.highest if self.symmetric else 0

    @property
    def highest(self) -> int:
        """The largest code."""
        return 2 ** (self.bits - 1) - 1 if self.symmetric else 2**self.bits - 1


def affine_from_range(low: Float[Tensor, "..."], high: Float[Tensor, "..."], bits: int, *, symmetric: bool) -> Affine:
    """Spread the codes over the numbers from low to high, so that 0.0 has a code of its own.

    symmetric:  scale = max(|low|, |high|) / (2^(bits-1) - 1),   zero_point = 0
    else:       scale = (max(high, 0) - min(low, 0)) / (2^bits - 1),   zero_point = round(-min(low, 0) / scale)

    The code -2^(bits-1) is not used: with it -x would have no code where x has one. A range of nothing but 0 gets
    scale 1. Where the scale would fall below the smallest normal number, it is that number. Where the value of a code
    would lie beyond the largest number, the scale is as much smaller.

    Args:
        low, high: ends of the range, of one shape; float32 if they are of a smaller type.
        bits: 2 to 16.
        symmetric: whether 0.0 lies in the middle of the codes.

    Returns:
        Affine(scale, zero_point, bits, symmetric), shaped as low.

    Raises:
        TypeError: low or high is not a floating point tensor; bits is not an integer, symmetric not a bool.
        ValueError: bits is outside [2, 16]; low or high is not finite; their shapes differ; low lies above high.

    Source: Jacob et al. 2018, section 2.1: scale is S, zero_point is Z, code is q, x is r.
    """
    check_bits(bits), check_bool("symmetric", symmetric)
    low, high = _wide(check_finite("low", low)), _wide(check_finite("high", high))
    if low.shape != high.shape:
        raise ValueError(f"low and high must have one shape, got {tuple(low.shape)} and {tuple(high.shape)}")
    if (low > high).any():
        raise ValueError("low must be at most high, got a range that ends before it begins")
    top = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
    if symmetric:
        scale = torch.maximum(low.abs(), high.abs()) / top
    else:
        low, high = low.clamp(max=0), high.clamp(min=0)
        scale = high / top - low / top  # the difference first would overflow
    empty = (low == 0) & (high == 0)
    scale = torch.where(empty, 1.0, scale.clamp(min=torch.finfo(scale.dtype).tiny))
    zero = torch.zeros_like(scale) if symmetric else (-low / scale).round().clamp(0, top)
    largest = torch.finfo(scale.dtype)
    scale = torch.minimum(scale, largest.max * (1 - largest.eps) / torch.maximum(zero, top - zero))
    return Affine(scale, zero.to(torch.int32), bits, symmetric)


def quantize(x: Float[Tensor, "..."], affine: Affine) -> Integer[Tensor, "..."]:
    """Give each number the code of the nearest value that has one.

    code = clamp(round(x / scale) + zero_point, lowest, highest)

    Numbers beyond the ends get the code of the end. Halves go to the even integer.

    Args:
        x: finite numbers, any shape that scale broadcasts to, or whose last axis it cuts into groups.
        affine: as `find_affine` or `affine_from_range` return it.

    Returns:
        Integers, shaped as x: int8 where symmetric, uint8 where not, int32 above 8 bits.

    Raises:
        TypeError: x is not a floating point tensor; affine is not an Affine.
        ValueError: x holds NaN or infinity; scale does not fit x.

    Source: Jacob et al. 2018, section 2.1, with the clamp of section 3, equation 12.
    """
    codes = (steps(check_finite("x", x), affine) + affine.zero_point).reshape(x.shape)
    if affine.bits > 8:
        return codes.to(torch.int32)
    return codes.to(torch.int8 if affine.symmetric else torch.uint8)


def dequantize(codes: Integer[Tensor, "..."], affine: Affine) -> Float[Tensor, "..."]:
    """Turn codes back into numbers: x = scale (code - zero_point).

    Args:
        codes: integers as `quantize` returns them.
        affine: the one they were made with.

    Returns:
        Numbers of scale's type, shaped as codes.

    Raises:
        TypeError: codes is not an integer tensor; affine is not an Affine.
        ValueError: scale does not fit codes.

    Source: Jacob et al. 2018, equation 1.
    """
    if not isinstance(codes, Tensor):
        raise TypeError(f"codes must be an integer tensor, got {type(codes).__name__}")
    if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
        raise TypeError(f"codes must be an integer tensor, got {codes.dtype}")
    counts = _grouped("codes", codes, affine).to(torch.int32) - affine.zero_point
    return (counts * affine.scale).reshape(codes.shape)


def fake_quantize(x: Float[Tensor, "..."], affine: Affine) -> Float[Tensor, "..."]:
    """Replace each number by the nearest value that has a code: quantize, then dequantize.

    Args:
        x: finite numbers, as in `quantize`.
        affine: likewise.

    Returns:
        Numbers of x's type and shape. The gradient is 0 almost everywhere; `straight_through` gives another.

    Raises:
        TypeError, ValueError: as in `quantize`.

    Source: Jacob et al. 2018, section 3, equation 12.
    """
    values = steps(check_finite("x", x), affine) * affine.scale
    most = torch.finfo(x.dtype).max  # an end of the grid may lie beyond it
    return values.reshape(x.shape).clamp(-most, most).to(x.dtype)


def steps(x: Float[Tensor, "..."], affine: Affine) -> Float[Tensor, "..."]:
    """Count the steps from 0.0 to the nearest value with a code: code - zero_point, in floating point, with groups."""
    count = (_grouped("x", x, affine).to(affine.scale.dtype) / affine.scale).round()
    if affine.symmetric:
        return count.clamp(affine.lowest, affine.highest)
    return torch.maximum(torch.minimum(count, affine.highest - affine.zero_point), affine.lowest - affine.zero_point)


def _grouped(name: str, x: Tensor, affine: Affine) -> Tensor:
    """The tensor with its last axis cut into the groups of affine, if it has any; raise unless they fit."""
    scale = _check_affine(affine).scale
    if scale.ndim == x.ndim + 1:
        groups = scale.shape[-2]
        if scale.shape[-1] == 1 and groups and x.shape[-1] % groups == 0:
            x = x.unflatten(-1, (groups, -1))
    try:
        fits = torch.broadcast_shapes(x.shape, scale.shape) == x.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"scale must broadcast to {name}, got {tuple(scale.shape)} for {tuple(x.shape)}")
    return x


def _check_affine(affine: Affine) -> Affine:
    if not isinstance(affine, Affine):
        raise TypeError(f"affine must be an Affine, as find_affine returns it, got {type(affine).__name__}")
    return affine


def _wide(x: Tensor) -> Tensor:
    return check_float("x", x) if x.dtype == torch.float64 else x.float()
