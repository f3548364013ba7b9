"""Right modules of three or four separate linear layers, as courses, papers' code and libraries write them."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checks.bank.right_item import Right


def plain_attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class Cloned(nn.Module):
    """Four copies of a layer in a list; the head count comes first; the weights are kept."""

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([copy.deepcopy(nn.Linear(d_model, d_model)) for _ in range(4)])
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        n = query.size(0)
        query, key, value = [
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        ]
        x, self.attn = plain_attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k)
        return self.linears[-1](x)


class Encoder(nn.Module):
    """An encoder's layer with an additive mask and long names."""

    def __init__(self, hidden_size=16, num_attention_heads=4, attention_probs_dropout_prob=0.1):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.all_head_size = num_attention_heads * self.attention_head_size
        self.query = nn.Linear(hidden_size, self.all_head_size)
        self.key = nn.Linear(hidden_size, self.all_head_size)
        self.value = nn.Linear(hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)
        self.dense = nn.Linear(self.all_head_size, hidden_size)

    def transpose_for_scores(self, x):
        return x.view(*x.size()[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None, output_attentions=False):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            scores = scores + attention_mask
        probs = self.dropout(nn.Softmax(dim=-1)(scores))
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        context = self.dense(context.view(*context.size()[:-2], self.all_head_size))
        return (context, probs) if output_attentions else (context,)


class Grouped(nn.Module):
    """Fewer heads of keys and values, repeated so that neighbours share; no biases."""

    def __init__(self, hidden_size=16, num_heads=4, num_kv_heads=2, how="interleave"):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, hidden_size // num_heads
        self.how = how
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    def repeat(self, x):
        n = self.num_heads // self.num_kv_heads
        if self.how == "interleave":
            return torch.repeat_interleave(x, n, dim=1)
        b, h, t, d = x.shape
        return x[:, :, None].expand(b, h, n, t, d).reshape(b, h * n, t, d)

    def forward(self, hidden_states, attention_mask=None):
        b, t, _ = hidden_states.size()
        q = self.q_proj(hidden_states).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        if self.how == "grouped queries":
            q = q.unflatten(1, (self.num_kv_heads, -1))
            s = torch.einsum("bgntd,bgsd->bgnts", q, k).flatten(1, 2) * self.head_dim**-0.5
        else:
            s = q @ self.repeat(k).transpose(2, 3) * self.head_dim**-0.5
        if attention_mask is not None:
            s = torch.where(attention_mask, s, float("-inf"))
        w = s.softmax(-1)
        if self.how == "grouped queries":
            o = torch.einsum("bgnts,bgsd->bgntd", w.unflatten(1, (self.num_kv_heads, -1)), v).flatten(1, 2)
        else:
            o = w @ self.repeat(v)
        return self.o_proj(o.transpose(1, 2).reshape(b, t, -1))


class ToOut(nn.Module):
    """An inner width of its own, an optional context, and an output layer in a Sequential."""

    def __init__(self, dim=16, heads=4, dim_head=6, dropout=0.1):
        super().__init__()
        inner = heads * dim_head
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        if mask is not None:
            dots = dots.masked_fill(~mask, -torch.finfo(dots.dtype).max)
        out = torch.einsum("b h i j, b h j d -> b h i d", dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class OneHead(nn.Module):
    def __init__(self, n_embd, head_size, causal, dropout):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        if causal:
            self.register_buffer("tril", torch.tril(torch.ones(32, 32)))
        self.causal, self.dropout = causal, nn.Dropout(dropout)

    def forward(self, x, mask=None):
        t = x.shape[1]
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        if self.causal:
            wei = wei.masked_fill(self.tril[:t, :t] == 0, float("-inf"))
        if mask is not None:
            wei = wei.masked_fill(mask == 0, float("-inf"))
        return self.dropout(F.softmax(wei, dim=-1)) @ v


class HeadList(nn.Module):
    """Each head is a module of its own; the heads are concatenated and projected."""

    def __init__(self, num_heads=4, head_size=4, n_embd=16, dropout=0.2):
        super().__init__()
        self.heads = nn.ModuleList([OneHead(n_embd, head_size, True, dropout) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([h(x) for h in self.heads], dim=-1)))


class HeadListMask(nn.Module):
    """The same without a triangle; the heads take a mask (B, T, S), and the head count is the list's length."""

    def __init__(self, n_embd=12, n_heads=3):
        super().__init__()
        self.heads = nn.ModuleList(OneHead(n_embd, n_embd // n_heads, False, 0.0) for _ in range(n_heads))
        self.proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x, mask=None):
        return self.proj(torch.cat([head(x, mask) for head in self.heads], -1))


class OwnValueWidth(nn.Module):
    """Heads of values are of another width than heads of keys; the formula is a module of its own."""

    class Formula(nn.Module):
        def __init__(self, temperature):
            super().__init__()
            self.temperature, self.dropout = temperature, nn.Dropout(0.1)

        def forward(self, q, k, v, mask=None):
            attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
            if mask is not None:
                attn = attn.masked_fill(mask == 0, -1e9)
            attn = self.dropout(F.softmax(attn, dim=-1))
            return torch.matmul(attn, v), attn

    def __init__(self, n_head=4, d_model=16, d_k=4, d_v=3):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.attention = self.Formula(temperature=d_k**0.5)

    def forward(self, q, k, v, mask=None):
        b, n = q.size(0), self.n_head
        q = self.w_qs(q).view(b, q.size(1), n, self.d_k).transpose(1, 2)
        k = self.w_ks(k).view(b, k.size(1), n, self.d_k).transpose(1, 2)
        v = self.w_vs(v).view(b, v.size(1), n, self.d_v).transpose(1, 2)
        if mask is not None:
            mask = mask.unsqueeze(1)
        out, attn = self.attention(q, k, v, mask=mask)
        return self.fc(out.transpose(1, 2).contiguous().view(b, out.size(2), -1)), attn


class HeadsOnBatch(nn.Module):
    """Heads are stacked on the batch axis, all samples of head 0 first; the mask is tiled to match."""

    def __init__(self, d_model=16, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.Q, self.K, self.V, self.O = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, queries, keys, values, mask=None):
        q = torch.cat(self.Q(queries).chunk(self.num_heads, dim=2), dim=0)
        k = torch.cat(self.K(keys).chunk(self.num_heads, dim=2), dim=0)
        v = torch.cat(self.V(values).chunk(self.num_heads, dim=2), dim=0)
        s = torch.bmm(q, k.permute(0, 2, 1)) / k.size(-1) ** 0.5
        if mask is not None:
            s = torch.where(mask.repeat(self.num_heads, 1, 1), s, torch.full_like(s, -(2.0**32) + 1))
        out = torch.bmm(s.softmax(2), v)
        return self.O(torch.cat(out.chunk(self.num_heads, dim=0), dim=2))


class ValidLengths(nn.Module):
    """Takes the number of visible keys of each sample in place of a mask."""

    def __init__(self, num_hiddens=16, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(num_hiddens, num_hiddens, bias=False) for _ in range(4))

    def forward(self, queries, keys, values, valid_lens=None):
        q, k, v = (
            w(x).reshape(x.shape[0], x.shape[1], self.num_heads, -1).permute(0, 2, 1, 3)
            for w, x in ((self.W_q, queries), (self.W_k, keys), (self.W_v, values))
        )
        s = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if valid_lens is not None:
            visible = torch.arange(s.shape[-1])[None, :] < valid_lens[:, None]
            s = s.masked_fill(~visible[:, None, None, :], -1e6)
        return self.W_o((s.softmax(-1) @ v).permute(0, 2, 1, 3).flatten(2))


ITEMS = [
    Right("cloned", lambda: Cloned(4, 16)),
    Right("cloned_class", lambda: Cloned),
    Right("encoder_additive", Encoder),
    Right("grouped_interleave", Grouped),
    Right("grouped_expand", lambda: Grouped(num_heads=4, num_kv_heads=1, how="expand")),
    Right("grouped_queries", lambda: Grouped(24, 6, 3, how="grouped queries")),
    Right("to_out", ToOut),
    Right("to_out_class", lambda: ToOut),
    Right("head_list_causal", HeadList, remark="causal"),
    Right("head_list_mask", HeadListMask),
    Right("own_value_width", OwnValueWidth),
    Right("heads_on_batch", HeadsOnBatch),
    Right("valid_lengths", ValidLengths),
]
