"""The exercise of notebook 00: softmax."""

from jaxtyping import Float
from torch import Tensor

from mha_course.checks.task import Case, Task, Variation, draw

Scores = Float[Tensor, "T S"]


def _cases() -> tuple[Case, ...]:
    sizes = [(3, 5), (5, 5), (7, 2), (3, 5)]
    drawn = draw(0, *sizes)
    cases = [Case({"T": T, "S": S}, (x,)) for (T, S), x in zip(sizes, drawn, strict=True)]
    shift = drawn[-1].new_tensor([1000, -1000, 0]).unsqueeze(-1)  # (3, 1)
    large = Case(cases[-1].sizes, (drawn[-1] + shift,), "scores around 1000 and -1000")
    return (*cases[:-1], large)


def _share(positive: Scores, axis: tuple[int, ...]) -> Scores:
    return positive / positive.sum(axis, keepdim=True)


_OVER_QUERIES = "the softmax runs over the queries, not over the keys"
_OVER_ALL = "the softmax runs over the whole matrix, not over the keys of each query"
_AXIS_HINTS = (
    "Sum your result over each axis: which sums are 1, which should be?",
    "A row is one query. Sum over the axis that counts its keys, the last one.",
)

softmax = Task(
    name="softmax",
    arguments=("scores",),
    results=(("weights", ("T", "S")),),
    reference=lambda scores: scores.softmax(-1),
    cases=_cases,
    variations=(
        Variation(_OVER_QUERIES, lambda x: x.softmax(0), _AXIS_HINTS),
        Variation(_OVER_QUERIES, lambda x: _share(x.exp(), (0,)), _AXIS_HINTS),
        Variation(_OVER_ALL, lambda x: x.flatten().softmax(0).view_as(x), _AXIS_HINTS),
        Variation(_OVER_ALL, lambda x: _share(x.exp(), (0, 1)), _AXIS_HINTS),
        Variation(
            "large scores overflow: exp(1000) is infinity, and infinity / infinity is NaN",
            lambda x: _share(x.exp(), (1,)),
            (
                "The formula is right. Look at exp of the last case's scores, around 1000.",
                "Softmax does not change when every score of a row is lowered by one number. "
                "Choose the number that makes the largest score 0.",
            ),
        ),
        Variation(
            "the largest score of the whole matrix is subtracted, not that of each row",
            lambda x: _share((x - x.max()).exp(), (1,)),
            (
                "Look at the row whose scores are around -1000: what is left of it after exp?",
                "Take the largest score of each row, and keep its axis so that it broadcasts.",
            ),
        ),
        Variation(
            "the exponential is missing, scores are divided by their sum",
            lambda x: _share(x, (1,)),
            (
                "A weight can not be negative. Where does yours become positive?",
                "Take the exponential of the scores before you divide by the sum.",
            ),
        ),
        Variation(
            "the weights of a query do not sum to 1, the division is missing",
            lambda x: (x - x.amax(1, keepdim=True)).exp(),
            (
                "Sum your result over the keys: each query's weights must give 1.",
                "Divide each row by its sum.",
            ),
        ),
        Variation(
            "the result is the logarithm of the weights",
            lambda x: x.log_softmax(1),
            ("Can a weight be negative?", "Take softmax itself, not its logarithm."),
        ),
    ),
    hints=(
        "Take one row of the first case and do it by hand: exp of each score, then their sum.",
        "Compare with your function step by step: exponentials, sum over keys, quotient.",
    ),
)

TASKS = (softmax,)
