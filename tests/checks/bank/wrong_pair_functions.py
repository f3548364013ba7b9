"""Functions with two faults at once."""

import math

import torch
import torch.nn.functional as F

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong("no_scale", "mask_fill_zero", said="no division, and hidden scores become 1e-9")
def unscaled_and_tiny_fill(q, k, v, mask=None):
    s = q @ k.mT
    if mask is not None:
        s = s.masked_fill(mask == 0, 1e-9)
    return s.softmax(-1) @ v


@wrong("softmax_over_heads", "scale_by_d", said="softmax over axis 1, and the root is missing")
def heads_axis_and_rootless(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1), dim=1) @ v


@wrong("returns_keys", "mask_ignored", said="keys are mixed in place of values, and the mask is not used")
def keys_mixed_mask_unread(q, k, v, mask=None):
    return torch.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1) @ k


@wrong("sees_one_ahead", "no_scale", said="causal with diagonal=1, and no division")
def ahead_and_unscaled(q, k, v):
    allowed = torch.tril(torch.ones(q.size(-2), k.size(-2)), diagonal=1)
    return (q @ k.mT).masked_fill(allowed == 0, float("-inf")).softmax(-1) @ v


@wrong(
    "last_tile_lost",
    "scale_by_num_heads",
    stated={"layout": "B H T D"},
    said="only whole tiles are read, and the scale is the root of H",
)
def tiles_lost_wrong_scale(q, k, v):
    end = max(k.size(2) // 4 * 4, min(4, k.size(2)))
    return torch.softmax(q @ k[:, :, :end].mT / math.sqrt(q.size(1)), -1) @ v[:, :, :end]


@wrong("mask_transposed", "scale_by_d", said="the mask is turned, and the root is missing")
def turned_and_rootless(q, k, v, mask=None):
    mask = None if mask is None else mask.transpose(-2, -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1 / q.size(-1))


@wrong(
    "mask_inverted",
    "exp_not_normalized",
    stated={"mask": "may attend"},
    said="fills the visible, and nothing is divided by the sum",
)
def inverted_without_sum(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        s = s.masked_fill(mask, float("-inf"))
    return s.exp() @ v


@wrong(
    "weights_transposed",
    "scale_inverted",
    said="(B, T, D), the weights are turned, and scores are multiplied by the root",
)
def turned_weights_inverted_scale(q, k, v):
    w = F.softmax(torch.bmm(q, k.transpose(1, 2)) * q.size(-1) ** 0.5, dim=-1)
    return torch.bmm(w.transpose(1, 2), v)
