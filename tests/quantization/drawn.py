"""Numbers for the tests of quantization, and what they are compared with."""

import torch


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def relative(x: torch.Tensor, exact: torch.Tensor) -> float:
    return ((x - exact).norm() / exact.norm()).item()
