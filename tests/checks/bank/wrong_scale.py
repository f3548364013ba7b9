"""Modules whose scores have the wrong size."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong("no_scale", size=(32, 4), said="q k^T goes into the softmax as it is")
class Unscaled(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            p(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for p, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = scores.softmax(dim=-1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2)), weights


class Head(nn.Module):
    """One causal head of the lecture kind."""

    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        _, T, C = x.shape
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


@wrong("scale_by_embed_dim", size=(32, 4), said="C is the width of the model, not of the head")
class LectureHeads(nn.Module):
    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, n_embd // n_head, block_size) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


@wrong("scale_by_embed_dim", said="divided by the root of embed_size")
class ScaledByEmbedSize(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.embed_size, self.heads = embed_size, heads
        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, query, keys, values, mask=None):
        N = query.shape[0]
        v = self.values(values).reshape(N, -1, self.heads, self.embed_size // self.heads)
        k = self.keys(keys).reshape(N, -1, self.heads, self.embed_size // self.heads)
        q = self.queries(query).reshape(N, -1, self.heads, self.embed_size // self.heads)
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        attention = torch.softmax(energy / (self.embed_size ** (1 / 2)), dim=3)
        return self.fc_out(torch.einsum("nhqk,nkhd->nqhd", attention, v).flatten(2))


class Scaled(nn.Module):
    """Batched heads; the class below says by what the scores are multiplied."""

    def __init__(self, embed_dim, num_heads, bias=True):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim, bias=bias)
        self.o_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def factor(self, length):
        raise NotImplementedError

    def forward(self, x, mask=None):
        B, T, _ = x.shape
        qkv = self.qkv_proj(x).view(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        s = torch.matmul(q, k.transpose(-2, -1)) * self.factor(T)
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf"))
        return self.o_proj(torch.matmul(s.softmax(-1), v).transpose(1, 2).reshape(B, T, self.embed_dim))


@wrong("scale_by_d", size=(24, 4), said="divided by the head's width, the root is missing")
class RootForgotten(Scaled):
    def factor(self, length):
        return 1 / self.head_dim


@wrong("scale_inverted", size=(24, 4), said="multiplied by the root of the head's width")
class TimesRoot(Scaled):
    def factor(self, length):
        return math.sqrt(self.head_dim)


@wrong("scale_by_num_heads", size=(48, 3), said="divided by the root of the number of heads")
class RootOfHeads(Scaled):
    def factor(self, length):
        return self.num_heads**-0.5


@wrong("scale_by_keys", size=(24, 2), also=("scale_by_queries",), said="divided by the root of the length")
class RootOfLength(Scaled):
    def factor(self, length):
        return 1 / math.sqrt(length)


@wrong("scale_fixed", size=(48, 4), said="divided by 8 whatever the head's width, as for a width of 64")
class AlwaysEight(Scaled):
    def factor(self, length):
        return 0.125


@wrong("scale_half", size=(48, 3), said="the fourth root is taken, as if queries and keys had both been divided, once")
class FourthRootOnce(Scaled):
    def factor(self, length):
        return self.head_dim**-0.25


@wrong(
    "scale_twice",
    size=(32, 2),
    also=("scale_by_d",),
    said="queries are scaled, and F.scaled_dot_product_attention scales again",
)
class ScaledTwice(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q * self.scale, k, v)
        return self.proj(out.transpose(1, 2).reshape(B, N, C))


@wrong("scale_after_softmax", size=(24, 4), also=("scale_on_output",), said="the weights are divided, not the scores")
class WeightsScaled(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wq, self.wk, self.wv, self.dense = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value):
        q, k, v = (
            f(x).view(x.size(0), x.size(1), self.num_heads, -1).permute(0, 2, 1, 3)
            for f, x in ((self.wq, query), (self.wk, key), (self.wv, value))
        )
        weights = F.softmax(q @ k.transpose(-1, -2), dim=-1) / math.sqrt(q.size(-1))
        return self.dense((weights @ v).permute(0, 2, 1, 3).flatten(2))
