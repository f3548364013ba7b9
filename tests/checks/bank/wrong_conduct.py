"""Modules that mix samples, that have too few heads of keys, or that misbehave when called."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong(
    "batch_first_confusion",
    size=(24, 4),
    stated={"layout": "B T E"},
    said="nn.MultiheadAttention takes (T, B, E) unless told, and is given (B, T, E)",
)
class WrapsTheDefault(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, x):
        out, _ = self.attn(x, x, x, need_weights=False)
        return out


@wrong(
    "batch_first_confusion", size=(16, 2), stated={"layout": "B T E"}, said="written for (T, B, E), used on (B, T, E)"
)
class LengthComesFirst(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead = nhead
        self.q_linear, self.k_linear, self.v_linear, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value):
        t, b, e = query.shape

        def heads(x):
            return x.reshape(x.size(0), b, self.nhead, e // self.nhead).permute(1, 2, 0, 3)

        q, k, v = heads(self.q_linear(query)), heads(self.k_linear(key)), heads(self.v_linear(value))
        y = torch.softmax(q @ k.mT / math.sqrt(e // self.nhead), -1) @ v
        return self.out(y.permute(2, 0, 1, 3).reshape(t, b, e))


@wrong(
    "batch_mixed",
    size=(32, 4),
    said="batch and positions are folded into one, so a query sees the keys of every sample",
)
class BatchFoldedIntoLength(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x):
        flat = x.flatten(0, 1)
        q, k, v = (
            p(flat).unflatten(-1, (self.num_heads, -1)).transpose(0, 1) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        return self.out_proj(y.transpose(0, 1).flatten(1)).view_as(x)


@wrong("first_sample_only", size=(16, 4), said="keys and values of the first sample serve every sample")
class ContextOfSampleZero(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, context):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (self.to_q(x), self.to_k(context[:1]), self.to_v(context[:1]))
        )
        y = (q @ k.mT * q.size(-1) ** -0.5).softmax(-1) @ v
        return self.to_out(y.transpose(1, 2).flatten(2))


@wrong("gqa_tiled_heads", size=(32, 4, 2), said="the two heads of keys are repeated 0 1 0 1, not 0 0 1 1")
class TiledGroups(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, d_model // n_heads
        self.wq = nn.Linear(d_model, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, d_model, bias=False)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        groups = self.n_heads // self.n_kv_heads
        k, v = k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)
        return self.wo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Called(nn.Module):
    """Plain and right; the class below spoils the call."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def split(self, x):
        return [t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)]

    def join(self, y):
        return self.proj(y.transpose(1, 2).flatten(2))


@wrong("gradient_cut", size=(24, 4), said="the weights are detached, so queries and keys get no gradient")
class WeightsDetached(Called):
    def forward(self, x):
        q, k, v = self.split(x)
        self.last = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1).detach()
        return self.join(self.last @ v)


@wrong("gradient_cut", size=(16, 2), said="the input is wrapped into a new tensor by way of numpy")
class ThroughNumpy(Called):
    def forward(self, x):
        x = torch.from_numpy(x.detach().cpu().numpy()).to(x.device)
        return self.join(F.scaled_dot_product_attention(*self.split(x)))


@wrong("keeps_state", size=(24, 3), said="keys and values of earlier calls are kept and attended to again")
class CacheNeverCleared(Called):
    def forward(self, x):
        q, k, v = self.split(x)
        old = getattr(self, "cache", None)
        if old is not None and old[0].size(0) == k.size(0):
            k, v = torch.cat([old[0], k], dim=2), torch.cat([old[1], v], dim=2)
        self.cache = (k.detach(), v.detach())
        return self.join(F.scaled_dot_product_attention(q, k, v))


@wrong(
    "changes_input",
    size=(32, 4),
    said="the result is added to the input in place, which changes the tensor of the caller",
)
class ShiftsInPlace(Called):
    def forward(self, x):
        y = self.join(F.scaled_dot_product_attention(*self.split(x)))
        with torch.no_grad():
            x.add_(y)
        return y


@wrong("nondeterministic", size=(24, 4), said="the output layer is made anew in every call")
class LayerMadeInForward(Called):
    def forward(self, x):
        fresh = nn.Linear(self.embed_dim, self.embed_dim).to(x)
        return fresh(F.scaled_dot_product_attention(*self.split(x)).transpose(1, 2).flatten(2))


@wrong("raises", size=(24, 4), said="view on a transposed tensor, contiguous() is missing")
class ViewAfterTranspose(Called):
    def forward(self, x):
        y = F.scaled_dot_product_attention(*self.split(x)).contiguous()
        return self.proj(y.transpose(1, 2).view(x.shape))


@wrong("wrong_type", size=(16, 4), said="return is missing")
class ReturnForgotten(Called):
    def forward(self, x):
        self.join(F.scaled_dot_product_attention(*self.split(x)))


@wrong("wrong_shape", size=(32, 4), said="the result is averaged over the positions")
class PooledOverPositions(Called):
    def forward(self, x):
        return self.join(F.scaled_dot_product_attention(*self.split(x))).mean(dim=1)


@wrong("returns_nan", size=(24, 2), said="the root of a difference that is negative")
class RootOfNegative(Called):
    def forward(self, x):
        q, k, v = self.split(x)
        scale = torch.as_tensor(self.num_heads - self.embed_dim, dtype=x.dtype).sqrt()
        return self.join((q @ k.mT / scale).softmax(-1) @ v)
