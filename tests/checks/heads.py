"""Solutions of multi-head attention and of cross-attention, right ones, and one to be changed line by line."""

import math

import torch
from torch.nn import functional as F

from mha_course.checks import engine
from tests.checks import bank_exercises


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


def roles(q, k, v):
    """Which of the matrices W_q, W_k, W_v makes each of q, k and v."""
    return {
        "q_of": lambda query, context, *W: query @ W["qkv".index(q)],
        "k_of": lambda query, context, *W: context @ W["qkv".index(k)],
        "v_of": lambda query, context, *W: context @ W["qkv".index(v)],
    }


def unreached(name, wrong):
    """The faults of the variations that neither one of some solutions nor one of the bank has."""
    task = engine._TASKS[name]
    bank_exercises.load()
    wrong = [*wrong, *(item.fn for item in bank_exercises.WRONG if item.task == name)]
    cases = task.cases()
    outcomes = [[engine.call(task, fn, case) for case in cases] for fn in wrong]
    like = {v: [engine.call(task, v.fn, case) for case in cases] for v in task.variations}
    return [
        v.fault
        for v in like
        if not any(
            all(
                engine._same(one, other, False, case.tolerance)
                for one, other, case in zip(got, like[v], cases, strict=True)
            )
            for got in outcomes
        )
    ]
