"""What these tests share: inputs of prime sizes."""

import torch
from torch import Tensor

B, H, T, S, D, DV = 2, 3, 13, 17, 5, 7


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def bools(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def inputs(T: int = T, S: int = S, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [numbers(B, H, n, width, seed=i, dtype=dtype) for i, (n, width) in enumerate(((T, D), (S, D), (S, DV)))]


def relative(x: Tensor, y: Tensor) -> float:
    return ((x - y).norm() / y.norm()).item()
