"""Quantization-aware training: round in the forward pass, and let the gradient pass as if nothing had been rounded."""

import copy
from collections.abc import Iterable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mha_course.quantization._inputs import check_bits
from mha_course.quantization.affine import Affine, fake_quantize
from mha_course.quantization.calibration import Calibration, find_affine
from mha_course.quantization.linear import Per, QuantizedLinear
from mha_course.quantization.modules import find_linears, replace


def straight_through(x: Float[Tensor, "..."], affine: Affine) -> Float[Tensor, "..."]:
    """Quantize and dequantize x, with the gradient of x itself.

    out = fake_quantize(x);   d out / d x = 1, also where x is clipped

    Args:
        x: finite numbers.
        affine: see `find_affine`; no gradient passes into it.

    Returns:
        `fake_quantize(x, affine)`, bit for bit.

    Raises:
        TypeError, ValueError: see `fake_quantize`.

    Source: Bengio et al. 2013, section 4, "straight-through estimator".
    """
    return fake_quantize(x.detach(), affine) + (x - x.detach())  # the last is 0


class FakeQuantized(nn.Module):
    """The parametrization of a weight: what is used is the rounded weight, what is trained is the one behind it.

    Args:
        bits, per, calibration: see `QuantizedLinear.from_float`. The scale is found anew at every step.
    """

    def __init__(self, bits: int, per: Per, calibration: Calibration) -> None:
        super().__init__()
        self.bits, self.per, self.calibration = bits, per, calibration

    def forward(self, weight: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """Round the weight to the values that have a code."""
        affine = find_affine(weight.detach(), self.bits, per=self.per, calibration=self.calibration)
        return straight_through(weight, affine)


def prepare_qat(
    module: nn.Module,
    *,
    bits: int,
    per: Per = "channel",
    calibration: Calibration = "min-max",
    skip: Iterable[str] = (),
) -> nn.Module:
    """Copy a module so that every nn.Linear in it computes with rounded weights, and can be trained that way.

    Args:
        module: it is left as it is.
        bits, per, calibration, skip: see `quantize_module`.

    Returns:
        The copy. `torch.nn.utils.parametrize` rounds each weight when it is used; the parameter that an optimizer
        moves keeps its full precision.

    Raises:
        TypeError, ValueError: see `quantize_module`.
    """
    check_bits(bits)
    find_linears(module, skip)
    made = copy.deepcopy(module)
    for linear in {id(m): m for m in find_linears(made, skip).values()}.values():
        parametrize.register_parametrization(linear, "weight", FakeQuantized(bits, per, calibration))
    return made


def convert(module: nn.Module) -> nn.Module:
    """Copy a module that `prepare_qat` made, and store its rounded weights as codes.

    Args:
        module: it is left as it is.

    Returns:
        The copy, with a `QuantizedLinear` for every map that was prepared. It computes the same numbers.

    Raises:
        TypeError: module is not an nn.Module.
        ValueError: nothing in it was prepared.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be an nn.Module, got {type(module).__name__}")
    made = copy.deepcopy(module)
    new: dict[int, nn.Module] = {}
    parts: list[tuple[str, Any]] = list(made.named_modules(remove_duplicate=False))
    for name, part in parts:
        rule = _rule(part)
        if rule is None:
            continue
        if id(part) not in new:
            plain = nn.Linear(part.in_features, part.out_features, bias=False, device="meta")
            plain.weight = nn.Parameter(part.parametrizations.weight.original.detach())
            plain.bias = part.bias
            new[id(part)] = QuantizedLinear.from_float(
                plain.train(part.training), bits=rule.bits, per=rule.per, calibration=rule.calibration
            )
        made = replace(made, name, new[id(part)])
    if not new:
        raise ValueError("module must come from prepare_qat, got one in which nothing was prepared")
    return made


def _rule(part: nn.Module) -> FakeQuantized | None:
    """How a linear map was prepared, if it was."""
    if isinstance(part, nn.Linear) and parametrize.is_parametrized(part, "weight"):
        rules: Any = part.parametrizations
        return next((rule for rule in rules["weight"] if isinstance(rule, FakeQuantized)), None)
    return None
