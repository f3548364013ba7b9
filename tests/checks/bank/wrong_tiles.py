"""Functions that go through the keys tile by tile, and functions that misbehave when called."""

import math

import torch
import torch.nn.functional as F

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong("accumulator_not_rescaled", said="the denominator follows a new maximum, the sum of values does not")
def online_forgets_values(q, k, v):
    top, total, acc = None, 0.0, 0.0
    for at in range(0, k.size(-2), 4):
        s = q @ k[..., at : at + 4, :].mT / math.sqrt(q.size(-1))
        new = s.amax(-1, keepdim=True)
        if top is not None:
            new = torch.maximum(top, new)
            total = total * (top - new).exp()
        p = (s - new).exp()
        acc = acc + p @ v[..., at : at + 4, :]
        total = total + p.sum(-1, keepdim=True)
        top = new
    return acc / total


@wrong("total_not_rescaled", said="the sum of values follows a new maximum, the denominator does not")
def online_forgets_total(q, k, v, mask=None, tile=4):
    q = q * q.size(-1) ** -0.5
    top = q.new_full((*q.shape[:-1], 1), -1e30)
    total, acc = torch.zeros_like(top), torch.zeros_like(q)
    for start in range(0, k.size(-2), tile):
        s = q @ k[..., start : start + tile, :].transpose(-2, -1)
        if mask is not None:
            s = s.masked_fill(~mask.expand(*q.shape[:-1], k.size(-2))[..., start : start + tile], float("-inf"))
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        p = torch.exp(s - new)
        acc = acc * torch.exp(top - new) + p @ v[..., start : start + tile, :]
        total = total + p.sum(-1, keepdim=True)
        top = new
    return acc / total


@wrong("scale_grows_per_tile", said="the scale is multiplied by log2(e) in the loop, once more for each tile")
def exp2_with_growing_scale(q, k, v):
    scale, size = q.size(-1) ** -0.5, 4
    top = torch.full_like(q[..., :1], -math.inf)
    total, acc = torch.zeros_like(top), torch.zeros_like(q)
    for start in range(0, k.size(-2), size):
        scale = scale * math.log2(math.e)
        s = q @ k[..., start : start + size, :].mT * scale
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        shrink, p = torch.exp2(top - new), torch.exp2(s - new)
        total = total * shrink + p.sum(-1, keepdim=True)
        acc = acc * shrink + p @ v[..., start : start + size, :]
        top = new
    return acc / total


@wrong("last_tile_lost", said="whole tiles of 4 keys only, the rest is never read")
def whole_tiles_only(q, k, v):
    tiles = max(k.size(-2) // 4, 1)
    s = torch.cat([q @ k[..., 4 * i : 4 * i + 4, :].mT for i in range(tiles)], dim=-1) / math.sqrt(q.size(-1))
    return s.softmax(-1) @ v[..., : s.size(-1), :]


@wrong("tiles_averaged", said="every tile of 3 keys has a softmax of its own, the results are averaged")
def mean_of_tiles(q, k, v):
    parts = [
        F.scaled_dot_product_attention(q, keys, values)
        for keys, values in zip(k.split(3, dim=-2), v.split(3, dim=-2), strict=True)
    ]
    return torch.stack(parts).mean(dim=0)


@wrong("accumulator_not_rescaled", said="(B, T, D), one key at a time, the output is not rescaled")
def one_key_at_a_time(q, k, v):
    out = torch.zeros_like(q)
    top = torch.full_like(q[..., :1], -math.inf)
    total = torch.zeros_like(top)
    for j in range(k.size(1)):
        s = (q * k[:, j : j + 1]).sum(-1, keepdim=True) / math.sqrt(q.size(-1))
        new = torch.maximum(top, s)
        total = total * torch.exp(top - new) + torch.exp(s - new)
        out = out + torch.exp(s - new) * v[:, j : j + 1]
        top = new
    return out / total


@wrong("changes_input", said="queries are scaled in place")
def scales_in_place(q, k, v, mask=None):
    with torch.no_grad():
        q.mul_(q.size(-1) ** -0.5)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)


@wrong("gradient_cut", said="the loop takes numbers out with item()")
def number_by_number(q, k, v):
    s = (q @ k.mT / math.sqrt(q.size(-1))).flatten(0, -2)
    rows = []
    for row in s:
        e = [math.exp(x.item() - row.max().item()) for x in row]
        rows.append([x / sum(e) for x in e])
    return torch.tensor(rows, dtype=q.dtype).view(*q.shape[:-1], k.size(-2)) @ v


def remembering():
    seen = {}

    def remembers_weights(q, k, v):
        key = (tuple(q.shape), tuple(k.shape), q.dtype)
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        if key in seen:
            weights = seen[key]
        seen[key] = weights.detach()
        return weights @ v

    return remembers_weights


ITEMS.append(
    Item(
        name="remembers_weights",
        make=remembering,
        fault=("keeps_state",),
        said="weights are kept by the shape of the queries and used again for other queries",
        kind="function",
    )
)


@wrong("nondeterministic", said="a little noise on the scores in every call")
def noisy_scores(q, k, v):
    s = q @ k.mT / math.sqrt(q.size(-1))
    return (s + 0.1 * torch.randn_like(s)).softmax(-1) @ v


@wrong("raises", said="the keys are not transposed, the widths do not fit")
def keys_not_transposed(q, k, v):
    return torch.softmax(torch.einsum("bhtd,bhdt->bht", q, k) / math.sqrt(q.size(-1)), dim=-1) @ v


@wrong("wrong_shape", said="the axes are in another order on the way out, (B, D, H, T)")
def axes_out_of_order(q, k, v):
    return F.scaled_dot_product_attention(q, k, v).permute(0, 3, 1, 2)


@wrong("wrong_type", said="gives a nested list")
def gives_a_list(q, k, v):
    return F.scaled_dot_product_attention(q, k, v).tolist()


@wrong("returns_nan", said="the logarithm of scores, which are negative at times")
def log_of_scores(q, k, v):
    return (q @ k.mT / math.sqrt(q.size(-1))).log().softmax(-1) @ v


@wrong("endless_loop", said="the loop over tiles never moves on")
def never_moves_on(q, k, v):
    start, parts = 0, []
    while start < k.size(-2):
        parts = [q @ k[..., start : start + 16, :].mT / math.sqrt(q.size(-1))]
    return torch.cat(parts, dim=-1).softmax(-1) @ v
