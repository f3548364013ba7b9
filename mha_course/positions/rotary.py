"""Rotary positions: queries and keys are turned by their position, so that a score depends on the distance alone."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mha_course.positions._inputs import check_integer, check_number, check_vectors, positions

Scaling = Literal["interpolation", "ntk", "yarn"]
FAST, SLOW = 32, 1  # turns within the trained length: YaRN's beta and alpha for Llama


def rotary_frequencies(
    rotary_dim: int,
    *,
    base: float = 10_000.0,
    scaling: Scaling | None = None,
    factor: float = 1.0,
    trained_length: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, " pairs"]:
    """Return by how many radians a position each pair of entries turns.

    frequency_i = base^(-2i/R),   i = 0 ... R/2 - 1

    A model that was trained on some length can be used on one that is `factor` times longer if its clocks run slower:

    "interpolation": all frequencies are divided by factor.
    "ntk": base becomes base * factor^(R/(R-2)): the fastest clock keeps its pace, the slowest is divided by factor.
    "yarn": clocks that make more than 32 turns within trained_length keep their pace, those that make less than one
        are divided by factor, those between lie between; see also `Rotary`.

    Args:
        rotary_dim: number of entries R that are turned, even, at least 2 (4 for "ntk").
        base: at least 1, above it for "yarn".
        scaling: None, "interpolation", "ntk" or "yarn".
        factor: how many times longer than in training, at least 1; only with a scaling.
        trained_length: tokens that the model was trained on; only for "yarn".
        device: where the frequencies are made.
        dtype: float32 or float64.

    Returns:
        Frequencies (R/2,) in radians a position, the fastest first.

    Raises:
        TypeError: rotary_dim or trained_length is not an integer; base or factor is not a number; another dtype.
        ValueError: rotary_dim is odd or too small; base is not finite and at least 1; unknown scaling; factor below 1
            or not finite; factor without scaling; trained_length missing for "yarn", given for another, or below 1;
            base that is not above 1 with "yarn".

    Source: Su et al. 2021, section 3.4.3: theta_i is the frequency, d is R. Chen et al. 2023 ("interpolation"); bloc97
    2023 ("ntk"); Peng et al. 2023 ("yarn"): s is factor, L trained_length. The latter's code lets the share of the old
    frequency rise in the pair's index between rounded bounds, its section 3.2 in the number of turns; this is the
    code, since the models in use were trained with it.
    """
    rotary_dim = check_integer("rotary_dim", rotary_dim, least=4 if scaling == "ntk" else 2)
    if rotary_dim % 2:
        raise ValueError(f"rotary_dim must be even, each pair is turned as one, got {rotary_dim}")
    base = check_number("base", base, 1, above=scaling == "yarn")
    if scaling not in (None, "interpolation", "ntk", "yarn"):
        raise ValueError(f"scaling must be None, 'interpolation', 'ntk' or 'yarn', got {scaling!r}")
    factor = check_number("factor", factor, 1)
    if scaling is None and factor != 1:
        raise ValueError(f"factor needs a scaling: 'interpolation', 'ntk' or 'yarn', got factor {factor:g} without")
    if (trained_length is not None) != (scaling == "yarn"):
        raise ValueError(f"trained_length is for scaling 'yarn' alone, got {trained_length} with {scaling!r}")
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    if scaling == "ntk":
        base = base * factor ** (rotary_dim / (rotary_dim - 2))
    pair = torch.arange(rotary_dim // 2, device=device, dtype=dtype)
    frequencies = base ** (-2 * pair / rotary_dim)
    if scaling == "interpolation":
        return frequencies / factor
    if trained_length is not None:
        trained_length = check_integer("trained_length", trained_length, least=1)
        kept = _kept(pair, rotary_dim, base, trained_length)
        return frequencies * kept + frequencies / factor * (1 - kept)
    return frequencies


def _kept(pair: Float[Tensor, " pairs"], rotary_dim: int, base: float, trained_length: int) -> Float[Tensor, " pairs"]:
    """How much of its frequency a pair keeps under YaRN, 1 for the fast ones, 0 for the slow ones."""
    # the pairs, not rounded, that make so many turns within the trained length
    fast, slow = (
        rotary_dim * math.log(trained_length / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (FAST, SLOW)
    )
    low, high = max(math.floor(fast), 0), min(math.ceil(slow), rotary_dim - 1)
    return 1 - ((pair - low) / max(high - low, 1e-3)).clamp(0, 1)


class Rotary(nn.Module):
    """Turn each pair of entries of queries or keys by an angle that grows with the position.

    With pair (a, b) number i at position p = t + offset, and the angle p * frequency_i:

    (a, b)  ->  (a cos - b sin,  b cos + a sin)

    Lengths are kept, and q_m . k_n depends on n - m alone. Nothing is stored, so that no cast of the module can round
    the frequencies; a half-precision x is turned in float32.

    interleaved: pairs are neighbours, (0, 1), (2, 3), ... as in the paper, GPT-J and Meta's Llama. Otherwise, as in
    GPT-NeoX and Hugging Face's Llama, they are (0, R/2), (1, R/2 + 1), ... The two are not interchangeable: weights
    trained with one give nonsense with the other, until the rows of the projections are reordered.

    With scaling "yarn", cos and sin are multiplied by 0.1 ln(factor) + 1, so that scores grow by its square: a softmax
    at a lower temperature, for more keys.

    Args:
        head_dim: width D of a head.
        rotary_dim: the first R entries are turned, the others stay; D if None.
        base, scaling, factor, trained_length: see `rotary_frequencies`.
        interleaved: which entries form a pair.

    Raises:
        TypeError: head_dim or rotary_dim is not an integer; what `rotary_frequencies` raises.
        ValueError: head_dim below 1; rotary_dim above head_dim; what `rotary_frequencies` raises.

    Source: Su et al. 2021, equations 15 and 34; Peng et al. 2023, section 3.4, for the temperature.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        rotary_dim: int | None = None,
        base: float = 10_000.0,
        interleaved: bool = False,
        scaling: Scaling | None = None,
        factor: float = 1.0,
        trained_length: int | None = None,
    ) -> None:
        super().__init__()
        self.head_dim, self.interleaved = check_integer("head_dim", head_dim, least=1), interleaved
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self.base, self.scaling, self.factor, self.trained_length = base, scaling, factor, trained_length
        self._frequencies(None, torch.float32)  # raises
        if self.rotary_dim > head_dim:
            raise ValueError(f"rotary_dim must be at most head_dim = {head_dim}, got {rotary_dim}")

    def forward(self, x: Float[Tensor, "*batch T D"], *, offset: int = 0) -> Float[Tensor, "*batch T D"]:
        """Return x turned by its positions.

        Args:
            x: queries or keys (..., T, D).
            offset: position of the first token, at least 0: the number of tokens in a cache.

        Returns:
            (..., T, D) in the type of x.

        Raises:
            TypeError: x is not a floating point tensor; offset is not an integer.
            ValueError: x has another width than D; offset is negative.
        """
        check_vectors(x, "D", self.head_dim)
        offset = check_integer("offset", offset)
        position = positions(x.shape[-2], offset, x.device, x.dtype)
        angle = position.unsqueeze(-1) * self._frequencies(x.device, position.dtype)  # (T, R / 2)
        cos, sin = angle.cos(), angle.sin()
        if self.scaling == "yarn":
            magnitude = 0.1 * math.log(self.factor) + 1
            cos, sin = cos * magnitude, sin * magnitude
        turned, kept = x.split([self.rotary_dim, self.head_dim - self.rotary_dim], dim=-1)
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        turned = turned.to(x.dtype)
        return turned if self.rotary_dim == self.head_dim else torch.cat([turned, kept], dim=-1)

    def _frequencies(self, device: torch.device | None, dtype: torch.dtype) -> Float[Tensor, " pairs"]:
        return rotary_frequencies(
            self.rotary_dim,
            base=self.base,
            scaling=self.scaling,
            factor=self.factor,
            trained_length=self.trained_length,
            device=device,
            dtype=dtype,
        )

    def extra_repr(self) -> str:
        """Return what `print` shows."""
        text = f"{self.head_dim}, rotary_dim={self.rotary_dim}, base={self.base:g}, interleaved={self.interleaved}"
        if self.scaling is None:
            return text
        text += f", scaling={self.scaling!r}, factor={self.factor:g}"
        return text if self.trained_length is None else f"{text}, trained_length={self.trained_length}"
