"""Layers of one's own that are linear maps, found by what they give: adapters, quantised weights."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mha_course.checks.diagnosis.copying import copied
from mha_course.checks.diagnosis.layouts import Unreadable
from mha_course.checks.limit import OutOfTime

_WIDEST = 4096


class Plain(NamedTuple):
    """A copy of a module, some of its layers replaced by an nn.Linear of the same numbers; and what is to be said."""

    module: nn.Module
    remark: str


def as_linears(candidate: Callable[..., Any]) -> Plain | None:
    """The candidate with its layers that give a linear map as nn.Linear; None if it has no such layers."""
    if not isinstance(candidate, nn.Module):
        return None
    try:
        twin = copied(candidate)
    except Unreadable:
        return None
    found: list[str] = []
    for path, layer in list(twin.named_modules()):
        inside = any(path.startswith(f"{one}.") for one in found)
        if not path or inside or type(layer).__module__.startswith("torch."):
            continue
        linear = _linear(layer)
        if linear is not None:
            twin.set_submodule(path, linear)
            found.append(path)
    if not found:
        return None
    return Plain(twin, f"Layers of its own were read as linear maps, by what they give: {', '.join(found)}.")


def _linear(layer: nn.Module) -> nn.Linear | None:
    """The linear map that a layer gives for each token; None if it gives another."""
    tensors = [*layer.parameters(), *layer.buffers()]
    for width in sorted({n for x in tensors for n in x.shape if 1 < n <= _WIDEST}):
        try:
            with torch.no_grad():
                made = _read(copy.deepcopy(layer), width)
        except (KeyboardInterrupt, OutOfTime):
            raise
        except Exception:
            continue
        if made is not None:
            return made
    return None


def _read(layer: nn.Module, width: int) -> nn.Linear | None:
    x = torch.randn(2, 3, width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    none: Tensor = layer(torch.zeros(1, 1, width, dtype=torch.float64))[0, 0]
    weight: Tensor = layer(torch.eye(width, dtype=torch.float64)[None])[0] - none
    got: Tensor = layer(x)
    if got.shape != (2, 3, weight.shape[-1]) or not torch.allclose(got, x @ weight + none, 1e-6, 1e-9):
        return None
    linear = nn.Linear(width, weight.shape[-1], bias=bool(none.any()), dtype=torch.float64)
    linear.weight.copy_(weight.mT)
    if linear.bias is not None:
        linear.bias.copy_(none)
    return linear
