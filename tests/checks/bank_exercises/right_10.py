"""Right solutions of the exercises of notebook 10, in many styles."""

import math

import torch
from torch.nn import functional as F

from tests.checks.bank_exercises import right


@right("merge_blocks")
def with_safe_maximum(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    safe = torch.where(m == -math.inf, 0, m)
    a, b = l1 * torch.exp(m1 - safe), l2 * torch.exp(m2 - safe)
    den = a + b
    o = (a[:, None] * o1 + b[:, None] * o2) / den.clamp(min=1)[:, None]
    return m, den, o


@right("merge_blocks")
def with_where(m1, l1, o1, m2, l2, o2):
    m = torch.where(m1 > m2, m1, m2)
    a = torch.where(l1 > 0, l1 * torch.exp(m1 - m), torch.zeros_like(l1))
    b = torch.where(l2 > 0, l2 * torch.exp(m2 - m), torch.zeros_like(l2))
    den = a + b
    share = torch.where(den > 0, a / den, torch.zeros_like(den)).unsqueeze(1)
    return m, den, torch.where(den[:, None] > 0, share * o1 + (1 - share) * o2, 0)


@right("merge_blocks")
def by_logsumexp(m1, l1, o1, m2, l2, o2):
    m = torch.stack([m1, m2]).amax(0)
    parts = torch.stack([m1 + l1.log(), m2 + l2.log()])
    weights = parts.softmax(0).nan_to_num(0.0)
    den = torch.exp(parts.logsumexp(0) - m).nan_to_num(0.0)
    return m, den, weights[0, :, None] * o1 + weights[1, :, None] * o2


@right("merge_blocks")
def row_by_row(m1, l1, o1, m2, l2, o2):
    m, den, o = torch.empty_like(m1), torch.zeros_like(l1), torch.zeros_like(o1)
    for t in range(len(m1)):
        m[t] = max(m1[t], m2[t])
        for mb, lb, ob in ((m1[t], l1[t], o1[t]), (m2[t], l2[t], o2[t])):
            if lb > 0:
                w = lb * math.exp(mb - m[t])
                den[t] += w
                o[t] += w * ob
        if den[t] > 0:
            o[t] /= den[t]
    return m, den, o


@right("merge_blocks")
def with_nan_to_num(m1, l1, o1, m2, l2, o2):
    m = torch.max(m1, m2)
    a, b = ((x - m).exp().nan_to_num(0).mul(n) for x, n in ((m1, l1), (m2, l2)))
    o = torch.nan_to_num((a.unsqueeze(-1) * o1 + b.unsqueeze(-1) * o2) / (a + b).unsqueeze(-1))
    return m, a + b, o


@right("merge_blocks")
def by_the_difference(m1, l1, o1, m2, l2, o2):
    gap = (m1 - m2).nan_to_num(0.0, math.inf, -math.inf)
    a = torch.exp(-F.relu(-gap)) * l1
    b = torch.exp(-F.relu(gap)) * l2
    den = torch.add(a, b)
    eps = torch.finfo(den.dtype).tiny
    o = torch.einsum("bt,btd->td", torch.stack([a, b]) / (den + eps), torch.stack([o1, o2]))
    return m1.maximum(m2), den, o


@right("tiled_attention")
def keys_outside(q, k, v, block):
    m = torch.full((len(q), 1), -math.inf, dtype=q.dtype)
    den, acc = torch.zeros_like(m), torch.zeros_like(q)
    for j in range(0, len(k), block):
        s = q @ k[j : j + block].T / math.sqrt(q.shape[1])
        new = torch.maximum(m, s.amax(1, keepdim=True))
        p = torch.exp(s - new)
        c = torch.exp(m - new)
        den = c * den + p.sum(1, keepdim=True)
        acc = c * acc + p @ v[j : j + block]
        m = new
    return acc / den


@right("tiled_attention")
def queries_outside(q, k, v, block):
    out = torch.empty_like(q)
    T, D = q.shape
    for i in range(0, T, block):
        qi = q[i : i + block] / D**0.5
        m = qi.new_full((len(qi),), -torch.inf)
        den, o = qi.new_zeros(len(qi)), torch.zeros_like(qi)
        for j in range(0, k.shape[0], block):
            s = torch.einsum("td,sd->ts", qi, k[j : j + block])
            new = torch.maximum(m, s.max(dim=1).values)
            p = (s - new[:, None]).exp()
            den = den * (m - new).exp() + p.sum(1)
            o = o * (m - new).exp()[:, None] + p @ v[j : j + block]
            m = new
        out[i : i + block] = o / den[:, None]
    return out


@right("tiled_attention")
def row_by_row_and_in_place(q, k, v, block):
    out = torch.zeros_like(q)
    for t in range(q.shape[0]):
        m, den = -math.inf, 0.0
        for kj, vj in zip(k.split(block), v.split(block), strict=True):
            s = (kj @ q[t]) / math.sqrt(q.shape[1])
            new = max(m, s.max().item())
            p = torch.exp(s - new)
            den = den * math.exp(m - new) + p.sum().item()
            out[t] *= math.exp(m - new)
            out[t] += p @ vj
            m = new
        out[t] /= den
    return out


@right("tiled_attention")
def by_logsumexp_of_blocks(q, k, v, block):
    out, lse = torch.zeros_like(q), q.new_full((len(q), 1), -torch.inf)
    for kj, vj in zip(torch.split(k, block), torch.split(v, block), strict=True):
        s = q @ kj.mT * q.shape[-1] ** -0.5
        here = s.logsumexp(-1, keepdim=True)
        both = torch.logaddexp(lse, here)
        out = out * torch.exp(lse - both) + F.softmax(s, dim=-1) @ vj * torch.exp(here - both)
        lse = both
    return out


@right("tiled_attention")
def merged_outputs(q, k, v, block):
    """Normalised in every step, as in the first paper."""
    o, den, m = torch.zeros_like(q), torch.zeros_like(q[:, :1]), torch.full_like(q[:, :1], -math.inf)
    for start in range(0, len(k), block):
        keys, values = k.narrow(0, start, min(block, len(k) - start)), v[start : start + block]
        s = torch.matmul(q, keys.transpose(0, 1)).div_(math.sqrt(q.size(1)))
        mb = s.max(1, keepdim=True)[0]
        p = s.sub_(mb).exp_()
        new = torch.where(mb > m, mb, m)
        a, b = den * torch.exp(m - new), torch.exp(mb - new) * p.sum(1, keepdim=True)
        o = (a * o + torch.exp(mb - new) * (p @ values)) / (a + b)
        den, m = a + b, new
    return o


@right("tiled_attention")
def split_keys_then_merged(q, k, v, block):
    """Every block by itself, and one merge at the end."""
    maxima, sums, outs = [], [], []
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / math.sqrt(q.shape[-1])
        maxima.append(s.amax(-1))
        p = torch.exp(s - maxima[-1][:, None])
        sums.append(p.sum(-1))
        outs.append(p @ vj)
    factors = torch.exp(torch.stack(maxima) - torch.stack(maxima).amax(0))
    den = (factors * torch.stack(sums)).sum(0)
    return torch.einsum("nt,ntd->td", factors, torch.stack(outs)) / den[:, None]


@right("tiled_attention")
def keys_padded(q, k, v, block):
    S, D = k.shape
    more = -S % block
    k, v = F.pad(k, (0, 0, 0, more)), F.pad(v, (0, 0, 0, more))
    m, den, acc = -1e300 * torch.ones(len(q), 1, dtype=q.dtype), 0, 0
    for n in range((S + more) // block):
        s = (q[:, None, :] * k[n * block : (n + 1) * block]).sum(-1) / D**0.5
        s = s.masked_fill(torch.arange(n * block, (n + 1) * block) >= S, -math.inf)
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p = torch.exp(s - new)
        den, acc = (
            den * torch.exp(m - new) + p.sum(-1, keepdim=True),
            acc * torch.exp(m - new) + p @ v[n * block :][:block],
        )
        m = new
    return acc / den


@right("tiled_attention")
def two_passes(q, k, v, block):
    """First the maximum, then sum and output: the scores are computed twice."""
    scale = q.shape[1] ** -0.5
    m = torch.stack([(q @ x.T * scale).amax(1) for x in k.split(block)]).amax(0)
    den, out = torch.zeros_like(m), torch.zeros_like(q)
    for x, y in zip(k.split(block), v.split(block), strict=True):
        p = torch.exp(q @ x.T * scale - m[:, None])
        den += p.sum(1)
        out.addmm_(p, y)
    return out.div_(den[:, None])
