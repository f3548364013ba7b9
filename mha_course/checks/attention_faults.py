"""Attention with one fault at a time, for the exercises that write it: (weights, out) each.

q (B, T, D), k (B, S, D), v (B, S, Dv) -> weights (B, T, S), out (B, T, Dv)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mha_course.checks.parting import Step
from mha_course.checks.task import Variation, stepped
from mha_course.dot_product import attention

Array = Float[Tensor, "..."]
Pair = tuple[Array, Array]
Three = tuple[Array, Array, Array]


def right(q: Array, k: Array, v: Array) -> Pair:
    """Attention as the package has it."""
    _, weights, out = attention(q, k, v)
    return weights, out


def built(
    use: Callable[[Array, Array, Array], Three] = lambda q, k, v: (q, k, v),
    score: Callable[[Array, Array], Array] = lambda q, k: q @ k.mT,
    scale: Callable[[Array, Array, Array], float] = lambda q, k, v: 1 / math.sqrt(q.shape[-1]),
    weigh: Callable[[Array], Array] = lambda scores: scores.softmax(-1),
    late: Callable[[Array, Array], Array] = lambda weights, q: weights,
    mix: Callable[[Array, Array, Array], Array] = lambda scores, weights, v: weights @ v,
    show: Callable[[Array, Array], Array] = lambda scores, weights: weights,
    finish: Callable[[Array, Array], Array] = lambda out, q: out,
    order: Callable[[Array, Array], Pair] = lambda weights, out: (weights, out),
) -> Callable[[Array, Array, Array], Pair]:
    """Attention, (weights, out), with some steps changed.

    Args:
        use: from q, k and v to those that are used.
        score: their products, (B, T, S).
        scale: the factor on them.
        weigh: from scaled scores to weights.
        late: what becomes of the weights, from them and q.
        mix: from scores, weights and values to the output.
        show: from scores and weights to those that are returned.
        finish: what becomes of the output, from it and q.
        order: the two results.
    """

    def fn(q: Array, k: Array, v: Array) -> Pair:
        used = use(q, k, v)
        scores = score(*used[:2]) * scale(*used)
        weights = late(weigh(scores), q)
        return order(show(scores, weights), finish(mix(scores, weights, used[2]), q))

    return fn


def steps(q: Array, k: Array, v: Array) -> tuple[Step, ...]:
    """The numbers of each step of attention, for `parting`."""
    scores = q @ k.mT
    weights, out = right(q, k, v)
    return (
        Step("products of queries and keys", scores),
        Step("scaled scores", scores / math.sqrt(q.shape[-1])),
        Step("weights", weights),
        Step("output", out),
    )


def one(q: Array, k: Array, v: Array) -> float:
    """No scale."""
    return 1.0


def _divided(x: Array, q: Array) -> Array:
    return x / math.sqrt(q.shape[-1])


def _changed(fault: str, hints: tuple[str, str], **changes: Any) -> Variation:
    return stepped(built, fault, hints, **changes)


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
_SUM_HINTS = (
    "Sum the weights that one query gives: what should come out?",
    "Divide the exponentials by their sum over the keys.",
)
_CHANGE_A_SAMPLE = "Change one sample of the input: the other samples' results must stay as they are."


def built_scores(
    end: Callable[[Array], Array] = lambda scores: scores, **changes: Any
) -> Callable[[Array, Array], Array]:
    """The scaled scores alone, from q and k; end is the last step."""
    fn = built(weigh=end, mix=lambda scores, weights, v: weights, **changes)
    return lambda q, k: fn(q, k, k)[0]


class Factor(NamedTuple):
    """A wrong factor on the scores, computed from q, k and v."""

    fault: str
    of: Callable[[Array, Array, Array], float]
    hints: tuple[str, str]

    def in_attention(self) -> Variation:
        """Attention with this factor."""
        return _changed(self.fault, self.hints, scale=self.of)

    def in_scores(self) -> Variation:
        """The scaled scores alone, from q and k, with this factor."""
        hints = (self.hints[0].replace("between the dot products and the softmax", "to the dot products"), _DIVIDE)
        return stepped(built_scores, self.fault, hints, scale=self.of)


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
FOURTH_ROOT = Factor(
    "the scores are divided by the fourth root of D: one of q and k is scaled, the other is not",
    lambda q, k, v: q.shape[-1] ** -0.25,
    ("Count the factors that q and k bring with them.", _DIVIDE),
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
    _changed(
        "the division by the square root of D comes after the softmax, not before it",
        _LATE_HINTS,
        scale=one,
        late=_divided,
    ),
)

# For an exercise that returns the weights too: a fault of the output alone is told apart.
OUT_SCALED = _changed(
    "the output is divided by the square root of D, the scores are not",
    ("Look at the step that divides by the square root of D: what is divided there?", _LATE_HINTS[1]),
    scale=one,
    finish=_divided,
)

WEIGHTS = (
    _changed(
        "the weights of a query do not sum to 1, the division is missing",
        _SUM_HINTS,
        weigh=lambda s: (s - s.amax(-1, keepdim=True)).exp(),
    ),
    _changed(
        "the softmax is taken twice",
        ("Look for a second softmax.", "Once is enough: a softmax of weights makes them nearly equal."),
        weigh=lambda s: s.softmax(-1).softmax(-1),
    ),
    _changed(
        "the weights meet the keys, not the values",
        ("Change the values: does your result change?", "The weighted sum is one of values."),
        use=lambda q, k, v: (q, k, k),
    ),
    _changed(
        "cosines are taken, the length of queries and keys is lost",
        ("Double the keys: the scores should double.", "Take the product of queries and keys as they are."),
        use=lambda q, k, v: (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v),
        scale=one,
    ),
    _changed(
        "the softmax is missing, the scores are used as weights",
        (
            "Sum the numbers that the values are multiplied with, and look for negative ones.",
            "Take the softmax of the scores over the keys: exponentials, divided by their sum.",
        ),
        weigh=lambda s: s,
    ),
    _changed(
        "the exponential is missing, scores are divided by their sum",
        (
            "Look for negative weights: which step should make every weight positive?",
            "Take the exponential of the scores before you divide by the sum.",
        ),
        weigh=lambda s: s / s.sum(-1, keepdim=True),
    ),
    _changed(
        "the weights of a query do not sum to 1, the division is missing",
        _SUM_HINTS,
        weigh=lambda s: s.exp(),
    ),
    _changed(
        "the best key takes all, an arg max instead of an average",
        (
            "How many of your weights are above 0? All keys should take part.",
            "Weight every value by the softmax of its score instead of choosing one.",
        ),
        weigh=lambda s: (s == s.amax(-1, keepdim=True)).to(s.dtype),
    ),
    _changed(
        "every value counts alike, the result is the mean of the values",
        (
            "Change the query: your result should change too.",
            "Weight the values by the softmax of the scores.",
        ),
        weigh=lambda s: s.new_ones(s.shape) / s.shape[-1],
    ),
)

SOFTMAX_AXIS = (
    _changed("the softmax runs over the queries, not over the keys", _SOFTMAX_HINTS, weigh=lambda s: s.softmax(-2)),
    _changed("the softmax runs over the batch, not over the keys", _SOFTMAX_HINTS, weigh=lambda s: s.softmax(0)),
)

LAYOUT = (
    _changed(
        "the keys are reshaped to (B, D, S), which mixes their numbers",
        (
            "Look at how k becomes (B, D, S). Try it on a 2 by 3 matrix of 1 to 6.",
            "Swap two axes, which reshape and view do not.",
        ),
        score=lambda q, k: q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]),
    ),
    _changed(
        "queries attend to the keys of every sample, across the batch",
        (_CHANGE_A_SAMPLE, "Keep the batch axis in front in every product, and never sum over it."),
        use=lambda q, k, v: (q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)),  # (B T, D), (B S, D), (B S, Dv)
        finish=lambda out, q: out.view(*q.shape[:2], -1),
    ),
    _changed(
        "every sample attends to the keys and values of the first sample",
        (_CHANGE_A_SAMPLE, "Look for an index 0 or a slice :1, and let every sample use its own keys and values."),
        use=lambda q, k, v: (q, k[:1].expand_as(k), v[:1].expand_as(v)),
    ),
    _changed(
        "every sample attends to the keys of the first sample",
        (_CHANGE_A_SAMPLE, "Look for an index 0 or a slice :1, and let every sample use its own keys."),
        use=lambda q, k, v: (q, k[:1].expand_as(k), v),
    ),
    _changed(
        "the weights are averaged over the samples",
        (_CHANGE_A_SAMPLE, "Keep the batch axis, and never average over it."),
        late=lambda weights, q: weights.mean(0, keepdim=True).expand_as(weights),
    ),
)

KEYS_BY_QUERIES = _changed(
    "the scores are transposed, keys against queries: (B, S, T) instead of (B, T, S)",
    (
        "Try T and S different: which of the two comes first in your scores?",
        "A row of the scores is a query: swap the two factors of the product, and transpose k.",
    ),
    score=lambda q, k: k @ q.mT,  # (B, S, T): the values do not fit unless T = S
)
