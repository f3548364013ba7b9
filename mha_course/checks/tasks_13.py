"""The exercises of notebook 13: a softmax that works in every format, and a step of mixed precision training."""

import math
from collections.abc import Callable
from functools import partial

import torch

from mha_course.checks.task import Task, Variation
from mha_course.checks.tasks_13_softmax import (
    NONE,
    Scores,
    Step,
    along,
    built,
    by_logarithm,
    by_rounded_logarithm,
    each,
    hardest,
    highest,
    log_weights,
    normalised,
    one_by_one,
    plus,
    reference,
    softmax_cases,
    taken_twice,
    turned,
    unless_one_is_empty,
)
from mha_course.checks.tasks_13_step import training_step

_MAX_HINTS = (
    "Take a row of scores 0 and 100 in float16: print what exp gives.",
    "Subtract from each row its maximum, scores.amax(-1, keepdim=True), before exp: no weight changes by that.",
)
_ROW_HINTS = (
    "Print the shape of the maximum: is there one for each row?",
    "Take the maximum along the last axis alone and keep that axis: amax(-1, keepdim=True).",
)
_EMPTY_HINTS = (
    "Take a row of -inf alone: print its maximum, and the row less its maximum.",
    "Where the maximum of a row is -inf, subtract 0 instead, and divide by 1 where the sum is 0.",
)
_AXIS_HINTS = ("Print the sums of your weights along the last axis.", "Sum along the last axis: dim=-1.")
_SUM_HINTS = (
    "Print the sums of your weights along the last axis: all 1?",
    "Divide each row by its own sum, e.sum(-1, keepdim=True).",
)
_EXP_HINTS = (
    "Take the scores 0, 1: their weights are 0.27 and 0.73.",
    "Take torch.exp of the shifted scores, and divide by the sum.",
)
_OVER_OTHERS = "the exponentials are summed along another axis, not along the keys"
_LENGTH = "the exponentials are divided by their length, not by their sum"
_ADDED = "a number is added to the sum: the weights of a row sum to less than 1"
_NO_MAX = "the maximum is not subtracted before exp"
_NAN = "rows that are -inf throughout give NaN: -inf less -inf, or 0 / 0"
_EQUAL = "rows that are -inf throughout give equal weights, expected 0"
_SMALL = "rows that are -inf throughout give NaN in float16: a tiny number against 0 / 0 is itself 0 there"


def _with_a_tiny(number: float) -> Callable[[Scores], Scores]:
    """Against 0 / 0, a number is added that not every format holds."""
    return built(lambda x: x - highest(x), total=partial(plus, number=number))


_TOTALS: tuple[tuple[str, Step], ...] = (
    ("the exponentials are not divided by their sum: the weights of a row do not sum to 1", torch.ones_like),
    ("the exponentials are divided by the sum of all, not by that of their row", torch.sum),
    (_OVER_OTHERS, lambda e: e.sum(-2, keepdim=True)),
    (_OVER_OTHERS, lambda e: e.sum(0, keepdim=True)),
    (_LENGTH, lambda e: e.norm(2, -1, True)),
    (_LENGTH, lambda e: e.norm(2, -1, True).clamp_min(1e-12)),
    *((_ADDED, partial(plus, number=number)) for number in (1, 0.1, 1e-2, 1e-3, 1e-4, 1e-5)),
)

stable_softmax = Task(
    name="stable_softmax",
    arguments=("scores",),
    results=(("weights", ("B", "T", "S")),),
    dtype="input",
    reference=reference,
    cases=softmax_cases,
    variations=(
        Variation(_NAN, lambda scores: scores.softmax(-1), _EMPTY_HINTS),
        Variation(_NAN, normalised(-1, torch.float32, torch.nan), _EMPTY_HINTS),
        Variation(_SMALL, _with_a_tiny(1e-9), _EMPTY_HINTS),
        Variation(_EQUAL, built(lambda x: (x - x.amax(-1, keepdim=True)).nan_to_num(neginf=NONE)), _EMPTY_HINTS),
        Variation(
            "rows in which any score is -inf become 0, expected only those that are -inf throughout",
            lambda scores: scores.softmax(-1).masked_fill((scores == NONE).any(-1, keepdim=True), 0),
            ("Take a row with one score of -inf: the others share the weight.", "Ask for all(-1), not for any(-1)."),
        ),
        *each(_NO_MAX, _MAX_HINTS, lambda x: x),
        *each(
            "one maximum of several rows is subtracted, not that of each row: rows far below it vanish",
            _ROW_HINTS,
            lambda x: x - x.max(),
            lambda x: x - x.amax((-2, -1), keepdim=True),
        ),
        *each("one row of -inf keeps all rows from being shifted: exp overflows", _ROW_HINTS, unless_one_is_empty),
        *each("the maximum is taken along another axis, not along the keys", _ROW_HINTS, along(-2), along(0)),
        *(
            Variation(
                "the sum is taken as a logarithm and added to large scores, in a type that rounds it away",
                fn,
                (
                    "Take two scores of 10000 in bfloat16, and print their logsumexp: where is log 2?",
                    "Subtract the maximum, then divide by the sum of the exponentials.",
                ),
            )
            for fn in (by_logarithm(None), by_logarithm(torch.float32), by_rounded_logarithm)
        ),
        *each(
            "the mean of each row is subtracted, not its maximum: exp still overflows",
            _MAX_HINTS,
            lambda x: x - x.mean(-1, keepdim=True),
            lambda x: x - x.mean(),
        ),
        *each(
            "the minimum of each row is subtracted, not its maximum: exp still overflows",
            _MAX_HINTS,
            lambda x: x - x.amin(-1, keepdim=True),
            lambda x: x - x.min(),
        ),
        *each(
            "another score of each row is subtracted, not its maximum: exp still overflows",
            _MAX_HINTS,
            lambda x: x - x[..., :1],
            lambda x: x - x[..., -1:],
            lambda x: x - x.median(-1, keepdim=True).values,
        ),
        *each(
            "the maximum is added, not subtracted",
            _MAX_HINTS,
            lambda x: x + highest(x),
            lambda x: x + x.amax(-1, keepdim=True),
        ),
        *each(
            "powers of 2 are taken, not of e: other weights",
            _EXP_HINTS,
            lambda x: (x - highest(x)) * math.log(2),
            lambda x: (x - x.amax(-1, keepdim=True)) * math.log(2),
        ),
        *each("the signs of the scores are turned: the smallest get the largest weights", _EXP_HINTS, turned),
        *each("the sigmoid is taken, not exp: other weights", _EXP_HINTS, torch.nn.functional.logsigmoid),
        *each(
            "the scores are divided by a square root first: other weights",
            (
                "Take the scores 0, 1: what are they after your first step?",
                "Leave the scores as they come: shift alone.",
            ),
            lambda x: (x - highest(x)) / math.sqrt(x.shape[-1]),
            lambda x: (x - x.amax(-1, keepdim=True)) / math.sqrt(x.shape[-1]),
        ),
        *each(
            "the largest absolute value is subtracted, not the maximum: rows below 0 vanish",
            (_MAX_HINTS[0], "Take the maximum of the scores with their signs, without abs()."),
            lambda x: x - highest(x.abs().masked_fill(x.isinf(), NONE)),
            lambda x: x - x.abs().amax(-1, keepdim=True),
        ),
        *each(
            "the maximum that is subtracted is never below 0: rows of low scores vanish",
            ("Take a row of scores around -10000: print what exp gives.", "Subtract the maximum whatever its sign."),
            lambda x: x - x.amax(-1, keepdim=True).clamp(min=0),
        ),
        *each(
            "scores are clamped, not shifted: large ones become equal",
            (
                "Take a row of 10000 and 9000: what is left of their difference?",
                "Subtract the maximum of each row: exp needs no limit then.",
            ),
            *(
                lambda x, low=low, high=high: x.clamp(low, high)
                for low, high in ((-10, 10), (-50, 50), (-80, 80), (-88, 88), (-100, 100), (None, 80))
            ),
        ),
        *each(
            "scores are divided by their maximum, not shifted: other weights",
            ("Take the scores 0, 1: what are they after your first step?", _MAX_HINTS[1]),
            lambda x: x / x.abs().amax(-1, keepdim=True),
            lambda x: x / x.amax(-1, keepdim=True),
        ),
        *(
            Variation(
                "the maximum is subtracted after exp, not before",
                built(lambda x: x, end=end, late=lambda e: e - e.amax(-1, keepdim=True)),
                _MAX_HINTS,
            )
            for end in ("nan stays", "0 for nan")
        ),
        *(
            Variation(
                f"the softmax is taken along {name}, not along the keys",
                normalised(axis, working, nan),
                _AXIS_HINTS,
            )
            for axis, name in ((-2, "the queries"), (0, "the samples"))
            for working in (None, torch.float32)
            for nan in (0.0, torch.nan)
        ),
        *(
            Variation(fault, built(shifted, end=end, total=total), _SUM_HINTS)
            for fault, total in _TOTALS
            for shifted in (lambda x: x - highest(x), lambda x: x - x.amax(-1, keepdim=True))
            for end in ("nan stays", "0 for nan", "0 for a sum of 0")
        ),
        Variation(
            "the sum is taken one by one in the type of the scores: in bfloat16 256 + 1 is 256",
            built(lambda x: x - highest(x), end="0 for a sum of 0", total=one_by_one),
            (
                "Add 1 to 256 in bfloat16.",
                "Let e.sum(-1, keepdim=True) add: it keeps more digits inside. Or add in float32.",
            ),
        ),
        *(
            Variation(
                "it computes in a smaller type than that of the scores: digits are lost",
                fn,
                (
                    "Print the type of each step for scores in float64.",
                    "Compute in the type of the scores or a larger one.",
                ),
            )
            for low in (torch.float16, torch.bfloat16, torch.float32)
            for fn in (
                normalised(-1, low, 0.0),
                *([normalised(-1, low, torch.nan)] if low != torch.float32 else []),
                built(lambda x: x - highest(x), low, "0 for a sum of 0"),
                built(lambda x: x - x.amax(-1, keepdim=True), low, "0 for nan"),
            )
        ),
        Variation(
            "the softmax is taken twice",
            taken_twice,
            ("Print the largest weight of a row with scores 0 and 100: is it 1?", "Take the softmax once."),
        ),
        *(
            Variation(
                "the logarithms of the weights are returned",
                log_weights(empty),
                ("Print a row: should weights be below 0?", "Take exp of it, or exp(scores - maximum) / sum."),
            )
            for empty in (None, 0.0)
        ),
        *(
            Variation(
                "the largest score of a row gets all the weight",
                hardest(empty),
                ("Take the scores 0, 1: their weights are 0.27 and 0.73.", "Take exp of the shifted scores."),
            )
            for empty in (False, True)
        ),
    ),
    hints=(
        "Take one row of two scores, in each format, and print what follows: maximum, difference, exp, sum, quotient.",
        "weights = exp(scores - maximum of the row) / sum, 0 for a row of -inf, in the type of the scores.",
    ),
    shape_hint="The weights have the shape of the scores: maximum and sum need keepdim=True.",
)

TASKS = (stable_softmax, training_step)
