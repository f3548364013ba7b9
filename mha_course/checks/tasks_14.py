"""The exercises of notebook 14: weights quantized per channel, and a static scale calibrated and used."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mha_course.checks.task import Task, Variation
from mha_course.checks.tasks_14_static import static_scale
from mha_course.checks.tasks_14_steps import (
    POWER_HINTS,
    XOR,
    all_codes,
    between,
    by_xor,
    clips,
    largest_code,
    lowest_code,
    quantized,
    scale_filled,
    unclipped,
    weight_cases,
)

_ROW_HINTS = (
    "Print the shape of your scale, and multiply row 0 of W by 10: which scales change?",
    "Row d of W is one output channel: take the largest |weight| along the last axis, with keepdim=True.",
)
_SIGN_HINTS = (
    "Take a row whose largest weight is negative, [1.0, -4.0]: what is its scale?",
    "The largest |weight| counts: abs() first, then the maximum of each row.",
)
_LEVEL_HINTS = (
    "Print the smallest and the largest code that come out for bits = 3: they should be -3 and 3 at most.",
    "The largest |weight| of a row gets the code qmax = 2**(bits - 1) - 1: scale = largest / qmax.",
)
_ROUND_HINTS = (
    "Take W = [[1.0, 0.9, -0.9]] and 2 bits: which codes come out? The nearest ones are 1, 1, -1.",
    "Round W / scale to the nearest whole number, torch.round, before any cast: a cast cuts the fraction off.",
)
_ZERO_HINTS = (
    "Take W = torch.zeros(1, 3): print scale, codes and W_hat.",
    "Where the largest |weight| of a row is 0, set its scale to 1, there alone: nothing is divided by 0.",
)
_TYPICAL_HINTS = (
    "Print the largest |code| before the clamp: does it go beyond qmax?",
    "The scale comes from the largest |weight| of a row, so that no weight is clipped.",
)
_SPREAD_HINTS = (
    "Take a row [1.0, -1.0, 8.0]: its scale is 8 / qmax. What is yours?",
    "Neither a sum nor a spread is asked for: the largest |weight| of the row, alone, gets the code qmax.",
)
_SCALE_HINTS = (
    "Which number is one step of your grid worth, in units of the weights?",
    "scale = largest / qmax; codes = round(W / scale); W_hat = codes * scale.",
)
_BACK_HINTS = (
    "Compare W_hat with W: no weight should be off by more than half a scale.",
    "W_hat = codes * scale.",
)
_ASYMMETRIC_HINTS = (
    "Which code does a weight of 0 get? It should be 0.",
    "The grid is symmetric: the largest |weight| of a row gets qmax or -qmax, and there is no zero point.",
)
_ORDER_HINTS = (
    "Print the shapes of the three results in their order: (D, E), (D, 1), (D, E).",
    "Return codes, scale, W_hat.",
)

_TENSOR = "one scale for the whole matrix, not one for each row"
_COLUMN = "the scale is taken along the wrong axis: one for each column, the inputs, not for each row"
_FLAT = "the axis of the scales is lost: (D,) meets the columns of W, not its rows"
_FIRST = "every row gets the scale of the first"
_ABS = "abs() is missing: the scale comes from the largest weight, and a negative one may be larger in magnitude"
_LATE_ABS = "abs() comes after the maximum: a negative weight may be larger in magnitude"
_SMALLEST = "the scale comes from the smallest weight, not from the largest |weight|"
_MEAN = "the scale comes from the mean |weight| of a row, not from the largest: many weights are clipped"
_ROOT = "the scale comes from the root mean square of a row, not from its largest |weight|"
_ZEROS = "a row of zeros is divided by 0: its scale must be 1"
_ZERO_SCALE = "a row of zeros has the scale 0, or almost 0, not 1"
_ONE_TOO_MANY = "the largest weight gets the code 2**(bits - 1), one too many: 2**(bits - 1) - 1 is qmax"
_SIGN_BIT = "the grid is finer than bits allow, with codes up to 2**bits on each side: the sign is not counted"
_HALF = "half of 2**bits - 1 is no whole number: the largest weight gets 2**(bits - 1) - 1, that is qmax"
_NO_NEGATIVE = "codes of negative weights are clipped to 0: codes go from -qmax to qmax"
_EIGHT = "bits is not used: the grid is always that of 8 bits"
_ASYMMETRIC = "the grid is asymmetric, from the smallest to the largest weight, with a zero point"
_TRUNCATED = "the fraction is cut off: codes are truncated, not rounded"
_DOWN = "codes are rounded down, not to the nearest"
_INVERSE = "the inverse of the scale is returned: qmax / largest, not largest / qmax"
_SUM = "the scale comes from the sum of the |weights| of a row, not from the largest"
_MIDDLE = "the scale comes from half the way from the smallest to the largest weight, not from the largest |weight|"
_STD = "the scale comes from the standard deviation of a row, not from its largest |weight|"
_DOUBLE = "the scale is twice as large: the largest |weight|, not twice that, gets the code qmax"
_PERCENTILE = "the scale comes from a percentile of the |weights| of a row, not from the largest"
_COARSE = "the grid is coarser than bits allow: qmax is 2**(bits - 1) - 1, and ** comes before the last minus"
_RANGE = "the largest |weight| is returned for the scale, not divided by qmax"


def _flat(W: Tensor) -> Tensor:
    """The largest of each row, (D,); something of the right shape where that does not meet the columns."""
    top = W.abs().amax(1)
    return top if 1 in W.shape or W.shape[0] == W.shape[1] else torch.ones_like(W[:, :1])


def _does_not_meet(sizes: Mapping[str, int]) -> bool:
    return sizes["D"] != sizes["E"] and 1 not in (sizes["D"], sizes["E"])


def _std(W: Tensor) -> Tensor:
    """The standard deviation of each row; NaN, without a warning, of a single weight."""
    return ((W - W.mean(1, keepdim=True)).square().sum(1, keepdim=True) / (W.shape[1] - 1)).sqrt()


def _or_one(W: Tensor) -> Tensor:
    top = W.abs().amax(1, keepdim=True)
    return top.masked_fill(top == 0, 1)


def _range(W: Tensor) -> Tensor:
    return W.amax(1, keepdim=True) - W.amin(1, keepdim=True)


def _range_with_zero(W: Tensor) -> Tensor:
    return W.amax(1, keepdim=True).clamp(min=0) - W.amin(1, keepdim=True).clamp(max=0)


def _zero(W: Tensor, scale: Tensor, bits: int) -> Tensor:
    return (-W.amin(1, keepdim=True) / scale).round()


def _zero_inside(W: Tensor, scale: Tensor, bits: int) -> Tensor:
    return (-W.amin(1, keepdim=True).clamp(max=0) / scale).round()


def _signed(zero: Callable[[Tensor, Tensor, int], Tensor]) -> Callable[[Tensor, Tensor, int], Tensor]:
    return lambda W, scale, bits: zero(W, scale, bits) + lowest_code(bits)


def _one(fault: str, hints: tuple[str, str], **changes: Any) -> Variation:
    return Variation(fault, quantized(**changes), hints)


def _however_clipped(fault: str, hints: tuple[str, str], ways: int = 4, **changes: Any) -> tuple[Variation, ...]:
    """A fault that takes codes beyond the grid: clipped, not clipped or wrapped round, it is the same one."""
    return tuple(Variation(fault, quantized(**changes, **clip), hints) for clip in clips()[:ways])


quantize_per_channel = Task(
    name="quantize_per_channel",
    gradients=False,
    arguments=("W", "bits"),
    results=(("codes", ("D", "E")), ("scale", ("D", "1")), ("W_hat", ("D", "E"))),
    codes=("codes",),
    axes={"D": "row", "E": "column"},
    reference=quantized(),
    build=quantized,
    cases=weight_cases,
    variations=(
        _one(_TENSOR, _ROW_HINTS, top=lambda W: W.abs().amax().expand(len(W), 1)),
        _one(_TENSOR, _ROW_HINTS, top=lambda W: W.abs().amax()),
        _one(_TENSOR, _ROW_HINTS, top=lambda W: W.abs().amax((0, 1), keepdim=True)),
        _one(_COLUMN, _ROW_HINTS, top=lambda W: W.abs().amax(0, keepdim=True)),
        *(Variation(_FLAT, quantized(top=_flat, **clip), _ROW_HINTS, _does_not_meet) for clip in clips()[:2]),
        *_however_clipped(_FIRST, _ROW_HINTS, 2, top=lambda W: W[:1].abs().amax().expand(len(W), 1)),
        *_however_clipped(_ABS, _SIGN_HINTS, top=lambda W: W.amax(1, keepdim=True)),
        *_however_clipped(_LATE_ABS, _SIGN_HINTS, top=lambda W: W.amax(1, keepdim=True).abs()),
        *_however_clipped(_SMALLEST, _SIGN_HINTS, 2, top=lambda W: W.amin(1, keepdim=True).abs()),
        *_however_clipped(_MEAN, _TYPICAL_HINTS, 2, top=lambda W: W.abs().mean(1, keepdim=True)),
        *_however_clipped(_ROOT, _TYPICAL_HINTS, 2, top=lambda W: W.square().mean(1, keepdim=True).sqrt()),
        _one("the scale is always 1", _SPREAD_HINTS, top=lambda W: torch.ones_like(W[:, :1]), count=lambda bits: 1),
        _one(_SUM, _SPREAD_HINTS, top=lambda W: W.abs().sum(1, keepdim=True)),
        *_however_clipped(_MIDDLE, _SPREAD_HINTS, 2, top=lambda W: _range(W) / 2),
        *(
            variation
            for times in (1, 2, 3)
            for variation in _however_clipped(_STD, _SPREAD_HINTS, 2, top=lambda W, times=times: times * _std(W))
        ),
        _one(_DOUBLE, _SPREAD_HINTS, top=lambda W: 2 * W.abs().amax(1, keepdim=True)),
        *(
            _one(_PERCENTILE, _TYPICAL_HINTS, top=lambda W, p=p: torch.quantile(W.abs(), p, dim=1, keepdim=True))
            for p in (0.99, 0.999, 0.95, 0.9)
        ),
        _one(_ZEROS, _ZERO_HINTS, fill=lambda scale: scale),
        _one(
            "one row of zeros sets the scale of all rows to 1",
            _ZERO_HINTS,
            fill=lambda scale: torch.ones_like(scale) if (scale == 0).any() else scale,
        ),
        _one(_ZERO_SCALE, _ZERO_HINTS, fill=lambda scale: scale, code=lambda W, s: (W / s).round().nan_to_num(0)),
        *(
            _one(f"a row of zeros has the scale {least:g}, not 1", _ZERO_HINTS, fill=lambda s, m=least: s.clamp(min=m))
            for least in (1e-5, 1e-4, 1e-3)
        ),
        *(
            _one(
                f"a number, {more:g}, is added to every scale, against zeros", _ZERO_HINTS, fill=lambda s, m=more: s + m
            )
            for more in (1e-6, 1e-5, 1e-4, 1e-3)
        ),
        _one("a row of zeros has the scale 1 / qmax, not 1", _ZERO_HINTS, top=_or_one),
        *_however_clipped(_ONE_TOO_MANY, _LEVEL_HINTS, count=lambda bits: 2 ** (bits - 1)),
        *_however_clipped(_SIGN_BIT, _LEVEL_HINTS, count=all_codes),
        _one(_SIGN_BIT, _LEVEL_HINTS, count=all_codes, clip=between(lambda bits: -all_codes(bits), all_codes)),
        *_however_clipped(_SIGN_BIT, _LEVEL_HINTS, 2, count=lambda bits: 2**bits),
        *_however_clipped(_HALF, _LEVEL_HINTS, 2, count=lambda bits: (2**bits - 1) / 2),
        *(
            _one(_COARSE, _LEVEL_HINTS, count=count)
            for count in (lambda bits: 2 ** (bits - 2), lambda bits: max(2 ** (bits - 2) - 1, 1))
        ),
        _one(XOR, POWER_HINTS, count=by_xor, clip=unclipped),
        _one(XOR, POWER_HINTS, count=lambda bits: by_xor(bits + 1), clip=unclipped),
        _one(XOR, POWER_HINTS, count=by_xor, clip=between(lambda bits: -by_xor(bits), by_xor)),
        _one(_NO_NEGATIVE, _LEVEL_HINTS, clip=between(lambda bits: 0, all_codes)),
        *_however_clipped(_EIGHT, _LEVEL_HINTS, count=lambda bits: 127),
        *(
            _one(
                _ASYMMETRIC,
                _ASYMMETRIC_HINTS,
                top=top,
                count=all_codes,
                zero=zero,
                clip=between(low, high),
            )
            for top, point in ((_range, _zero), (_range_with_zero, _zero_inside))
            for zero, low, high in (
                (point, lambda bits: 0, all_codes),
                (_signed(point), lowest_code, largest_code),
            )
        ),
        _one(_TRUNCATED, _ROUND_HINTS, code=lambda W, scale: (W / scale).trunc()),
        _one(_DOWN, _ROUND_HINTS, code=lambda W, scale: (W / scale).floor()),
        _one("codes are rounded up, not to the nearest", _ROUND_HINTS, code=lambda W, scale: (W / scale).ceil()),
        _one("codes are not rounded: they are no whole numbers", _ROUND_HINTS, code=lambda W, scale: W / scale),
        _one("the weights are rounded before the division by the scale", _ROUND_HINTS, code=lambda W, s: W.round() / s),
        _one("the sign of the weights is lost", _SIGN_HINTS, code=lambda W, scale: (W.abs() / scale).round()),
        *(
            _one(
                "the scale is rounded to a power of two",
                _SCALE_HINTS,
                fill=lambda scale, to=to: 2.0 ** to(torch.log2(scale_filled(scale))),
            )
            for to in (torch.ceil, torch.round)
        ),
        _one("the weights are multiplied by the scale, not divided", _SCALE_HINTS, code=lambda W, s: (W * s).round()),
        _one("the way back divides: W_hat is codes * scale", _BACK_HINTS, back=lambda codes, scale, W: codes / scale),
        _one("what is returned for W_hat is W itself, not quantized", _BACK_HINTS, back=lambda codes, scale, W: W),
        _one("the codes are returned for W_hat, without the scale", _BACK_HINTS, back=lambda codes, scale, W: codes),
        _one(_INVERSE, _SCALE_HINTS, show=lambda codes, scale, W_hat, bits: (codes, 1 / scale, W_hat)),
        _one(_RANGE, _SCALE_HINTS, show=lambda codes, scale, W_hat, bits: (codes, scale * largest_code(bits), W_hat)),
        _one(
            "scale and W_hat are those of weights brought to -1 .. 1, not of W",
            _SCALE_HINTS,
            show=lambda codes, scale, W_hat, bits: (
                *(codes, torch.ones_like(scale) / largest_code(bits), codes / largest_code(bits)),
            ),
        ),
        *(
            _one(
                "the codes are moved so that none is negative: codes go from -qmax to qmax",
                _ASYMMETRIC_HINTS,
                show=lambda codes, scale, W_hat, bits, by=by: (codes + by(bits), scale, W_hat),
            )
            for by in (largest_code, lambda bits: -lowest_code(bits), lambda bits: 128)
        ),
        _one(
            "codes and W_hat have changed places",
            _ORDER_HINTS,
            show=lambda codes, scale, W_hat, bits: (W_hat, scale, codes),
        ),
    ),
    hints=(
        "Take W = [[6.0, -4.0, 1.5]] and 3 bits: scale 2, codes 3, -2, 1, W_hat 6, -4, 2.",
        "Four steps: the largest |weight| of each row, divided by qmax (or 1 where it is 0), is the scale; round"
        " W / scale; clip; multiply by the scale.",
    ),
    shape_hint="codes and W_hat are shaped as W, (D, E); scale has one number for each row and keeps its axis: (D, 1).",
)

TASKS = (quantize_per_channel, static_scale)
