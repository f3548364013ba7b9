"""The first exercise of notebook 14 in steps, and its cases: weights per channel. Grids are for both."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mha_course.checks.task import Case, by_steps, draw

Array = Tensor  # unchecked: a search for two faults calls the steps a thousand times
Three = tuple[Array, Array, Array]
Step = Callable[..., Any]

XOR = "the operator ^ is no power in Python but an exclusive or: 2^(bits-1)-1 is another number"
POWER_HINTS = (
    "Print your qmax for bits = 8: it should be 127.",
    "qmax = 2 ** (bits - 1) - 1, or (1 << (bits - 1)) - 1.",
)


def largest_code(bits: int) -> int:
    """The largest code of a symmetric grid."""
    return 2 ** (bits - 1) - 1


def all_codes(bits: int) -> int:
    """The largest code of an asymmetric grid."""
    return 2**bits - 1


def lowest_code(bits: int) -> int:
    """The code that a symmetric grid leaves out."""
    return -(2 ** (bits - 1))


def clipped(codes: Array, bits: int) -> Array:
    """Codes in -qmax .. qmax."""
    return codes.clamp(-largest_code(bits), largest_code(bits))


def between(low: Callable[[int], int], high: Callable[[int], int]) -> Callable[[Array, int], Array]:
    """What clips codes to other ends."""
    return lambda codes, bits: codes.clamp(low(bits), high(bits))


def wrapped(codes: Array, bits: int) -> Array:
    """Codes cast to int8 without a clamp: 128 becomes -128."""
    return (codes + 128) % 256 - 128


def wrapped_to_bits(codes: Array, bits: int) -> Array:
    """Codes of which the lowest bits are kept: the largest and one more becomes the smallest."""
    return (codes - lowest_code(bits)) % 2**bits + lowest_code(bits)


def by_xor(bits: int) -> int:
    """What Python makes of 2^(bits-1)-1: an exclusive or."""
    return 2 ^ (bits - 1) - 1


def unclipped(codes: Array, bits: int) -> Array:
    """Codes as they come."""
    return codes


def clips() -> tuple[dict[str, Any], ...]:
    """Right, and with each other way to clip, the likeliest first, as changes of steps."""
    return ({}, {"clip": unclipped}, {"clip": wrapped}, {"clip": between(lowest_code, largest_code)})


def _weights(seed: int, D: int, E: int, bits: int, note: str = "") -> Case:
    """Rows of different spread whose largest weight is exactly qmax steps: truncation has no edge to fall off."""
    (W,) = draw(seed, (D, E))
    step = (torch.arange(D, dtype=torch.float64) * 5 % 7 + 3) / 32 + 1365 / 2**20  # no half number holds it
    W = W / W.abs().amax(1, keepdim=True)
    W = torch.where(W.abs() == 1, W.sign(), W) * largest_code(bits) * step[:, None]
    if note:
        W[D // 2] = 0
    return Case({"D": D, "E": E, "bits": bits}, (W, bits), note)


def weight_cases() -> tuple[Case, ...]:
    """Weights of several widths; one case has a row of zeros."""
    return (
        _weights(0, 5, 7, 8),
        _weights(1, 7, 5, 4),
        _weights(2, 7, 13, 8, "a row of zeros"),
        _weights(3, 11, 11, 3),
        _weights(4, 1, 7, 5),
        _weights(5, 5, 1, 8),
        _weights(6, 3, 11, 2),
        _weights(7, 13, 601, 6),
    )


def scale_filled(scale: Array) -> Array:
    """The scale, and 1 where it is 0."""
    return scale.masked_fill(scale == 0, 1)


def _quantize(
    top: Step, count: Step, fill: Step, code: Step, zero: Step, clip: Step, back: Step, show: Step, W: Array, bits: int
) -> Any:
    scale = fill(top(W) / count(bits))
    zero_point = zero(W, scale, bits)
    codes = clip(code(W, scale) + zero_point, bits)
    return show(codes, scale, back(codes - zero_point, scale, W), bits)


@by_steps
def quantized(
    top: Callable[[Array], Array] = lambda W: W.abs().amax(1, keepdim=True),
    count: Callable[[int], float] = largest_code,
    fill: Callable[[Array], Array] = scale_filled,
    code: Callable[[Array, Array], Array] = lambda W, scale: (W / scale).round(),
    zero: Callable[[Array, Array, int], Any] = lambda W, scale, bits: 0,
    clip: Callable[[Array, int], Array] = clipped,
    back: Callable[[Array, Array, Array], Array] = lambda codes, scale, W: codes * scale,
    show: Callable[[Array, Array, Array, int], Three] = lambda codes, scale, W_hat, bits: (codes, scale, W_hat),
) -> Callable[[Array, int], Three]:
    """Weights quantized per channel, with some steps changed.

    Args:
        top: from W to the numbers, (D, 1), that become the largest code.
        count: from bits to the code that they become.
        fill: from their quotient to the scale.
        code: from W and the scale to codes.
        zero: from W, scale and bits to the zero point, added to the codes and taken off on the way back.
        clip: from codes and bits to codes.
        back: from codes, scale and W to W_hat.
        show: from the three and bits to what is returned.
    """
    return partial(_quantize, top, count, fill, code, zero, clip, back, show)
