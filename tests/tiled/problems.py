"""What these tests share: inputs of prime sizes, and attention by the explicit path with repeated heads."""

import math

import torch
from torch import Tensor

from mha_course import attention, masks

B, H, T, S, D, DV = 2, 3, 5, 7, 11, 13
OFF = -math.inf


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def bools(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def inputs(
    B: int = B, H: int = H, Hkv: int | None = None, T: int = T, S: int = S, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Leaves q, k and v."""
    Hkv = H if Hkv is None else Hkv
    shapes = (B, H, T, D), (B, Hkv, S, D), (B, Hkv, S, DV)
    return leaves(*(numbers(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)))


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    score_bias: Tensor | None = None,
    scale: float | None = None,
    is_causal: bool = False,
) -> Tensor:
    """The same by `mha_course.attention`, which knows neither groups of heads nor is_causal."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    if is_causal:
        past = masks.causal(q.shape[2])
        mask = past if mask is None else mask & past
    return attention(q, k, v, mask=mask, score_bias=score_bias, scale=scale).out


def with_gradients(out: Tensor, tensors: list[Tensor]) -> dict[str, Tensor]:
    """Out and the gradients of some sum over it, by name."""
    grads = torch.autograd.grad(out, tensors, numbers(*out.shape, seed=9, dtype=out.dtype))
    return {"out": out.detach(), **dict(zip(("q", "k", "v", "score_bias"), grads, strict=False))}
