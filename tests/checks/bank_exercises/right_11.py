"""Right solutions of the exercises of notebook 11, in many styles."""

import math
from functools import partial

import torch
from torch.nn import functional as F

from mha_course import linear, sparse
from tests.checks.bank_exercises import right


@right("windowed_attention")
def row_by_row(q, k, v, window):
    out = torch.empty_like(q)
    for t in range(len(q)):
        lo = max(0, t - window + 1)
        out[t] = (k[lo : t + 1] @ q[t] / math.sqrt(q.shape[1])).softmax(0) @ v[lo : t + 1]
    return out


@right("windowed_attention")
def gathered(q, k, v, window):
    at = torch.arange(len(q))[:, None] - torch.arange(window)
    s = torch.einsum("sd,swd->sw", q, k[at.clamp(min=0)]) / math.sqrt(q.shape[1])
    return torch.einsum("sw,swd->sd", s.masked_fill(at < 0, -1e9).softmax(-1), v[at.clamp(min=0)])


@right("windowed_attention")
def padded_and_unfolded(q, k, v, window):
    ks, vs = (F.pad(x, (0, 0, window - 1, 0)).unfold(0, window, 1) for x in (k, v))  # (S, D, W)
    s = (q[:, None] @ ks).squeeze(1) * q.shape[1] ** -0.5
    there = F.pad(torch.ones(len(q), dtype=torch.bool), (window - 1, 0)).unfold(0, window, 1)
    return (vs @ s.where(there, -math.inf).softmax(1)[..., None]).squeeze(2)


@right("windowed_attention")
def two_blocks(q, k, v, window):
    out = []
    for i in range(0, len(q), window):
        lo, hi = max(0, i - window + 1), min(i + window, len(q))
        gap = torch.arange(i, hi)[:, None] - torch.arange(lo, hi)
        s = q[i:hi] @ k[lo:hi].T / math.sqrt(q.shape[1])
        out.append(torch.softmax(s.masked_fill((gap < 0) | (gap >= window), float("-inf")), -1) @ v[lo:hi])
    return torch.cat(out)


@right("windowed_attention")
def blocks_of_64(q, k, v, window, block=64):
    out = torch.zeros_like(q)
    for i in range(0, len(q), block):
        rows, cols = slice(i, i + block), slice(max(0, i - window + 1), i + block)
        t, s = torch.arange(len(q))[rows, None], torch.arange(len(q))[cols]
        scores = q[rows] @ k[cols].T / math.sqrt(q.shape[1])
        out[rows] = scores.masked_fill((s > t) | (s <= t - window), -math.inf).softmax(-1) @ v[cols]
    return out


@right("windowed_attention")
def one_distance_at_a_time(q, k, v, window):
    S, D = q.shape
    s = torch.full((S, window), -math.inf, dtype=q.dtype)
    for j in range(min(window, S)):
        s[j:, j] = (q[j:] * k[: S - j]).sum(-1) / math.sqrt(D)
    w = s.softmax(-1)
    out = torch.zeros_like(v)
    for j in range(min(window, S)):
        out[j:] += w[j:, j : j + 1] * v[: S - j]
    return out


@right("windowed_attention")
def rolled_and_masked(q, k, v, window):
    n = min(window, len(q))
    ks, vs = (torch.stack([x.roll(j, 0) for j in range(n)], 1) for x in (k, v))
    s = (q[:, None] * ks).sum(-1) / math.sqrt(q.shape[1])
    s = s.masked_fill(torch.arange(n) > torch.arange(len(q))[:, None], -math.inf)
    e = (s - s.amax(1, keepdim=True)).exp()
    return (e[..., None] * vs).sum(1) / e.sum(1, keepdim=True)


@right("windowed_attention")
def of_the_package(q, k, v, window):
    return sparse.sliding_window(*(x[None, None] for x in (q, k, v)), window=window)[0, 0]


@right("linear_attention")
def with_a_state(q, k, v):
    state, norm = torch.zeros(k.shape[1], v.shape[1]).to(k), torch.zeros(k.shape[1]).to(k)
    out = torch.empty_like(v)
    for t in range(len(q)):
        state = state + torch.outer(k[t], v[t])
        norm = norm + k[t]
        out[t] = (q[t] @ state) / (q[t] @ norm)
    return out


@right("linear_attention")
def with_epsilon(q, k, v, eps=1e-6):
    state = torch.zeros(k.shape[1], v.shape[1], dtype=k.dtype)
    norm = torch.zeros(k.shape[1], dtype=k.dtype)
    rows = []
    for a, b, c in zip(q, k, v, strict=True):
        state += b[:, None] * c[None, :]
        norm += b
        rows.append(a @ state / (torch.dot(a, norm) + eps))
    return torch.stack(rows)


@right("linear_attention")
def by_cumsum(q, k, v):
    state = torch.cumsum(torch.einsum("sm,sd->smd", k, v), dim=0)
    return torch.einsum("sm,smd->sd", q, state) / torch.einsum("sm,sm->s", q, k.cumsum(0)).unsqueeze(-1)


@right("linear_attention")
def a_column_of_ones(q, k, v):
    with_one = torch.cat([v, torch.ones_like(v[:, :1])], dim=1)
    state = torch.zeros(k.shape[1], with_one.shape[1], dtype=v.dtype)
    sums = torch.empty_like(with_one)
    for t in range(len(q)):
        state.addr_(k[t], with_one[t])
        sums[t] = q[t] @ state
    return sums[:, :-1] / sums[:, -1:]


@right("linear_attention")
def state_transposed_throughout(q, k, v):
    state, norm = v.new_zeros(v.shape[1], k.shape[1]), 0
    out = torch.zeros(len(q), v.shape[1], dtype=v.dtype)
    for t, (a, b) in enumerate(zip(q, k, strict=True)):
        state, norm = state + torch.ger(v[t], b), norm + b
        out[t] = state.matmul(a).div((a * norm).sum())
    return out


@right("linear_attention")
def in_chunks(q, k, v, chunk=16):
    state, norm, out = 0, 0, []
    for a, b, c in zip(q.split(chunk), k.split(chunk), v.split(chunk), strict=True):
        w = (a @ b.T).tril()
        num, den = w @ c, w.sum(1)
        if out:
            num, den = num + a @ state, den + a @ norm
        out.append(num / den[:, None])
        state, norm = state + b.T @ c, norm + b.sum(0)
    return torch.cat(out)


@right("linear_attention")
def of_the_package_linear(q, k, v):
    attend = partial(linear.kernel.attention, feature_map=lambda x: x, is_causal=True)
    return attend(*(x[None, None] for x in (q, k, v)))[0, 0]
