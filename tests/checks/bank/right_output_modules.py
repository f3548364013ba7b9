"""Right modules that differ in what they return, in the order of arguments, in dropout, or in what is around them."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tests.checks.bank.right_item import Right
from tests.checks.bank.right_mask_modules import Base


class Result(NamedTuple):
    output: torch.Tensor
    weights: torch.Tensor


class Returns(Base):
    """The output and the weights, packed in one way or another."""

    def __init__(self, d_model=16, n_heads=4, how="pair"):
        super().__init__(d_model, n_heads)
        self.how = how

    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        weights = s.softmax(-1)
        output = self.merge(weights, value)
        return {
            "pair": (output, weights),
            "list": [output, weights],
            "weights first": (weights, output),
            "three": (output, weights, None),
            "none": (output, None),
            "dict": {"output": output, "attention": weights},
            "named": Result(output, weights),
            "averaged": (output, weights.mean(dim=1)),
        }[self.how]


class KeepsWeights(Base):
    """The last weights are kept for a picture; nothing reads them."""

    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        if mask is not None:
            s = s.masked_fill(mask == 0, -1e9)
        self.attention_weights = s.softmax(-1)
        self.calls = getattr(self, "calls", 0) + 1
        return self.merge(self.attention_weights, value)


class ValueFirst(Base):
    def forward(self, value, key, query, mask=None):
        s = self.scores(query, key)
        if mask is not None:
            s = s.masked_fill(mask == 0, float("-1e20"))
        return self.merge(s.softmax(dim=3), value)


class KeyFirst(Base):
    def forward(self, key, query, value, mask=None):
        s = self.scores(query, key)
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf"))
        return self.merge(s.softmax(dim=3), value)


class MaskSecond(Base):
    def forward(self, x, mask, context=None):
        context = x if context is None else context
        s = self.scores(x, context)
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf"))
        return self.merge(s.softmax(dim=3), context)


class Memory(Base):
    """Queries from one stream, keys and values from another; always two inputs."""

    def forward(self, tgt, memory, memory_mask=None):
        s = self.scores(tgt, memory)
        if memory_mask is not None:
            s = s.masked_fill(~memory_mask, float("-inf"))
        return self.merge(s.softmax(dim=3), memory)


class Drops(Base):
    """Dropout of the weights, written in several right ways, and one on the output if asked for."""

    def __init__(self, d_model=16, n_heads=4, p=0.3, how="module", residual=False):
        super().__init__(d_model, n_heads)
        self.p, self.how = p, how
        self.attn_dropout = nn.Dropout(p) if how == "module" else None
        self.resid_dropout = nn.Dropout(p) if residual else nn.Identity()

    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        w = F.softmax(s, -1)
        if self.how == "module":
            w = self.attn_dropout(w)
        elif self.how == "function":
            w = F.dropout(w, p=self.p, training=self.training)
        elif self.training:
            w = w * (torch.rand_like(w) >= self.p) / (1 - self.p)
        return self.resid_dropout(self.merge(w, value))


class DropsSdpa(Base):
    def __init__(self, d_model=16, n_heads=4, dropout=0.2):
        super().__init__(d_model, n_heads)
        self.dropout = dropout

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for w, x in ((self.W_Q, query), (self.W_K, key), (self.W_V, value))
        )
        p = self.dropout if self.training else 0.0
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.W_O(x.transpose(1, 2).flatten(2))


class Sublayer(Base):
    """Attention with the residual and the normalisation of the first transformer around it."""

    def __init__(self, d_model=16, n_heads=4, pre=False):
        super().__init__(d_model, n_heads)
        self.pre = pre
        self.layer_norm, self.dropout = nn.LayerNorm(d_model), nn.Dropout(0.1)

    def forward(self, x, mask=None):
        y = self.layer_norm(x) if self.pre else x
        s = self.scores(y, y)
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        y = x + self.dropout(self.merge(s.softmax(-1), y))
        return y if self.pre else self.layer_norm(y)


class Rotary(nn.Module):
    """Queries and keys are turned by their positions; neighbours are paired, or the two halves."""

    def __init__(self, dim=16, n_heads=2, halves=False, causal=False):
        super().__init__()
        self.n_heads, self.head_dim, self.halves, self.causal = n_heads, dim // n_heads, halves, causal
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.register_buffer("inv_freq", 1e4 ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim), False)

    def turn(self, x):
        angles = torch.outer(torch.arange(x.size(1), dtype=x.dtype), self.inv_freq.to(x.dtype))[None, :, None, :]
        if self.halves:
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)
        a, b = x[..., 0::2], x[..., 1::2]
        turned = torch.stack([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], dim=-1)
        return turned.flatten(-2)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        q, k = self.turn(q), self.turn(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.wo(o.transpose(1, 2).flatten(2))


class Cached(Base):
    """A cache is used only when it is handed in, and returned beside the output."""

    def forward(self, x, past=None, use_cache=False):
        k, v = self.W_K(x), self.W_V(x)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=1), torch.cat([past[1], v], dim=1)
        q, *kv = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in (self.W_Q(x), k, v))
        s = q @ kv[0].mT / math.sqrt(self.d_head)
        n, m = s.shape[-2:]
        s = s.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(m - n), -torch.inf)
        out = self.W_O((s.softmax(-1) @ kv[1]).transpose(1, 2).flatten(2))
        return (out, (k, v)) if use_cache else out


class Outer(nn.Module):
    """The attention is a child of the candidate, which passes everything on."""

    def __init__(self, embed_dim=16, num_heads=4):
        super().__init__()
        self.inner = DropsSdpa(embed_dim, num_heads)

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


PACKED = ["pair", "list", "weights first", "three", "none", "dict", "named", "averaged"]
ITEMS = [
    *(Right(f"packs_{how.replace(' ', '_')}", lambda how=how: Returns(how=how)) for how in PACKED),
    Right("keeps_weights", KeepsWeights),
    Right("value_first", ValueFirst),
    Right("key_first", KeyFirst),
    Right("mask_second", MaskSecond),
    Right("memory", Memory),
    Right("dropout_module", Drops),
    Right("dropout_function", lambda: Drops(how="function")),
    Right("dropout_by_hand", lambda: Drops(p=0.5, how="hand")),
    Right("dropout_residual_too", lambda: Drops(p=0.1, residual=True)),
    Right("dropout_sdpa", DropsSdpa),
    Right("sublayer_post_norm", Sublayer, remark="residual"),
    Right("sublayer_pre_norm", lambda: Sublayer(pre=True), remark="residual|norm"),
    Right("rotary_neighbours", Rotary, remark="position"),
    Right("rotary_halves", lambda: Rotary(halves=True), remark="position"),
    Right("rotary_causal", lambda: Rotary(causal=True, halves=True), remark="position|causal"),
    Right("cached", Cached, remark="causal"),
    Right("outer", Outer, {"num_heads": 4}),
]
