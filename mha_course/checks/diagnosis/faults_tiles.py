"""Faults of attention that reads the keys in tiles, with a running maximum and sum."""

import math

import torch

from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.steps import Array, Mask, Step, add, grouped

_LAST_HINTS = ("Change the last key: does the result change?", "Let the loop run to S, and the last tile be shorter.")
TILES = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64)
_HINTS = (
    "Try one tile that holds all keys, then two: from which tile on is the result wrong?",
    "When the running maximum rises, the sum and the output so far both shrink by exp(old maximum - new maximum).",
)


def _tiled(
    tile: int,
    *,
    old_out: bool = True,
    old_total: bool = True,
    grow: float = 1.0,
    last: bool = True,
    average: bool = False,
    sum_tiles: bool = False,
    early: bool = False,
    full: bool = False,
) -> Step:
    def attend(q: Array, k: Array, v: Array, mask: Mask | None, bias: Array | None, scale: float) -> Array:
        k, v = grouped(k, q.shape[1]), grouped(v, q.shape[1])
        scores = add(q @ k.mT, scale, bias)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        S = k.shape[-2]
        out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
        top = torch.full((*q.shape[:-1], 1), -1e30, dtype=q.dtype)
        total = torch.zeros_like(top)
        rest = 0 if last or S <= tile else tile if full else S % tile
        starts = range(0, S - rest, tile)
        for n, j in enumerate(starts):
            s, u = scores[..., j : j + tile] * grow**n, v[..., j : j + tile, :]
            if average or sum_tiles:
                out = out + s.softmax(-1) @ u / (len(starts) if average else 1)
                continue
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            p, shrink = torch.exp(s - new), torch.exp(top - new)
            total = total * (shrink if old_total else 1) + p.sum(-1, keepdim=True)
            out = out * (shrink if old_out else 1) + p @ u
            if early:
                out = out / total
            top = new
        return out if average or sum_tiles else out / total

    return attend


def _faults(tile: int) -> tuple[Fault, ...]:
    with_tile = f"(tiles of {tile} keys)"
    return (
        Fault(
            "accumulator_not_rescaled",
            f"when a later tile raises the maximum, the output so far is not rescaled, only the sum is {with_tile}",
            {"attend": _tiled(tile, old_out=False)},
            _HINTS,
        ),
        Fault(
            "total_not_rescaled",
            f"when a later tile raises the maximum, the sum so far is not rescaled, only the output is {with_tile}",
            {"attend": _tiled(tile, old_total=False)},
            _HINTS,
        ),
        Fault(
            "nothing_rescaled",
            f"when a later tile raises the maximum, neither the sum nor the output so far is rescaled {with_tile}",
            {"attend": _tiled(tile, old_total=False, old_out=False)},
            _HINTS,
        ),
        Fault(
            "scale_grows_per_tile",
            f"the scores of later tiles are multiplied by a factor that grows with every tile {with_tile}",
            {"attend": _tiled(tile, grow=math.log2(math.e))},
            ("Print the factor on the scores in each tile.", "Compute it once, before the loop."),
        ),
        Fault(
            "last_tile_lost",
            f"the keys that do not fill a whole tile are lost {with_tile}",
            {"attend": _tiled(tile, last=False)},
            _LAST_HINTS,
        ),
        Fault(
            "last_tile_lost",
            f"the last tile is lost, a full one too: the loop stops before it {with_tile}",
            {"attend": _tiled(tile, last=False, full=True)},
            _LAST_HINTS,
        ),
        Fault(
            "divided_per_tile",
            f"the output so far is divided by the sum in every tile, not once at the end {with_tile}",
            {"attend": _tiled(tile, early=True)},
            _HINTS,
        ),
        Fault(
            "tiles_averaged",
            f"every tile has a softmax of its own, and the tiles are averaged {with_tile}",
            {"attend": _tiled(tile, average=True)},
            ("Sum the weights over all tiles: how is 1 shared out?", _HINTS[1]),
        ),
        Fault(
            "tiles_averaged",
            f"every tile has a softmax of its own, and the tiles are added up {with_tile}",
            {"attend": _tiled(tile, sum_tiles=True)},
            ("Sum the weights over all tiles: how is 1 shared out?", _HINTS[1]),
        ),
    )


TILED = tuple(
    fault._replace(keys=tile) for tile in TILES for fault in _faults(tile) if tile > 1 or fault.name != "last_tile_lost"
)
