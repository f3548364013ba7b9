"""Modules that cut the features into heads in a wrong way."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong(
    "split_without_transpose", size=(16, 4), said="(B, T, E) is viewed as (B, H, T, D), rows of a token spread over T"
)
class ViewedAsHeads(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def heads(self, x):
        batch, length, width = x.shape
        return x.view(batch, self.num_heads, length, width // self.num_heads)

    def forward(self, query, key, value, mask=None):
        q, k, v = self.heads(self.q_proj(query)), self.heads(self.k_proj(key)), self.heads(self.v_proj(value))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(out.transpose(1, 2).flatten(2))


@wrong("split_without_transpose", size=(24, 3), said="the folded heads are viewed from (B, T, E) directly")
class FoldedView(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, E = x.size()
        q = self.W_q(x).reshape(B * self.h, T, self.d_k)
        k = self.W_k(x).reshape(B * self.h, T, self.d_k)
        v = self.W_v(x).reshape(B * self.h, T, self.d_k)
        weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.d_k), dim=-1)
        out = torch.bmm(weights, v).reshape(B, self.h, T, self.d_k).permute(0, 2, 1, 3)
        return self.W_o(out.reshape(B, T, E))


@wrong(
    "split_other",
    size=(32, 4),
    also=("split_without_transpose", "heads_of_one_token"),
    said="heads are never moved before the positions, so the heads of one token attend to each other",
)
class HeadsMeetHeads(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head)
        k = k.view(B, T, self.n_head, C // self.n_head)
        v = v.view(B, T, self.n_head, C // self.n_head)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.contiguous().view(B, T, C))


@wrong("split_interleaved", relabelled=True, size=(24, 4), said="keys are cut as (D, H), queries and values as (H, D)")
class KeysCutOtherWay(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        q = self.to_q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k = self.to_k(x).view(b, n, -1, self.heads).permute(0, 3, 1, 2)
        v = self.to_v(x).view(b, n, self.heads, -1).transpose(1, 2)
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        if mask is not None:
            dots = dots.masked_fill(~mask, -torch.finfo(dots.dtype).max)
        out = torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


@wrong(
    "split_mixes_samples", size=(16, 2), said="(B, T, E) is viewed as (H, B, T, D): heads take rows of other samples"
)
class ViewedHeadsFirst(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key = nn.Linear(embed_dim, embed_dim)
        self.value = nn.Linear(embed_dim, embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        B, T, E = x.shape
        shape = (self.num_heads, B, T, E // self.num_heads)
        q, k, v = (layer(x).view(shape) for layer in (self.query, self.key, self.value))
        w = (q @ k.mT / (E // self.num_heads) ** 0.5).softmax(-1)
        return self.proj(torch.cat((w @ v).unbind(0), dim=-1)), w.transpose(0, 1)


@wrong(
    "split_other",
    relabelled=True,
    size=(32, 4),
    said="every head takes its features one column later than it should, the last wraps round",
)
class OffByOneSlices(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_lin = nn.Linear(embed_dim, embed_dim)
        self.k_lin = nn.Linear(embed_dim, embed_dim)
        self.v_lin = nn.Linear(embed_dim, embed_dim)
        self.out_lin = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, mask=None):
        outs = []
        for h in range(self.num_heads):
            cols = torch.arange(h * self.head_dim, (h + 1) * self.head_dim)
            late = (cols + 1) % (self.num_heads * self.head_dim)
            q, k, v = self.q_lin(query)[..., cols], self.k_lin(key)[..., late], self.v_lin(value)[..., cols]
            s = q @ k.transpose(1, 2) / math.sqrt(self.head_dim)
            if mask is not None:
                m = mask.expand(q.size(0), self.num_heads, q.size(1), k.size(1))[:, h]
                s = s.masked_fill(m.logical_not(), float("-inf"))
            outs.append(s.softmax(-1) @ v)
        return self.out_lin(torch.cat(outs, dim=-1))


@wrong("num_heads_ignored", size=(24, 4), said="num_heads is kept and never used: one head as wide as the model")
class OneWideHead(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.fc_q = nn.Linear(d_model, d_model)
        self.fc_k = nn.Linear(d_model, d_model)
        self.fc_v = nn.Linear(d_model, d_model)
        self.fc_o = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        q, k, v = self.fc_q(q), self.fc_k(k), self.fc_v(v)
        scores = q @ k.transpose(1, 2) / q.size(-1) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask.squeeze(1) == 0, -1e9)
        return self.fc_o(F.softmax(scores, dim=-1) @ v)


@wrong("heads_share_small_projection", size=(32, 4), said="one D x D layer serves every head, the input is cut first")
class SharedSmallLayers(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads, self.head_dim = heads, embed_size // heads
        self.values = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.keys = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.queries = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask=None):
        N, T, S = query.shape[0], query.shape[1], keys.shape[1]
        v = self.values(values.reshape(N, S, self.heads, self.head_dim))
        k = self.keys(keys.reshape(N, S, self.heads, self.head_dim))
        q = self.queries(query.reshape(N, T, self.heads, self.head_dim))
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k) / self.head_dim**0.5
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        out = torch.einsum("nhql,nlhd->nqhd", torch.softmax(energy, dim=3), v)
        return self.fc_out(out.reshape(N, T, self.heads * self.head_dim))
