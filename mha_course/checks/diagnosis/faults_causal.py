"""Faults of hiding the future inside."""

import torch

from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.steps import Array, Mask, Step, causal, hide

_CAUSAL_HINTS = (
    "Change the last token of the input: which rows of the result change?",
    "A query sees its own position and what comes before it: key s from query t if s <= t.",
)
_FILL_HINTS = (
    "Look at the weights of the first row: all but its first weight should be 0.",
    "exp(0) is 1, so that a score of 0 hides nothing: minus infinity does, before the softmax.",
)


def _seen(name: str, said: str, tril: int | None, triu: int | None = None, *, left: bool = False) -> Fault:
    """Hide all but a band: from diagonal triu up to diagonal tril, counted from the lower right or the upper left."""

    def see(T: int, S: int) -> Mask:
        offset = 0 if left else S - T
        seen = torch.ones(T, S, dtype=torch.bool)
        seen = seen if tril is None else seen.tril(tril + offset)
        return seen if triu is None else seen.triu(triu + offset)

    return Fault(name, said, {"see": see}, _CAUSAL_HINTS)


def _filled(fill: float, *, added: bool = False) -> Step:
    """The future's scores become a number, or it is added to them; the caller's mask hides as it should."""

    def step(scores: Array, mask: Mask | None) -> Array:
        past = causal(*scores.shape[-2:])
        return hide(scores + (~past).to(scores.dtype) * fill if added else hide(scores, past, fill), mask)

    return step


def _fill(name: str, said: str, fill: float, *, added: bool = False) -> Fault:
    return Fault(name, said, {"hide": _filled(fill, added=added)}, _FILL_HINTS)


CAUSAL_LATE = Fault(
    "causal_after_softmax",
    "the future is hidden after the softmax, whose sum has seen it: the weights of a query sum to less than 1",
    {"after": lambda weights, mask: weights.tril(weights.shape[-1] - weights.shape[-2])},
    ("Sum the weights of the first query: what should come out?", "Hide the scores, before the softmax."),
)
_DIAGONAL = "the diagonal is hidden too: no token sees itself, and the first row sees nothing"
_FUTURE = "the future is seen and the past is hidden"
CAUSAL = (
    CAUSAL_LATE,
    _seen("diagonal_masked", _DIAGONAL, -1),
    _seen("diagonal_masked", _DIAGONAL, -1, left=True),
    _seen("future_only", f"{_FUTURE}: no token sees itself", None, 1),
    _seen("future_only", f"{_FUTURE}: no token sees itself", None, 1, left=True),
    _seen("future_only", _FUTURE, None, 0),
    _seen("future_only", _FUTURE, None, 0, left=True),
    _seen("sees_one_ahead", "every token sees one token of its future", 1),
    _seen("sees_one_ahead", "every token sees one token of its future", 1, left=True),
    _seen("sees_itself_only", "every token sees itself alone", 0, 0),
    _seen("sees_itself_only", "every token sees itself and the one before it alone", 0, -1),
    _fill("mask_fill_zero", "the scores of the future become 0, which hides nothing", 0.0),
    *(
        _fill("mask_fill_weak", f"the scores of the future become {fill:g}, which hides them too little", fill)
        for fill in (-1.0, -5.0, -9.0, -10.0)
    ),
    *(
        _fill(
            "mask_fill_weak",
            f"{-fill:g} is taken off the scores of the future, which hides them too little",
            fill,
            added=True,
        )
        for fill in (-1.0, -5.0, -10.0)
    ),
    _fill("mask_fill_positive", "the scores of the future become large, not minus infinity: the future takes all", 1e9),
    Fault(
        "causal_after_softmax",
        "the future is hidden after the softmax, and what is left is divided by the sums over the queries",
        {
            "after": lambda weights, mask: (
                (left := weights.tril(weights.shape[-1] - weights.shape[-2])) / left.sum(-2, keepdim=True)
            )
        },
        ("Sum the weights of the first query: what should come out?", "Hide the scores, before the softmax."),
    ),
)
TOP_LEFT = _seen(
    "causal_top_left",
    "the future is hidden from the upper left: with more keys than queries the last keys stay hidden from all",
    0,
    left=True,
)
CAUSAL_MISSING = Fault(
    "causal_missing",
    "the future is not hidden",
    {"see": lambda T, S: None},
    _CAUSAL_HINTS,
)


def unasked(see: Step) -> Step:
    """Hide what is not seen where no mask is given, and only there."""
    return lambda scores, mask: hide(scores, see(*scores.shape[-2:]) if mask is None else mask)


CAUSAL_UNASKED = Fault(
    "causal_without_mask",
    "it hides the future where no mask is given, and only there",
    {"hide": unasked(causal)},
    (
        "Call it without a mask, and with one that hides nothing: do the results agree?",
        "Let the caller say it: is_causal=mask is None hides the future unasked.",
    ),
)
_INSIDE = "it hides the future by itself, whatever the mask says"
CAUSAL_INSIDE = (
    _seen("causal_beside_mask", _INSIDE, 0),
    _seen("causal_beside_mask", _INSIDE, 0, left=True),
)
