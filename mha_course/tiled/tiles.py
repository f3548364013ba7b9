"""Which scores a tile holds, what hides some of them, and which of its weights dropout keeps."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from mha_course.tiled.online import working_type


class Plan(NamedTuple):
    """All of a call that is not a tensor.

    Attributes:
        scale: factor on q k^T.
        is_causal: query t may attend to keys 0 to t only.
        dropout_p: probability of dropping a weight.
        seed: with the number of a tile, it decides which of the tile's weights are dropped.
        block_q, block_k: rows and columns of a tile.
    """

    scale: float
    is_causal: bool
    dropout_p: float
    seed: int
    block_q: int
    block_k: int


def blocks(length: int, size: int) -> list[slice]:
    """Cut 0, 1, ..., length - 1 into pieces of that size; the last may be shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def in_the_future(rows: slice, columns: slice) -> bool:
    """Whether every key of the tile comes after every query of it."""
    return columns.start >= rows.stop


def cut(x: Shaped[Tensor, "#B #H #T #S"], rows: slice, columns: slice) -> Shaped[Tensor, "#B #H #t #s"]:
    """The part of a mask or a bias that belongs to a tile, a view; an axis of size 1 serves every tile."""
    x = x if x.shape[2] == 1 else x[:, :, rows]
    return x if x.shape[3] == 1 else x[:, :, :, columns]


def tile_mask(
    mask: Bool[Tensor, "#B #H #T #S"] | None, rows: slice, columns: slice, is_causal: bool, device: torch.device
) -> Bool[Tensor, "#B #H #t #s"] | None:
    """The mask of a tile, and-ed with the causal one where the diagonal crosses the tile."""
    part = None if mask is None else cut(mask, rows, columns)
    if not is_causal or columns.stop <= rows.start + 1:
        return part
    shape = (1, 1, rows.stop - rows.start, columns.stop - columns.start)
    past = torch.ones(shape, dtype=torch.bool, device=device).tril(rows.start - columns.start)
    return past if part is None else part & past


def dropout_factors(
    plan: Plan, q: Float[Tensor, "B H T D"], S: int, rows: slice, columns: slice
) -> Float[Tensor, "B H t s"] | None:
    """What dropout multiplies each weight of a tile with: 0, or 1 / (1 - dropout_p) if it is kept.

    They depend on the seed, the number of the tile, its size, B, H and the device, so both passes draw the same.

    Args:
        plan: its dropout_p, seed and blocks count.
        q: all queries (B, H, T, D): their sizes and device count.
        S: number of all keys.
        rows, columns: of the tile.

    Returns:
        (B, H, rows, columns) in the working type, or None without dropout.
    """
    if plan.dropout_p == 0:
        return None
    number = rows.start // plan.block_q * math.ceil(S / plan.block_k) + columns.start // plan.block_k  # of the tile
    generator = torch.Generator(q.device).manual_seed(plan.seed + number)
    shape = (*q.shape[:2], rows.stop - rows.start, columns.stop - columns.start)
    factors = torch.empty(shape, dtype=working_type(q), device=q.device)
    keep = 1 - plan.dropout_p
    return factors.bernoulli_(keep, generator=generator).mul_(1 / keep if keep else 0.0)
