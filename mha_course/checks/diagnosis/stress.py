"""Inputs that ordinary draws do not reach: long sequences, large scores, large hidden numbers, grouped heads."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mha_course.checks.diagnosis import search
from mha_course.checks.diagnosis.conduct import Finding
from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.faults_heads import TILED_HEADS
from mha_course.checks.diagnosis.faults_mask import MASK, weak_fills
from mha_course.checks.diagnosis.faults_scores import BIAS
from mha_course.checks.diagnosis.faults_tiles import TILED
from mha_course.checks.diagnosis.search import LOOSE, Case, Match
from mha_course.checks.diagnosis.steps import Inputs
from mha_course.checks.diagnosis.subject import Sizes, Subject

LONG = 131  # more keys than two tiles of 64
LARGE, TENS, HUNDREDS = 1000.0, 20.0, 400.0
_FAR = (-50.0, -64.0, -100.0, -128.0, -200.0, -256.0, -300.0, -500.0, -512.0, -1000.0, -99.0, -255.0, -999.0)
OVERFLOW = Fault(
    "softmax_overflows",
    "scores in the hundreds give NaN or infinity: the exponential overflows",
    {},
    (
        "Multiply the queries by 1000: what does the result hold?",
        "Take the largest score of a row off all its scores before the exponential, or let softmax do it.",
    ),
)
UNDERFLOW = Fault(
    "softmax_underflows",
    "rows whose scores lie hundreds below the largest of all become 0 / 0: the maximum that is taken off is not that "
    "of their own row",
    {},
    (
        "Multiply one query by 1000: what becomes of the rows of the others?",
        "Take the largest score of each row off that row: amax(-1, keepdim=True), not max() over everything.",
    ),
)
LEAK = Fault(
    "leak",
    "a hidden token changes the result",
    {},
    (
        "Change a hidden key and its value, also to very large numbers: no row of the result should move.",
        "Hide the scores with -inf before the softmax, so that the weights of hidden keys are exactly 0.",
    ),
)
SPOILED = (
    "A hidden token whose score is hundreds above the others spoils the row: the softmax counts it before it is hidden."
)


UNLIKE = Fault(
    "unknown",
    f"with {LONG} keys its numbers differ from attention, with fewer they do not",
    {},
    ("Try more and more keys: from which number on does it differ?", "Look for sizes that are fixed."),
)
FAULTS = (OVERFLOW, UNDERFLOW, LEAK)


def _found(match: Match, cases: Sequence[Case], faults: Sequence[Fault]) -> Fault | None:
    for fault in faults:
        one = match._replace(faults=(fault,))
        if search.reproduces(one, cases, LOOSE):
            return fault
    return None


def long(subject: Subject, match: Match) -> Finding | None:
    """131 keys: several tiles, and a table that is too short."""
    T = LONG if not subject.crosses else 5
    sizes = Sizes(1, T, LONG)
    x = subject.inputs(sizes, match.form.layout, seed=3)
    got = subject.call(match.form, x, neutral=True)
    if got.out is None:
        return None  # a limit of its own, such as a causal table of 32 rows
    trace = subject.reference(match.reading, x, match.changes)
    if search.equal(got.out, trace, LOOSE):
        return None
    fault = _found(match, [Case(x, got)], (*TILED, *search.candidates(subject))) or UNLIKE
    gap = (got.out - trace.out).abs().nan_to_num(0).max().item()
    return Finding(fault, f"largest difference {gap:.2g}, in a call with S = {LONG}")


def large(subject: Subject, match: Match) -> Finding | None:
    """Scores around 1000."""
    name = next(iter(subject.sizes()))
    x = subject.outcome(match.form, name)[0]
    scaled = x.query * LARGE
    same = x.key is x.query
    x = Inputs(scaled, scaled if same else x.key, scaled if same else x.value)
    got = subject.call(match.form, x, neutral=True)
    if got.out is None or got.out.isfinite().all():
        return None
    if not subject.reference(match.reading, x, match.changes).out.isfinite().all():
        return None
    bad = int((~got.out.isfinite()).sum())
    fault = UNDERFLOW if _underflows(subject, match) else OVERFLOW
    return Finding(fault, f"{bad} of {got.out.numel()} numbers are NaN or infinite, with queries 1000 times larger")


def _underflows(subject: Subject, match: Match) -> bool:
    """Whether rows are lost whose own scores are small enough for an exponential, beside a token that is large."""
    sizes = next(iter(subject.sizes().values()))
    for seed in range(31, 37):
        x = subject.inputs(sizes, match.form.layout, seed=seed)
        query = x.query.clone()
        query[..., 0, :] *= LARGE
        x = Inputs(query, query, query) if x.key is x.query else x._replace(query=query)
        got = subject.call(match.form, x, neutral=True).out
        hidden = subject.reference(match.reading, x, match.changes).hidden
        if got is None or hidden is None:
            return False
        top = hidden.amax(-1)  # (B, H, T)
        small, lost = (top < 600) & (top > -600), ~got.isfinite().all(-1)
        if bool((lost & (small.all(1) if lost.ndim == 2 else small)).any()):
            return True
    return False


def alone(subject: Subject, layout: str, axes: str, factor: float = TENS) -> Inputs:
    """Inputs with large scores, and a mask that lets every query see one key: far below 0 in some rows."""
    name = next(iter(subject.sizes()))
    x = subject.inputs(subject.sizes()[name], layout, axes=axes, seed=5)
    assert x.mask is not None
    mask = torch.zeros_like(x.mask, memory_format=torch.contiguous_format)
    rows = torch.arange(mask.shape[-2])
    mask[..., rows, rows] = True
    if x.key is not x.query:
        return x._replace(query=x.query * factor, mask=mask)
    both = x.query * math.sqrt(factor)
    return Inputs(both, both, both, mask)


def weak(subject: Subject, match: Match) -> Finding | None:
    """A fill of -30 or -100 hides nothing where the scores that are seen lie below it."""
    if not subject.how.takes_mask:
        return None
    for factor, fills in ((TENS, ()), (HUNDREDS, _FAR)):
        x = alone(subject, match.form.layout, match.form.axes, factor)
        got = subject.call(match.form, x)
        if got.out is None or search.equal(got.out, subject.reference(match.reading, x, match.changes), LOOSE):
            continue
        some = [fault for fill in fills for fault in weak_fills(fill)]
        fault = _found(match, [Case(x, got)], some or [one for one in MASK if one.name == "mask_fill_weak"])
        if fault is not None:
            return Finding(fault, f"in a call with queries {factor:g} times larger")
    return None


def _replaced(x: Inputs, hidden: Sequence[int], factor: float, axis: int) -> Inputs:
    generator = torch.Generator().manual_seed(11)

    def other(y: Tensor) -> Tensor:
        y = y.clone()
        for j in hidden:
            part = y.select(axis, j)
            part.copy_(torch.randn(part.shape, generator=generator, dtype=y.dtype) * factor)
        return y

    key = other(x.key)
    value = key if x.value is x.key else other(x.value)
    query = key if x.query is x.key else x.query
    return Inputs(query, key, value, x.mask)


def leaks(subject: Subject, match: Match) -> tuple[Finding | None, str]:
    """Whether hidden tokens move the rows that may not see them; and a remark if only the last bits move."""
    if not subject.how.takes_mask:
        return None, ""
    name = next(iter(subject.sizes()))
    x = subject.inputs(subject.sizes()[name], match.form.layout, axes=match.form.axes, seed=5)
    assert x.mask is not None
    S = x.key.shape[-2]
    hidden = (S - 1, S - 2)
    mask = x.mask.clone()
    mask[..., hidden[0]] = mask[..., hidden[1]] = False
    mask[..., 0] = True
    x = x._replace(mask=mask)
    rows = [t for t in range(x.query.shape[-2]) if x.key is not x.query or t not in hidden]
    base = subject.call(match.form, x)
    if base.out is None or base.out.isnan().any():
        return None, ""
    bits = False
    for factor in (1.0, 0.01, LARGE):
        moved = _replaced(x, hidden, factor, -2)
        got = subject.call(match.form, moved)
        if got.out is None:
            continue
        a, b = base.out[..., rows, :], got.out[..., rows, :]
        if torch.equal(a, b):
            continue
        if torch.allclose(a, b, 1e-7, 1e-7):
            bits = True
            continue
        finding = Finding(
            LEAK, f"with hidden tokens {factor:g} times as large, {int((a != b).any(-1).sum())} rows move"
        )
        fault = _found(match, [Case(moved, got)], MASK)
        if fault is None and factor == LARGE:
            return None, SPOILED
        return finding._replace(fault=fault or LEAK), ""
    return None, "Hidden tokens move the last bits of the result: it hides them after the softmax." if bits else ""


def grouped(subject: Subject, match: Match) -> Finding | None:
    """A function with fewer key and value heads than query heads: which head reads which."""
    if subject.is_module or match.form.layout not in ("B H T D", "B T H D"):
        return None
    generator = torch.Generator().manual_seed(13)
    q = torch.randn(2, 6, 5, subject.D, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 2, 2, 7, subject.D, generator=generator, dtype=torch.float64)
    x = Inputs(q, k, v)
    got = subject.call(match.form, x, neutral=True)
    if got.out is None:
        return None
    if _found(match, [Case(x, got)], (TILED_HEADS,)) is None:
        return None
    return Finding(TILED_HEADS, "in a call with 6 query heads and 2 key and value heads")


def biased(subject: Subject, match: Match) -> Finding | None:
    """A finite additive mask: is it added after the scale?"""
    if not subject.how.takes_mask:
        return None
    name = next(iter(subject.sizes()))
    form = match.form._replace(mask="additive")
    x, got = subject.outcome(form, name, axes=form.axes, seed=17, bias=True)
    if got.out is None:
        return None
    if _found(match, [Case(x, got)], (BIAS,)) is None:
        return None
    right = subject.reference(match.reading, x, match.changes)
    if search.equal(got.out, right, LOOSE):
        return None
    gap = (got.out - right.out).abs().nan_to_num(0).max().item()
    return Finding(BIAS, f"largest difference {gap:.2g}, with an additive mask of finite numbers")
