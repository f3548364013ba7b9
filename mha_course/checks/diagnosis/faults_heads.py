"""Faults of cutting into heads and of putting them together again."""

import torch

from mha_course.checks.diagnosis.fault import Fault, every
from mha_course.checks.diagnosis.steps import Array, Inputs, Linear, Mask, Weights, merge, output_of, softmax, split
from mha_course.checks.tasks_07_faults import CUTS, JOINS

ALL = ("split_q", "split_k", "split_v")
_CUT_NAMES = (
    "split_without_transpose",
    "split_interleaved",
    "split_other",
    "split_other",
    "split_other",
    "split_mixes_samples",
    "split_mixes_samples",
    "split_mixes_samples",
)
_JOIN_NAMES = ("merge_without_transpose", "merge_interleaved")
_FIRST_HINTS = (
    "Change the part of the projections that belongs to head 1: does the result change?",
    "Look for an index 0 or a slice :1 along the axis of the heads.",
)
_JOIN_ALL_HINTS = (
    "Print the shape of the heads' output and of what the output projection gets.",
    "Put the heads of a token side by side, so that every number of every head is kept.",
)
_ONE_HINTS = (
    "Print the shape of your scores: they should be (B, H, T, S).",
    "Every head has scores and a softmax of its own: cut q, k and v into heads before the scores.",
)
_FOLD_HINTS = (
    "Change one sample of the input: the other samples' results must stay as they are.",
    "Unfold in the order in which you folded: the batch first, then the heads.",
)


def _unlike(index: int, roles: tuple[str, ...], said: str) -> Fault:
    return Fault(
        _CUT_NAMES[index],
        f"{said} cut into heads in another way than the rest: {CUTS[index].said}",
        every(*roles, step=CUTS[index].change),
        CUTS[index].hints,
    )


def _joined(said: str) -> str:
    telling = (("mean", "heads_averaged"), ("sum", "heads_summed"), ("samples", "merge_mixes_samples"))
    return next((name for word, name in telling if word in said), "merge_other")


def _of_one_token(x: Array, H: int) -> Array:
    return x.unflatten(-1, (H, -1))  # (B, T, H, D): no axes exchanged


def _refolded(out: Array) -> Array:
    return merge(out.reshape(out.shape[1], out.shape[0], *out.shape[2:]).transpose(0, 1))


def _first_rows(merged: Array, w: Weights, x: Inputs) -> Array:
    """Every head times the first D rows of the output projection, added up."""
    o, D = output_of(w), merged.shape[-1] // w.H
    return Linear(o.weight[:D], o.bias)(merged.unflatten(-1, (w.H, -1)).sum(-2))


def _one_head(x: Array, H: int) -> Array:
    return x[:, None]  # (B, 1, T, E)


TILED_HEADS = Fault(
    "gqa_tiled_heads",
    "keys and values are repeated for the groups as 0 1 0 1, query heads 0 and 1 should share head 0: 0 0 1 1",
    {"group": lambda x, H: x.repeat(1, H // x.shape[1], 1, 1)},
    (
        "Name for each query head the key head that it reads.",
        "repeat lays whole copies side by side; repeat_interleave repeats each head.",
    ),
)

HEADS = (
    Fault(
        "split_without_transpose",
        "split and merge only reshape, no axes are exchanged: tokens and features mix",
        {**every(*ALL, step=CUTS[0].change), "merge": JOINS[0].change},
        CUTS[0].hints,
    ),
    *(
        Fault(name, f"the split is wrong: {cut.said}", every(*ALL, step=cut.change), cut.hints)
        for name, cut in zip(_CUT_NAMES, CUTS, strict=True)
    ),
    *(_unlike(i, (role,), f"{role[-1]} is") for i in (0, 1) for role in ALL),
    _unlike(1, ("split_q", "split_k"), "q and k are"),
    *(
        Fault(
            _JOIN_NAMES[i] if i < len(_JOIN_NAMES) else _joined(join.said),
            f"the merge is wrong: {join.said}",
            {"merge": join.change},
            join.hints,
        )
        for i, join in enumerate(JOINS)
    ),
    Fault(
        "merge_mixes_samples",
        "batch and heads are folded as (B, H), but unfolded as (H, B): samples and heads mix",
        {"merge": _refolded},
        _FOLD_HINTS,
    ),
    *(
        Fault(
            "split_other",
            f"the slices of {role[-1]} begin one feature late: its heads are not those of the others",
            {role: lambda x, H: split(x.roll(-1, -1), H)},
            (CUTS[0].hints[0], "Head h takes the features from h D up to (h + 1) D, of q, k and v alike."),
        )
        for role in ALL
    ),
    Fault(
        "heads_of_one_token",
        "the heads of one token attend to each other: tokens and heads are not exchanged before the scores",
        {**every(*ALL, step=_of_one_token), "merge": lambda out: out.flatten(2)},
        (
            "Print the shape of your scores: they should be (B, H, T, S).",
            "The product runs over the last two axes: those must be tokens and features.",
        ),
    ),
    Fault(
        "num_heads_ignored",
        "num_heads is not used: this is one head of width E",
        every(*ALL, step=_one_head),
        _ONE_HINTS,
    ),
    Fault(
        "num_heads_ignored",
        "num_heads is used for the scale alone: this is one head of width E",
        {**every(*ALL, step=_one_head), "scale": lambda q, k: 1.0},
        _ONE_HINTS,
    ),
    Fault(
        "head_width_swapped",
        "num_heads is used as the width of a head: there are D heads of width H",
        every(*ALL, step=lambda x, H: split(x, x.shape[-1] // H)),
        (
            "Print the shape of your scores: there should be num_heads heads.",
            "There are H = num_heads of them, and each is D = E / H wide.",
        ),
    ),
    Fault(
        "first_head_only",
        "every head is the first one",
        {"use": lambda q, k, v: tuple(x[:, :1].expand_as(x) for x in (q, k, v))},
        _FIRST_HINTS,
    ),
    Fault(
        "first_head_only",
        "every head uses the keys and values of the first head",
        {"use": lambda q, k, v: (q, k[:, :1].expand_as(k), v[:, :1].expand_as(v))},
        _FIRST_HINTS,
    ),
    Fault(
        "first_head_only",
        "the output of the first head is repeated, the others are lost",
        {"merge": lambda x: x[:, 0].repeat(1, 1, x.shape[1])},
        _JOIN_ALL_HINTS,
    ),
    Fault(
        "heads_summed",
        "the heads are added up and meet the first D rows of the output projection, not each the rows of its own",
        {"finish": _first_rows},
        _JOIN_ALL_HINTS,
    ),
    Fault(
        "merge_other",
        "the last head alone is kept, at the first D places, the rest is 0",
        {"merge": lambda x: torch.nn.functional.pad(x[:, -1], (0, x.shape[-1] * (x.shape[1] - 1)))},
        _JOIN_ALL_HINTS,
    ),
    Fault(
        "heads_averaged",
        "the heads are averaged and meet the first D rows of the output projection",
        {"finish": lambda merged, w, x: _first_rows(merged / w.H, w, x)},
        _JOIN_ALL_HINTS,
    ),
    Fault(
        "head_weights_averaged",
        "the weights are averaged over the heads before they meet the values",
        {"mix": lambda weights, v, mask: weights.mean(1, keepdim=True) @ v},
        _ONE_HINTS,
    ),
    Fault(
        "merge_other",
        "the heads are put together in reversed order",
        {"merge": lambda x: merge(x.flip(1))},
        _JOIN_ALL_HINTS,
    ),
    Fault(
        "keys_reshaped",
        "the keys are reshaped to (B, H, D, S), which mixes their numbers",
        {"score": lambda q, k: q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])},
        (
            "Look at how k becomes (B, H, D, S). Try it on a 2 by 3 matrix of 1 to 6.",
            "Swap two axes, which reshape and view do not.",
        ),
    ),
    TILED_HEADS,
)


def _batch_as_tokens(x: Inputs, w: Weights) -> tuple[Array, ...]:
    return tuple(m(y.transpose(0, 1)) for m, y in zip((w.q, w.k, w.v), x[:3], strict=True))


def _over_all_samples(q: Array, k: Array, v: Array, mask: Mask | None, bias: Array | None, scale: float) -> Array:
    k, v = (y.transpose(0, 1).flatten(1, 2)[None] for y in (k, v))  # (1, H, B S, D)
    scores = q @ k.mT * scale
    if mask is not None:
        scores = scores.masked_fill(~torch.cat(list(mask.expand(q.shape[0], -1, -1, -1)), -1), -torch.inf)
    return softmax(scores) @ v


_BATCH_HINTS = (
    "Change one sample of the input: the other samples' results must stay as they are.",
    "Which axis counts the tokens? Tell the layer (batch_first=True), or exchange the first two axes around it.",
)
BATCH = (
    Fault(
        "batch_first_confusion",
        "samples attend to each other: the batch is taken for the tokens, as if the input were (T, B, E)",
        {"project": _batch_as_tokens, "finish": lambda merged, w, x: output_of(w)(merged).transpose(0, 1)},
        _BATCH_HINTS,
    ),
    Fault(
        "batch_mixed",
        "queries attend to the keys of every sample, across the batch",
        {"attend": _over_all_samples},
        (_BATCH_HINTS[0], "Keep the batch axis in front in every product, and never sum over it."),
    ),
    Fault(
        "first_sample_only",
        "every sample attends to the keys and values of the first sample",
        {"use": lambda q, k, v: (q, k[:1].expand_as(k), v[:1].expand_as(v))},
        (_BATCH_HINTS[0], "Look for an index 0 or a slice :1, and let every sample use its own keys and values."),
    ),
)
