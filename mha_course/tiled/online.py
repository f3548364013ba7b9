"""The online softmax: attend to some keys at a time and merge what was found."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mha_course.dot_product import without_autocast


class Partial(NamedTuple):
    """What each query knows after some of the keys.

    weight of key s = exp(scores[s] - maximum)

    Attributes:
        maximum: (..., T), the largest score so far; -inf where no key was seen.
        total: (..., T), the sum of the weights so far.
        out: (..., T, Dv), the sum of the values so far, each times its weight; `finish` divides it by total.
    """

    maximum: Float[Tensor, "*batch T"]
    total: Float[Tensor, "*batch T"]
    out: Float[Tensor, "*batch T Dv"]

    @property
    def logsumexp(self) -> Float[Tensor, "*batch T"]:
        """The log of the sum of exp(scores), -inf where no key was seen."""
        return self.maximum + self.total.log()


def nothing(q: Float[Tensor, "*batch T D"], Dv: int) -> Partial:
    """What each query knows before it has seen a key: merged with x, it gives x."""
    rows, kind = q.shape[:-1], working_type(q)
    empty = q.new_full(rows, -math.inf, dtype=kind), q.new_zeros(rows, dtype=kind)
    return Partial(*empty, q.new_zeros(*rows, Dv, dtype=kind))


def partial(
    q: Float[Tensor, "*batch T D"],
    k: Float[Tensor, "*kvbatch S D"],
    v: Float[Tensor, "*kvbatch S Dv"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    factors: Float[Tensor, "*batch T S"] | None = None,
) -> Partial:
    """Attend to these keys alone, without dividing by the sum of the weights.

    It computes in float32 where q is float16 or bfloat16. Gradients pass through; maximum is a constant to them.

    Args:
        q: queries (..., T, D), usually (B, H, T, D).
        k, v: keys (..., S, D) and values (..., S, Dv); Hkv heads where q has H, if they have four axes.
        mask: bool, True = may attend, broadcasts to (..., T, S).
        score_bias: added to the scaled scores, broadcasts to (..., T, S).
        scale: factor on q k^T, 1 / sqrt(D) if None.
        factors: (..., T, S), multiplied with the weights after they were summed: dropout.

    Returns:
        Partial(maximum, total, out). S must be at least 1.

    Source: Milakov and Gimelshein 2018, algorithm 3: m is maximum, d is total.
    """
    with without_autocast(q.device):
        hidden = hides(mask, score_bias, working_type(q))
        weights = tile_scores(q, k, hidden=hidden, score_bias=score_bias, scale=scale)  # (..., T, S)
        maximum = weights.detach().amax(dim=-1)  # (..., T)
        weights.sub_(finite(maximum)[..., None]).exp_()
        total = weights.sum(dim=-1)  # (..., T)
        if factors is not None:
            weights = weights * factors
        return Partial(maximum, total, times(weights, v.to(weights.dtype)))


def merge(a: Partial, b: Partial) -> Partial:
    """Know what a and b know, which have seen different keys; the order does not matter.

    maximum = max(maximum_a, maximum_b)
    total = exp(maximum_a - maximum) total_a + exp(maximum_b - maximum) total_b, and out likewise

    Source: Milakov and Gimelshein 2018, equation 4.
    """
    maximum = torch.maximum(a.maximum, b.maximum)
    old, new = (torch.exp(x.maximum - finite(maximum)) for x in (a, b))  # (..., T); one of them is 1
    return Partial(maximum, old * a.total + new * b.total, old[..., None] * a.out + new[..., None] * b.out)


def finish(seen: Partial) -> Float[Tensor, "*batch T Dv"]:
    """Divide by the sum of the weights: attention over all keys that were seen, 0 where there was none."""
    return seen.out / positive(seen.total)[..., None]


def hides(
    mask: Bool[Tensor, "..."] | None, score_bias: Float[Tensor, "..."] | None, kind: torch.dtype
) -> Bool[Tensor, "..."] | None:
    """Where a key is hidden, by the mask or by a bias of -inf; None if neither is there."""
    by_mask = None if mask is None else ~mask
    if score_bias is None:
        return by_mask
    by_bias = score_bias.to(kind) == -math.inf
    return by_bias if by_mask is None else by_mask | by_bias


def tile_scores(
    q: Float[Tensor, "*batch T D"],
    k: Float[Tensor, "*kvbatch S D"],
    *,
    hidden: Bool[Tensor, "..."] | None,
    score_bias: Float[Tensor, "..."] | None,
    scale: float | None,
) -> Float[Tensor, "*batch T S"]:
    """The scores as `mha_course.attention` has them, -inf where a key is hidden, in the working type."""
    kind = working_type(q)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = times(q.to(kind) * scale, k.to(kind).mT)
    if score_bias is not None:
        scores = scores + score_bias.to(kind)
    # a bias of -inf is filled in too: beside a score that overflowed to inf it made NaN
    return scores if hidden is None else scores.masked_fill_(hidden, -math.inf)


def times(rows: Float[Tensor, "*batch T n"], x: Float[Tensor, "*kvbatch n m"]) -> Float[Tensor, "*batch T m"]:
    """Multiply each head of rows with the head of x that it reads, without repeating x."""
    if rows.shape[:-2] == x.shape[:-2]:
        return rows @ x
    return (stacked(rows, x.shape[1]) @ x).view(*rows.shape[:-1], x.shape[-1])


def stacked(rows: Float[Tensor, "B H T n"], Hkv: int) -> Float[Tensor, "B Hkv GT n"]:
    """Put the query heads that read one key and value head below each other: G = H / Hkv heads, G T rows."""
    B, H, T, n = rows.shape
    return rows if H == Hkv else rows.reshape(B, Hkv, H // Hkv * T, n)


def working_type(x: Tensor) -> torch.dtype:
    """The type in which weights are computed and sums are kept: float32, or that of x if it is wider."""
    return torch.promote_types(x.dtype, torch.float32)


def finite(maximum: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """0 for -inf, the maximum of a row that sees nothing: its scores, all -inf, less 0 have weights of 0."""
    return maximum.masked_fill(maximum == -math.inf, 0.0)


def positive(total: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """1 for 0, the total of a row that sees nothing: 0 / 1 is 0."""
    return total.masked_fill(total == 0, 1.0)
