"""Functions that read a mask, or make one, in a wrong way."""

import math

import torch
import torch.nn.functional as F

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong("mask_inverted", stated={"mask": "may attend"}, said="masked_fill with the mask itself")
def fills_true(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        s = s.masked_fill(mask, -1e9)
    return s.softmax(-1) @ v


@wrong(
    "mask_inverted",
    stated={"mask": "blocked"},
    said="a mask of hidden keys goes to F.scaled_dot_product_attention as it is",
)
def blocked_passed_on(query, key, value, mask=None):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


@wrong("mask_after_softmax", said="weights are multiplied by the mask")
def weights_times_mask(q, k, v, mask=None):
    w = torch.softmax(torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5, dim=-1)
    if mask is not None:
        w = w * mask
    return torch.einsum("bhts,bhsd->bhtd", w, v)


@wrong("bool_mask_added", stated={"mask": "may attend"}, said="(B, T, D), the mask is converted to float and added")
def mask_as_float(q, k, v, mask=None):
    s = q @ k.transpose(1, 2) / math.sqrt(q.size(-1))
    if mask is not None:
        s = s + mask.to(s.dtype)
    return s.softmax(dim=-1) @ v


@wrong("mask_fill_zero", said="hidden scores become 0, which still has a weight")
def zeros_for_hidden(q, k, v, mask=None):
    s = q @ k.mT * q.size(-1) ** -0.5
    if mask is not None:
        s = torch.where(mask, s, torch.zeros_like(s))
    return torch.softmax(s, dim=-1) @ v


@wrong("mask_fill_weak", said="hidden scores are lowered by 5")
def five_lower(q, k, v, mask=None):
    s = q @ k.mT * q.size(-1) ** -0.5
    if mask is not None:
        s = s - 5.0 * ~mask
    return torch.softmax(s, dim=-1) @ v


@wrong("mask_ignored", said="masked_fill is called for its effect and has none")
def fill_without_underscore(q, k, v, mask=None):
    scores = q.matmul(k.transpose(-1, -2)).div(math.sqrt(q.size(-1)))
    if mask is not None:
        scores.masked_fill(~mask, -1e9)
    return scores.softmax(dim=-1).matmul(v)


@wrong("mask_transposed", said="the mask is turned before it is used")
def turned_mask(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.mT)


@wrong("mask_first_sample", said="mask[:1] is used for all samples")
def mask_of_sample_zero(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:1])


@wrong(
    "mask_additive_sign", also=("returns_nan",), stated={"mask": "additive"}, said="a bias of 0 and -inf is subtracted"
)
def bias_subtracted(q, k, v, attn_bias=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if attn_bias is not None:
        s = s - attn_bias
    return s.softmax(-1) @ v


@wrong("mask_times_inf", also=("returns_nan",), said="inf times a 0/1 mask of hidden keys, 0 times inf is NaN")
def inf_times_zero(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        s = s - math.inf * (~mask).to(s.dtype)
    return s.softmax(-1) @ v


@wrong("causal_beside_mask", stated={"causal": False}, said="the future is hidden too, whether there is a mask or not")
def always_causal(q, k, v, mask=None):
    allowed = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed if mask is None else allowed & mask)


@wrong(
    "fill_value_overflows_half",
    stated={"half": True},
    said="-1e9 is no number of float16, masked_fill refuses it there",
)
def minus_billion(q, k, v, mask=None):
    s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        s = s.masked_fill(mask == 0, -1e9)
    return F.softmax(s, dim=-1) @ v


@wrong("diagonal_masked", said="causal by triu_indices with offset 0, row 0 is NaN")
def triu_indices_of_zero(q, k, v):
    s = q @ k.mT / math.sqrt(q.size(-1))
    row, col = torch.triu_indices(s.size(-2), s.size(-1))
    s[..., row, col] = float("-inf")
    return s.softmax(-1) @ v


@wrong("future_only", stated={"causal": True}, said="causal with the comparison the wrong way round")
def comparison_turned(q, k, v):
    t = torch.arange(q.size(-2))
    s = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(t[:, None] > t[None, :], float("-inf"))
    return s.softmax(-1) @ v


@wrong("sees_one_ahead", said="causal by triu with diagonal=2")
def triu_of_two(q, k, v):
    hidden = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).triu(2)
    return (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(hidden, -1e9).softmax(-1) @ v


@wrong(
    "causal_top_left",
    stated={"causal": True},
    said="fewer queries than keys: the last queries are masked as if they were the first",
)
def is_causal_with_cache(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
