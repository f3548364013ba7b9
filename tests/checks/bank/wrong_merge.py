"""Modules that put the heads together in a wrong way."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong("merge_without_transpose", size=(32, 4), said="(B, H, T, D) is reshaped to (B, T, E) as it lies")
class ReshapedAsItLies(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head, self.n_embd = n_head, n_embd
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("bias", torch.tril(torch.ones(128, 128)).view(1, 1, 128, 128))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=-1))
        att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.reshape(B, T, C))


@wrong("merge_without_transpose", size=(24, 2), said="the folded heads are viewed as (B, T, E) without unfolding them")
class FoldedMerge(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead, self.hd = nhead, d_model // nhead
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)

    def fold(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.nhead, self.hd).permute(0, 2, 1, 3).reshape(b * self.nhead, n, self.hd)

    def forward(self, query, key, value, mask=None):
        q, k, v = self.fold(self.wq(query)), self.fold(self.wk(key)), self.fold(self.wv(value))
        s = torch.baddbmm(torch.zeros((), dtype=q.dtype), q, k.mT, alpha=self.hd**-0.5)
        if mask is not None:
            full = mask.expand(query.size(0), self.nhead, query.size(1), key.size(1)).flatten(0, 1)
            s = torch.where(full, s, float("-inf"))
        ctx = torch.bmm(s.softmax(2), v)
        return self.wo(ctx.view(query.size(0), query.size(1), -1))


@wrong("merge_interleaved", relabelled=True, size=(32, 4), said="heads are cut as (H, D) but merged as (D, H)")
class MergedOtherWay(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, embed_dim * 3)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.permute(0, 2, 3, 1).reshape(B, N, C))


@wrong("merge_mixes_samples", size=(16, 4), said="heads folded sample by sample are unfolded as (H, B, T, D)")
class UnfoldedAcrossSamples(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.lin_q = nn.Linear(hidden, hidden)
        self.lin_k = nn.Linear(hidden, hidden)
        self.lin_v = nn.Linear(hidden, hidden)
        self.lin_o = nn.Linear(hidden, hidden)

    def forward(self, x):
        B, T, E = x.shape
        q, k, v = (
            f(x).reshape(B, T, self.heads, -1).transpose(1, 2).reshape(B * self.heads, T, -1)
            for f in (self.lin_q, self.lin_k, self.lin_v)
        )
        w = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1]), -1)
        y = torch.bmm(w, v).view(self.heads, B, T, -1)
        return self.lin_o(y.permute(1, 2, 0, 3).reshape(B, T, E))


@wrong(
    "heads_averaged", size=(32, 4), said="the heads are averaged and the average is repeated to the width of the model"
)
class MeanOfHeads(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.w_q = nn.Linear(embed_dim, embed_dim)
        self.w_k = nn.Linear(embed_dim, embed_dim)
        self.w_v = nn.Linear(embed_dim, embed_dim)
        self.w_o = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        q, k, v = (w(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for w in (self.w_q, self.w_k, self.w_v))
        s = q @ k.mT * q.size(-1) ** -0.5
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf"))
        ctx = (s.softmax(-1) @ v).mean(dim=1)
        return self.w_o(ctx.repeat(1, 1, self.num_heads))


@wrong("heads_summed", size=(20, 4), said="the heads are added up, and the sum is put into every head's place")
class SumOfHeads(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.Wq = nn.Parameter(torch.randn(h, d, d // h) / d**0.5)
        self.Wk = nn.Parameter(torch.randn(h, d, d // h) / d**0.5)
        self.Wv = nn.Parameter(torch.randn(h, d, d // h) / d**0.5)
        self.Wo = nn.Parameter(torch.randn(h, d // h, d) / d**0.5)

    def forward(self, x):
        q, k, v = (torch.einsum("bte,hed->bhtd", x, w) for w in (self.Wq, self.Wk, self.Wv))
        a = torch.softmax(torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5, dim=-1)
        total = torch.einsum("bhts,bhsd->btd", a, v)
        return torch.einsum("btd,hde->bte", total, self.Wo)


@wrong("first_head_only", size=(24, 3), said="only the first head's result is used, in every head's place")
class FirstHead(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, -1))
        heads = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(heads[:, :1].expand_as(heads).transpose(1, 2).flatten(2))


@wrong("merge_other", size=(32, 4), said="in the loop every head overwrites the first slice, so the rest stays zero")
class LoopOverwrites(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.query = nn.ModuleList([nn.Linear(embed_dim, self.head_dim) for _ in range(num_heads)])
        self.key = nn.ModuleList([nn.Linear(embed_dim, self.head_dim) for _ in range(num_heads)])
        self.value = nn.ModuleList([nn.Linear(embed_dim, self.head_dim) for _ in range(num_heads)])
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        result = torch.zeros_like(x)
        for q_layer, k_layer, v_layer in zip(self.query, self.key, self.value, strict=True):
            q, k, v = q_layer(x), k_layer(x), v_layer(x)
            w = torch.softmax(q @ k.mT / self.head_dim**0.5, dim=-1)
            result[:, :, : self.head_dim] = w @ v
        return self.out(result)


@wrong("merge_other", said="the heads are concatenated last to first", relabelled=True, size=(24, 4))
class HeadsReversed(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(embed_dim, embed_dim)
        self.kv = nn.Linear(embed_dim, 2 * embed_dim)
        self.o = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, context, mask=None):
        def cut(t):
            return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

        k, v = self.kv(context).chunk(2, dim=-1)
        heads = F.scaled_dot_product_attention(cut(self.q(x)), cut(k), cut(v), attn_mask=mask)
        return self.o(torch.cat(heads.unbind(1)[::-1], dim=-1))
