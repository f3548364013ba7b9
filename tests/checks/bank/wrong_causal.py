"""Modules with a causal mask of their own that hides the wrong pairs."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong("diagonal_masked", size=(32, 4), said="tril with diagonal -1 in a buffer, so no token sees itself")
class BufferWithoutDiagonal(nn.Module):
    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.n_head, self.n_embd = n_head, n_embd
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        full = torch.ones(1, 1, block_size, block_size)
        self.register_buffer("bias", full.tril(diagonal=-1))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


@wrong(
    "diagonal_masked",
    size=(24, 3),
    said="triu without diagonal=1 marks what is hidden; a finite fill keeps row 0 finite",
)
class TriuWithDiagonal(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.to_qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.to_out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        t = x.size(1)
        hidden = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device))
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in self.to_qkv(x).chunk(3, -1))
        s = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(hidden, -1e9)
        return self.to_out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class CausalHead(nn.Module):
    """One head of the lecture kind, told which pairs may attend."""

    def __init__(self, n_embd, head_size, allowed):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", allowed)

    def forward(self, x):
        T = x.shape[1]
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


@wrong(
    "future_only",
    size=(32, 4),
    stated={"causal": True},
    said="triu in place of tril: a token sees itself and what follows",
)
class LectureTriu(nn.Module):
    def __init__(self, n_embd, n_head, block_size=32):
        super().__init__()
        allowed = torch.triu(torch.ones(block_size, block_size))
        self.heads = nn.ModuleList([CausalHead(n_embd, n_embd // n_head, allowed) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


@wrong("sees_one_ahead", size=(24, 2), said="tril with diagonal 1: every token sees the next one")
class LectureOneAhead(nn.Module):
    def __init__(self, n_embd, n_head, block_size=32):
        super().__init__()
        allowed = torch.ones(block_size, block_size).tril(1)
        self.heads = nn.ModuleList([CausalHead(n_embd, n_embd // n_head, allowed) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


@wrong("causal_missing", size=(32, 4), stated={"causal": True}, said="the causal buffer is made and never used")
class BufferUnused(nn.Module):
    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)).bool())

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=2))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
