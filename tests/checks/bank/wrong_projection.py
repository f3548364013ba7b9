"""Modules that leave a projection out, lose its bias, or swap queries and keys."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong("queries_keys_swapped", relabelled=True, size=(32, 4), said="the scores are k q^T: rows belong to keys")
class ScoresTransposed(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.key = nn.Linear(n_embd, n_embd)
        self.query = nn.Linear(n_embd, n_embd)
        self.value = nn.Linear(n_embd, n_embd)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = self.query(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = F.softmax(k @ q.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)
        return self.proj((att @ v).transpose(1, 2).reshape(B, T, C))


@wrong(
    "queries_keys_swapped",
    relabelled=True,
    size=(24, 2),
    said="einsum with the two position letters exchanged, then a softmax over the last axis",
)
class EinsumLettersSwapped(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(num_heads, d_model, d_model // num_heads) / d_model**0.5)
        self.W_K = nn.Parameter(torch.randn(num_heads, d_model, d_model // num_heads) / d_model**0.5)
        self.W_V = nn.Parameter(torch.randn(num_heads, d_model, d_model // num_heads) / d_model**0.5)
        self.W_O = nn.Parameter(torch.randn(num_heads, d_model // num_heads, d_model) / d_model**0.5)

    def forward(self, x):
        q = torch.einsum("bpe,hed->bhpd", x, self.W_Q)
        k = torch.einsum("bpe,hed->bhpd", x, self.W_K)
        v = torch.einsum("bpe,hed->bhpd", x, self.W_V)
        pattern = (torch.einsum("bhqd,bhkd->bhkq", q, k) / q.size(-1) ** 0.5).softmax(-1)
        z = torch.einsum("bhqk,bhkd->bhqd", pattern, v)
        return torch.einsum("bhqd,hde->bqe", z, self.W_O)


class Annotated(nn.Module):
    """The list of four layers, with a hook for what goes through them."""

    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def used(self, query, key, value):
        return [layer(x) for layer, x in zip(self.linears, (query, key, value), strict=False)]

    def forward(self, query, key, value, mask=None):
        n = query.size(0)
        q, k, v = (x.view(n, -1, self.h, self.d_k).transpose(1, 2) for x in self.used(query, key, value))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        x = torch.matmul(scores.softmax(dim=-1), v)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k))


@wrong("no_query_projection", size=(4, 24), said="the query is cut into heads without going through its layer")
class QueryUnprojected(Annotated):
    def used(self, query, key, value):
        return [query, self.linears[1](key), self.linears[2](value)]


@wrong("no_key_projection", size=(2, 16), said="the key is cut into heads without going through its layer")
class KeyUnprojected(Annotated):
    def used(self, query, key, value):
        return [self.linears[0](query), key, self.linears[2](value)]


@wrong("no_value_projection", size=(4, 32), said="the value is cut into heads without going through its layer")
class ValueUnprojected(Annotated):
    def used(self, query, key, value):
        return [self.linears[0](query), self.linears[1](key), value]


@wrong("no_projections", size=(3, 24), said="query, key and value are cut into heads as they are")
class NothingProjected(Annotated):
    def used(self, query, key, value):
        return [query, key, value]


@wrong("keys_by_q_proj", size=(4, 16), said="keys go through the first layer of the list, as the queries do")
class SameLayerTwice(Annotated):
    def used(self, query, key, value):
        return [self.linears[0](query), self.linears[0](key), self.linears[2](value)]


@wrong("bias_ignored", size=(24, 4), said="the query layer is used by its weight alone")
class QueryBiasLost(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value):
        streams = (query @ self.q_proj.weight.T, self.k_proj(key), self.v_proj(value))
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in streams)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@wrong("bias_ignored", size=(16, 2), said="the output's bias is made and never added")
class OutputBiasLost(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        for role in ("q", "k", "v", "o"):
            self.register_parameter(f"w_{role}", nn.Parameter(torch.randn(d_model, d_model) / d_model**0.5))
            self.register_parameter(f"b_{role}", nn.Parameter(torch.randn(d_model) * 0.3))

    def forward(self, x):
        B, T, E = x.shape
        q, k, v = x @ self.w_q + self.b_q, x @ self.w_k + self.b_k, x @ self.w_v + self.b_v
        q, k, v = (t.view(B, T, self.n_heads, -1).transpose(1, 2) for t in (q, k, v))
        w = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(E // self.n_heads), dim=-1)
        return (w @ v).transpose(1, 2).reshape(B, T, E) @ self.w_o


@wrong("query_added", size=(32, 4), said="the layer adds its own input to its output")
class ResidualInside(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (
            layer(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if attention_mask is not None:
            scores = scores + attention_mask
        context = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.dense(context) + hidden_states
