"""Reformer: keys are hashed by direction, and a query looks only into its own bucket."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mha_course import dot_product
from mha_course.linear._inputs import at_least_float32, check_call, check_device
from mha_course.masks import causal
from mha_course.masks._inputs import check_integer


def attention(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H S D"],
    v: Float[Tensor, "B H S Dv"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    rotations: Float[Tensor, "rounds D half"],
) -> Float[Tensor, "B H T Dv"]:
    """Attend exactly, but only to keys that share a bucket with the query in one of the rounds.

    out = attention(q, k, v, mask=mask & share_bucket(q, k, rotations), ...).out

    It shows what hashing keeps and loses, not its speed: the mask is dense, O(T S). The paper sorts
    tokens by bucket and lets neighbours attend, which is where its O(S log S) comes from. It also
    takes the queries as keys, so that a token shares its own bucket; here a query that is alone
    gets 0. For normal q, k, v of variance 1, S = 256, D = 64, 8 buckets, the output is, relative to
    the exact output's norm, 2.4 away with 1 round (13 % of pairs kept), 0.53 with 8 (65 %); the
    plain average of all values is 0.80 away. It needs attention that is nearly all on few keys.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, Dv).
        mask: bool, True = may attend, broadcasts to (B, H, T, S), and-ed with the buckets.
        score_bias: added to the scaled scores, broadcasts to (B, H, T, S).
        scale: factor on q k^T, 1 / sqrt(D) if None.
        is_causal: query t may attend to keys 0 to t only, and where the rest lets it too. T = S.
        dropout_p: probability of dropping a weight, applied whenever it is above 0.
        rotations: (rounds, D, buckets / 2), see `random_rotations`.

    Returns:
        out (B, H, T, Dv) in the type of q. No gradient goes through the buckets.

    Raises:
        TypeError: as `dot_product.attention`; is_causal is not a bool; rotations is not a floating
            point tensor.
        ValueError: as `dot_product.attention`; other than four axes; is_causal with T != S;
            rotations is not (rounds, D, buckets / 2) or on another device.

    Source: Kitaev et al. 2020, section 2; equation 6 for several rounds.
    """
    check_call(q, k, v, is_causal)
    may = share_bucket(q, k, rotations)
    dot_product.check_addend("mask", mask, tuple(may.shape), q)
    if mask is not None:
        may = may & mask
    if is_causal:
        may = may & causal(q.shape[2], device=q.device)
    return dot_product.attention(q, k, v, mask=may, score_bias=score_bias, scale=scale, dropout_p=dropout_p).out


def buckets(
    x: Float[Tensor, "*batch S D"], rotations: Float[Tensor, "rounds D half"]
) -> Int[Tensor, "*batch rounds S"]:
    """Hash vectors by direction: near ones fall into one bucket more often than far ones.

    bucket = argmax of [x R, -x R], for each round's R; the length of x does not matter

    In float32 at least: half types would put neighbours of a border on its other side.

    Args:
        x: (..., S, D).
        rotations: R (rounds, D, buckets / 2).

    Returns:
        (..., rounds, S), integers from 0 to buckets - 1.

    Raises:
        TypeError: x or rotations is not a floating point tensor.
        ValueError: x has fewer than two axes; rotations is not (rounds, D, buckets / 2) or on another
            device.

    Source: Kitaev et al. 2020, section 2, "Locality sensitive hashing"; Andoni et al. 2015.
    """
    _check_vectors("x", x)
    if not isinstance(rotations, Tensor) or not rotations.is_floating_point():
        got = rotations.dtype if isinstance(rotations, Tensor) else type(rotations).__name__
        raise TypeError(f"rotations must be a floating point tensor (rounds, D, buckets / 2), got {got}")
    if rotations.ndim != 3 or rotations.shape[1] != x.shape[-1] or not rotations.numel():
        shape = tuple(rotations.shape)
        raise ValueError(f"rotations must be (rounds, D, buckets / 2) with D = {x.shape[-1]}, got {shape}")
    check_device("rotations", rotations, x)
    (wide,) = at_least_float32(x.detach())
    with dot_product.without_autocast(x.device):
        turned = wide.unsqueeze(-3) @ rotations.to(wide.dtype)  # (..., rounds, S, buckets / 2)
    return torch.cat([turned, -turned], dim=-1).argmax(-1)


def share_bucket(
    q: Float[Tensor, "*batch T D"], k: Float[Tensor, "*batch S D"], rotations: Float[Tensor, "rounds D half"]
) -> Bool[Tensor, "*batch T S"]:
    """Find the pairs of a query and a key that fall into one bucket in at least one round.

    Args:
        q: (..., T, D).
        k: (..., S, D).
        rotations: (rounds, D, buckets / 2).

    Returns:
        Bool tensor (..., T, S), a mask: True = may attend.

    Raises:
        TypeError, ValueError: as `buckets`, for q and k; ValueError if their leading sizes differ.
    """
    _check_vectors("q", q)
    _check_vectors("k", k)
    if q.shape[:-2] != k.shape[:-2]:
        raise ValueError(f"q and k must have the same leading sizes, got {tuple(q.shape)} and {tuple(k.shape)}")
    of_q, of_k = buckets(q, rotations), buckets(k, rotations)  # (..., rounds, T or S)
    return (of_q.unsqueeze(-1) == of_k.unsqueeze(-2)).any(-3)


def _check_vectors(name: str, x: Tensor) -> None:
    """Raise unless x holds vectors, (..., S, D)."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"{name} must be a floating point tensor, got {got}")
    if x.ndim < 2:
        raise ValueError(f"{name} must have at least two axes (length, width), got {tuple(x.shape)}")


def random_rotations(
    rounds: int,
    D: int,
    count: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "rounds D half"]:
    """Draw the normal numbers that `buckets` hashes with.

    Args:
        rounds: number of independent hashes, at least 1.
        D: width, at least 1.
        count: number of buckets, even, at least 2.
        generator: what to draw from, on the device; PyTorch's own if None.
        device, dtype: of the result.

    Returns:
        (rounds, D, count / 2).

    Raises:
        TypeError: rounds, D or count is not an integer.
        ValueError: rounds or D is below 1, count below 2 or odd.
    """
    rounds, D = check_integer("rounds", rounds, least=1), check_integer("D", D, least=1)
    if check_integer("count", count, least=2) % 2:
        raise ValueError(f"count must be even, got {count}")
    return torch.randn(rounds, D, count // 2, generator=generator, device=device, dtype=dtype)
