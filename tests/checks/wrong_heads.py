"""Wrong solutions of attention by heads, of itself or of another sequence: (solution or changed lines, fault)."""

import math

import torch
from torch.nn import functional as F

from tests.checks.heads import merge, split


def scaled(factor):
    return {"scores": lambda q, k: q @ k.mT * factor(q, k)}


def hidden(fill, **steps):
    """The same steps with another fill than -1e9."""
    return {"masked": lambda scores, mask: scores.masked_fill(mask.logical_not(), fill), **steps}


def of_one_token(x, H):
    return x.view(*x.shape[:2], H, -1)


def shape_of(x, H):
    return len(x), H, x.shape[1], x.shape[2] // H


def merged_by(axes):
    return {"merge": lambda x: x.permute(axes).reshape(len(x), x.shape[2], -1)}


VIEWED = {"split": lambda x, H: x.reshape(shape_of(x, H))}
INTERLEAVED = {"split": lambda x, H: torch.stack([x[..., h::H] for h in range(H)], 1)}
NO_HEADS = {"split": lambda x, H: x[:, None], "merge": lambda x: x[:, 0]}
AMONG = {"split": of_one_token, "merge": lambda x: x.flatten(2)}


def unsplit(query, context, W_q, W_k, W_v, W_o, H, mask):
    """Heads are forgotten, the scale is not: D = E / H."""
    scores = (query @ W_q) @ (context @ W_k).mT / math.sqrt(query.shape[-1] // H)
    if mask is not None:
        scores = scores.masked_fill(~mask.squeeze(1), -math.inf)
    return scores.softmax(-1) @ (context @ W_v) @ W_o


def summed_scores(query, context, W_q, W_k, W_v, W_o, H, mask):
    q, k, v = split(query @ W_q, H), split(context @ W_k, H), split(context @ W_v, H)
    scores = (q @ k.mT).sum(1, keepdim=True) / q.shape[-1] ** 0.5
    scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
    return merge(scores.softmax(-1) @ v) @ W_o


def averaged_scores(query, context, W_q, W_k, W_v, W_o, H, mask):
    q, k, v = split(query @ W_q, H), split(context @ W_k, H), split(context @ W_v, H)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).mean(1)
    scores = scores if mask is None else scores.masked_fill(~mask[:, 0], -math.inf)
    return torch.cat([scores.softmax(-1) @ head for head in v.unbind(1)], -1) @ W_o


def heads_as_published(query, context, W_q, W_k, W_v, W_o, H, mask):
    """Folded at once, without an exchange, and unfolded the same way (faults A01)."""
    D = W_q.shape[1] // H
    q, k, v = (x.view(len(x) * H, -1, D) for x in (query @ W_q, context @ W_k, context @ W_v))
    scores = (torch.bmm(q, k.transpose(1, 2)) * D**-0.5).unflatten(0, (-1, H))
    scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
    return torch.bmm(scores.softmax(-1).flatten(0, 1), v).view(query.shape) @ W_o


def loops_with_a_first_row(query, context, W_q, W_k, W_v, W_o, H, mask):
    D = W_q.shape[1] // H
    out = 0
    for h in range(H):
        own = slice(h * D, (h + 1) * D)
        scores = query @ W_q[:, own] @ (context @ W_k[:, own]).mT / D**0.5
        scores = scores if mask is None else scores.masked_fill(~mask[:, 0], -math.inf)
        out = out + scores.softmax(-1) @ (context @ W_v[:, own]) @ W_o[:D]
    return out


def unfolded_the_other_way(query, context, W_q, W_k, W_v, W_o, H, mask):
    q, k, v = (split(x, H) for x in (query @ W_q, context @ W_k, context @ W_v))
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).flatten(0, 1)
    return torch.cat(heads.view(H, len(query), *heads.shape[1:]).unbind(0), -1) @ W_o


# what goes wrong in both exercises: a solution, or what is changed in the textbook's
SHARED = [
    (VIEWED, "the split is wrong: x is viewed as (B, H, T, D) where it lies"),
    (INTERLEAVED, "the split is wrong: the heads are interleaved"),
    ({"split": lambda x, H: x.mT.reshape(shape_of(x, H))}, "the split is wrong: tokens and features are exchanged"),
    (
        {"split": lambda x, H: x.view(len(x), H, -1, x.shape[1]).transpose(2, 3)},
        "the split is wrong: the wrong two axes are exchanged: x is viewed",
    ),
    (
        {"split": lambda x, H: of_one_token(x, H).transpose(2, 3).reshape(shape_of(x, H))},
        "the split is wrong: the wrong two axes are exchanged, H and D",
    ),
    (
        {"split": lambda x, H: x.view(x.shape[1], len(x) * H, -1).transpose(0, 1).reshape(shape_of(x, H))},
        "the split is wrong: x is taken for (T, B, E)",
    ),
    (
        {"split": lambda x, H: x.view(H, len(x), x.shape[1], -1).transpose(0, 1)},
        "the split is wrong: x is viewed as (H, B, T, D)",
    ),
    (
        {"split": lambda x, H: torch.cat(x.chunk(H, -1), 0).view(shape_of(x, H))},
        "the split is wrong: the heads are put one after another",
    ),
    (merged_by((0, 1, 2, 3)), "the merge is wrong: the heads are reshaped to (B, T, E) where they lie"),
    (
        {"merge": lambda x: torch.stack(list(x.unbind(1)), -1).flatten(2)},
        "the merge is wrong: the heads are interleaved",
    ),
    (merged_by((0, 1, 3, 2)), "the merge is wrong: the wrong two axes are exchanged, T and D"),
    (merged_by((0, 3, 2, 1)), "the merge is wrong: the wrong two axes are exchanged, H and D"),
    (merged_by((2, 0, 1, 3)), "the merge is wrong: the tokens come before the batch"),
    (
        {"merge": lambda x: torch.cat(x.unbind(1)).view(len(x), x.shape[2], -1)},
        "the merge is wrong: the heads come before the batch",
    ),
    ({"merge": lambda x: x.mean(1).repeat(1, 1, x.shape[1])}, "the merge is wrong: the mean of the heads is repeated"),
    ({"merge": lambda x: torch.cat([sum(x.unbind(1))] * x.shape[1], -1)}, "the merge is wrong: the sum of the heads"),
    ({"merge": lambda x: torch.cat(x.unbind(1)[::-1], -1)}, "in split or merge the heads come in reversed order"),
    ({"split": lambda x, H: torch.stack(x.chunk(H, -1)[::-1], 1)}, "in split or merge the heads come in reversed"),
    ({"merge": lambda x: x[:, 0].repeat(1, 1, x.shape[1])}, "in split or merge every head is the first one"),
    (
        {"heads": lambda q, k, v: [x[:, :1].expand_as(x) for x in (q, k, v)]},
        "in split or merge every head is the first",
    ),
    (heads_as_published, "split and merge are both wrong, no axes are exchanged"),
    ({**VIEWED, **merged_by((0, 1, 2, 3))}, "split and merge are both wrong, no axes are exchanged"),
    ({**INTERLEAVED, **merged_by((0, 2, 3, 1))}, "the heads are interleaved in split and merge alike"),
    ({"split": lambda x, H: x.view(*x.shape[:2], -1, H).transpose(1, 2)}, "num_heads is used as the width of a head"),
    (
        {
            "split": lambda x, H: torch.stack(x.split(H, -1), 1),
            "scores": lambda q, k: q @ k.mT / q.shape[1] ** 0.5,
        },
        "num_heads is used as the width of a head",
    ),
    (AMONG, "the heads of one token attend to each other: tokens and heads are not exchanged before the scores"),
    (scaled(lambda q, k: (q.shape[1] * q.shape[3]) ** -0.5), "the scores are divided by the square root of E"),
    (scaled(lambda q, k: q.shape[1] ** -0.5), "the scores are divided by the square root of H"),
    (scaled(lambda q, k: 1), "the scores are not scaled"),
    (scaled(lambda q, k: 1 / q.shape[-1]), "the scores are divided by D, not by its square root"),
    (scaled(lambda q, k: q.shape[-1] ** 0.5), "the scores are multiplied by the square root of D"),
    (scaled(lambda q, k: k.shape[2] ** -0.5), "the scores are divided by the square root of the number of keys"),
    (scaled(lambda q, k: 2**-0.5), "the scores are divided by the square root of 2, whatever D is"),
    (scaled(lambda q, k: 0.5), "the scores are divided by 2, the square root of 4, whatever D is"),
    (scaled(lambda q, k: 0.25), "the scores are divided by 4, whatever D is"),
    (scaled(lambda q, k: 64**-0.5), "the scores are divided by 8, the square root of 64, whatever D is"),
    (
        {"scores": lambda q, k: q @ k.mT, "out": lambda w, v: w / v.shape[-1] ** 0.5 @ v},
        "the division by the square root of D comes after the softmax",
    ),
    (hidden(-math.inf, weights=lambda s: s.softmax(-2)), "the softmax runs over the queries"),
    (hidden(-math.inf, weights=lambda s: s.softmax(1)), "the softmax runs over the heads"),
    (hidden(-math.inf, weights=lambda s: s.softmax(0)), "the softmax runs over the batch"),
    ({"weights": lambda s: F.softmax(s, dim=2)}, "the softmax runs over the queries"),
    ({"weights": lambda s: F.softmax(s, dim=1)}, "the softmax runs over the heads"),
    ({"weights": lambda s: F.softmax(s, dim=0)}, "the softmax runs over the batch"),
    (hidden(-math.inf, weights=lambda s: s), "the softmax is missing"),
    (hidden(0, weights=lambda s: s), "the softmax is missing"),
    ({"weights": lambda s: s}, "the softmax is missing"),
    (NO_HEADS, "the heads share one softmax: this is one attention of width E"),
    (unsplit, "the heads share one softmax: this is one attention of width E"),
    (averaged_scores, "the heads share one softmax: this is one attention of width E"),
    (summed_scores, "the heads share one softmax: this is one attention of width E"),
    ({"out": lambda w, v: w.mean(1, keepdim=True) @ v}, "the weights are averaged over the heads"),
    ({"out": lambda w, v: w.mT @ v}, "the weights are transposed"),
    (
        {"heads": lambda q, k, v: (q, k[:, :1].expand_as(k), v[:, :1].expand_as(v))},
        "every head uses the keys and values of the first head",
    ),
    ({"scores": lambda q, k: q @ k.reshape(*q.shape[:2], q.shape[3], -1) / q.shape[3] ** 0.5}, "the keys are reshaped"),
    (unfolded_the_other_way, "batch and heads are folded as (B, H), but unfolded as (H, B)"),
    ({"heads": lambda q, k, v: (q, v, k)}, "keys and values have changed places"),
    ({"k_of": lambda query, context, W_q, W_k, W_v: context @ W_v}, "the keys are made with W_v"),
    ({"v_of": lambda query, context, W_q, W_k, W_v: context @ W_k}, "the values are made with W_k"),
    ({"last": lambda merged, W_o, query: merged}, "the matrix W_o is missing"),
    (loops_with_a_first_row, "every head meets the first D rows of W_o"),
    ({"last": lambda merged, W_o, query: query + merged @ W_o}, "the input is added to the result"),
    ({"last": lambda merged, W_o, query: F.linear(merged, W_o)}, "the matrix W_o is transposed"),
    # not named
    ({"last": lambda merged, W_o, query: F.layer_norm(merged @ W_o, W_o.shape[1:])}, "the numbers differ"),
    ({"last": lambda merged, W_o, query: (merged @ W_o).float()}, "out has type float32, expected float64"),
    ({"last": lambda merged, W_o, query: (merged @ W_o).squeeze()}, "out has the wrong shape"),
    ({"last": lambda merged, W_o, query: (merged @ W_o, merged)}, "it returns a tuple of 2 instead of one tensor"),
    ({"merge": lambda x: x.transpose(1, 2).view(len(x), x.shape[2], -1)}, "it raises RuntimeError: view size is not"),
    ({"merge": lambda x: x.sum(1)}, "it raises RuntimeError: "),
    ({"merge": lambda x: x.transpose(1, 2)}, "it raises RuntimeError: "),
]
