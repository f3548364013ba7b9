"""Absolute positions: a vector for each place, added to the embedding of the token that stands there."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mha_course.positions._inputs import check_dtype, check_integer, check_number, check_vectors, positions


def sinusoidal(
    length: int,
    embed_dim: int,
    *,
    base: float = 10_000.0,
    offset: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "T E"]:
    """Return the sinusoidal vectors of consecutive positions: sines in even columns, cosines in odd ones.

    PE[t, 2i] = sin(p / base^(2i/E)),   PE[t, 2i+1] = cos(p / base^(2i/E)),   p = t + offset

    Pair i turns by 1 / base^(2i/E) radians a position, so its period is 2 pi base^(2i/E) positions. There is no last
    position. An odd E leaves the last sine without its cosine.

    Args:
        length: number of positions T, at least 0.
        embed_dim: width E, at least 1.
        base: sets the slowest clock, at least 1; the angle of pair i is divided by base^(2i/E).
        offset: position of the first row, at least 0.
        device: where the table is made.
        dtype: its type, PyTorch's default if None; computed in float32 at least.

    Returns:
        Table (T, E).

    Raises:
        TypeError: length, embed_dim or offset is not an integer; base is not a number; dtype is not a floating
            point type.
        ValueError: length or offset is negative; embed_dim is below 1; base is not finite and at least 1.

    Source: Vaswani et al. 2017, section 3.5: pos is p, d_model is E, 10000 is base.
    """
    length, embed_dim = check_integer("length", length), check_integer("embed_dim", embed_dim, least=1)
    base, offset = check_number("base", base, 1), check_integer("offset", offset)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    check_dtype(dtype)
    position = positions(length, offset, device, dtype)
    even = torch.arange(0, embed_dim, 2, device=device, dtype=position.dtype)
    angle = position.unsqueeze(-1) * base ** (-even / embed_dim)  # (T, ceil(E / 2))
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # (T, E), or E + 1 if E is odd
    return table[:, :embed_dim].to(dtype)


class Sinusoidal(nn.Module):
    """Add the vectors of `sinusoidal` to embeddings. Nothing is stored: no table that could end, move or be cast.

    Args:
        embed_dim: width E, at least 1.
        base: see `sinusoidal`.

    Raises:
        TypeError: embed_dim is not an integer; base is not a number.
        ValueError: embed_dim is below 1; base is not finite and at least 1.

    Source: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, embed_dim: int, *, base: float = 10_000.0) -> None:
        super().__init__()
        sinusoidal(0, embed_dim, base=base)  # raises
        self.embed_dim, self.base = embed_dim, base

    def forward(self, x: Float[Tensor, "*batch T E"], *, offset: int = 0) -> Float[Tensor, "*batch T E"]:
        """Return x + PE.

        Args:
            x: embeddings (..., T, E).
            offset: position of the first token, at least 0.

        Returns:
            (..., T, E) in the type of x.

        Raises:
            TypeError: x is not a floating point tensor; offset is not an integer.
            ValueError: x has another width than E; offset is negative.
        """
        check_vectors(x, "E", self.embed_dim)
        return x + sinusoidal(
            x.shape[-2], self.embed_dim, base=self.base, offset=offset, device=x.device, dtype=x.dtype
        )

    def extra_repr(self) -> str:
        """Return what `print` shows."""
        return f"{self.embed_dim}, base={self.base:g}"


class Learned(nn.Module):
    """Add a learned vector for each position to embeddings; there are max_length of them, and no more.

    The table starts as N(0, 0.02^2), as in BERT and GPT-2.

    Args:
        max_length: number of positions, at least 1.
        embed_dim: width E, at least 1.
        device, dtype: of the parameter.

    Raises:
        TypeError: max_length or embed_dim is not an integer; dtype is not a floating point type.
        ValueError: one of them is below 1.

    Source: Gehring et al. 2017 (convolutional sequence to sequence), section 3.1; Devlin et al. 2019 (BERT).
    """

    def __init__(
        self,
        max_length: int,
        embed_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        size = check_integer("max_length", max_length, least=1), check_integer("embed_dim", embed_dim, least=1)
        if dtype is not None:
            check_dtype(dtype)
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Float[Tensor, "*batch T E"], *, offset: int = 0) -> Float[Tensor, "*batch T E"]:
        """Return x + the vectors of its positions.

        Args:
            x: embeddings (..., T, E).
            offset: position of the first token, at least 0.

        Returns:
            (..., T, E) in the type of x.

        Raises:
            TypeError: x is not a floating point tensor; offset is not an integer.
            ValueError: x has another width than E; offset is negative; a position lies beyond the table.
        """
        max_length, embed_dim = self.weight.shape
        check_vectors(x, "E", embed_dim)
        offset = check_integer("offset", offset)
        end = offset + x.shape[-2]
        if end > max_length:
            raise ValueError(f"the table ends at position {max_length - 1} (max_length {max_length}), got {end - 1}")
        return x + self.weight[offset:end].to(x.dtype)

    def extra_repr(self) -> str:
        """Return what `print` shows."""
        return "{}, {}".format(*self.weight.shape)
