"""What a candidate makes of a mask: as it should, or with a fault."""

from collections.abc import Iterator
from typing import Any

from mha_course.checks.diagnosis import conduct, fit, report, search
from mha_course.checks.diagnosis.bases import CAUSAL, PLAIN, UNASKED, UPPER_LEFT
from mha_course.checks.diagnosis.calling import Form
from mha_course.checks.diagnosis.catalogue import CAUSAL_INSIDE, CAUSAL_UNASKED, unasked
from mha_course.checks.diagnosis.search import EXACT, LOOSE, Case, Match
from mha_course.checks.diagnosis.subject import Subject, forms
from mha_course.checks.verdict import Verdict

Forms = list[tuple[Form, list[Case]]]
_FILLS = frozenset({"mask_fill_weak", "mask_fill_zero", "mask_fill_positive"})


def with_mask(subject: Subject, core: Match, stated: Any) -> Match | Verdict:
    """What reproduces the calls with a mask as well."""
    tried: Forms = []
    refused: list[Case] = []
    by_convention: dict[str, Forms] = {}
    for form in forms(subject, core.form.layout, stated.mask, stated.mask_axes):
        cases = [Case(*subject.outcome(form, name, axes=form.axes)) for name in subject.sizes()]
        if not any(case.got.out is not None for case in cases):
            refused += cases
            continue
        if report.LENGTH in core.faults:
            cases = [case for case in cases if case.got.out is not None]
        cases.append(Case(*subject.outcome(form, "even", axes="all")))
        tried.append((form, cases))
        stronger = by_convention.setdefault(form.mask, [])
        if search.reproduces(core._replace(form=form), cases, EXACT):
            # Masks that differ between samples or queries show more: right with others alone is not enough.
            return (
                _same_with_mask(subject, core, stronger)
                or _mask_fault(subject, core, stronger, EXACT)
                or _pretended(subject, core._replace(form=form), tried)
                or core._replace(form=form)
            )
        stronger.append((form, cases))
    if not tried:
        return report.no_mask(subject, refused, core, stated)
    for other in _without_own(core, stated):
        for form, cases in tried:
            if search.reproduces(other._replace(form=form), cases, LOOSE):
                return other._replace(form=form)
    found = _same_with_mask(subject, core, tried)
    telling = [(form, cases) for form, cases in tried if any(_finite(case) for case in cases[:-1])]
    for some in (telling, [one for one in tried if one not in telling]):  # NaN throughout says little
        loosely = (core._replace(form=form) for form, cases in some
                   if search.reproduces(core._replace(form=form), cases, LOOSE))  # fmt: skip
        found = (
            found
            or _mask_fault(subject, core, some, EXACT)
            or next(loosely, None)
            or _mask_fault(subject, core, some, LOOSE)
            or _fitted(core, some)
        )
    if found is not None:
        return found
    for form, _ in tried if not core.faults else []:
        finding = conduct.stale(subject, core._replace(form=form), form.axes)
        if finding is not None:
            return report.found(finding)
    return report.unknown_mask(subject, core, tried)


def _finite(case: Case) -> bool:
    return case.got.out is not None and bool(case.got.out.isfinite().any())


def _without_own(core: Match, stated: Any) -> Iterator[Match]:
    """If it hides the future by itself: the same, but only where no mask is given."""
    if core.base in (CAUSAL, UPPER_LEFT):
        changes = {"hide": unasked(core.base.changes["see"])}
        if stated.causal is None:
            yield core._replace(base=UNASKED._replace(changes=changes))
        else:
            yield core._replace(base=PLAIN, faults=(*core.faults, CAUSAL_UNASKED._replace(changes=changes)))
    elif len(core.faults) == 1 and core.faults[0] in CAUSAL_INSIDE:
        changes = {"hide": unasked(core.faults[0].changes["see"])}
        yield core._replace(faults=(CAUSAL_UNASKED._replace(changes=changes),))


def _same_with_mask(subject: Subject, core: Match, tried: Forms) -> Match | None:
    """Another fault that gives all calls: one with the mask and without is likelier than two."""
    if len(core.faults) != 1:
        return None
    for form, cases in tried:
        for fault in search.candidates(subject):
            match = core._replace(form=form, faults=(fault,))
            if search.reproduces(match, cases, EXACT, nan=True):
                return match
    return None


def _fitted(core: Match, tried: Forms) -> Match | None:
    for form, cases in tried:
        fault = fit.mask_fault(core._replace(form=form), cases)
        if fault is not None:
            return core._replace(form=form, faults=(*core.faults, fault))
    return None


def _pretended(subject: Subject, right: Match, tried: Forms) -> Match | None:
    """A fill that is too weak, of a mask of True and False that only seems to be an additive one.

    (1 - mask) times a number gives minus infinity for a mask of minus infinity, whatever the number is. A mask of
    finite numbers tells: what is added is not what was given.
    """
    if right.form.mask != "additive":
        return None
    x, got = subject.outcome(right.form, next(iter(subject.sizes())), axes=right.form.axes, seed=17, bias=True)
    if got.out is not None and search.equal(got.out, subject.reference(right.reading, x, right.changes), LOOSE):
        return None
    others = [(form, cases) for form, cases in tried if form.mask != "additive"]
    for form, cases in others:
        found = _mask_fault(subject, right, [(form, cases)], EXACT) or _fitted(right, [(form, cases)])
        if found is not None and found.faults[-1].name in _FILLS:
            return found
    return None


def _mask_fault(subject: Subject, core: Match, tried: Forms, tolerance: float) -> Match | None:
    for form, cases in tried:
        for fault in search.candidates(subject):
            if fault.axes not in ("", form.axes) or fault.convention not in ("", form.mask):
                continue
            if any(fault.touches & other.touches for other in core.faults):
                continue
            match = core._replace(form=form, faults=(*core.faults, fault))
            if search.reproduces(match, cases, tolerance, nan=True):
                return match
    return None
