"""Quantize the linear maps of a module, and count what it takes."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mha_course.quantization.affine import Affine
from mha_course.quantization.calibration import Calibration, Observer
from mha_course.quantization.linear import Per, QuantizedLinear


def quantize_module(
    module: nn.Module,
    *,
    bits: int = 8,
    per: Per = "channel",
    activations: Literal["dynamic"] | Mapping[str, Affine] | None = None,
    calibration: Calibration = "min-max",
    skip: Iterable[str] = (),
) -> nn.Module:
    """Copy a module and replace every nn.Linear in it by a `QuantizedLinear`.

    All else stays in floating point: embeddings, norms, biases, the softmax and the products of queries, keys and
    values. Subclasses of nn.Linear are left alone, as their forward may do more. PyTorch's nn.TransformerEncoderLayer,
    whose attention must be skipped, reads the weights past the maps in evaluation without gradients: `activations`
    then has no effect.

    Args:
        module: it is left as it is.
        bits, per, calibration: of the weights, see `QuantizedLinear.from_float`.
        activations: None; "dynamic"; or a static range for each of the linear maps by its name, as `observe` helps
            to find.
        skip: names of submodules that stay as they are, with all in them.

    Returns:
        The copy.

    Raises:
        TypeError: module is not an nn.Module; see `QuantizedLinear`.
        ValueError: nothing would be quantized; there is an nn.MultiheadAttention in it, which keeps its weights in
            one bare parameter; it is quantized already, or prepared for training; activations lacks a name, or skip
            has one that is not there; see `QuantizedLinear`.
    """
    linears = find_linears(module, skip)
    if isinstance(activations, Mapping):
        lacking = [name for name in linears if name not in activations]
        if lacking:
            raise ValueError(f"activations must have an Affine for every nn.Linear, got none for {lacking[0]!r}")
    made = copy.deepcopy(module)
    new: dict[int, nn.Module] = {}  # one map under two names stays one
    for name, linear in linears.items():
        if id(linear) not in new:
            inputs = activations[name] if isinstance(activations, Mapping) else activations
            new[id(linear)] = QuantizedLinear.from_float(
                linear, bits=bits, per=per, activations=inputs, calibration=calibration
            )
        made = replace(made, name, new[id(linear)])
    return made


@contextmanager
def observe(module: nn.Module, skip: Iterable[str] = ()) -> Iterator[dict[str, Observer]]:
    """Watch what goes into each linear map while batches run through the module inside the `with`.

    Args:
        module: as in `quantize_module`.
        skip: likewise.

    Yields:
        An `Observer` for each nn.Linear, by its name.

    Raises:
        TypeError, ValueError: as in `quantize_module`.
    """
    linears = find_linears(module, skip)
    seen = {name: Observer() for name in linears}
    hooks = [
        linear.register_forward_pre_hook(lambda _, args, observer=seen[name]: observer.see(args[0]))
        for name, linear in linears.items()
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def size_in_bytes(module: nn.Module) -> int:
    """Count the bytes of all that a module saves: parameters and buffers, codes and scales.

    Args:
        module: a module of this package, of PyTorch, or quantized by torchao or torch.ao.

    Returns:
        Bytes of the tensors in its state_dict, shared ones once; a file adds its own headers.

    Raises:
        TypeError: module is not an nn.Module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be an nn.Module, got {type(module).__name__}")
    held = list(module.state_dict(keep_vars=True).values())
    # a tensor on "meta" has no address; with keep_vars one under two names is one object
    return sum({(x.data_ptr() or id(x), x.numel()): _bytes(x) for x in _tensors(held)}.values())


def find_linears(module: nn.Module, skip: Iterable[str] = ()) -> dict[str, nn.Linear]:
    """Find every nn.Linear by its name; raise where `quantize_module` would."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be an nn.Module, got {type(module).__name__}")
    skip = (skip,) if isinstance(skip, str) else tuple(skip)
    every = dict(module.named_modules(remove_duplicate=False))
    for name in skip:
        if name not in every:
            raise ValueError(f"skip must name submodules, got {name!r}, which is not there")
    kept = {n: m for n, m in every.items() if not any(n == s or n.startswith(f"{s}.") for s in skip)}
    for name, part in kept.items():
        where = f"module{f'.{name}' if name else ''}"
        if isinstance(part, nn.MultiheadAttention):
            raise ValueError(
                f"nothing would be quantized in {where}, an nn.MultiheadAttention: its weights are one bare parameter, "
                "in_proj_weight, and no nn.Linear; take MultiHeadAttention.from_torch of it"
            )
        if isinstance(part, QuantizedLinear) or _is_quantized(part):
            raise ValueError(f"{where} is quantized already: start from the module in floating point")
        if isinstance(part, nn.Linear) and parametrize.is_parametrized(part):
            raise ValueError(f"the weights of {where} are parametrized: convert or remove that first")
    linears = {name: part for name, part in kept.items() if type(part) is nn.Linear}
    if not linears:
        raise ValueError(f"nothing would be quantized: module, a {type(module).__name__}, has no nn.Linear")
    return linears


def replace(module: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """Put a submodule in the place of another; return the module, which is the new one if name is empty."""
    if not name:
        return new
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, new)
    return module


def _is_quantized(part: nn.Module) -> bool:
    """Whether torchao, whose tensors have a class of their own, or torch.ao has been here."""
    weight = getattr(part, "weight", None)
    if isinstance(weight, nn.Parameter):
        return hasattr(weight.data, "__tensor_flatten__")
    return type(part).__module__.startswith("torch.ao.nn.quantized")


def _tensors(x: Any) -> Iterator[Tensor]:
    """The plain tensors of which x is made."""
    if isinstance(x, list | tuple):
        for item in x:
            yield from _tensors(item)
    elif isinstance(x, Tensor):
        if hasattr(x, "__tensor_flatten__"):
            yield from _tensors([getattr(x, name) for name in x.__tensor_flatten__()[0]])
        else:
            yield x


def _bytes(x: Tensor) -> int:
    """Bytes of a tensor; of torch.ao's, which holds its scales and zero points apart, those too."""
    if not x.is_quantized:
        return x.numel() * x.element_size()
    per_channel = x.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric)
    beside = x.q_per_channel_scales().nbytes + x.q_per_channel_zero_points().nbytes if per_channel else 16
    return x.numel() * x.element_size() + beside
