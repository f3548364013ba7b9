"""Attention with one fault at a time, for the exercises that write it: (weights, out) each.

q (B, T, D), k (B, S, D), v (B, S, Dv) -> weights (B, T, S), out (B, T, Dv)
"""

import math
from collections.abc import Callable

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


def _scaled(factor: Callable[[int, int, int], float]) -> Callable[[Array, Array, Array], Pair]:
    """Attention with another factor on the scores, computed from D, S and Dv."""

    def fn(q: Array, k: Array, v: Array) -> Pair:
        scale = factor(q.shape[-1], k.shape[-2], v.shape[-1])
        return attention(q, k, v, scale=scale)[1:]

    return fn


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


_SCALE_HINTS = (
    "Look at the number that the scores are divided by.",
    "It depends on the width D of queries and keys alone: the standard deviation of q.k.",
)
_SOFTMAX_HINTS = (
    "Sum your weights over each axis in turn: which sums are 1, which should be?",
    "The keys of one query share 1. Name that axis of the scores, the last one, in the softmax.",
)
_WEIGHTS_HINTS = (
    "Look at the step from scores to weights: are they positive, do a query's sum to 1?",
    "Use softmax over the keys: exponentials, divided by their sum.",
)
_BATCH_HINTS = (
    "Change one sample of the input: the other samples' results must stay as they are.",
    "Keep the batch axis in front in every product, and never sum over it.",
)


def _softmax_hints(fault: str, axis: int) -> Variation:
    return Variation(fault, _weighted(lambda s: s.softmax(axis)), _SOFTMAX_HINTS)


SCALE = (
    Variation("the scores are not scaled", _scaled(lambda D, S, Dv: 1.0), _SCALE_HINTS),
    Variation("the scores are divided by D, not by its square root", _scaled(lambda D, S, Dv: 1 / D), _SCALE_HINTS),
    Variation(
        "the scores are multiplied by the square root of D, not divided by it",
        _scaled(lambda D, S, Dv: math.sqrt(D)),
        _SCALE_HINTS,
    ),
    Variation(
        "the scores are divided by the square root of the number of keys, not of D",
        _scaled(lambda D, S, Dv: 1 / math.sqrt(S)),
        _SCALE_HINTS,
    ),
    Variation(
        "the scores are divided by the square root of Dv, the width of the values, not of D",
        _scaled(lambda D, S, Dv: 1 / math.sqrt(Dv)),
        _SCALE_HINTS,
    ),
)

WEIGHTS = (
    Variation("the softmax is missing, the scores are used as weights", _weighted(lambda s: s), _WEIGHTS_HINTS),
    Variation(
        "the exponential is missing, scores are divided by their sum",
        _weighted(lambda s: s / s.sum(-1, keepdim=True)),
        _WEIGHTS_HINTS,
    ),
    Variation(
        "the weights of a query do not sum to 1, the division is missing", _weighted(lambda s: s.exp()), _WEIGHTS_HINTS
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
    Variation("queries attend to the keys of every sample, across the batch", _over_all_keys, _BATCH_HINTS),
    Variation(
        "every sample attends to the keys and values of the first sample",
        lambda q, k, v: right(q, k[:1].expand_as(k), v[:1].expand_as(v)),
        _BATCH_HINTS,
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
