"""More modules for the second bank: loops, convolutions, caches and other hand-made ways."""

import copy
import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F


class EspnetAttention(nn.Module):
    """Speech toolkit way: the mask is a byte mask (B, 1, S) or (B, T, S); weights are zeroed again after softmax."""

    def __init__(self, n_head=4, n_feat=12, dropout_rate=0.1, wrong=""):
        super().__init__()
        self.d_k, self.h, self.wrong = n_feat // n_head, n_head, wrong.split()
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(n_feat, n_feat) for _ in range(3))
        self.linear_out = nn.Linear(n_feat, n_feat)
        self.dropout = nn.Dropout(p=dropout_rate)

    def forward(self, query, key, value, mask=None):
        n = query.size(0)
        q, k, v = (
            f(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for f, x in ((self.linear_q, query), (self.linear_k, key), (self.linear_v, value))
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.h if "heads" in self.wrong else self.d_k)
        if "drop" in self.wrong:
            scores = self.dropout(scores)
        if mask is not None:
            hide = mask.unsqueeze(1).eq(1 if "equal" in self.wrong else 0)
            scores = scores.masked_fill(hide, 1e-9 if "tiny" in self.wrong else torch.finfo(scores.dtype).min)
            attn = scores.softmax(-1)
            attn = attn if "tiny" in self.wrong else attn.masked_fill(hide, 0.0)
        else:
            attn = scores.softmax(-1)
        x = (attn if "drop" in self.wrong else self.dropout(attn)) @ (k if "keys" in self.wrong else v)
        return self.linear_out(x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k))


class RoleAttention(nn.Module):
    """Maps kept in a ModuleDict and called through functions made in a loop."""

    def __init__(self, width=12, heads=2, wrong=""):
        super().__init__()
        self.heads, self.wrong = heads, wrong.split()
        self.maps = nn.ModuleDict({r: nn.Linear(width, width) for r in ("query", "key", "value", "output")})

    @property
    def head_size(self):
        return self.maps["query"].out_features // self.heads

    def forward(self, query, key, value, mask=None):
        given, calls = {"query": query, "key": key, "value": value}, {}
        for role in given:
            if "late" in self.wrong:
                calls[role] = lambda t: self.maps[role](t)  # noqa: B023
            else:
                calls[role] = partial(self.maps[role].__call__)
        q, k, v = (torch.stack(calls[r](t).split(self.head_size, -1), 1) for r, t in given.items())
        s = torch.einsum("nhtd,nhsd->nhts", q, k).div(self.head_size**0.5)
        if mask is not None and "never" not in self.wrong:
            s = torch.where(mask, s, -torch.inf)
        heads = torch.unbind(s.softmax(-1) @ v, 1)
        y = torch.stack(heads, -1).flatten(-2) if "stacked" in self.wrong else torch.cat(heads, -1)
        return y if "bare" in self.wrong else self.maps["output"](y)


class HeadList(nn.Module):
    """Every head is a module with its own small maps."""

    class Head(nn.Module):
        def __init__(self, width, size, wrong):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(width, size) for _ in range(3))
            self.scale, self.wrong = size**-0.5, wrong

        def forward(self, q, k, v, mask):
            s = self.q(q) @ self.k(k).mT * self.scale
            if "swap" in self.wrong:
                s = self.k(q) @ self.q(k).mT * self.scale
            if "selfkeys" in self.wrong:
                s = self.q(q) @ self.q(k).mT * self.scale
            s = s if mask is None else s.masked_fill(mask.logical_not(), -1e30)
            return s.softmax(-1) @ self.v(v)

    def __init__(self, width=12, n_heads=3, wrong=""):
        super().__init__()
        self.n_heads, self.wrong = n_heads, wrong.split()
        self.heads = nn.ModuleList(self.Head(width, width // n_heads, self.wrong) for _ in range(n_heads))
        self.mix = nn.Linear(width, width)

    def forward(self, q, k, v, mask=None):
        if mask is not None:
            mask = mask.squeeze(1)
        outs = []
        for i, _ in enumerate(self.heads):
            head = self.heads[0 if "first" in self.wrong else i]
            outs.append(head(q, k, v, None if "lost" in self.wrong and i else mask))
        if "mean" in self.wrong:
            outs = [torch.stack(outs).mean(0)] * len(outs)
        return self.mix(torch.cat(outs, dim=-1))


class ConvAttention(nn.Module):
    """Maps as 1x1 convolutions over (B, E, T); scores are kept keys by queries."""

    def __init__(self, channels=16, num_heads=4, wrong=""):
        super().__init__()
        self.num_heads, self.wrong = num_heads, wrong.split()
        self.qkv, self.proj = nn.Conv1d(channels, channels * 3, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, x, mask=None):
        b, t, c = x.shape
        ch = c // self.num_heads
        qkv = self.qkv(x.transpose(1, 2))
        if "mixed" in self.wrong:
            qkv = qkv.reshape(self.num_heads, b, 3 * ch, t).transpose(0, 1).reshape(b * self.num_heads, 3 * ch, t)
        else:
            qkv = qkv.reshape(b * self.num_heads, 3 * ch, t)  # each head's q, k and v lie together
        q, k, v = qkv.split(ch, dim=1)
        root = 1 / math.sqrt(math.sqrt(ch))
        w = torch.einsum("bct,bcs->bst", q * root, k if "once" in self.wrong else k * root)
        if mask is not None:
            hidden = ~mask.expand(b, self.num_heads, t, t).reshape(-1, t, t)
            w = w.masked_fill(hidden if "mirror" in self.wrong else hidden.transpose(1, 2), float("-inf"))
        w = torch.softmax(w, dim=-1 if "last" in self.wrong else 1)
        a = torch.einsum("bst,bcs->bct", w, v)
        return self.proj(a.reshape(b, c, t)).transpose(1, 2)


class StackedAttention(nn.Module):
    """One parameter of four matrices; a loop over tokens and heads with plain indices, as in a C++ kernel."""

    def __init__(self, E=8, num_heads=2, wrong=""):
        super().__init__()
        self.W = nn.Parameter(torch.randn(4, E, E) / E**0.5)
        self.b = nn.Parameter(torch.randn(4, E) * 0.2)
        self.num_heads, self.wrong = num_heads, wrong.split()

    def forward(self, q_in, k_in, v_in, mask=None):
        q, k = F.linear(q_in, self.W[0], self.b[0]), F.linear(k_in, self.W[1], self.b[1])
        v = F.linear(v_in, self.W[1 if "index" in self.wrong else 2], self.b[2])
        (B, T, E), S, hd = q.shape, k.shape[1], q.shape[2] // self.num_heads
        if mask is not None:
            mask = mask.expand(B, self.num_heads, T, S)
        rows = []
        for b in range(B):
            for t in range(T):
                cols = []
                for h in range(self.num_heads):
                    lo, hi = h * hd, h * hd + hd
                    bb = 0 if "sample" in self.wrong else b
                    att = (k[bb, :, lo:hi] * q[b, t, lo:hi]).sum(1) / math.sqrt(hd)
                    if mask is not None:
                        m = mask[0 if "mask0" in self.wrong else b, h, t]
                        att = torch.where(m, att, torch.full_like(att, -float("inf")))
                    e = torch.exp(att - att.max())
                    total = e[:-1].sum() if "short" in self.wrong else e.sum()
                    cols.append((e / total) @ v[b, :, lo:hi])
                rows.append(torch.cat(cols))
        o = torch.stack(rows)
        o = o.view(T, B, E).transpose(0, 1) if "turned" in self.wrong else o.view(B, T, E)
        return F.linear(o, self.W[3], self.b[3])


class CloneAttention(nn.Module):
    """Cloned maps, zip, and heads folded in front of the batch by chunk and cat."""

    def __init__(self, h=2, d_model=12, wrong=""):
        super().__init__()
        self.h, self.d_k, self.wrong = h, d_model // h, wrong.split()
        self.linears = nn.ModuleList([copy.deepcopy(nn.Linear(d_model, d_model)) for _ in range(4)])
        for m in self.linears:
            nn.init.normal_(m.weight, std=0.35)

    def forward(self, query, key, value, mask=None):
        B = query.size(0)
        given = (query,) * 3 if "query" in self.wrong else (query, key, value)
        q, k, v = (f(x) for f, x in zip(self.linears[:3], given, strict=True))
        q, k, v = (torch.cat(t.chunk(self.h, -1), 0) for t in (q, k, v))
        s = q.bmm(k.mT) / (1 if "post" in self.wrong else self.d_k**0.5)
        if mask is not None:
            m = mask.squeeze(1)
            m = m.repeat_interleave(self.h, 0) if "order" in self.wrong else m.repeat(self.h, 1, 1)
            s = s.masked_fill(m == 0, -1e9)
        p = s.softmax(-1)
        o = p.bmm(v) / (self.d_k**0.5 if "post" in self.wrong else 1)
        o = o.reshape(B, -1, self.h * self.d_k) if "view" in self.wrong else torch.cat(o.chunk(self.h, 0), -1)
        return self.linears[-1](o)


class FlaxAttention(nn.Module):
    """Ported from Flax: (B, T, H, D) throughout, a bias made from the mask, and a dictionary returned."""

    def __init__(self, features=12, num_heads=3, wrong=""):
        super().__init__()
        self.num_heads, self.wrong = num_heads, wrong.split()
        self.query, self.key, self.value, self.out = (nn.Linear(features, features) for _ in range(4))

    def forward(self, inputs_q, inputs_k, inputs_v, mask=None):
        q, k, v = (
            f(x).reshape(*x.shape[:2], self.num_heads, -1)
            for f, x in ((self.query, inputs_q), (self.key, inputs_k), (self.value, inputs_v))
        )
        if "key_view" in self.wrong:
            k = k.reshape(k.shape[0], self.num_heads, k.shape[1], -1).transpose(1, 2)
        q = q / q.shape[-1] if "depth" in self.wrong else q / math.sqrt(q.shape[-1])
        w = torch.einsum("...qhd,...khd->...hqk", q, k)
        if mask is not None:
            bias = torch.where(mask, 0.0, 1e10 if "sign" in self.wrong else -1e10).to(w.dtype)
            w = w + bias
        w = w.softmax(-1) if "gate" not in self.wrong else w.sigmoid()
        x = torch.einsum("...hqk,...khd->...qhd", w, v).flatten(-2)
        x = x.detach() if "stop" in self.wrong else x
        return {"output": self.out(x), "weights": w}


class CachedAttention(nn.Module):
    """Causal attention with an optional cache, and a chunked pass over the queries."""

    def __init__(self, dim=12, n_heads=2, chunk=3, wrong=""):
        super().__init__()
        self.n_heads, self.chunk, self.wrong, self.cache = n_heads, chunk, wrong.split(), None
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, use_cache=False):
        B, T, E = x.shape
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        if (use_cache or "keeps" in self.wrong) and not self.training:
            if self.cache is not None and self.cache[0].shape[0] == B:
                k, v = torch.cat([self.cache[0], k], 2), torch.cat([self.cache[1], v], 2)
            self.cache = (k.detach(), v.detach())
        S, outs = k.size(2), []
        for i in range(0, T, self.chunk):
            part = q[:, :, i : i + self.chunk]
            row = torch.arange(part.size(2)) + (0 if "local" in self.wrong else i) + S - T
            ok = torch.arange(S)[None] < row[:, None] + (2 if "ahead" in self.wrong else 1)
            if "inside" in self.wrong:
                ok = ok & (torch.arange(S)[None] >= i + S - T)
            outs.append(F.scaled_dot_product_attention(part, k, v, attn_mask=ok))
        y = torch.cat(outs, 2)
        return self.o(y.transpose(1, 2).reshape(B, T, E))
