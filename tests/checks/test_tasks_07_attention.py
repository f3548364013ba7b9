"""Right and wrong solutions of notebook 07: multi-head attention and cross-attention."""

import math

import pytest
import torch
from torch.nn import functional as F

from mha_course.checks import check, engine


def split(x, H):
    B, T, E = x.shape
    return x.view(B, T, H, E // H).transpose(1, 2)


def merge(x):
    B, H, T, D = x.shape
    return x.transpose(1, 2).reshape(B, T, H * D)


def textbook(
    q_of=lambda query, context, W_q, W_k, W_v: query @ W_q,
    k_of=lambda query, context, W_q, W_k, W_v: context @ W_k,
    v_of=lambda query, context, W_q, W_k, W_v: context @ W_v,
    split=split,
    heads=lambda q, k, v: (q, k, v),
    scores=lambda q, k: torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1)),
    masked=lambda scores, mask: scores.masked_fill(mask == 0, -1e9),
    weights=lambda scores: F.softmax(scores, dim=-1),
    out=torch.matmul,
    merge=merge,
    last=lambda merged, W_o, query: merged @ W_o,
):
    """A solution in the usual style, some lines of it changed."""

    def fn(query, context, W_q, W_k, W_v, W_o, H, mask):
        of = (query, context, W_q, W_k, W_v)
        q, k, v = heads(split(q_of(*of), H), split(k_of(*of), H), split(v_of(*of), H))
        s = scores(q, k)
        if mask is not None:
            s = masked(s, mask)
        return last(merge(out(weights(s), v)), W_o, query)

    return fn


def multi(fn):
    return lambda x, W_q, W_k, W_v, W_o, H, mask: fn(x, x, W_q, W_k, W_v, W_o, H, mask)


def cross(fn):
    return lambda query, context, W_q, W_k, W_v, W_o, H: fn(query, context, W_q, W_k, W_v, W_o, H, None)


def by_loops(query, context, W_q, W_k, W_v, W_o, H, mask):
    """One head after another, each with its columns of the matrices."""
    D = W_q.shape[1] // H
    heads = []
    for h in range(H):
        own = slice(h * D, (h + 1) * D)
        scores = query @ W_q[:, own] @ (context @ W_k[:, own]).mT * D**-0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, 0], -torch.inf)
        heads.append(scores.softmax(-1) @ (context @ W_v[:, own]))
    return torch.cat(heads, -1) @ W_o


def by_sums(query, context, W_q, W_k, W_v, W_o, H, mask):
    """The output as a sum over heads, each with its rows of W_o."""
    total = query.new_zeros(query.shape)
    columns = [W.chunk(H, 1) for W in (W_q, W_k, W_v)]
    for q, k, v, o in zip(*columns, W_o.chunk(H, 0), strict=True):
        scores = (query @ q) @ (context @ k).mT / math.sqrt(q.shape[1])
        powers = scores.exp() if mask is None else scores.exp() * mask[:, 0]
        total += powers / powers.sum(-1, keepdim=True) @ (context @ v) @ o
    return total


def by_einsum(query, context, W_q, W_k, W_v, W_o, H, mask):
    def cut(W, axis):
        return W.unflatten(axis, (H, -1))

    q = torch.einsum("bte,ehd->bthd", query, cut(W_q, 1))
    k, v = (torch.einsum("bse,ehd->bshd", context, cut(W, 1)) for W in (W_k, W_v))
    scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    return torch.einsum("bhts,bshd,hde->bte", scores.softmax(-1), v, cut(W_o, 0))


def by_bmm(query, context, W_q, W_k, W_v, W_o, H, mask):
    """Batch and heads folded into one axis."""
    q, k, v = (split(x, H).flatten(0, 1) for x in (query @ W_q, context @ W_k, context @ W_v))
    scores = torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + torch.zeros(mask.shape).masked_fill(~mask, -math.inf).repeat_interleave(H, 0)[:, 0]
    return merge(torch.bmm(scores.softmax(-1), v).unflatten(0, (-1, H))) @ W_o


def by_sdpa(query, context, W_q, W_k, W_v, W_o, H, mask):
    q, k, v = (x.unflatten(-1, (H, -1)).transpose(1, 2) for x in (query @ W_q, context @ W_k, context @ W_v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2) @ W_o


def by_pytorch(query, context, W_q, W_k, W_v, W_o, H, mask):
    """nn.MultiheadAttention's own function: sequence first, transposed weights, True = blocked."""
    E = query.shape[-1]
    out, _ = F.multi_head_attention_forward(
        *(x.transpose(0, 1) for x in (query, context, context)),
        *(E, H, None, None, None, None, False, 0.0, W_o.T, None),
        attn_mask=None if mask is None else ~mask.expand(-1, H, -1, -1).flatten(0, 1),
        use_separate_proj_weight=True,
        q_proj_weight=W_q.T,
        k_proj_weight=W_k.T,
        v_proj_weight=W_v.T,
    )
    return out.transpose(0, 1)


RIGHT = [textbook(), by_loops, by_sums, by_einsum, by_bmm, by_sdpa, by_pytorch]


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


def masked_with(masked):
    return {"masked": masked}


def mask_repeated(x, W_q, W_k, W_v, W_o, H, mask):
    """The mask is tiled M0, M1, M0, M1 for heads that are folded sample by sample (faults A03)."""
    q, k, v = (split(x @ W, H).flatten(0, 1) for W in (W_q, W_k, W_v))
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask.repeat(H, 1, 1, 1)[:, 0], -math.inf)
    return merge((scores.softmax(-1) @ v).unflatten(0, (-1, H))) @ W_o


def transposed_scores(x, W_q, W_k, W_v, W_o, H, mask):
    q, k, v = (split(x @ W, H) for W in (W_q, W_k, W_v))
    scores = k @ q.mT / q.shape[-1] ** 0.5
    return merge(scores.masked_fill(~mask, -math.inf).softmax(-1) @ v) @ W_o


def linear(x, W_q, W_k, W_v, W_o, H, mask):
    q, k, v = (split(F.linear(x, W), H) for W in (W_q, W_k, W_v))
    return F.linear(merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)), W_o)


def roles(q, k, v):
    """Which of the matrices W_q, W_k, W_v makes each of q, k and v."""
    return {
        "q_of": lambda query, context, *W: query @ W["qkv".index(q)],
        "k_of": lambda query, context, *W: context @ W["qkv".index(k)],
        "v_of": lambda query, context, *W: context @ W["qkv".index(v)],
    }


MULTI = [
    (masked_with(lambda s, mask: s), "the mask is ignored"),
    (masked_with(lambda s, mask: s.masked_fill(mask, -math.inf)), "the mask is inverted"),
    (masked_with(lambda s, mask: s.masked_fill(mask == 1, -1e9)), "the mask is inverted"),
    (masked_with(lambda s, mask: s + mask * -1e9), "the mask is inverted"),
    (multi(lambda *a: by_sdpa(*a[:-1], ~a[-1])), "the mask is inverted"),
    (masked_with(lambda s, mask: s * mask), "hidden scores become 0"),
    (hidden(-1e-9), "hidden scores become 0"),
    (masked_with(lambda s, mask: s + mask), "the mask is added to the scores"),
    (hidden(1e9), "hidden scores become large, not minus infinity"),
    (masked_with(lambda s, mask: s + (1 - mask.double()) * -math.inf), "the mask is multiplied by infinity"),
    (masked_with(lambda s, mask: s.masked_fill(~mask.transpose(2, 3), -1e9)), "the mask is transposed"),
    (masked_with(lambda s, mask: s.masked_fill(~mask[0], -1e9)), "every sample uses the mask of the first"),
    (mask_repeated, "samples and heads of the mask are confused"),
    (
        masked_with(lambda s, mask: s.masked_fill(torch.ones(s.shape[2:]).triu(1) == 1, -1e9)),
        "a causal mask is used in place of the mask",
    ),
    (masked_with(lambda s, mask: s.masked_fill(~mask.tril(), -1e9)), "a causal mask is used beside the mask"),
    ({**AMONG, **masked_with(lambda s, mask: s)}, "the heads of one token attend to each other: tokens and heads are"),
    (transposed_scores, "queries and keys have changed places"),
    (roles("k", "q", "v"), "queries and keys have changed places"),
    (roles("v", "k", "q"), "queries and values have changed places"),
    (roles("k", "k", "v"), "the queries are made with W_k"),
    (roles("v", "k", "v"), "the queries are made with W_v"),
    (roles("q", "q", "v"), "the keys are made with W_q"),
    (roles("q", "k", "q"), "the values are made with W_q"),
    (roles("q", "q", "q"), "queries, keys and values are all made with W_q"),
    (
        multi(lambda x, c, q, k, v, *rest: by_sdpa(x, c, *[torch.eye(len(q)).double()] * 3, *rest)),
        "x itself is used for q",
    ),
    ({"v_of": lambda query, *_: query}, "x itself is used for the values"),
    (multi(lambda x, c, q, k, v, *rest: by_sdpa(x, c, q.T, k.T, v.T, *rest)), "the matrices W_q, W_k and W_v are"),
    (linear, "all four matrices are transposed"),
    # not named
    (roles("v", "q", "k"), "the numbers differ"),
    (hidden(math.nan), "out holds NaN"),
    (hidden(-5), "the numbers differ"),
    (masked_with(lambda s, mask: s.masked_fill(~mask.squeeze(1), -1e9)), "it raises RuntimeError: The size of tensor"),
    (lambda x, mask: x, "it cannot be called as fn(x, W_q, W_k, W_v, W_o, num_heads, mask)"),
]


def after_softmax(x, W_q, W_k, W_v, W_o, H, mask):
    q, k, v = (split(x @ W, H) for W in (W_q, W_k, W_v))
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).masked_fill(~mask, 0)
    return merge(weights @ v) @ W_o


MULTI.insert(6, (after_softmax, "the mask is applied after the softmax"))


def sources(q, k, v):
    """Which of query (0) and context (1) each of q, k and v is made from."""
    return {
        "q_of": lambda *of: of[q] @ of[2],
        "k_of": lambda *of: of[k] @ of[3],
        "v_of": lambda *of: of[v] @ of[4],
    }


def causal(offset):
    def weights(scores):
        T, S = scores.shape[-2:]
        return scores.masked_fill(torch.ones(T, S).triu(1 + offset(T, S)).bool(), -math.inf).softmax(-1)

    return {"weights": weights}


def scale_of(size):
    def fn(query, context, W_q, W_k, W_v, W_o, H):
        q, k, v = split(query @ W_q, H), split(context @ W_k, H), split(context @ W_v, H)
        return merge(F.scaled_dot_product_attention(q, k, v, scale=size(query, context) ** -0.5)) @ W_o

    return fn


def transposed_in_cross(query, context, W_q, W_k, W_v, W_o, H):
    q, k, v = split(query @ W_q, H), split(context @ W_k, H), split(context @ W_v, H)
    weights = (torch.einsum("bhtd,bhsd->bhst", q, k) / q.shape[-1] ** 0.5).softmax(-1)
    return merge(weights @ v) @ W_o


def by_linear(*which):
    """F.linear with some of the matrices W_q, W_k, W_v, W_o, 0 to 3."""

    def fn(query, context, *rest):
        *W, H = rest
        apply = [F.linear if i in which else torch.matmul for i in range(4)]
        q, k, v = (split(apply[i](x, W[i]), H) for i, x in enumerate((query, context, context)))
        return apply[3](merge(F.scaled_dot_product_attention(q, k, v)), W[3])

    return fn


CROSS = [
    (sources(0, 0, 1), "the keys are made from the query"),
    (sources(0, 1, 0), "the values are made from the query"),
    (sources(0, 0, 0), "keys and values are made from the query: it attends to itself"),
    (sources(1, 1, 1), "the queries are made from the context"),
    (sources(1, 0, 0), "query and context have changed places"),
    (cross(lambda query, context, *rest: by_loops(context, query, *rest)), "query and context have changed places"),
    (cross(lambda query, context, *rest: by_einsum(query, query, *rest)), "keys and values are made from the query"),
    ({"k_of": lambda *of: of[1] @ of[2]}, "the keys are made with W_q"),
    (roles("q", "q", "q"), "keys and values are made with W_q"),
    ({"q_of": lambda *of: of[0] @ of[3]}, "the queries are made with W_k"),
    (by_linear(0), "the matrix W_q is transposed"),
    (by_linear(0, 1, 2), "the matrices W_q, W_k and W_v are transposed"),
    (by_linear(0, 1, 2, 3), "all four matrices are transposed"),
    (transposed_in_cross, "the scores are transposed"),
    (causal(lambda T, S: 0), "the future is hidden"),
    (causal(lambda T, S: S - T), "the future is hidden"),
    (
        {"heads": lambda q, k, v: (q, k[:, :, : q.shape[2]], v[:, :, : q.shape[2]])},
        "only as many keys are seen as there are queries",
    ),
    (scale_of(lambda query, context: query.shape[1]), "the scores are divided by the square root of T"),
    (scale_of(lambda query, context: context.shape[2]), "the scores are divided by the square root of Ek"),
    # not named
    (by_linear(0, 3), "the numbers differ"),
    ({"split": lambda x, H: x.view(len(x), 5, H, -1).transpose(1, 2)}, "it raises RuntimeError: shape '[3, 5, 2, -1]'"),
    ({"merge": lambda x: merge(x).mean(1)}, "out has the wrong shape"),
    (lambda query, context: query, "it cannot be called as fn(query, context, W_q, W_k, W_v, W_o, num_heads)"),
]

WRONG = {
    "multi_head": [(multi(textbook(**f) if isinstance(f, dict) else f), said) for f, said in SHARED]
    + [(multi(textbook(**f)) if isinstance(f, dict) else f, said) for f, said in MULTI],
    "cross_attention": [(cross(textbook(**f) if isinstance(f, dict) else f), said) for f, said in SHARED]
    + [(cross(textbook(**f)) if isinstance(f, dict) else f, said) for f, said in CROSS],
}


@pytest.mark.parametrize("fn", RIGHT)
def test_right(fn):
    for name, of in (("multi_head", multi), ("cross_attention", cross)):
        verdict = check(name, of(fn))
        assert verdict.ok, verdict


@pytest.mark.parametrize(("name", "fn", "fault"), [(name, *pair) for name, pairs in WRONG.items() for pair in pairs])
def test_wrong(name, fn, fault):
    verdict = check(name, fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


@pytest.mark.parametrize("name", WRONG)
def test_every_variation_is_what_some_solution_does(name):
    task = engine._TASKS[name]
    cases = task.cases()
    wrong = [[engine.call(task, fn, case) for case in cases] for fn, _ in WRONG[name]]
    for variation in task.variations:
        like = [engine.call(task, variation.fn, case) for case in cases]
        assert any(all(map(engine._same, got, like)) for got in wrong), variation.fault
