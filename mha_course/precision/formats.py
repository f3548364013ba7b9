"""Number formats bit by bit: what each of them can hold, and to what it rounds."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.precision._inputs import check_floating, check_real


class Bits(NamedTuple):
    """The bits of a number, as text of 0 and 1.

    Attributes:
        sign: one bit; 1 is negative.
        exponent: the exponent field, highest bit first.
        fraction: the digits behind the binary point, highest bit first.
    """

    sign: str
    exponent: str
    fraction: str


class Neighbours(NamedTuple):
    """The value that a format holds for a number, and the values beside it.

    Attributes:
        below: the next smaller value than nearest.
        nearest: what the number is rounded to.
        above: the next larger value than nearest.
    """

    below: float
    nearest: float
    above: float


@dataclass(frozen=True)
class Format:
    """A binary floating point format: a sign, an exponent and a fraction.

    value = (-1)^sign * 2^(exponent - bias) * 1.fraction, and where the exponent field is 0
    value = (-1)^sign * 2^(1 - bias) * 0.fraction: the subnormals, evenly spaced down to 0

    Attributes:
        name: as in `FORMATS`.
        bits: bits that carry information. TF32 uses 19 of the 32 in which it is stored.
        exponent_bits, fraction_bits: width of the fields; with the sign they make up all bits.
        bias: what is subtracted from the exponent field.
        infinities: whether the highest exponent is kept for infinity and NaN. Where it is not,
            only the number with all bits set is NaN.
        dtype: PyTorch's type, None if it has none.

    Source: IEEE 754-2019, section 3.4. bfloat16: Kalamkar et al. 2019. float8: Micikevicius et al. 2022, table 1.
    """

    name: str
    bits: int
    exponent_bits: int
    fraction_bits: int
    bias: int
    infinities: bool
    dtype: torch.dtype | None

    @property
    def largest(self) -> float:
        """The largest finite value."""
        if self.infinities:
            return math.ldexp(2 - self.epsilon, self.bias)
        return math.ldexp(2 - 2 * self.epsilon, 2**self.exponent_bits - 1 - self.bias)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive value that has all its digits."""
        return math.ldexp(1.0, 1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive value."""
        return math.ldexp(1.0, 1 - self.bias - self.fraction_bits)

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger value."""
        return math.ldexp(1.0, -self.fraction_bits)

    @property
    def decimal_digits(self) -> float:
        """How many decimal digits the fraction is worth, the digit before the point included."""
        return (self.fraction_bits + 1) * math.log10(2)

    def round(self, x: Float[Tensor, "*sizes"]) -> Float[Tensor, "*sizes"]:
        """Round each element to the nearest value of the format, a tie to the one whose last bit is 0.

        It is what `x.to(dtype)` does, from float32 bit for bit. (From float64 PyTorch goes through float32 and so
        rounds twice; this function rounds once.) What lies above the largest value by half a step or more becomes
        infinity. Where the format has no infinity, that and infinity itself become the largest value, as in PyTorch.
        Zero keeps its sign, NaN stays NaN.

        Args:
            x: any floating point tensor.

        Returns:
            A new tensor of the sizes of x in float64, which holds every value of every format; without a gradient.

        Raises:
            TypeError: x is not a floating point tensor.
        """
        check_floating("x", x)
        x = x.detach().resolve_neg().double()
        step = self._step(x)
        rounded = torch.round(x / step) * step  # a power of two divides without error; torch.round takes ties to even
        top = self.largest
        if not self.infinities:
            return rounded.clamp(-top, top)
        return torch.where(rounded.abs() > top, torch.copysign(torch.full_like(x, math.inf), x), rounded)

    def spacing(self, x: Float[Tensor, "*sizes"]) -> Float[Tensor, "*sizes"]:
        """Say how far the values of the format lie apart around each element.

        spacing = 2^(floor(log2 |x|) - fraction_bits), and below the smallest normal value as there

        Args:
            x: any floating point tensor.

        Returns:
            float64 of the sizes of x: from a value that the format holds, the distance to the next larger
            magnitude. NaN for NaN and for what lies beyond the largest value.

        Raises:
            TypeError: x is not a floating point tensor.
        """
        check_floating("x", x)
        x = x.detach().resolve_neg().double()
        return torch.where(x.abs() <= self.largest, self._step(x), math.nan)

    def bits_of(self, x: float) -> Bits:
        """Write the nearest value of the format as bits.

        Args:
            x: any number. NaN is written as the quiet NaN that conversions make: positive, with the first
                fraction bit set, or all of them where the format has no infinities.

        Returns:
            Bits(sign, exponent, fraction).

        Raises:
            TypeError: x is not a number.
        """
        value = self._nearest(x)
        all_ones = 2**self.exponent_bits - 1
        if math.isnan(value):
            field, fraction = all_ones, 2 ** (self.fraction_bits - 1) if self.infinities else 2**self.fraction_bits - 1
        elif math.isinf(value):
            field, fraction = all_ones, 0
        elif abs(value) < self.smallest_normal:
            field, fraction = 0, int(abs(value) / self.smallest_subnormal)
        else:
            significand, exponent = math.frexp(abs(value))  # significand in [0.5, 1)
            field = exponent - 1 + self.bias
            fraction = int(math.ldexp(significand, self.fraction_bits + 1)) - 2**self.fraction_bits
        sign = "1" if math.copysign(1.0, value) < 0 and not math.isnan(value) else "0"
        return Bits(sign, f"{field:0{self.exponent_bits}b}", f"{fraction:0{self.fraction_bits}b}")

    def neighbours(self, x: float) -> Neighbours:
        """Say to which value x is rounded, and what the format holds beside it.

        Args:
            x: any number; below <= x <= above unless it overflows.

        Returns:
            Neighbours(below, nearest, above), three different values. Beside the largest value lies infinity,
            or NaN where the format has none, and nothing (NaN) beyond infinity. Three times NaN for NaN.

        Raises:
            TypeError: x is not a number.
        """
        nearest = self._nearest(x)
        return Neighbours(0.0 - self._above(-nearest), nearest, self._above(nearest))  # 0.0 -: no negative zero

    def _nearest(self, x: float) -> float:
        return self.round(torch.tensor(check_real("x", x), dtype=torch.float64)).item()

    def _above(self, value: float) -> float:
        """The next larger value than one that the format holds."""
        if value == -math.inf:
            return -self.largest
        if value == self.largest:
            return math.inf if self.infinities else math.nan
        if not math.isfinite(value):
            return math.nan
        exponent = max(math.frexp(value)[1] - 1, 1 - self.bias) if value else 1 - self.bias
        if value == -math.ldexp(1.0, exponent) and exponent > 1 - self.bias:
            exponent -= 1  # towards 0 the values lie closer, from a power of two on
        return value + math.ldexp(1.0, exponent - self.fraction_bits)

    def _step(self, x: Tensor) -> Tensor:
        """The spacing at x, float64, as if the exponent had no upper end."""
        exponent = ((x.view(torch.int64) >> 52) & 0x7FF) - 1023  # read off, since log2 and pow may be one bit off
        exponent = exponent.clamp_min(1 - self.bias) - self.fraction_bits
        return ((exponent + 1023) << 52).view(torch.float64)


FORMATS = {
    form.name: form
    for form in (
        Format("float32", 32, 8, 23, 127, True, torch.float32),
        Format("tf32", 19, 8, 10, 127, True, None),
        Format("bfloat16", 16, 8, 7, 127, True, torch.bfloat16),
        Format("float16", 16, 5, 10, 15, True, torch.float16),
        Format("float8 e4m3", 8, 4, 3, 7, False, torch.float8_e4m3fn),
        Format("float8 e5m2", 8, 5, 2, 15, True, torch.float8_e5m2),
    )
}
