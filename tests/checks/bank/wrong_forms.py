"""Modules with one fault each and less usual forms: length first, wrapped layers, raw weights, other masks."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong("scale_by_embed_dim", size=(24, 4), said="(T, B, E), divided by the root of the model's width")
class LengthFirstWideScale(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.in_proj_weight = nn.Parameter(torch.randn(3 * embed_dim, embed_dim) / embed_dim**0.5)
        self.in_proj_bias = nn.Parameter(0.1 * torch.randn(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        tgt_len, bsz, e = x.shape
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (
            t.contiguous().view(tgt_len, bsz * self.num_heads, e // self.num_heads).transpose(0, 1) for t in (q, k, v)
        )
        attn = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.embed_dim)
        out = torch.bmm(attn.softmax(-1), v).transpose(0, 1).reshape(tgt_len, bsz, e)
        return self.out_proj(out)


@wrong(
    "mask_inverted",
    size=(16, 2),
    stated={"mask": "blocked", "mask_axes": "B S", "layout": "T B E"},
    said="(T, B, E) with a mask of padding, which is taken for one of real tokens",
)
class LengthFirstPadding(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead = nhead
        self.linear_q, self.linear_k, self.linear_v, self.linear_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, key_padding_mask=None):
        q, k, v = (
            f(x).unflatten(-1, (self.nhead, -1)).permute(1, 2, 0, 3)
            for f, x in ((self.linear_q, query), (self.linear_k, key), (self.linear_v, value))
        )
        s = q @ k.mT / math.sqrt(q.size(-1))
        if key_padding_mask is not None:
            s = s.masked_fill(~key_padding_mask[:, None, None, :], float("-inf"))
        return self.linear_o((s.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2))


@wrong(
    "mask_inverted",
    size=(24, 3),
    stated={"mask": "may attend", "mask_axes": "B S"},
    said="a mask of real tokens is handed to nn.MultiheadAttention, where True hides",
)
class PaddingHandedOver(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, mask=None):
        return self.mha(x, x, x, key_padding_mask=mask, average_attn_weights=False)


@wrong(
    "future_only",
    size=(24, 4),
    also=("mask_inverted", "diagonal_masked"),
    stated={"causal": True},
    said="a lower triangle of what may attend is handed to nn.MultiheadAttention, where True hides: row T is NaN",
)
class TriangleHandedOver(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x):
        t = x.size(1)
        allowed = torch.tril(torch.ones(t, t, dtype=torch.bool, device=x.device))
        return self.mha(x, x, x, attn_mask=allowed, need_weights=True)[0]


@wrong(
    "scale_applied_to_mask", size=(32, 4), stated={"mask": "additive"}, said="a finite bias is divided with the scores"
)
class BiasDivided(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key_value = nn.Linear(hidden_size, 2 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        b, t, e = hidden_states.shape
        q = self.query(hidden_states).view(b, t, self.num_heads, -1).transpose(1, 2)
        k, v = self.key_value(hidden_states).view(b, t, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2)
        if attention_mask is not None:
            s = s + attention_mask
        probs = F.softmax(s / math.sqrt(e // self.num_heads), dim=-1)
        return self.dense((probs @ v).transpose(1, 2).reshape(b, t, e)), probs


@wrong("softmax_overflows", size=(16, 2), said="exponentials of the scores as they are, large ones become inf")
class PlainExponentials(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.Wq = nn.Parameter(torch.randn(h, d, d // h) / d**0.5)
        self.Wk = nn.Parameter(torch.randn(h, d, d // h) / d**0.5)
        self.Wv = nn.Parameter(torch.randn(h, d, d // h) / d**0.5)
        self.Wo = nn.Parameter(torch.randn(d, d) / d**0.5)

    def forward(self, x, mask=None):
        outs = []
        for wq, wk, wv in zip(self.Wq, self.Wk, self.Wv, strict=True):
            e = torch.exp((x @ wq) @ (x @ wk).mT / wq.size(1) ** 0.5)
            if mask is not None:
                e = e * mask[:, 0]
            outs.append(e / e.sum(-1, keepdim=True) @ (x @ wv))
        return torch.cat(outs, dim=-1) @ self.Wo


@wrong("mask_ignored", size=(32, 4), stated={"mask_axes": "T S"}, said="the mask is handed to a helper that drops it")
class HelperDropsMask(nn.Module):
    def __init__(self, embed_dim, heads):
        super().__init__()
        self.heads = heads
        self.Wqkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.Wout = nn.Linear(embed_dim, embed_dim)

    @staticmethod
    def attention(q, k, v, attn_mask=None):
        return torch.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1) @ v

    def forward(self, x, attn_mask=None):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.Wqkv(x).chunk(3, -1))
        return self.Wout(self.attention(q, k, v, attn_mask).transpose(1, 2).flatten(2))


@wrong("no_exp", size=(24, 2), said="positive parts of the scores over their sum, there is no exponential")
class ReluOverSum(nn.Module):
    def __init__(self, model_dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.lin_query, self.lin_key, self.lin_value, self.lin_out = (nn.Linear(model_dim, model_dim) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for f in (self.lin_query, self.lin_key, self.lin_value)
        )
        s = (q @ k.mT / math.sqrt(q.size(-1))).relu() + 1e-6
        return self.lin_out((s / s.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2))
