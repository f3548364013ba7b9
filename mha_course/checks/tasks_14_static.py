"""The second exercise of notebook 14: a static scale, calibrated on batches and used for a new one."""

from typing import Any

import torch

from mha_course.checks.task import Task, Variation
from mha_course.checks.tasks_14_batches import (
    asymmetric,
    batch_cases,
    calibrated,
    coded,
    each_batch,
    ends,
    features,
    grown,
    moving,
    percentile,
    ranked,
    tokens,
)
from mha_course.checks.tasks_14_steps import (
    POWER_HINTS,
    XOR,
    all_codes,
    between,
    by_xor,
    clips,
    largest_code,
    lowest_code,
    unclipped,
    wrapped,
    wrapped_to_bits,
)

_BATCH_HINTS = (
    "Multiply one batch by 10, then another: does the scale change for each of them, at percent = 100?",
    "Take one percentile of the numbers of all batches together: batches.abs().flatten().",
)
_PERCENT_HINTS = (
    "Take the numbers 0 to 100 as one batch, and percent = 90: the range should be 90.",
    "torch.quantile(numbers, percent / 100) gives the number that percent of them do not exceed.",
)
_SIGN_HINTS = (
    "Turn the sign of all batches: does the scale change? It should not.",
    "The percentile is that of |number|: abs() first, then torch.quantile.",
)
_STATIC_HINTS = (
    "Multiply x by 10: does the scale change? It should not.",
    "Static means that the scale is fixed before x comes: use the batches alone.",
)
_CLIP_HINTS = (
    "Print the smallest and the largest code for bits = 8: they should be -127 and 127.",
    "After rounding, .clamp(-qmax, qmax), before any cast: numbers of x may lie beyond the range.",
)
_LEVEL_HINTS = (
    "Which code does a number get that lies exactly at the end of the range? It should be qmax.",
    "scale = range / qmax, with qmax = 2**(bits - 1) - 1: one bit is the sign.",
)
_AXIS_HINTS = (
    "Print the shape of what torch.quantile returns: there should be no axis left.",
    "One scale for everything: flatten the batches first, and give torch.quantile no dim.",
)
_ROUND_HINTS = (
    "Let scale be 1 and x 0.9 and -0.9: which codes come out? The nearest ones are 1 and -1.",
    "Round x / scale to the nearest whole number, torch.round, before any cast: a cast cuts the fraction off.",
)
_INPUT_HINTS = (
    "Print x / scale before you round: which numbers does the clip change?",
    "First x / scale, then round, then .clamp(-qmax, qmax).",
)
_SCALE_HINTS = (
    "Which number is one step of your grid worth, in units of x?",
    "scale = range / qmax; codes = round(x / scale), clipped.",
)
_CODE_HINTS = (
    "Print what you return: codes are whole numbers, -qmax to qmax.",
    "Return scale, codes; codes * scale is what they stand for, and is not asked for.",
)
_ASYMMETRIC_HINTS = (
    "Which code does the number 0 get? It should be 0.",
    "The grid is symmetric: the percentile of |number| gets qmax, and there is no zero point.",
)

_NO_CLIP = "numbers of x beyond the range are not clipped: their codes are larger than qmax"
_WRAP = "numbers of x beyond the range are not clipped: the cast to int8 wraps round, and 128 becomes -128"
_WRAP_BITS = "numbers of x beyond the range are not clipped: the lowest bits of their codes are kept, and 8 becomes -8"
_ENDS = "a percentile is taken at each end, of numbers with their sign, and then the larger: take one, of |number|"
_LARGEST = "the largest numbers along an axis are taken, and then a percentile of these"
_LEFT_OUT = "one batch is left out: the percentile is that of all numbers of all batches"
_STD = "the range comes from the standard deviation of all numbers, not from a percentile"
_OTHER_INPUT = "the codes are those of a batch seen before, not of x"
_LOWEST = "the lower end is -qmax - 1, one code too many: codes go from -qmax to qmax"
_ONE_SIDE = "codes are clipped at one end alone: those of large negative numbers, or of large positive ones, are not"
_NO_NEGATIVE = "codes of negative numbers are clipped to 0: codes go from -qmax to qmax"
_MOVING = "a moving average of the batches is taken, not the percentile of all numbers together"
_ABS = "abs() is missing: the percentile is that of numbers with their sign"
_SHARE = "the range is a share of the maximum, percent / 100 times, not a percentile"
_MAXIMUM = "percent is not used: the range is the maximum of all numbers"
_FIXED = "percent is not used: the range is always the percentile"
_NO_FRACTION = "percent is not divided by 100: torch.quantile takes a number from 0 to 1"
_WRONG_END = "the percentile is counted from the wrong end: 100 - percent"
_TOO_HIGH = "half of what percent leaves out is clipped: the percentile is that of one end, (100 + percent) / 2"
_RANK = "the percentile is one number off: count the ranks of the sorted numbers"
_FEATURE = "the percentile is taken for each feature, and then the largest or the mean of them"
_OWN_SCALE = "each feature has a scale of its own: one is asked for"
_DYNAMIC = "the scale is taken from the new batch x: that is dynamic, not static"
_TOO = "x takes part in the calibration: the scale must not depend on the new batch"
_GROWS = "the range grows where the new batch x goes beyond it: the scale must not depend on x"
_ONE_TOO_MANY = "the range gets the code 2**(bits - 1), one too many: 2**(bits - 1) - 1 is qmax"
_SIGN_BIT = "the grid is finer than bits allow, with codes up to 2**bits on each side: the sign is not counted"
_HALF = "half of 2**bits - 1 is no whole number: the range gets 2**(bits - 1) - 1, that is qmax"
_EIGHT = "bits is not used: the grid is always that of 8 bits"
_ASYMMETRIC = "the grid is asymmetric, from a smallest to a largest number, with a zero point"
_RANGE = "the range is returned for the scale, not divided by qmax"
_INVERSE = "the inverse of the scale is returned: qmax / range, not range / qmax"
_BACK = "the codes are returned times the scale: quantized and back, not the codes"


def _one(fault: str, hints: tuple[str, str], **changes: Any) -> Variation:
    return Variation(fault, calibrated(**changes), hints)


def _however_clipped(fault: str, hints: tuple[str, str], ways: int = 4, **changes: Any) -> tuple[Variation, ...]:
    """A fault that takes codes beyond the grid: clipped, not clipped or wrapped round, it is the same one."""
    return tuple(Variation(fault, calibrated(**changes, **clip), hints) for clip in clips()[:ways])


def _left_out(kept: slice) -> Variation:
    """One of several batches left out; of a single one, anything."""
    fn = calibrated(see=lambda batches, x: batches[kept] if len(batches) > 1 else batches)
    return Variation(_LEFT_OUT, fn, _BATCH_HINTS, lambda sizes: sizes["B"] == 1)


static_scale = Task(
    name="static_scale",
    gradients=False,
    arguments=("batches", "x", "bits", "percent"),
    results=(("scale", ()), ("codes", ("T", "E"))),
    codes=("codes",),
    axes={"T": "token", "E": "feature"},
    reference=calibrated(),
    build=calibrated,
    cases=batch_cases,
    variations=(
        _one("only the last batch counts", _BATCH_HINTS, see=lambda batches, x: batches[-1:]),
        _one("only the first batch counts", _BATCH_HINTS, see=lambda batches, x: batches[:1]),
        _one(
            "the percentiles of the batches are averaged: take one of all numbers together",
            _BATCH_HINTS,
            top=each_batch(torch.mean),
        ),
        *(
            _one(
                f"the {which} of the percentiles of the batches is taken, not one of all numbers together",
                _BATCH_HINTS,
                top=each_batch(join),
            )
            for which, join in (("largest", torch.max), ("smallest", torch.min), ("median", torch.median))
        ),
        _one(
            "the largest numbers of the batches are averaged, and percent is not used",
            _BATCH_HINTS,
            top=lambda sizes, percent: sizes.flatten(1).amax(1).mean(),
        ),
        *(_one(_MOVING, _BATCH_HINTS, top=each_batch(moving(decay))) for decay in (0.9, 0.1, 0.99, 0.01, 0.5)),
        _one(_MAXIMUM, _PERCENT_HINTS, top=lambda sizes, percent: sizes.max()),
        *(
            _one(f"{_FIXED} {p:g}", _PERCENT_HINTS, top=lambda sizes, percent, p=p: percentile(sizes, p))
            for p in (99, 99.9, 99.99, 95, 90, 50)
        ),
        _one(_WRONG_END, _PERCENT_HINTS, top=lambda sizes, percent: percentile(sizes, 100 - percent)),
        _one(_TOO_HIGH, _PERCENT_HINTS, top=lambda sizes, percent: percentile(sizes, (100 + percent) / 2)),
        *(_one(_RANK, _PERCENT_HINTS, top=ranked(shift)) for shift in (-1, 1)),
        _one(_NO_FRACTION, _PERCENT_HINTS, top=lambda sizes, percent: torch.quantile(sizes.flatten(), percent)),
        _one(
            "percent is divided by 100 twice",
            _PERCENT_HINTS,
            top=lambda sizes, percent: percentile(sizes, percent / 100),
        ),
        _one(_SHARE, _PERCENT_HINTS, top=lambda sizes, percent: sizes.max() * percent / 100),
        _one(_ABS, _SIGN_HINTS, size=lambda batches: batches),
        _one(_ENDS, _SIGN_HINTS, size=lambda batches: batches, top=lambda b, p: ends(b, 100 - p, p)),
        _one(_ENDS, _SIGN_HINTS, size=lambda batches: batches, top=lambda b, p: ends(b, 50 - p / 2, 50 + p / 2)),
        _one("squares are taken for |number|, without the root", _SIGN_HINTS, size=torch.square),
        _one(
            "the percentile is that of positive numbers alone",
            _SIGN_HINTS,
            size=lambda batches: batches,
            top=lambda sizes, percent: percentile(sizes[sizes > 0], percent),
        ),
        _one(_FEATURE, _AXIS_HINTS, top=features(torch.max)),
        _one(_FEATURE, _AXIS_HINTS, top=features(torch.mean)),
        _one(_OWN_SCALE, _AXIS_HINTS, top=features(lambda tops: tops)),
        _one(
            "the percentile is taken for each token, and then the largest of them", _AXIS_HINTS, top=tokens(torch.max)
        ),
        _one("the percentile is taken for each token, and then the mean of them", _AXIS_HINTS, top=tokens(torch.mean)),
        *(
            _one(_LARGEST, _AXIS_HINTS, top=lambda sizes, percent, axes=axes: percentile(sizes.amax(axes), percent))
            for axes in (-1, (-2, -1), 0)
        ),
        *(_left_out(kept) for kept in (slice(1, None), slice(0, -1))),
        _one("the batches are averaged first", _BATCH_HINTS, see=lambda batches, x: batches.mean(0)),
        _one("the batches are averaged first", _BATCH_HINTS, size=lambda batches: batches.abs().mean(0)),
        *(
            _one(_STD, _PERCENT_HINTS, size=lambda b: b, top=lambda sizes, percent, times=times: times * sizes.std())
            for times in (1, 2, 3)
        ),
        _one("the range is the mean of |number|", _PERCENT_HINTS, top=lambda sizes, percent: sizes.mean()),
        *_however_clipped(_DYNAMIC, _STATIC_HINTS, 2, see=lambda batches, x: x),
        _one(
            f"{_DYNAMIC}, and percent is not used",
            _STATIC_HINTS,
            see=lambda batches, x: x,
            top=lambda sizes, percent: sizes.max(),
        ),
        _one(_TOO, _STATIC_HINTS, see=lambda batches, x: torch.cat([batches, x[None]])),
        *_however_clipped(_GROWS, _STATIC_HINTS, 2, late=grown),
        _one(_NO_CLIP, _CLIP_HINTS, clip=unclipped),
        _one(_WRAP, _CLIP_HINTS, clip=wrapped),
        _one(_WRAP_BITS, _CLIP_HINTS, clip=wrapped_to_bits),
        _one(
            "numbers of x beyond the range get the code 0, not that of the end",
            _CLIP_HINTS,
            clip=lambda codes, bits: torch.where(codes.abs() > largest_code(bits), 0, codes),
        ),
        Variation(
            "x is clipped to -qmax .. qmax before the division by the scale",
            coded(lambda batches, x, top, scale, most: (x.clamp(-most, most) / scale).round()),
            _INPUT_HINTS,
        ),
        Variation(
            "x / scale is clipped to -1 .. 1, which are the codes next to 0",
            coded(lambda batches, x, top, scale, most: ((x / scale).clamp(-1, 1) * most).round()),
            _INPUT_HINTS,
        ),
        *(
            Variation(
                _OTHER_INPUT,
                coded(
                    lambda batches, x, top, scale, most, which=which: (
                        (batches[which] / scale).round().clamp(-most, most)
                    )
                ),
                _INPUT_HINTS,
            )
            for which in (-1, 0)
        ),
        _one(_LOWEST, _CLIP_HINTS, clip=between(lowest_code, largest_code)),
        _one(_ONE_SIDE, _CLIP_HINTS, clip=lambda codes, bits: codes.clamp(max=largest_code(bits))),
        _one(_ONE_SIDE, _CLIP_HINTS, clip=lambda codes, bits: codes.clamp(min=-largest_code(bits))),
        _one(_NO_NEGATIVE, _CLIP_HINTS, clip=between(lambda bits: 0, largest_code)),
        _one(_NO_NEGATIVE, _CLIP_HINTS, clip=between(lambda bits: 0, all_codes)),
        _one(
            "codes are clipped to those of 8 bits, whatever bits says",
            _CLIP_HINTS,
            clip=between(lambda bits: -127, lambda bits: 127),
        ),
        *_however_clipped(_ONE_TOO_MANY, _LEVEL_HINTS, count=lambda bits: 2 ** (bits - 1)),
        *_however_clipped(_SIGN_BIT, _LEVEL_HINTS, count=all_codes),
        _one(_SIGN_BIT, _LEVEL_HINTS, count=all_codes, clip=between(lambda bits: -all_codes(bits), all_codes)),
        *_however_clipped(_SIGN_BIT, _LEVEL_HINTS, 2, count=lambda bits: 2**bits),
        *_however_clipped(_HALF, _LEVEL_HINTS, 2, count=lambda bits: all_codes(bits) / 2),
        _one(_EIGHT, _LEVEL_HINTS, count=lambda bits: 127),
        _one(_EIGHT, _LEVEL_HINTS, count=lambda bits: 127, clip=between(lambda bits: -127, lambda bits: 127)),
        _one(XOR, POWER_HINTS, count=by_xor, clip=unclipped),
        _one(XOR, POWER_HINTS, count=by_xor, clip=between(lambda bits: -by_xor(bits), by_xor)),
        *(Variation(_ASYMMETRIC, asymmetric(signed), _ASYMMETRIC_HINTS) for signed in (False, True)),
        _one(
            "the fraction is cut off: codes are truncated, not rounded", _ROUND_HINTS, code=lambda x, s: (x / s).trunc()
        ),
        Variation(
            "the fraction is cut off: codes are truncated, not rounded",
            coded(lambda batches, x, top, scale, most: (x.clamp(-top, top) / scale).trunc()),
            _ROUND_HINTS,
        ),
        _one("codes are rounded down, not to the nearest", _ROUND_HINTS, code=lambda x, scale: (x / scale).floor()),
        _one("codes are rounded up, not to the nearest", _ROUND_HINTS, code=lambda x, scale: (x / scale).ceil()),
        _one("codes are not rounded: they are no whole numbers", _ROUND_HINTS, code=lambda x, scale: x / scale),
        _one("x is rounded before the division by the scale", _ROUND_HINTS, code=lambda x, scale: x.round() / scale),
        _one("x is multiplied by the scale, not divided", _SCALE_HINTS, code=lambda x, scale: (x * scale).round()),
        _one(
            "x is divided by the range, not by the scale",
            _SCALE_HINTS,
            count=lambda bits: 1,
            show=lambda scale, codes, bits: (scale / largest_code(bits), codes),
        ),
        _one(_RANGE, _SCALE_HINTS, show=lambda scale, codes, bits: (scale * largest_code(bits), codes)),
        _one(_INVERSE, _SCALE_HINTS, show=lambda scale, codes, bits: (1 / scale, codes)),
        _one(_BACK, _CODE_HINTS, show=lambda scale, codes, bits: (scale, codes * scale)),
        _one("scale and codes have changed places", _CODE_HINTS, show=lambda scale, codes, bits: (codes, scale)),
    ),
    hints=(
        "Take batches = torch.tensor([[[6.0, -4.0]], [[2.0, 0.0]]]), x = torch.tensor([[7.0, -3.5]]), 3 bits and"
        " percent = 100: scale 2, codes 3 and -2.",
        "Four steps: the percentile of |number| over all batches is the range; range / qmax; round x / scale; clip.",
    ),
    shape_hint="scale is a single number, a tensor without axes; codes are shaped as x, (T, E).",
)
