"""Heads split and merged without the transpose, for notebook 07: the shapes are right, the entries are not."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mha_course.dot_product import attention
from mha_course.experiments.scaling_training import at_least
from mha_course.masks import causal as causal_mask
from mha_course.multihead import MultiHeadAttention

RIGHT, SPLIT, MERGE, BOTH = "right", "wrong split", "wrong merge", "both wrong"
LAYOUTS = (RIGHT, SPLIT, MERGE, BOTH)


def wrong_split(x: Float[Tensor, "B T HD"], num_heads: int) -> Float[Tensor, "B H T D"]:
    """Cut x into the shape of heads by `view` alone.

    Entry (b, h, t, :) is chunk i = h T + t of sample b, where chunk i is feature block i mod H of token i // H. Head h
    thus holds the tokens from h T / H to (h + 1) T / H, each in H pieces, instead of a piece of every token.

    Args:
        x: (B, T, H D).
        num_heads: H.

    Returns:
        (B, H, T, D).

    Raises:
        TypeError: num_heads is not an integer.
        ValueError: num_heads below 1, or it does not divide the width.
    """
    at_least("num_heads", num_heads, 1)
    B, T, width = x.shape
    if width % num_heads:
        raise ValueError(f"num_heads must divide the width of x, got {num_heads} and {width}")
    return x.reshape(B, num_heads, T, width // num_heads)


def wrong_merge(heads: Float[Tensor, "B H T D"]) -> Float[Tensor, "B T HD"]:
    """Bring heads (B, H, T, D) into the shape (B, T, H D) by `reshape` alone, which undoes `wrong_split`."""
    B, H, T, D = heads.shape
    return heads.reshape(B, T, H * D)


def in_place(B: int, T: int, E: int, H: int) -> dict[str, float]:
    """Number the entries of a (B, T, E) tensor, split and merge them, and count which are where they belong.

    Args:
        B, T, E, H: sizes; H divides E.

    Returns:
        Shares from 0 to 1. "wrong split": entries as in the right split. "wrong merge": right split, wrong merge,
        entries as at the start. "both wrong": wrong split, wrong merge, entries as at the start.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size below 1; H does not divide E.
    """
    for name, size in (("B", B), ("T", T), ("E", E), ("H", H)):
        at_least(name, size, 1)
    x = torch.arange(B * T * E, dtype=torch.float64).reshape(B, T, E)  # exact up to 2^53
    wrong = wrong_split(x, H)
    right = x.unflatten(-1, (H, -1)).transpose(1, 2)  # (B, H, T, D)
    pairs = {SPLIT: (wrong, right), MERGE: (wrong_merge(right), x), BOTH: (wrong_merge(wrong), x)}
    return {name: (a == b).double().mean().item() for name, (a, b) in pairs.items()}


def share_in_place(T: int, H: int) -> float:
    """Return the share of entries that a wrong split, or a wrong merge alone, leaves in place.

    share = (gcd(T - 1, H - 1) + 1) / (T H)

    Chunk (h, t) lies at h T + t and belongs to t H + h, so that it is in place where t (H - 1) = h (T - 1). With T = 1
    or H = 1 there is nothing to mix up, and the share is 1.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size below 1.
    """
    at_least("T", T, 1)
    at_least("H", H, 1)
    return (math.gcd(T - 1, H - 1) + 1) / (T * H)


def can_reach(T: int, H: int, layout: str, *, causal: bool = False) -> Bool[Tensor, "T T"]:
    """Find which tokens can reach which in self-attention.

    A run finds it: heads of width 1 weigh all they may attend to alike, and the values of one token at a time are 1.

    Args:
        T: tokens.
        H: heads.
        layout: one of LAYOUTS, how queries, keys and values are split and the heads are merged.
        causal: with a causal mask on the (T, T) scores of every head.

    Returns:
        (T, T), row t is True at all tokens that the output of token t depends on.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size below 1; another layout.
    """
    _known(layout)
    at_least("T", T, 1)
    at_least("H", H, 1)
    tokens = torch.eye(T).unsqueeze(-1).expand(T, T, H)  # (B, T, E): in sample b token b alone is 1
    v = _split(tokens, H, layout)  # (B, H, T, D)
    alike = torch.zeros_like(v)
    heads = attention(alike, alike, v, mask=causal_mask(T) if causal else None).out
    return (_merge(heads, layout) > 0).any(-1).T.contiguous()


class Laid(MultiHeadAttention):
    """`MultiHeadAttention` whose split or merge, or both, leave out the transpose.

    Args:
        layout: one of LAYOUTS; another is a ValueError.
        embed_dim, num_heads, options: those of `MultiHeadAttention`, without num_kv_heads, dropout and rotary.
    """

    def __init__(self, layout: str, embed_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, backend="explicit", **options)
        self.layout = _known(layout)

    def forward(  # type: ignore[override]
        self, query: Float[Tensor, "B T E"], key: Float[Tensor, "B S Ek"], value: Float[Tensor, "B S Ev"]
    ) -> Float[Tensor, "B T E"]:
        """Attend from query to key and value."""
        return self.out_proj(_merge(self.attend(query, key, value)[1], self.layout))

    def attend(
        self, query: Float[Tensor, "B T E"], key: Float[Tensor, "B S Ek"], value: Float[Tensor, "B S Ev"]
    ) -> tuple[Float[Tensor, "B H T S"], Float[Tensor, "B H T D"]]:
        """Return the weights and the heads."""
        projected = (self.q_proj(query), self.k_proj(key), self.v_proj(value))
        q, k, v = (_split(x, self.num_heads, self.layout) for x in projected)
        _, weights, heads = attention(q, k, v)
        return weights, heads


def _known(layout: str) -> str:
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {LAYOUTS}, got {layout!r}")
    return layout


def _split(x: Float[Tensor, "B T HD"], num_heads: int, layout: str) -> Float[Tensor, "B H T D"]:
    return wrong_split(x, num_heads) if layout in (SPLIT, BOTH) else x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _merge(heads: Float[Tensor, "B H T D"], layout: str) -> Float[Tensor, "B T HD"]:
    return wrong_merge(heads) if layout in (MERGE, BOTH) else heads.transpose(1, 2).flatten(2)
