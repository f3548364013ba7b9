"""Whether a solution that takes a mask still gives the same where hidden keys hold other, or huge, numbers."""

from collections.abc import Callable
from typing import Any

import torch

from mha_course.checks import words
from mha_course.checks.calls import Checked, Problem, call
from mha_course.checks.task import Case, Task

TOLERANCE = 1e-6
FACTORS = (1.0, -1.0, 1000.0, -1000.0)

_SHOWS_HINTS = (
    "Change the numbers of a key that is hidden: nothing may change in the rows that do not see it.",
    "Look for a step that takes all keys together before the mask is in.",
)


def check_hidden(task: Task, fn: Callable[..., Any], cases: tuple[Case, ...]) -> Checked:
    """Replace a hidden key by other numbers, then by 1000 times larger ones; compare the rows that do not see it.

    Larger ones are no fault: a solution is asked for that is right for the numbers it is given. They are remarked.
    """
    replaced = task.hidden
    if replaced is None:
        return Checked()
    for index, case in enumerate(cases):
        before = call(task, fn, case).results
        if before is None or min(case.sizes.values()) == 1:
            continue
        for factor in FACTORS:
            inputs, rows = replaced(factor, *case.inputs)
            got = call(task, fn, Case(case.sizes, inputs, case.note)).results
            if got is None or any(x.shape != y.shape for x, y in zip(got, before, strict=True)):
                continue
            old, new = before[0], got[0]
            rows = rows.expand(old.shape)
            moved = rows & ~torch.isclose(new, old, rtol=TOLERANCE, atol=TOLERANCE)
            if bool(moved.any()):
                letters = task.results[0][1]
                place = words.place(moved.nonzero()[0].tolist(), letters, task.axes)
                where = f"{place}, {words.case_sizes(index, case)}"
                if abs(factor) > 1:
                    return Checked(remark=_remark(_gone(new[moved]), where))
                seen = f"a hidden key was replaced, and a row that may not see it is another one, {where}"
                return Checked(Problem("a hidden key shows through", seen, _SHOWS_HINTS))
        break
    return Checked()


def _gone(x: torch.Tensor) -> bool:
    """Whether nothing is left of the numbers: some are NaN or infinity, or nearly all are about 0."""
    return not bool(x.isfinite().all()) or bool((x.abs() < TOLERANCE).double().mean() > 0.9)


def _remark(gone: bool, where: str) -> str:
    why = "the mask comes after the softmax" if gone else "it is not minus infinity before the softmax"
    return f"a large hidden score spoils the row: {why}; with a hidden key 1000 times larger, {where}"
