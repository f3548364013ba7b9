"""Faults with a number in them that nobody can list: the number is solved for, and then has to give every call."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mha_course.checks.diagnosis.bases import Base
from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.search import EXACT, LOOSE, Case, Forms, Match, reproduces
from mha_course.checks.diagnosis.steps import Array, Inputs, Mask, Step, Steps, Weights, add, causal, hide, run
from mha_course.checks.diagnosis.subject import Subject

_DIVIDE = "Divide the scores, before the softmax, by the square root of D, the width of one head."


def _fault(name: str, said: str, where: str, what: str) -> Fault:
    return Fault(name, said, {}, (where, what))


class Family(NamedTuple):
    """Faults that differ in a number.

    Attributes:
        fault: its sentence has a place for the number.
        changes: the steps, from the number.
        starts: numbers to begin with.
    """

    fault: Fault
    changes: Callable[[float], Steps]
    starts: Sequence[float]


def _capped(cap: float) -> Steps:
    return {"add": lambda products, scale, bias: add(cap * torch.tanh(products * scale / cap), 1.0, bias)}


# Made anew for each number that is tried: a partial function costs nothing, a `def` has its annotations checked anew.
def _add_slope(
    slope: float, of: Callable[[Tensor], Tensor], products: Array, scale: float, bias: Array | None
) -> Array:
    T, S = products.shape[-2:]
    far = torch.arange(S) - torch.arange(T)[:, None]
    return add(products, scale, bias) + slope * of(far).to(products.dtype)


def _sloped(slope: float, of: Callable[[Tensor], Tensor]) -> Steps:
    return {"add": partial(_add_slope, slope, of)}


def _normalize_plus(number: float, scores: Array) -> Array:
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    return p / (p.sum(-1, keepdim=True) + number)


def _plus(number: float) -> Steps:
    return {"normalize": partial(_normalize_plus, number)}


def _finish(factor: float, merged: Array, w: Weights | None, x: Inputs) -> Array:
    return factor * (merged if w is None or w.o is None else w.o(merged))


def _finished(factor: float) -> Steps:
    return {"finish": partial(_finish, factor)}


def _hide_with(fill: float, added: bool, future: bool, scores: Array, mask: Mask | None) -> Array:
    hidden = causal(*scores.shape[-2:]) if future else mask
    if hidden is None:
        return scores
    made = scores + (~hidden).to(scores.dtype) * fill if added else hide(scores, hidden, fill)
    return hide(made, mask) if future else made


def _filled(fill: float, *, added: bool, future: bool) -> Steps:
    return {"hide": partial(_hide_with, fill, added, future)}


SCALE = _fault(
    "scale_other",
    "the scores are divided by {}, not by the square root of D",
    "Print the number that the scores are divided by: where does it come from?",
    _DIVIDE,
)
FACTOR = _fault(
    "output_scaled",
    "the result is {} times what it should be",
    "Divide its result by the right one: the ratio is the same everywhere.",
    "Look for a factor on the result, also in a hook, or in a scale that is used twice.",
)
_WEIGHTS = _fault(
    "weights_scaled",
    "the weights are multiplied by {}, after the softmax: those of a query no longer sum to 1",
    "Sum the weights that one query gives: what should come out?",
    "Let the weights be what the softmax gave.",
)
_CAP = _fault(
    "soft_cap",
    "the scores pass through a tanh and stay below {}",
    "Print the largest score for queries ten times as large.",
    "Leave out the tanh, or say that a cap is meant.",
)
_SLOPE = _fault(
    "position_bias",
    "a bias is added to the scores that depends on the positions alone: {} per step of distance",
    "Make all tokens alike: are the weights alike too?",
    "Leave out what is added for the positions, or say that it is meant.",
)
_PLUS = _fault(
    "softmax_plus_one",
    "{} is added to the sum of the exponentials: the weights of a query sum to less than 1",
    "Sum the weights that one query gives: what should come out?",
    "Divide by the sum alone: it is never 0 once the maximum is taken off.",
)
_FILL = _fault(
    "mask_fill_weak",
    "hidden scores become {}, which does not hide them",
    "Look at the weight of a hidden key: it should be 0.",
    "Fill in minus infinity, before the softmax.",
)
_ADDED = _FILL._replace(said="{} is added to hidden scores, which does not hide them")
_FUTURE = _FILL._replace(said="the scores of the future become {}, which does not hide them")
_FUTURE_ADDED = _FILL._replace(said="{} is added to the scores of the future, which does not hide them")
FAULTS = tuple(fault._replace(said=fault.said.format("a number")) for fault in (SCALE, FACTOR, _WEIGHTS, _CAP, _SLOPE))

_POSITIVE = (0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0)
_SIGNED = (-1.0, -0.3, -0.05, 0.05, 0.3, 1.0)
_FILLS = (-20.0, -12.0, -7.0, -4.0, -2.0, -1.0, -0.5, 0.5, 2.0, 5.0)
CORES = (
    Family(SCALE, lambda c: {"scale": lambda q, k: 1 / c}, _POSITIVE),
    Family(FACTOR, _finished, (0.5, 2.0)),
    Family(_WEIGHTS, lambda c: {"after": lambda weights, mask: c * weights}, (0.5, 2.0)),
    Family(_CAP, _capped, _POSITIVE),
    Family(_SLOPE, lambda c: _sloped(c, torch.abs), _SIGNED),
    Family(_SLOPE, lambda c: _sloped(c, lambda far: far), _SIGNED),
    Family(_PLUS, _plus, (1e-3, 0.1, 1.0, 5.0)),
    Family(_FUTURE, lambda c: _filled(c, added=False, future=True), _FILLS),
    Family(_FUTURE_ADDED, lambda c: _filled(c, added=True, future=True), _FILLS),
)
MASKS = (
    Family(_FILL, lambda c: _filled(c, added=False, future=False), _FILLS),
    Family(_ADDED, lambda c: _filled(c, added=True, future=False), _FILLS),
)


def solved(family: Family, match: Match, case: Case) -> Fault | None:
    """The fault of the family that gives this call, by Gauss and Newton from the best start; None if none does."""
    weights = match.reading.weights if match.reading else None
    got = case.got.out
    if got is None or not got.isfinite().any():
        return None
    telling = got.isfinite()

    def off(c: float) -> Tensor | None:
        try:
            out = run(case.x, weights, {**match.changes, **family.changes(c)}).out
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
            return None
        if out.shape != got.shape:
            return None
        return (out - got)[telling].nan_to_num(1e3)

    tried = [(r.norm().item(), c) for c in family.starts if (r := off(c)) is not None]
    if not tried:
        return None
    least, c = min(tried)
    for _ in range(25):
        here, h = off(c), 1e-6 * max(abs(c), 1e-3)
        there = off(c + h)
        if here is None or there is None:
            return None
        slope = (there - here) / h
        size = slope.square().sum().item()
        if least < 1e-11 or size == 0 or not math.isfinite(size):
            break
        step = -(slope @ here).item() / size
        for _ in range(6):
            r = off(c + step)
            if r is not None and r.norm().item() < least:
                break
            step /= 4
        else:
            break
        c, least = c + step, r.norm().item() if r is not None else least
    if least > LOOSE * got.numel() ** 0.5:
        return None
    if family.fault in (FACTOR, _WEIGHTS) and math.isclose(c, 1, rel_tol=1e-5):
        return None  # the last digits of float32
    changes = family.changes(c)
    return family.fault._replace(said=family.fault.said.format(f"{c:.3g}"), changes=changes)


def fits(match: Match, cases: Sequence[Case], tolerance: float) -> bool:
    """Whether a match with a fault made here reproduces the calls; nothing is remembered of its steps."""
    return reproduces(match, [Case(case.x, case.got) for case in cases], tolerance, nan=True)


def _widths(subject: Subject) -> dict[str, float]:
    return {} if subject.first is None else {"the input": float(subject.first.weights.q.weight.shape[0])}


def _told(fault: Fault, subject: Subject, match: Match) -> Fault:
    """The same fault, named after a width if its number is one's root."""
    if fault.name != SCALE.name:
        return fault
    scale: Step = fault.changes["scale"]
    divisor = 1 / scale(None, None)
    for what, width in _widths(subject).items():
        for number, said in ((math.sqrt(width), f"the square root of {width:g}"), (width, f"{width:g}")):
            if math.isclose(divisor, number, rel_tol=1e-5):
                text = f"the scores are divided by {said}, the width of {what}, not by the square root of D"
                return fault._replace(name="scale_by_embed_dim", said=text)
    return fault


def factor(subject: Subject, forms: Forms, bases: Sequence[Base]) -> Iterator[Match]:
    """A factor on the whole result, where a bias of the output projection tells it from one on the weights."""
    o = subject.first.weights.o if subject.first is not None else None
    if o is not None and o.bias is not None:
        yield from cores(subject, forms, bases, [family for family in CORES if family.fault is FACTOR])


def cores(subject: Subject, forms: Forms, bases: Sequence[Base], families: Sequence[Family] = CORES) -> Iterator[Match]:
    """Matches of the calls without a mask."""
    for form, cases in forms:
        known = [case for case in cases if case.got.out is not None]
        if len(known) < len(cases):
            continue
        for reading in subject.readings[:2]:
            for base in bases:
                for family in families:
                    match = Match(form, reading, base)
                    fault = solved(family, match, known[0])
                    if fault is None:
                        continue
                    match = match._replace(faults=(_told(fault, subject, match),))
                    if fits(match, cases, EXACT) or fits(match, cases, LOOSE):
                        yield match


def mask_fault(match: Match, cases: Sequence[Case]) -> Fault | None:
    """A fill that hides too little, in the calls with a mask."""
    if any("hide" in fault.touches for fault in match.faults):
        return None
    for family in MASKS:
        fault = next((f for case in cases[:1] if (f := solved(family, match, case)) is not None), None)
        if fault is not None and fits(match._replace(faults=(*match.faults, fault)), cases, LOOSE):
            return fault
    return None
