"""The third bank: twenty wrong ones, written before any check was run on them, mended after that."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from .item import Item, collector

THIRD_WRONG: list[Item] = []
wrong = collector(THIRD_WRONG)


@wrong("scale_twice", also=("scale_by_d",), said="q is scaled, and the fused kernel scales again", size=(24, 4))
class VisionAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q * self.scale, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


@wrong("scale_by_d", said="both q and k get the root, not the fourth root", size=(16, 2))
class SpeechAttention(nn.Module):
    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.query, self.value, self.out = (nn.Linear(n_state, n_state) for _ in range(3))
        self.key = nn.Linear(n_state, n_state, bias=False)

    def forward(self, x, xa=None, mask=None):
        source = x if xa is None else xa
        q, k, v = self.query(x), self.key(source), self.value(source)
        scale = (q.shape[-1] // self.n_head) ** -0.5
        q = q.view(*q.shape[:2], self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k
        if mask is not None:
            qk = qk + mask
        return self.out((F.softmax(qk, dim=-1) @ v).permute(0, 2, 1, 3).flatten(start_dim=2))


@wrong("mask_fill_zero", said="a node that is no neighbour gets the score 0")
def dense_graph_attention(q, k, v, mask):
    e = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    e = torch.where(mask > 0, e, torch.zeros_like(e))
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(e, dim=-1), v)


@wrong("weights_transposed", said="the letters of queries and keys are exchanged in the second einsum")
def letters_exchanged(q, k, v):
    a = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5, -1)
    return torch.einsum("bhqk,bqhd->bkhd", a, v)


@wrong("query_tokens_among_keys", said="the context is laid behind the queries' own tokens, as in a resampler",
       size=(20, 4))  # fmt: skip
class Resampler(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, context):
        q = self.to_q(x)
        k, v = self.to_kv(torch.cat((x, context), dim=1)).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        sim = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        return self.to_out((sim.softmax(-1) @ v).transpose(1, 2).flatten(2))


@wrong("keeps_state", said="keys of earlier calls stay in a list", size=(12, 3))
class Streaming(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.past = n_heads, []
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        self.past = [*[(a, b) for a, b in self.past if len(a) == len(k)][-2:], (k, v)]
        k, v = (torch.cat(list(t), 2) for t in zip(*self.past, strict=True))
        return self.wo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@wrong("mask_fill_weak", said="the logarithm of the mask with a hundredth added")
def log_of_mask(q, k, v, mask=None):
    s = q.matmul(k.transpose(2, 3)).div(math.sqrt(k.size(3)))
    if mask is not None:
        s = s + torch.log(mask.to(s.dtype) + 0.01)
    return F.softmax(s, 3).matmul(v)


@wrong("mask_inverted", said="key_padding_mask gets the mask as it is, True = may attend", size=(12, 4),
       stated={"mask": "may attend"})  # fmt: skip
class WrapsTorch(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(hidden, heads, batch_first=True)

    def forward(self, x, mask=None):
        return self.mha(x, x, x, key_padding_mask=mask, need_weights=False)[0]


@wrong("mask_head_order", said="heads are folded behind samples, the mask is repeated before them", size=(12, 3))
class Folded(nn.Module):
    def __init__(self, units, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.Wq, self.Wk, self.Wv, self.Wo = (nn.Linear(units, units) for _ in range(4))

    def fold(self, t):
        B, L = t.shape[:2]
        return t.reshape(B, L, self.num_heads, -1).permute(0, 2, 1, 3).reshape(B * self.num_heads, L, -1)

    def forward(self, q, k, v, mask=None):
        B, T, E = q.shape
        q, k, v = self.fold(self.Wq(q)), self.fold(self.Wk(k)), self.fold(self.Wv(v))
        zero = q.new_zeros(1)
        s = torch.baddbmm(zero, q, k.transpose(1, 2), beta=0, alpha=1 / math.sqrt(q.shape[-1]))
        if mask is not None:
            s.masked_fill_(mask.repeat(self.num_heads, 1, 1).logical_not(), -1e20)
        o = torch.bmm(torch.softmax(s, 2), v).reshape(B, self.num_heads, T, -1)
        return self.Wo(o.permute(0, 2, 1, 3).reshape(B, T, E))


@wrong("softmax_over_queries", said="dim=1 of folded scores (B H, T, S)")
def folded_dim_one(query, key, value):
    B, H, T, D = query.shape
    q, k, v = (t.reshape(B * H, t.shape[2], D) for t in (query, key, value))
    w = nn.Softmax(dim=1)(torch.bmm(q, k.permute(0, 2, 1)) / D**0.5)
    return torch.bmm(w, v).view(B, H, T, D)


@wrong("gqa_tiled_heads", said="the new axis comes before the heads", size=(24, 6, 2), relabelled=True)
class GroupedQuery(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, d = n_heads, n_kv_heads, dim // n_heads
        self.q_proj, self.o_proj = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(dim, n_kv_heads * d, bias=False) for _ in range(2))

    def more(self, t):
        n = self.n_heads // self.n_kv_heads
        return t[:, None].expand(t.shape[0], n, *t.shape[1:]).reshape(t.shape[0], self.n_heads, *t.shape[2:])

    def forward(self, hidden_states, attention_mask=None):
        B, T, E = hidden_states.shape
        q = self.q_proj(hidden_states).view(B, T, self.n_heads, -1).transpose(1, 2)
        k, v = (f(hidden_states).view(B, T, self.n_kv_heads, -1).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        o = F.scaled_dot_product_attention(q, self.more(k), self.more(v), attn_mask=attention_mask)
        return self.o_proj(o.transpose(1, 2).reshape(B, T, E))


@wrong("diagonal_masked", said="triu from the diagonal on", size=(12, 2))
class CharModel(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.attn, self.proj = nn.Linear(n_embd, 3 * n_embd, bias=False), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.attn(x).chunk(3, 2))
        future = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=0)
        w = (q @ k.mT / math.sqrt(C // self.n_head)).masked_fill(future, -1e9).softmax(-1)
        return self.proj((w @ v).transpose(1, 2).reshape(B, T, C))


@wrong("scale_by_embed_dim", said="one head after another, each divided by the root of the whole width", size=(16, 4))
class HeadByHead(nn.Module):
    class One(nn.Module):
        def __init__(self, n_embd, head_size):
            super().__init__()
            self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))

        def forward(self, x):
            T, C = x.shape[1:]
            w = self.query(x) @ self.key(x).transpose(-2, -1) * C**-0.5
            w = w.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))
            return w.softmax(-1) @ self.value(x)

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.heads = nn.ModuleList([self.One(n_embd, n_embd // n_head) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


@wrong("linear_attention", also=("no_exp",), said="a feature map of q and k stands in the place of the softmax")
def kernelised(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    total = (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)
    return q @ (k.mT @ v) / total


@wrong("dropout_in_eval", said="F.dropout of q drops by default", size=(12, 3))
class DropsQueries(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (self.q(x), self.k(x), self.v(x)))
        a = F.dropout(q, 0.1) @ k.mT / q.shape[-1] ** 0.5
        return self.o((a.softmax(-1) @ v).transpose(1, 2).flatten(2))


@wrong("gradient_cut", said="the weights are computed under no_grad, as for a picture of them", size=(12, 3))
class Pictured(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.lq, self.lk, self.lv, self.lo = (nn.Linear(dim, dim) for _ in range(4))

    @torch.no_grad()
    def weights(self, q, k):
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)

    def forward(self, query, key, value):
        q, k, v = (
            f(t).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f, t in ((self.lq, query), (self.lk, key), (self.lv, value))
        )
        return self.lo((self.weights(q, k) @ v).transpose(1, 2).flatten(2))


@wrong("split_without_transpose", also=("split_other",), said="the values alone are viewed as heads", size=(12, 3))
class ValuesViewed(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.query_layer, self.key_layer, self.value_layer = (nn.Linear(embed_dim, embed_dim) for _ in range(3))
        self.fc_out = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, keys, values, mask=None):
        N, T, S = len(query), query.shape[1], keys.shape[1]
        q = self.query_layer(query).reshape(N, T, self.num_heads, self.head_dim)
        k = self.key_layer(keys).reshape(N, S, self.num_heads, self.head_dim)
        v = self.value_layer(values).reshape(N, self.num_heads, S, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k) / self.head_dim**0.5
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        out = torch.einsum("nhqk,nhkd->nqhd", energy.softmax(dim=3), v)
        return self.fc_out(out.reshape(N, T, -1))


@wrong("maximum_over_queries", said="the maximum that is taken off is that of each key, over the queries")
def stable_along_queries(q, k, v):
    s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    p = torch.exp(s - s.max(dim=-2, keepdim=True).values)
    return (p / p.sum(dim=-1, keepdim=True)) @ v


@wrong("output_bias_per_head", said="every head's part of the output map brings the bias along", size=(12, 3))
class SlicedOutput(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_lin, self.k_lin, self.v_lin, self.out_lin = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).chunk(self.num_heads, -1) for f in (self.q_lin, self.k_lin, self.v_lin))
        parts = self.out_lin.weight.chunk(self.num_heads, 1)
        y = 0
        for a, b, c, w in zip(q, k, v, parts, strict=True):
            y = y + F.linear(F.scaled_dot_product_attention(a, b, c), w, self.out_lin.bias)
        return y


@wrong("no_scale", "mask_after_softmax", said="raw products, and the mask times the weights", size=(15, 5))
class Rough(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.maps = nn.Linear(size, 3 * size)
        self.final = nn.Linear(size, size)

    def forward(self, inputs, mask=None):
        q, k, v = self.maps(inputs).view(*inputs.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = torch.softmax(q @ k.transpose(2, 3), dim=-1)
        if mask is not None:
            w = w * mask
        return self.final((w @ v).transpose(1, 2).flatten(2))
