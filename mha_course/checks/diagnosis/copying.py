"""A copy of a module to compare with: its own numbers, its weights plain, none of the original touched."""

import copy
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.overrides import TorchFunctionMode

from mha_course.checks import words
from mha_course.checks.diagnosis.layouts import Unreadable
from mha_course.checks.diagnosis.projections import role
from mha_course.checks.limit import OutOfTime


class _Detached(TorchFunctionMode):
    """Inside, `copy.deepcopy` copies tensors that hold a graph too, as plain numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every call of a function of PyTorch comes through here."""
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module in float64 and eval, weights with a norm or a mask on them as plain weights.

    Raises:
        Unreadable: a parameter has no numbers yet, or the module cannot be copied.
    """
    for name, p in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(p, UninitializedBuffer | UninitializedParameter) or p.is_meta:
            raise Unreadable(
                f"its {'parameter' if isinstance(p, nn.Parameter) else 'buffer'} {name} has no numbers yet"
            )
    try:
        with torch.no_grad(), _Detached():
            twin = _plain(_copy(module))
            return twin.double().eval()
    except (KeyboardInterrupt, OutOfTime):
        raise
    except BaseException as error:
        raise Unreadable(f"it cannot be copied, its copy raises {words.raised(error, type(module))[0]}") from None


def _copy(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except (KeyboardInterrupt, OutOfTime):
        raise
    except BaseException:
        if not any(hasattr(type(layer), "__deepcopy__") for layer in module.modules()):
            raise
    memo: dict[int, Any] = {}
    for layer in reversed(list(module.modules())):  # the inner ones first
        if hasattr(type(layer), "__deepcopy__"):
            _by_parts(layer, memo)
    return copy.deepcopy(module, memo)


def _by_parts(layer: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A copy of a layer without its own `__deepcopy__`, nor does the copy use it when it is copied in turn."""
    if id(layer) not in memo:
        twin = type(layer).__new__(type(layer))
        memo[id(layer)] = twin
        held = {name: value for name, value in layer.__dict__.items() if name != "__deepcopy__"}
        twin.__dict__.update(copy.deepcopy(held, memo), __deepcopy__=partial(_by_parts, twin))
    copy_of: nn.Module = memo[id(layer)]
    return copy_of


def _plain(module: nn.Module) -> nn.Module:
    """The module with weights that are made of others, by a norm or a mask, turned into parameters."""
    for layer in module.modules():
        if parametrize.is_parametrized(layer):
            made = {name: getattr(layer, name).detach() for name in layer.parametrizations}  # type: ignore[union-attr]
            layer.__class__ = type(layer).__bases__[0]  # the class with the property is the original's too
            del layer.parametrizations
            for name, value in made.items():
                layer.register_parameter(name, nn.Parameter(value.clone()))
        for hook in list(layer._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(layer, hook.name)
            elif isinstance(hook, SpectralNorm):
                remove_spectral_norm(layer, hook.name)
            elif isinstance(hook, prune.BasePruningMethod):
                prune.remove(layer, hook._tensor_name)
    return module


def freeze(module: nn.Module) -> None:
    """No gradients for parameters; a scripted module's may be no leaves."""
    for p in module.parameters():
        if p.is_leaf:
            p.requires_grad_(False)
        else:
            p.detach_()


def draw_parameters(module: nn.Module, seed: int, heads: int = 1) -> list[str]:
    """Draw weights that do not saturate the softmax, and biases that cannot be overlooked.

    Numbers of a module's own, one or one per head, keep their values: a learned scale starts at the right one. So do
    frozen parameters that are no projections, a table perhaps.

    Returns:
        The names of those that are learned.
    """
    generator = torch.Generator().manual_seed(seed)
    kept = _numbers(module, heads)
    norms = {id(p) for m in module.modules() if "Norm" in type(m).__name__ for p in m.parameters(recurse=False)}
    with torch.no_grad():
        for p in module.parameters():
            if not p.is_floating_point() or any(p is q for q in kept.values()):
                continue
            drawn = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            if p.ndim >= 2:
                p.copy_(drawn / math.sqrt(max(1, _fan(p.shape))))
            elif id(p) in norms:
                p.copy_(1 + 0.3 * drawn)
            else:
                p.copy_(0.4 * drawn)
    return [name for name, p in kept.items() if p.requires_grad and p.numel()]


def _numbers(module: nn.Module, heads: int) -> dict[str, Tensor]:
    """Parameters, by name, of one number or one per head, in no layer with a weight; and frozen ones of no role."""
    trains = any(p.requires_grad for p in module.parameters())
    found: dict[str, Tensor] = {}
    for path, layer in module.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        if "weight" in own or "Norm" in type(layer).__name__:
            continue
        found |= {f"{path}.{name}".lstrip("."): p for name, p in own.items() if p.numel() <= 1 or
                  (p.numel() == heads and max(p.shape) == heads) or
                  (trains and not p.requires_grad and not role(name))}  # fmt: skip
    return found


def _fan(shape: torch.Size) -> int:
    """How many numbers a weight of this shape sums up, as far as the shape tells."""
    sizes = list(shape)
    while len(sizes) > 2 and sizes[-1] == 1:  # a convolution of size 1
        sizes.pop()
    return min(sizes[-2:]) if len(sizes) == 3 else sizes[1]


def draw_mask(axes: str, B: int, T: int, S: int, generator: torch.Generator) -> Tensor:
    """A mask (B or 1, 1, T or 1, S) in which every query sees some keys and not all.

    In row t the key t is seen, so that a causal mask beside it leaves something.
    """
    if axes == "B S":
        most = min(3, S - 1)
        lengths = torch.arange(B) % most + S - most  # S - 3, S - 2, S - 1: something is hidden in every sample
        return (torch.arange(S) < lengths[:, None])[:, None, None]
    B = 1 if axes == "T S" else B
    mask = torch.rand(B, 1, T, S, generator=generator) < 0.6
    t = torch.arange(T)
    mask[..., t, t % S] = True
    mask[..., t, (t + 1) % S] = False
    mask[..., T - 1, (T - 2) % S] = False  # with T = S the next line takes back what hides a key in the last row
    mask[..., T - 1, 0] = True
    return mask
