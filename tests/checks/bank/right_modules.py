"""Right modules that project to queries, keys and values at once, as GPTs and vision transformers do."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checks.bank.right_item import Right


class FusedCausal(nn.Module):
    """A small GPT's layer: one projection, a stored triangle, two dropouts."""

    def __init__(self, n_embd=16, n_head=4, block_size=32, dropout=0.1, bias=True, flash=False):
        super().__init__()
        assert n_embd % n_head == 0
        self.n_embd, self.n_head, self.dropout, self.flash = n_embd, n_head, dropout, flash
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)
        if not flash:
            self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size))[None, None])

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if self.flash:
            p = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = self.attn_dropout(F.softmax(att, dim=-1)) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class InOut(nn.Module):
    """A linear layer whose weight is (in, out), as in the first GPT-2 code."""

    def __init__(self, nx, nf):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.2)
        self.bias = nn.Parameter(torch.randn(nf) * 0.1)

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class FusedInOut(nn.Module):
    """A GPT-2 layer: weights (in, out), an additive mask and, if asked for, its own triangle."""

    def __init__(self, hidden_size=16, num_heads=4, causal=True):
        super().__init__()
        self.num_heads, self.head_dim, self.split_size, self.causal = (
            num_heads,
            hidden_size // num_heads,
            hidden_size,
            causal,
        )
        self.c_attn = InOut(hidden_size, 3 * hidden_size)
        self.c_proj = InOut(hidden_size, hidden_size)
        self.register_buffer("tril", torch.ones(64, 64, dtype=torch.bool).tril(), persistent=False)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = self.c_attn(hidden_states).split(self.split_size, dim=2)
        q, k, v = (t.view(*t.shape[:2], self.num_heads, self.head_dim).permute(0, 2, 1, 3) for t in (q, k, v))
        w = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], v.size(-1) ** 0.5, dtype=v.dtype)
        if self.causal:
            n, m = q.size(-2), k.size(-2)
            w = torch.where(self.tril[m - n : m, :m], w, torch.finfo(w.dtype).min)
        if attention_mask is not None:
            w = w + attention_mask
        a = torch.matmul(w.softmax(-1), v).permute(0, 2, 1, 3).contiguous()
        return self.c_proj(a.view(*a.shape[:2], -1))


class Vision(nn.Module):
    """A vision transformer's layer: the projection is read as (3, H, D)."""

    def __init__(self, dim=24, num_heads=3, qkv_bias=False, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.q_norm, self.k_norm = nn.Identity(), nn.Identity()
        self.attn_drop, self.proj = nn.Dropout(attn_drop), nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        attn = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)
        x = (self.attn_drop(attn) @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))


class HeadsThenThree(nn.Module):
    """Each head's query, key and value lie side by side in the fused projection: (H, 3, D), or (H, D, 3)."""

    def __init__(self, hidden_size=16, num_attention_heads=4, last=False):
        super().__init__()
        self.num_attention_heads, self.head_size, self.last = (
            num_attention_heads,
            hidden_size // num_attention_heads,
            last,
        )
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        B, T, E = hidden_states.shape
        fused = self.query_key_value(hidden_states)
        if self.last:
            q, k, v = fused.view(B, T, self.num_attention_heads, self.head_size, 3).unbind(-1)
        else:
            q, k, v = fused.view(B, T, self.num_attention_heads, 3 * self.head_size).chunk(3, dim=-1)
        s = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(self.head_size)
        if attention_mask is not None:
            s = s.masked_fill(~attention_mask, torch.finfo(s.dtype).min)
        return self.dense(torch.einsum("bhts,bshd->bthd", s.softmax(-1), v).reshape(B, T, E))


class HeadsThenThreeBlocked(nn.Module):
    """The same order, worked as (B * H) matrices, with a mask that says what is hidden."""

    def __init__(self, hidden_size=12, n_head=3):
        super().__init__()
        self.hidden_size, self.num_heads, self.head_dim = hidden_size, n_head, hidden_size // n_head
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size, bias=True)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        B, T, _ = hidden_states.shape
        fused = self.query_key_value(hidden_states).view(B, T, self.num_heads, 3, self.head_dim)
        q = fused[..., 0, :].transpose(1, 2).reshape(B * self.num_heads, T, self.head_dim)
        k = fused[..., 1, :].permute(0, 2, 3, 1).reshape(B * self.num_heads, self.head_dim, T)
        v = fused[..., 2, :].transpose(1, 2).reshape(B * self.num_heads, T, self.head_dim)
        bias = torch.zeros(B * self.num_heads, T, T, dtype=q.dtype)
        scores = torch.baddbmm(bias, q, k, beta=1.0, alpha=self.inv_norm_factor).view(B, self.num_heads, T, T)
        if attention_mask is not None:
            scores = torch.masked_fill(scores, attention_mask, torch.finfo(scores.dtype).min)
        probs = F.softmax(scores, dim=-1).view(B * self.num_heads, T, T)
        out = torch.bmm(probs, v).view(B, self.num_heads, T, self.head_dim).permute(0, 2, 1, 3)
        return self.dense(out.reshape(B, T, self.num_heads * self.head_dim))


class FusedKeyFirst(nn.Module):
    """The thirds of the fused projection are key, query, value in that order."""

    def __init__(self, d_model=16, n_heads=2):
        super().__init__()
        self.n_heads = n_heads
        self.kqv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        k, q, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.kqv(x).chunk(3, dim=-1))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class FusedKeyValue(nn.Module):
    """Cross-attention with keys and values from one projection of the context."""

    def __init__(self, dim=16, heads=4, context_dim=10):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(context_dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context, mask=None):
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.reshape(*t.shape[:2], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        if mask is not None:
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
        out = torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class FusedParameter(nn.Module):
    """One parameter (3 E, E) is cut into three; inputs may be three."""

    def __init__(self, embed_dim=12, num_heads=4):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, query, key, value, attn_mask=None):
        E, H = self.embed_dim, self.num_heads
        parts = [
            F.linear(x, self.in_proj_weight[i * E : (i + 1) * E], self.in_proj_bias[i * E : (i + 1) * E])
            for i, x in enumerate((query, key, value))
        ]
        q, k, v = (p.view(p.size(0), p.size(1), H, E // H).transpose(1, 2) for p in parts)
        logits = q @ k.mT / (E // H) ** 0.5
        if attn_mask is not None:
            logits = logits + attn_mask.to(logits.dtype).log()
        return self.out_proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(-2))


class FusedGrouped(nn.Module):
    """One projection of unequal parts: H heads of queries, fewer of keys and of values."""

    def __init__(self, dim=16, num_heads=4, num_kv_heads=2, causal=False):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim, self.causal = (
            num_heads,
            num_kv_heads,
            dim // num_heads,
            causal,
        )
        self.wqkv = nn.Linear(dim, (num_heads + 2 * num_kv_heads) * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        n, m, d = self.num_heads, self.num_kv_heads, self.head_dim
        q, k, v = self.wqkv(x).split([n * d, m * d, m * d], dim=-1)
        q, k, v = (t.unflatten(-1, (-1, d)).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(x.shape))


ITEMS = [
    Right("fused_causal", FusedCausal, remark="causal"),
    Right("fused_causal_class", lambda: FusedCausal, remark="causal"),
    Right("fused_causal_sdpa", lambda: FusedCausal(flash=True, bias=False), remark="causal"),
    Right("fused_in_out_causal", FusedInOut, remark="causal"),
    Right("fused_in_out", lambda: FusedInOut(causal=False)),
    Right("vision", Vision),
    Right("vision_bias_dropout", lambda: Vision(16, 4, qkv_bias=True, attn_drop=0.2, proj_drop=0.1)),
    Right("heads_then_three", HeadsThenThree, remark="layout"),
    Right("heads_depth_three", lambda: HeadsThenThree(last=True), remark="layout"),
    Right("heads_then_three_blocked", HeadsThenThreeBlocked, remark="layout"),
    Right("fused_key_first", FusedKeyFirst, remark="layout|order"),
    Right("fused_key_value", FusedKeyValue),
    Right("fused_parameter", FusedParameter),
    Right("fused_grouped", FusedGrouped),
    Right("fused_one_key_head_causal", lambda: FusedGrouped(num_kv_heads=1, causal=True), remark="causal"),
]
