"""The exercises of notebook 07: split and merge heads, multi-head attention, cross-attention."""

from collections.abc import Callable

import torch

from mha_course.checks.task import Case, Task, Variation, by_steps, draw
from mha_course.checks.tasks_07_attention import multi_head
from mha_course.checks.tasks_07_cross import cross_attention
from mha_course.checks.tasks_07_faults import CUTS, JOINS, MORE_CUTS, MORE_JOINS, Array, merge, split

_SIZES = [(2, 5, 3, 7), (3, 7, 2, 5), (2, 3, 3, 5), (5, 1, 2, 3), (1, 2, 1, 7), (2, 3, 5, 1)]


def _sizes(B: int, T: int, H: int, D: int) -> dict[str, int]:
    return {"B": B, "T": T, "E": H * D, "H": H, "D": D}


def _split_cases() -> tuple[Case, ...]:
    return tuple(Case(_sizes(B, T, H, D), (*draw(seed, (B, T, H * D)), H)) for seed, (B, T, H, D) in enumerate(_SIZES))


def _merge_cases() -> tuple[Case, ...]:
    return tuple(Case(_sizes(B, T, H, D), draw(seed, (B, H, T, D))) for seed, (B, T, H, D) in enumerate(_SIZES))


_HEADS_FIRST = (
    "Print the shape of your result: does the axis of the heads stand in second place?",
    "Behind the batch come the heads, then the tokens, then the features of one head.",
)
_SWAPPED_SIZES = "num_heads is used as the width of a head"
_SWAPPED_HINTS = (
    "Print H and D, and count your heads: are there num_heads?",
    "There are H = num_heads of them, and each is D = E / H wide.",
)


@by_steps
def _split(
    cut: Callable[[Array, int], Array] = split, end: Callable[[Array], Array] = lambda heads: heads
) -> Callable[[Array, int], Array]:
    """Cut x into heads, (B, H, T, D), and make them into something else."""
    return lambda x, num_heads: end(cut(x, num_heads))


@by_steps
def _merge(
    join: Callable[[Array], Array] = merge, end: Callable[[Array], Array] = lambda merged: merged
) -> Callable[[Array], Array]:
    """Join heads to (B, T, E), and make that into something else."""
    return lambda x: end(join(x))


split_heads = Task(
    name="split_heads",
    arguments=("x", "num_heads"),
    results=(("heads", ("B", "H", "T", "D")),),
    axes={"T": "token"},
    reference=split,
    build=_split,
    cases=_split_cases,
    variations=(
        *(Variation(said, _split(cut), hints) for said, cut, hints in (*CUTS, *MORE_CUTS)),
        Variation(
            "the tokens stand before the heads, (B, T, H, D): two axes are still to be exchanged",
            _split(end=lambda heads: heads.transpose(1, 2)),
            _HEADS_FIRST,
        ),
        Variation(
            "the heads stand before the batch, (H, B, T, D)",
            _split(end=lambda heads: heads.transpose(0, 1)),
            _HEADS_FIRST,
        ),
        Variation(
            "the tokens stand in front, (T, H, B, D), as if x were (T, B, E)",
            _split(end=lambda heads: heads.permute(2, 1, 0, 3)),
            _HEADS_FIRST,
        ),
        Variation(
            "tokens and features have changed places, (B, H, D, T)",
            _split(end=lambda heads: heads.mT),
            _HEADS_FIRST,
        ),
        Variation(
            "the heads stand behind the features, (B, T, D, H)",
            _split(end=lambda heads: heads.permute(0, 2, 3, 1)),
            _HEADS_FIRST,
        ),
        Variation(_SWAPPED_SIZES, _split(lambda x, H: x.unflatten(-1, (-1, H)).transpose(1, 2)), _SWAPPED_HINTS),
        Variation(_SWAPPED_SIZES, _split(lambda x, H: x.unflatten(-1, (-1, H))), _SWAPPED_HINTS),
        Variation(
            _SWAPPED_SIZES, _split(lambda x, H: x.reshape(x.shape[0], x.shape[2] // H, x.shape[1], H)), _SWAPPED_HINTS
        ),
        Variation(
            "batch and heads are one axis, (B H, T, D), and cut where x lies, which mixes tokens with features",
            _split(lambda x, H: x.reshape(x.shape[0] * H, x.shape[1], -1)),
            CUTS[0].hints,
        ),
        Variation(
            "batch and heads are one axis, (B H, T, D)",
            _split(end=lambda heads: heads.flatten(0, 1)),
            _HEADS_FIRST,
        ),
        Variation(
            "batch and heads are one axis, (H B, T, D)",
            _split(end=lambda heads: heads.transpose(0, 1).flatten(0, 1)),
            _HEADS_FIRST,
        ),
        Variation(
            "every head gets all E features: they are copied, not cut",
            _split(lambda x, H: x[:, None].expand(-1, H, -1, -1)),
            ("How wide is a head of yours?", "The E features are shared out: each head takes D = E / H of them."),
        ),
        Variation(
            "x comes back as it was",
            _split(lambda x, H: x.clone()),
            ("Print the shape of your result.", "view, reshape and transpose return a new tensor: give it a name."),
        ),
    ),
    hints=(
        "Let x count upwards, torch.arange(8.0).view(1, 2, 4), and compare two heads with what you cut by hand.",
        "Two steps: cut the last axis into H and D, then exchange two axes.",
    ),
    shape_hint="Cut the last axis into H and D = E / H, then bring H to the second place.",
)

_ONE_WIDE_HINTS = (
    "How many numbers has a token before, over all heads, and after?",
    "The heads are put side by side: a token keeps all H D = E numbers.",
)
_AXIS_HINTS = (
    "Print the shape of your result: along which axis are the heads joined?",
    "The heads of one token are joined along the features.",
)
_READ = "the axes H and T are confused: the result is (B, H, T D), not (B, T, H D)"
_READ_HINTS = (
    "In which order do you read the sizes from x.shape? x is (B, H, T, D).",
    "A row of the result is a token: T stays an axis of its own, and H is joined with D.",
)


merge_heads = Task(
    name="merge_heads",
    arguments=("x",),
    results=(("merged", ("B", "T", "E")),),
    axes={"T": "token"},
    reference=merge,
    build=_merge,
    cases=_merge_cases,
    variations=(
        *(Variation(said, _merge(join), hints) for said, join, hints in (*JOINS, *MORE_JOINS)),
        Variation(
            "the heads are averaged, not put side by side",
            _merge(lambda x: x.mean(1)),
            _ONE_WIDE_HINTS,
        ),
        Variation(
            "the heads are added up, not put side by side",
            _merge(lambda x: x.sum(1)),
            _ONE_WIDE_HINTS,
        ),
        Variation("the first head alone is kept", _merge(lambda x: x[:, 0]), _ONE_WIDE_HINTS),
        Variation(
            "the heads and their features are still two axes, (B, T, H, D)",
            _merge(lambda x: x.transpose(1, 2)),
            ("Print the shape of your result: how many axes are there?", "Join the last two axes into one, E = H D."),
        ),
        Variation(
            "the tokens stand before the batch, (T, B, E)",
            _merge(end=lambda merged: merged.transpose(0, 1)),
            ("Print the shape of your result: which axis comes first?", "The batch stays in front."),
        ),
        Variation(
            "tokens and features have changed places, (B, E, T)",
            _merge(end=lambda merged: merged.mT),
            ("Print the shape of your result.", "The features of all heads, E, are the last axis."),
        ),
        Variation("the heads are joined along the tokens, (B, H T, D)", _merge(lambda x: x.flatten(1, 2)), _AXIS_HINTS),
        Variation(
            "the heads are joined along the tokens, (B, T H, D)",
            _merge(lambda x: x.transpose(1, 2).flatten(1, 2)),
            _AXIS_HINTS,
        ),
        Variation(
            "the heads are joined along the batch, (H B, T, D)", _merge(lambda x: torch.cat(x.unbind(1))), _AXIS_HINTS
        ),
        Variation("the heads are joined along the batch, (B H, T, D)", _merge(lambda x: x.flatten(0, 1)), _AXIS_HINTS),
        Variation(_READ, _merge(lambda x: x.flatten(2)), _READ_HINTS),
        Variation(_READ, _merge(lambda x: x.transpose(1, 2).reshape(*x.shape[:2], -1)), _READ_HINTS),
        Variation(_READ, _merge(lambda x: x.mT.flatten(2)), _READ_HINTS),
    ),
    hints=(
        "Merge what your split gave: x should come back, number for number. Then see where they first differ.",
        "Two steps, the split backwards: exchange two axes, then join the last two.",
    ),
    shape_hint="Bring H next to D, behind T, then join the two into E.",
)

TASKS = (split_heads, merge_heads, multi_head, cross_attention)
