"""Find what reproduces a candidate's numbers: the course's attention, or it with one or two faults."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mha_course.checks.diagnosis.bases import Base
from mha_course.checks.diagnosis.calling import Form
from mha_course.checks.diagnosis.catalogue import FAULTS, Fault, of_functions
from mha_course.checks.diagnosis.layouts import Reading
from mha_course.checks.diagnosis.steps import Inputs, Memo, Steps, Trace, run
from mha_course.checks.diagnosis.subject import Outcome, Subject

EXACT, LOOSE = 1e-8, 2e-5  # absolute and relative; the loose one for a softmax in float32
SINGLES = 6  # readings in which faults are tried
_BY_HEAD = "(head; q, k, v; feature)"


class Match(NamedTuple):
    """What reproduces the candidate's numbers."""

    form: Form
    reading: Reading | None
    base: Base
    faults: tuple[Fault, ...] = ()

    @property
    def changes(self) -> Steps:
        """All steps that differ from plain attention."""
        changes = dict(self.base.changes)
        for fault in self.faults:
            changes |= fault.changes
        return changes


class Case:
    """One call: inputs, outcome, and what the steps gave for these inputs so far."""

    def __init__(self, x: Inputs, got: Outcome) -> None:
        self.x, self.got = x, got
        self._memos: dict[int, Memo] = {}

    def trace(self, match: Match) -> Trace | None:
        """What the match gives; None if its steps do not fit these sizes."""
        memo = self._memos.setdefault(id(match.reading), {})
        weights = match.reading.weights if match.reading else None
        try:
            return run(self.x, weights, match.changes, memo)
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
            return None


Forms = Sequence[tuple[Form, Sequence[Case]]]


def _rows_that_see_nothing(trace: Trace, shape: torch.Size) -> Tensor | None:
    """Which rows of a result come from a row of scores that hides every key; None if that cannot be told."""
    if trace.hidden is None:
        return None
    empty = (trace.hidden == -torch.inf).all(-1)  # (B, H, T)
    if trace.merged is not None:
        empty = empty.any(1)  # (B, T)
    return empty if empty.shape == shape else None


def _last_differs(got: Tensor, trace: Trace) -> bool:
    """Whether the last number already tells that a result is another; most are, and a look at all costs time."""
    a, b = got[(-1,) * got.ndim].item(), trace.out[(-1,) * got.ndim].item()
    if not (math.isfinite(a) and math.isfinite(b)) or abs(a - b) <= 1e-3 * (1 + abs(a)):
        return False
    return trace.hidden is None or not bool((trace.hidden == -math.inf).all(-1).any())


def equal(got: Tensor, trace: Trace, tolerance: float) -> bool:
    """Whether a result is that of a trace; rows that see nothing may hold anything."""
    out = trace.out
    if got.shape != out.shape or _last_differs(got, trace):
        return False
    if torch.allclose(got, out, tolerance, tolerance, equal_nan=True):
        return True
    free = _rows_that_see_nothing(trace, out.shape[:-1])
    if free is None or not free.any():
        return False
    return torch.allclose(got[~free], out[~free], tolerance, tolerance, equal_nan=True)


def reproduces(match: Match, cases: Sequence[Case], tolerance: float, *, nan: bool = False) -> bool:
    """Whether a match gives what the candidate gave: the same numbers, and errors for errors.

    Args:
        match: what is tried.
        cases: the calls.
        tolerance: absolute and relative.
        nan: whether NaN throughout is enough of a result.
    """
    seen = False
    for case in cases:
        trace = case.trace(match)
        if case.got.out is None:
            if trace is not None:
                return False
            continue
        if trace is None or not equal(case.got.out, trace, tolerance):
            return False
        telling = case.got.out.isfinite() & trace.out.isfinite() & (trace.out != 0)
        seen |= nan or telling.double().mean().item() > 0.5
    return seen


def candidates(subject: Subject) -> tuple[Fault, ...]:
    """The faults that such a candidate can have."""
    return FAULTS if subject.is_module else of_functions()


def _likely(subject: Subject) -> list[Reading | None]:
    """The first readings, and the fused layout in which a head's q, k and v lie together."""
    some = subject.readings[:SINGLES]
    by_head = (r for r in subject.readings[SINGLES:] if r is not None and r.remark.endswith(_BY_HEAD))
    return [*some, *itertools.islice(by_head, 2)]


def _fitting(subject: Subject, form: Form, fault: Fault) -> bool:
    """Whether a fault can be told in this form: the batch is taken for the tokens only where it should be first."""
    return fault.name != "batch_first_confusion" or form.layout in ("B T E", subject.layouts[0])


def singles(subject: Subject, forms: Forms, bases: Sequence[Base], loose: list[Match]) -> Iterator[Match]:
    """All single faults that reproduce the numbers exactly, in every form and the likeliest readings.

    Args:
        subject, forms, bases: what is compared.
        loose: gets those that reproduce them loosely alone.
    """
    longest = max(sizes.S for sizes in subject.sizes().values())
    shown = [fault for fault in candidates(subject) if fault.keys < longest]
    for form, cases in forms:
        some = [fault for fault in shown if _fitting(subject, form, fault)]
        for reading in _likely(subject):
            for base in bases:
                for fault in some:
                    match = Match(form, reading, base, (fault,))
                    if not reproduces(match, cases, LOOSE):
                        continue
                    if reproduces(match, cases, EXACT):
                        yield match
                    else:
                        loose.append(match)


def both(subject: Subject, forms: Forms, bases: Sequence[Base],
         pairs: Iterable[tuple[Fault, Fault]]) -> Iterator[Match]:  # fmt: skip
    """All pairs of faults that reproduce the numbers, in the likeliest reading; those that do so exactly first."""
    pairs = list(pairs)
    loose = []
    for form, cases in forms:
        for base in bases:
            for pair in pairs:
                match = Match(form, subject.first, base, pair)
                if reproduces(match, cases, LOOSE):
                    if reproduces(match, cases, EXACT):
                        yield match
                    else:
                        loose.append(match)
    yield from loose
