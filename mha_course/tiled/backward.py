"""Backward: compute the weights of each tile once more, and from them its share of every gradient."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mha_course.tiled.online import finite, hides, positive, stacked, tile_scores, times, working_type
from mha_course.tiled.tiles import Plan, blocks, cut, dropout_factors, in_the_future, tile_mask


def backward(
    dout: Float[Tensor, "B H T Dv"],
    out: Float[Tensor, "B H T Dv"],
    maximum: Float[Tensor, "B H T"],
    total: Float[Tensor, "B H T"],
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B Hkv S D"],
    v: Float[Tensor, "B Hkv S Dv"],
    mask: Bool[Tensor, "#B #H #T #S"] | None,
    score_bias: Float[Tensor, "#B #H #T #S"] | None,
    plan: Plan,
    needed: tuple[bool, bool, bool, bool],
) -> list[Tensor | None]:
    """The gradients of q, k, v and score_bias, None where they are not needed.

    weights = exp(scores - maximum) / total
    dv = (weights * factors)^T dout
    dweights = (dout v^T) * factors
    dscores = weights * (dweights - delta), 0 where a key is hidden, delta = sum of dout * out over Dv
    dq = scale * dscores k, dk = scale * dscores^T q, dscore_bias = dscores

    Source: Dao 2023 (FlashAttention-2), algorithm 2: P is weights, S is scores, D is delta. Its L is
        maximum + log(total); here they are kept apart, because beside a maximum of -1e9 float32
        loses log(total). factors, which it leaves out, are those of dropout.
    """
    kind, T, S, Hkv = working_type(q), q.shape[2], k.shape[2], k.shape[1]
    dout, maximum, total = dout.to(kind), finite(maximum)[..., None], positive(total)[..., None]  # (B, H, T, 1)
    delta = (dout * out).sum(-1, keepdim=True)  # (B, H, T, 1)
    dq, dk, dv, dbias = (
        torch.zeros_like(x, dtype=kind) if x is not None and need else None
        for x, need in zip((q, k, v, score_bias), needed, strict=True)
    )
    for rows in blocks(T, plan.block_q):
        q_tile, dout_tile = q[:, :, rows].to(kind), dout[:, :, rows]
        for columns in blocks(S, plan.block_k):
            if plan.is_causal and in_the_future(rows, columns):
                break
            k_tile, v_tile = k[:, :, columns].to(kind), v[:, :, columns].to(kind)
            bias = None if score_bias is None else cut(score_bias, rows, columns)
            hidden = hides(tile_mask(mask, rows, columns, plan.is_causal, q.device), bias, kind)
            scores = tile_scores(q_tile, k_tile, hidden=hidden, score_bias=bias, scale=plan.scale)
            weights = scores.sub_(maximum[:, :, rows]).exp_().div_(total[:, :, rows])  # (B, H, rows, columns)
            factors = dropout_factors(plan, q, S, rows, columns)
            if dv is not None:
                used = weights if factors is None else weights * factors
                dv[:, :, columns] += stacked(used, Hkv).mT @ stacked(dout_tile, Hkv)
            if dq is dk is dbias is None:
                continue
            dweights = times(dout_tile, v_tile.mT)  # (B, H, rows, columns)
            dweights = dweights if factors is None else dweights.mul_(factors)
            dscores = dweights.sub_(delta[:, :, rows]).mul_(weights)
            if hidden is not None:
                dscores.masked_fill_(hidden, 0.0)  # 0 * NaN is NaN
            if dq is not None:
                dq[:, :, rows] += times(dscores, k_tile).mul_(plan.scale)
            if dk is not None:
                dk[:, :, columns] += stacked(dscores, Hkv).mT @ stacked(q_tile * plan.scale, Hkv)
            if dbias is not None:
                part = cut(dbias, rows, columns)
                part += dscores.sum_to_size(part.shape)
    return [
        d.to(x.dtype) if x is not None and d is not None else None
        for d, x in zip((dq, dk, dv, dbias), (q, k, v, score_bias), strict=True)
    ]
