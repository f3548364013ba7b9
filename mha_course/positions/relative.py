"""Relative positions as a bias on the scores: a number for each distance between a query and a key."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from mha_course.positions._inputs import check_dtype, check_integer

Device = torch.device | str


def alibi_slopes(
    num_heads: int, *, rule: Literal["code", "paper"] = "code", device: Device | None = None
) -> Float[Tensor, " H"]:
    """Return the slope of each head, by which ALiBi lowers a score for each token of distance.

    For H a power of two:   slope_h = 2^(-8 h / H),  h = 1 ... H

    For another H the authors' code and their paper differ. "code" takes the slopes of the largest power of two below
    H, then every other one of twice that power, from the first on: what BLOOM and MPT were trained with. "paper" uses
    the formula above for all H.

    Args:
        num_heads: H, at least 1.
        rule: "code" or "paper".
        device: where the slopes are made.

    Returns:
        Slopes (H,), float32.

    Raises:
        TypeError: num_heads is not an integer.
        ValueError: num_heads is below 1; another rule.

    Source: Press et al. 2022, section 3 (the geometric sequence) and its code, `get_slopes`.
    """
    num_heads = check_integer("num_heads", num_heads, least=1)
    if rule not in ("code", "paper"):
        raise ValueError(f"rule must be 'code' or 'paper', got {rule!r}")
    head = torch.arange(1, num_heads + 1, device=device, dtype=torch.float32)
    if rule == "paper":
        return torch.exp2(-8 * head / num_heads)
    power = 2 ** (num_heads.bit_length() - 1)  # the largest power of two that is at most H
    between = torch.exp2(-4 * (2 * head[: num_heads - power] - 1) / power)
    return torch.cat([torch.exp2(-8 * head[:power] / power), between])


def alibi(
    T: int,
    S: int | None = None,
    *,
    num_heads: int,
    offset: int = 0,
    rule: Literal["code", "paper"] = "code",
    device: Device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "H T S"]:
    """Return the score_bias of ALiBi: every head likes near keys better, each at its own rate.

    bias[h, t, s] = -slope_h |t + offset - s|

    The paper's models are causal and see only keys at or before the query; the bias of a later key is its mirror.

    Args:
        T: number of queries, at least 0.
        S: number of keys, at least 0; T if None.
        num_heads: H, at least 1.
        offset: position of the first query, at least 0: S - T when earlier keys come from a cache.
        rule: of `alibi_slopes`.
        device: where the bias is made.
        dtype: its type; computed in float32.

    Returns:
        Bias (H, T, S); it broadcasts to (B, H, T, S).

    Raises:
        TypeError: a size or offset is not an integer; dtype is not a floating point type.
        ValueError: T, S or offset is negative; num_heads is below 1; another rule.

    Source: Press et al. 2022, section 3, equation of figure 3: m is the slope.
    """
    check_dtype(dtype)
    slopes = alibi_slopes(num_heads, rule=rule, device=device)
    away = _distance(T, S, offset, device).abs()  # (T, S)
    return (slopes[:, None, None] * -away).to(dtype)


def t5_buckets(
    distance: Integer[Tensor, "*shape"], *, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
) -> Integer[Tensor, "*shape"]:
    """Sort distances into T5's buckets: near ones alone, farther ones in groups that grow, the farthest all in one.

    With n buckets a direction, m = n // 2 of them for one distance each, and a key d tokens away:

    bucket = d                                                                  for d < m
    bucket = min(n - 1, m + floor((n - m) log(d / m) / log(max_distance / m)))  otherwise

    bidirectional: n = num_buckets / 2, and n is added for keys ahead. Otherwise n = num_buckets, and keys ahead, which
    a causal mask hides, are in bucket 0.

    Args:
        distance: position of the key minus that of the query, integers of any shape.
        bidirectional: whether keys ahead have buckets of their own.
        num_buckets: of both directions together.
        max_distance: from here on, all distances of a direction are in its last bucket.

    Returns:
        Bucket of each distance, int64, 0 to num_buckets - 1.

    Raises:
        TypeError: distance is not an integer tensor; num_buckets or max_distance is not an integer.
        ValueError: num_buckets below 2 (4 if bidirectional), or odd if bidirectional; max_distance not above n // 2.

    Source: Raffel et al. 2020 (T5), section 2.1; the formula is that of their code, `_relative_position_bucket`.
    """
    if not isinstance(distance, Tensor):
        raise TypeError(f"distance must be an integer tensor, got {type(distance).__name__}")
    if distance.dtype == torch.bool or distance.is_floating_point() or distance.is_complex():
        raise TypeError(f"distance must be an integer tensor, got {distance.dtype}")
    num_buckets, max_distance, exact = _check_buckets(bidirectional, num_buckets, max_distance)
    distance = distance.long().clamp(-max_distance, max_distance)  # beyond, nothing changes
    if bidirectional:
        buckets, ahead = num_buckets // 2, (distance > 0) * (num_buckets // 2)
        away = distance.abs()
    else:
        buckets, ahead = num_buckets, torch.zeros_like(distance)
        away = (-distance).clamp(min=0)
    # In float32, as the models in use were trained: at a group's edge the last bit would decide.
    share = (away.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    group = exact + (share * (buckets - exact)).long()
    return ahead + torch.where(away < exact, away, group.clamp(max=buckets - 1))


class T5Bias(nn.Module):
    """A learned score_bias for each head and bucket of distances.

    The biases start as N(0, 0.02^2). T5 shares one such module between all layers.

    Args:
        num_heads: H, at least 1.
        bidirectional, num_buckets, max_distance: see `t5_buckets`.
        device, dtype: of the parameter.

    Raises:
        TypeError: num_heads, num_buckets or max_distance is not an integer; dtype is not a floating point type.
        ValueError: num_heads below 1; what `t5_buckets` raises.

    Source: Raffel et al. 2020 (T5), section 2.1.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        bidirectional: bool = True,
        num_buckets: int = 32,
        max_distance: int = 128,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_heads = check_integer("num_heads", num_heads, least=1)
        if dtype is not None:
            check_dtype(dtype)
        num_buckets, self.max_distance, _ = _check_buckets(bidirectional, num_buckets, max_distance)
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the biases anew."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, T: int, S: int | None = None, *, offset: int = 0) -> Float[Tensor, "H T S"]:
        """Return the score_bias of T queries and S keys.

        Args:
            T: number of queries, at least 0.
            S: number of keys, at least 0; T if None.
            offset: position of the first query, at least 0: S - T when earlier keys come from a cache.

        Returns:
            Bias (H, T, S) in the type of the parameter; it broadcasts to (B, H, T, S).

        Raises:
            TypeError: T, S or offset is not an integer.
            ValueError: one of them is negative.
        """
        buckets = t5_buckets(
            _distance(T, S, offset, self.weight.device),
            bidirectional=self.bidirectional,
            num_buckets=self.weight.shape[0],
            max_distance=self.max_distance,
        )
        return self.weight[buckets].permute(2, 0, 1)  # (T, S, H) -> (H, T, S)

    def extra_repr(self) -> str:
        """Return what `print` shows."""
        buckets, heads = self.weight.shape
        options = f"bidirectional={self.bidirectional}, num_buckets={buckets}, max_distance={self.max_distance}"
        return f"{heads}, {options}"


def _check_buckets(bidirectional: bool, num_buckets: int, max_distance: int) -> tuple[int, int, int]:
    """Raise unless these make buckets; return both, and how many distances of a direction have one alone."""
    num_buckets = check_integer("num_buckets", num_buckets, least=4 if bidirectional else 2)
    if bidirectional and num_buckets % 2:
        raise ValueError(f"num_buckets must be even if bidirectional, got {num_buckets}")
    exact = num_buckets // (4 if bidirectional else 2)
    return num_buckets, check_integer("max_distance", max_distance, least=exact + 1), exact


def _distance(T: int, S: int | None, offset: int, device: Device | None) -> Integer[Tensor, "T S"]:
    """Position of each key minus that of each query."""
    T, S = check_integer("T", T), check_integer("S", T if S is None else S)
    offset = check_integer("offset", offset)
    query = torch.arange(T, device=device) + offset
    return torch.arange(S, device=device) - query.unsqueeze(-1)  # (T, S)
