"""What is wrong with attention weights: rows that do not sum to 1, negative weights, NaN."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Places = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RowSums:
    """What `row_sums` found; true in an `if` when nothing is wrong. Print it to read it.

    A place is an index of the weights without their last axis: (sample, head, row) of four axes.

    Attributes:
        rows: number of rows.
        ones: how many sum to 1.
        zeros: how many are 0 throughout: they see nothing.
        off: places of the rows with another sum.
        nan: places of the rows that hold NaN or infinity.
        negative: number of weights below 0.
        hidden: number of weights other than 0 where the mask hides the key, None without a mask.
        missing: places of rows of zeros though the mask shows them a key; empty without a mask.
        smallest, largest: the smallest and largest sum of a finite row, NaN if there is none.
    """

    rows: int
    ones: int
    zeros: int
    off: Places
    nan: Places
    negative: int
    hidden: int | None
    missing: Places
    smallest: float
    largest: float

    @property
    def ok(self) -> bool:
        """Whether every row sums to 1, or is 0 where it sees nothing, and no weight is negative."""
        return not (self.off or self.nan or self.negative or self.hidden or self.missing)

    def __bool__(self) -> bool:
        """Whether nothing is wrong, so that `assert row_sums(weights)` means what it says."""
        return self.ok

    def __str__(self) -> str:
        """In sentences, one a line."""
        lines = [f"{self.ones} of {self.rows} rows sum to 1, {self.zeros} are 0 throughout."]
        if self.off:
            lines.append(f"Another sum: {_named(self.off)}; sums from {self.smallest:.4f} to {self.largest:.4f}.")
        if self.nan:
            lines.append(f"NaN or infinity: {_named(self.nan)}.")
        if self.negative:
            lines.append(f"Weights below 0: {self.negative}.")
        if self.hidden:
            lines.append(f"Weights on keys that the mask hides: {self.hidden}.")
        if self.missing:
            lines.append(f"0 throughout though the mask shows a key: {_named(self.missing)}.")
        return "\n".join(lines)


def row_sums(weights: Float[Tensor, "... T S"], mask: Bool[Tensor, "..."] | None = None) -> RowSums:
    """Look at the sums of the rows of attention weights, one row a query.

    A sum counts as 1 within 1e-5, in float16 and bfloat16 within four times their rounding. Weights
    after dropout do not sum to 1: look at them in .eval().

    Args:
        weights: (..., T, S), after softmax.
        mask: bool, True = may attend, broadcasts to the weights: hidden keys must have weight 0.

    Returns:
        RowSums, true in an `if` when nothing is wrong.

    Raises:
        TypeError: weights is not a floating point tensor; mask is not a bool tensor.
        ValueError: weights has fewer than two axes; mask does not broadcast to it.
    """
    if not isinstance(weights, Tensor) or not weights.is_floating_point():
        got = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise TypeError(f"weights must be a floating point tensor (..., T, S), got {got}")
    if weights.ndim < 2:
        raise ValueError(f"weights must have at least two axes (..., T, S), got {tuple(weights.shape)}")
    exact = weights.detach().double()  # (..., T, S)
    finite = exact.isfinite().all(-1)  # (..., T)
    sums = exact.sum(-1)
    zero = (exact == 0).all(-1)
    one = (sums - 1).abs() <= max(1e-5, 4 * torch.finfo(weights.dtype).eps)
    hidden, missing = None, torch.zeros_like(zero)
    if mask is not None:
        may = _mask(mask, weights)
        hidden = int(((exact != 0) & ~may).sum())
        missing = zero & may.any(-1)
    known = sums[finite]
    return RowSums(
        rows=zero.numel(),
        ones=int((one & finite).sum()),
        zeros=int(zero.sum()),
        off=_places(finite & ~one & ~zero),
        nan=_places(~finite),
        negative=int((exact < 0).sum()),
        hidden=hidden,
        missing=_places(missing),
        smallest=known.min().item() if len(known) else float("nan"),
        largest=known.max().item() if len(known) else float("nan"),
    )


def _mask(mask: Tensor, weights: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a bool tensor (True = may attend), got {got}")
    try:
        return mask.to(weights.device).expand_as(weights)
    except RuntimeError:
        sizes = tuple(weights.shape), tuple(mask.shape)
        raise ValueError(f"mask must broadcast to the weights, {sizes[0]}, got {sizes[1]}") from None


def _places(where: Tensor) -> Places:
    return tuple(tuple(index) for index in where.nonzero().tolist())


def _named(places: Places) -> str:
    """For example: row 0, row 4 and 3 more; places with a batch in brackets."""
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    return ", ".join(f"row {p[0] if len(p) == 1 else p}" for p in places[:5]) + more
