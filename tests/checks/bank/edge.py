"""Candidates that are right wherever a row may attend to something, and differ in rows that may attend to nothing."""

import math

import torch
import torch.nn.functional as F

from tests.checks.bank.right_item import Right
from tests.checks.bank.right_mask_modules import Base


def empty_nan(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ v


def empty_nan_additive(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        s = s + mask
    return s.softmax(-1) @ v


def empty_mean_least(q, k, v, mask=None):
    """Scores are replaced by the least number: an empty row is the mean of all values."""
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        s = torch.where(mask, s, torch.finfo(s.dtype).min)
    return s.softmax(-1) @ v


def empty_unmasked(q, k, v, mask=None):
    """A bias of -1e9 is added to every score of an empty row, which therefore attends as if nothing were hidden."""
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        s = s + (~mask) * -1e9
    return s.softmax(-1) @ v


def empty_zeros(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is None:
        return s.softmax(-1) @ v
    w = s.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.nan_to_num(w, nan=0.0) @ v


def empty_zeros_by_total(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    e = torch.exp(s - s.amax(-1, keepdim=True))
    if mask is not None:
        e = e * mask
    return e @ v / e.sum(-1, keepdim=True).clamp_min(torch.finfo(e.dtype).tiny)


def empty_first_key(q, k, v, mask=None):
    """An empty row is given the first key, so that nothing is undefined."""
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        mask = mask.expand(s.shape).clone()
        mask[..., 0] |= ~mask.any(-1)
        s = s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ v


def empty_raises(q, k, v, mask=None):
    if mask is not None and not mask.any(-1).all():
        raise ValueError("every query must be allowed to attend to at least one key")
    return F.scaled_dot_product_attention(q, k, v, mask)


class EmptyNaN(Base):
    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf"))
        return self.merge(F.softmax(s, dim=-1), value)


class EmptyNaNPadding(Base):
    """(B, S), True is a token: a sample of padding alone is NaN throughout."""

    def forward(self, x, mask=None):
        s = self.scores(x, x)
        if mask is not None:
            s = s.masked_fill(~mask[:, None, None], float("-inf"))
        return self.merge(F.softmax(s, dim=-1), x)


class EmptyMean(Base):
    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        if mask is not None:
            s = s.masked_fill(mask == 0, -1e9)
        return self.merge(F.softmax(s, dim=-1), value)


class EmptyMeanHalf(Base):
    """-1e4 everywhere, which half precision can hold."""

    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        if mask is not None:
            s = s.masked_fill(mask == 0, -1e4)
        return self.merge(F.softmax(s, dim=-1), value)


class EmptyOutputBias(Base):
    """An empty row has no value at all, so what is left is the output layer's bias."""

    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        if mask is None:
            return self.merge(s.softmax(-1), value)
        w = s.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.merge(w.masked_fill(~mask, 0.0), value)


class EmptyZeros(Base):
    """An empty row is zero after the output layer too."""

    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        if mask is None:
            return self.merge(s.softmax(-1), value)
        w = s.masked_fill(~mask, float("-inf")).softmax(-1).nan_to_num()
        some = mask.expand(s.shape).any(-1).all(1)
        return self.merge(w, value) * some[..., None]


ITEMS = [
    Right("empty_nan", lambda: empty_nan, remark="nan"),
    Right("empty_nan_additive", lambda: empty_nan_additive, remark="nan"),
    Right("empty_mean_least", lambda: empty_mean_least, remark="mean|average"),
    Right("empty_unmasked", lambda: empty_unmasked, remark="nothing"),
    Right("empty_zeros", lambda: empty_zeros),
    Right("empty_zeros_by_total", lambda: empty_zeros_by_total),
    Right("empty_first_key", lambda: empty_first_key, remark="nothing"),
    Right("empty_raises", lambda: empty_raises, remark="nothing|raises"),
    Right("module_empty_nan", EmptyNaN, remark="nan"),
    Right("module_empty_nan_class", lambda: EmptyNaN, remark="nan"),
    Right("module_empty_nan_padding", EmptyNaNPadding, remark="nan"),
    Right("module_empty_mean", EmptyMean, remark="mean|average"),
    Right("module_empty_mean_half", EmptyMeanHalf, remark="mean|average"),
    Right("module_empty_output_bias", EmptyOutputBias),
    Right("module_empty_zeros", EmptyZeros),
]
