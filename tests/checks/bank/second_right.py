"""Right implementations of the second bank: the same machinery as its wrong ones, in several sizes, and some more."""

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from . import second_functions as f
from . import second_modules as m
from . import second_more as n
from .right_item import Right


class OuterProduct(nn.Module):
    """Scores from a product of all pairs, with kdim and vdim of their own and maps without biases."""

    def __init__(self, embed_dim=12, num_heads=3, kdim=10, vdim=7):
        super().__init__()
        self.num_heads = num_heads
        self.kdim, self.vdim = kdim, vdim
        self.q, self.k, self.v = (nn.Linear(w, embed_dim, bias=False) for w in (embed_dim, kdim, vdim))
        self.o = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            g(x).unflatten(-1, (self.num_heads, -1)) for g, x in ((self.q, query), (self.k, key), (self.v, value))
        )
        s = (q[:, :, None] * k[:, None]).sum(-1) * q.size(-1) ** -0.5  # b t s h
        if mask is not None:
            s = s.masked_fill(~mask.permute(0, 2, 3, 1), -math.inf)
        return self.o((s.softmax(2).unsqueeze(-1) * v[:, None]).sum(2).flatten(2))


class Mapped(nn.Module):
    """One head's work under torch.vmap; in and out maps from buffers of indices."""

    def __init__(self, size=12, heads=4):
        super().__init__()
        self.heads = heads
        self.inp, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.register_buffer("order", torch.arange(3 * size).view(3, heads, size // heads))

    def forward(self, x, mask=None):
        p = self.inp(x)
        q, k, v = (torch.stack([p.index_select(-1, i) for i in rows]) for rows in self.order)

        def one(a, b, c):
            return a @ b.mT / math.sqrt(a.size(-1)), c

        s, v = torch.vmap(one)(q, k, v)
        if mask is not None:
            s = s.masked_fill(~mask.expand(-1, self.heads, -1, -1).transpose(0, 1), -math.inf)
        return self.out(torch.cat(list(s.softmax(-1) @ v), -1))


class Wrapped(nn.Module):
    """torch's own module with the mask turned and repeated for it."""

    def __init__(self, d=12, h=2):
        super().__init__()
        self.mha = nn.MultiheadAttention(d, h, batch_first=True)

    def forward(self, q, k, v, mask=None):
        if mask is not None:
            B, T, S, H = q.size(0), q.size(1), k.size(1), self.mha.num_heads
            mask = mask.expand(B, H, T, S).logical_not().reshape(B * H, T, S)
        return self.mha(q, k, v, attn_mask=mask)[0]


def ragged(q, k, v, mask=None):
    """Every sample by itself, then stacked."""
    masks = [None] * len(q) if mask is None else mask.expand(len(q), -1, -1, -1)
    return torch.stack([F.scaled_dot_product_attention(*x[:3], x[3]) for x in zip(q, k, v, masks, strict=True)])


def shifted(q, k, v, mask=None):
    """Keys centred first: a constant for every query, which softmax does not see."""
    s = torch.einsum("bthd,bshd->bhts", q, k - k.mean(1, keepdim=True)) * q.shape[-1] ** -0.5
    s = s if mask is None else s + torch.where(mask, 0.0, -1e12)
    return torch.einsum("bhts,bshd->bthd", s.softmax(-1), v)


def gated(q, k, v, mask=None):
    """Weights as log_softmax and exp, with a mask of logarithms."""
    s = q @ k.transpose(2, 3) / q.size(3) ** 0.5
    s = s if mask is None else s + mask.to(s.dtype).log()
    return torch.exp(F.log_softmax(s, -1)) @ v


def running(q, k, v, mask=None):
    """One key at a time with a running maximum and total."""
    top = torch.full_like(q[..., :1], -1e30)
    total, acc = torch.zeros_like(top), torch.zeros_like(q[..., :1] * v[..., :1, :])
    for j in range(k.size(-2)):
        s = (q * k[..., j : j + 1, :]).sum(-1, keepdim=True) / math.sqrt(q.size(-1))
        if mask is not None:
            s = s.masked_fill(~mask[..., j : j + 1], -math.inf)
        new = torch.maximum(top, s)
        a, b = (top - new).exp(), (s - new).exp()
        total, acc, top = total * a + b, acc * a + b * v[..., j : j + 1, :], new
    return acc / total


def _module(cls, *args, note="", **stated):
    return Right(f"{cls.__name__} {args} {note}".strip(), lambda: cls(*args), stated)


def _args(dim, heads, groups):
    return SimpleNamespace(dim=dim, n_heads=heads, n_kv_heads=groups)


SECOND_RIGHT: list[Right] = [
    _module(m.GptAttention, m.Config()),
    _module(m.GptAttention, m.Config(16, 4)),
    _module(m.GptAttention, m.Config(10, 2, 32)),
    _module(m.BertAttention),
    _module(m.BertAttention, 12, 2),
    _module(m.KerasAttention),
    _module(m.KerasAttention, 10, 3, 4),
    _module(m.FairseqAttention),
    _module(m.FairseqAttention, 16, 2),
    _module(m.FunctionalAttention),
    _module(m.FunctionalAttention, 12, 4),
    _module(m.LlamaAttention, _args(16, 4, 2), note="grouped"),
    _module(m.LlamaAttention, _args(24, 6, 2), note="groups of three"),
    _module(m.LlamaAttention, _args(12, 3, 1), note="one key head"),
    _module(m.LlamaAttention, _args(12, 3, 3), note="no groups"),
    _module(m.LucidAttention),
    _module(m.LucidAttention, 12, 2, 8),
    _module(n.EspnetAttention),
    _module(n.EspnetAttention, 2, 16),
    _module(n.RoleAttention),
    _module(n.RoleAttention, 15, 3),
    _module(n.HeadList),
    _module(n.HeadList, 16, 4),
    _module(n.ConvAttention),
    _module(n.ConvAttention, 12, 2),
    _module(n.StackedAttention),
    _module(n.CloneAttention),
    _module(n.CloneAttention, 4, 16),
    _module(n.FlaxAttention),
    _module(n.FlaxAttention, 16, 2),
    _module(n.CachedAttention),
    _module(n.CachedAttention, 16, 4, 2),
    _module(OuterProduct),
    _module(Mapped),
    _module(Wrapped),
    Right("tiled four at a time", lambda: f.tiled(block=4)),
    Right("Wrapped class", lambda: Wrapped),
    Right("FlaxAttention class", lambda: n.FlaxAttention),
    *[
        Right(g.__name__, lambda g=g: g)
        for g in (
            f.tiled(block=1), f.token_loop(), f.fused_gemm(), f.by_logsumexp(), f.renormalised(),
            f.by_distance(), f.base_two(), f.ordered(), f.dispatcher(), f.single_head(),
            ragged, shifted, gated, running,
        )
    ],
]  # fmt: skip
