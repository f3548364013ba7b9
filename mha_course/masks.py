"""Masks: bool tensors in which True means "this query may attend to this key".

Masks are plain tensors. Combine them with `&`, `|` and `~`, never with `+` or `*`.
"""

from typing import Literal, SupportsIndex

import torch
from jaxtyping import Bool, Integer
from torch import Tensor


def causal(
    T: int,
    S: int | None = None,
    *,
    alignment: Literal["upper_left", "lower_right"] | None = None,
    device: torch.device | str | None = None,
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
    S = T if S is None else S
    _check_length("T", T)
    _check_length("S", S)
    if alignment is None and T != S:
        raise ValueError(
            f"causal with T != S is ambiguous: give alignment='upper_left' or 'lower_right', got T={T}, S={S}"
        )
    if alignment not in (None, "upper_left", "lower_right"):
        raise ValueError(f"alignment must be 'upper_left' or 'lower_right', got {alignment!r}")
    offset = S - T if alignment == "lower_right" else 0
    query = torch.arange(T, device=device).unsqueeze(-1)  # (T, 1)
    key = torch.arange(S, device=device)  # (S,)
    return key <= query + offset


def padding(lengths: Integer[Tensor, " B"], S: int) -> Bool[Tensor, "B 1 1 S"]:
    """Hide the keys that lie beyond the end of each sequence.

    mask[b, 0, 0, s] = s < lengths[b]

    Args:
        lengths: (B,) integers, the number of real tokens of each sequence, in [0, S].
        S: number of keys, padding included.

    Returns:
        Bool tensor (B, 1, 1, S), True = a real token. Four axes, so that it broadcasts to
        (B, H, T, S); a mask with two axes always means (T, S).

    Raises:
        TypeError: lengths is not an integer tensor; S is not an integer.
        ValueError: lengths is not one-dimensional; S is negative; a length lies outside [0, S].
    """
    if not isinstance(lengths, Tensor):
        raise TypeError(f"lengths must be an integer tensor (B,), got {type(lengths).__name__}")
    if lengths.dtype == torch.bool or lengths.is_floating_point() or lengths.is_complex():
        raise TypeError(f"lengths must be an integer tensor (B,), got {lengths.dtype}")
    if lengths.ndim != 1:
        raise ValueError(f"lengths must have one axis (B,), got {tuple(lengths.shape)}")
    _check_length("S", S)
    lengths = lengths.long()  # compared as they are, S would wrap around in a narrow type
    if lengths.numel() > 0 and not (0 <= lengths.min() and lengths.max() <= S):
        raise ValueError(f"lengths must lie in [0, S] = [0, {S}], got {lengths.tolist()}")
    key = torch.arange(S, device=lengths.device)
    return (key < lengths.unsqueeze(-1))[:, None, None, :]


def _check_length(name: str, n: int) -> None:
    # A SymInt is a length that torch.export does not know yet.
    if isinstance(n, bool | Tensor) or not isinstance(n, SupportsIndex | torch.SymInt):
        raise TypeError(f"{name} must be an integer, got {type(n).__name__}")
    if n < 0:
        raise ValueError(f"{name} must be at least 0, got {n}")
