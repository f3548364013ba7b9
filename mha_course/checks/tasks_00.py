"""The exercise of notebook 00: softmax."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks.task import Case, Task, Variation, by_steps, draw

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


@by_steps
def _built(
    lower: Callable[[Scores], Any] = lambda x: x.amax(1, keepdim=True),
    power: Callable[[Scores], Scores] = torch.exp,
    total: Callable[[Scores], Any] = lambda positive: positive.sum(1, keepdim=True),
    end: Callable[[Scores], Scores] = lambda weights: weights,
) -> Callable[[Scores], Scores]:
    """Softmax with some steps changed.

    Args:
        lower: what is subtracted from the scores.
        power: makes them positive.
        total: what they are divided by.
        end: the last step.
    """

    def fn(x: Scores) -> Scores:
        positive = power(x - lower(x))
        return end(positive / total(positive))

    return fn


def _nothing(x: Scores) -> float:
    return 0.0


def _by_one(positive: Scores) -> float:
    return 1.0


def _by_column(positive: Scores) -> Any:
    return positive.sum(0)


def _by_all(positive: Scores) -> Any:
    return positive.sum()


def _lowered(number: Callable[[Scores], Scores]) -> Variation:
    """Softmax after subtracting another number of each row than its maximum."""
    return Variation(
        "another number than the row's maximum is subtracted",
        _built(lower=number),
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


def _cut_off(fn: Callable[[Scores], Scores]) -> Variation:
    """Softmax of scores that are no larger than a limit: any limit does the same to scores around 1000."""
    return Variation(
        "large scores are cut off before the exponential, so that they become equal",
        fn,
        ("Look at a row that holds 1000 and 1001: which of the two should get more?", _ONE_NUMBER),
    )


softmax = Task(
    name="softmax",
    gradients=False,
    arguments=("scores",),
    results=(("weights", ("rows", "columns")),),
    reference=lambda scores: scores.softmax(-1),
    build=_built,
    cases=_cases,
    variations=(
        Variation(_WRONG_AXIS, _built(lower=lambda x: x.amax(0), total=_by_column), _AXIS_HINTS),
        Variation(f"{_WRONG_AXIS}; and large scores overflow", _built(lower=_nothing, total=_by_column), _AXIS_HINTS),
        Variation(_WRONG_AXIS, _built(total=_by_column), _AXIS_HINTS),
        Variation(_OVER_ALL, _built(lower=torch.max, total=_by_all), _ALL_HINTS),
        Variation(_OVER_ALL, _built(lower=_nothing, total=_by_all), _ALL_HINTS),
        Variation(
            "each row is divided by the sum of the whole matrix, not by its own",
            _built(total=_by_all),
            _ALL_HINTS,
        ),
        Variation(
            "large scores overflow: exp(1000) is infinity, and infinity / infinity is NaN",
            _built(lower=_nothing),
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
            _built(lower=torch.max),
            (
                "Look at the row whose scores are around -1000: what is left of it after exp?",
                "Take the largest score of each row, and keep its axis so that it broadcasts.",
            ),
        ),
        Variation(
            "the largest score of each column is subtracted, not that of each row",
            _built(lower=lambda x: x.amax(0)),
            (
                "Look at the row whose scores are around -1000: what is left of it after exp?",
                "Take the largest score over the last axis, and keep it so that it broadcasts.",
            ),
        ),
        Variation(
            "the exponential is missing, scores are divided by their sum",
            _built(lower=_nothing, power=torch.clone, total=lambda x: x.sum(1, keepdim=True)),
            (
                "A weight cannot be negative. Where does yours become positive?",
                "Take the exponential of the scores before you divide by the sum.",
            ),
        ),
        Variation(_BASE_2, _built(lower=_nothing, power=torch.exp2), _BASE_HINTS),
        _cut_off(_built(lower=_nothing, power=lambda x: x.clamp(-50, 50).exp())),
        _cut_off(lambda x: x.clamp(max=50).softmax(1)),
        Variation(
            "a sigmoid squashes every score by itself: the weights of a row do not sum to 1",
            lambda x: x.sigmoid(),
            _DIVISION_HINTS,
        ),
        Variation(
            "the smallest score gets the largest weight: a sign is wrong",
            _built(lower=lambda x: x.amin(1, keepdim=True), power=lambda x: (-x).exp()),
            ("Which score of a row gets the largest weight?", "Take the exponential of the score, not of minus it."),
        ),
        Variation(
            "the largest score takes all: that is arg max, not softmax",
            lambda x: torch.nn.functional.one_hot(x.argmax(1), x.shape[1]).to(x.dtype),
            ("Try the row (0, 1): what should the first weight be?", "Take the exponential of every score."),
        ),
        Variation(
            "all weights of a row are equal, whatever the scores",
            _built(power=torch.ones_like),
            ("Change one score: which weights change?", "Take the exponential of every score."),
        ),
        Variation(_NO_DIVISION, _built(total=_by_one), _DIVISION_HINTS),
        Variation(_NO_DIVISION, _built(lower=_nothing, total=_by_one), _DIVISION_HINTS),
        Variation(_NO_DIVISION, _built(lower=torch.max, total=_by_one), _DIVISION_HINTS),
        Variation(
            "the result is the logarithm of the weights",
            lambda x: x.log_softmax(1),
            ("Can a weight be negative?", "Take softmax itself, not its logarithm."),
            changes={"end": torch.log},
        ),
    ),
    hints=(
        "Take one row of that case and do it by hand: exp of each score, then their sum.",
        "Compare with your function step by step: exponentials, sum over each row, quotient.",
    ),
    shape_hint="Return one weight for each score: the result has the shape of the scores.",
)

TASKS = (softmax,)
