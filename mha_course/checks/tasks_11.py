"""The exercises of notebook 11: a sliding window that costs its window, and linear attention with a state."""

import math
from collections.abc import Callable
from typing import Any

import torch

from mha_course.checks import attention_faults
from mha_course.checks.task import Growth, Task, Variation
from mha_course.checks.tasks_11_linear import linear_attention
from mha_course.checks.tasks_11_steps import (
    Array,
    at,
    past,
    rows_alone,
    slice_from_below_0,
    where,
    window_case,
    window_cases,
    window_numbers,
    windowed,
    zeros_outside,
)

Sees = Callable[[Array, Array, int], Array]


def _two_blocks(sees: Sees, least: int) -> Sees:
    """What begins with the block before the own one, or that many keys after its first."""
    return lambda t, s, w: sees(t, s, w) & (s >= t // w * w - w + least)


def _scaled(factor: attention_faults.Factor) -> Callable[[Array, Array, Array, Array], float]:
    return lambda q, k, v, there: factor.of(q, k, v)


def _reversed(of: Callable[[Array, Array], Array]) -> Callable[[Array, Array, Array], Array]:
    return lambda k, v, places: of(v, places.flip(1))


def _no_nan(weights: Array, there: Array) -> Array:
    return weights.nan_to_num(0.0)


def _all_valid(places: Array, S: int) -> Array:
    return torch.ones_like(places, dtype=torch.bool)


def _in_window(q: Array, k: Array, window: int) -> Array:
    gap = torch.arange(len(q))[:, None] - torch.arange(len(k))
    return (gap >= 0) & (gap < window)


def _hidden_as_0(q: Array, k: Array, v: Array, window: int) -> Array:
    scores = q @ k.T / math.sqrt(q.shape[1])
    return (scores * _in_window(q, k, window)).softmax(-1) @ v


def _masked_after(q: Array, k: Array, v: Array, window: int) -> Array:
    scores = q @ k.T / math.sqrt(q.shape[1])
    return (scores.softmax(-1) * _in_window(q, k, window)) @ v


_SIZE_HINTS = (
    "Write down the first and the last place that token 5 sees, for window = 3: how many are they?",
    "Token t sees the places t - window + 1 to t, window of them: a slice that ends at t + 1.",
)
_OWN_HINTS = ("With window = 1, what is the output? It should be v.", _SIZE_HINTS[1])
_FUTURE_HINTS = (
    "Change the last key and value: which rows of your output change?",
    "Token t sees no place after t: the last place of its window is its own.",
)
_BLOCK_HINTS = (
    "Take the first token of the second block: which keys should it see, and which does it?",
    "Let a block of tokens meet its own keys and the window - 1 before them, then hide what a token may not see.",
)
_START_HINTS = (
    "Compute row 0 of the output by hand: token 0 sees one key, and its output is v[0].",
    "Before place 0 there is nothing: cut the window there, or give such places a score of -inf.",
)
_END_HINTS = (
    "Print the last rows of your output, for S = 7 and window = 3.",
    "The last block may be shorter than the others: let it end at S.",
)
_WINDOW_HINTS = (
    "Change the first key and value: which rows of your output change? Only the first window ones should.",
    _SIZE_HINTS[1],
)
_SCALE_HINTS = (
    "Multiply q by 2: by how much do your scaled scores grow? Then look at the number that divides.",
    "Divide the scores by the square root of D, the width of the queries and keys.",
)
_SOFTMAX_HINTS = (
    "Sum the weights of one token: they should give 1.",
    "The softmax runs over the keys of one token, the axis of length window.",
)
_HIDE_HINTS = (
    "Print the weights of the last token: how many are above 0?",
    "Set the scores of what a token may not see to -inf, before the softmax.",
)
_VALUE_HINTS = (
    "Change one row of v: which rows of your output change?",
    "Cut the values at the same places, in the same order, as the keys.",
)
_COST_HINTS = (
    "Print the shape of every product: how many keys does one token meet?",
    "Cut out the keys that a token, or a block of tokens, may see before you multiply. A mask comes too late.",
)

_OWN = "the own key is left out: the window ends before the token"
_TOO_FEW = "the window is off by one: window - 1 keys are seen"
_AROUND = "the window lies on both sides of the token, half of it ahead"
_ZEROS = "zeros stand before the first key and take weight at the start of the sequence"
_AFTER = "the mask comes after the softmax: the weights of a token do not sum to 1"
_BACKWARDS = "the values come in reverse order: the weight of a key meets the value of another"


def _sees(fault: str, sees: Sees, hints: tuple[str, str], **further: Any) -> Variation:
    return Variation(fault, windowed(reach=where(sees), **further), hints)


windowed_attention = Task(
    name="windowed_attention",
    gradients=False,
    arguments=("q", "k", "v", "window"),
    results=(("out", ("S", "D")),),
    axes={"S": "token"},
    reference=windowed(),
    build=windowed,
    steps=window_numbers,
    cases=window_cases,
    growth=Growth(window_case(0, (200, 2, 3)), window_case(1, (400, 2, 3)), _COST_HINTS),
    variations=(
        Variation(
            "the window is off by one: window + 1 keys are seen",
            windowed(reach=lambda S, window: past(S, window + 1)),
            _SIZE_HINTS,
        ),
        Variation(_TOO_FEW, windowed(reach=lambda S, window: past(S, window - 1)), _SIZE_HINTS),
        _sees(_TOO_FEW, lambda t, s, w: (s <= t) & (t - s < w - 1), _SIZE_HINTS),
        *(
            _sees(_OWN, lambda t, s, w: (s < t) & (t - s <= w), _OWN_HINTS, **further)
            for further in ({"late": _no_nan}, {})
        ),
        *(
            _sees(f"{_OWN}, and window - 1 keys are left", lambda t, s, w: (s < t) & (t - s < w), _OWN_HINTS, **further)
            for further in ({"late": _no_nan}, {})
        ),
        _sees("the window looks ahead: it starts at the token", lambda t, s, w: (s >= t) & (s - t < w), _FUTURE_HINTS),
        _sees(
            "window - 1 keys on both sides are seen, those ahead too",
            lambda t, s, w: (s - t).abs() < w,
            _FUTURE_HINTS,
        ),
        _sees("window keys on both sides are seen, those ahead too", lambda t, s, w: (s - t).abs() <= w, _FUTURE_HINTS),
        _sees(_AROUND, lambda t, s, w: (s - t).abs() <= w // 2, _FUTURE_HINTS),
        _sees(_AROUND, lambda t, s, w: (s >= t - w // 2) & (s < t - w // 2 + w), _FUTURE_HINTS),
        _sees("no window: every key of the past is seen", lambda t, s, w: s <= t, _WINDOW_HINTS),
        _sees(
            "the far end of the window is cut, the future is not hidden: all later keys are seen",
            lambda t, s, w: t - s < w,
            _FUTURE_HINTS,
        ),
        _sees("no window at all: every token sees every key", lambda t, s, w: s >= 0 * t, _WINDOW_HINTS),
        _sees(
            "each block of tokens sees itself alone: the block before it is not seen",
            lambda t, s, w: (s <= t) & (s // w == t // w),
            _BLOCK_HINTS,
        ),
        _sees(
            "each block of tokens sees itself alone, and what is ahead in it",
            lambda t, s, w: s // w == t // w,
            _BLOCK_HINTS,
        ),
        *(
            _sees(
                "a block and the one before it are seen up to the token: further back than the window",
                _two_blocks(lambda t, s, w: s <= t, least),
                _BLOCK_HINTS,
            )
            for least in (0, 1)
        ),
        _sees(
            "what is ahead in the own block is seen",
            lambda t, s, w: (t - s < w) & (s // w <= t // w),
            _FUTURE_HINTS,
        ),
        *(
            _sees(
                "a block and the one before it are seen whole: nothing in them is hidden",
                _two_blocks(lambda t, s, w: s // w <= t // w, least),
                _BLOCK_HINTS,
            )
            for least in (0, 1)
        ),
        _sees("every token sees the last window keys", lambda t, s, w: s >= len(t) - w + 0 * t, _SIZE_HINTS),
        _sees("every token sees the first window keys", lambda t, s, w: s < w + 0 * t, _SIZE_HINTS),
        Variation(
            _ZEROS,
            windowed(keys=zeros_outside, values=lambda k, v, p: zeros_outside(v, p), valid=_all_valid),
            _START_HINTS,
        ),
        Variation(
            "the window wraps around: the first tokens see the last keys",
            windowed(reach=lambda S, window: past(S, window) % S),
            _START_HINTS,
        ),
        Variation(
            "the first key counts several times: places below 0 are set to 0",
            windowed(valid=_all_valid),
            _START_HINTS,
        ),
        _sees(
            "a slice that starts below 0 counts from the end: the first tokens see nothing",
            slice_from_below_0,
            (_START_HINTS[0], "Let the slice start at max(0, t - window + 1)."),
            late=_no_nan,
        ),
        _sees(
            "the first tokens look ahead: their windows are moved until they are full",
            lambda t, s, w: (s > (t - w).clamp(min=-1)) & (s <= t.clamp(min=w - 1)),
            _FUTURE_HINTS,
        ),
        Variation(
            "the first window - 1 tokens are left out: their rows are 0",
            windowed(finish=rows_alone(lambda S, window: window - 1, lambda S, window: S)),
            _START_HINTS,
        ),
        Variation(
            "the last tokens are left out where they fill no block: their rows are 0",
            windowed(finish=rows_alone(lambda S, window: 0, lambda S, window: S // window * window)),
            _END_HINTS,
        ),
        *(
            Variation(factor.fault, windowed(scale=_scaled(factor)), _SCALE_HINTS)
            for factor in attention_faults.FACTORS
        ),
        Variation(
            "the scores are divided by the square root of the window, not of D",
            windowed(scale=lambda q, k, v, there: 1 / math.sqrt(there.shape[1])),
            _SCALE_HINTS,
        ),
        Variation(
            "the scores are divided by the square root of the number of keys seen, not of D",
            windowed(scale=lambda q, k, v, there: there.sum(1, keepdim=True) ** -0.5),
            _SCALE_HINTS,
        ),
        *(
            Variation(
                "the softmax runs over the tokens, not over the keys of one token",
                windowed(weigh=lambda scores: scores.softmax(0), **further),
                _SOFTMAX_HINTS,
            )
            for further in (
                {"late": _no_nan},
                {"hide": lambda scores, there: scores.masked_fill(~there, -1e9)},
                {"reach": where(lambda t, s, w: (s <= t) & (t - s < w))},
            )
        ),
        Variation(
            "the softmax runs over an axis of length 1: all weights are 1, and the values are added",
            windowed(weigh=lambda scores: (scores > -math.inf).to(scores.dtype)),
            _SOFTMAX_HINTS,
        ),
        Variation(
            "the exponentials are not divided by their sum",
            windowed(weigh=torch.exp),
            _SOFTMAX_HINTS,
        ),
        Variation(
            "the softmax is missing, the scores are used as weights",
            windowed(hide=lambda scores, there: scores * there, weigh=lambda scores: scores),
            _SOFTMAX_HINTS,
        ),
        Variation(
            "every value in the window counts alike, the result is their mean",
            windowed(weigh=lambda scores: (0 * scores).nan_to_num(-math.inf).softmax(-1)),
            ("Change the query: your result should change too.", "Weight each value by the softmax of its score."),
        ),
        Variation("hidden scores are 0, not -inf: their keys take weight", _hidden_as_0, _HIDE_HINTS),
        Variation(_AFTER, _masked_after, _HIDE_HINTS),
        Variation(_AFTER, windowed(hide=lambda scores, there: scores, late=torch.mul), _HIDE_HINTS),
        *(Variation(_BACKWARDS, windowed(values=_reversed(of)), _VALUE_HINTS) for of in (at, zeros_outside)),
        Variation(
            "the weights meet the keys, not the values",
            windowed(values=lambda k, v, places: at(k, places)),
            ("Change the values: does your result change?", _VALUE_HINTS[1]),
        ),
    ),
    hints=(
        "Try window = 1, then window = S, then window = 2: which is the first that is wrong?",
        "For token t: cut out keys and values from max(0, t - window + 1) to t, then scores, softmax, weighted sum.",
    ),
    shape_hint="The output has a row for each token, (S, D), the first and the last ones too.",
)

TASKS = (windowed_attention, linear_attention)
