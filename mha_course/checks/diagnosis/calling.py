"""Call a candidate as it wants to be called: which argument is what, which layout, which kind of mask."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mha_course.checks.diagnosis.names import LIKELY_SECOND, may_be_stream, role_of
from mha_course.checks.diagnosis.steps import Inputs

CONVENTIONS = {
    "may attend": "True = may attend",
    "blocked": "True = hidden",
    "additive": "0 = may attend, -inf = hidden, added to the scores",
    "may attend, as numbers": "1 = may attend, 0 = hidden",
    "blocked, as numbers": "1 = hidden, 0 = may attend",
}
AXES = ("B 1 T S", "B H T S", "B T S", "B S", "T S")
LAYOUTS = {
    "module": ("B T E", "T B E", "B E T", "B E 1 T", "T E"),
    "function": ("B H T D", "B T H D", "B T D", "T D"),
}


class Form(NamedTuple):
    """One way to call a candidate.

    Attributes:
        layout: of the inputs and the result.
        mask: a key of CONVENTIONS.
        axes: of the mask.
    """

    layout: str
    mask: str = "may attend"
    axes: str = "B 1 T S"


class NoAdapter(Exception):
    """The candidate wants arguments that cannot be guessed; the message asks for an adapter."""


class NoWeights(NoAdapter):
    """A module takes less than q, k and v, and has no weights to make them with; the message says so."""


class Argument(NamedTuple):
    """An argument that is passed: its name ("" if by place), and "query", "key", "value" or "context"."""

    name: str
    role: str


class Signature(NamedTuple):
    """Which arguments a candidate takes.

    Attributes:
        inputs: in their order.
        mask: name of the mask's keyword, "" if there is none.
        needs_mask: whether it cannot be called without.
        spare: names of optional arguments that are not passed, and might be a second stream.
    """

    inputs: tuple[Argument, ...]
    mask: str
    needs_mask: bool
    spare: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the inputs."""
        return tuple(argument.role for argument in self.inputs)

    @property
    def takes_mask(self) -> bool:
        """Whether a mask can be passed."""
        return bool(self.mask)

    @property
    def crosses(self) -> bool:
        """Whether keys come from another argument than queries."""
        return len(self.inputs) > 1


_QKV = (Argument("", "query"), Argument("", "key"), Argument("", "value"))


def signature(fn: Callable[..., Any], is_function: bool) -> Signature:
    """Read the signature of a module's forward, or of a function.

    Args:
        fn: the candidate.
        is_function: whether q, k and v are what it takes, as a function or a module without projections does.

    Raises:
        NoAdapter: an argument without default has a name that says nothing.
        NoWeights: a module without weights does not take q, k and v.
    """
    target = fn.forward if isinstance(fn, nn.Module) else fn
    parameters = _parameters(target)
    if parameters is None:
        return Signature(_QKV, "attn_mask" if "scaled_dot" in _named(fn) else "", False)  # written in C
    inputs: list[Argument] = []
    unknown: list[inspect.Parameter] = []
    masks: list[inspect.Parameter] = []
    spare: list[str] = []
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        needed = p.default is p.empty
        role = role_of(p.name, [argument.role for argument in inputs])
        if role == "mask":
            masks.append(p)
        elif role and (needed or (role != "query" and p.default is None)):
            inputs.append(Argument(_keyword(p), role))
        elif needed and LIKELY_SECOND.search(p.name) and [argument.role for argument in inputs] == ["query"]:
            inputs.append(Argument(_keyword(p), "context"))
        elif needed:
            unknown.append(p)
        elif may_be_stream(p):
            spare.append(p.name)
    if unknown and not inputs:
        roles = ("query", "key", "value") if is_function or len(unknown) > 2 else ("query", "context")
        if len(unknown) <= len(roles):
            inputs = [Argument(_keyword(p), role) for p, role in zip(unknown, roles, strict=False)]
            unknown = []
    if unknown:
        wanted = ", ".join(f"`{p.name}`" for p in unknown)
        raise NoAdapter(f"it needs {wanted}, which this check cannot guess")
    if not inputs:
        if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
            raise NoAdapter("it takes no arguments")
        inputs = list(_QKV)
    if is_function and len(inputs) < 3:
        names = ", ".join(argument.name or argument.role for argument in inputs)
        if isinstance(fn, nn.Module):
            raise NoWeights(f"it takes {names}, and no weights of projections were found among its parameters")
        raise NoAdapter(f"it takes {names}, and a function is called with q, k and v")
    mask = next((p for p in masks if p.default is p.empty), masks[0] if masks else None)
    if is_function or [argument.role for argument in inputs] != ["query"]:
        spare = []
    needs = mask is not None and mask.default is mask.empty
    return Signature(tuple(inputs), mask.name if mask else "", needs, tuple(spare))


def _parameters(fn: Any) -> list[inspect.Parameter] | None:
    """The parameters of what is called, a scripted method's too; None if nothing tells them."""
    try:
        return list(inspect.signature(fn).parameters.values())
    except Exception:
        schema = getattr(fn, "schema", None)
    if not isinstance(schema, torch._C.FunctionSchema):
        return None
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    made = []
    for argument in schema.arguments:
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        if argument.name != "self":
            made.append(inspect.Parameter(argument.name, kind, default=default))
    return made


def _named(fn: Any) -> str:
    return str(getattr(fn, "__name__", ""))


def _keyword(p: inspect.Parameter) -> str:
    return "" if p.kind is p.POSITIONAL_ONLY else p.name


def with_axes(x: Tensor, axes: str) -> Tensor:
    """A mask or bias (B or 1, 1 or H, T or 1, S) with the axes that are wanted."""
    return {"B T S": lambda: x[:, 0], "B S": lambda: x[:, 0, -1], "T S": lambda: x[0, 0]}.get(axes, lambda: x)()


def converted(mask: Tensor, form: Form, dtype: torch.dtype) -> Tensor:
    """A mask (B or 1, 1, T or 1, S), True = may attend, as the form wants it."""
    axes = with_axes(mask, form.axes)
    if form.mask == "may attend":
        return axes
    if form.mask == "blocked":
        return ~axes
    if form.mask == "additive":
        return torch.zeros(axes.shape, dtype=dtype).masked_fill(~axes, -torch.inf)
    return (axes if form.mask == "may attend, as numbers" else ~axes).to(dtype)


_PERMUTED = {"B T H D": (0, 2, 1, 3), "T B E": (1, 0, 2), "B E T": (0, 2, 1)}  # each its own inverse


def _laid(x: Tensor, layout: str) -> Tensor:
    if layout in _PERMUTED:
        return x.permute(_PERMUTED[layout])
    other = {"B T D": lambda: x[:, 0], "T D": lambda: x[0, 0], "B E 1 T": lambda: x.mT[:, :, None], "T E": lambda: x[0]}
    return other.get(layout, lambda: x)()


def _unlaid(x: Tensor, layout: str) -> Tensor:
    if layout in _PERMUTED:
        return x.permute(_PERMUTED[layout])
    other = {"B T D": lambda: x[:, None], "T D": lambda: x[None, None], "B E 1 T": lambda: x[:, :, 0].mT,
             "T E": lambda: x[None]}  # fmt: skip
    return other.get(layout, lambda: x)()


class WrongResult(Exception):
    """What came back is no attention output; kind is "wrong_type" or "wrong_shape"."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(said)
        self.kind = kind


Given = tuple[list[Tensor], dict[str, Tensor]]


def call(fn: Callable[..., Any], form: Form, given: Given, x: Inputs, width: int) -> Tensor:
    """Call fn; the result, whose last axis is width, in the course's own layout.

    Raises:
        WrongResult: no tensor comes back that could be the output.
        BaseException: whatever fn raises.
    """
    returned = fn(*given[0], **given[1])
    expected = _laid(x.query[..., :1].expand(*x.query.shape[:-1], width), form.layout).shape
    return _unlaid(output(returned, expected), form.layout)


def arguments(how: Signature, form: Form, x: Inputs) -> Given:
    """The arguments for one call: those that go by place, and those that go by name. One tensor stays one."""
    inputs = {"query": x.query, "key": x.key, "value": x.value, "context": x.key}
    made: dict[int, Tensor] = {}
    args: list[Tensor] = []
    keywords: dict[str, Tensor] = {}
    for name, role in how.inputs:
        one = inputs[role]
        laid = made.setdefault(id(one), _laid(one, form.layout))
        if name:
            keywords[name] = laid
        else:
            args.append(laid)
    if not how.takes_mask or (x.mask is None and x.bias is None):
        return args, keywords
    if x.bias is not None:
        bias = x.bias if x.mask is None else x.bias.masked_fill(~x.mask, -torch.inf)
        keywords[how.mask] = with_axes(bias, form.axes)
    else:
        assert x.mask is not None
        keywords[how.mask] = converted(x.mask, form, x.query.dtype)
    return args, keywords


def output(returned: Any, expected: torch.Size) -> Tensor:
    """The output among what came back: the first tensor of the expected shape."""
    parts: Any = returned
    if isinstance(returned, Mapping):
        parts = list(returned.values())
    elif isinstance(returned, Tensor):
        parts = [returned]
    elif not isinstance(returned, tuple | list):
        raise WrongResult("wrong_type", f"it returns {_kind(returned)}, expected a tensor")
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if not tensors:
        raise WrongResult("wrong_type", f"it returns {_kind(returned)} without a tensor in it, expected a tensor")
    fitting = [tensor for tensor in tensors if tensor.shape == expected]
    if not fitting:
        said = f"its result has shape {tuple(tensors[0].shape)}, expected {tuple(expected)}"
        raise WrongResult("wrong_shape", said)
    if not fitting[0].is_floating_point():
        kind = str(fitting[0].dtype).removeprefix("torch.")
        raise WrongResult("wrong_type", f"its result has type {kind}, expected the type of the inputs")
    return fitting[0]


def _kind(x: Any) -> str:
    return "None" if x is None else f"a {type(x).__name__}"
