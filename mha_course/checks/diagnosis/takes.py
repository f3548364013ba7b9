"""Find the width and the lengths that a candidate takes, where the usual ones make it raise."""

from collections.abc import Callable
from typing import Any

from mha_course.checks.diagnosis import calling
from mha_course.checks.diagnosis.calling import Form, NoAdapter, Signature
from mha_course.checks.diagnosis.subject import Outcome, Subject

SHORT = ((4, 5), (3, 4))  # T and S for a table that ends early
BLOCKS = ((8, 16), (64, 128))  # and for blocks of a fixed size
_OF_BLOCKS = ("divi", "multiple", "block", "chunk", "window", "length", "tokens")


def settled(fn: Callable[..., Any], num_heads: int | None = None, how: Signature | None = None) -> Subject:
    """A subject whose calls give numbers, if any inputs are found for which they do.

    Raises:
        NoAdapter: it wants arguments that cannot be guessed, or takes two tokens and no more.
        Unreadable: a module's weights cannot be read.
    """
    subject = Subject(fn, num_heads, how)
    _settle(subject)
    return subject


def _settle(subject: Subject) -> None:
    """Set `readings` and `lengths` so that calls give numbers, if those of the subject do not."""
    likeliest = subject.layouts[0]
    if _answers(subject, likeliest) or _fits_another_width(subject):
        return
    errors = [got.error for got in _calls(subject, likeliest) if got.error is not None]
    said = " ".join(f"{type(error).__name__} {_text(error)}".lower() for error in errors)
    tries = (*SHORT, *BLOCKS) if "assert" in said or any(word in said for word in _OF_BLOCKS) else SHORT
    if not subject.is_module and any(_answers(subject, layout) for layout in subject.layouts):
        return
    if _fits_other_lengths(subject, likeliest, [one for one in tries if _clear(subject, one)]):
        return
    if any(_answers(subject, layout) for layout in subject.layouts):
        return
    if len(errors) < len(subject.sizes()):
        return  # it takes these lengths, and not every pair of them
    if _fits_other_lengths(subject, likeliest, [one for one in tries if not _clear(subject, one)]):
        return
    if subject.is_module and _fits_other_lengths(subject, likeliest, [(2, 2)]):
        raise NoAdapter("it gives numbers for two tokens and raises for more, and two are too few to judge it")


def _fits_another_width(subject: Subject) -> bool:
    """Whether the calls give numbers with inputs of another width that its weights allow; it is kept then."""
    usual = subject.readings
    if subject.first is None:
        return False
    widths = dict.fromkeys(reading.widths for reading in usual if reading is not None)
    for one in list(widths)[1:]:
        subject.forget()
        subject.readings = sorted(usual, key=lambda reading: reading is None or reading.widths != one)
        if any(_answers(subject, layout) for layout in subject.layouts):
            return True
    subject.readings = usual
    subject.forget()
    return False


def _clear(subject: Subject, lengths: tuple[int, int]) -> bool:
    return not {*lengths[: 2 if subject.how.crosses else 1]} & subject.taken()


def _fits_other_lengths(subject: Subject, layout: str, tries: list[tuple[int, int]]) -> bool:
    for lengths in tries:
        subject.forget()
        subject.lengths = lengths
        if _answers(subject, layout):
            return True
    subject.forget()
    subject.lengths = None
    return False


def _answers(subject: Subject, layout: str) -> bool:
    """Whether every call without a mask gives numbers."""
    return all(got.out is not None for got in _calls(subject, layout))


def _calls(subject: Subject, layout: str) -> list[Outcome]:
    """Calls without a mask; where one is needed, with axes that give numbers in all of them, if there are any."""
    found: list[Outcome] = []
    for axes in calling.AXES if subject.how.needs_mask else calling.AXES[:1]:
        got = [subject.outcome(Form(layout, axes=axes), name)[1] for name in subject.sizes()]
        if all(one.out is not None for one in got):
            return got
        found = found or got
    return found


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""
