"""Judge a candidate: find how it is called, what it computes, and whether that is attention."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mha_course.checks.diagnosis import (
    conduct,
    dropout,
    edges,
    fit,
    maps,
    masking,
    report,
    search,
    single,
    streams,
    stress,
    takes,
)
from mha_course.checks.diagnosis.bases import CAUSAL as CAUSAL_BASE
from mha_course.checks.diagnosis.bases import PLAIN, UPPER_LEFT, Base, bases, kinds
from mha_course.checks.diagnosis.calling import Form, NoAdapter, NoWeights, Signature, WrongResult
from mha_course.checks.diagnosis.catalogue import (
    CAUSAL,
    CAUSAL_INSIDE,
    CAUSAL_LATE,
    CAUSAL_MISSING,
    TOP_LEFT,
    Fault,
    pairs,
)
from mha_course.checks.diagnosis.layouts import Unreadable
from mha_course.checks.diagnosis.search import EXACT, LOOSE, Case, Match
from mha_course.checks.diagnosis.subject import Sizes, Subject, forms
from mha_course.checks.verdict import Verdict

_Forms = list[tuple[Form, list[Case]]]
_MASK_STEPS = frozenset({"hide", "after"})


class Stated(NamedTuple):
    """What the caller of `diagnose` states about the candidate; None = find out."""

    mask: str | None = None
    mask_axes: str | None = None
    layout: str | None = None
    num_heads: int | None = None
    causal: bool | None = None
    half: bool = False


def judge(candidate: Callable[..., Any], stated: Stated) -> Verdict:
    """The verdict on a module or function; a second stream of unknown name, and layers of one's own, are tried."""
    verdict, spare = _first(candidate, stated)
    if not verdict.judged or verdict.names == ("unknown",):
        plain = maps.as_linears(candidate)
        if plain is not None:
            again, spare_again = _first(plain.module, stated)
            if again.judged and not {*again.names} & {"unknown", "raises"}:
                candidate, spare = plain.module, spare_again
                verdict = replace(again, remarks=(*again.remarks, plain.remark))
    if not verdict.ok:
        return verdict
    return streams.with_second(verdict, spare, lambda how: _first(candidate, stated, how)[0])


def _first(candidate: Callable[..., Any], stated: Stated, how: Signature | None = None) -> tuple[Verdict, Signature]:
    """The verdict with one signature, as it is read if None, and the signature."""
    try:
        subject = takes.settled(candidate, stated.num_heads, how)
    except NoWeights as reason:
        return report.unreadable(str(reason)), streams.NONE
    except NoAdapter as reason:
        return report.adapter(str(reason), candidate), streams.NONE
    except Unreadable as reason:
        return report.unreadable(str(reason)), streams.NONE
    return _settled(subject, stated), subject.how


def _settled(subject: Subject, stated: Stated) -> Verdict:
    """The verdict on a candidate that can be called."""
    accepted, refused = _accepted(subject, stated)
    if not accepted:
        return report.failed(subject, _cases(refused))
    first = conduct.before(subject, accepted[0][0])
    if first is None:
        return _judge(subject, accepted, refused, stated)
    if first.fault is not conduct.IN_EVAL:
        return report.found(first)
    subject.forget(conduct.NoDropout)  # look for a second fault without the dropout
    calm, _ = _accepted(subject, stated)
    core = _core(subject, calm, stated)
    second = core.faults if core is not None else ()
    return report.faulty((first.fault, *second[:1]), first.evidence)


def _judge(subject: Subject, accepted: _Forms, refused: _Forms, stated: Stated) -> Verdict:
    if all(case.got.out is None or case.got.out.isnan().all() for _, cases in accepted for case in cases):
        return report.unknown(subject, accepted)
    if subject.guessed and single.alone(subject, accepted[0][0]):
        return report.unreadable("each row of its result depends on its own token alone: nothing is attended to")
    core = _core(subject, accepted, stated)
    if core is None:
        usual = subject.layouts[: subject.layouts.index(accepted[0][0].layout)]
        likelier = _cases([(form, cases) for form, cases in refused if form.layout in usual])
        mine = [case for case in likelier if isinstance(case.got.error, WrongResult)]
        if mine:
            return report.failed(subject, mine)
        failed = [case for case in accepted[0][1] if case.got.error is not None]
        return report.raises(subject, failed[0].got.error, failed[0].x) if failed else report.unknown(subject, accepted)
    match = core
    if subject.how.takes_mask:
        masked = masking.with_mask(subject, core, stated)
        if isinstance(masked, Verdict):
            return masked
        match = masked
    if match.faults:
        return report.verdict(subject, match, stated)
    return _conduct(subject, match, stated)


def _conduct(subject: Subject, match: Match, stated: Stated) -> Verdict:
    """The verdict on a candidate whose numbers are right in ordinary calls."""
    wrong = [conduct.changed(subject), conduct.forgets(subject, match), single.boosted(subject, match)]
    for look in (single.ones, stress.long, stress.large, stress.weak, stress.grouped, stress.biased, conduct.gradients):
        wrong.append(look(subject, match))
    leak, bits = stress.leaks(subject, match)
    drops, elsewhere = dropout.training(subject, match)
    half = edges.overflows_half(subject, match)
    wrong += [leak, drops, half if stated.half else None]
    said = [bits, elsewhere, edges.empty_rows(subject, match), subject.precision.remark]
    if half is not None:
        said.append("In float16 a mask makes it raise: its fill does not fit. Use -inf, or torch.finfo(dtype).min.")
    first = next((finding for finding in wrong if finding is not None), None)
    if first is not None and first.fault.said == single.OTHER_NUMBERS and stated.mask_axes is None:
        cut = _with_matrix(subject, match, stated)
        if cut is not None:
            return cut
    if first is not None:
        return report.found(first, report.remarks(subject, match, stated))
    return report.verdict(subject, match, stated, tuple(text for text in said if text))


def _with_matrix(subject: Subject, match: Match, stated: Stated) -> Verdict | None:
    """Right with masks (T, S), of which a candidate may cut out its part; those with more axes only look right."""
    if not subject.how.takes_mask or match.form.axes == "T S":
        return None
    other = masking.with_mask(subject, match, stated._replace(mask=match.form.mask, mask_axes="T S"))
    if isinstance(other, Verdict) or other.faults or other.form.axes != "T S":
        return None
    verdict = _conduct(subject, other, stated._replace(mask_axes="T S"))
    said = report.remarks(subject, other, stated)
    return replace(verdict, remarks=tuple(dict.fromkeys((*said, *verdict.remarks)))) if verdict.ok else None


def _cases(some: _Forms) -> list[Case]:
    return [case for _, cases in some for case in cases]


def _accepted(subject: Subject, stated: Stated) -> tuple[_Forms, _Forms]:
    """The forms in which calls without a mask give numbers, with these calls; and the calls of the others."""
    accepted: _Forms = []
    refused: _Forms = []
    for form in forms(subject, stated.layout, stated.mask, stated.mask_axes):
        if not subject.how.needs_mask and any(form.layout == one.layout for one, _ in accepted):
            continue
        cases = [Case(*subject.outcome(form, name)) for name in subject.sizes()]
        if any(case.got.out is not None for case in cases):
            accepted.append((form, cases))
        else:
            refused.append((form, cases))
    return accepted, refused


def _core(subject: Subject, accepted: _Forms, stated: Stated) -> Match | None:
    """What reproduces the calls without a mask: no fault, one, or two, in this order."""
    strong = [(form, cases) for form, cases in accepted if form.layout != "T D"]  # T D shows no mixing of samples
    weak = [(form, cases) for form, cases in accepted if form.layout == "T D"]
    for some in (strong, weak):
        if some:
            found = _verified(subject, _single_cores(subject, some, stated))
            found = found or next(_double_cores(subject, some, stated), None)
            if found is not None:
                return _square(subject, found)
    return None


def _square(subject: Subject, match: Match) -> Match:
    """The match; a causal one without a mask that takes as many keys as queries alone is for that, and no fault."""
    if match.faults != (report.LENGTH,) or subject.how.takes_mask or match.base not in (CAUSAL_BASE, UPPER_LEFT):
        return match
    subject.even = True
    said = (*CAUSAL_BASE.remarks, "it takes as many keys as queries, and no other number")
    return match._replace(faults=(), base=CAUSAL_BASE._replace(remarks=said))


def _verified(subject: Subject, found: Iterator[Match]) -> Match | None:
    """The first match that also gives a call with even numbers of queries and keys; the first if none does."""
    calls: dict[Form, Case] = {}
    first = None
    for match in itertools.islice(found, 4):
        if not match.faults:
            return match
        first = first or match
        form = match.form
        if form not in calls:
            sizes = Sizes(2, 4, 6) if subject.how.crosses else Sizes(2, 6, 6)
            x = subject.inputs(sizes, form.layout, seed=29)
            calls[form] = Case(x, subject.call(form, x, neutral=True))
        case = calls[form]
        if case.got.out is None or search.reproduces(match, [case], LOOSE, nan=True):
            return match
    return first


def _single_cores(subject: Subject, accepted: _Forms, stated: Stated) -> Iterator[Match]:
    plain = kinds(stated.causal)
    all_bases = list(bases(subject, stated.causal))
    some = [(form, [case for case in cases if case.got.out is not None]) for form, cases in accepted]
    uneven = list(subject.sizes()).index("uneven") if "uneven" in subject.sizes() else None
    raises = [(form, few) for (form, few), (_, cases) in zip(some, accepted, strict=True)
              if uneven is not None and cases[uneven].got.out is None and len(few) == len(cases) - 1]  # fmt: skip
    loose: list[Match] = []
    for tolerance in (EXACT, LOOSE):
        yield from _right(subject, accepted, plain, subject.readings, tolerance)
        if stated.causal is not None:
            against = (TOP_LEFT, CAUSAL_MISSING, CAUSAL_LATE) if stated.causal else CAUSAL_INSIDE
            yield from _against(subject, accepted, against, tolerance)
        yield from _right(subject, accepted, all_bases, subject.readings[:2], tolerance)
        if tolerance == EXACT:
            yield from fit.factor(subject, accepted, plain[:2])
            yield from search.singles(subject, accepted, plain[:2], loose)
        else:
            yield from loose
        for match in _right(subject, raises, plain, subject.readings, tolerance):
            yield match._replace(faults=(*match.faults, report.LENGTH))
    loose = []
    yield from search.singles(subject, raises, plain[:2], loose)
    yield from loose
    yield from fit.cores(subject, accepted, plain[:2])


def _double_cores(subject: Subject, accepted: _Forms, stated: Stated) -> Iterator[Match]:
    if subject.brief or subject.others or subject.guessed:
        return  # with more in it than attention, two faults that fit would be a guess
    some = [f for f in search.candidates(subject) if f in CAUSAL or not f.touches <= _MASK_STEPS]
    two = list(pairs(some))
    yield from search.both(subject, accepted[:1], kinds(stated.causal)[:2], two)
    if stated.causal:
        own = [pair for pair in two if pair[0] in CAUSAL or pair[1] in CAUSAL]
        yield from search.both(subject, accepted[:1], [PLAIN], own)


def _right(subject: Subject, accepted: _Forms, some: Sequence[Base], readings: Sequence[Any],
           tolerance: float) -> Iterator[Match]:  # fmt: skip
    for form, cases in accepted:
        for base in some:
            for reading in readings:
                match = Match(form, reading, base)
                if search.reproduces(match, cases, tolerance):
                    small = reading is not None and reading.fault
                    yield match._replace(faults=(report.SMALL,)) if small else match


def _against(subject: Subject, accepted: _Forms, faults: Sequence[Fault], tolerance: float) -> Iterator[Match]:
    """Faults against what was stated about hiding the future."""
    for form, cases in accepted:
        for reading in subject.readings:
            for fault in faults:
                match = Match(form, reading, PLAIN, (fault,))
                if search.reproduces(match, cases, tolerance):
                    yield match
