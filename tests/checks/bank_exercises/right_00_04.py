"""Right solutions of the exercises of notebooks 00 to 04, in many styles."""

import math

import numpy as np
import torch
from torch.nn import functional as F

from tests.checks.bank_exercises import right


@right("softmax")
def by_logsumexp(scores):
    return (scores - scores.logsumexp(dim=1, keepdim=True)).exp()


@right("softmax")
def row_by_row(scores):
    rows = []
    for row in scores:
        e = (row - row.max()).exp()
        rows.append(e / e.sum())
    return torch.stack(rows)


@right("softmax")
def pairwise_differences(scores):
    return 1 / (scores[:, None, :] - scores[:, :, None]).exp().sum(dim=-1)


@right("softmax")
def maximum_as_a_constant(scores):
    e = torch.exp(scores - scores.detach().amax(dim=-1, keepdim=True))
    return torch.einsum("ts,t->ts", e, 1 / e.sum(dim=-1))


@right("one_query")
def in_a_loop(q, keys, values):
    e = [math.exp(float(np.dot(q, k)) / math.sqrt(len(q))) for k in keys]
    total, out = sum(e), np.zeros(values.shape[1])
    for w, v in zip(e, values, strict=True):
        out += w / total * v
    return out


@right("one_query")
def by_einsum(q, keys, values):
    s = np.einsum("d,sd->s", q, keys) * q.size**-0.5
    e = np.exp(s - s.max())
    return np.average(values, axis=0, weights=e)


@right("one_query")
def by_matrices(q, keys, values):
    e = np.exp(q[None] @ keys.T / np.sqrt(keys.shape[1]))
    return (e @ values / e.sum(axis=1, keepdims=True))[0]


@right("batched_attention")
def by_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@right("batched_attention")
def batched_einsum(q, k, v):
    w = torch.einsum("btd,bsd->bts", q, k).div(q.size(2) ** 0.5).softmax(dim=2)
    return torch.einsum("bts,bsv->btv", w, v)


@right("batched_attention")
def numerator_and_denominator(q, k, v):
    e = torch.exp(torch.bmm(q, k.permute(0, 2, 1)) / math.sqrt(float(q.shape[-1])))
    return torch.bmm(e, v) / e.sum(dim=-1, keepdim=True)


@right("batched_attention")
def by_broadcasting(q, k, v):
    s = (q[:, :, None] * k[:, None]).sum(-1) / q.shape[-1] ** 0.5
    return (s.softmax(-1)[..., None] * v[:, None]).sum(2)


@right("angles")
def by_coordinates(q_length, q_angle, key_lengths, key_angles):
    a, b = math.radians(q_angle), torch.deg2rad(key_angles)
    s = q_length * math.cos(a) * key_lengths * b.cos() + q_length * math.sin(a) * key_lengths * b.sin()
    return s, torch.softmax(s, 0)


@right("angles")
def by_polar(q_length, q_angle, key_lengths, key_angles):
    k = torch.polar(key_lengths, key_angles * math.pi / 180)
    s = (k * complex(math.cos(math.radians(q_angle)), -math.sin(math.radians(q_angle)))).real * q_length
    e = (s - s.max()).exp()
    return [s, e / e.sum()]


@right("weights_and_output")
def with_baddbmm(q, k, v):
    s = torch.baddbmm(torch.zeros(1, 1, 1, dtype=q.dtype), q, k.mT, alpha=q.shape[-1] ** -0.5)
    w = F.softmax(s, dim=-1)
    return w, torch.bmm(w, v)


@right("weights_and_output")
def keys_first_then_transposed(q, k, v):
    w = (k @ q.mT / math.sqrt(k.shape[-1])).softmax(dim=1).mT
    return w, w @ v


@right("weights_and_output")
def sample_by_sample(q, k, v):
    w = torch.stack([(a @ b.T / a.shape[1] ** 0.5).softmax(1) for a, b in zip(q, k, strict=True)])
    return w, torch.stack([a @ b for a, b in zip(w, v, strict=True)])


@right("score_std")
def from_variances(d_model, d_k, w_std):
    entry = d_model * w_std.square()
    raw = (d_k * entry**2).sqrt()
    return raw, raw / math.sqrt(d_k)


@right("score_std")
def in_a_list(d_model, d_k, w_std):
    scaled = [d_model * float(w) ** 2 for w in w_std]
    return tuple(torch.tensor([c * s for s in scaled], dtype=torch.float64) for c in (d_k**0.5, 1))


@right("scaled_scores")
def scale_on_both_sides(q, k):
    c = q.shape[-1] ** 0.25
    return (q / c) @ (k / c).transpose(1, 2)


@right("scaled_scores")
def scores_in_a_loop(q, k):
    rows = [[(q[b, t] * k[b]).sum(-1) / q.shape[2] ** 0.5 for t in range(q.shape[1])] for b in range(len(q))]
    return torch.stack([torch.stack(r) for r in rows])


@right("scaled_scores")
def identity_values(q, k):
    return torch.einsum("btd,bsd,->bts", q, k, torch.tensor(q.size(-1), dtype=q.dtype).rsqrt())


@right("growth_exponents")
def by_polyfit(widths, spreads):
    return torch.from_numpy(np.polyfit(np.log(widths.numpy()), np.log(spreads.numpy()).T, 1)[0].copy())


@right("growth_exponents")
def by_lstsq(widths, spreads):
    a = torch.stack([widths.log(), torch.ones_like(widths)], dim=1)
    return torch.linalg.lstsq(a, spreads.log().T).solution[0]


@right("growth_exponents")
def by_covariance(widths, spreads):
    return torch.stack([torch.cov(torch.stack([widths.log2(), s.log2()]))[0, 1] / widths.log2().var() for s in spreads])


@right("causal")
def compares_positions(T):
    i = torch.arange(T)
    return i.unsqueeze(1) >= i


@right("causal")
def causal_in_lists(T):
    return torch.tensor([[s <= t for s in range(T)] for t in range(T)])


@right("causal")
def cumulative(T):
    return torch.eye(T).cumsum(0).bool()


@right("causal")
def not_the_upper(T):
    return torch.ones(T, T).triu(1).logical_not()


@right("padding")
def padding_in_a_loop(lengths, S):
    out = torch.zeros(len(lengths), 1, 1, S, dtype=torch.bool)
    for b, n in enumerate(lengths.tolist()):
        out[b, ..., :n] = True
    return out


@right("padding")
def not_beyond(lengths, S):
    return ~(torch.arange(S).expand(lengths.numel(), 1, 1, S) >= lengths.view(-1, 1, 1, 1))


@right("padding")
def positions_from_one(lengths, S):
    return torch.where(torch.arange(1, S + 1)[None] <= lengths[:, None], True, False)[:, None, None]


@right("combined")
def as_a_minimum(lengths, T):
    s, t = torch.arange(T), torch.arange(T)[:, None]
    return s < torch.minimum(t + 1, lengths[:, None, None, None])


@right("combined")
def fills_hidden_ones(lengths, T):
    mask = torch.ones(len(lengths), 1, T, T, dtype=torch.bool).tril()
    for m, n in zip(mask, lengths, strict=True):
        m[..., int(n) :] = False
    return mask


@right("combined")
def product_of_integers(lengths, T):
    keep = (torch.arange(T)[None] < lengths[:, None]).int()
    return torch.einsum("ts,bs->bts", torch.ones(T, T, dtype=torch.int32).tril(), keep).unsqueeze(1) > 0


@right("window")
def band_of_tril_and_triu(T, window):
    return torch.ones(T, T, dtype=torch.bool).tril().triu(1 - window)


@right("window")
def difference_of_two(T, window):
    ones = torch.ones(T, T)
    return (ones.tril() - ones.tril(-window)).bool()


@right("window")
def windows_in_lists(T, window):
    return torch.tensor([[j in range(i - window + 1, i + 1) for j in range(T)] for i in range(T)])
