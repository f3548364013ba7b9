"""Right modules that differ in the mask they take: its meaning, its type, its axes, its name and its place."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checks.bank.right_item import Right


class Base(nn.Module):
    """Four linear layers with the names of the paper."""

    def __init__(self, d_model: int = 16, n_heads: int = 4, bias: bool = True):
        super().__init__()
        self.d_model, self.n_heads, self.d_head = d_model, n_heads, d_model // n_heads
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Linear(d_model, d_model, bias=bias) for _ in range(4))

    def scores(self, query, key):
        split = (self.n_heads, self.d_head)
        q, k = self.W_Q(query).unflatten(-1, split), self.W_K(key).unflatten(-1, split)
        return torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(self.d_head)

    def merge(self, weights, value):
        v = self.W_V(value).unflatten(-1, (self.n_heads, self.d_head))
        return self.W_O(torch.einsum("bhts,bshd->bthd", weights, v).flatten(-2))


class Blocked(Base):
    """True is hidden; four axes."""

    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        if mask is not None:
            s.masked_fill_(mask, float("-inf"))
        return self.merge(s.softmax(-1), value)


class Padding(Base):
    """(B, S), True is padding."""

    def forward(self, query, key, value, key_padding_mask=None):
        s = self.scores(query, key)
        if key_padding_mask is not None:
            s = s.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
        return self.merge(s.softmax(-1), value)


class VisibleTokens(Base):
    """(B, S), 1 is a token and 0 is padding, turned into a bias inside."""

    def forward(self, x, attention_mask=None):
        s = self.scores(x, x)
        if attention_mask is not None:
            extended = attention_mask[:, None, None, :].to(s.dtype)
            s = s + (1.0 - extended) * torch.finfo(s.dtype).min
        return self.merge(F.softmax(s, dim=-1), x)


class Integers(Base):
    """(B, T, S) of ones and zeros."""

    def forward(self, q, k, v, mask=None):
        s = self.scores(q, k)
        if mask is not None:
            s = s.masked_fill(mask.unsqueeze(1) == 0, -1e20)
        return self.merge(s.softmax(-1), v)


class Shared(Base):
    """(T, S), shared by all samples and heads; two axes are insisted upon."""

    def forward(self, query, key, value, attn_mask=None):
        s = self.scores(query, key)
        if attn_mask is not None:
            if attn_mask.dim() != 2 or attn_mask.shape != s.shape[-2:]:
                raise ValueError(f"attn_mask must be of shape {tuple(s.shape[-2:])}, got {tuple(attn_mask.shape)}")
            s = s.masked_fill(~attn_mask, float("-inf"))
        return self.merge(s.softmax(-1), value)


class EveryHead(Base):
    """(B, H, T, S) in full; nothing is broadcast."""

    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        if mask is not None:
            if mask.shape != s.shape:
                raise ValueError(f"expected a mask of shape {tuple(s.shape)}, got {tuple(mask.shape)}")
            s = torch.where(mask, s, torch.tensor(-torch.inf, dtype=s.dtype))
        return self.merge(s.softmax(-1), value)


class Bias(Base):
    """A float bias is added; nothing else is understood."""

    def forward(self, query, key, value, *, attn_bias=None):
        s = self.scores(query, key)
        if attn_bias is not None:
            if not attn_bias.is_floating_point():
                raise TypeError("attn_bias must be floating point")
            s = s + attn_bias
        return self.merge(s.softmax(-1), value)


class KeywordOnly(Base):
    """The mask goes by name only."""

    def forward(self, x, context=None, *, mask=None):
        context = x if context is None else context
        s = self.scores(x, context)
        if mask is not None:
            s = torch.where(mask, s, s.new_tensor(float("-inf")))
        return self.merge(torch.softmax(s, -1), context)


class CausalFlag(Base):
    """A flag hides the future; it is off unless asked for."""

    def forward(self, x, is_causal=False):
        s = self.scores(x, x)
        if is_causal:
            s = s + torch.full_like(s, float("-inf")).triu(1)
        return self.merge(s.softmax(-1), x)


class MaskAndFlag(Base):
    """A mask, and a flag beside it."""

    def forward(self, query, key, value, mask=None, causal: bool = False):
        s = self.scores(query, key)
        keep = torch.ones(s.shape[-2:], dtype=torch.bool)
        if causal:
            keep = keep.tril(s.shape[-1] - s.shape[-2])
        if mask is not None:
            keep = keep & mask
        return self.merge(s.masked_fill(~keep, float("-inf")).softmax(-1), value)


class TwoMasks(Base):
    """A mask over pairs and a mask of padding; True is hidden in both."""

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        s = self.scores(query, key)
        if attn_mask is not None:
            s = s.masked_fill(attn_mask, float("-inf"))
        if key_padding_mask is not None:
            s = s.masked_fill(key_padding_mask.unsqueeze(1).unsqueeze(2), float("-inf"))
        return self.merge(s.softmax(-1), value)


class CausalWithPadding(Base):
    """The future is hidden always, and padding if told."""

    def forward(self, x, pad_mask=None):
        s = self.scores(x, x)
        n = x.shape[1]
        s = s.masked_fill(torch.triu(torch.ones(n, n, dtype=torch.bool), 1), -1e9)
        if pad_mask is not None:
            s = s.masked_fill(pad_mask[:, None, None, :] == 0, -1e9)
        return self.merge(s.softmax(-1), x)


class CausalIndices(Base):
    """The future is hidden by comparing positions, the last query with the last key."""

    def forward(self, x):
        s = self.scores(x, x)
        rows, columns = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])[None, :]
        return self.merge(s.masked_fill(columns > rows, -math.inf).softmax(-1), x)


class ExpThenMask(Base):
    """Masked after the exponential and before the sum, which is the same thing."""

    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        w = torch.exp(s - s.max(dim=-1, keepdim=True).values)
        if mask is not None:
            w = w * mask
        return self.merge(w / w.sum(dim=-1, keepdim=True), value)


class AnyMask(Base):
    """Two, three or four axes; bool or float."""

    def forward(self, query, key=None, value=None, mask=None):
        key = query if key is None else key
        value = key if value is None else value
        s = self.scores(query, key)
        if mask is not None:
            if mask.dim() == 2:
                mask = mask[None, None]
            elif mask.dim() == 3:
                mask = mask[:, None]
            s = s.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else s + mask
        return self.merge(s.softmax(-1), value)


class PickedKeys(Base):
    """(B, S), True is a token: each sample attends to the keys picked out for it."""

    def forward(self, query, key, value, mask=None):
        if mask is None:
            return self.merge(self.scores(query, key).softmax(-1), value)
        rows = []
        for q, k, v, m in zip(query, key, value, mask, strict=True):
            rows.append(self.merge(self.scores(q[None], k[m][None]).softmax(-1), v[m][None]))
        return torch.cat(rows)


ITEMS = [
    Right("mask_blocked", Blocked, remark="blocked|hidden"),
    Right("mask_padding_blocked", Padding, remark="blocked|hidden"),
    Right("mask_visible_tokens", VisibleTokens),
    Right("mask_integers", Integers),
    Right("mask_shared", Shared),
    Right("mask_every_head", EveryHead),
    Right("mask_bias", Bias),
    Right("mask_keyword_only", KeywordOnly),
    Right("mask_causal_flag", CausalFlag),
    Right("mask_and_flag", MaskAndFlag),
    Right("mask_two", TwoMasks, remark="blocked|hidden"),
    Right("mask_causal_with_padding", CausalWithPadding, remark="causal"),
    Right("mask_causal_indices", CausalIndices, remark="causal"),
    Right("mask_exp_then_mask", ExpThenMask),
    Right("mask_any", AnyMask),
    Right("mask_picked_keys", PickedKeys),
    Right("mask_blocked_stated", Blocked, {"mask": "blocked", "mask_axes": "B 1 T S", "num_heads": 4}),
    Right("mask_bias_stated", Bias, {"mask": "additive"}),
]
