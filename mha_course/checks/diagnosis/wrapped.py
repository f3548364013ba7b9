"""What a candidate stands for: the module behind a wrapper, a bound method, a partial, an object with weights."""

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from mha_course.checks.diagnosis.copying import copied
from mha_course.checks.diagnosis.projections import attribute

DEEPEST = 10  # wrappers around each other


def inner(candidate: Callable[..., Any]) -> Callable[..., Any]:
    """The candidate without what says nothing of its arguments: DataParallel, torch.compile, a bound forward.

    A partial of a module becomes a copy of the module whose forward is partial; so does a bound method of an object
    that holds weights and is no module.

    Raises:
        Unreadable: what would have to be copied cannot be.
    """
    for _ in range(DEEPEST):
        known = _known(candidate)
        if known is None:
            break
        candidate = known
    return candidate


def _known(candidate: Callable[..., Any]) -> Callable[..., Any] | None:
    """The next candidate inside, None if there is none."""
    if isinstance(candidate, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return candidate.module
    if isinstance(candidate, nn.Module):
        behind = candidate._modules.get("_orig_mod") if len(candidate._modules) == 1 else None
        return behind  # of torch.compile
    if isinstance(candidate, types.FunctionType):
        compiled = candidate.__dict__.get("_torchdynamo_orig_callable")
        return compiled if callable(compiled) else None
    if isinstance(candidate, functools.partial):
        whole = inner(candidate.func)
        if not isinstance(whole, nn.Module):
            return None
        return _with_forward(whole, lambda forward: functools.partial(forward, *candidate.args, **candidate.keywords))
    if isinstance(candidate, types.MethodType):
        owner, method = candidate.__self__, candidate.__func__
        if isinstance(owner, nn.Module):
            is_forward = method in (type(owner).forward, type(owner).__call__, attribute(owner.forward, "__func__"))
            return owner if is_forward else None
        return _holder(owner, method.__name__)
    if not isinstance(candidate, type) and isinstance(attribute(candidate, "__dict__"), dict):
        return _holder(candidate, "__call__")
    return None


def _with_forward(module: nn.Module, change: Callable[[Any], Any]) -> nn.Module:
    twin = copied(module)
    twin.forward = change(twin.forward)
    return twin


def other_method(candidate: Callable[..., Any]) -> tuple[nn.Module, Callable[..., Any]] | None:
    """Of a bound method of a module, not its forward: the module with it as forward, and the method of a copy.

    Raises:
        Unreadable: the module cannot be copied.
    """
    if not isinstance(candidate, types.MethodType) or not isinstance(candidate.__self__, nn.Module):
        return None
    twin = copied(candidate.__self__)
    method = types.MethodType(candidate.__func__, twin)
    return _with_forward(twin, lambda forward: types.MethodType(candidate.__func__, forward.__self__)), method


class Holder(nn.Module):
    """The modules and tensors of an object that is no module, with one of its methods as forward."""


def _holder(owner: Any, method: str) -> nn.Module | None:
    """An object's copy in a module; None if it holds no weights."""
    values = attribute(owner, "__dict__")
    if not isinstance(values, dict) or not any(_is_weight(value) for value in values.values()):
        return None
    twin = copy.deepcopy(owner)
    holder = Holder()
    for name, value in list(vars(twin).items()):
        if isinstance(value, Tensor) and value.is_floating_point():
            value = value if isinstance(value, nn.Parameter) else nn.Parameter(value.detach().clone())
            setattr(twin, name, value)
        setattr(holder, name, value)
    holder.forward = getattr(twin, method)
    return holder


def _is_weight(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return any(p.ndim >= 2 for p in value.parameters())
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 2


def holds_weights(fn: Any) -> bool:
    """Whether a function or object that is no module keeps weights, which cannot be read there."""
    if isinstance(fn, functools.partial):
        return holds_weights(fn.func) or any(_is_weight(value) for value in (*fn.args, *fn.keywords.values()))
    kept: list[Any] = []
    for cell in attribute(fn, "__closure__") or ():
        try:
            kept.append(cell.cell_contents)
        except ValueError:  # not yet set
            continue
    owner = attribute(fn, "__self__")
    values = attribute(fn if owner is None else owner, "__dict__")
    kept += list(values.values()) if isinstance(values, dict) else []
    return any(_is_weight(value) for value in kept)
