"""Functions of q, k and v with wrong scores, weights or values."""

import math

import torch
import torch.nn.functional as F

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong("no_scale", said="no division at all")
def dot_product_attention(q, k, v, mask=None):
    scores = torch.matmul(q, k.transpose(-2, -1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


@wrong("no_scale", said="the scale of F.scaled_dot_product_attention is set to 1")
def scale_of_one(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)


@wrong("scale_by_d", said="folded samples (B, T, D), divided by D")
def divided_by_width(queries, keys, values):
    return torch.softmax(torch.bmm(queries, keys.transpose(1, 2)) / queries.shape[-1], dim=-1).bmm(values)


@wrong("scale_inverted", said="(B, T, H, D), the exponent of the scale lost its sign")
def scale_without_minus(q, k, v):
    sim = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** 0.5
    return torch.einsum("bhts,bshd->bthd", sim.softmax(dim=-1), v)


@wrong("scale_by_keys", said="the length of the keys is taken for their width")
def key_size_minus_two(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(k.size(-2))
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf"))
    return scores.softmax(-1) @ v


@wrong("scale_by_queries", stated={"layout": "B T D"}, said="(B, T, D), size(1) in place of size(2)")
def query_size_one(query, key, value):
    d_k = query.size(1)
    p_attn = F.softmax(torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k), dim=-1)
    return torch.matmul(p_attn, value), p_attn


@wrong("scale_by_num_heads", said="(B, H, T, D), size(1) is the number of heads")
def root_of_axis_one(q, k, v):
    return torch.softmax(q @ k.transpose(2, 3) / q.size(1) ** 0.5, dim=3) @ v


@wrong("scale_applied_to_mask", said="the additive mask is added before the scale")
def bias_scaled_too(q, k, v, mask=None):
    s = q @ k.transpose(-2, -1)
    if mask is not None:
        s = s + (torch.zeros_like(s).masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else mask)
    return torch.softmax(s * q.size(-1) ** -0.5, dim=-1) @ v


@wrong("scale_fixed", said="divided by 10, found by trying")
def divided_by_ten(q, k, v):
    return ((q @ k.mT) / 10.0).softmax(dim=-1) @ v


@wrong("scale_half", said="queries times the fourth root, keys not")
def query_side_only(q, k, v, mask=None):
    q = q * q.size(-1) ** -0.25
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)


@wrong(
    "scale_on_output", also=("scale_after_softmax",), said="the result is divided by the root of D, the scores are not"
)
def output_divided(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v / math.sqrt(v.size(-1))


@wrong("scale_twice", also=("scale_by_d",), said="queries and keys are both divided by the root of D")
def both_sides(q, k, v, mask=None):
    root = math.sqrt(q.shape[-1])
    s = torch.einsum("bhid,bhjd->bhij", q / root, k / root)
    if mask is not None:
        s = s.masked_fill(~mask, -1e9)
    return torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v)


@wrong("softmax_over_queries", said="(B, T, D), dim=1 of (B, T, S)")
def dim_one_of_three(q, k, v):
    return F.softmax(q @ k.transpose(1, 2) / math.sqrt(q.size(2)), dim=1) @ v


@wrong("softmax_over_heads", said="(B, T, H, D), F.softmax along axis 1 of (B, H, T, S)")
def normalized_over_heads(q, k, v):
    w = F.softmax(torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.size(-1)), dim=1)
    return torch.einsum("bhts,bshd->bthd", w, v)


@wrong("no_exp", said="scores divided by their sum, there is no exponential")
def scores_over_sum(q, k, v):
    s = q @ k.mT / math.sqrt(q.size(-1))
    return s / s.sum(dim=-1, keepdim=True) @ v


@wrong("exp_not_normalized", said="the sum of exponentials is forgotten")
def sum_forgotten(q, k, v, mask=None):
    e = torch.exp(q @ k.mT / math.sqrt(q.size(-1)))
    if mask is not None:
        e = e * mask
    return e @ v


@wrong("softmax_overflows", said="exp of the scores as they are: large ones become inf / inf")
def exp_of_large_scores(q, k, v, mask=None):
    e = torch.exp(q @ k.mT / math.sqrt(q.size(-1)))
    if mask is not None:
        e = e * mask
    return e / e.sum(-1, keepdim=True) @ v


@wrong("softmax_over_all", said="(B, T, D), one softmax over queries and keys of a sample")
def flattened_softmax(q, k, v):
    s = q @ k.mT / math.sqrt(q.size(-1))
    return torch.softmax(s.reshape(s.size(0), -1), -1).reshape(s.shape) @ v


@wrong("returns_keys", said="the weights are multiplied by the keys")
def mixes_keys(q, k, v, mask=None):
    attn = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        attn = attn.masked_fill(mask == 0, float("-inf"))
    return torch.softmax(attn, dim=-1) @ k


@wrong("weights_transposed", said="einsum sums over the query of the weights, not over the key")
def einsum_sums_queries(q, k, v):
    w = (torch.einsum("bhid,bhjd->bhij", q, k) / q.size(-1) ** 0.5).softmax(-1)
    return torch.einsum("bhij,bhid->bhjd", w, v)


@wrong("queries_keys_swapped", said="k @ q^T for q @ k^T")
def k_first(q, k, v):
    w = torch.softmax(k @ q.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)
    return w @ v


@wrong("query_added", said="the query is added to the result")
def with_residual(q, k, v, mask=None):
    return q + F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("first_head_only", said="every head gets the result of head 0")
def only_head_zero(q, k, v):
    w = torch.softmax(q[:, 0] @ k[:, 0].mT / math.sqrt(q.size(-1)), dim=-1)
    return (w @ v[:, 0]).unsqueeze(1).expand_as(q)


@wrong("first_sample_only", said="keys are those of sample 0 for all samples; values too")
def keys_of_sample_zero(q, k, v):
    return F.scaled_dot_product_attention(q, k[:1].expand_as(k), v[:1].expand_as(v))


@wrong("gqa_tiled_heads", said="fewer heads of keys, tiled 0 1 0 1")
def grouped_query(q, k, v):
    times = q.size(1) // k.size(1)
    return F.scaled_dot_product_attention(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1))
