"""Masks in other conventions, made into ours and back; each function names the other convention.

The shape stays. A (B, S) mask of keys, as nn.MultiheadAttention's key_padding_mask, becomes one of
ours by `[:, None, None, :]` on the result; its attn_mask (B H, T, S) by `.unflatten(0, (B, H))`.
"""

import math

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from mha_course.masks._inputs import check_bool, refuse

HIDES = -1000.0  # added to a score, it leaves a weight of 0 in every floating point type
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # float8 mostly has no infinity


def from_blocked(blocked: Bool[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Convert a mask in which True = blocked, nn.MultiheadAttention's convention.

    mask = ~blocked

    Args:
        blocked: bool, True = may not attend.

    Returns:
        Bool tensor of the same shape, True = may attend.

    Raises:
        TypeError: blocked is not a bool tensor.
    """
    check_bool("blocked", blocked, "blocked")
    return ~blocked


def to_blocked(mask: Bool[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Convert to a mask in which True = blocked, nn.MultiheadAttention's convention.

    blocked = ~mask

    Args:
        mask: bool, True = may attend.

    Returns:
        Bool tensor of the same shape, True = may not attend.

    Raises:
        TypeError: mask is not a bool tensor.
    """
    check_bool("mask", mask)
    return ~mask


def from_additive(additive: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Convert a mask that is added to the scores: 0 = may attend, -inf or very low = blocked.

    mask = additive == 0

    Blocked is every value of -1000 or less: -inf, but also finfo.min, -1e9 and -10000, which people
    write instead. Such a finite value is not the same in one place: in a row whose keys are all
    blocked it gives the mean of the values or their usual weights, -inf and our masks give 0.

    Args:
        additive: float16, bfloat16, float32 or float64.

    Returns:
        Bool tensor of the same shape, True = may attend.

    Raises:
        TypeError: additive is not a tensor of such a type.
        ValueError: a value is neither 0 nor blocked, NaN included: a bias, that goes into score_bias.
    """
    if not isinstance(additive, Tensor):
        raise TypeError(f"additive must be a floating point tensor, got {type(additive).__name__}")
    _check_float("additive", additive.dtype)
    may = additive == 0
    must = f"additive must be 0 (may attend) or at most {HIDES:g} (blocked)"
    refuse(~(may | (additive <= HIDES)), additive, must, ": pass a bias as score_bias")
    return may


def to_additive(mask: Bool[Tensor, "*shape"], *, dtype: torch.dtype = torch.float32) -> Float[Tensor, "*shape"]:
    """Convert to a mask that is added to the scores: 0 = may attend, -inf = blocked.

    additive = 0 where mask, else -inf

    Args:
        mask: bool, True = may attend.
        dtype: float16, bfloat16, float32 or float64; that of the scores, as a rule.

    Returns:
        Tensor of the same shape.

    Raises:
        TypeError: mask is not a bool tensor; dtype is not such a type.
    """
    check_bool("mask", mask)
    _check_float("dtype", dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -math.inf)


def from_integers(ones: Integer[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Convert a mask of integers: 1 = may attend, 0 = blocked, as tokenizers return it.

    mask = ones == 1

    Args:
        ones: integers, each 0 or 1. A tokenizer's attention_mask is (B, S): see the top of this file.

    Returns:
        Bool tensor of the same shape, True = may attend.

    Raises:
        TypeError: ones is not an integer tensor. Ones and zeros in floating point: write `ones == 1`.
        ValueError: a value is neither 0 nor 1.
    """
    if not isinstance(ones, Tensor):
        raise TypeError(f"ones must be an integer tensor, got {type(ones).__name__}")
    if ones.dtype == torch.bool or ones.is_floating_point() or ones.is_complex():
        raise TypeError(f"ones must be an integer tensor, got {ones.dtype}")
    ones = ones.long()
    refuse((ones != 0) & (ones != 1), ones, "ones must be 1 (may attend) or 0 (blocked)")
    return ones == 1


def _check_float(name: str, dtype: torch.dtype) -> None:
    if dtype not in FLOATS:
        raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, got {dtype}")
