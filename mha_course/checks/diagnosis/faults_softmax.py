"""Faults of the softmax."""

import math

import torch

from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.steps import Array, Step, hide

_SOFTMAX_HINTS = (
    "Sum your weights (B, H, T, S) over each axis in turn: which sums are 1, which should be?",
    "In every head the keys of one query share 1. Name the last axis in the softmax.",
)
_POSITIVE_HINTS = (
    "Look for negative weights: which step should make every weight positive?",
    "Take the softmax of the scores over the keys: exponentials, divided by their sum.",
)
_SUM_HINTS = (
    "Sum the weights that one query gives: what should come out?",
    "Divide the exponentials by their sum over the keys.",
)


def _weights(name: str, said: str, normalize: Step, hints: tuple[str, str]) -> Fault:
    return Fault(name, said, {"normalize": normalize}, hints)


def _relu(scores: Array) -> Array:
    positive = scores.relu()
    return positive / positive.sum(-1, keepdim=True)


def _relu_safe(scores: Array) -> Array:
    positive = scores.relu() + 1e-6
    return positive / positive.sum(-1, keepdim=True)


def _softmax_over(name: str, said: str, *axes: int) -> Fault:
    """Softmax over other axes; NaN where nothing is left."""

    def normalize(scores: Array) -> Array:
        moved = scores.movedim(axes, tuple(range(-len(axes), 0)))
        return moved.flatten(-len(axes)).softmax(-1).view(moved.shape).movedim(tuple(range(-len(axes), 0)), axes)

    return _weights(name, f"the softmax runs over {said}, not over the keys", normalize, _SOFTMAX_HINTS)


def _filled(fault: Fault, fill: float) -> Fault:
    """The same fault with hidden scores filled by a finite number, where -inf would make everything NaN."""
    return fault._replace(changes={**fault.changes, "hide": lambda scores, mask: hide(scores, mask, fill)})


_OVER = (
    _softmax_over("softmax_over_queries", "the queries", -2),
    _softmax_over("softmax_over_heads", "the heads", 1),
    _softmax_over("softmax_over_batch", "the batch", 0),
    _softmax_over("softmax_over_heads_and_keys", "", 1, -1)._replace(
        said="the heads share one softmax: the weights of a query sum to 1 over all heads together"
    ),
    _softmax_over("softmax_over_all", "all queries and keys together", -2, -1),
)
_NO_SOFTMAX = _weights(
    "no_softmax", "the softmax is missing, the scores are used as weights", lambda s: s, _POSITIVE_HINTS
)
SOFTMAX = (
    *_OVER,
    _NO_SOFTMAX,
    _weights(
        "exp_not_normalized", "the weights of a query do not sum to 1, the division is missing", torch.exp, _SUM_HINTS
    ),
    _weights(
        "no_exp",
        "the exponential is missing, scores are divided by their sum",
        lambda s: s / s.sum(-1, keepdim=True),
        _POSITIVE_HINTS,
    ),
    _weights(
        "sigmoid_weights", "a sigmoid of each score stands in the place of the softmax", torch.sigmoid, _SUM_HINTS
    ),
    _weights(
        "softmax_twice",
        "the softmax is taken twice",
        lambda s: s.softmax(-1).softmax(-1),
        (
            "Look for a second softmax, or for a function that takes one inside.",
            "Once is enough: a softmax of weights makes them nearly equal.",
        ),
    ),
    _weights(
        "log_softmax",
        "log_softmax stands in the place of the softmax: the weights are logarithms",
        lambda s: s.log_softmax(-1),
        _POSITIVE_HINTS,
    ),
    _weights(
        "hard_max",
        "the best key takes all, an arg max instead of an average",
        lambda s: (s == s.amax(-1, keepdim=True)).to(s.dtype),
        (
            "How many of your weights are above 0? All keys should take part.",
            "Weight every value by the softmax of its score instead of choosing one.",
        ),
    ),
    _weights(
        "uniform_weights",
        "every value counts alike, the result is the mean of the values",
        lambda s: (s > -math.inf).to(s.dtype) / (s > -math.inf).sum(-1, keepdim=True),
        (
            "Change the query: your result should change too.",
            "Weight the values by the softmax of the scores.",
        ),
    ),
    _weights(
        "softmax_of_negative",
        "the smallest score gets the largest weight: a sign is wrong in the softmax",
        lambda s: (-s).masked_fill(s == -math.inf, -math.inf).softmax(-1),
        (
            "Which key gets the most weight, the one with the largest score?",
            "Take the softmax of the scores as they are.",
        ),
    ),
    _weights(
        "no_exp",
        "negative scores become 0 and the rest is divided by its sum: the exponential is missing",
        _relu,
        _POSITIVE_HINTS,
    ),
    _weights(
        "no_exp",
        "negative scores become 0, a little is added, and the rest is divided by its sum: the exponential is missing",
        _relu_safe,
        _POSITIVE_HINTS,
    ),
    *(
        _filled(fault, fill)
        for fill in (-1e9, -1e4, torch.finfo(torch.float64).min)
        for fault in (*_OVER[:5], _NO_SOFTMAX)
    ),
    _filled(_NO_SOFTMAX, 0.0),
)
