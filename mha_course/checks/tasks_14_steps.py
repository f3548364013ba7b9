"""The two exercises of notebook 14 in steps, and their cases: weights per channel, and a static scale."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mha_course.checks.task import Case, by_steps, draw

Array = Tensor  # unchecked: a search for two faults calls the steps a thousand times
Three = tuple[Array, Array, Array]
Step = Callable[..., Any]


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


def unclipped(codes: Array, bits: int) -> Array:
    """Codes as they come."""
    return codes


def clips() -> tuple[dict[str, Any], ...]:
    """Right, and with each other way to clip, the likeliest first, as changes of steps."""
    return ({}, {"clip": unclipped}, {"clip": wrapped}, {"clip": between(lowest_code, largest_code)})


def _weights(seed: int, D: int, E: int, bits: int, note: str = "") -> Case:
    """Rows of different spread whose largest weight is exactly qmax steps: truncation has no edge to fall off."""
    (W,) = draw(seed, (D, E))
    step = (torch.arange(D, dtype=torch.float64) * 5 % 7 + 3) / 32
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


def _scale_filled(scale: Array) -> Array:
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
    fill: Callable[[Array], Array] = _scale_filled,
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


_SPREADS = (3, 6, 1, 5, 2, 7, 4)  # of five or seven batches neither the first nor the last is an extreme


def _batches(seed: int, sizes: tuple[int, int, int], bits: int, percent: float, reach: float = 1.7) -> Case:
    """Batches of different spread, and a new one that reaches further at both ends, or less far.

    (B T E - 1) percent / 100 is a whole number: all usual kinds of percentile agree.
    """
    B, T, E = sizes
    batches, x = draw(seed, (B, T, E), (T, E))
    batches = batches * torch.tensor(_SPREADS[:B], dtype=torch.float64)[:, None, None] / 4
    x = x / x.abs().max() * reach * batches.abs().max()
    x = torch.where(x == x.min(), -x.abs().max(), torch.where(x == x.max(), x.abs().max(), x))
    note = f"bits, percent = {bits}, {percent:g}" + ("; x lies within the range" if reach < 1 else "")
    return Case({"B": B, "T": T, "E": E}, (batches, x, bits, percent), note)


def batch_cases() -> tuple[Case, ...]:
    """Several batches and one, a percentile and the maximum."""
    return (
        _batches(0, (7, 11, 13), 8, 99),
        _batches(1, (3, 7, 11), 4, 90),
        _batches(2, (5, 7, 3), 8, 100),
        _batches(3, (3, 5, 7), 3, 75),
        _batches(4, (2, 3, 11), 6, 80),
        _batches(5, (1, 3, 7), 8, 95),
        _batches(6, (3, 1, 7), 2, 95),
        _batches(7, (7, 13, 11), 7, 99.5),
        _batches(8, (3, 5, 11), 8, 100, reach=0.6),
    )


def percentile(sizes: Array, percent: float) -> Array:
    """The percentile of all numbers together."""
    return torch.quantile(sizes.flatten(), percent / 100)


def each_batch(join: Callable[[Array], Array]) -> Callable[[Array, float], Array]:
    """What joins the percentiles of the batches, (B,), into one number."""
    return lambda sizes, percent: join(torch.quantile(sizes.flatten(1), percent / 100, dim=1))


def moving(decay: float) -> Callable[[Array], Array]:
    """What takes a moving average that starts with the first number."""

    def join(tops: Array) -> Array:
        top = tops[0]
        for new in tops[1:]:
            top = decay * top + (1 - decay) * new
        return top

    return join


def ranked(shift: int) -> Callable[[Array, float], Array]:
    """What takes the number some ranks beside the percentile."""

    def top(sizes: Array, percent: float) -> Array:
        ordered = sizes.flatten().sort().values
        index = round((len(ordered) - 1) * percent / 100) + shift
        return ordered[min(max(index, 0), len(ordered) - 1)]

    return top


def _calibrate(
    see: Step, size: Step, top: Step, late: Step, count: Step, code: Step, clip: Step, show: Step, *given: Any
) -> Any:
    batches, x, bits, percent = given
    scale = late(top(size(see(batches, x)), percent), x) / count(bits)
    return show(scale, clip(code(x, scale), bits), bits)


@by_steps
def calibrated(
    see: Callable[[Array, Array], Array] = lambda batches, x: batches,
    size: Callable[[Array], Array] = torch.abs,
    top: Callable[[Array, float], Array] = percentile,
    late: Callable[[Array, Array], Array] = lambda top, x: top,
    count: Callable[[int], float] = largest_code,
    code: Callable[[Array, Array], Array] = lambda x, scale: (x / scale).round(),
    clip: Callable[[Array, int], Array] = clipped,
    show: Callable[[Array, Array, int], tuple[Array, Array]] = lambda scale, codes, bits: (scale, codes),
) -> Callable[[Array, Array, int, float], tuple[Array, Array]]:
    """A static scale and the codes of a new batch, with some steps changed.

    Args:
        see: from batches and x to the batches that are looked at.
        size: from these to what the percentile is taken of.
        top: from that and percent to the range.
        late: from the range and x to the range that is used.
        count: from bits to the code of the range.
        code: from x and the scale to codes.
        clip: from codes and bits to codes.
        show: from scale, codes and bits to what is returned.
    """
    return partial(_calibrate, see, size, top, late, count, code, clip, show)
