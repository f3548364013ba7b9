"""The exercises of notebook 10: the softmax of two blocks merged, and attention in tiles."""

import math
from collections.abc import Callable
from typing import Any

import torch

from mha_course.checks.task import Task, Variation
from mha_course.checks.tasks_10_steps import Array, Block, gap, merge_cases, merge_numbers, merged
from mha_course.checks.tasks_10_tiled import tiled_attention


def _stand_in(m: Array) -> Array:
    return m.masked_fill(m == -math.inf, 0.0)


def _plain_sum(a: Array, l1: Array, b: Array, l2: Array, m: Array) -> Array:
    return l1 + l2


def _by_own(o: Array, den: Array, own: Array) -> Array:
    return o / own


def _as_it_is(o: Array, den: Array, own: Array) -> Array:
    return o


def _replaced(by: float) -> Callable[[Array, Array, Array], Array]:
    """The new maximum, a number in place of -inf."""
    return lambda m, m1, m2: m.masked_fill(m == -math.inf, by)


def _winner(m1: Array, l1: Array, o1: Array, m2: Array, l2: Array, o2: Array) -> Block:
    first = m1 >= m2
    return torch.where(first, m1, m2), torch.where(first, l1, l2), torch.where(first[:, None], o1, o2)


def _for_all_rows(m1: Array, l1: Array, o1: Array, m2: Array, l2: Array, o2: Array) -> Block:
    if bool(m1.isinf().any()):
        return m2, l2, o2
    if bool(m2.isinf().any()):
        return m1, l1, o1
    return merged()(m1, l1, o1, m2, l2, o2)


_FACTOR_HINTS = (
    "l1 was summed with m1 subtracted: what is it once m is subtracted instead, which may be larger?",
    "A block's sum, and its share of the output, get the factor e^(m1 - m), the other block's e^(m2 - m).",
)
_WEIGHT_HINTS = (
    "Give both blocks the same maximum, and give the first ten times as many keys: does it count more?",
    "The weight of a block's output is its sum times its factor: the same product that goes into the new sum.",
)
_MAXIMUM_HINTS = (
    "Print m1, m2 and your m for one row: which of the two should it be?",
    "The new maximum is the larger of the two, row by row, in every step and in what you return.",
)
_SUM_HINTS = (
    "Merge a block with one that sees no key, and with one whose maximum lies 5 below: what is l?",
    "Each of the two sums gets its factor before they are added.",
)
_DIVIDE_HINTS = (
    "Let all values be 1: both outputs are 1, and so should the merged one be.",
    "Divide the weighted sum of the outputs by the sum of their weights, the new l, once.",
)
_OVERFLOW_HINTS = (
    "Print e^800 in float64, and e^-800: what is left of your quotient?",
    "Subtract the new maximum before you take an exponential: no exponent is above 0 then.",
)
_EMPTY = "a row in which neither block sees a key holds NaN"
_EMPTY_HINTS = (
    "Take a row with m1 = m2 = -inf: what is -inf - (-inf), and what is 0 / 0?",
    "A block that sees no key has the factor 0, and a sum of 0 is no denominator: replace it, by 1 for example.",
)
_STAYS = "the maximum of a row that sees no key should stay -inf"
_STAYS_HINTS = (
    "Look at m in a row with m1 = m2 = -inf.",
    "Use a stand-in for the exponentials alone, under a name of its own, and return the larger of m1 and m2.",
)
# The block whose maximum is kept needs no factor, and so it often gets none.
_OF_ONE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("m1", {"top": lambda m1, m2: m1}),
    ("m1", {"top": lambda m1, m2: m1, "rescale": lambda a, b: (torch.ones_like(a), b), "gap": torch.sub}),
    ("m2", {"top": lambda m1, m2: m2}),
    ("m2", {"top": lambda m1, m2: m2, "rescale": lambda a, b: (a, torch.ones_like(b)), "gap": torch.sub}),
)
_DIFFERENT = "the two factors have changed places: each block is rescaled with the maximum of the other"

merge_blocks = Task(
    name="merge_blocks",
    gradients=False,
    arguments=("m1", "l1", "o1", "m2", "l2", "o2"),
    results=(("m", ("T",)), ("l", ("T",)), ("o", ("T", "D"))),
    reference=merged(),
    build=merged,
    steps=merge_numbers,
    cases=merge_cases,
    variations=(
        Variation(
            "no block is rescaled to the new maximum: sums and outputs are joined as if the maxima were equal",
            merged(rescale=lambda a, b: (torch.ones_like(a), torch.ones_like(b))),
            _FACTOR_HINTS,
        ),
        Variation(
            "the first block is not rescaled to the new maximum",
            merged(rescale=lambda a, b: (torch.ones_like(a), b)),
            _FACTOR_HINTS,
        ),
        Variation(
            "the second block is not rescaled to the new maximum",
            merged(rescale=lambda a, b: (a, torch.ones_like(b))),
            _FACTOR_HINTS,
        ),
        Variation(_DIFFERENT, merged(rescale=lambda a, b: (b, a)), _FACTOR_HINTS),
        Variation(
            "both blocks are rescaled with the factor of the first",
            merged(rescale=lambda a, b: (a, a)),
            _FACTOR_HINTS,
        ),
        Variation(
            "both blocks are rescaled with the factor of the second",
            merged(rescale=lambda a, b: (b, b)),
            _FACTOR_HINTS,
        ),
        Variation(
            "the factors have the wrong sign: e^(m - m1) instead of e^(m1 - m)",
            merged(factor=lambda gap: (-gap).exp()),
            ("Is a factor ever above 1? It should not be.", _FACTOR_HINTS[1]),
        ),
        Variation(
            "the factors are powers of 2, the sums are of powers of e",
            merged(factor=torch.exp2),
            ("Which base do the two sums have? Look at that of your factors.", _FACTOR_HINTS[1]),
        ),
        *(
            Variation(
                "the outputs are weighted by the sums alone, without the exponentials of the maxima", fn, _WEIGHT_HINTS
            )
            for fn in (
                merged(weigh=lambda a, den: den, divide=_by_own),
                merged(weigh=lambda a, den: den),
            )
        ),
        Variation(
            "the outputs are weighted by the exponentials of the maxima alone, without l1 and l2",
            merged(weigh=lambda a, den: a, divide=_by_own),
            _WEIGHT_HINTS,
        ),
        Variation(
            "the outputs are taken as not yet divided by their sums: l1 and l2 are missing in the numerator",
            merged(weigh=lambda a, den: a),
            ("Let all values be 1: what are o1 and o2, and what should o be?", _WEIGHT_HINTS[1]),
        ),
        Variation(
            "the output is the mean of the two outputs, whatever their weights",
            merged(mix=lambda x, o1, y, o2: (o1 + o2) / 2, divide=_as_it_is),
            _WEIGHT_HINTS,
        ),
        Variation(
            "the two outputs are added, whatever their weights",
            merged(mix=lambda x, o1, y, o2: o1 + o2, divide=_as_it_is),
            _WEIGHT_HINTS,
        ),
        Variation(
            "each output is divided by its own sum before they are added, not by the new sum",
            merged(weigh=lambda a, den: a / den, divide=_as_it_is),
            ("Let all values be 1: what are o1 and o2, and what should o be?", _DIVIDE_HINTS[1]),
        ),
        Variation(
            "one maximum is used for all rows, not one for each: a row far below it is lost",
            merged(top=lambda m1, m2: torch.maximum(m1, m2).amax().expand_as(m1)),
            _MAXIMUM_HINTS,
        ),
        *(
            Variation(f"the new maximum is {name}, not the larger of m1 and m2", merged(**changes), _MAXIMUM_HINTS)
            for name, changes in _OF_ONE
        ),
        Variation("m1 is returned, not the new maximum", merged(show=lambda m, m1, m2: m1), _MAXIMUM_HINTS),
        Variation("m2 is returned, not the new maximum", merged(show=lambda m, m1, m2: m2), _MAXIMUM_HINTS),
        Variation("the maxima are added: the new one is the larger of them", merged(top=torch.add), _MAXIMUM_HINTS),
        Variation(
            "the new maximum is the mean of the two, not the larger",
            merged(top=lambda m1, m2: (m1 + m2) / 2),
            _MAXIMUM_HINTS,
        ),
        *(
            Variation(
                "the new maximum is the smaller of the two", merged(top=torch.minimum, gap=exponent), _MAXIMUM_HINTS
            )
            for exponent in (gap, lambda m_i, m: m_i - _stand_in(m))
        ),
        Variation(
            "the sum of the two outputs is not divided by the new sum",
            merged(divide=_as_it_is),
            _DIVIDE_HINTS,
        ),
        Variation(
            "the output is divided by the new sum twice",
            merged(divide=lambda o, den, own: o / den / den),
            _DIVIDE_HINTS,
        ),
        Variation(
            "the two sums l1 and l2 are added as they are, without their factors, though the outputs have them",
            merged(total=_plain_sum, divide=_by_own),
            _SUM_HINTS,
        ),
        Variation(
            "the two sums l1 and l2 are added as they are, without their factors, and the output divided by that",
            merged(total=_plain_sum),
            _SUM_HINTS,
        ),
        *(
            Variation(
                "exponentials are taken of the maxima themselves: at 800 they overflow, at -800 they vanish",
                merged(gap=lambda m_i, m: m_i, total=total, divide=_by_own),
                _OVERFLOW_HINTS,
            )
            for total in (
                lambda a, l1, b, l2, m: (a * l1 + b * l2) / m.exp(),
                lambda a, l1, b, l2, m: (a * l1 + b * l2) / _stand_in(m).exp(),
            )
        ),
        Variation(
            "exponentials are taken of the maxima themselves, none is subtracted: l is not a sum of e^(score - m)",
            merged(gap=lambda m_i, m: m_i),
            _OVERFLOW_HINTS,
        ),
        Variation(
            "the block with the larger maximum takes all, the other one is lost",
            _winner,
            (
                "Merge two blocks whose maxima are nearly equal: how much should each count?",
                "Both blocks count, each by its sum times its factor.",
            ),
        ),
        Variation(
            "one row that sees no key decides for all rows: the whole block is left out",
            _for_all_rows,
            (
                "Look for any(): which rows does it decide about?",
                "Decide row by row: torch.where, or a factor of 0, leaves the other rows as they are.",
            ),
        ),
        Variation(
            f"{_STAYS}: it is 0",
            merged(show=_replaced(0)),
            _STAYS_HINTS,
        ),
        *(
            Variation(f"{_STAYS}: it is a large negative number", merged(show=_replaced(by)), _STAYS_HINTS)
            for by in (-1e9, torch.finfo(torch.float64).min)
        ),
        Variation(_EMPTY, merged(gap=torch.sub), _EMPTY_HINTS),
        Variation(_EMPTY, merged(nonzero=lambda den: den), _EMPTY_HINTS),
        Variation(_EMPTY, merged(gap=torch.sub, nonzero=lambda den: den), _EMPTY_HINTS),
    ),
    hints=(
        "Merge two blocks of one key each by hand, then one with a block that sees no key: m = -inf, l = 0, o = 0.",
        "Three steps: the larger maximum; a sum of two sums, each with its factor; an output of two, each with its"
        " sum and its factor, divided by the new sum.",
    ),
    shape_hint="m and l have one number for each query, (T,); beside o, (T, D), they need a second axis: l[:, None].",
)

TASKS = (merge_blocks, tiled_attention)
