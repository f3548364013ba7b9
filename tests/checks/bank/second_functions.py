"""Functions for the second bank: each factory gives a right function, or a wrong one where a slip is named."""

import math

import torch
from torch.nn import functional as F


def _named(fn, wrong, name):
    fn.__name__ = fn.__qualname__ = f"{name}_{wrong}" if wrong else name
    return fn


def _fill(s, mask):
    return s if mask is None else s.masked_fill(~mask, -math.inf)


def tiled(wrong="", block=3):
    """Flash-like: a loop over blocks of keys with a running maximum."""

    def attend(q, k, v, mask=None):
        B, H, T, D = q.shape
        S = k.shape[2]
        top, total = q.new_full((B, H, T, 1), -1e30), q.new_zeros(B, H, T, 1)
        acc = q.new_zeros(B, H, T, v.shape[-1])
        allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None else mask
        allowed = allowed.expand(B, H, T, S)
        q = q * D**-0.5
        for i in range(0, S - block if wrong == "tail" and S > block else S, block):
            j = min(i + block, S)
            s = (q @ k[:, :, i:j].mT).masked_fill(~allowed[..., i:j], -math.inf)
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            p, fix = torch.exp(s - new), torch.exp(top - new)
            total = total * (1 if wrong == "total" else fix) + p.sum(-1, keepdim=True)
            acc = acc * (1 if wrong == "acc" else fix) + p @ v[:, :, i:j]
            if wrong == "early":
                acc = acc / total
            top = new
        return acc / total

    return _named(attend, wrong, "tiled")


def token_loop(wrong=""):
    """One query at a time, only over the keys it may see; B T H D."""

    def attend(q, k, v, mask=None):
        B, T, H, D = q.shape
        S = k.shape[1]
        may = torch.ones(B, H, T, S, dtype=torch.bool) if mask is None else mask.expand(B, H, T, S)
        out = q.new_zeros(B, T, H, v.shape[-1])
        for b in range(B):
            for h in range(H):
                for t in range(T):
                    idx = may[b, h, 0 if wrong == "row0" else t].nonzero().flatten()
                    if wrong == "drop_last" and len(idx) > 1:
                        idx = idx[:-1]
                    kk, vv = k[b, :, h].index_select(0, idx), v[b, :, h].index_select(0, idx)
                    if wrong == "unsorted":
                        vv = v[b, : len(idx), h]
                    w = F.softmax(kk @ q[b, t, h] / math.sqrt(D), 0)
                    out[b, t, h] = w @ vv
        return out

    return _named(attend, wrong, "token_loop")


def fused_gemm(wrong=""):
    """Batched gemm with an additive mask as its first term; B H T D."""

    def attend(q, k, v, mask=None):
        B, H, T, D = q.shape
        S = k.shape[2]
        add = q.new_zeros(B, H, T, S)
        if mask is not None:
            add = add + torch.where(mask, 0.0, -5.0 if wrong == "gentle" else -1e6).to(q.dtype)
        alpha = math.sqrt(D) if wrong == "times" else 1 / math.sqrt(T if wrong == "length" else D)
        s = torch.baddbmm(
            add.flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0 if wrong == "beta" else 1, alpha=alpha
        )
        return torch.bmm(s.softmax(-1), v.flatten(0, 1)).unflatten(0, (B, H))

    return _named(attend, wrong, "fused_gemm")


def by_logsumexp(wrong=""):
    """Weights as exp(score - logsumexp)."""

    def attend(q, k, v, mask=None):
        s = _fill(torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(q.size(-1)), mask)
        axes = {"all": (-1, -2), "column": -2, "head": 1}.get(wrong, -1)
        return torch.exp(s - torch.logsumexp(s, axes, keepdim=True)) @ v

    return _named(attend, wrong, "by_logsumexp")


def renormalised(wrong=""):
    """Softmax over all keys first, then the mask, then the sum put right."""

    def attend(q, k, v, mask=None):
        w = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        if mask is not None:
            w = torch.where(mask, w, torch.zeros((), dtype=w.dtype))
            if wrong != "as_is":
                w = w / w.sum(-2 if wrong == "column" else -1, keepdim=True)
        return (w.mT @ v) if wrong == "turned" and w.shape[-1] == w.shape[-2] else w @ v

    return _named(attend, wrong, "renormalised")


def by_distance(wrong=""):
    """The dot product from squared distances."""

    def attend(q, k, v, mask=None):
        far = (q.unsqueeze(-2) - k.unsqueeze(-3)).pow(2).sum(-1)
        k2 = 0 if wrong == "kernel" else k.pow(2).sum(-1).unsqueeze(-2)
        return _fill((k2 - far) / (2 * math.sqrt(q.size(-1))), mask).softmax(-1) @ v

    return _named(attend, wrong, "by_distance")


def base_two(wrong=""):
    """Exponentials of two, as fast kernels do; q is scaled in place only where it is wrong."""

    def attend(q, k, v, mask=None):
        c = (1.0 if wrong == "nolog" else math.log2(math.e)) / math.sqrt(q.size(-1))
        q = q.mul_(c) if wrong == "inplace" else q.mul(c)
        s = _fill(q.matmul(k.mT), mask)
        p = torch.exp2(s - s.amax(-1, keepdim=True).detach())
        return (p @ v) / (p.sum(-1, keepdim=True) + (1 if wrong == "plus_one" else 0))

    return _named(attend, wrong, "base_two")


def ordered(wrong=""):
    """Keys sorted by their scores before the softmax."""

    def attend(q, k, v, mask=None):
        s = _fill(q @ k.mT / math.sqrt(q.size(-1)), mask)
        n = max(1, s.size(-1) // 2) if wrong == "half" else s.size(-1)
        best, idx = s.topk(n, -1)
        if wrong == "gathered":
            idx = idx.flip(-1)
        vv = v.unsqueeze(2).expand(-1, -1, s.size(2), -1, -1)
        vv = vv.gather(3, idx.unsqueeze(-1).expand(*idx.shape, v.size(-1)))
        return (best.softmax(-1).unsqueeze(-1) * vv).sum(-2)

    return _named(attend, wrong, "ordered")


def dispatcher(wrong=""):
    """Hands over to torch, with arguments that are easily mistaken; B T H D."""

    def attend(query, key, value, attn_mask=None, dropout_p=0.0):
        q, k, v = query.permute(0, 2, 1, 3), key.permute(0, 2, 1, 3), value.permute(0, 2, 1, 3)
        extra = {}
        if wrong == "noise":
            dropout_p = 0.1
        if wrong == "root":
            extra["scale"] = 1 / (q.size(-1) * q.size(1)) ** 0.5
        if attn_mask is not None:
            extra["attn_mask"] = attn_mask.to(q.dtype) if wrong == "cast" else attn_mask
        if wrong == "swap":
            k, v = v, k
        o = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, **extra)
        return o.permute(0, 2, 1, 3)

    return _named(attend, wrong, "dispatcher")


def single_head(wrong=""):
    """Three axes only: B T D."""

    def attend(q, k, v, mask=None):
        s = torch.stack([a @ b.T for a, b in zip(q, k, strict=True)]) * q.size(-1) ** -0.5
        if wrong == "cap":
            s = 1.5 * torch.tanh(s / 1.5)
        if wrong == "slope":
            s = s - 0.3 * (torch.arange(q.size(1))[:, None] - torch.arange(k.size(1))[None]).abs()
        if wrong == "causal":
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        s = _fill(s, mask)
        if wrong == "batch":
            return s.softmax(0) @ v
        return s.softmax(-1) @ (v.roll(1, 0) if wrong == "neighbour" else v)

    return _named(attend, wrong, "single_head")
