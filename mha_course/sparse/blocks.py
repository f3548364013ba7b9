"""Block-sparse attention: blocks of scores that the layout leaves out are never computed."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from mha_course.masks._inputs import check_bool, check_integer
from mha_course.sparse._inputs import check_call


def block_sparse(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B Hkv S D"],
    v: Float[Tensor, "B Hkv S Dv"],
    *,
    layout: Bool[Tensor, "rows columns"],
    block: int,
    mask: Bool[Tensor, "..."] | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Float[Tensor, "B H T Dv"]:
    """Compute attention for those blocks of queries and keys that the layout lets meet.

    out = attention(q, k, v, mask=mask & masks.blocks(layout, block, T, S), ...).out

    The same numbers as with that mask, and the same gradients. Each block of queries gathers the blocks
    of keys in its row of the layout, so T block R scores are computed, where R is the number of True
    in the fullest row: one row that sees everything makes all of them as dear. The gathered keys and
    values are copies, R times the size of k and v at equal T and S. PyTorch's fused kernel
    computes it, with the limits that `sparse` names.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, Hkv, S, D); query head h reads head h // (H / Hkv).
        v: values (B, Hkv, S, Dv).
        layout: bool (T / block, S / block), rounded up; True = queries t may attend to keys s where
            layout[t // block, s // block].
        block: number of queries, and of keys, in a block, at least 1.
        mask: bool, True = may attend, broadcasts to (B, H, T, S), and-ed with the layout.
        score_bias: added to the scaled scores, broadcasts to (B, H, T, S).
        scale: factor on q k^T, 1 / sqrt(D) if None.
        is_causal: query t may attend to keys 0 to t only, and where the rest lets it too. T = S.
        dropout_p: probability of dropping a weight, applied whenever it is above 0.

    Returns:
        out (B, H, T, Dv) in the type of q.

    Raises:
        TypeError: q, k, v are not floating point tensors of one type; layout or mask is not bool;
            score_bias is not floating point; scale or dropout_p is not a number; block is not an
            integer; is_causal is not a bool.
        ValueError: other than four axes; sizes that do not fit each other; Hkv does not divide H; layout
            of another shape or on another device; mask or score_bias that does not broadcast;
            is_causal with T != S; block below 1; scale that is not finite; dropout_p outside [0, 1].

    Source: Child et al. 2019, section 5.5; Zaheer et al. 2020 (BigBird), appendix D.
    """
    k, v = check_call(q, k, v, mask, score_bias, scale, is_causal, dropout_p)
    block = check_integer("block", block, least=1)
    (B, H, T, _), S = q.shape, k.shape[2]
    rows, columns = -(-T // block), -(-S // block)
    check_bool("layout", layout)
    if tuple(layout.shape) != (rows, columns):
        shape = tuple(layout.shape)
        raise ValueError(f"layout must be (T / block, S / block) = {(rows, columns)}, rounded up, got {shape}")
    if layout.device != q.device:
        raise ValueError(f"layout must be on q's device, {q.device}, got {layout.device}")
    block = min(block, max(T, S, 1))  # a larger one would be padded for nothing
    chosen, real = _columns(layout)  # (rows, R)
    width = chosen.shape[1] * block
    queries = F.pad(q, (0, 0, 0, rows * block - T)).unflatten(2, (rows, block)).flatten(1, 2)
    keys, values = (
        F.pad(x, (0, 0, 0, columns * block - S))
        .unflatten(2, (columns, block))
        .index_select(2, chosen.flatten())
        .reshape(B, H * rows, width, x.shape[3])
        for x in (k, v)
    )  # (B, H rows, R block, D)
    place = torch.arange(block, device=q.device)
    query = (torch.arange(rows, device=q.device)[:, None] * block + place)[..., None]  # (rows, block, 1)
    key = (chosen[..., None] * block + place).flatten(1)[:, None]  # (rows, 1, R block)
    may = real.repeat_interleave(block, dim=1)[:, None] & (key < S)
    if is_causal:
        may = may & (key <= query)
    may = may.expand(rows, block, width)
    query, key = query.clamp(max=max(T - 1, 0)), key.clamp(max=max(S - 1, 0))  # what pads is hidden or cut off
    if mask is not None:
        may = may & _entries(mask, query, key)
    added = may
    if score_bias is not None:
        added = _entries(score_bias.to(q.dtype), query, key).masked_fill(~may, -torch.inf)
    if added.ndim == 5:
        added = added.expand(-1, H, -1, -1, -1).flatten(1, 2)
    else:
        added = added.repeat(H, 1, 1)[None]  # (B or 1, H rows, block, R block)
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=added, dropout_p=dropout_p, scale=scale)
    return out.reshape(B, H, rows * block, v.shape[3])[:, :, :T]


def _columns(layout: Bool[Tensor, "rows columns"]) -> tuple[Int[Tensor, "rows R"], Bool[Tensor, "rows R"]]:
    """The columns that are True in each row, first to last, and which of them do not only fill up the row."""
    most = max([1, *layout.sum(1).tolist()])  # a row without any sees one that is hidden
    chosen = (~layout).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
    return chosen, layout.gather(1, chosen)


def _entries(x: Tensor, query: Int[Tensor, "rows block 1"], key: Int[Tensor, "rows 1 keys"]) -> Tensor:
    """What broadcasts to (B, H, T, S), read at these places: (B or 1, H or 1, rows, block, keys)."""
    x = x[(None,) * (4 - x.ndim)]
    query = query if x.shape[2] != 1 else torch.zeros_like(query)
    return x[:, :, query, key if x.shape[3] != 1 else torch.zeros_like(key)]
