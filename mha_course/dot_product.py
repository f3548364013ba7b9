"""Scaled dot-product attention, written out so that every step can be read and kept."""

import math
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F


class AttentionTrace(NamedTuple):
    """What one call of `attention` computed on its way.

    Attributes:
        scores: (..., T, S), scaled, with `score_bias` added and -inf where the mask hides a key.
        weights: (..., T, S), the weights that were used: softmax of the scores over the keys,
            0 in a row that may attend to nothing, after dropout.
        out: (..., T, Dv), `weights @ v`.
    """

    scores: Float[Tensor, "*batch T S"]
    weights: Float[Tensor, "*batch T S"]
    out: Float[Tensor, "*batch T Dv"]


def attention(
    q: Float[Tensor, "*batch T D"],
    k: Float[Tensor, "*batch S D"],
    v: Float[Tensor, "*batch S Dv"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> AttentionTrace:
    """Average the values, each weighted by how well its key matches the query.

    scores = scale * q k^T + score_bias, -inf where mask is False
    weights = softmax(scores) over the keys
    out = weights v

    A row that may attend to nothing (all of its scores are -inf, or S = 0) gets weights 0,
    output 0 and gradient 0. Finite values in hidden keys and values never reach the output. NaN or
    infinity in a hidden value does, because 0 times NaN is NaN; in a hidden key it reaches only the
    gradient of q. (PyTorch's own kernels let both reach the output.)

    Args:
        q: queries (..., T, D). The leading sizes, usually (B, H), are any, and the same in q, k, v.
        k: keys (..., S, D).
        v: values (..., S, Dv); Dv need not equal D.
        mask: bool, True = may attend, broadcasts to (..., T, S).
        score_bias: added to the scaled scores, broadcasts to (..., T, S).
        scale: factor on q k^T, 1 / sqrt(D) if None.
        dropout_p: probability of dropping a weight, in [0, 1]. Applied whenever it is above 0:
            this function does not know about training and evaluation.

    Returns:
        AttentionTrace(scores, weights, out) in the type of q.

    Raises:
        TypeError: q, k, v are not floating point tensors of one type; mask is not bool;
            score_bias is not floating point; scale or dropout_p is not a number.
        ValueError: fewer than two axes; D = 0; q and k of different width; k and v of different
            length; different leading sizes; q, k, v, mask or score_bias on different devices;
            mask or score_bias that does not broadcast to (..., T, S); scale that is not
            finite; dropout_p outside [0, 1].

    Source: Vaswani et al. 2017, equation 1: Q, K, V are q, k, v; d_k is D, d_v is Dv.
    """
    check_tensors(q, k, v)
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        raise ValueError(f"q, k and v must have the same leading sizes, got {_shapes(q, k, v)}")
    _check_rest(q, k, mask, score_bias, scale, dropout_p)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)

    # Scaling q before the product keeps float16 scores in range.
    scores = (q * scale) @ k.transpose(-2, -1)  # (..., T, S)
    if score_bias is not None:
        bias = score_bias.to(scores.dtype)
        # A bias of -inf hides a key like a mask: a score that overflowed to inf must not make NaN.
        scores = (scores + bias).masked_fill(bias == -math.inf, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = _softmax_or_zero(scores)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return AttentionTrace(scores, weights, weights @ v)


def _softmax_or_zero(scores: Float[Tensor, "*batch T S"]) -> Float[Tensor, "*batch T S"]:
    """Softmax over the last axis; rows that are -inf throughout become 0, their gradient too."""
    sees_nothing = (scores == -math.inf).all(dim=-1, keepdim=True)  # (..., T, 1)
    weights = scores.masked_fill(sees_nothing, 0.0).softmax(dim=-1)
    return weights.masked_fill(sees_nothing, 0.0)


def check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise unless q, k and v are (B, H, T, D), (B, Hkv, S, D) and (B, Hkv, S, Dv), and Hkv divides H."""
    check_tensors(q, k, v)
    for name, x, axes in (("q", q, "(B, H, T, D)"), ("k", k, "(B, Hkv, S, D)"), ("v", v, "(B, Hkv, S, Dv)")):
        if x.ndim != 4:
            raise ValueError(f"{name} must have four axes {axes}, got {_sizes(x)}")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"q, k and v must have one batch size B, got {_shapes(q, k, v)}")
    H, Hkv = q.shape[1], k.shape[1]
    if v.shape[1] != Hkv:
        raise ValueError(f"k and v must have one number of heads Hkv, got {_shapes(q, k, v)}")
    if H != Hkv and (Hkv == 0 or H % Hkv):
        raise ValueError(f"the heads of k and v, Hkv, must divide those of q, H, got {_shapes(q, k, v)}")


def check_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    score_bias: Tensor | None,
    scale: float | None,
    is_causal: bool,
    dropout_p: float,
) -> None:
    """Raise unless a function with the signature of `tiled.attention` may be called so."""
    check_heads(q, k, v)
    _check_rest(q, k, mask, score_bias, scale, dropout_p)
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be True or False, got {type(is_causal).__name__}")
    T, S = q.shape[2], k.shape[2]
    if is_causal and T != S:
        raise ValueError(f"is_causal needs T = S, got T = {T} and S = {S}: pass mask=causal(T, S, alignment=...)")


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise for what is wrong with types, lengths and widths, whatever the leading sizes."""
    named = {"q": q, "k": k, "v": v}
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if not x.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {x.dtype}")
        if x.ndim < 2:
            raise ValueError(f"{name} must have at least two axes (length, width), got {_sizes(x)}")
    for name in ("k", "v"):
        if named[name].dtype != q.dtype:
            raise TypeError(f"{name} must have the type of q, {q.dtype}, got {named[name].dtype}")
        if named[name].device != q.device:
            raise ValueError(f"{name} must be on q's device, {q.device}, got {named[name].device}")
    if q.shape[-1] == 0:
        raise ValueError(f"q must have width D of at least 1, got {_sizes(q)}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"q and k must have one width D, got q {_sizes(q)} and k {_sizes(k)}")
    if v.shape[-2] != k.shape[-2]:
        raise ValueError(f"k and v must have one length S, got k {_sizes(k)} and v {_sizes(v)}")


def _check_rest(
    q: Tensor, k: Tensor, mask: Tensor | None, score_bias: Tensor | None, scale: float | None, dropout_p: float
) -> None:
    shape = (*q.shape[:-1], k.shape[-2])
    check_addend("mask", mask, shape, q)
    check_addend("score_bias", score_bias, shape, q)
    if scale is not None and not abs(check_number("scale", scale)) <= sys.float_info.max:
        raise ValueError(f"scale must be finite, got {scale}")
    if not 0 <= check_number("dropout_p", dropout_p) <= 1:
        raise ValueError(f"dropout_p must lie in [0, 1], got {dropout_p}")


def check_addend(name: str, x: Tensor | None, shape: tuple[int, ...], q: Tensor) -> None:
    """Raise unless x, named mask or score_bias, may be one of scores of that shape, (..., T, S)."""
    if x is None:
        return
    kind = "bool (True = may attend)" if name == "mask" else "floating point"
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a {kind} tensor, got {type(x).__name__}")
    if not (x.dtype == torch.bool if name == "mask" else x.is_floating_point()):
        raise TypeError(f"{name} must be {kind}, got {x.dtype}")
    if x.device != q.device:
        raise ValueError(f"{name} must be on q's device, {q.device}, got {x.device}")
    fits = x.ndim <= len(shape) and all(
        size in (1, want) for size, want in zip(reversed(x.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(f"{name} must broadcast to (..., T, S) = {shape}, got {_sizes(x)}")


def check_number(name: str, x: float) -> float:
    """Return x; raise unless it is a number."""
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise TypeError(f"{name} must be a number, got {type(x).__name__}")
    return x


def autocasts(device: torch.device) -> bool:
    """Whether PyTorch chooses the types of products on this device now."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Keep the types that were chosen; a device without autocast, such as "meta", needs nothing."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else nullcontext()


def _sizes(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q {_sizes(q)}, k {_sizes(k)} and v {_sizes(v)}"
