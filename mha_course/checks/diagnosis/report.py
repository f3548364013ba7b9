"""Verdicts of `diagnose`: what is said about what was found."""

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from mha_course.checks import errors, parting, words
from mha_course.checks.diagnosis import calling, fit, single
from mha_course.checks.diagnosis.bases import PLAIN
from mha_course.checks.diagnosis.calling import Form, WrongResult
from mha_course.checks.diagnosis.conduct import Finding
from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.faults_causal import CAUSAL_UNASKED
from mha_course.checks.diagnosis.search import Case, Match
from mha_course.checks.diagnosis.steps import Inputs, Trace
from mha_course.checks.diagnosis.subject import Subject
from mha_course.checks.verdict import Verdict

LENGTH = Fault(
    "key_length_from_query",
    "it cannot read keys of another number than queries: the length of the query is used for both",
    {},
    (
        "Call it with a key longer than the query.",
        "Read T from the query and S from the key, or let -1 stand for the length.",
    ),
)
SMALL = Fault(
    "heads_share_small_projection",
    "every head has the same small projections of width D: the heads cannot differ in what they look for",
    {},
    (
        "Count the parameters: a projection should have E times E weights.",
        "Project the whole width E first, then cut the result into heads.",
    ),
)
FAULTS = (LENGTH, SMALL, CAUSAL_UNASKED, *fit.FAULTS, *single.FAULTS)


def adapter(reason: str, candidate: Any) -> Verdict:
    """The candidate cannot be called without help."""
    form = "lambda query, key, value, mask: ..." if isinstance(candidate, nn.Module) else "lambda q, k, v, mask: ..."
    ask = f"Pass an adapter that calls it: {form}"
    if isinstance(candidate, nn.Module):
        ask = "Give it a forward(query, key, value, mask=None), in a small module around it"
    return Verdict(False, reason, "", (ask + ".",), judged=False)


def unreadable(reason: str) -> Verdict:
    """The candidate's weights cannot be read."""
    hints = (
        "Name the projections so that their role shows: q_proj, k_proj, v_proj, out_proj.",
        "A whole block is more than attention: pass the attention in it alone.",
    )
    return Verdict(False, reason, "", hints, judged=False)


def failed(subject: Subject, refused: Sequence[Case]) -> Verdict:
    """No call gave numbers."""
    if subject.guessed:
        reason = f"its linear maps ({subject.guessed}) cannot be read as projections of queries, keys and values"
        return unreadable(reason)
    results = [case for case in refused if isinstance(case.got.error, WrongResult)]
    case = (results or list(refused))[0]
    return raises(subject, case.got.error, case.x)


def raises(subject: Subject, error: BaseException | None, x: Inputs) -> Verdict:
    """A call raised, or came back with something that is no output."""
    assert error is not None
    if isinstance(error, WrongResult):
        hints = ("Look at the return line.", "Return the output, of the shape of the query, or a tuple that holds it.")
        return Verdict(False, str(error), _sizes(subject, x), hints, names=(error.kind,))
    code = subject.original.forward if isinstance(subject.original, nn.Module) else subject.original
    said, line = words.raised(error, code)
    where = _sizes(subject, x)
    evidence = f"{line}, {where}" if line else where
    if words.is_stub(error):
        return Verdict(False, "not attempted yet", "it raises NotImplementedError", names=("not_attempted",))
    letters: dict[str, Any] = dict.fromkeys("BHTSDE")
    return Verdict(False, f"it raises {said}", evidence, errors.hints(error, letters), names=("raises",))


def _sizes(subject: Subject, x: Inputs) -> str:
    """For example: in a call with B, T, S, H, E = 2, 5, 7, 4, 16."""
    B, T, S = x.query.shape[0], x.query.shape[-2], x.key.shape[-2]
    sizes = {"B": B, "T": T, "S": S, "H": subject.heads()}
    if subject.is_module:
        sizes["E"] = x.query.shape[-1]
    else:
        sizes["D"] = x.query.shape[-1]
    masked = ", with a mask" if x.mask is not None else ""
    return f"in a call with {', '.join(sizes)} = {', '.join(map(str, sizes.values()))}{masked}"


def difference(subject: Subject, got: Tensor, right: Tensor, x: Inputs) -> str:
    """The largest difference, and where it is."""
    if got.shape != right.shape:
        return f"shape {tuple(got.shape)}, expected {tuple(right.shape)}, {_sizes(subject, x)}"
    if got.isnan().any() and not right.isnan().any():
        return f"{int(got.isnan().sum())} of {got.numel()} numbers are NaN, {_sizes(subject, x)}"
    gap = (got - right).abs().nan_to_num(0)
    largest = gap.max()
    letters = ("B", "T", "E") if subject.is_module else ("B", "H", "T", "D")
    place = words.place((gap >= largest * (1 - 1e-6)).nonzero()[0].tolist(), letters, {})
    return f"largest difference {words.number(largest.item())} in {place}, {_sizes(subject, x)}"


def remarks(subject: Subject, match: Match, stated: Any) -> tuple[str, ...]:
    """What was assumed, and what is another style and no fault."""
    said: list[str] = []
    form = match.form
    usual = calling.LAYOUTS["module" if subject.is_module else "function"][0]
    if stated.layout is None and form.layout != usual:
        said.append(f"Assumed layout of its inputs: ({', '.join(form.layout.split())}).")
    if subject.how.takes_mask and (stated.mask is None or stated.mask_axes is None):
        axes = ", ".join(form.axes.split())
        said.append(f"Assumed of its mask: {calling.CONVENTIONS[form.mask]}; axes ({axes}).")
    said += [_capital(text) for text in match.base.remarks]
    for name in subject.learned:
        what = "the scale is learned" if re.search("scale|temp|tau", name, re.IGNORECASE) else "it is learned"
        said.append(
            f"It holds a number, or one per head, `{name}`: {what}, and was judged with the value it starts with."
        )
    if match.reading is not None:
        if match.reading.remark:
            said.append(_capital(match.reading.remark))
        if match.reading.weights.o is None:
            said.append("It has no output projection: the merged heads are the result.")
    return tuple(said)


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def found(finding: Finding, said: tuple[str, ...] = ()) -> Verdict:
    """The verdict on a fault of conduct."""
    return faulty((finding.fault,), finding.evidence, said)


def verdict(subject: Subject, match: Match, stated: Any, more: tuple[str, ...] = ()) -> Verdict:
    """Right, or the faults that were found."""
    said = (*remarks(subject, match, stated), *more)
    if not match.faults:
        calls = subject.calls(match.form)
        return Verdict(True, None, f"{calls} calls, every number agrees with the reference", remarks=said)
    return faulty(match.faults, _evidence(subject, match), said)


def faulty(faults: Sequence[Fault], evidence: str, said: tuple[str, ...] = ()) -> Verdict:
    """The verdict that names faults."""
    names = tuple(dict.fromkeys(fault.name for fault in faults))
    fault = faults[0].said if len(faults) == 1 else f"two faults: {faults[0].said}; and {faults[1].said}"
    hints: tuple[str, ...] = faults[0].hints
    if len(faults) > 1:
        hints = tuple(f"{which} fault: {hint}" for which, f in zip(("First", "Second"), faults, strict=False)
                      for hint in f.hints)  # fmt: skip
    return Verdict(False, fault, evidence, hints, names=names, remarks=said)


def _evidence(subject: Subject, match: Match) -> str:
    """The largest difference from the reference among the calls in this form."""
    right = match._replace(faults=())
    best, said = -1.0, ""
    for (form, *_), (x, got) in subject._seen.items():
        if form != match.form:
            continue
        if got.out is None:
            if not said and got.error is not None:
                said = f"it raises {words.raised(got.error, subject.original)[0]}, {_sizes(subject, x)}"
            continue
        try:
            out = subject.reference(right.reading, x, right.changes).out
        except RuntimeError:
            continue
        gap = float("inf") if got.out.shape != out.shape else (got.out - out).abs().nan_to_num(1e9).max().item()
        if gap > best:
            best, said = gap, difference(subject, got.out, out, x)
    return said


def unknown(subject: Subject, accepted: Sequence[tuple[Form, Sequence[Case]]]) -> Verdict:
    """Nothing in the catalogue reproduces the numbers."""
    _, cases = accepted[0]
    case = next(case for case in cases if case.got.out is not None)
    assert case.got.out is not None
    for what, which, bad in (("NaN", "NaN", case.got.out.isnan()), ("infinity", "infinite", case.got.out.isinf())):
        if bad.any():
            seen = f"{int(bad.sum())} of {bad.numel()} numbers are {which}, {_sizes(subject, case.x)}"
            hints = (
                "Print what each step makes: which is the first that holds NaN or infinity?",
                "Look for a square root or a logarithm of negative numbers, for 0 / 0, and for rows without a key.",
            )
            return Verdict(False, f"its result holds {what}", seen, hints, ("returns_nan",))
    if subject.guessed:
        reason = f"its linear maps ({subject.guessed}) give no attention that is known here, whichever is shared"
        return unreadable(reason)
    if subject.others:
        names = ", ".join(subject.others[:4])
        reason = f"beside four projections it has {names}, and its numbers are those of no attention that is known here"
        return Verdict(False, reason, "", ("Compare it with a reference of its own kind.",), judged=False)
    right = case.trace(Match(accepted[0][0], subject.first, PLAIN))
    assert right is not None
    hints = (
        "Compare step by step with the reference: projections, heads, scores, weights, output.",
        "Set num_heads to 1 and leave out the mask: does it agree then?"
        if subject.is_module
        else "Call it with B = H = 1 and T = S = 2, without a mask, and compute the four weights by hand.",
    )
    evidence = difference(subject, case.got.out, right.out, case.x)
    where = parts(subject, accepted[0][0], case.x, right)
    if where:
        evidence = f"{where}; {evidence}"
    fault = "the numbers differ from attention, and no known fault fits"
    return Verdict(False, fault, evidence, hints, names=("unknown",))


def parts(subject: Subject, form: Form, x: Inputs, right: Trace) -> str:
    """How far the candidate's steps agree with the reference's."""
    made = [
        *(zip(("queries", "keys", "values"), right.projected, (0, 0, 0), strict=True) if right.projected else ()),
        ("scores", right.scores, 0),
        ("weights", right.weights, 0),
        ("heads' outputs", right.heads, 2),
        *((("merged heads", right.merged, 2),) if right.merged is not None else ()),
        ("output", right.out, 0),
    ]
    steps = [parting.Step(name, y, group, name == "scores") for name, y, group in made if y is not None]
    args, keywords = calling.arguments(subject.how, form, x)
    recorded = parting.record(lambda: subject.fn(*args, **keywords))
    return parting.first_missing(recorded, steps).said()


def unknown_mask(subject: Subject, core: Match, tried: Sequence[tuple[Form, Sequence[Case]]]) -> Verdict:
    """Right without a mask, and nothing reproduces the numbers with one."""
    _, cases = tried[0]
    case = next(case for case in cases if case.got.out is not None)
    assert case.got.out is not None
    out = subject.reference(core.reading, case.x, core.changes).out
    hints = (
        "Hide one key from one query: which weights change?",
        "State what its mask means: mask=, mask_axes=, in diagnose.",
    )
    evidence = difference(subject, case.got.out, out, case.x)
    if core.faults:
        more = "With a mask its numbers differ further: mend this first, and diagnose it again."
        return faulty(core.faults, _evidence(subject, core), (more,))
    fault = "without a mask it is right, with one its numbers differ from attention in every convention that was tried"
    return Verdict(False, fault, evidence, hints, names=("unknown_mask",))


def no_mask(subject: Subject, cases: Sequence[Case], core: Match, stated: Any) -> Verdict:
    """Every call with a mask raised."""
    if core.faults:
        return faulty(core.faults, _evidence(subject, core))
    if stated.mask_axes is None and all(isinstance(case.got.error, ValueError) for case in cases):
        said, _ = words.raised(cases[0].got.error or ValueError(), subject.fn)
        reason = f"without a mask it is right, and it takes none of the masks that were tried: {said}"
        return Verdict(False, reason, "", ("State its axes: mask_axes=.",), judged=False)
    return raises(subject, cases[0].got.error, cases[0].x)
