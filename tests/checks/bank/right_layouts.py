"""Right functions of inputs that are not (B, H, T, D)."""

import math

import torch
import torch.nn.functional as F

from tests.checks.bank.right_item import Right


def heads_third(q, k, v, mask=None):
    """(B, T, H, D), as in JAX and in kernels' interfaces; the mask is (B, H, T, S)."""
    s = torch.einsum("bqhd,bkhd->bhqk", q / math.sqrt(q.shape[-1]), k)
    if mask is not None:
        s = torch.where(mask, s, torch.finfo(s.dtype).min)
    return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(s, dim=-1), v)


def heads_third_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)


def heads_third_causal(q, k, v):
    s = torch.einsum("bthd,bshd->bths", q, k) * q.size(-1) ** -0.5
    hidden = torch.ones(q.size(1), k.size(1), dtype=torch.bool).triu(1)
    return torch.einsum("bths,bshd->bthd", s.masked_fill(hidden[:, None], -torch.inf).softmax(-1), v)


def heads_third_blocked(q, k, v, mask=None):
    s = torch.einsum("bthd,bshd->bhts", q, k) / q.size(-1) ** 0.5
    if mask is not None:
        s.masked_fill_(mask, -torch.inf)
    return torch.einsum("bhts,bshd->bthd", s.softmax(3), v)


def heads_third_padding(q, k, v, mask=None):
    """(B, S), True is a key."""
    s = torch.einsum("bthd,bshd->bhts", q, k) / q.size(-1) ** 0.5
    if mask is not None:
        s = s.masked_fill(~mask[:, None, None], -torch.inf)
    return torch.einsum("bhts,bshd->bthd", s.softmax(3), v)


def three_axes(q, k, v, mask=None):
    """(B, T, D) and nothing else."""
    s = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(2))
    if mask is not None:
        s = s.masked_fill(mask == 0, -1e9)
    return torch.bmm(F.softmax(s, dim=2), v)


def three_axes_pair(queries, keys, values, mask=None):
    s = torch.einsum("btd,bsd->bts", queries, keys) / queries.shape[-1] ** 0.5
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    w = s.softmax(-1)
    return torch.einsum("bts,bsd->btd", w, values), w


def three_axes_causal(q, k, v):
    s = torch.bmm(q, k.mT) / math.sqrt(q.size(2))
    return torch.bmm((s + torch.full_like(s, -torch.inf).triu(1)).softmax(-1), v)


def three_axes_padding(q, k, v, mask=None):
    s = torch.bmm(q, k.mT) / math.sqrt(q.size(2))
    if mask is not None:
        s = s.masked_fill(~mask.unsqueeze(1), -torch.inf)
    return torch.bmm(s.softmax(-1), v)


def any_axes(q, k, v, mask=None):
    """As many axes in front as there are."""
    s = torch.einsum("...td,...sd->...ts", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    return torch.einsum("...ts,...sd->...td", s.softmax(-1), v)


def vectorised(q, k, v):
    """One head of one sample, mapped over the rest."""

    def one(q, k, v):
        return torch.softmax(q @ k.T / q.shape[-1] ** 0.5, -1) @ v

    return torch.vmap(torch.vmap(one))(q, k, v)


ITEMS = [
    *(
        Right(f"function_{f.__name__}", lambda f=f: f)
        for f in (heads_third, heads_third_sdpa, heads_third_padding, three_axes, three_axes_pair, three_axes_padding)
    ),
    *(Right(f"function_{f.__name__}", lambda f=f: f) for f in (any_axes, vectorised)),
    Right("function_heads_third_blocked", lambda: heads_third_blocked, remark="blocked|hidden"),
    Right("function_heads_third_causal", lambda: heads_third_causal, remark="causal"),
    Right("function_three_axes_causal", lambda: three_axes_causal, remark="causal"),
    Right("function_heads_third_stated", lambda: heads_third, {"layout": "B T H D"}),
    Right("function_three_axes_stated", lambda: three_axes, {"layout": "B T D", "mask": "may attend"}),
]
