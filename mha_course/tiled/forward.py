"""Forward: for each block of queries, merge what it finds in each block of keys."""

from jaxtyping import Bool, Float
from torch import Tensor

from mha_course.tiled.online import finish, merge, nothing, partial, working_type
from mha_course.tiled.tiles import Plan, blocks, cut, dropout_factors, in_the_future, tile_mask


def forward(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B Hkv S D"],
    v: Float[Tensor, "B Hkv S Dv"],
    mask: Bool[Tensor, "#B #H #T #S"] | None,
    score_bias: Float[Tensor, "#B #H #T #S"] | None,
    plan: Plan,
) -> tuple[Float[Tensor, "B H T Dv"], Float[Tensor, "B H T"], Float[Tensor, "B H T"]]:
    """Attend tile by tile; return out, and the maximum and total of each row for the backward pass."""
    (B, H, T, _), (S, Dv) = q.shape, v.shape[2:]
    out = q.new_empty(B, H, T, Dv)
    maximum, total = q.new_empty(2, B, H, T, dtype=working_type(q))
    for rows in blocks(T, plan.block_q):
        seen = nothing(q[:, :, rows], Dv)
        for columns in blocks(S, plan.block_k):
            if plan.is_causal and in_the_future(rows, columns):
                break
            new = partial(
                q[:, :, rows],
                k[:, :, columns],
                v[:, :, columns],
                mask=tile_mask(mask, rows, columns, plan.is_causal, q.device),
                score_bias=None if score_bias is None else cut(score_bias, rows, columns),
                scale=plan.scale,
                factors=dropout_factors(plan, q, S, rows, columns),
            )
            seen = merge(seen, new)
        out[:, :, rows] = finish(seen)
        maximum[:, :, rows], total[:, :, rows] = seen.maximum, seen.total
    return out, maximum, total
