"""Calibration: which range the codes should cover, of a tensor that is known or of batches that pass by."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.quantization._inputs import (
    check_bits,
    check_bool,
    check_choice,
    check_finite,
    check_float,
    check_integer,
    check_per,
)
from mha_course.quantization.affine import Affine, affine_from_range, fake_quantize

Calibration = Literal["min-max", "percentile", "mse"]
Range = tuple[Float[Tensor, "..."], Float[Tensor, "..."]]
NAMES = ("min-max", "percentile", "mse")


def min_max(x: Float[Tensor, "..."], *, rows: bool = False) -> Range:
    """Take the range from the smallest to the largest number: nothing is clipped.

    Args:
        x: finite numbers, at least one.
        rows: a range for each row along the last axis, instead of one for all.

    Returns:
        low, high: without axes; with rows, shaped as x with 1 as the last axis (none of them if x has no rows).

    Raises:
        TypeError: x is not a floating point tensor.
        ValueError: x holds NaN or infinity, or no number where a range is asked for.
    """
    low, high = (_check(x, rows) if rows else _check(x, rows).flatten()).aminmax(dim=-1, keepdim=rows)
    if not (torch.isfinite(low).all() and torch.isfinite(high).all()):
        check_finite("x", x)
    return low, high


def percentile(x: Float[Tensor, "..."], p: float, *, rows: bool = False) -> Range:
    """Take the range that holds the middle p percent of the numbers, so that a few outliers are clipped.

    (100 - p) / 2 percent are left out at either end, with linear interpolation between neighbours.

    Args:
        x: as in `min_max`.
        p: percent, above 0 and up to 100, where it is `min_max`.
        rows: as in `min_max`.

    Returns:
        low, high, as `min_max` returns them.

    Raises:
        TypeError: x is not a floating point tensor; p is not a number.
        ValueError: as in `min_max`; p is outside (0, 100].
    """
    if isinstance(p, bool) or not isinstance(p, int | float):
        raise TypeError(f"p must be a number, got {type(p).__name__}")
    if not 0 < p <= 100:
        raise ValueError(f"p must be above 0 and at most 100, got {p}")
    x = check_finite("x", _check(x, rows))
    ordered = (x if rows else x.flatten()).sort(dim=-1).values  # torch.quantile refuses more than 2^24 numbers
    last = ordered.shape[-1] - 1
    ends = []
    for at in (last * (100 - p) / 200, last * (100 + p) / 200):
        before = min(int(at), max(last - 1, 0))
        left, right = ordered[..., before].double(), ordered[..., min(before + 1, last)].double()
        ends.append(torch.lerp(left, right, at - before).to(x.dtype))  # their difference may overflow a smaller type
    low, high = (end.unsqueeze(-1) for end in ends) if rows else ends
    return low, high


def mse(
    x: Float[Tensor, "..."], bits: int, *, symmetric: bool = True, rows: bool = False, candidates: int = 64
) -> Range:
    """Take the range with the smallest mean squared error after quantization, among shrunken copies of the full one.

    (low, high) = (f min x, f max x), f = 1, (n-1)/n, ..., 1/n: the f with the least mean of (x - fake_quantize(x))^2

    A smaller range clips the outliers and makes the steps between all others finer.

    Args:
        x: as in `min_max`.
        bits, symmetric: of the codes, see `affine_from_range`.
        rows: as in `min_max`.
        candidates: n, at least 1.

    Returns:
        low, high, as `min_max` returns them.

    Raises:
        TypeError: x is not a floating point tensor; bits or candidates is not an integer, symmetric not a bool.
        ValueError: as in `min_max`; bits is outside [2, 16]; candidates is below 1.
    """
    check_bits(bits), check_bool("symmetric", symmetric), check_integer("candidates", candidates, 1)
    low, high = min_max(x, rows=rows)
    x = x.detach()
    best, least = torch.ones_like(low), None
    for step in range(candidates, 0, -1):
        f = step / candidates
        error = (
            (x - fake_quantize(x, affine_from_range(f * low, f * high, bits, symmetric=symmetric))).double().square()
        )
        error = error.mean(-1, keepdim=True) if rows else error.mean()
        least = error if least is None else least
        better = error < least
        best, least = torch.where(better, f, best), torch.where(better, error, least)
    return best * low, best * high


def find_affine(
    x: Float[Tensor, "..."],
    bits: int,
    *,
    per: Literal["tensor", "channel"] | int,
    symmetric: bool = True,
    calibration: Calibration = "min-max",
    percent: float = 99.9,
) -> Affine:
    """Choose scale and zero point for a tensor that is known.

    Args:
        x: finite numbers; no gradient passes into the scale.
        bits: 2 to 16.
        per: how many numbers share a scale. "tensor": all. "channel": a row along the last axis, which in the weight
            (out, in) of a linear map is an output feature, and in activations (B, T, E) a token. An integer: as many
            neighbours along the last axis, which it must divide.
        symmetric: whether 0.0 lies in the middle of the codes, see `affine_from_range`.
        calibration: "min-max", "percentile" or "mse", the functions of these names.
        percent: for "percentile".

    Returns:
        Affine; scale has no axes, or is (..., 1), or (..., G, 1) for G groups. If x has no rows, neither has scale.

    Raises:
        TypeError: x is not a floating point tensor; bits is not an integer, symmetric not a bool; percent is no number.
        ValueError: x holds NaN or infinity, or no number where a range is asked for; bits is outside [2, 16]; per is
            none of these, or a group that does not divide the last axis; another calibration; percent outside (0, 100].

    Source: per channel: Krishnamoorthi 2018, section 2.6; groups: Shen et al. 2020 (Q-BERT), section 3.2.
    """
    check_bits(bits), check_bool("symmetric", symmetric), check_choice("calibration", calibration, NAMES)
    check_float("x", x)
    check_per(per)
    if not isinstance(per, str):
        if x.ndim == 0 or x.shape[-1] == 0 or x.shape[-1] % per:
            raise ValueError(
                f"per, the size of a group, must divide the last axis of x, got {per} for {tuple(x.shape)}"
            )
        x = x.unflatten(-1, (-1, per))
    rows = per != "tensor"
    if calibration == "percentile":
        low, high = percentile(x, percent, rows=rows)
    elif calibration == "mse":
        low, high = mse(x, bits, symmetric=symmetric, rows=rows)
    else:
        low, high = min_max(x, rows=rows)
    return affine_from_range(low, high, bits, symmetric=symmetric)


class Observer:
    """See batches of activations and give one static range for all of them.

    It keeps every number that it saw, so that each calibration can be asked of it afterwards: for a few batches.

    Attributes:
        batches: how many it saw.
    """

    def __init__(self) -> None:
        self._seen: list[Tensor] = []

    @property
    def batches(self) -> int:
        """How many batches it saw."""
        return len(self._seen)

    def see(self, x: Float[Tensor, "..."]) -> None:
        """Take in a batch.

        Args:
            x: finite numbers, any shape; a copy is kept.

        Raises:
            TypeError: x is not a floating point tensor.
            ValueError: x holds NaN or infinity.
        """
        self._seen.append(check_finite("x", x).detach().flatten().clone())

    def affine(
        self, bits: int, *, symmetric: bool = True, calibration: Calibration = "min-max", percent: float = 99.9
    ) -> Affine:
        """Give scale and zero point, one for all, from the numbers of all batches together.

        Args:
            bits, symmetric, calibration, percent: see `find_affine`.

        Returns:
            Affine without axes.

        Raises:
            TypeError, ValueError: as in `find_affine`; no number was seen.
        """
        if not sum(x.numel() for x in self._seen):
            raise ValueError("the observer must see at least one number before it gives a range, got none")
        x = torch.cat(self._seen)
        return find_affine(x, bits, per="tensor", symmetric=symmetric, calibration=calibration, percent=percent)


def _check(x: Tensor, rows: bool) -> Tensor:
    """The tensor, without its graph; raise unless each range that is asked for has a number in it."""
    check_float("x", x)
    if x.ndim == 0 and rows:
        raise ValueError("x must have at least one axis for a range per row, got a single number")
    if (x.shape[-1] if rows else x.numel()) == 0:
        raise ValueError(f"x must hold at least one number{' in a row' if rows else ''}, got {tuple(x.shape)}")
    return x.detach()
