"""The second exercise of notebook 14 in steps, and its cases: a static scale, calibrated on batches."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mha_course.checks.task import Case, by_steps, draw
from mha_course.checks.tasks_14_steps import Array, Step, all_codes, clipped, largest_code, lowest_code

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


def features(join: Step) -> Callable[[Array, float], Array]:
    """What joins the percentiles of the features, (E,)."""
    return lambda sizes, percent: join(torch.quantile(sizes.flatten(0, -2), percent / 100, dim=0))


def tokens(join: Step) -> Callable[[Array, float], Array]:
    """What joins the percentiles of the tokens, (B, T)."""
    return lambda sizes, percent: join(torch.quantile(sizes, percent / 100, dim=-1))


def ends(sizes: Array, low: float, high: float) -> Array:
    """The larger of two percentiles in size."""
    return torch.quantile(sizes.flatten(), torch.tensor([low, high], dtype=sizes.dtype) / 100).abs().max()


def grown(top: Array, x: Array) -> Array:
    """The range, or that of x if it is larger."""
    return torch.maximum(top, x.abs().max())


def asymmetric(signed: bool) -> Callable[[Array, Array, int, float], tuple[Array, Array]]:
    """A scale from the percentile at the lower end to that at the upper, both of numbers with their sign."""

    def fn(batches: Array, x: Array, bits: int, percent: float) -> tuple[Array, Array]:
        low, high = (torch.quantile(batches.flatten(), p) for p in (1 - percent / 100, percent / 100))
        scale = (high - low) / all_codes(bits)
        first = lowest_code(bits) if signed else 0
        codes = (x / scale).round() + (-low / scale).round() + first
        return scale, codes.clamp(first, first + all_codes(bits))

    return fn


def coded(code: Step) -> Callable[[Array, Array, int, float], tuple[Array, Array]]:
    """The right scale, and codes from batches, x, the range, the scale and qmax."""

    def fn(batches: Array, x: Array, bits: int, percent: float) -> tuple[Array, Array]:
        top, most = percentile(batches.abs(), percent), largest_code(bits)
        return top / most, code(batches, x, top, top / most, most)

    return fn
