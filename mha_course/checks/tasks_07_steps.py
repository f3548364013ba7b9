"""Faults that the exercises of multi-head attention and of cross-attention share, as steps of `built`."""

import math
from typing import Any

import torch

from mha_course.checks.tasks_07_faults import CUTS, JOINS, MORE_CUTS, SCALES, Array, Fault, hide, merge, split


def _averaged(weights: Array, v: Array) -> Array:
    return weights.mean(1, keepdim=True) @ v


def _of_one_token(x: Array, H: int) -> Array:
    """(B, T, H, D): the heads are cut, and no axes exchanged."""
    return x.unflatten(-1, (H, -1))


def _heads_of_width_H(x: Array, H: int) -> Array:
    """(B, D, T, H): as many heads as should be features, and the other way round."""
    return split(x, x.shape[-1] // H)


def _first_rows(out: Array, W_o: Array, query: Array) -> Array:
    """Every head times the first D rows of W_o, added up; out still has its heads."""
    return (out @ W_o[: out.shape[-1]]).sum(1)


def _never_split(power: float) -> dict[str, Any]:
    """The steps of one attention of width E; with a power of 0.5 its scale is that of E, with 0 that of D."""

    def finish(heads: Array, W_o: Array, query: Array) -> Array:
        return merge(heads) @ W_o

    def score(q: Array, k: Array) -> Array:
        summed = torch.einsum("bhtd,bhsd->bts", q, k)[:, None]
        return summed / q.shape[1] ** power

    return {"score": score, "merge": lambda heads: heads, "finish": finish}


_SOFTMAX_HINTS = (
    "Sum your weights (B, H, T, S) over each axis in turn: which sums are 1, which should be?",
    "In every head the keys of one query share 1. Name the last axis in the softmax.",
)
_ONE_HINTS = (
    "Change head 1 of q and k alone: does the output of head 0 change?",
    "Every head has scores and a softmax of its own: split before the scores, so that they are (B, H, T, S).",
)
_FIRST_HINTS = (
    "Change the part of q, k and v that belongs to head 1: does your result change?",
    "Look for an index 0 or a slice :1 along the axis of the heads.",
)
_MISSING_HINTS = (
    "Sum the numbers that the values are multiplied with, and look for negative ones.",
    "Take the softmax of the scores over the keys.",
)
ROLE_HINTS = (
    "Write beside each of q, k and v which matrix made it.",
    "Queries meet keys in the scores, and the weights meet values: each of the three has a matrix of its own.",
)
TRANSPOSED_HINTS = (
    "Look at how the matrix is used: F.linear and nn.Linear multiply by the transposed weight.",
    "Here a matrix stands on the right, as it is: y = x W.",
)
AMONG = Fault(
    "the heads of one token attend to each other: tokens and heads are not exchanged before the scores",
    {"split": _of_one_token, "merge": lambda out: out.flatten(2)},
    (
        "Print the shape of your scores: they should be (B, H, T, S).",
        "The product runs over the last two axes: those must be tokens and features.",
    ),
)
_LAYOUT = "the heads are interleaved in split and merge alike: feature i belongs to head i % H, not to head i // D"
_EXCHANGED = "num_heads is used as the width of a head: there are D heads of width H"
_EXCHANGED_HINTS = (
    "Print the shape of your scores: there should be num_heads heads.",
    "There are H = num_heads of them, and each is D = E / H wide.",
)
_EXCHANGED_SCALES: tuple[dict[str, Any], ...] = ({}, {"scale": lambda q, k, v: 1 / math.sqrt(q.shape[1])})
_NEVER = "the heads share one softmax: this is one attention of width E, no axis of heads in the scores"


def _filled(fill: float) -> dict[str, Any]:
    """The step that fills hidden scores so."""
    return {} if fill == -math.inf else {"hide": lambda scores, mask: hide(scores, mask, fill)}


def _axes(fill: float, *axes: tuple[int, str]) -> tuple[Fault, ...]:
    """The softmax over one of other axes, with hidden scores filled so."""
    return tuple(
        Fault(
            f"the softmax runs over the {axis}, not over the keys",
            {"share": lambda scores, dim=dim: scores.softmax(dim), **_filled(fill)},
            _SOFTMAX_HINTS,
        )
        for dim, axis in axes
    )


def _missing(*fills: float) -> tuple[Fault, ...]:
    """No softmax, with hidden scores filled so."""
    return tuple(
        Fault(
            "the softmax is missing, the scores are used as weights",
            {"share": lambda scores: scores, **_filled(fill)},
            _MISSING_HINTS,
        )
        for fill in fills
    )


# Where some scores are -inf these give NaN, and other numbers with another fill.
FILLED = (*_axes(-1e9, (1, "heads"), (0, "batch")), *_missing(0, -1e9))
STEPS = (
    *(Fault(f"the split is wrong: {said}", {"split": cut}, hints) for said, cut, hints in CUTS),
    *(Fault(f"the merge is wrong: {said}", {"merge": join}, hints) for said, join, hints in JOINS),
    *(Fault(f"in split or merge {said}", {"split": cut}, hints) for said, cut, hints in MORE_CUTS),
    Fault(
        "split and merge are both wrong, no axes are exchanged: tokens and features mix",
        {"split": CUTS[0].change, "merge": JOINS[0].change},
        CUTS[0].hints,
    ),
    Fault(_LAYOUT, {"split": CUTS[1].change, "merge": JOINS[1].change}, CUTS[1].hints),
    *(Fault(_EXCHANGED, {"split": _heads_of_width_H, **scale}, _EXCHANGED_HINTS) for scale in _EXCHANGED_SCALES),
    AMONG,
    *SCALES,
    *_axes(-math.inf, (2, "queries"), (1, "heads"), (0, "batch")),
    *_missing(-math.inf),
    *(Fault(_NEVER, _never_split(power), _ONE_HINTS) for power in (0, 0.5, 1)),
    Fault(
        "the weights are averaged over the heads before they meet the values",
        {"mix": _averaged},
        _ONE_HINTS,
    ),
    Fault(
        "every head uses the keys and values of the first head",
        {"use": lambda q, k, v: (q, k[:, :1].expand_as(k), v[:, :1].expand_as(v))},
        _FIRST_HINTS,
    ),
    Fault(
        "the keys are reshaped to (B, H, D, S), which mixes their numbers",
        {"score": lambda q, k: q @ k.reshape(*k.shape[:2], k.shape[3], k.shape[2])},
        (
            "Look at how k becomes (B, H, D, S). Try it on a 2 by 3 matrix of 1 to 6.",
            "Swap two axes, which reshape and view do not.",
        ),
    ),
    Fault(
        "batch and heads are folded as (B, H), but unfolded as (H, B): samples and heads mix",
        {"merge": lambda out: merge(out.reshape(out.shape[1], out.shape[0], *out.shape[2:]).transpose(0, 1))},
        (
            "Change one sample of x: the other samples' results must stay as they are.",
            "Unfold in the order in which you folded: the batch first, then the heads.",
        ),
    ),
    Fault(
        "keys and values have changed places",
        {"use": lambda q, k, v: (q, v, k)},
        ROLE_HINTS,
    ),
    Fault("the keys are made with W_v, not with W_k", {"use": lambda q, k, v: (q, v, v)}, ROLE_HINTS),
    Fault("the values are made with W_k, not with W_v", {"use": lambda q, k, v: (q, k, k)}, ROLE_HINTS),
    Fault(
        "the weights are transposed before they meet the values",
        {"mix": lambda weights, v: weights.mT @ v},
        ("Sum the weights that the values meet, over the last axis: are those sums 1?", "A row of them is a query."),
    ),
    Fault(
        "the matrix W_o is missing, the merged heads are returned as they are",
        {"finish": lambda out, W_o, query: out},
        ("Does your result change with W_o?", "Multiply the merged heads by W_o at the end."),
    ),
    Fault(
        "every head meets the first D rows of W_o, not the rows of its own",
        {"merge": lambda out: out, "finish": _first_rows},
        ("Which rows of W_o does head 1 meet?", "Put the heads side by side, then multiply by the whole W_o."),
    ),
    Fault(
        "the input is added to the result",
        {"finish": lambda out, W_o, query: out @ W_o + query},
        ("Set W_o to 0: what does your function return?", "A residual connection is part of the block, not of this."),
    ),
    Fault(
        "the matrix W_o is transposed",
        {"finish": lambda out, W_o, query: out @ W_o.T},
        TRANSPOSED_HINTS,
    ),
)
