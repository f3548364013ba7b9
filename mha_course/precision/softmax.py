"""Softmax in a format: where exp overflows, where it vanishes, and what subtracting the maximum does about it."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.precision._inputs import check_floating
from mha_course.precision.formats import Format


class SoftmaxSteps(NamedTuple):
    """Each step of a softmax, in float64, rounded to the format.

    Attributes:
        shifted: (..., S), the scores less their maximum, or the scores.
        exponentials: (..., S).
        total: (..., 1), their sum.
        weights: (..., S), exponentials / total.
    """

    shifted: Float[Tensor, "*rows S"]
    exponentials: Float[Tensor, "*rows S"]
    total: Float[Tensor, "*rows 1"]
    weights: Float[Tensor, "*rows S"]


def softmax_in(
    scores: Float[Tensor, "*rows S"],
    format: Format,
    *,
    subtract_max: bool = True,
    sum_in: Format | None = None,
) -> SoftmaxSteps:
    """Compute a softmax whose every intermediate value is one that the format holds.

    weights = exp(scores - max) / sum exp(scores - max)

    Each step is computed in float64 and rounded, the sum after every key: the numbers are the format's and
    the same on every machine. Nothing is repaired: inf / inf and 0 / 0 are NaN.

    Args:
        scores: (..., S), floating point; rounded first.
        format: one of `FORMATS`.
        subtract_max: False takes exp of the scores as they are.
        sum_in: the format of the sum, by default `format`. Kernels often sum in float32.

    Returns:
        SoftmaxSteps(shifted, exponentials, total, weights).

    Raises:
        TypeError: scores is not a floating point tensor; format or sum_in is not a Format.
        ValueError: scores has no axis, or no key.
    """
    check_floating("scores", scores)
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(f"scores must be (..., S) with at least one key, got {tuple(scores.shape)}")
    sum_in = format if sum_in is None else sum_in
    for name, form in (("format", format), ("sum_in", sum_in)):
        if not isinstance(form, Format):
            raise TypeError(f"{name} must be a Format, got {type(form).__name__}")
    shifted = format.round(scores)
    if subtract_max:
        shifted = format.round(shifted - shifted.amax(dim=-1, keepdim=True))
    exponentials = format.round(shifted.exp())
    total = torch.zeros_like(shifted[..., :1])
    for key in exponentials.split(1, dim=-1):
        total = sum_in.round(total + key)
    return SoftmaxSteps(shifted, exponentials, total, format.round(exponentials / total))


def stable_softmax(scores: Float[Tensor, "*sizes"], dim: int = -1) -> Float[Tensor, "*sizes"]:
    """Compute a softmax that does not overflow, whatever the scores.

    weights = exp(scores - max) / sum exp(scores - max)

    The largest exponential is 1, so none overflows, and the sum is at least 1, so nothing is divided by 0.

    Args:
        scores: any sizes, floating point. The computation stays in their type, only the sum has float32 at least.
        dim: the axis whose weights sum to 1, that of the keys.

    Returns:
        The weights, in the type of scores. 0 throughout, and gradient 0, where all scores are -inf.

    Raises:
        TypeError: scores is not a floating point tensor.
    """
    check_floating("scores", scores)
    if scores.numel() == 0:
        return scores.clone()
    highest = scores.detach().amax(dim=dim, keepdim=True)  # shifting all scores alike changes no weight, nor a gradient
    exponentials = (scores - highest.masked_fill(highest == -math.inf, 0.0)).exp()
    # float16 cannot hold a sum above 65504, that of more than 65504 equal scores
    total = exponentials.sum(dim=dim, keepdim=True, dtype=torch.promote_types(scores.dtype, torch.float32))
    return (exponentials / total.masked_fill(total == 0, 1.0)).to(scores.dtype)
