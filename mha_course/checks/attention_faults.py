"""Attention with one fault at a time, for the exercises that write it: (weights, out) each.

q (B, T, D), k (B, S, D), v (B, S, Dv) -> weights (B, T, S), out (B, T, Dv)
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from mha_course.checks.task import Variation
from mha_course.dot_product import attention

Array = Float[Tensor, "..."]
Pair = tuple[Array, Array]


def right(q: Array, k: Array, v: Array) -> Pair:
    """Attention as the package has it."""
    _, weights, out = attention(q, k, v)
    return weights, out


def _scaled(factor: Callable[[Array, Array, Array], float]) -> Callable[[Array, Array, Array], Pair]:
    """Attention with another factor on the scores, computed from q, k and v."""
    return lambda q, k, v: attention(q, k, v, scale=factor(q, k, v))[1:]


def _scaled_late(q: Array, k: Array, v: Array) -> Pair:
    weights = attention(q, k, v, scale=1.0).weights / math.sqrt(q.shape[-1])
    return weights, weights @ v


def _out_scaled(q: Array, k: Array, v: Array) -> Pair:
    weights, out = attention(q, k, v, scale=1.0)[1:]
    return weights, out / math.sqrt(q.shape[-1])


def _weighted(to_weights: Callable[[Array], Array]) -> Callable[[Array, Array, Array], Pair]:
    """Attention with another way from scaled scores (B, T, S) to weights."""

    def fn(q: Array, k: Array, v: Array) -> Pair:
        weights = to_weights(attention(q, k, v).scores)
        return weights, weights @ v

    return fn


def _over_all_keys(q: Array, k: Array, v: Array) -> Pair:
    weights, out = right(*(x.flatten(0, 1) for x in (q, k, v)))  # (B T, B S), (B T, Dv)
    return weights, out.view(*q.shape[:2], -1)


def _keys_reshaped(q: Array, k: Array, v: Array) -> Pair:
    scores = q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]) / math.sqrt(q.shape[-1])
    weights = scores.softmax(-1)
    return weights, weights @ v


def transposed_scores(q: Array, k: Array, v: Array) -> Pair:
    """Scores of keys against queries, softmax over the last axis; raises when T != S."""
    weights = (k @ q.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)  # (B, S, T)
    return weights, weights @ v


_DIVIDE = "Divide the scores by the square root of D, the width of the queries and keys."
_DIVISOR_HINTS = ("Look at the number that the scores are divided by.", _DIVIDE)
_SIZE_HINTS = ("Look at the number that the scores are divided by: which size is under the root?", _DIVIDE)
_FIXED_HINTS = (
    "Look at the number that the scores are divided by: does it follow when the width changes?",
    "Divide by the square root of D, the width of the queries and keys, and read D from a shape.",
)
_LATE_HINTS = (
    "Sum the weights that one query gives: they should give 1, whatever D is.",
    "Divide the scores, before the softmax, by the square root of D, the width of the queries and keys.",
)
_SOFTMAX_HINTS = (
    "Sum your weights over each axis in turn: which sums are 1, which should be?",
    "The keys of one query share 1. Name that axis of the scores, the last one, in the softmax.",
)
_CHANGE_A_SAMPLE = "Change one sample of the input: the other samples' results must stay as they are."


def _softmax_hints(fault: str, axis: int) -> Variation:
    return Variation(fault, _weighted(lambda s: s.softmax(axis)), _SOFTMAX_HINTS)


class Factor(NamedTuple):
    """A wrong factor on the scores, computed from q, k and v."""

    fault: str
    of: Callable[[Array, Array, Array], float]
    hints: tuple[str, str]

    def in_attention(self) -> Variation:
        """Attention with this factor."""
        return Variation(self.fault, _scaled(self.of), self.hints)

    def in_scores(self) -> Variation:
        """The scaled scores alone, from q and k, with this factor."""
        hints = (self.hints[0].replace("between the dot products and the softmax", "to the dot products"), _DIVIDE)
        return Variation(self.fault, lambda q, k: self.of(q, k, k) * q @ k.transpose(-2, -1), hints)


def _fixed(divisor: float, text: str) -> Factor:
    return Factor(f"the scores are divided by {text}, whatever D is", lambda q, k, v: 1 / divisor, _FIXED_HINTS)


FACTORS = (
    Factor(
        "the scores are not scaled",
        lambda q, k, v: 1.0,
        ("Look at what happens between the dot products and the softmax: a step is missing there.", _DIVIDE),
    ),
    Factor("the scores are divided by D, not by its square root", lambda q, k, v: 1 / q.shape[-1], _DIVISOR_HINTS),
    Factor(
        "the scores are multiplied by the square root of D, not divided by it",
        lambda q, k, v: math.sqrt(q.shape[-1]),
        ("Do the scores become smaller by the scale, or larger?", _DIVIDE),
    ),
    Factor(
        "the scores are divided by the square root of the number of keys, not of D",
        lambda q, k, v: 1 / math.sqrt(k.shape[-2]),
        _SIZE_HINTS,
    ),
    _fixed(math.sqrt(2), "the square root of 2"),
    _fixed(2, "2, the square root of 4"),
    _fixed(4, "4"),
    _fixed(8, "8, the square root of 64"),
)
SCALE_BY_DV = Factor(
    "the scores are divided by the square root of Dv, the width of the values, not of D",
    lambda q, k, v: 1 / math.sqrt(v.shape[-1]),
    _SIZE_HINTS,
)
SCALE_BY_T = Factor(  # for a batch alone: one query has no T
    "the scores are divided by the square root of T, the number of queries, not of D",
    lambda q, k, v: 1 / math.sqrt(q.shape[-2]),
    _SIZE_HINTS,
)

SCALE = (
    *(factor.in_attention() for factor in (*FACTORS, SCALE_BY_DV)),
    Variation("the division by the square root of D comes after the softmax, not before it", _scaled_late, _LATE_HINTS),
)

# For an exercise that returns the weights too: a fault of the output alone is told apart.
OUT_SCALED = Variation(
    "the output is divided by the square root of D, the scores are not",
    _out_scaled,
    ("Look at the step that divides by the square root of D: what is divided there?", _LATE_HINTS[1]),
)

WEIGHTS = (
    Variation(
        "the softmax is missing, the scores are used as weights",
        _weighted(lambda s: s),
        (
            "Sum the numbers that the values are multiplied with, and look for negative ones.",
            "Take the softmax of the scores over the keys: exponentials, divided by their sum.",
        ),
    ),
    Variation(
        "the exponential is missing, scores are divided by their sum",
        _weighted(lambda s: s / s.sum(-1, keepdim=True)),
        (
            "Look for negative weights: which step should make every weight positive?",
            "Take the exponential of the scores before you divide by the sum.",
        ),
    ),
    Variation(
        "the weights of a query do not sum to 1, the division is missing",
        _weighted(lambda s: s.exp()),
        (
            "Sum the weights that one query gives: what should come out?",
            "Divide the exponentials by their sum over the keys.",
        ),
    ),
    Variation(
        "the best key takes all, an arg max instead of an average",
        _weighted(lambda s: (s == s.amax(-1, keepdim=True)).to(s.dtype)),
        (
            "How many of your weights are above 0? All keys should take part.",
            "Weight every value by the softmax of its score instead of choosing one.",
        ),
    ),
    Variation(
        "every value counts alike, the result is the mean of the values",
        _weighted(lambda s: s.new_ones(s.shape) / s.shape[-1]),
        (
            "Change the query: your result should change too.",
            "Weight the values by the softmax of the scores.",
        ),
    ),
)

SOFTMAX_AXIS = (
    _softmax_hints("the softmax runs over the queries, not over the keys", -2),
    _softmax_hints("the softmax runs over the batch, not over the keys", 0),
)

LAYOUT = (
    Variation(
        "the keys are reshaped to (B, D, S), which mixes their numbers",
        _keys_reshaped,
        (
            "Look at how k becomes (B, D, S). Try it on a 2 by 3 matrix of 1 to 6.",
            "Swap two axes, which reshape and view do not.",
        ),
    ),
    Variation(
        "queries attend to the keys of every sample, across the batch",
        _over_all_keys,
        (_CHANGE_A_SAMPLE, "Keep the batch axis in front in every product, and never sum over it."),
    ),
    Variation(
        "every sample attends to the keys and values of the first sample",
        lambda q, k, v: right(q, k[:1].expand_as(k), v[:1].expand_as(v)),
        (_CHANGE_A_SAMPLE, "Look for an index 0 or a slice :1, and let every sample use its own keys and values."),
    ),
)

KEYS_BY_QUERIES = Variation(
    "the scores are transposed, keys against queries: (B, S, T) instead of (B, T, S)",
    transposed_scores,
    (
        "Try T and S different: which of the two comes first in your scores?",
        "A row of the scores is a query: swap the two factors of the product, and transpose k.",
    ),
)
