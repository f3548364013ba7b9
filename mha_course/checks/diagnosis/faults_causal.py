"""Faults of hiding the future inside."""

import torch

from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.steps import Mask

_CAUSAL_HINTS = (
    "Change the last token of the input: which rows of the result change?",
    "A query sees its own position and what comes before it: key s from query t if s <= t.",
)


def _seen(name: str, said: str, tril: int | None, triu: int | None = None, *, left: bool = False) -> Fault:
    """Hide all but a band: from diagonal triu up to diagonal tril, counted from the lower right or the upper left."""

    def see(T: int, S: int) -> Mask:
        offset = 0 if left else S - T
        seen = torch.ones(T, S, dtype=torch.bool)
        seen = seen if tril is None else seen.tril(tril + offset)
        return seen if triu is None else seen.triu(triu + offset)

    return Fault(name, said, {"see": see}, _CAUSAL_HINTS)


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
_INSIDE = "it hides the future by itself, whatever the mask says"
CAUSAL_INSIDE = (
    _seen("causal_beside_mask", _INSIDE, 0),
    _seen("causal_beside_mask", _INSIDE, 0, left=True),
)
