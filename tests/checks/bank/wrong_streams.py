"""Modules that project in a wrong way, at the output or from the wrong stream."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong("no_output_projection", size=(32, 4), said="the output layer is made and never called")
class OutputLayerUnused(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        parts = []
        for q, k, v in zip(
            *(p(x).chunk(self.num_heads, -1) for p in (self.q_proj, self.k_proj, self.v_proj)), strict=True
        ):
            s = q @ k.mT / math.sqrt(q.size(-1))
            if mask is not None:
                s = s.masked_fill(~mask[:, 0], float("-inf"))
            parts.append(s.softmax(dim=-1) @ v)
        return torch.cat(parts, dim=-1)


@wrong("no_output_projection", said="fused layer, heads merged and returned; c_proj is forgotten")
class ForgottenCProj(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).contiguous().view(B, T, C)


@wrong(
    "output_projection_before_merge",
    relabelled=True,
    size=(24, 4),
    said="the output layer is applied to the values before they are cut into heads",
)
class OutputLayerOnValues(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x):
        streams = (self.query(x), self.key(x), self.output(self.value(x)))
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in streams)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@wrong("cross_reads_query_stream", size=(32, 4), said="the context is passed in and never read")
class ContextUnread(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context=None):
        context = x
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.reshape(*t.shape[:2], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        attn = torch.einsum("bhid,bhjd->bhij", q * self.scale, k).softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class Four(nn.Module):
    """Four layers; what each is fed is up to the class below it."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)

    def attend(self, q, k, v, mask=None):
        q, k, v = (t.view(*t.shape[:2], self.n_heads, self.d_head).transpose(1, 2) for t in (q, k, v))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_head)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        out = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.wo(out.transpose(1, 2).reshape(out.size(0), out.size(2), -1))


@wrong("keys_from_query", size=(16, 2), said="keys are projected from the query argument")
class KeysFromQuery(Four):
    def forward(self, query, key, value, mask=None):
        return self.attend(self.wq(query), self.wk(query), self.wv(value), mask)


@wrong("values_from_query", size=(24, 4), said="values are projected from the query argument")
class ValuesFromQuery(Four):
    def forward(self, query, key, value, mask=None):
        return self.attend(self.wq(query), self.wk(key), self.wv(query), mask)


@wrong("values_from_key", said="the value argument is ignored, values are projected from the keys' input")
class ValuesFromKey(Four):
    def forward(self, query, key, value, mask=None):
        return self.attend(self.wq(query), self.wk(key), self.wv(key), mask)


@wrong("queries_from_key", size=(32, 8), said="queries are projected from the key argument")
class QueriesFromKey(Four):
    def forward(self, query, key, value, mask=None):
        return self.attend(self.wq(key), self.wk(key), self.wv(value), mask)


@wrong("keys_by_q_proj", size=(16, 4), said="the query layer makes the keys too")
class KeysByQueryLayer(Four):
    def forward(self, x, mask=None):
        return self.attend(self.wq(x), self.wq(x), self.wv(x), mask)


@wrong("values_by_k_proj", size=(24, 3), said="the key layer makes the values too")
class ValuesByKeyLayer(Four):
    def forward(self, query, key, value, mask=None):
        return self.attend(self.wq(query), self.wk(key), self.wk(value), mask)


@wrong("queries_by_k_proj", size=(32, 4), said="the key layer makes the queries too")
class QueriesByKeyLayer(Four):
    def forward(self, query, key, value, mask=None):
        return self.attend(self.wk(query), self.wk(key), self.wv(value), mask)


@wrong("values_by_q_proj", size=(20, 2), said="the query layer makes the values too")
class ValuesByQueryLayer(Four):
    def forward(self, x):
        return self.attend(self.wq(x), self.wk(x), self.wq(x))


@wrong(
    "keys_by_v_proj",
    size=(24, 4),
    said="of the fused layer the third part is taken for keys and values, the second left",
)
class KeysByValueRows(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.randn(3 * embed_dim, embed_dim) / embed_dim**0.5)
        self.in_proj_bias = nn.Parameter(torch.randn(3 * embed_dim) * 0.1)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        q, _, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, v, v))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
