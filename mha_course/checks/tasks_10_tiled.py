"""The second exercise of notebook 10: attention in tiles, without all scores at once."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from mha_course.checks import attention_faults
from mha_course.checks.task import Task, Variation
from mha_course.checks.tasks_10_steps import (
    Array,
    Cuts,
    blocks_of,
    diagonal,
    tile_case,
    tile_cases,
    tile_numbers,
    tiled,
    whole_blocks,
    with_zeros,
)


def _one(m: Array, new: Array, n: int) -> Array:
    return torch.ones_like(new)


def _in_twos(x: Array, new: Array, *_: int) -> Array:
    return (x - new).exp2()


# in the exponentials of a tile, in the factors, and in both
_IN_TWOS: tuple[dict[str, Any], ...] = (
    {"power": _in_twos},
    {"factor": _in_twos},
    {"power": _in_twos, "factor": _in_twos},
)


def _own(m: Array, s: Array) -> Array:
    return s.amax(1, keepdim=True)


def _of_tile(m: Array, s: Array) -> Array:
    return torch.maximum(m, s.amax())


_CUT_HINTS = (
    "Print the first and the last key of each block, for S = 7 and block = 2: is every key there once?",
    "A block starts at 0, block, 2 block, ... below S and ends block further, the last one at S.",
)
_SCALE_HINTS = (
    "Multiply q by 2: by how much do your scaled scores grow? Then count the places that divide.",
    "Divide the scores of every tile once, by the square root of D, the width of the queries and keys.",
)
_FACTOR_HINTS = (
    "What there is so far was summed with the old maximum subtracted. What is it once the new one is subtracted?",
    "When a block is added, the sum and the output so far get the factor e^(old maximum - new maximum), both of them.",
)
_MAXIMUM_HINTS = (
    "Print the maximum after each block, for one query: it may rise, and never falls.",
    "The new maximum is the larger of the one so far and that of the tile, for each query by itself.",
)
_START_HINTS = (
    "Subtract 800 from all scores, which changes no weight: which maximum do you find?",
    "Start below every score, at -inf: e^(-inf - m) is 0, and nothing is there yet to be rescaled.",
)
_END_HINTS = (
    "Let all values be 1: the output should be 1, whatever the scores.",
    "Sum the exponentials of all blocks beside the output, and divide by that sum once, after the last block.",
)
_SOFTMAX_HINTS = (
    "Two blocks, the scores of the second 10 below those of the first: how much should the second count?",
    "No softmax inside a block: take exponentials, carry their sum on, and divide after the last block.",
)
_ADD_HINTS = (
    "Change the first key: does your output change?",
    "Each block adds to what the blocks before it gave, once that has its factor.",
)
_VALUE_HINTS = (
    "Change the last row of v: does your output change?",
    "Values are cut at the same places as keys: k[i:j] goes with v[i:j].",
)
_ROW_HINTS = (
    "Print the rows of your output: which of them are 0?",
    "The last block of queries may be shorter; every query sees the keys of all blocks.",
)
_NO_MAXIMUM_HINTS = (
    "Print e^800 in float64, and e^-800: what is left of your quotient?",
    "Subtract the maximum so far from the scores of a tile before you take exponentials.",
)
_BASE_HINTS = (
    "Print the exponential of a score that is 1 below the maximum: is it 1 / e?",
    "Exponentials and factors are powers of e: in base 2, the scores need the factor log2(e) first.",
)
_SHORT = "the last block is left out where it is shorter than the others"
_LAST_ALONE = "the last block alone counts: what came before is lost"
_IN_EVERY_STEP = "the output is divided by the sum in every step, not once at the end"
_OWN_MAXIMUM = "the maximum is that of the current block alone, not the largest so far"
_ONE_MAXIMUM = "one maximum is used for all queries, not one for each: a query far below it is lost"
_IN_EACH_BLOCK = "a softmax is taken in each block by itself"
_UPSIDE_DOWN = "the factor is upside down: e^(new maximum - old) instead of e^(old maximum - new)"


def _blocks(fault: str, cut: Cuts, hints: tuple[str, str] = _CUT_HINTS, **further: Any) -> Variation:
    """Other blocks of keys; where none is left, or an empty one, a solution may raise."""

    def may_raise(sizes: Mapping[str, int]) -> bool:
        blocks = list(cut(sizes["S"], sizes["block"]))
        return not blocks or len(_inside(blocks, sizes["S"])) < len(blocks)

    return Variation(fault, tiled(cut=lambda S, block: _inside(cut(S, block), S), **further), hints, may_raise)


def _inside(blocks: Iterable[slice], S: int) -> list[slice]:
    ends = ((b.start, min(b.stop, S)) for b in blocks)
    return [slice(start, stop) for start, stop in ends if start < stop]


tiled_attention = Task(
    name="tiled_attention",
    gradients=False,
    arguments=("q", "k", "v", "block"),
    results=(("out", ("T", "D")),),
    reference=tiled(),
    build=tiled,
    steps=tile_numbers,
    tiles=tile_case(0, (29, 1009, 2, 23)),
    cases=tile_cases,
    variations=(
        _blocks(_SHORT, whole_blocks),
        Variation("the zeros that fill up the last block are counted as keys", with_zeros, _CUT_HINTS),
        _blocks(
            "each block lacks its last key",
            lambda S, block: [slice(b.start, b.start + block - 1) for b in blocks_of(S, block)],
        ),
        _blocks(
            "blocks overlap: the first key of a block is in the block before it too",
            lambda S, block: [slice(b.start, b.start + block + 1) for b in blocks_of(S, block)],
        ),
        _blocks(
            "the first key is left out: blocks start at 1",
            lambda S, block: [slice(i, i + block) for i in range(1, S, block)],
        ),
        _blocks(
            "the last key is left out where it is alone in its block",
            lambda S, block: [slice(i, i + block) for i in range(0, S - 1, block)],
        ),
        _blocks("the first block is left out", lambda S, block: blocks_of(S, block)[1:]),
        _blocks("the last block is left out, whatever its length", lambda S, block: blocks_of(S, block)[:-1]),
        _blocks(
            "the first block alone is used: the others are never reached", lambda S, block: blocks_of(S, block)[:1]
        ),
        _blocks(
            "blocks start at 0, 1, 2, ..., not at multiples of block: they overlap",
            lambda S, block: [slice(i, i + block) for i in range(-(-S // block))],
        ),
        *(
            # not found as a pair: with block larger than S no block is left, and all is NaN
            _blocks(f"{_SHORT}, and {scale.fault}", whole_blocks, (_CUT_HINTS[0], _SCALE_HINTS[1]), scale=scale.of)
            for scale in attention_faults.FACTORS[:2]
        ),
        Variation(
            "the scores are divided by D: the square root of D is there twice",
            tiled(scale=lambda q, k, v: 1 / q.shape[-1]),
            _SCALE_HINTS,
        ),
        *(
            Variation(factor.fault, tiled(scale=factor.of), _SCALE_HINTS)
            for factor in attention_faults.FACTORS
            if "divided by D," not in factor.fault
        ),
        Variation(
            "the queries are divided by the square root of D again for each block",
            tiled(again=lambda scale, n: scale ** (n + 1)),
            ("Print q, or your scale, in each step: does it stay?", _SCALE_HINTS[1]),
        ),
        Variation(
            "nothing is rescaled when the maximum rises, neither the sum nor the output",
            tiled(factor=_one),
            _FACTOR_HINTS,
        ),
        Variation(
            "the sum is not rescaled when the maximum rises, the output is",
            tiled(add=lambda den, c, p: den + p.sum(1, keepdim=True)),
            _FACTOR_HINTS,
        ),
        Variation(
            "the output is not rescaled when the maximum rises, the sum is",
            tiled(gather=lambda acc, c, pv, den: acc + pv),
            _FACTOR_HINTS,
        ),
        *(
            Variation(_UPSIDE_DOWN, tiled(factor=factor), _FACTOR_HINTS)
            for factor in (
                lambda m, new, n: (new - m).exp() if n else torch.zeros_like(new),
                lambda m, new, n: (new - m).exp(),
            )
        ),
        Variation(f"{_OWN_MAXIMUM}, and nothing is rescaled", tiled(highest=_own, factor=_one), _MAXIMUM_HINTS),
        Variation(_OWN_MAXIMUM, tiled(highest=_own), _MAXIMUM_HINTS),
        Variation(
            "in the exponentials the maximum of the tile alone is subtracted, not the largest so far",
            tiled(power=lambda s, new: (s - s.amax(1, keepdim=True)).exp()),
            _MAXIMUM_HINTS,
        ),
        Variation(_ONE_MAXIMUM, tiled(highest=_of_tile), _MAXIMUM_HINTS),
        Variation(_ONE_MAXIMUM, tiled(highest=_of_tile, rows=blocks_of), _MAXIMUM_HINTS),
        Variation(
            "the maximum is that of the first block, whatever comes later: far above it exponentials overflow",
            tiled(highest=lambda m, s: torch.where(m == -math.inf, s.amax(1, keepdim=True), m)),
            _MAXIMUM_HINTS,
        ),
        *(Variation("powers of 2 are taken, not of e", tiled(**changes), _BASE_HINTS) for changes in _IN_TWOS),
        Variation("the maximum starts at 0: scores far below it are lost", tiled(start=0.0), _START_HINTS),
        Variation(
            "no maximum is subtracted: exponentials overflow at 800, and vanish at -800",
            tiled(highest=lambda m, s: torch.zeros_like(m), start=0.0),
            _NO_MAXIMUM_HINTS,
        ),
        Variation("the output is not divided by the sum at the end", tiled(end=lambda acc, den, n, S: acc), _END_HINTS),
        Variation(
            _IN_EVERY_STEP,
            tiled(gather=lambda acc, c, pv, den: (c * acc + pv) / den, end=lambda acc, den, n, S: acc),
            _END_HINTS,
        ),
        Variation(
            "the output is divided by the sum in every step, and at the end again",
            tiled(gather=lambda acc, c, pv, den: (c * acc + pv) / den),
            _END_HINTS,
        ),
        Variation(
            "the output is divided by the number of keys, not by the sum of the exponentials",
            tiled(end=lambda acc, den, n, S: acc / S),
            _END_HINTS,
        ),
        Variation(
            f"{_LAST_ALONE}, as the new maximum is not kept for the next one",
            tiled(keep=lambda m, new: m),
            ("Print the maximum at the start of each step: does it change?", _MAXIMUM_HINTS[1]),
        ),
        Variation(
            _LAST_ALONE,
            tiled(add=lambda den, c, p: p.sum(1, keepdim=True), gather=lambda acc, c, pv, den: pv),
            _ADD_HINTS,
        ),
        Variation(
            "the output is overwritten by every block, the sum is not",
            tiled(gather=lambda acc, c, pv, den: pv),
            _ADD_HINTS,
        ),
        Variation(
            "the sum is overwritten by every block, the output is not",
            tiled(add=lambda den, c, p: p.sum(1, keepdim=True)),
            _ADD_HINTS,
        ),
        *(
            Variation(
                f"{_IN_EACH_BLOCK}, and {joined}",
                tiled(power=lambda s, new: s.softmax(1), factor=_one, gather=gather, end=end),
                _SOFTMAX_HINTS,
            )
            for joined, gather, end in (
                ("the results are averaged", lambda acc, c, pv, den: acc + pv, lambda acc, den, n, S: acc / n),
                ("the results are added", lambda acc, c, pv, den: acc + pv, lambda acc, den, n, S: acc),
            )
        ),
        Variation(
            "the values are always those of the first block",
            tiled(values=lambda k, v, b: v[: b.stop - b.start]),
            _VALUE_HINTS,
        ),
        Variation(
            "the weights meet the keys, not the values",
            tiled(values=lambda k, v, b: k[b]),
            ("Change the values: does your result change?", _VALUE_HINTS[1]),
        ),
        Variation("the last queries are left out: their rows are 0", tiled(rows=whole_blocks), _ROW_HINTS),
        Variation(
            "each block of queries sees one block of keys alone, the one in the same place",
            diagonal,
            ("Change the last key: does row 0 of your output change?", _ROW_HINTS[1]),
        ),
        Variation(
            f"{_IN_EACH_BLOCK}, over the queries, not over the keys",
            tiled(power=lambda s, new: s.softmax(0), factor=_one, end=lambda acc, den, n, S: acc),
            (
                "Sum the exponentials of a tile over each axis: which sum belongs to one query?",
                "One row is one query: maximum and sum run over the keys, the last axis.",
            ),
        ),
    ),
    hints=(
        "Try block = S, one block alone: if that is right, look at what happens when a second one comes.",
        "For each block of keys: the tile of scaled scores, the new maximum, the factor, the sum and the output.",
    ),
    shape_hint="A tile is (T, block), maximum and sum are (T, 1), the output is (T, D) from the first block on.",
)
