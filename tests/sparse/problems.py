"""What these tests share: inputs, the paths with the mask that each stands for, and attention by its explicit path."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mha_course import attention, masks
from mha_course.sparse import block_sparse, chunked, sliding_window

B, H, T, D, DV = 2, 3, 71, 5, 7  # T: three blocks of 32 queries, the last one not full


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def bools(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def inputs(
    T: int = T,
    S: int | None = None,
    H: int = H,
    Hkv: int | None = None,
    dtype: torch.dtype = torch.float64,
    Dv: int = DV,
) -> list[Tensor]:
    S, Hkv = T if S is None else S, H if Hkv is None else Hkv
    shapes = (B, H, T, D), (B, Hkv, S, D), (B, Hkv, S, Dv)
    return leaves(*(numbers(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)))


def layout(T: int, S: int, block: int) -> Tensor:
    """One that has a row without any key, and rows of different numbers."""
    drawn = bools(-(-T // block), -(-S // block), seed=5)
    drawn[1:2] = False
    return drawn


Path = tuple[Callable[..., Tensor], Callable[[int, int], Tensor]]


def blockwise(block: int) -> Path:
    def run(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        return block_sparse(q, k, v, layout=layout(q.shape[2], k.shape[2], block), block=block, **options)

    return run, lambda T, S: masks.blocks(layout(T, S, block), block, T, S)


def windowed(window: int) -> Path:
    return partial(sliding_window, window=window), lambda T, S: masks.sliding_window(T, window)


def everything(T: int, S: int) -> Tensor:
    return torch.ones(T, S, dtype=torch.bool)


WINDOWS: dict[str, Path] = {f"window {n}": windowed(n) for n in (1, 2, 33, 67, 71, 1000)}
ANY_LENGTH: dict[str, Path] = {
    **{f"chunks of {n}": (partial(chunked, chunk=n), everything) for n in (1, 29, 71, 1000)},
    "chunks kept": (partial(chunked, chunk=29, recompute=False), everything),
    **{f"blocks of {n}": blockwise(n) for n in (1, 13, 40, 100)},
}
PATHS = {**ANY_LENGTH, **WINDOWS}


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    **options: Tensor | float | None,
) -> Tensor:
    """`attention` with the mask that a path stands for."""
    allowed = allowed & masks.causal(q.shape[2]) if is_causal else allowed
    allowed = allowed if mask is None else allowed & mask
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return attention(q, k, v, mask=allowed, **options).out


def with_gradients(out: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    up = numbers(*out.shape, seed=9, dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad(out, tensors, up)]
