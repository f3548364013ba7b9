"""Exact attention for a few queries at a time: the scores of all of them never exist at once."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mha_course.dot_product import attention
from mha_course.masks import causal
from mha_course.masks._inputs import check_integer
from mha_course.sparse._inputs import check_call


def chunked(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B Hkv S D"],
    v: Float[Tensor, "B Hkv S Dv"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    chunk: int = 128,
    recompute: bool = True,
) -> Float[Tensor, "B H T Dv"]:
    """Compute `attention` for `chunk` queries at a time: the same numbers in less memory.

    out[c] = softmax(scale * q[c] k^T + score_bias[c], -inf where mask[c] is False) v, for each chunk c

    A query needs its own row of scores and no other, so nothing is approximated. At most (B, H,
    chunk, S) scores exist at a time. For gradients the weights of every chunk would be kept, T S of
    them again: with `recompute` only q, k and v are kept, and each chunk is computed once more in
    the backward pass, which torch.func.grad and its like cannot do. With `is_causal`, keys
    after a chunk are not computed at all. The gradients of k and v are sums over the chunks: in half
    types, many small chunks round many times.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, Hkv, S, D); query head h reads head h // (H / Hkv).
        v: values (B, Hkv, S, Dv).
        mask: bool, True = may attend, broadcasts to (B, H, T, S).
        score_bias: added to the scaled scores, broadcasts to (B, H, T, S).
        scale: factor on q k^T, 1 / sqrt(D) if None.
        is_causal: query t may attend to keys 0 to t only, and where mask lets it too. T = S.
        dropout_p: probability of dropping a weight, applied whenever it is above 0.
        chunk: number of queries at a time, at least 1; may exceed T.
        recompute: whether the backward pass computes the weights again instead of keeping them.

    Returns:
        out (B, H, T, Dv) in the type of q.

    Raises:
        TypeError: q, k, v are not floating point tensors of one type; mask is not bool; score_bias is
            not floating point; scale or dropout_p is not a number; chunk is not an integer;
            is_causal or recompute is not a bool.
        ValueError: other than four axes; sizes that do not fit each other; Hkv does not divide H; mask
            or score_bias that does not broadcast; is_causal with T != S; chunk below 1; scale that
            is not finite; dropout_p outside [0, 1].

    Source: Rabe and Staats 2021, section 4 (they go through the keys in chunks too, as `tiled` does).
    Recomputing: Chen et al. 2016, section 4.
    """
    k, v = check_call(q, k, v, mask, score_bias, scale, is_causal, dropout_p)
    chunk = check_integer("chunk", chunk, least=1)
    if not isinstance(recompute, bool):
        raise TypeError(f"recompute must be True or False, got {type(recompute).__name__}")
    again = recompute and torch.is_grad_enabled()
    parts = []
    for start in range(0, max(q.shape[2], 1), chunk):  # T = 0 is one empty chunk
        inputs = (q, k, v, mask, score_bias, scale, is_causal, dropout_p, start, chunk)
        parts.append(checkpoint(_rows, *inputs, use_reentrant=False) if again else _rows(*inputs))
    return torch.cat(parts, dim=2)


def _rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    score_bias: Tensor | None,
    scale: float | None,
    is_causal: bool,
    dropout_p: float,
    start: int,
    chunk: int,
) -> Tensor:
    """The output of one chunk: `attention` of its queries to the keys that one of them may see."""
    stop = min(start + chunk, q.shape[2])
    seen = stop if is_causal else k.shape[2]
    may = _part(mask, start, stop, seen)
    if is_causal:
        past = causal(stop - start, seen, alignment="lower_right", device=q.device)
        may = past if may is None else may & past
    added = _part(score_bias, start, stop, seen)
    few, keys, values = q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen]
    return attention(few, keys, values, mask=may, score_bias=added, scale=scale, dropout_p=dropout_p).out


def _part(x: Tensor | None, start: int, stop: int, seen: int) -> Tensor | None:
    """The rows from start to stop, and the first `seen` keys, of what broadcasts to (B, H, T, S)."""
    if x is None or x.ndim == 0:
        return x
    x = x if x.shape[-1] == 1 else x[..., :seen]
    return x if x.ndim == 1 or x.shape[-2] == 1 else x[..., start:stop, :]
