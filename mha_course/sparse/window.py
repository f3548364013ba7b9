"""A sliding window at the cost of the window: no score outside of the band's blocks is computed."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mha_course.masks._inputs import check_integer
from mha_course.sparse._inputs import check_call

SMALLEST_BLOCK = 32  # of queries; smaller ones leave the matrix products too little to do


def sliding_window(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B Hkv T D"],
    v: Float[Tensor, "B Hkv T Dv"],
    *,
    window: int,
    mask: Bool[Tensor, "..."] | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Float[Tensor, "B H T Dv"]:
    """Let each query see its own position and the window - 1 before it, in O(T window) time and memory.

    out = attention(q, k, v, mask=mask & masks.sliding_window(T, window), ...).out

    The same numbers as with that mask, and the same gradients. The mask alone saves nothing: all T T
    scores are computed first. Here a block of C = window / 2 queries, at least 32, meets the C +
    window - 1 keys that one of them may see: about 1.5 T window scores. Blocks of k and v overlap;
    they are views of one tensor, not copies. NaN or infinity in a hidden value reaches the queries
    of its blocks only. PyTorch's fused kernel computes it, with the limits that `sparse` names.

    As a backend: MultiHeadAttention(E, H, backend=partial(sliding_window, window=128)).

    Args:
        q: queries (B, H, T, D).
        k: keys (B, Hkv, T, D), as many as queries; query head h reads head h // (H / Hkv).
        v: values (B, Hkv, T, Dv).
        window: number of keys that a query sees, its own included, at least 1; may exceed T.
        mask: bool, True = may attend, broadcasts to (B, H, T, T), and-ed with the window. A mask of
            keys (B, 1, 1, T) keeps the cost; one with T rows is T T numbers before the call.
        score_bias: added to the scaled scores, broadcasts to (B, H, T, T). Likewise.
        scale: factor on q k^T, 1 / sqrt(D) if None.
        is_causal: changes nothing, the window looks back only.
        dropout_p: probability of dropping a weight, applied whenever it is above 0.

    Returns:
        out (B, H, T, Dv) in the type of q.

    Raises:
        TypeError: q, k, v are not floating point tensors of one type; mask is not bool; score_bias is
            not floating point; scale or dropout_p is not a number; window is not an integer;
            is_causal is not a bool.
        ValueError: other than four axes; sizes that do not fit each other; T != S; Hkv does not divide
            H; mask or score_bias that does not broadcast; window below 1; scale that is not finite;
            dropout_p outside [0, 1].

    Source: Beltagy et al. 2020 (Longformer), section 3.1 and appendix A; there the window has w / 2
    keys on each side, and blocks of w queries and keys overlap by half.
    """
    k, v = check_call(q, k, v, mask, score_bias, scale, is_causal, dropout_p)
    window = check_integer("window", window, least=1)
    B, H, T, D = q.shape
    if k.shape[2] != T:
        raise ValueError(f"sliding_window needs T = S, got T = {T} and S = {k.shape[2]}")
    window = max(1, min(window, T))
    block = max(SMALLEST_BLOCK, -(-window // 2))
    count = max(1, -(-T // block))
    before, after = window - 1, count * block - T

    queries = F.pad(q, (0, 0, 0, after)).reshape(B * H, count, block, D)
    keys, values = (
        F.pad(x, (0, 0, before, after)).flatten(0, 1).unfold(1, before + block, block).transpose(-2, -1) for x in (k, v)
    )  # (B H, blocks, before + block, D)
    query = torch.arange(block, device=q.device)[:, None]
    key = torch.arange(before + block, device=q.device)  # the key at 0 stands `before` places before the query at 0
    start = torch.arange(count, device=q.device)[:, None, None] * block
    may = (key >= query) & (key - query < window) & (start + key >= before)  # (blocks, block, before + block)
    if mask is not None:
        may = may & _blocks(mask, count, block, before, after)
    added = may
    if score_bias is not None:
        bias = _blocks(score_bias.to(q.dtype), count, block, before, after)
        added = bias.masked_fill(~may, -torch.inf)
    if added.ndim == 5:
        added = added.expand(B, H, -1, -1, -1).flatten(0, 1) if added.shape[:2] != (1, 1) else added[0]
    added = added[(None,) * (4 - added.ndim)]  # (B H or 1, blocks, block, before + block)
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=added, dropout_p=dropout_p, scale=scale)
    return out.reshape(B, H, count * block, v.shape[-1])[:, :, :T]


def _blocks(x: Tensor, count: int, block: int, before: int, after: int) -> Tensor:
    """Cut what broadcasts to (B, H, T, T) along its diagonal: (B or 1, H or 1, blocks, block, before + block)."""
    x = x[(None,) * (4 - x.ndim)]
    x = F.pad(x, (before, after) if x.shape[-1] != 1 else (0, 0))
    x = F.pad(x, (0, 0, 0, after) if x.shape[-2] != 1 else (0, 0, 0, 0))
    x = x.expand(*x.shape[:2], count * block, before + count * block)
    rows = x.unfold(2, block, block)  # (B, H, blocks, keys, block)
    both = rows.unfold(3, before + block, block)  # (B, H, blocks, blocks, block, before + block)
    return both.diagonal(dim1=2, dim2=3).movedim(-1, 2)
