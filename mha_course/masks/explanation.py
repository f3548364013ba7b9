"""What a mask lets through, in words and numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from mha_course.masks._inputs import check_bool
from mha_course.masks._names import Name, distances, recognise
from mha_course.masks.order import Alignment

Places = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, repr=False)
class Explanation:
    """What `explain` found out about a mask; print it to read it.

    A place is an index of the mask: (sample, head, row) of four axes without the keys, and so on.

    Attributes:
        shape: the shape of the mask, after broadcasting with `padding` where that was given.
        pairs: number of (query, key) pairs, over all samples and heads.
        allowed: how many of them may attend.
        name: what the mask equals, as an expression of this module, for example "causal(5)",
            "~causal(5)" or "causal(5) & padding"; None if it is none that is known.
        blind: places of the rows that see nothing.
        unseen: places of the keys that no query sees.
        future: how many allowed pairs look ahead of the query; None where the order is not known: one
            row for all queries, or T != S without alignment.
        own: in how many rows a query sees its own position; None as for future.
        padding_seen: how many allowed pairs have a padding key; None if no padding was given.
        meaning: the name in words, "" if there is none.
        advice: what probably went wrong, "" if nothing looks wrong.
    """

    shape: tuple[int, ...]
    pairs: int
    allowed: int
    name: str | None
    blind: Places
    unseen: Places
    future: int | None
    own: int | None
    padding_seen: int | None
    meaning: str
    advice: str

    @property
    def share(self) -> float:
        """Share of the pairs that may attend, 0 if there is no pair."""
        return self.allowed / self.pairs if self.pairs else 0.0

    def __str__(self) -> str:
        """Everything in sentences, one a line."""
        axes = ", ".join(("B", "H", "T", "S")[-len(self.shape) :] if len(self.shape) <= 4 else ("...", "T", "S"))
        percent = f"{100 * self.share:.0f}%" if self.allowed in (0, self.pairs) else f"{100 * self.share:.1f}%"
        lines = [f"Mask ({axes}) = {self.shape}: {self.allowed} of {self.pairs} pairs may attend ({percent})."]
        if self.name is not None:
            lines.append(f"It equals {self.name}: {self.meaning}.")
        rows = math.prod(self.shape[:-1])
        axes_of_rows, axes_of_keys = self.shape[:-1], (*self.shape[:-2], self.shape[-1])
        lines.append(_count(len(self.blind), rows, "row", "sees nothing", "see nothing", self.blind, axes_of_rows))
        if self.unseen:
            keys = len(self.unseen)
            lines.append(_count(keys, None, "key", "is", "are", self.unseen, axes_of_keys, " seen by no query"))
        if self.future is not None and self.own is not None:
            ahead = "No query sees its future" if not self.future else f"Pairs that look into the future: {self.future}"
            lines.append(f"{ahead}. Rows that see their own position: {self.own} of {rows}.")
        if self.padding_seen is not None:
            lines.append(f"Allowed pairs whose key is padding: {self.padding_seen}.")
        return "\n".join([*lines, *([self.advice] if self.advice else [])])

    __repr__ = __str__


def explain(
    mask: Bool[Tensor, "..."],
    *,
    padding: Bool[Tensor, "..."] | None = None,
    alignment: Alignment | None = None,
) -> Explanation:
    """Say in words and numbers what a mask lets through.

    Args:
        mask: bool, True = may attend, (..., T, S): (T, S), (B, 1, 1, S), (B, H, T, S) and so on.
        padding: the keys that are real, as `padding` returns them, to count what is seen of the rest.
        alignment: which query stands on which key where T != S, as in `causal`.

    Returns:
        An Explanation: print it, or read its numbers. An inverted mask (True = blocked) is recognised
        where it is one of `causal`, `sliding_window`, `padding` or a mixture of them.

    Raises:
        TypeError: mask or padding is not a bool tensor.
        ValueError: mask or padding has fewer than two axes; padding has more than one row, as (B, S)
            would; they do not broadcast; unknown alignment.
    """
    _check("mask", mask)
    if padding is not None:
        _check("padding", padding)
        if padding.shape[-2] != 1:
            raise ValueError(f"padding must have one row for all queries, (B, 1, 1, S), got {tuple(padding.shape)}")
    if alignment not in (None, "upper_left", "lower_right"):
        raise ValueError(f"alignment must be 'upper_left' or 'lower_right', got {alignment!r}")
    given = mask
    padding_seen = None
    if padding is not None:
        try:
            mask, padding = torch.broadcast_tensors(mask, padding)
        except RuntimeError:
            sizes = tuple(padding.shape)
            raise ValueError(f"padding must broadcast with mask, {tuple(given.shape)}, got {sizes}") from None
        padding_seen = int((mask & ~padding).sum())
    found = recognise(mask if mask.shape[-2:] != given.shape[-2:] else given)
    T, S = mask.shape[-2:]
    future, own = None, None
    if T == S or (alignment is not None and T > 1):
        offset = S - T if alignment == "lower_right" else 0
        ahead = distances(T, S, mask.device) - offset
        future, own = int((mask & (ahead > 0)).sum()), int((mask & (ahead == 0)).sum())
    blind, unseen = ~mask.any(-1), ~mask.any(-2)
    return Explanation(
        shape=tuple(mask.shape),
        pairs=mask.numel(),
        allowed=int(mask.sum()),
        name=found.name if found else None,
        blind=_places(blind),
        unseen=_places(unseen),
        future=future,
        own=own,
        padding_seen=padding_seen,
        meaning=found.meaning if found else "",
        advice=_advice(given, found, bool(blind.any()), padding_seen),
    )


def _check(name: str, x: Tensor) -> None:
    check_bool(name, x)
    if x.ndim < 2:
        raise ValueError(f"{name} must have at least two axes (T, S), got {tuple(x.shape)}")


def _advice(mask: Tensor, found: Name | None, blind: bool, padding_seen: int | None) -> str:
    if found is not None and found.advice:
        return found.advice
    if mask.ndim == 3 and mask.shape[0] > 1:
        return (
            f"Three axes are lined up with (H, T, S): sample b's mask would go to head b. If the first, "
            f"{mask.shape[0]}, is the batch, use mask[:, None]."
        )
    if mask.ndim == 2 and _like_padding(mask):
        return (
            "Two axes mean (T, S), but each row is a run of keys from the left that does not grow row by row, "
            "as padding (B, S) looks: is it mask[:, None, None, :]?"
        )
    if padding_seen:
        return "Hide the padding: mask & padding."
    if blind:
        return "A row that sees nothing gets output 0 here, NaN from a plain softmax."
    return ""


def _like_padding(mask: Tensor) -> bool:
    """Whether every row of a (T, S) mask is a run from the left, and some run is shorter than the one before."""
    if mask.shape[1] < 2:
        return False
    lengths = mask.sum(-1)
    runs = torch.arange(mask.shape[1], device=mask.device) < lengths.unsqueeze(-1)
    return bool((runs == mask).all() and (lengths.diff() < 0).any())


def _places(where: Tensor) -> Places:
    return tuple(tuple(index) for index in where.nonzero().tolist())


def _count(
    n: int, of: int | None, what: str, one: str, more: str, places: Places, sizes: Sequence[int], end: str = ""
) -> str:
    """For example: 2 of 10 rows see nothing: sample 0, row 1; sample 1, row 4."""
    if n == 0:
        return f"Every {what} sees something." if of else f"There are no {what}s."
    total = "" if of is None else f" of {of}"
    plural = what if (of or n) == 1 else f"{what}s"
    named = "; ".join(_place(index, sizes, what) for index in places[:4])
    rest = f" and {n - 4} more" if n > 4 else ""
    return f"{n}{total} {plural} {one if n == 1 else more}{end}: {named}{rest}."


def _place(index: tuple[int, ...], sizes: Sequence[int], what: str) -> str:
    """For example: sample 1, row 2. Axes of size 1 are left out."""
    if len(index) > 3:
        return f"{what} {index}"
    names = ("sample", "head", what)[-len(index) :]
    said = [f"{name} {i}" for name, i, n in zip(names, index, sizes, strict=True) if n > 1]
    return ", ".join(said) or f"{what} 0"
