"""The steps of multi-head attention besides `attention` itself: split, share, attend by SDPA, merge."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mha_course.masks import causal

# (q, k, v, *, mask, score_bias, scale, is_causal, dropout_p) -> out
Attend = Callable[..., Tensor]


def split_heads(x: Float[Tensor, "B T HD"], head_dim: int) -> Float[Tensor, "B H T D"]:
    """Give each head its features: those from h D to (h + 1) D go to head h.

    heads[b, h, t, d] = x[b, t, h D + d]
    """
    B, T, HD = x.shape
    return x.view(B, T, HD // head_dim, head_dim).transpose(1, 2)  # (B, T, H, D), then (B, H, T, D)


def merge_heads(heads: Float[Tensor, "B H T D"]) -> Float[Tensor, "B T HD"]:
    """Put the heads side by side, the inverse of `split_heads`.

    x[b, t, h D + d] = heads[b, h, t, d]
    """
    return heads.transpose(1, 2).flatten(2)  # (B, T, H, D), then (B, T, H D)


def one_per_query_head(x: Float[Tensor, "B Hkv S D"], q: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H S D"]:
    """Repeat each key or value head for the query heads of its group, which are neighbours."""
    groups = q.shape[1] // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def and_causal(mask: Bool[Tensor, "..."] | None, q: Float[Tensor, "B H T D"]) -> Bool[Tensor, "..."]:
    """Hide what comes after each query as well."""
    past = causal(q.shape[2], device=q.device)
    return past if mask is None else mask & past


def sdpa(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B Hkv S D"],
    v: Float[Tensor, "B Hkv S D"],
    *,
    mask: Bool[Tensor, "..."] | None,
    score_bias: Float[Tensor, "..."] | None,
    scale: float | None,
    is_causal: bool,
    dropout_p: float,
) -> Float[Tensor, "B H T D"]:
    """Let `F.scaled_dot_product_attention` compute it, which knows one float or bool mask."""
    if is_causal and not (mask is None and score_bias is None):
        mask, is_causal = and_causal(mask, q), False
    added = mask
    if score_bias is not None:
        bias = score_bias.to(q.dtype)
        added = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    if added is not None:
        added = added[(None,) * (4 - added.ndim)]  # the fused kernel takes two axes or four
    grouped = False
    if q.shape[1] != k.shape[1]:  # a branch: as a value, it would be symbolic in a compiled graph
        grouped = True  # faster than repeating k and v, and half the memory
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=added, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )
