"""Where a module drops in training: on the weights, as it should, on the scores, on the result, or nowhere.

All tokens of the input are one and the same, so that a head's output is v times the sum of the weights that are left,
a number for each row. How it varies tells where the dropout stands.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mha_course.checks.diagnosis.conduct import Finding, called
from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.search import Match
from mha_course.checks.diagnosis.steps import Inputs
from mha_course.checks.diagnosis.subject import Sizes, Subject

P = 0.5
_WHERE = (
    "In training, sum the weights of a row: do they vary, and is their mean 1?",
    "Drop the weights, after the softmax and before they meet the values; F.dropout rescales what is left.",
)


def _fault(name: str, said: str) -> Fault:
    return Fault(name, said, {}, _WHERE)


BEFORE = _fault(
    "dropout_before_softmax",
    "dropout acts on the scores, before the softmax: in training every row of weights still sums to 1",
)
NOT_RESCALED = _fault(
    "dropout_not_rescaled",
    "dropped weights are not made up for: in training the weights of a row sum to less than 1 on average",
)
MISSING = _fault("dropout_missing", "its dropout drops nothing in training")
ON_VALUES = _fault("dropout_on_values", "dropout acts on the values, not on the weights: single features are dropped")
FAULTS = (BEFORE, NOT_RESCALED, MISSING, ON_VALUES)


def _switches(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Where a module keeps a dropout probability: (owner, attribute)."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            yield layer, "p"
            continue
        for name, value in vars(layer).items():
            if "drop" in name.lower() and isinstance(value, float):
                yield layer, name


def training(subject: Subject, match: Match) -> tuple[Finding | None, str]:
    """What is wrong with dropout in training, if anything; and a remark."""
    if not isinstance(subject.fn, nn.Module):
        return None, ""
    fn = copy.deepcopy(subject.fn)
    switches = list(_switches(fn))
    kept = [getattr(owner, name) for owner, name in switches]
    for owner, name in switches:
        setattr(owner, name, 0.0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        own = _kind(subject, match, fn, None)  # what drops by itself, whatever the attributes say
        found = [own] if own else []
        for owner, name in switches:
            setattr(owner, name, P)
            found.append(_kind(subject, match, fn, P) or "nothing")
            setattr(owner, name, 0.0)
    for fault, kind in ((BEFORE, "scores"), (NOT_RESCALED, "not rescaled"), (ON_VALUES, "values")):
        if kind in found:
            return Finding(fault, "seen in training with all tokens alike"), ""
    on = [p for p in kept if p > 0]
    if found and all(kind == "nothing" for kind in found) and on:
        return Finding(MISSING, "in training two calls with the same input agree to the last bit"), ""
    if found and "weights" not in found and "output" in found:
        return None, "Its dropout acts on the result, not on the weights."
    return None, ""


def _kind(subject: Subject, match: Match, fn: nn.Module, p: float | None) -> str:
    """Where the dropout that is switched on acts: "weights", "not rescaled", "scores", "values", "output", ""."""
    B, T = 8, 11
    x = subject.inputs(Sizes(B, T, T), match.form.layout, seed=19)
    token = x.query[..., :1, :]
    same = x.key is x.query
    query = token.expand_as(x.query).contiguous()
    key = query if same else x.key[..., :1, :].expand_as(x.key).contiguous()
    value = query if same else key if x.value is x.key else x.value[..., :1, :].expand_as(x.value).contiguous()
    alike = Inputs(query, key, value)
    varied = [_run(subject, match, fn, x) for _ in range(2)]
    if varied[0] is None or varied[1] is None or torch.equal(varied[0], varied[1]):
        return ""
    got = _run(subject, match, fn, alike)
    if got is None:
        return ""
    trace = subject.reference(match.reading, alike, match.changes)
    right = trace.out
    if torch.allclose(got, right, 1e-6, 1e-6):
        return "scores"
    ratio = got / right
    if p is not None and _is_of(ratio, (0.0, 1 / (1 - p))):
        return "output"
    heads = _heads(subject, match, got)
    if heads is None or "finish" in match.changes:
        return "output"
    of_head = heads / trace.heads  # (B, H, T, D)
    spread = (of_head.amax(-1) - of_head.amin(-1)).max().item()
    if spread < 1e-6:
        mean = of_head.mean().item()
        return "not rescaled" if p is not None and mean < 0.8 else "weights"
    if p is not None and _is_of(of_head, (0.0, 1 / (1 - p))):
        return "output"
    return "values" if of_head.mean().item() > 0.3 else "output"


def _is_of(x: Tensor, values: tuple[float, ...]) -> bool:
    near = torch.stack([(x - value).abs() < 1e-6 for value in values])
    return bool(near.any(0).all())


def _run(subject: Subject, match: Match, fn: nn.Module, x: Inputs) -> Tensor | None:
    fn.train()
    try:
        with torch.no_grad():
            return called(subject, match, x, fn)
    except (KeyboardInterrupt, SystemExit):
        raise
    except Exception:
        return None
    finally:
        fn.eval()


def _heads(subject: Subject, match: Match, out: Tensor) -> Tensor | None:
    """The heads' output (B, H, T, D) that an output projection made `out` of; None if it cannot be told."""
    if match.reading is None:
        return out
    w = match.reading.weights
    merged = out
    if w.o is not None:
        if torch.linalg.matrix_rank(w.o.weight) < w.o.weight.shape[0]:
            return None
        y = out if w.o.bias is None else out - w.o.bias
        merged = torch.linalg.lstsq(w.o.weight.mT, y.flatten(0, 1).mT).solution.mT.unflatten(0, y.shape[:2])
    return merged.unflatten(-1, (w.H, -1)).transpose(1, 2)
