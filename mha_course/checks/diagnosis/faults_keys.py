"""Faults of what the weights are made of, and of which keys and values take part."""

import math
from collections.abc import Callable

import torch
from torch.nn.functional import elu

from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.steps import Array, Mask, Step, grouped, hide, softmax

_SUM_HINTS = (
    "Sum the weights that one query gives: what should come out?",
    "Divide the exponentials by their sum over all keys, and by nothing else.",
)
_ALL_HINTS = (
    "Change one visible key after another: does the result change with each of them?",
    "Every key that may be seen takes part, with its own value.",
)
_PLACE_HINTS = (
    "Make one weight 1 and the others 0: which value comes out?",
    "What selects or sorts the keys has to select or sort the values in the same way.",
)
_SCORE_HINTS = (
    "Double a key: its scores should double.",
    "The score is the product of query and key, divided by the square root of D.",
)
_BASE_HINTS = (
    "Compare exp(1) with your exponential of 1.",
    "Multiply the scores by log2(e) and take powers of 2, or take exp of the scores as they are.",
)


def _exponentials(scores: Array) -> Array:
    return torch.exp(scores - scores.amax(-1, keepdim=True))


def _plus(number: float) -> Step:
    def normalize(scores: Array) -> Array:
        p = _exponentials(scores)
        return p / (p.sum(-1, keepdim=True) + number)

    return normalize


def plus_one(scores: Array) -> Array:
    """exp(s) / (1 + sum of exp(s)): one more key with score 0 and value 0."""
    return softmax(torch.cat([scores, torch.zeros_like(scores[..., :1])], -1))[..., :-1]


def _without(part: Callable[[Array], Array]) -> Step:
    """Exponentials divided by the sum of a part of them."""
    return lambda scores: _exponentials(scores) / part(_exponentials(scores)).sum(-1, keepdim=True)


def _last_seen_lost(scores: Array, mask: Mask | None) -> Array:
    """The last visible key of every row is hidden, if it is not the only one."""
    hidden = hide(scores, mask)
    seen = hidden > -math.inf
    last = seen & (seen.flip(-1).cumsum(-1).flip(-1) == 1)
    return hidden.masked_fill(last & (seen.sum(-1, keepdim=True) > 1), -math.inf)


def _packed(weights: Array, v: Array, mask: Mask | None) -> Array:
    """The weights of the visible keys meet the first values, as many as there are."""
    if mask is not None:
        order = torch.sort((~mask).expand(weights.shape).to(torch.int8), dim=-1, stable=True).indices
        weights = weights.gather(-1, order)
    return weights @ v


def _best(count: int | None) -> Step:
    """The best keys of every row alone, half of them if no number is given."""

    def normalize(scores: Array) -> Array:
        k = max(1, scores.shape[-1] // 2) if count is None else count
        if k >= scores.shape[-1]:
            return softmax(scores)
        return softmax(scores.masked_fill(scores < scores.topk(k, -1).values[..., -1:], -math.inf))

    return normalize


def _reordered(weights: Array, mask: Mask | None) -> Array:
    """The largest weight meets the value of the smallest."""
    best, places = weights.sort(-1, descending=True)
    return torch.zeros_like(weights).scatter(-1, places.flip(-1), best)


def _distance(of: Callable[[Array], Array]) -> Step:
    """Scores from the squared distances (B, H, T, S)."""

    def score(q: Array, k: Array) -> Array:
        squared = q.square().sum(-1)[..., None] + k.square().sum(-1)[..., None, :] - 2 * q @ k.mT
        return of(squared.clamp_min(0.0))

    return score


def _column_sums(weights: Array, mask: Mask | None) -> Array:
    if mask is None:
        return weights
    left = weights * mask
    return left / left.sum(-2, keepdim=True)


def _square(weights: Array, v: Array, mask: Mask | None) -> Array:
    return (weights.mT if weights.shape[-1] == weights.shape[-2] else weights) @ v


def _over_queries(scores: Array) -> Array:
    return softmax(scores - scores.amax(-2, keepdim=True))


def _linear(of: Callable[[Array], Array]) -> Step:
    """A feature map of queries and keys, and no softmax."""

    def attend(q: Array, k: Array, v: Array, mask: Mask | None, bias: Array | None, scale: float) -> Array:
        k, v = grouped(k, q.shape[1]), grouped(v, q.shape[1])
        products = of(q) @ of(k).mT
        weights = products if mask is None else products * mask
        return weights / weights.sum(-1, keepdim=True) @ v

    return attend


_LINEAR = "there is no softmax: a feature map of queries and keys stands in its place, as in linear attention"
_DISTANCE = "the scores are made of the distance of query and key, not of their product"
KEYS = (
    Fault(
        "softmax_plus_one",
        "one is added to the sum of the exponentials, so that the weights of a query sum to less than 1: it has one "
        "more key with score 0 and value 0",
        {"normalize": plus_one},
        _SUM_HINTS,
    ),
    Fault(
        "softmax_plus_one",
        "one is added to the sum of the exponentials, after the maximum is taken off: the weights of a query sum to "
        "less than 1",
        {"normalize": _plus(1.0)},
        _SUM_HINTS,
    ),
    Fault(
        "total_of_other_keys",
        "the sum that the exponentials are divided by misses the last key: the weights of a query sum to more than 1",
        {"normalize": _without(lambda p: p[..., :-1])},
        _SUM_HINTS,
    ),
    Fault(
        "total_of_other_keys",
        "the sum that the exponentials are divided by misses the first key: the weights of a query sum to more than 1",
        {"normalize": _without(lambda p: p[..., 1:])},
        _SUM_HINTS,
    ),
    Fault(
        "last_key_lost",
        "the last key that a query may see takes no part",
        {"hide": _last_seen_lost},
        _ALL_HINTS,
    ),
    Fault(
        "first_key_lost",
        "the first key takes no part",
        {"see": lambda T, S: torch.arange(S).expand(T, S) > 0},
        _ALL_HINTS,
    ),
    Fault(
        "values_not_selected",
        "the keys that are hidden are taken out, their values are not: weights meet the values of other keys",
        {"mix": _packed},
        _PLACE_HINTS,
    ),
    Fault(
        "values_reordered",
        "weights and values stand in opposite orders: the largest weight meets the value of the smallest",
        {"after": _reordered},
        _PLACE_HINTS,
    ),
    Fault(
        "values_reordered",
        "the weights are sorted, the largest first, and the values are not",
        {"after": lambda weights, mask: weights.sort(-1, descending=True).values},
        _PLACE_HINTS,
    ),
    Fault(
        "values_reordered",
        "the values meet the weights in reversed order: the first weight the last value",
        {"after": lambda weights, mask: weights.flip(-1)},
        _PLACE_HINTS,
    ),
    Fault(
        "values_reordered",
        "the values are shifted by one key against the weights",
        {"after": lambda weights, mask: weights.roll(-1, -1)},
        _PLACE_HINTS,
    ),
    Fault(
        "values_reordered",
        "the values are shifted by one key against the weights, to the right",
        {"after": lambda weights, mask: weights.roll(1, -1)},
        _PLACE_HINTS,
    ),
    Fault(
        "top_keys_only",
        "only the better half of the keys takes part",
        {"normalize": _best(None)},
        _ALL_HINTS,
    ),
    *(
        Fault(
            "top_keys_only",
            f"only the best {k} keys of a query take part",
            {"normalize": _best(k)},
            _ALL_HINTS,
            keys=k,
        )
        for k in (2, 3, 4, 8, 16, 32, 64)
    ),
    Fault(
        "base_two",
        "powers of 2 stand in the place of the exponential, and the scores were not multiplied by log2(e)",
        {"normalize": lambda scores: softmax(scores * math.log(2))},
        _BASE_HINTS,
    ),
    Fault(
        "base_two",
        "the scores are multiplied by log2(e), and the exponential is that of e, not of 2",
        {"normalize": lambda scores: softmax(scores / math.log(2))},
        _BASE_HINTS,
    ),
    Fault(
        "maximum_over_queries",
        "what is taken off before the exponential is the largest score of each key, over the queries: it changes the "
        "weights, as that of each query does not",
        {"normalize": _over_queries},
        (
            "Print the shape of the maximum: it should be (B, H, T, 1).",
            "Take it over the keys, the last axis.",
        ),
    ),
    *(
        Fault("linear_attention", f"{_LINEAR} ({said})", {"attend": _linear(of)}, _SCORE_HINTS)
        for said, of in (("elu + 1", lambda x: elu(x) + 1), ("relu", torch.relu), ("exp", torch.exp))
    ),
    Fault(
        "distance_scores",
        f"{_DISTANCE}, squared and halved: the length of the keys counts too",
        {"score": _distance(lambda squared: -squared / 2)},
        _SCORE_HINTS,
    ),
    Fault("distance_scores", f"{_DISTANCE}, squared", {"score": _distance(lambda squared: -squared)}, _SCORE_HINTS),
    Fault("distance_scores", _DISTANCE, {"score": _distance(lambda squared: -squared.sqrt())}, _SCORE_HINTS),
    Fault(
        "mask_after_softmax",
        "the mask is applied after the softmax, and what is left is divided by the sums over the queries, not over "
        "the keys",
        {"hide": lambda s, m: s, "after": _column_sums},
        ("Sum the weights of each query: they should give 1.", "Hide the scores, before the softmax."),
    ),
    Fault(
        "weights_transposed",
        "the weights are transposed before they meet the values, where there are as many keys as queries",
        {"mix": _square},
        ("Sum the weights that the values meet, over the last axis: are those sums 1?", "A row of them is a query."),
    ),
)
