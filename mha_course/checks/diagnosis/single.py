"""Sizes of one, and masks that touch what is seen."""

import torch

from mha_course.checks import words
from mha_course.checks.diagnosis import search
from mha_course.checks.diagnosis.calling import Form, WrongResult
from mha_course.checks.diagnosis.conduct import Finding
from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.search import EXACT, LOOSE, Match
from mha_course.checks.diagnosis.subject import Sizes, Subject

ONE = Fault(
    "fails_at_size_one",
    "with one sample, or with one token, it raises, or its result has another shape or other numbers",
    {},
    (
        "Call it with B = 1, and with T = 1: print the shape of every step.",
        "Name the axis in squeeze, or index it: without a name it takes away every axis of size 1.",
    ),
)
BOOSTED = Fault(
    "mask_fill_positive",
    "the mask adds a large positive number to scores: if those are of hidden keys, they take all; if they are of "
    "visible keys, their scores lose their digits, and in float32 all their weights become equal",
    {},
    (
        "Compare a mask that hides nothing with no mask at all: the results should agree to the last bit.",
        "Mind the sign: minus infinity goes to the scores that are hidden, and 0 to the others.",
    ),
)
FAULTS = (ONE,)
OTHER_NUMBERS = "with one token its numbers differ from attention, with more they do not"


def ones(subject: Subject, match: Match) -> Finding | None:
    """One sample, and one query."""
    T, S = subject.lengths or (5, 7)
    some = {} if subject.lengths else {"one token": Sizes(2, 1, S if subject.crosses else 1)}
    if match.form.layout != "T D":
        some = {"one sample": Sizes(1, T, S if subject.crosses else T), **some}
    for what, sizes in some.items():
        masked = subject.how.takes_mask and sizes.S > 3  # a mask of one key hides nothing
        for axes in ("", match.form.axes) if masked else ("",):
            x = subject.inputs(sizes, match.form.layout, axes=axes, seed=23)
            got = subject.call(match.form, x, neutral=not axes)
            seen = f"in a call with B, T, S = {', '.join(map(str, sizes))}{', with a mask' if axes else ''}"
            if isinstance(got.error, WrongResult):
                return Finding(ONE._replace(said=f"with {what} {got.error}"), seen)
            if got.out is None:
                assert got.error is not None
                said = words.raised(got.error, subject.original)[0]
                return Finding(ONE._replace(said=f"with {what} it raises {said}"), seen)
            right = subject.reference(match.reading, x, match.changes)
            if not search.equal(got.out, right, LOOSE):
                gap = (got.out - right.out).abs().nan_to_num(0).max().item()
                fault = ONE._replace(said=f"with {what} its numbers differ from attention, with more they do not")
                return Finding(fault, f"largest difference {words.number(gap)}, {seen}")
    return None


def boosted(subject: Subject, match: Match) -> Finding | None:
    """Whether a mask that hides nothing moves the result by more than the last bits."""
    if not subject.how.takes_mask or subject.how.needs_mask:
        return None
    x, got = subject.outcome(match.form, "even", axes="all")
    bare, masked = subject.call(match.form, x._replace(mask=None)).out, got.out
    if bare is None or masked is None or not bare.isfinite().all():
        return None
    right = [subject.reference(match.reading, one, match.changes) for one in (x._replace(mask=None), x)]
    if not (search.equal(bare, right[0], EXACT) and search.equal(right[1].out, right[0], EXACT)):
        return None
    gap = (bare - masked).abs().max().item()
    if not 1e-12 < gap / bare.abs().max().item():
        return None
    return Finding(BOOSTED, f"a mask that hides nothing moves the result by {gap:.1g}")


def alone(subject: Subject, form: Form) -> bool:
    """Whether a change of the last token moves no other row of the result."""
    x, before = subject.outcome(form, "even")
    last = x.key.clone()
    last[..., -1, :] += 1
    after = subject.call(form, x._replace(query=last, key=last, value=last), neutral=True)
    if before.out is None or after.out is None:
        return False
    return torch.equal(before.out[..., :-1, :], after.out[..., :-1, :])
