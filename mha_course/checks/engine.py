"""Compare a solution with the reference of its exercise, and say what is wrong with it."""

import itertools
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from mha_course.checks import (
    errors,
    tasks_00,
    tasks_01,
    tasks_02,
    tasks_03,
    tasks_04,
    tasks_05,
    tasks_06,
    tasks_07,
    tasks_08,
    tasks_09,
    tasks_10,
    tasks_11,
    tasks_12,
    tasks_13,
    tasks_14,
    tasks_15,
    words,
)
from mha_course.checks.calls import Checked, Outcome, Problem, call, is_refused, known, reverses_axes
from mha_course.checks.gradients_of import check_gradients
from mha_course.checks.held import check_held
from mha_course.checks.hidden_keys import check_hidden
from mha_course.checks.limit import ENDLESS_HINTS, OutOfTime, time_limit
from mha_course.checks.pairs import may_fit, pairs, telling_case
from mha_course.checks.parting import first_missing, record
from mha_course.checks.printed import limited_output
from mha_course.checks.random_state import own_random_state
from mha_course.checks.refusing import check_refused
from mha_course.checks.repeated import check_repeated
from mha_course.checks.task import Case, Task, Variation
from mha_course.checks.verdict import NOT_ATTEMPTED, Verdict
from mha_course.checks.watching import no_mode_left

SECONDS = 10  # for the calls of a solution, all cases together

_LESSONS = (
    *(tasks_00, tasks_01, tasks_02, tasks_03, tasks_04, tasks_05),
    *(tasks_06, tasks_07, tasks_08, tasks_09, tasks_10, tasks_11, tasks_12),
    *(tasks_13, tasks_14, tasks_15),
)
_TASKS = {task.name: task for lesson in _LESSONS for task in lesson.TASKS}


def tasks() -> tuple[str, ...]:
    """Return the names of all exercises that `check` knows."""
    return tuple(_TASKS)


def check(name: str, fn: Callable[..., Any]) -> Verdict:
    """Check a solution of an exercise.

    The solution is called on a few drawn cases. Whatever it raises becomes part of the verdict,
    only an interrupt passes through. Global random states are the same afterwards. A solution that does not
    come to an end is stopped, and of what it prints the beginning alone is shown.

    Args:
        name: the exercise, one of `tasks()`.
        fn: the solution. A stub that raises NotImplementedError is "not attempted yet".

    Returns:
        A Verdict(ok, fault, evidence, hints, ...): leave it as the last line of a cell.

    Raises:
        ValueError: no exercise has that name.
        TypeError: fn cannot be called.
    """
    if name not in _TASKS:
        raise ValueError(f"no exercise is named {name!r}; there are {', '.join(_TASKS)}")
    if not callable(fn):
        raise TypeError(f"fn must be a function, got {type(fn).__name__}: leave out its ()")
    with own_random_state(), warnings.catch_warnings(), limited_output(), no_mode_left():
        warnings.simplefilter("ignore")
        return _judge(_TASKS[name], fn)


def _judge(task: Task, fn: Callable[..., Any]) -> Verdict:
    cases = task.cases()
    outcomes: list[Outcome] = []
    try:
        with time_limit(SECONDS):
            for case in cases:
                outcomes.append(call(task, fn, case))
    except OutOfTime:
        where = words.case_sizes(len(outcomes), cases[min(len(outcomes), len(cases) - 1)])
        return Verdict(False, f"it did not finish within {SECONDS} s", f"it was stopped in {where}", ENDLESS_HINTS)
    if all(outcome.error is not None and words.is_stub(outcome.error) for outcome in outcomes):
        return Verdict(False, NOT_ATTEMPTED, "the function raises NotImplementedError")
    expected = [known(task, task.reference, i, case) for i, case in enumerate(cases)]
    found = ((_problem(task, fn, i, case, outcomes[i], expected[i]), case) for i, case in enumerate(cases))
    problem, where_wrong = next(((one, case) for one, case in found if one is not None), (None, cases[0]))
    changed = next((outcome.changed for outcome in outcomes if outcome.changed), ())
    if problem is None and not changed:
        return _right(task, fn, cases)
    if problem is None:
        layer = any(
            name in changed and isinstance(x, torch.nn.Module)
            for name, x in zip(task.arguments, cases[0].inputs, strict=True)
        )
        return Verdict(False, _mutation(changed), "its results are right", _LAYER_HINTS if layer else _MUTATION_HINTS)

    fault, evidence, hints = problem
    variation = _fitting(task, cases, outcomes)
    if variation is not None:
        if fault.startswith("it raises") or fault.endswith(("holds NaN", "holds infinity")):
            evidence = f"{fault}, {evidence}"
        fault, hints = variation.fault, variation.hints
    elif not fault.startswith("it ") and _in_time(lambda: _draws(task, fn, where_wrong), False):
        fault, hints = _CHANCE, _CHANCE_HINTS
    elif not fault.startswith("it ") and all(outcome.unreadable is None for outcome in outcomes):
        evidence += _in_time(lambda: _parts(task, fn, where_wrong), "")
    if changed:
        evidence += f"; also, {_mutation(changed)}"
    return Verdict(False, fault, evidence, hints)


def _draws(task: Task, fn: Callable[..., Any], case: Case) -> bool:
    """Whether two more calls give two results, other seeds apart."""
    one, two = call(task, fn, case), call(task, fn, case)
    return one.results is not None and two.results is not None and not _same_numbers(one.results, two.results)


def _same_numbers(one: tuple[torch.Tensor, ...], two: tuple[torch.Tensor, ...]) -> bool:
    pairs = zip(one, two, strict=True)
    return all(a.shape == b.shape and torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in pairs)


def _in_time(further: Callable[[], Any], otherwise: Any) -> Any:
    """What a further look at a solution gives, or something else if the solution does not come to an end there."""
    try:
        with time_limit(SECONDS):
            return further()
    except OutOfTime:
        return otherwise


def _right(task: Task, fn: Callable[..., Any], cases: tuple[Case, ...]) -> Verdict:
    """The verdict where every number agrees: gradients, what hidden keys do, or what is held may still be wrong."""
    what = "entry" if task.dtype == "bool" else "number"
    agree = f"{len(cases)} cases, every {what} agrees with the reference"
    remarks = []
    for look in (check_hidden, check_gradients, check_held, check_refused, check_repeated):
        problem, remark = _in_time(partial(look, task, fn, cases), Checked())
        if problem is not None:
            return Verdict(False, *problem)
        remarks += [remark] if remark else []
    return Verdict(True, None, agree, remarks=tuple(remarks))


def _fitting(task: Task, cases: tuple[Case, ...], outcomes: list[Outcome]) -> Variation | None:
    """The first variation that does what the solution does in every case, else the first pair of them."""
    for variation in task.variations:
        varied = (known(task, variation.fn, i, case) for i, case in enumerate(cases))
        if _fits(variation, varied, cases, outcomes):
            return variation
    telling = telling_case(cases, outcomes)
    if telling is None:
        return None
    case, got = cases[telling], outcomes[telling]
    for pair in pairs(task):
        varied = (call(task, pair.fn, case) for case in cases)
        if may_fit(task, pair, case, got) and _fits(pair, varied, cases, outcomes):
            return pair
    return None


def _fits(variation: Variation, varied: Iterable[Outcome], cases: tuple[Case, ...], outcomes: list[Outcome]) -> bool:
    may_raise = (variation.may_raise(case.sizes) for case in cases)
    tolerances = (case.tolerance for case in cases)
    return all(itertools.starmap(_same, zip(outcomes, varied, may_raise, tolerances, strict=True)))


def _parts(task: Task, fn: Callable[..., Any], case: Case) -> str:
    """Up to which step the numbers of a solution agree with those of the reference, "" if that is unknown."""
    if task.steps is None:
        return ""
    parting = first_missing(record(lambda: call(task, fn, case)), task.steps(*case.inputs))
    return f"; no known fault fits: {parting.said()}" if parting.differs is not None and parting.said() else ""


_MUTATION_HINTS = (
    "Look for operations that end in an underscore, for +=, *=, /=, and for writing into x[...].",
    "Give the result a name of its own, so that the caller's data stay as they were.",
)

_CHANCE = "each call gives another result: something is drawn at random, or kept from one call to the next"
_CHANCE_HINTS = (
    "Call your function twice with the same input: do the results agree?",
    "Nothing has to be drawn or kept here: use what the arguments give.",
)

_LAYER_HINTS = (
    "Look for what your function sets on it, as in layer.forward = ..., and for hooks that it leaves behind.",
    "Call it, layer(x), and leave it as it was.",
)


def _mutation(changed: tuple[str, ...]) -> str:
    return f"it changes its input {', '.join(changed)} in place"


def _problem(
    task: Task, fn: Callable[..., Any], index: int, case: Case, got: Outcome, right: Outcome
) -> Problem | None:
    """What is wrong with the outcome of one case, None if nothing is."""
    where = words.case_sizes(index, case)
    if got.error is not None:
        return _error(task, fn, got.error, case, where)
    if got.unreadable is not None:
        fault, evidence, hints = got.unreadable
        return Problem(fault, f"{evidence}, {where}" if evidence else where, hints)
    assert got.results is not None
    assert right.results is not None
    for (name, letters), x, y in zip((*task.results, *task.written), got.results, right.results, strict=True):
        if x.shape != y.shape:
            shapes = [words.shape_in_letters(z.shape, case.sizes, letters) for z in (x, y)]
            fault = f"{name} has the wrong shape"
            if reverses_axes(task, fn, case):
                hints = errors.REVERSED_AXES
            elif x.ndim < y.ndim and 1 in y.shape and "1" not in letters:
                hints = errors.SQUEEZED
            else:
                hints = _shape_hints(task, case)
            return Problem(fault, f"shape {shapes[0]}, expected {shapes[1]}, {where}", hints)
        for bad, what in ((x.isnan(), "NaN"), (x.isinf() & (x != y), "infinity")):
            if bad.any():
                place = words.place(bad.nonzero()[0].tolist(), letters, task.axes)
                at = f", the first at {place}" if place else ""
                seen = f"{int(bad.sum())} of {x.numel()} numbers{at}, {where}"
                return Problem(f"{name} holds {what}", seen, task.hints)
        difference = (x - y).abs().masked_fill(x == y, 0)  # two infinities are equal
        if task.dtype == "bool" and difference.any():
            first = tuple(difference.nonzero()[0].tolist())
            place = words.place(first, letters, task.axes)
            seen = f"{int(difference.sum())} of {x.numel()} entries differ, the first at {place}"
            values = f"{bool(x[first])}, expected {bool(y[first])}"
            return Problem(f"{name} differs from the reference", f"{seen}: {values}, {where}", task.hints)
        if (difference > case.tolerance * (1 + y.abs().masked_fill(y.isinf(), 0))).any():
            # The first of the largest: ties must not be decided by the last bit.
            largest = difference.max()
            place = words.place((difference >= largest * (1 - 1e-6)).nonzero()[0].tolist(), letters, task.axes)
            where = f"{place}, {where}" if place else where
            seen = f"largest difference {words.number(largest.item())} in {name}, {where}"
            if task.plain is not None:
                seen = f"{task.plain.said(name, x.item(), y.item())}, {where}"
            return Problem("the numbers differ from the reference", seen, task.hints)
    return None


def _shape_hints(task: Task, case: Case) -> tuple[str, str]:
    different = words.all_different(tuple(case.sizes))
    return f"Print the shape after each line{different}, and find the first that surprises.", task.shape_hint


def _error(task: Task, fn: Callable[..., Any], error: BaseException, case: Case, where: str) -> Problem:
    said, line = words.raised(error, fn)
    if is_refused(task, fn, error):
        form = f"fn({', '.join(task.arguments)})"
        count = "one argument" if len(task.arguments) == 1 else f"{len(task.arguments)} arguments"
        return Problem(
            f"it cannot be called as {form}", said, ("Look at the def line.", f"Let it take {count}, as {form}.")
        )
    hints = errors.hints(error, case.sizes)
    if words.is_stub(error):
        hints = errors.UNFINISHED
    elif isinstance(error, RuntimeError) and reverses_axes(task, fn, case):
        hints = errors.REVERSED_AXES
    return Problem(f"it raises {said}", f"{line}, {where}" if line else where, hints)


def _same(got: Outcome, like: Outcome, may_raise: bool, tolerance: float) -> bool:
    """Whether two outcomes are equal: the numbers to the tolerance, the same error, or a product that does not fit.

    With may_raise, got may be any
    exception, whatever the variation gives.
    """
    if may_raise and got.error is not None:
        return not isinstance(got.error, NotImplementedError)
    if got.error is not None and like.error is not None:
        alike = words.message(got.error) == words.message(like.error)
        return type(got.error) is type(like.error) and (alike or errors.is_of_a_product(got.error))
    if got.results is None or like.results is None:
        return False
    return all(
        x.shape == y.shape and torch.allclose(x, y, tolerance, tolerance, equal_nan=True)
        for x, y in zip(got.results, like.results, strict=True)
    )
