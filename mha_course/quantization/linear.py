"""A linear map whose weights are integers, and whose inputs can be."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.quantization._inputs import check_bits, check_bool, check_finite, check_float, check_integer, check_per
from mha_course.quantization.affine import Affine, dequantize, quantize, steps
from mha_course.quantization.calibration import Calibration, find_affine
from mha_course.quantization.packing import codes_per_byte, pack, unpack

Activations = Literal["dynamic"] | Affine | None
Per = Literal["tensor", "channel"] | int


class QuantizedLinear(nn.Module):
    """Compute x W^T + b from integer codes of W, with a scale for each output feature.

    activations None:     out = x (scale code)^T + b, in floating point
    "dynamic", or static: out = (scale_x scale) (code_x code^T) + b, the product of codes in whole numbers, exactly

    "dynamic" takes 8 bits and a new scale for every token, from its own largest number. Static is one Affine for all
    inputs, from an `Observer`: what lies beyond its range is clipped. In a row with NaN or infinity the output is NaN,
    save that a static range clips infinity.

    The product of codes is taken by floating point units, which every machine has: float32 where
    K max|code_x| max|code| < 2^24 for K = in_features, so that every partial sum is a whole number that it holds, in
    whatever order it is summed; else float64, up to 2^53. PyTorch's int8 product (torch._int_mm) saturates on some
    processors without VNNI. So the numbers are the same everywhere; a kernel for int8 would be faster.

    Codes and scales are buffers: they are in the state_dict, move with `.to`, and have no gradients. Scales stay in
    float32 at least, as float16 cannot hold the sums. 4 bits and fewer are packed, two or four codes to a byte; 9 to 16
    take two bytes. The bias stays in floating point. Where activations are quantized, the gradient of x is 0.

    Use `from_float`; a fresh one is for loading a state_dict into. The state_dict holds the widths too, one byte each:
    codes of another width raise a ValueError, as those of 3 bits have the shape of those of 4.

    Args:
        in_features, out_features: K and N.
        bias: whether there is one.
        bits: of the weights' codes, which are symmetric.
        per: how many weights share a scale, see `find_affine`.
        activations: None, "dynamic", or an Affine without axes of at most 8 bits.
        device, dtype: dtype is that of the bias.

    Raises:
        TypeError: a size is not an integer; activations is none of these.
        ValueError: a size is below 1; bits is outside [2, 16]; per is none of its kinds, or a group that does not
            divide K; a group with activations, as groups have no single sum of whole numbers; an Affine with axes, or
            of more than 8 bits.

    Source: Jacob et al. 2018, section 2.2, integer-arithmetic-only matrix multiplication: scale_x scale is M times the
        scale of the output, which stays in floating point here. A scale a token: Dettmers et al. 2022, section 2.
    """

    codes: Tensor
    scale: Tensor
    bias: Tensor | None
    input_scale: Tensor
    input_zero_point: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        bits: int = 8,
        per: Per = "channel",
        activations: Activations = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        K = self.in_features = check_integer("in_features", in_features, 1)
        N = self.out_features = check_integer("out_features", out_features, 1)
        self.bits, self.per = check_bits(bits), per
        check_bool("bias", bias)
        check_per(per)
        self.activations, self._input = _check_activations(activations, per), (8, True)
        stored = torch.uint8 if bits <= 4 else torch.int8 if bits <= 8 else torch.int16
        width = -(-K // codes_per_byte(bits))
        self.register_buffer("codes", torch.zeros(N, width, dtype=stored, device=device))
        if isinstance(per, str):
            shape: tuple[int, ...] = () if per == "tensor" else (N, 1)
        elif K % per:
            raise ValueError(f"per, the size of a group, must divide in_features, got {per} and {K}")
        else:
            shape = (N, K // per, 1)
        self.register_buffer("scale", torch.ones(shape, device=device, dtype=torch.float32))
        self.register_buffer("bias", torch.zeros(N, device=device, dtype=dtype) if bias else None)
        if isinstance(activations, Affine):
            self._input = activations.bits, activations.symmetric
            self.register_buffer("input_scale", activations.scale.detach().clone().to(device))
            self.register_buffer("input_zero_point", activations.zero_point.clone().to(device))

    @classmethod
    def from_float(
        cls,
        linear: nn.Linear,
        *,
        bits: int = 8,
        per: Per = "channel",
        activations: Activations = None,
        calibration: Calibration = "min-max",
    ) -> "QuantizedLinear":
        """Quantize the weights of a linear map.

        Args:
            linear: it is left as it is; its bias, device and training mode are taken over.
            bits, per, activations: see the class.
            calibration: of the weights, see `find_affine`.

        Raises:
            TypeError: linear is not an nn.Linear; see the class.
            ValueError: its weights hold NaN or infinity; it has forward hooks; another calibration; see the class.
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be an nn.Linear, got {type(linear).__name__}")
        if linear._forward_hooks or linear._forward_pre_hooks:
            raise ValueError("linear must have no hooks, which would be lost: remove them first")
        weight, bias = check_finite("linear.weight", linear.weight.detach()), linear.bias
        N, K = weight.shape
        made = cls(K, N, bias=bias is not None, bits=bits, per=per, activations=activations, device=weight.device)
        affine = find_affine(weight, bits, per=per, calibration=calibration)
        codes = quantize(weight, affine)
        made.codes = pack(codes, bits) if bits <= 4 else codes.to(made.codes.dtype)
        made.scale = affine.scale
        made.bias = None if bias is None else bias.detach().clone()
        return made.train(linear.training)

    @property
    def weight_codes(self) -> Integer[Tensor, "N K"]:
        """The codes, one to an element."""
        return unpack(self.codes, self.bits, self.in_features) if self.bits <= 4 else self.codes

    @property
    def weight(self) -> Float[Tensor, "N K"]:
        """The weights that the codes stand for, in floating point."""
        zero = torch.zeros_like(self.scale, dtype=torch.int32)
        return dequantize(self.weight_codes, Affine(self.scale, zero, self.bits, True))

    @property
    def static(self) -> Affine | None:
        """The one range of all inputs, where there is one."""
        if not isinstance(self.activations, Affine):
            return None
        return Affine(self.input_scale, self.input_zero_point, *self._input)

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        """Map x.

        Args:
            x: (..., K).

        Returns:
            (..., N), of x's type (under autocast with activations None, of its type).

        Raises:
            TypeError: x is not a floating point tensor.
            ValueError: its last axis is not K.
        """
        if check_float("x", x).ndim == 0 or x.shape[-1] != self.in_features:
            raise ValueError(f"x must be (..., K) with K = in_features = {self.in_features}, got {tuple(x.shape)}")
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.activations is None:
            return F.linear(x, self.weight.to(x.dtype), bias)
        affine = self.static or _of_each_token(x)
        with torch.autocast(x.device.type, enabled=False):  # it would round the sums
            total = self._product(steps(x, affine), affine.highest)
            out = total.to(self.scale.dtype) * (affine.scale * self.scale.flatten())
        return out.to(x.dtype) if bias is None else (out + bias.to(out.dtype)).to(x.dtype)

    def _product(self, counts: Float[Tensor, "... K"], most: int) -> Float[Tensor, "... N"]:
        """The sums over K of whole numbers up to most in size times the codes, exact."""
        largest = self.in_features * most * (2 ** (self.bits - 1) - 1)
        # with more than 8 bits TensorFloat-32 or bfloat16 inside of a product would round a factor
        dtype = torch.float32 if largest < 2**24 and self.bits <= 8 else torch.float64
        return F.linear(counts.to(dtype), self.weight_codes.to(dtype))

    def get_extra_state(self) -> Integer[Tensor, " W"]:
        """What no shape tells: bits of the weights' codes and, where it is static, the inputs' bits and symmetry."""
        widths = [self.bits, *self._input] if isinstance(self.activations, Affine) else [self.bits]
        return torch.tensor(widths, dtype=torch.uint8)

    def set_extra_state(self, state: Integer[Tensor, " W"]) -> None:
        """Raise unless a state_dict holds codes as these are."""
        given, own = state.tolist(), self.get_extra_state().tolist()
        if given != own:
            raise ValueError(
                f"state_dict must hold codes of {own} (bits; for static inputs their bits, and 1 if symmetric), "
                f"got {given}: make the layer as the saved one was made"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "QuantizedLinear":
        """Move or convert, but no scale to a type below float32."""
        before = {name: x for name, x in self.named_buffers() if name in ("scale", "input_scale")}
        super()._apply(fn, recurse)
        for name, x in before.items():
            after = getattr(self, name)
            if after.dtype in (torch.float16, torch.bfloat16):
                setattr(self, name, x.to(after.device))
        return self

    def extra_repr(self) -> str:
        """Sizes and how it is quantized."""
        inputs = "static" if isinstance(self.activations, Affine) else self.activations
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{sizes}, bits={self.bits}, per={self.per!r}, activations={inputs!r}"


def _of_each_token(x: Tensor) -> Affine:
    """What `find_affine(x, 8, per="channel")` finds, but NaN and infinity pass into the scale: no wait for a check."""
    largest = x.detach().to(torch.promote_types(x.dtype, torch.float32)).abs().amax(-1, keepdim=True)
    scale = torch.where(largest == 0, 1.0, (largest / 127).clamp(min=torch.finfo(largest.dtype).tiny))
    return Affine(scale, torch.zeros_like(scale, dtype=torch.int32), 8, True)


def _check_activations(activations: Activations, per: Per) -> Activations:
    if activations is None:
        return None
    if activations != "dynamic" and not isinstance(activations, Affine):
        raise TypeError(f'activations must be None, "dynamic" or an Affine, got {activations!r}')
    if not isinstance(per, str):
        raise ValueError(f"activations must be None with groups, which have no single integer sum, got per = {per}")
    if isinstance(activations, Affine):
        if activations.scale.ndim:
            shape = tuple(activations.scale.shape)
            raise ValueError(f"activations must be an Affine without axes, got a scale {shape}")
        if activations.bits > 8:
            raise ValueError(f"activations must have at most 8 bits, got {activations.bits}")
    return activations
