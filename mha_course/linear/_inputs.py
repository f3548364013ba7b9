"""What the methods here ask of their arguments."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mha_course.dot_product import check_addend, check_heads


def check_call(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H S D"],
    v: Float[Tensor, "B H S Dv"],
    is_causal: bool,
) -> None:
    """Raise unless q, k, v fit each other and, if is_causal, are of one length."""
    check_heads(q, k, v)
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"q, k and v must have one number of heads H, got {q.shape[1]} and {k.shape[1]}")
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be True or False, got {type(is_causal).__name__}")
    if is_causal and q.shape[2] != k.shape[2]:
        raise ValueError(f"is_causal needs T = S, got T = {q.shape[2]} and S = {k.shape[2]}")


def check_token(q: Float[Tensor, "B H D"], k: Float[Tensor, "B H D"], v: Float[Tensor, "B H Dv"]) -> None:
    """Raise unless q, k, v are those of one token and fit each other."""
    for name, x in {"q": q, "k": k, "v": v}.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.ndim != 3:
            raise ValueError(f"{name} must be one token's, (B, H, width), got {tuple(x.shape)}")
    check_call(q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2), is_causal=True)


def refuse(
    method: str,
    *,
    mask: Tensor | None = None,
    score_bias: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> None:
    """Raise if an argument was given that this method has no place for."""
    for name, x, least in (
        ("mask", mask, None),
        ("score_bias", score_bias, None),
        ("scale", scale, None),
        ("dropout_p", dropout_p, 0.0),
    ):
        if x is not None if least is None or isinstance(x, Tensor) else x != least:
            got = type(x).__name__ if isinstance(x, Tensor) else x
            raise ValueError(f"{name} must be {least}: {method} has no scores to use it on, got {got}")


def key_mask(mask: Bool[Tensor, "..."] | None, q: Tensor, k: Tensor) -> Bool[Tensor, "#B #H #S 1"] | None:
    """Return which keys may be seen; raise unless the mask is the same for all queries."""
    check_addend("mask", mask, (*q.shape[:-1], k.shape[2]), q)
    if mask is None:
        return None
    mask = mask[(None,) * (4 - mask.ndim)]
    if mask.shape[2] != 1:
        raise ValueError(f"mask must be the same for all queries, (B, 1, 1, S) for example, got {tuple(mask.shape)}")
    return mask.transpose(2, 3)


def check_device(name: str, x: Tensor, q: Tensor) -> None:
    """Raise unless x is where q is: PyTorch moves some, and computes nonsense with others."""
    if x.device != q.device:
        raise ValueError(f"{name} must be on q's device, {q.device}, got {x.device}")


def check_state(name: str, x: Tensor, letters: str, want: Tensor) -> None:
    """Raise unless x, a part of a state, can be added to what this token brings."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.shape != want.shape:
        raise ValueError(f"{name} must be {letters} = {tuple(want.shape)}, got {tuple(x.shape)}")
    if x.dtype != want.dtype:
        raise TypeError(f"{name} must have the type of these tokens' sums, {want.dtype}, got {x.dtype}")
    check_device(name, x, want)


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Turn half types into float32: a sum over all keys loses or overflows in them."""
    return tuple(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in tensors)
