"""How a candidate behaves beside its numbers: chance, state, what it changes, gradients."""

import inspect
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mha_course.checks.diagnosis import calling, search
from mha_course.checks.diagnosis.calling import Form
from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.search import Match
from mha_course.checks.diagnosis.steps import Inputs
from mha_course.checks.diagnosis.subject import Outcome, Subject

_DROPS = frozenset(
    (
        torch.dropout,
        torch.nn.functional.dropout,
        torch.nn.functional.dropout1d,
        torch.nn.functional.dropout2d,
        torch.feature_dropout,
    )
)
_MHA = inspect.signature(torch.nn.functional.multi_head_attention_forward)


class NoDropout(TorchFunctionMode):
    """PyTorch's dropout functions drop nothing inside."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every call of a function of PyTorch comes through here."""
        kwargs = dict(kwargs or {})
        if func in _DROPS:
            return args[0] if args else kwargs["input"]
        if func is torch.nn.functional.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs["dropout_p"] = 0.0
        if func is torch.nn.functional.multi_head_attention_forward:  # what it calls does not come through here
            bound = _MHA.bind(*args, **kwargs)
            bound.arguments["dropout_p"] = 0.0
            args, kwargs = bound.args, bound.kwargs
        return func(*args, **kwargs)


class Finding(NamedTuple):
    """A fault of conduct, and what was seen."""

    fault: Fault
    evidence: str


def _fault(name: str, said: str, where: str, what: str) -> Fault:
    return Fault(name, said, {}, (where, what))


IN_EVAL = _fault(
    "dropout_in_eval",
    "dropout does not end with training: after eval() two calls with the same input differ",
    "Call it twice in eval(): who draws?",
    "nn.Dropout ends by itself. F.dropout needs training=self.training, and the fused kernel's dropout_p a 0.",
)
CHANCE = _fault(
    "nondeterministic",
    "two calls with the same input give two results, after eval() too",
    "Look for random numbers that are drawn in the call.",
    "Draw in training only, or where the layer is made.",
)
STATE = _fault(
    "keeps_state",
    "its result depends on an earlier call: something is kept from call to call",
    "Call it with one input, with another, and with the first again: the first and the last should agree.",
    "Look for what is written to self or to a global name, and read later; key a stored table by all it depends on.",
)
CHANGES = _fault(
    "changes_input",
    "it changes its input in place",
    "Look for operations that end in an underscore, for +=, *=, /=, and for writing into x[...].",
    "Give the result a name of its own, so that the caller's data stay as they were.",
)
CHANGES_WEIGHTS = _fault(
    "changes_parameters",
    "a call changes its own parameters",
    "Compare its state_dict before and after a call.",
    "Only the optimizer changes parameters: let forward read them.",
)
CUT = _fault(
    "gradient_cut",
    "no gradient passes: its result knows nothing of its input",
    "Look for .detach(), .data, .item(), .numpy(), torch.tensor(x) and torch.no_grad() between input and result.",
    "Compute with tensors alone, from the input to the result, so that PyTorch can follow.",
)
FAULTS = (IN_EVAL, CHANCE, STATE, CHANGES, CHANGES_WEIGHTS, CUT)


def _same(a: Outcome, b: Outcome) -> bool:
    if a.out is None or b.out is None:
        return a.out is None and b.out is None
    return a.out.shape == b.out.shape and torch.allclose(a.out, b.out, 0, 0, equal_nan=True)


def before(subject: Subject, form: Form) -> Finding | None:
    """What must hold before numbers can be compared: no chance, no state."""
    x, first = subject.outcome(form, "even")
    parameters = _parameters(subject.fn)
    again = subject.call(form, x, neutral=True)
    if not _equal(parameters, _parameters(subject.fn)):
        return Finding(CHANGES_WEIGHTS, "")
    if not _same(first, again):
        seeded = []
        for _ in range(2):
            torch.default_generator.manual_seed(1)
            random.seed(1)
            np.random.seed(1)  # noqa: NPY002
            seeded.append(subject.call(form, x, neutral=True))
        if not _same(*seeded):
            return Finding(STATE, _moved(first, again))
        with NoDropout():
            calm = [subject.call(form, x, neutral=True) for _ in range(2)]
        return Finding(IN_EVAL if _same(*calm) else CHANCE, _moved(first, again))
    other = subject.inputs(subject.sizes()["even"], form.layout, seed=7)
    subject.call(form, other, neutral=True)
    last = subject.call(form, x, neutral=True)
    if not _same(first, last):
        return Finding(STATE, _moved(first, last))
    return None


def _parameters(fn: Any) -> list[Tensor]:
    return [p.detach().clone() for p in fn.parameters()] if isinstance(fn, nn.Module) else []


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _moved(a: Outcome, b: Outcome) -> str:
    if a.out is None or b.out is None or a.out.shape != b.out.shape:
        return ""
    return f"the same call twice differs by {(a.out - b.out).abs().max().item():.2g}"


def called(subject: Subject, match: Match, x: Inputs, fn: Callable[..., Any] | None = None) -> Tensor:
    """The candidate's result with its graph.

    Raises:
        BaseException: whatever it raises.
    """
    if x.mask is None and subject.how.needs_mask:
        x = x._replace(mask=subject.neutral_mask(match.form, x))
    given = calling.arguments(subject.how, match.form, x)
    if fn is not None:
        return calling.call(fn, match.form, given, x, subject.width)
    with subject.precision.exactly():
        return calling.call(subject.fn, match.form, given, x, subject.width)


def changed(subject: Subject) -> Finding | None:
    """Whether some call changed an argument in place."""
    if not subject.changed:
        return None
    names = ", ".join(sorted(subject.changed))
    fault = CHANGES._replace(said=f"it changes its input {names} in place")
    return Finding(fault, "")


def forgets(subject: Subject, match: Match) -> Finding | None:
    """Whether other inputs of the same sizes get what is theirs, and not what an earlier call left."""
    name = next(iter(subject.sizes()))
    x = subject.inputs(subject.sizes()[name], match.form.layout, seed=7)
    got = subject.call(match.form, x, neutral=True)
    if got.out is None or search.equal(got.out, subject.reference(match.reading, x, match.changes), search.LOOSE):
        return None
    return Finding(STATE, "with other inputs of the same sizes it gives what an earlier call gave")


def stale(subject: Subject, match: Match, axes: str) -> Finding | None:
    """Whether a fresh copy of the candidate is right where the one that was called before is not."""
    fresh = Subject(subject.original, subject.heads(), subject.how)
    x, got = fresh.outcome(match.form, next(iter(fresh.sizes())), axes=axes)
    if got.out is None or not search.equal(got.out, subject.reference(match.reading, x, match.changes), search.LOOSE):
        return None
    return Finding(STATE, "a fresh copy of it is right in the call in which this one is not")


def gradients(subject: Subject, match: Match) -> Finding | None:
    """Whether the gradients of the inputs, and of the parameters that are used, are those of the reference."""
    name = next(iter(subject.sizes()))
    x = subject.outcome(match.form, name)[0]
    inputs = [y.clone().requires_grad_() for y in x[:3]]
    if x.key is x.query:
        inputs = [inputs[0]] * 3
    elif x.value is x.key:
        inputs = [inputs[0], inputs[1], inputs[1]]
    leaves = list({id(y): y for y in inputs}.values())
    names = ("query", "key", "value") if subject.is_module else ("q", "k", "v")
    live = _views(inputs)
    weights = []
    if isinstance(subject.fn, nn.Module):
        weights = [(n, p) for n, p in subject.fn.named_parameters() if p.is_floating_point()]
    try:
        for _, p in weights:
            p.requires_grad_(True)
        try:
            out = called(subject, match, live)
        except (KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:
            if "requires grad" in str(error) or "leaf" in str(error):
                fault = CUT._replace(said=f"it cannot be trained: {str(error).splitlines()[0]}")
                return Finding(fault, "the numbers are right")
            return None
        if not out.requires_grad:
            return Finding(CUT, "the numbers are right")
        generator = torch.Generator().manual_seed(1)
        fixed = torch.randn(out.shape, generator=generator, dtype=torch.float64)
        try:
            got = torch.autograd.grad(
                (out.double() * fixed).sum(), [*leaves, *(p for _, p in weights)], allow_unused=True
            )
        except RuntimeError as error:
            said = f"its gradient cannot be computed: {str(error).splitlines()[0][:120]}"
            return Finding(CUT._replace(said=said), "the numbers are right")
        right_leaves = [y.detach().clone().requires_grad_() for y in leaves]
        place = {id(y): z for y, z in zip(leaves, right_leaves, strict=True)}
        copies = [place[id(y)] for y in inputs]
        reference = subject.reference(match.reading, Inputs(*copies), match.changes).out
        right = torch.autograd.grad((reference * fixed).sum(), right_leaves, allow_unused=True)
    finally:
        for _, p in weights:
            p.requires_grad_(False)
    for leaf_name, mine, expected in zip(names, got, right, strict=False):
        if expected is None or expected.abs().max() < 1e-9:
            continue
        if mine is None or not mine.any():
            fault = CUT._replace(said=f"no gradient reaches {leaf_name}")
            return Finding(fault, "the numbers are right")
        if not torch.allclose(mine, expected, 1e-4, 1e-4):
            gap = (mine - expected).abs().max().item()
            said = f"the gradient of {leaf_name} differs from the reference, the numbers do not"
            return Finding(CUT._replace(said=said), f"largest difference {gap:.2g}")
    return None


def _views(inputs: list[Tensor]) -> Inputs:
    """Inputs that are no leaves, so that they may be changed in place; the same object where they are the same."""
    made: dict[int, Tensor] = {}
    for y in inputs:
        made.setdefault(id(y), y.clone())
    return Inputs(*(made[id(y)] for y in inputs))
