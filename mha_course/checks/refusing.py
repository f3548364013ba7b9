"""Whether a solution refuses what does not fit, and leaves everything as it was."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mha_course.checks import words
from mha_course.checks.calls import Checked, Outcome, Problem, call
from mha_course.checks.task import Case, Task

_SILENT = "nothing is raised when the cache is full"
_HINTS = (
    "Fill the cache to the last slot, then add one more token: what does your function return?",
    "Compare length + T with the number of slots first, and raise ValueError if it is larger.",
)
_OWN_HINTS = (
    "Call your function with more tokens than there are free slots, and read what is raised.",
    _HINTS[1],
)
_LATE_HINTS = (
    "Look at the buffers after the error: are they as they were before the call?",
    "Compare length + T with the number of slots before the first line that writes.",
)


def check_refused(task: Task, fn: Callable[..., Any], cases: tuple[Case, ...]) -> Checked:
    """Call a solution, right in all cases, with new tokens that do not fit into its buffers."""
    for index, case in enumerate(task.refused() if task.refused else ()):
        copies = [x.clone() if isinstance(x, Tensor) else x for x in case.inputs]
        got = call(task, lambda *_, copies=copies: fn(*copies), case)
        problem = _problem(task, got, case, copies)
        if problem is not None:
            fault, seen, hints = problem
            where = words.case_sizes(len(cases) + index, case)
            return Checked(Problem(fault, f"{seen}, {where}" if seen else where, hints))
    return Checked()


def _problem(task: Task, got: Outcome, case: Case, copies: list[Any]) -> Problem | None:
    names = [name for name, _ in task.written]
    before, after = (
        [x.detach().double() for name, x in zip(task.arguments, xs, strict=True) if name in names]
        for xs in (case.inputs, copies)
    )
    changed = not all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    error = got.error
    if isinstance(error, ValueError):
        return (
            Problem("a call that is refused was half done: something was written before the error", "", _LATE_HINTS)
            if changed
            else None
        )
    if error is not None:
        said = f"it raises {words.raised(error, len)[0]}"
        if isinstance(error, RuntimeError | IndexError) and not isinstance(error, NotImplementedError):
            return Problem("a full cache is not checked for: PyTorch stops it, not a ValueError", said, _OWN_HINTS)
        return Problem(f"a full cache raises {type(error).__name__}, expected ValueError", said, _OWN_HINTS)
    held = case.sizes["length"]
    if not all(torch.equal(x[:, :, :held], y[:, :, :held]) for x, y in zip(before, after, strict=True)):
        return Problem(f"{_SILENT}: tokens that are held are overwritten", "", _HINTS)
    longest = max((x.shape[2] for x in got.results or () if x.ndim > 2), default=0)
    if longest > case.sizes["room"]:
        seen = f"{longest} tokens are returned, the buffers have {case.sizes['room']} slots"
        return Problem(f"{_SILENT}: what is returned grows beyond the buffers", seen, _HINTS)
    return Problem(f"{_SILENT}: new tokens are lost without a word", "", _HINTS)
