"""Modules that read their mask in a wrong way."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


class Masked(nn.Module):
    """Cross-attention with a mask; the class below applies it to the scores."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def hide(self, scores, mask):
        raise NotImplementedError

    def forward(self, query, key, value, attn_mask=None):
        def split(t):
            return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

        q, k, v = split(self.q_proj(query)), split(self.k_proj(key)), split(self.v_proj(value))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if attn_mask is not None:
            scores = self.hide(scores, attn_mask)
        weights = torch.softmax(scores, dim=-1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))


@wrong("mask_inverted", size=(32, 4), stated={"mask": "may attend"}, said="fills where the mask is True")
class FillsTheVisible(Masked):
    def hide(self, scores, mask):
        return scores.masked_fill(mask, torch.finfo(scores.dtype).min)


@wrong(
    "bool_mask_added",
    size=(16, 4),
    stated={"mask": "may attend"},
    said="a mask of booleans is added: True counts as one",
)
class BoolAdded(Masked):
    def hide(self, scores, mask):
        return scores + mask


@wrong(
    "mask_fill_zero",
    size=(24, 4),
    said="scores are multiplied by the mask, hidden ones become 0 and not minus infinity",
)
class ScoresTimesMask(Masked):
    def hide(self, scores, mask):
        return scores * mask


@wrong("mask_fill_zero", size=(24, 2), said="1e-9 is filled in where -1e9 is meant")
class TinyFill(Masked):
    def hide(self, scores, mask):
        return scores.masked_fill(mask == 0, 1e-9)


@wrong("mask_fill_weak", size=(32, 2), said="hidden scores are set to -10, which large scores come near")
class FillMinusTen(Masked):
    def hide(self, scores, mask):
        return torch.where(mask, scores, torch.full_like(scores, -10.0))


@wrong("mask_fill_positive", size=(32, 4), said="hidden scores are set to +1e9")
class FillPlus(Masked):
    def hide(self, scores, mask):
        return scores.masked_fill(mask == 0, 1e9)


@wrong(
    "mask_times_inf", size=(16, 2), also=("returns_nan",), said="(1 - mask) is multiplied by -inf: 0 times inf is NaN"
)
class ZeroTimesInf(Masked):
    def hide(self, scores, mask):
        return scores + (1.0 - mask.to(scores.dtype)) * float("-inf")


@wrong(
    "mask_last_key_only",
    size=(24, 3),
    said="after the loop over keys only the last column is masked, an indent is missing",
)
class LastColumnOnly(Masked):
    def hide(self, scores, mask):
        mask = mask.expand(scores.shape)
        out = scores.clone()
        for j in range(scores.size(-1)):
            column = scores[..., j].masked_fill(~mask[..., j], float("-inf"))
        out[..., j] = column
        return out


@wrong(
    "mask_additive_sign",
    also=("returns_nan",),
    size=(32, 4),
    stated={"mask": "additive"},
    said="the additive mask is subtracted",
)
class Subtracted(Masked):
    def hide(self, scores, mask):
        return scores - mask


@wrong("mask_first_sample", size=(24, 4), said="every sample gets the mask of the first one")
class FirstMaskForAll(Masked):
    def hide(self, scores, mask):
        return scores.masked_fill(~mask[0], float("-inf"))


@wrong(
    "mask_batch_axis_meets_heads",
    size=(16, 4),
    stated={"mask_axes": "B T S"},
    said="a (B, T, S) mask meets scores (B, H, T, S): B falls on H",
)
class ThreeAxesMeetFour(Masked):
    def hide(self, scores, mask):
        return scores.masked_fill(~mask, float("-inf"))


@wrong(
    "padding_on_query_axis",
    size=(24, 4),
    stated={"mask_axes": "B S"},
    said="a (B, S) mask of keys is laid along the queries",
)
class PaddingHidesQueries(Masked):
    def hide(self, scores, mask):
        return scores.masked_fill(~mask[:, None, :, None], -1e4)


@wrong("mask_ignored", size=(32, 8), said="the result of masked_fill is thrown away")
class FillDiscarded(Masked):
    def hide(self, scores, mask):
        scores.masked_fill(mask == 0, float("-inf"))
        return scores


@wrong("mask_ignored", said="the mask is an argument and nothing more")
class MaskUnread(Masked):
    def hide(self, scores, mask):
        return scores


@wrong("mask_transposed", size=(32, 4), said="the mask's rows are taken for keys")
class MaskTurned(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, mask=None):
        q, k, v = (t.unflatten(2, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=2))
        if mask is not None:
            mask = mask.transpose(-2, -1)
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


@wrong("mask_head_order", size=(24, 3), said="heads are folded sample by sample, the mask is repeated head by head")
class MaskRepeatedWhole(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead = nhead
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, q, k, v, mask=None):
        n, t, e = q.shape

        def fold(x):
            return x.view(n, -1, self.nhead, e // self.nhead).transpose(1, 2).flatten(0, 1)

        q, k, v = fold(self.w_q(q)), fold(self.w_k(k)), fold(self.w_v(v))
        s = torch.bmm(q, k.transpose(1, 2)) / (e // self.nhead) ** 0.5
        if mask is not None:
            m = mask.squeeze(1).expand(n, t, k.size(1)).repeat(self.nhead, 1, 1)
            s = s.masked_fill(~m, float("-inf"))
        out = torch.bmm(F.softmax(s, dim=-1), v)
        return self.w_o(out.view(n, self.nhead, t, -1).transpose(1, 2).reshape(n, t, e))


@wrong(
    "mask_after_softmax",
    size=(32, 4),
    said="hidden weights are set to zero after the softmax, the rest sums to less than one",
)
class ZeroedAfterwards(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        attn = (torch.einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5).softmax(dim=-1)
        if mask is not None:
            attn = attn.masked_fill(~mask, 0.0)
        return self.to_out(torch.einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).flatten(2))


@wrong(
    "mask_on_values",
    size=(24, 4),
    also=("mask_after_softmax",),
    stated={"mask_axes": "B S"},
    said="the values of padding are set to zero, their weights are not",
)
class PaddedValuesZeroed(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query_dense, self.key_dense, self.value_dense, self.dense = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, padding_mask=None):
        v = self.value_dense(value)
        if padding_mask is not None:
            v = v * padding_mask.unsqueeze(-1)
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for t in (self.query_dense(query), self.key_dense(key), v)
        )
        return self.dense(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@wrong("causal_in_place_of_mask", size=(32, 4), said="a mask only switches is_causal on, what it says is not read")
class MaskMeansCausal(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)
        return self.proj(y.transpose(1, 2).flatten(2))


@wrong(
    "causal_beside_mask", size=(24, 4), stated={"causal": False}, said="hides the future as well as what the mask hides"
)
class CausalAsWell(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        if mask is not None:
            mask = mask & torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).flatten(2))
