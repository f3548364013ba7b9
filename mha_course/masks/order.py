"""Masks from the order of the tokens: who comes before whom, and how far away."""

from typing import Literal

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from mha_course.masks._inputs import can_be_read, check_integer, integers, refuse

Alignment = Literal["upper_left", "lower_right"]
Device = torch.device | str


def causal(
    T: int, S: int | None = None, *, alignment: Alignment | None = None, device: Device | None = None
) -> Bool[Tensor, "T S"]:
    """Let each query see its own position and what came before it.

    mask[t, s] = s <= t + offset, with offset = 0 ("upper_left") or S - T ("lower_right").

    Args:
        T: number of queries, at least 0.
        S: number of keys, at least 0; T if None.
        alignment: must be given when T != S. "upper_left" puts query 0 on key 0, as
            `scaled_dot_product_attention(is_causal=True)` does. "lower_right" puts the last
            query on the last key: what a decoder with cached keys needs.
        device: where the mask is made.

    Returns:
        Bool tensor (T, S), True = may attend.

    Raises:
        TypeError: T or S is not an integer.
        ValueError: T or S is negative; T != S without alignment; unknown alignment.
    """
    query, key = _positions("causal", T, S, alignment, device)
    return key <= query


def sliding_window(
    T: int, window: int, S: int | None = None, *, alignment: Alignment | None = None, device: Device | None = None
) -> Bool[Tensor, "T S"]:
    """Let each query see its own position and the window - 1 before it: window keys, none ahead.

    mask[t, s] = 0 <= t + offset - s < window, with the offset of `causal`.

    Args:
        T: number of queries, at least 0.
        window: number of keys that a query sees, its own included, at least 1.
        S, alignment, device: as in `causal`.

    Returns:
        Bool tensor (T, S), True = may attend.

    Raises:
        TypeError: T, S or window is not an integer.
        ValueError: T or S is negative; window is below 1; T != S without alignment; unknown alignment.

    Source: Beltagy et al. 2020 (Longformer), section 3.1, there with w / 2 keys on each side: that
    is `band(T, w // 2, w // 2)`; w is their window, ours counts the token and its past alone.
    """
    window = check_integer("window", window, least=1)
    query, key = _positions("sliding_window", T, S, alignment, device)
    return (key <= query) & (query - key < min(window, query.numel() + key.numel()))  # more is all there is


def band(
    T: int,
    left: int | None,
    right: int | None,
    S: int | None = None,
    *,
    alignment: Alignment | None = None,
    device: Device | None = None,
) -> Bool[Tensor, "T S"]:
    """Let each query see its own position, `left` keys before it and `right` keys after it.

    mask[t, s] = -left <= s - (t + offset) <= right, with the offset of `causal`.

    Args:
        T: number of queries, at least 0.
        left: how far back a query sees, at least 0; None for no limit.
        right: how far ahead a query sees, at least 0; None for no limit.
        S, alignment, device: as in `causal`.

    Returns:
        Bool tensor (T, S), True = may attend. `band(T, None, 0)` is `causal(T)`.

    Raises:
        TypeError: T, S, left or right is not an integer.
        ValueError: one of them is negative; T != S without alignment; unknown alignment.
    """
    left, right = (x if x is None else check_integer(name, x) for name, x in (("left", left), ("right", right)))
    query, key = _positions("band", T, S, alignment, device)
    left, right = (None if x is None else min(x, query.numel() + key.numel()) for x in (left, right))
    ahead = key - query  # (T, S)
    mask = torch.ones_like(ahead, dtype=torch.bool)
    if left is not None:
        mask = mask & (ahead >= -left)
    if right is not None:
        mask = mask & (ahead <= right)
    return mask


def prefix(
    T: int,
    lengths: int | Integer[Tensor, " B"],
    S: int | None = None,
    *,
    alignment: Alignment | None = None,
    device: Device | None = None,
) -> Bool[Tensor, "T S"] | Bool[Tensor, "B 1 T S"]:
    """Let every query see the whole prefix, and causally what comes after it.

    mask[t, s] = s < length or s <= t + offset, with the offset of `causal`.

    Args:
        T: number of queries, at least 0.
        lengths: number of keys in the prefix, in [0, S]: one for all samples, or (B,) integers.
        S, alignment: as in `causal`.
        device: where the mask is made; if None, where lengths is.

    Returns:
        Bool tensor, True = may attend: (T, S) for one length, (B, 1, T, S) for a tensor.

    Raises:
        TypeError: T or S is not an integer; lengths is neither an integer nor an integer tensor.
        ValueError: T or S is negative; lengths has other axes than (B,), or lies outside [0, S];
            T != S without alignment; unknown alignment.

    Source: Raffel et al. 2020 (T5), section 3.2.1, "causal with prefix".
    """
    if isinstance(lengths, Tensor) and device is None:
        device = lengths.device
    query, key = _positions("prefix", T, S, alignment, device)
    S = key.shape[0]
    if isinstance(lengths, Tensor):
        lengths = integers("lengths", lengths, "B").to(device)
        if can_be_read(lengths):  # the text alone would make the compiled graph one for this S
            refuse((lengths < 0) | (lengths > S), lengths, f"lengths must lie in [0, S] = [0, {S}]")
        lengths = lengths[:, None, None, None]  # (B, 1, 1, 1)
    else:
        lengths = check_integer("lengths", lengths)
        if lengths > S:
            raise ValueError(f"lengths must lie in [0, S] = [0, {S}], got {lengths}")
    return (key < lengths) | (key <= query)


def _positions(
    name: str, T: int, S: int | None, alignment: Alignment | None, device: Device | None
) -> tuple[Integer[Tensor, "T 1"], Integer[Tensor, " S"]]:
    """The key that each query stands on, and the keys."""
    S = T if S is None else S
    T, S = check_integer("T", T), check_integer("S", S)
    if alignment is None and T != S:
        raise ValueError(
            f"{name} with T != S is ambiguous: give alignment='upper_left' or 'lower_right', got T={T}, S={S}"
        )
    if alignment not in (None, "upper_left", "lower_right"):
        raise ValueError(f"alignment must be 'upper_left' or 'lower_right', got {alignment!r}")
    offset = S - T if alignment == "lower_right" else 0
    query = torch.arange(T, device=device).unsqueeze(-1) + offset  # (T, 1)
    key = torch.arange(S, device=device)  # (S,)
    return query, key
