"""The third exercise of notebook 06: the bias of ALiBi."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks.task import Case, Task, Variation, by_steps

Slopes = Float[Tensor, "..."]
Bias = Float[Tensor, "..."]


def _bias_cases() -> tuple[Case, ...]:
    """Slopes that are no power of 2, so that they must be taken from the argument."""
    cases = []
    for H, T in ((3, 5), (5, 5), (2, 7), (1, 3), (7, 1)):
        given = 0.7 / torch.arange(1, H + 1, dtype=torch.float64)
        cases.append(Case({"H": H, "T": T}, (given, T)))
    return tuple(cases)


def _of(value: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Slopes, int], Bias]:
    """A bias value(slope (H, 1, 1), query i (T, 1), key j (T,)), spread over (H, T, T)."""

    def fn(slopes: Slopes, T: int) -> Bias:
        i = torch.arange(T, dtype=slopes.dtype)
        return value(slopes[:, None, None], i[:, None], i).expand(len(slopes), T, T).clone()

    return fn


@by_steps
def _bias(
    slope: Callable[[Tensor], Any] = lambda slope: slope,
    distance: Callable[[Tensor, Tensor], Tensor] = lambda i, j: (i - j).abs(),
    cost: Callable[[Any, Tensor], Tensor] = lambda slope, distance: -slope * distance,
    end: Callable[[Bias], Bias] = lambda bias: bias,
) -> Callable[[Slopes, int], Bias]:
    """The bias with some steps changed: the slopes (H, 1, 1), distances, their product, and a last step."""
    fn = _of(lambda m, i, j: cost(slope(m), distance(i, j)))
    return lambda slopes, T: end(fn(slopes, T))


_right = _bias()
_DISTANCE_HINTS = (
    "Print one head for T = 3: the diagonal should be 0, and every step away from it costs one slope more.",
    "The distance of query i and key j is |i - j|, in both directions.",
)
_AHEAD_HINTS = (
    "Look at the keys after the query: what does your bias give them?",
    "Let the distance count in both directions, |i - j|. Hiding the future is the mask's work.",
)
_START_HINTS = (
    "Compare two rows of one head: the 0 should move along with the query.",
    "Subtract the index of the key from that of the query, and take the absolute value.",
)
_SLOPE_HINTS = (
    "Double one slope: exactly that head's bias should double.",
    "Multiply the distances (T, T) by slopes[:, None, None].",
)
_BEHIND_HINTS = ("Look at the keys before the query: what does your bias give them?", _AHEAD_HINTS[1])


def _hides(said: str, value: float) -> tuple[Variation, Variation]:
    """The keys on one side of the query are hidden by a value."""
    return (
        Variation(
            f"keys after the query get {said}: that is a causal mask, not part of the bias here",
            _of(lambda slope, i, j: torch.where(j > i, value, -slope * (i - j))),
            _AHEAD_HINTS,
        ),
        Variation(
            f"keys before the query get {said}: that is a mask with the wrong triangle, and no part of the bias here",
            _of(lambda slope, i, j: torch.where(j < i, value, -slope * (j - i))),
            _BEHIND_HINTS,
        ),
    )


alibi_bias = Task(
    name="alibi_bias",
    gradients=False,
    arguments=("slopes", "T"),
    results=(("bias", ("H", "T", "T")),),
    reference=_right,
    build=_bias,
    cases=_bias_cases,
    variations=(
        Variation(
            "the bias is positive: the farther a key is away, the more weight it gets",
            _bias(cost=lambda slope, distance: slope * distance),
            ("Which key should get the most weight: the nearest or the farthest?", "Distance costs: a minus sign."),
        ),
        Variation(
            "keys after the query get a positive bias: the distance keeps its sign",
            _bias(distance=lambda i, j: i - j),
            _AHEAD_HINTS,
        ),
        Variation(
            "keys before the query get a positive bias: the distance has the wrong sign there",
            _bias(distance=lambda i, j: j - i),
            _DISTANCE_HINTS,
        ),
        Variation(
            "keys after the query get 0, the distance counts there too",
            _bias(distance=lambda i, j: (i - j).clamp(min=0)),
            _AHEAD_HINTS,
        ),
        Variation(
            "keys before the query get 0: this is the wrong triangle, and the distance counts on both sides",
            _bias(distance=lambda i, j: (j - i).clamp(min=0)),
            _DISTANCE_HINTS,
        ),
        *_hides("-inf", -math.inf),
        *_hides("-1e9", -1e9),
        *_hides("-1e10", -1e10),
        *_hides("the lowest number of float64", torch.finfo(torch.float64).min),
        *_hides("the lowest number of float32", torch.finfo(torch.float32).min),
        Variation(
            "the distance is counted from the start of the sequence, not from the query",
            _bias(distance=lambda i, j: 0 * i + j),
            _START_HINTS,
        ),
        Variation(
            "the bias grows with the index of the key: right after a causal softmax, but it is not the distance",
            _bias(distance=lambda i, j: 0 * i - j),
            _START_HINTS,
        ),
        Variation(
            "the bias depends on the query alone: all keys of a row get the same, and softmax cancels it",
            _bias(distance=lambda i, j: i + 0 * j),
            _START_HINTS,
        ),
        Variation(
            "the distance is counted from the end of the sequence, not from the query",
            _bias(distance=lambda i, j: i.numel() - 1 - j + 0 * i),
            _START_HINTS,
        ),
        Variation(
            "the distance is one too large: a query is 1 away from itself",
            _bias(distance=lambda i, j: (i - j).abs() + 1),
            _DISTANCE_HINTS,
        ),
        Variation("the distance is squared", _bias(distance=lambda i, j: (i - j).square()), _DISTANCE_HINTS),
        Variation(
            "the logarithm of the distance is taken",
            _bias(distance=lambda i, j: (i - j).abs().log1p()),
            _DISTANCE_HINTS,
        ),
        Variation(
            "the distance is divided by T",
            _bias(distance=lambda i, j: (i - j).abs() / len(j)),
            ("Make the sequence longer: the entries that were there should stay.", "Take the distance as it is."),
        ),
        Variation(
            "the distance is divided by the slope, not multiplied",
            _bias(cost=lambda slope, distance: -distance / slope),
            _SLOPE_HINTS,
        ),
        Variation(
            "the slopes are ignored, every head has slope 1",
            _bias(slope=torch.ones_like),
            _SLOPE_HINTS,
        ),
        Variation(
            "every head has the slope of the first", _bias(slope=lambda slope: slope[:1].expand_as(slope)), _SLOPE_HINTS
        ),
        Variation("the slopes are in reverse order", _bias(slope=lambda slope: slope.flip(0)), _SLOPE_HINTS),
        Variation(
            "the slopes are computed anew, the argument is ignored",
            _bias(slope=lambda m: (2 ** (-8 * torch.arange(1, len(m) + 1) / len(m)).double())[:, None, None]),
            ("Look for the argument slopes in your function.", _SLOPE_HINTS[1]),
        ),
        Variation(
            "the exponential is taken: these are factors of weights, not a bias of scores",
            _bias(end=torch.exp),
            (
                "What is added to a score where the distance is 0? Nothing.",
                "Leave out the exponential: softmax takes it.",
            ),
        ),
        Variation(
            "the softmax is taken too",
            _bias(end=lambda bias: bias.softmax(-1)),
            ("What is asked for: what is added to the scores, or the weights?", "Return the bias before any softmax."),
        ),
        Variation(
            "the heads come last, (T, T, H) instead of (H, T, T)",
            _bias(end=lambda bias: bias.permute(1, 2, 0)),
            ("Print the shape of your bias.", "Give the slopes two axes behind theirs: slopes[:, None, None]."),
        ),
    ),
    hints=(
        "Print one head for T = 3 beside the matrix of distances: 0 1 2, 1 0 1, 2 1 0.",
        "Distances first, (T, T); then minus the slope of each head times them.",
    ),
    shape_hint="One matrix of queries and keys for each head.",
)
