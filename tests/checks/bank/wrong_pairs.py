"""Modules with two faults at once."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


class Plain(nn.Module):
    """Four layers and their heads, shared by some of the classes below."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def join(self, x):
        return x.transpose(1, 2).flatten(2)


@wrong("no_scale", "no_output_projection", size=(32, 4), said="no division, and the output layer is not called")
class NeitherScaleNorOutput(Plain):
    def forward(self, query, key, value, mask=None):
        q, k, v = self.split(self.q_proj(query)), self.split(self.k_proj(key)), self.split(self.v_proj(value))
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.join(scores.softmax(-1) @ v)


@wrong(
    "scale_by_embed_dim",
    "mask_ignored",
    size=(24, 4),
    said="the model's width in the scale, and masked_fill without effect",
)
class WideScaleNoMask(Plain):
    def forward(self, query, key, value, mask=None):
        q, k, v = self.split(self.q_proj(query)), self.split(self.k_proj(key)), self.split(self.v_proj(value))
        scores = q @ k.mT / math.sqrt(self.embed_dim)
        if mask is not None:
            scores.masked_fill(mask == 0, -1e9)
        return self.out_proj(self.join(scores.softmax(-1) @ v))


@wrong(
    "mask_inverted",
    "scale_by_d",
    size=(24, 2),
    stated={"mask": "may attend"},
    said="fills the visible, and the root is missing",
)
class InvertedAndRootless(Plain):
    def forward(self, x, mask=None):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / self.head_dim
        if mask is not None:
            scores = scores.masked_fill(mask, -1e9)
        return self.out_proj(self.join(scores.softmax(-1) @ v))


@wrong(
    "cross_reads_query_stream",
    "mask_after_softmax",
    size=(24, 3),
    said="the context is not read, and weights are masked late",
)
class NoContextLateMask(Plain):
    def forward(self, x, context, mask=None):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        weights = (q @ k.mT * self.head_dim**-0.5).softmax(-1)
        if mask is not None:
            weights = weights * mask
        return self.out_proj(self.join(weights @ v))


@wrong("queries_by_k_proj", "softmax_twice", size=(32, 4), said="the key layer makes the queries, and two softmaxes")
class KeyLayerTwiceSoftmaxTwice(Plain):
    def forward(self, x):
        q, k, v = self.split(self.k_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        weights = (q @ k.mT / math.sqrt(self.head_dim)).softmax(-1).softmax(-1)
        return self.out_proj(self.join(weights @ v))


@wrong(
    "values_from_key",
    "softmax_over_queries",
    size=(24, 2),
    said="the value argument is ignored, and the softmax runs over queries",
)
class NoValueWrongAxis(Plain):
    def forward(self, query, key, value):
        q, k, v = self.split(self.q_proj(query)), self.split(self.k_proj(key)), self.split(self.v_proj(key))
        weights = F.softmax(q @ k.mT / math.sqrt(self.head_dim), dim=-2)
        return self.out_proj(self.join(weights @ v))


@wrong("query_added", "scale_by_num_heads", size=(48, 3), said="the input is added, and the scale is the root of H")
class AddsAndScalesByHeads(Plain):
    def forward(self, x):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        return x + self.out_proj(self.join((q @ k.mT / self.num_heads**0.5).softmax(-1) @ v))


@wrong("dropout_in_eval", "no_scale", size=(24, 4), said="F.dropout in evaluation too, and no division")
class AlwaysDropsUnscaled(Plain):
    def forward(self, x):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        return self.out_proj(self.join(F.dropout((q @ k.mT).softmax(-1), 0.2) @ v))


@wrong(
    "split_without_transpose",
    "scale_by_embed_dim",
    size=(32, 4),
    said="viewed as (B, H, T, D), and divided by the root of E",
)
class ViewedAndWideScale(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_model = n_heads, d_model
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, E = x.shape
        q, k, v = (w(x).view(B, self.n_heads, T, E // self.n_heads) for w in (self.W_q, self.W_k, self.W_v))
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.d_model), dim=-1)
        return self.W_o((weights @ v).transpose(1, 2).reshape(B, T, E)), weights


@wrong(
    "merge_without_transpose",
    "sees_one_ahead",
    size=(24, 4),
    said="merged as it lies, and the triangle is one too wide",
)
class ScrambledAndAhead(nn.Module):
    def __init__(self, n_embd, n_head, block_size=32):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("allowed", torch.ones(block_size, block_size, dtype=torch.bool).tril(1))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.allowed[:T, :T])
        return self.c_proj(y.reshape(B, T, C))


class PairHead(nn.Module):
    """One head of the lecture kind that hides the diagonal and divides by the model's width."""

    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size), diagonal=-1))

    def forward(self, x):
        _, T, C = x.shape
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, -1e9)
        return F.softmax(wei, dim=-1) @ self.value(x)


@wrong("diagonal_masked", "scale_by_embed_dim", size=(32, 4), said="no token sees itself, and C is the model's width")
class LectureTwice(nn.Module):
    def __init__(self, n_embd, n_head, block_size=32):
        super().__init__()
        self.heads = nn.ModuleList([PairHead(n_embd, n_embd // n_head, block_size) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))
