"""Right modules that hold bare parameters, or compute the formula in an unusual order."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checks.bank.right_item import Right


def draw(*shape):
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


class RawMatmul(nn.Module):
    """Weights (in, out), used as x @ W, without biases."""

    def __init__(self, d_model=16, heads=4):
        super().__init__()
        self.heads = heads
        self.Wq, self.Wk, self.Wv, self.Wo = (draw(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        b, t, e = x.shape
        q, k, v = ((x @ w).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.Wq, self.Wk, self.Wv))
        s = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if mask is not None:
            s = s.masked_fill(torch.logical_not(mask), float("-inf"))
        return (torch.softmax(s, -1) @ v).transpose(1, 2).reshape(b, t, e) @ self.Wo


class RawLinear(nn.Module):
    """Weights (out, in) and biases, used through F.linear; keys and values of other widths."""

    def __init__(self, embed_dim=16, num_heads=4, kdim=10, vdim=14):
        super().__init__()
        self.num_heads = num_heads
        self.q_weight, self.k_weight = draw(embed_dim, embed_dim), draw(embed_dim, kdim)
        self.v_weight, self.out_weight = draw(embed_dim, vdim), draw(embed_dim, embed_dim)
        for name in ("q_bias", "k_bias", "v_bias", "out_bias"):
            self.register_parameter(name, draw(embed_dim))

    def forward(self, query, key, value, mask=None):
        q = F.linear(query, self.q_weight, self.q_bias).unflatten(-1, (self.num_heads, -1)).movedim(2, 1)
        k = F.linear(key, self.k_weight, self.k_bias).unflatten(-1, (self.num_heads, -1)).movedim(2, 1)
        v = F.linear(value, self.v_weight, self.v_bias).unflatten(-1, (self.num_heads, -1)).movedim(2, 1)
        x = F.scaled_dot_product_attention(q, k, v, mask)
        return F.linear(x.movedim(1, 2).flatten(2), self.out_weight, self.out_bias)


class PerHeadTensors(nn.Module):
    """Every head's matrix is a slice of one parameter: (H, E, D), and (H, D, E) on the way out."""

    def __init__(self, embed_dim=12, num_heads=3, head_dim=5):
        super().__init__()
        self.w_q, self.w_k, self.w_v = (draw(num_heads, embed_dim, head_dim) for _ in range(3))
        self.b_q, self.b_v = draw(num_heads, 1, head_dim), draw(num_heads, 1, head_dim)
        self.w_o = draw(num_heads, head_dim, embed_dim)

    def forward(self, query, key, value, mask=None):
        q = torch.einsum("bte,hed->bhtd", query, self.w_q) + self.b_q
        k = torch.einsum("bse,hed->bhsd", key, self.w_k)
        v = torch.einsum("bse,hed->bhsd", value, self.w_v) + self.b_v
        s = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(q.size(-1))
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        return torch.einsum("bhts,bhsd,hde->bte", s.softmax(dim=3), v, self.w_o)


class WidthThenHeads(nn.Module):
    """Kernels (E, H, D) and (H, D, E), as dense layers over several axes keep them."""

    def __init__(self, embed_dim=16, num_heads=2):
        super().__init__()
        d = embed_dim // num_heads
        self.num_heads, self.key_dim = num_heads, d
        self.query_kernel, self.key_kernel, self.value_kernel = (draw(embed_dim, num_heads, d) for _ in range(3))
        self.query_bias, self.key_bias, self.value_bias = (draw(num_heads, d) for _ in range(3))
        self.output_kernel, self.output_bias = draw(num_heads, d, embed_dim), draw(embed_dim)

    def forward(self, query, value, key=None, attention_mask=None):
        key = value if key is None else key
        q = torch.tensordot(query, self.query_kernel, dims=1) + self.query_bias
        k = torch.tensordot(key, self.key_kernel, dims=1) + self.key_bias
        v = torch.tensordot(value, self.value_kernel, dims=1) + self.value_bias
        q = q * (1.0 / math.sqrt(float(self.key_dim)))
        s = torch.einsum("aecd,abcd->acbe", k, q)
        if attention_mask is not None:
            s = s + (1.0 - attention_mask.to(s.dtype)) * -1e9
        x = torch.einsum("acbe,aecd->abcd", s.softmax(-1), v)
        return torch.tensordot(x, self.output_kernel, dims=2) + self.output_bias


class ParameterLists(nn.Module):
    """A list of matrices per role, one per head; the heads' outputs are projected and summed."""

    def __init__(self, embed_dim=12, num_heads=4):
        super().__init__()
        d = embed_dim // num_heads
        self.wq, self.wk, self.wv = (nn.ParameterList(draw(embed_dim, d) for _ in range(num_heads)) for _ in range(3))
        self.wo = nn.ParameterList(draw(d, embed_dim) for _ in range(num_heads))

    def forward(self, x, mask=None):
        out = torch.zeros_like(x)
        for q, k, v, o in zip(self.wq, self.wk, self.wv, self.wo, strict=True):
            s = (x @ q) @ (x @ k).mT / math.sqrt(q.shape[1])
            if mask is not None:
                s = s + mask
            out = out + s.softmax(-1) @ (x @ v) @ o
        return out


class Stacked(nn.Module):
    """All four matrices in one parameter (4, E, E)."""

    def __init__(self, embed_dim=16, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.weight = draw(4, embed_dim, embed_dim)

    def forward(self, x, mask=None):
        q, k, v = torch.einsum("noe,bte->nbto", self.weight[:3], x).unflatten(-1, (self.num_heads, -1)).transpose(2, 3)
        a = torch.einsum("bhtd,bhsd->bhts", q, k) * q.size(-1) ** -0.5
        if mask is not None:
            a = a.masked_fill(~mask, -1e30)
        return (a.softmax(-1) @ v).transpose(1, 2).flatten(2) @ self.weight[3].T


class Four(nn.Module):
    """Four linear layers; how the formula is computed is the subclass's business."""

    def __init__(self, embed_dim=16, num_heads=4, head_dim=None, bias=True):
        super().__init__()
        head_dim = head_dim or embed_dim // num_heads
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, head_dim
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(embed_dim, num_heads * head_dim, bias) for _ in range(3))
        self.out_proj = nn.Linear(num_heads * head_dim, embed_dim, bias)

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for t in (self.q_proj(query), self.k_proj(key), self.v_proj(value))
        )
        return self.out_proj(self.inner(q, k, v, mask).transpose(1, 2).flatten(2))


class QuarterScale(Four):
    def inner(self, q, k, v, mask):
        scale = 1 / math.sqrt(math.sqrt(self.head_dim))
        s = (q * scale) @ (k * scale).mT
        return (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1) @ v


class LogSumExp(Four):
    def inner(self, q, k, v, mask):
        s = q @ k.mT / self.head_dim**0.5
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        return torch.exp(s - torch.logsumexp(s, dim=-1, keepdim=True)) @ v


class BaseTwo(Four):
    def inner(self, q, k, v, mask):
        s = q @ k.mT * (self.head_dim**-0.5 * math.log2(math.e))
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        w = torch.exp2(s - s.amax(-1, keepdim=True))
        return w @ v / w.sum(-1, keepdim=True)


class Online(Four):
    """Keys come in tiles of three; the running maximum, total and accumulator are rescaled."""

    def inner(self, q, k, v, mask):
        b, h, t, d = q.shape
        low = torch.full((b, h, t, 1), -1e300 if q.dtype == torch.float64 else -1e30, dtype=q.dtype)
        total, acc = torch.zeros_like(low), torch.zeros_like(q)
        keep = None if mask is None else mask.expand(b, h, t, k.size(2))
        for i in range(0, k.size(2), 3):
            s = q @ k[:, :, i : i + 3].mT / math.sqrt(d)
            if keep is not None:
                s = s.masked_fill(~keep[..., i : i + 3], -torch.inf)
            high = torch.maximum(low, s.amax(-1, keepdim=True))
            p, c = torch.exp(s - high), torch.exp(low - high)
            total, acc, low = total * c + p.sum(-1, keepdim=True), acc * c + p @ v[:, :, i : i + 3], high
        return acc / total


class ChunkedQueries(Four):
    def inner(self, q, k, v, mask):
        rows = []
        for i in range(q.size(2)):
            s = q[:, :, i : i + 1] @ k.mT * self.head_dim**-0.5
            if mask is not None:
                m = mask if mask.size(-2) == 1 else mask[..., i : i + 1, :]
                s = s.masked_fill(~m, torch.finfo(s.dtype).min)
            rows.append(F.softmax(s, dim=-1) @ v)
        return torch.cat(rows, dim=2)


class SingleSoftmax(Four):  # in float32 whatever comes in, so float64 gains nothing
    def inner(self, q, k, v, mask):
        s = q @ k.mT / self.head_dim**0.5
        if mask is not None:
            s = s.masked_fill(~mask, torch.finfo(torch.float32).min)
        return F.softmax(s.float(), dim=-1).type_as(q) @ v


class FeatureMajor(Four):
    """The heads are the fast index of the projections' features."""

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            p(x).unflatten(-1, (self.head_dim, self.num_heads)).permute(0, 3, 1, 2)
            for p, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        x = F.scaled_dot_product_attention(q, k, v, mask)
        return self.out_proj(x.permute(0, 2, 3, 1).flatten(2))


class FeatureMajorInside(FeatureMajor):
    """The heads are the fast index on the way in, the slow one on the way out."""

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            torch.stack([p(x)[..., h :: self.num_heads] for h in range(self.num_heads)], dim=1)
            for p, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class SlicedHeads(Four):
    """A loop over heads with slices of every weight; the output is summed head by head."""

    def forward(self, query, key, value, mask=None):
        out = 0
        for h in range(self.num_heads):
            r = slice(h * self.head_dim, (h + 1) * self.head_dim)
            q = query @ self.q_proj.weight[r].T + self.q_proj.bias[r]
            k = key @ self.k_proj.weight[r].T  # a key's bias cancels in the softmax
            v = value @ self.v_proj.weight[r].T
            s = q @ k.mT / math.sqrt(self.head_dim)
            if mask is not None:
                s = s.masked_fill(~mask[:, min(h, mask.size(1) - 1)], -torch.inf)
            # rows sum to one, so a value's bias may be added after the average
            out = out + (s.softmax(-1) @ v + self.v_proj.bias[r]) @ self.out_proj.weight[:, r].T
        return out + self.out_proj.bias


class Absorbed(Four):
    """W_q and W_k of a head are multiplied first, and so are W_v and W_o."""

    def forward(self, x, mask=None):
        shape = (self.num_heads, self.head_dim)
        wq, wk, wv = (p.weight.unflatten(0, shape) for p in (self.q_proj, self.k_proj, self.v_proj))
        middle = torch.einsum("hde,hdf->hef", wq, wk) / math.sqrt(self.head_dim)
        s = torch.einsum("bte,hef,bsf->bhts", x, middle, x)
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        vo = torch.einsum("hde,ohd->heo", wv, self.out_proj.weight.unflatten(1, shape))
        return torch.einsum("bhts,bse,heo->bto", s.softmax(-1), x, vo)


class ScaledWeights(Four):
    """The scale is multiplied into the query's weight and bias at each call."""

    def forward(self, query, key, value, mask=None):
        c = self.head_dim**-0.5
        q = F.linear(query, self.q_proj.weight * c, self.q_proj.bias * c)
        q, k, v = (torch.stack(t.chunk(self.num_heads, -1), 1) for t in (q, self.k_proj(key), self.v_proj(value)))
        x = F.scaled_dot_product_attention(q, k, v, mask, scale=1.0)
        return self.out_proj(torch.cat(x.unbind(1), -1))


ITEMS = [
    Right("raw_matmul", RawMatmul),
    Right("raw_linear_other_widths", RawLinear),
    Right("per_head_tensors", PerHeadTensors),
    Right("width_then_heads", WidthThenHeads),
    Right("parameter_lists", ParameterLists),
    Right("stacked", Stacked),
    Right("quarter_scale", QuarterScale),
    Right("log_sum_exp", LogSumExp),
    Right("base_two", BaseTwo),
    Right("online", Online),
    Right("chunked_queries", ChunkedQueries),
    Right("single_softmax", SingleSoftmax),
    Right("feature_major", FeatureMajor, remark="layout"),
    Right("feature_major_inside", FeatureMajorInside, remark="layout"),
    Right("sliced_heads", SlicedHeads),
    Right("absorbed", lambda: Absorbed(bias=False)),
    Right("scaled_weights", ScaledWeights),
    Right("wide_heads", lambda: QuarterScale(12, 4, head_dim=5)),
    Right("narrow_heads", lambda: LogSumExp(16, 2, head_dim=3, bias=False)),
    Right("one_head", lambda: BaseTwo(8, 1)),
    Right("head_width_one", lambda: LogSumExp(6, 6)),
]
