"""The exercise of notebook 00: softmax."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from mha_course.checks.task import Case, Task, Variation, draw

Scores = Float[Tensor, "rows columns"]


def _cases() -> tuple[Case, ...]:
    sizes = [(3, 5), (5, 5), (7, 2), (3, 5), (3, 5), (1, 5), (3, 1)]
    drawn = list(draw(0, *sizes))
    notes = [""] * len(sizes)
    drawn[3] += drawn[3].new_tensor([1000, -1000, 0]).unsqueeze(-1)  # (3, 1)
    notes[3] = "scores around 1000 and -1000"
    # No column and no average of a row is near its maximum in all three.
    large = drawn[4].new_tensor([[1, -1, 1, -1, -1], [-1, 1, -1, -1, 1], [-1, -1, 1, 1, -1]])
    drawn[4] += 1000 * large
    notes[4] = "scores around 1000 and -1000 in each row"
    return tuple(
        Case({"rows": n, "columns": m}, (x,), note) for (n, m), x, note in zip(sizes, drawn, notes, strict=True)
    )


def _share(positive: Scores, axis: tuple[int, ...]) -> Scores:
    return positive / positive.sum(axis, keepdim=True)


def _stable(x: Scores) -> Scores:
    """Exponentials, the largest of each row 1."""
    return (x - x.amax(1, keepdim=True)).exp()


def _lowered(number: Callable[[Scores], Scores]) -> Variation:
    """Softmax after subtracting another number of each row than its maximum."""
    return Variation(
        "another number than the row's maximum is subtracted",
        lambda x: _share((x - number(x)).exp(), (1,)),
        (
            "Look at a row that holds scores around 1000 and around -1000: what is left for exp?",
            _ONE_NUMBER,
        ),
    )


_ONE_NUMBER = (
    "Softmax does not change when every score of a row is lowered by one number. "
    "Choose the number that makes the largest score 0."
)
_WRONG_AXIS = "each column sums to 1, not each row: the softmax takes the wrong axis"
_OVER_ALL = "the softmax runs over the whole matrix, not over each row by itself"
_BASE_2 = "powers of 2 are taken, 2 ** x instead of e ** x"
_NO_DIVISION = "the weights of a row do not sum to 1, the division is missing"
_AXIS_HINTS = (
    "Sum your result over each axis: which sums are 1, which should be?",
    "Each row is shared out by itself. Sum over the axis that counts its columns, the last one.",
)
_ALL_HINTS = (
    "Sum each row of your result: what should come out, and what does?",
    "Divide each row by its own sum: sum over the last axis, and keep it so that it broadcasts.",
)
_BASE_HINTS = (
    "Try the row (0, 1): the second weight should be e times the first.",
    "Take torch.exp, the powers of e.",
)
_DIVISION_HINTS = ("Sum each row of your result: what should come out?", "Divide each row by its sum.")

softmax = Task(
    name="softmax",
    arguments=("scores",),
    results=(("weights", ("rows", "columns")),),
    reference=lambda scores: scores.softmax(-1),
    cases=_cases,
    variations=(
        Variation(_WRONG_AXIS, lambda x: x.softmax(0), _AXIS_HINTS),
        Variation(_WRONG_AXIS, lambda x: _share(x.exp(), (0,)), _AXIS_HINTS),
        Variation(_WRONG_AXIS, lambda x: _share(_stable(x), (0,)), _AXIS_HINTS),
        Variation(_OVER_ALL, lambda x: x.flatten().softmax(0).view_as(x), _ALL_HINTS),
        Variation(_OVER_ALL, lambda x: _share(x.exp(), (0, 1)), _ALL_HINTS),
        Variation(
            "each row is divided by the sum of the whole matrix, not by its own",
            lambda x: _share(_stable(x), (0, 1)),
            _ALL_HINTS,
        ),
        Variation(
            "large scores overflow: exp(1000) is infinity, and infinity / infinity is NaN",
            lambda x: _share(x.exp(), (1,)),
            (
                "The formula is right. Look at exp of the scores around 1000, in case 4.",
                _ONE_NUMBER,
            ),
        ),
        _lowered(lambda x: x.amin(1, keepdim=True)),  # the mean and the median overflow in the same places
        _lowered(lambda x: x[:, :1]),
        _lowered(lambda x: x[:, -1:]),
        Variation(
            "the largest score of the whole matrix is subtracted, not that of each row",
            lambda x: _share((x - x.max()).exp(), (1,)),
            (
                "Look at the row whose scores are around -1000: what is left of it after exp?",
                "Take the largest score of each row, and keep its axis so that it broadcasts.",
            ),
        ),
        Variation(
            "the largest score of each column is subtracted, not that of each row",
            lambda x: _share((x - x.amax(0)).exp(), (1,)),
            (
                "Look at the row whose scores are around -1000: what is left of it after exp?",
                "Take the largest score over the last axis, and keep it so that it broadcasts.",
            ),
        ),
        Variation(
            "the exponential is missing, scores are divided by their sum",
            lambda x: _share(x, (1,)),
            (
                "A weight cannot be negative. Where does yours become positive?",
                "Take the exponential of the scores before you divide by the sum.",
            ),
        ),
        Variation(_BASE_2, lambda x: _share(2**x, (1,)), _BASE_HINTS),
        Variation(_NO_DIVISION, _stable, _DIVISION_HINTS),
        Variation(_NO_DIVISION, lambda x: x.exp(), _DIVISION_HINTS),
        Variation(_NO_DIVISION, lambda x: (x - x.max()).exp(), _DIVISION_HINTS),
        Variation(
            "the result is the logarithm of the weights",
            lambda x: x.log_softmax(1),
            ("Can a weight be negative?", "Take softmax itself, not its logarithm."),
        ),
    ),
    hints=(
        "Take one row of that case and do it by hand: exp of each score, then their sum.",
        "Compare with your function step by step: exponentials, sum over each row, quotient.",
    ),
    shape_hint="Return one weight for each score: the result has the shape of the scores.",
)

TASKS = (softmax,)
