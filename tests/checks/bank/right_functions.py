"""Right functions of queries, keys and values (B, H, T, D), with a mask or without."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from tests.checks.bank.right_item import Right


def textbook(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def no_mask(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


def pair(query, key, value, mask=None, dropout=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / np.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = F.softmax(scores, dim=-1)
    if dropout is not None:
        weights = dropout(weights)
    return torch.matmul(weights, value), weights


def quarter_scale(q, k, v, mask=None):
    root = q.shape[-1] ** -0.25
    s = torch.einsum("bhtd,bhsd->bhts", q * root, k * root)
    if mask is not None:
        s = torch.where(mask, s, -torch.inf)
    return torch.einsum("bhts,bhsd->bhtd", s.softmax(-1), v)


def log_sum_exp(q, k, v, mask=None):
    s = q.matmul(k.mT).mul(q.shape[-1] ** -0.5)
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    return (s - s.logsumexp(-1, keepdim=True)).exp().matmul(v)


def by_hand(q, k, v, mask=None):
    s = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) / math.sqrt(q.shape[-1])
    if mask is not None:
        s = s + torch.where(mask, 0.0, -torch.inf)
    e = torch.exp(s - s.max(dim=-1, keepdim=True)[0])
    return (e.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2) / e.sum(-1, keepdim=True)


def base_two(q, k, v, mask=None):
    s = q @ k.mT * (1.4426950408889634 / math.sqrt(q.shape[-1]))
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    p = torch.exp2(s - s.amax(dim=-1, keepdim=True))
    return p @ v / p.sum(dim=-1, keepdim=True)


def tiled(q, k, v, mask=None, tile=4):
    b, h, t, d = q.shape
    n = k.shape[2]
    mask = torch.ones(b, h, t, n, dtype=torch.bool) if mask is None else mask.expand(b, h, t, n)
    m = q.new_full((b, h, t, 1), torch.finfo(q.dtype).min)
    total, acc = torch.zeros_like(m), q.new_zeros(b, h, t, v.shape[-1])
    for start in range(0, n, tile):
        block = slice(start, start + tile)
        s = (q @ k[:, :, block].mT / math.sqrt(d)).masked_fill(~mask[..., block], -torch.inf)
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, alpha = torch.exp(s - new), torch.exp(m - new)
        total, acc, m = alpha * total + p.sum(-1, keepdim=True), alpha * acc + p @ v[:, :, block], new
    return acc / total


def two_passes(q, k, v, mask=None):
    """First the greatest score and the total of each row, then the average, key by key."""
    s = [(q * k[:, :, j : j + 1]).sum(-1) / math.sqrt(q.shape[-1]) for j in range(k.shape[2])]
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])
        s = [x.masked_fill(~mask[..., j], -torch.inf) for j, x in enumerate(s)]
    high = torch.stack(s).amax(0)
    total = sum(torch.exp(x - high) for x in s)
    return sum((torch.exp(x - high) / total).unsqueeze(-1) * v[:, :, j : j + 1] for j, x in enumerate(s))


def row_by_row(q, k, v, mask=None):
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                s = k[b, h] @ q[b, h, t] / q.shape[-1] ** 0.5
                if mask is not None:
                    s = s.masked_fill(~mask.expand(*q.shape[:3], k.shape[2])[b, h, t], -math.inf)
                out[b, h, t] = s.softmax(0) @ v[b, h]
    return out


def folded(q, k, v, mask=None):
    b, h, t, d = q.shape
    s = torch.baddbmm(q.new_zeros(1), q.reshape(b * h, t, d), k.reshape(b * h, -1, d).mT, beta=0, alpha=d**-0.5)
    if mask is not None:
        s = s.masked_fill(~mask.expand(b, h, t, -1).reshape(b * h, t, -1), -torch.inf)
    return torch.bmm(s.softmax(2), v.reshape(b * h, -1, v.shape[-1])).view(b, h, t, -1)


def keys_in_rows(q, k, v, mask=None):
    """The scores are laid out (B, H, S, T), and the softmax goes over their keys all the same."""
    s = k @ q.mT / math.sqrt(k.size(-1))
    if mask is not None:
        s = s.masked_fill(~mask.mT, -torch.inf)
    return s.softmax(dim=-2).mT @ v


def softmax_mask_renormalise(q, k, v, mask=None):
    w = torch.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1)
    if mask is not None:
        w = w * mask
        w = w / w.sum(dim=-1, keepdim=True)
    return w @ v


def single(q, k, v, mask=None):
    """The scores and weights are float32 inside."""
    s = (q.float() @ k.float().mT) * (1.0 / math.sqrt(q.size(-1)))
    if mask is not None:
        s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
    return (F.softmax(s, dim=-1, dtype=torch.float32) @ v.float()).type_as(v)


def sdpa_all_arguments(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    bias = torch.zeros(query.size(-2), key.size(-2), dtype=query.dtype)
    if is_causal:
        bias = bias.masked_fill(torch.ones_like(bias, dtype=torch.bool).tril().logical_not(), float("-inf"))
    if attn_mask is not None:
        bias = (
            bias.masked_fill(attn_mask.logical_not(), float("-inf"))
            if attn_mask.dtype == torch.bool
            else attn_mask + bias
        )
    weight = torch.softmax(query @ key.transpose(-2, -1) * scale + bias, dim=-1)
    return torch.dropout(weight, dropout_p, train=True) @ value


def blocked(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        s = s.masked_fill(mask, -1e9)
    return s.softmax(-1) @ v


def padding(q, k, v, key_padding_mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if key_padding_mask is not None:
        s = s.masked_fill(key_padding_mask.view(len(k), 1, 1, -1), -torch.inf)
    return s.softmax(-1) @ v


def additive(q, k, v, bias=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if bias is not None:
        s = s + bias
    return s.softmax(-1) @ v


def ones_and_zeros(Q, K, V, mask=None):
    s = Q @ K.transpose(2, 3) / K.shape[-1] ** 0.5
    if mask is not None:
        s = s + (1 - mask.float()).to(s.dtype) * torch.finfo(s.dtype).min
    return s.softmax(-1) @ V


def shared_mask(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        assert mask.ndim == 2, "the mask must be (T, S)"
        s = s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ v


def mask_of_samples(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        s = s.masked_fill(~mask[:, None], -torch.inf)
    return s.softmax(-1) @ v


def causal(q, k, v):
    s = q @ k.mT / math.sqrt(q.size(-1))
    t, n = s.shape[-2:]
    return (s + torch.full((t, n), -torch.inf, dtype=s.dtype).triu(1 + n - t)).softmax(-1) @ v


def causal_loop(q, k, v):
    rows = [F.softmax(q[:, :, i] [..., None, :] @ k[:, :, : i + 1].mT / q.shape[-1] ** 0.5, -1) @ v[:, :, : i + 1]
            for i in range(q.shape[2])]  # fmt: skip
    return torch.cat(rows, dim=2)


def causal_or_not(q, k, v, causal=False):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def grouped(q, k, v, mask=None):
    if k.size(1) != q.size(1):
        n = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)
    return textbook(q, k, v, mask)


def value_first(value, key, query, mask=None):
    return textbook(query, key, value, mask)


def weights_first(q, k, v, mask=None):
    s = q @ k.mT * q.shape[-1] ** -0.5
    w = (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1)
    return {"weights": w, "output": w @ v}


class Callable_:
    """An object with __call__, that is no module."""

    def __init__(self, dropout=0.0):
        self.dropout = dropout

    def __call__(self, q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, mask, self.dropout)


ITEMS = [
    *(
        Right(f"function_{f.__name__}", lambda f=f: f)
        for f in (
            textbook, no_mask, pair, quarter_scale, log_sum_exp, by_hand, base_two, tiled, two_passes, row_by_row,
            folded, keys_in_rows, softmax_mask_renormalise, single, sdpa_all_arguments, additive, ones_and_zeros,
            shared_mask, mask_of_samples, causal_or_not, grouped, value_first, weights_first,
        )
    ),
    Right("function_sdpa", lambda: F.scaled_dot_product_attention),
    Right("function_blocked", lambda: blocked, remark="blocked|hidden"),
    Right("function_padding", lambda: padding, remark="blocked|hidden"),
    Right("function_causal", lambda: causal, remark="causal"),
    Right("function_causal_loop", lambda: causal_loop, remark="causal"),
    Right("function_object_with_call", Callable_),
    Right("function_lambda", lambda: lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v),
    Right("function_blocked_stated", lambda: blocked, {"mask": "blocked"}),
]  # fmt: skip
