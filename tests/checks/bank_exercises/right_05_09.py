"""Right solutions of the exercises of notebooks 05 to 09, in many styles."""

import math

import numpy as np
import torch
from torch.nn import functional as F

from tests.checks.bank_exercises import right


@right("sinusoidal")
def entry_by_entry(length, width):
    rows = []
    for p in range(length):
        a = [p / 10000 ** ((c - c % 2) / width) for c in range(width)]
        rows.append([math.cos(x) if c % 2 else math.sin(x) for c, x in enumerate(a)])
    return torch.tensor(rows, dtype=torch.float64)


@right("sinusoidal")
def by_phase(length, width):
    c = torch.arange(width, dtype=torch.float64)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), torch.exp(-math.log(1e4) * (c // 2 * 2) / width))
    return torch.sin(angle + c % 2 * math.pi / 2)


@right("sinusoidal")
def by_numpy(length, width):
    a = np.arange(length)[:, None] / np.power(10000.0, np.arange(0, width, 2) / width)
    return torch.from_numpy(np.stack([np.sin(a), np.cos(a)], -1).reshape(length, -1)[:, :width].copy())


@right("equivariance_error")
def by_norm(layer, x, order):
    return torch.linalg.vector_norm(layer(x)[:, order] - layer(x[:, order]), ord=torch.inf)


@right("equivariance_error")
def undone_by_the_inverse(layer, x, order):
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return torch.dist(layer(x), layer(x.index_select(1, order))[:, back], p=torch.inf)


@right("equivariance_error")
def with_take_along(layer, x, order):
    y, i = layer(x), order[None, :, None].expand_as(x)
    gap = torch.gather(y, 1, i) - layer(torch.gather(x, 1, i))
    return torch.maximum(gap.max(), -gap.min())


@right("rotary")
def by_complex_numbers(x, offset):
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    rate = 10000 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    a = torch.outer(offset + torch.arange(x.shape[2], dtype=torch.float64), rate)
    return torch.view_as_real(z * torch.polar(torch.ones_like(a), a)).flatten(-2)


@right("rotary")
def pair_by_pair(x, offset):
    out = torch.empty_like(x)
    d = x.shape[-1]
    for t in range(x.shape[-2]):
        for i in range(d // 2):
            a = (offset + t) / 10000 ** (2 * i / d)
            one, two = x[:, :, t, 2 * i], x[:, :, t, 2 * i + 1]
            out[:, :, t, 2 * i] = one * math.cos(a) - two * math.sin(a)
            out[:, :, t, 2 * i + 1] = one * math.sin(a) + two * math.cos(a)
    return out


@right("rotary")
def by_a_matrix(x, offset):
    d, m = x.shape[-1], []
    for t in range(x.shape[-2]):
        a = [(offset + t) / 10000 ** (2 * i / d) for i in range(d // 2)]
        turns = [torch.tensor([[math.cos(b), -math.sin(b)], [math.sin(b), math.cos(b)]], dtype=x.dtype) for b in a]
        m.append(torch.block_diag(*turns))
    return torch.einsum("tij,bhtj->bhti", torch.stack(m), x)


@right("rotary")
def rotate_every_two(x, offset):
    d = x.shape[-1]
    rate = 1.0 / 10000 ** (torch.arange(0, d, 2).double() / d)
    a = (torch.arange(offset, offset + x.size(2)).double().outer(rate)).repeat_interleave(2, dim=-1)
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).reshape(x.shape)
    return x * a.cos() + turned * a.sin()


@right("slopes")
def recursive(num_heads):
    n = 2 ** math.floor(math.log2(num_heads))
    s = (2 ** (-8.0 / n)) ** torch.arange(1, n + 1, dtype=torch.float64)
    return s if n == num_heads else torch.cat([s, recursive(2 * n)[::2][: num_heads - n]])


@right("slopes")
def by_bit_length(num_heads):
    p = 1 << (num_heads.bit_length() - 1)
    e = [8 * h / p for h in range(1, p + 1)] + [4 * (2 * j + 1) / p for j in range(num_heads - p)]
    return torch.tensor(e, dtype=torch.float64).neg().exp2()


@right("alibi_bias")
def by_cdist(slopes, T):
    p = torch.arange(T, dtype=torch.float64)[:, None]
    return torch.einsum("h,ij->hij", -slopes, torch.cdist(p, p, p=1))


@right("alibi_bias")
def as_a_minimum(slopes, T):
    i = torch.arange(T)
    d = torch.minimum(i - i[:, None], i[:, None] - i)
    return torch.stack([s * d for s in slopes])


@right("split_heads")
def chunks(x, num_heads):
    return torch.stack(x.chunk(num_heads, dim=-1), dim=1)


@right("split_heads")
def rearranged(x, num_heads):
    return x.transpose(1, 2).reshape(len(x), num_heads, -1, x.shape[1]).transpose(2, 3)


@right("split_heads")
def slices_in_a_loop(x, num_heads):
    d = x.shape[-1] // num_heads
    out = x.new_empty(x.shape[0], num_heads, x.shape[1], d)
    for h in range(num_heads):
        out[:, h] = x[:, :, h * d : (h + 1) * d]
    return out


@right("merge_heads")
def joined(x):
    return torch.cat([x[:, h] for h in range(x.shape[1])], dim=-1)


@right("merge_heads")
def contiguous_view(x):
    b, h, t, d = x.shape
    return x.permute(0, 2, 1, 3).contiguous().view(b, t, h * d)


@right("multi_head")
def head_by_head(x, W_q, W_k, W_v, W_o, num_heads, mask):
    d, out = W_q.shape[1] // num_heads, 0
    for h in range(num_heads):
        c = slice(h * d, (h + 1) * d)
        s = (x @ W_q[:, c]) @ (x @ W_k[:, c]).mT / d**0.5
        w = torch.where(mask[:, 0], s, float("-inf")).softmax(dim=-1)
        out = out + w @ (x @ W_v[:, c]) @ W_o[c]
    return out


@right("multi_head")
def by_sdpa(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (torch.stack((x @ w).chunk(num_heads, -1), 1) for w in (W_q, W_k, W_v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2) @ W_o


@right("multi_head")
def additive_in_one_einsum(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (torch.einsum("bte,ehd->bhtd", x, w.unflatten(1, (num_heads, -1))) for w in (W_q, W_k, W_v))
    bias = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(mask.logical_not(), torch.finfo(x.dtype).min)
    w = (torch.einsum("bhtd,bhsd->bhts", q, k) * q.shape[-1] ** -0.5 + bias).softmax(-1)
    return torch.einsum("bhts,bhsd,hde->bte", w, v, W_o.unflatten(0, (num_heads, -1)))


@right("multi_head")
def zeroed_and_renormalised(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = ((x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2) for w in (W_q, W_k, W_v))
    w = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) * mask
    return ((w / w.sum(-1, keepdim=True)) @ v).transpose(1, 2).flatten(2) @ W_o


@right("cross_attention")
def cross_by_torch(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = F.linear(query, W_q.T), F.linear(context, W_k.T), F.linear(context, W_v.T)
    q, k, v = (torch.stack(y.chunk(num_heads, -1), 1) for y in (q, k, v))
    return F.linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), W_o.T)


@right("cross_attention")
def heads_folded_into_the_batch(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = (torch.cat((y @ w).chunk(num_heads, -1)) for y, w in ((query, W_q), (context, W_k), (context, W_v)))
    o = torch.bmm((torch.bmm(q, k.mT) / q.shape[-1] ** 0.5).softmax(-1), v)
    return torch.cat(o.chunk(num_heads), dim=-1) @ W_o


@right("pre_norm_block")
def step_by_step(x, norm_1, attend, norm_2, mlp):
    stream = x.clone()
    for norm, part in ((norm_1, attend), (norm_2, mlp)):
        stream = torch.add(stream, part(norm(stream)))
    return stream


@right("pre_norm_block")
def sum_of_three(x, norm_1, attend, norm_2, mlp):
    a = attend(norm_1(x))
    return torch.stack([x, a, mlp(norm_2(x + a))]).sum(dim=0)


@right("lost_skips")
def cosine_of_each_token(blocks, x):
    found = []
    for block in blocks:
        y = block(x)
        found.append(F.cosine_similarity(x, y, dim=-1).mean() < 0.5)
        x = y
    return torch.stack(found)


@right("lost_skips")
def projection_on_the_input(blocks, x):
    out = torch.zeros(len(blocks), dtype=torch.bool)
    for i, block in enumerate(blocks):
        y = block(x)
        out[i] = bool((x * y).sum() / (x.norm() * y.norm()) < 0.5)
        x = y
    return out


@right("lost_skips")
def each_block_by_itself(blocks, x):  # whatever goes in, a block without its skip does not hand it on
    return torch.stack([F.cosine_similarity(x, each(x), dim=-1).mean() < 0.5 for each in blocks])


@right("leak_probe")
def fresh_numbers(fn, x):
    before = fn(x)
    columns = []
    for s in range(x.shape[1]):
        y = x.clone()
        y[:, s] = torch.randn_like(x[:, s]) + 3
        columns.append((fn(y) != before).flatten(2).any(-1).any(0))
    return torch.stack(columns, dim=-1)


@right("leak_probe")
def entry_by_entry_probe(fn, x):
    T, generator = x.shape[1], torch.Generator().manual_seed(5)
    out, before = torch.zeros(T, T, dtype=torch.bool), fn(x.clone())
    for s in range(T):
        for _ in range(2):
            here = (torch.arange(T) == s)[None, :, None]
            other = torch.randn(x.shape, generator=generator, dtype=x.dtype)
            after = fn(torch.where(here, other, x))
            for t in range(T):
                out[t, s] |= not torch.equal(after[:, t], before[:, t])
    return out


@right("repaired_weights")
def by_where(q, k, mask):
    s = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(q.shape[-1])
    return torch.where(mask, s, -torch.inf).softmax(dim=-1)


@right("repaired_weights")
def by_additive_mask(q, k, mask):
    return (q @ k.mT * q.size(-1) ** -0.5 + torch.where(mask, 0.0, -torch.inf)).softmax(-1)


@right("repaired_weights")
def weights_through_values(q, k, mask):
    eye = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1)
    return F.scaled_dot_product_attention(q, k, eye, attn_mask=mask)
