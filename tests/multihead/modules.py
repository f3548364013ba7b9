"""What these tests share: inputs and masks of prime sizes, a backend and a reference written by other means."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mha_course import MultiHeadAttention, masks
from tests import reference

B, H, T, S, D = 2, 3, 5, 7, 11
E = H * D  # nn.MultiheadAttention needs it
EK, EV = 17, 19
OFF = -math.inf


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def bools(*shape: int, seed: int = 1) -> Tensor:
    """A mask in which the last axis always has a True; axes other than T and S make a difference."""
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    drawn[..., 0] = True
    return drawn


def fill(module: nn.Module, seed: int = 7) -> None:
    """Give every parameter, biases too, numbers that do not depend on an initialisation."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(numbers(*parameter.shape, seed=seed + i) * 0.3)


def ours(
    embed_dim: int = E, num_heads: int = H, *, dtype: torch.dtype = torch.float64, **options
) -> MultiHeadAttention:
    module = MultiHeadAttention(embed_dim, num_heads, dtype=dtype, **options)
    fill(module)
    return module


# every shape that a mask may have, and mixtures; all for T queries and S keys
MASKS: dict[str, Tensor | None] = {
    "none": None,
    "all": torch.tensor(True),
    "(S,)": bools(S),
    "(T, S)": bools(T, S),
    "(T, 1)": torch.tensor([[True]] * T),
    "(H, T, S)": bools(H, T, S),
    "padding": masks.padding(torch.tensor([3, S]), S),
    "(B, 1, T, S)": bools(B, 1, T, S),
    "(B, H, T, S)": bools(B, H, T, S),
    "causal": masks.causal(T, S, alignment="lower_right"),
    "causal & padding": masks.causal(T, S, alignment="upper_left") & masks.padding(torch.tensor([3, S]), S),
    "window": masks.sliding_window(T, 2, S, alignment="lower_right"),
}


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    score_bias: Tensor | None,
    scale: float | None,
    is_causal: bool,
    dropout_p: float,
) -> Tensor:
    """A backend of one's own."""
    assert scale is None
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5
    if score_bias is not None:
        scores = scores + score_bias
    if is_causal:
        scores = scores.where(torch.arange(q.shape[2])[:, None] >= torch.arange(k.shape[2]), OFF)
    if mask is not None:
        scores = scores.where(mask, OFF)
    blind = scores.isneginf().all(-1, keepdim=True)
    weights = scores.where(~blind, 0.0).softmax(-1).where(~blind, 0.0)
    return torch.einsum("bhts,bhsd->bhtd", nn.functional.dropout(weights, dropout_p), v)


BACKENDS: dict[str, str | Callable[..., Tensor]] = {"sdpa": "sdpa", "explicit": "explicit", "a callable": plain}


def by_loops(
    module: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Weights (B, H, T, S) and out (B, T, E), head by head: no split, no merge, no transpose."""
    H, Hkv, D = module.num_heads, module.num_kv_heads, module.head_dim

    def head(linear: nn.Linear, x: Tensor, h: int) -> Tensor:
        rows = torch.stack([linear.weight[h * D + d] for d in range(D)])
        shift = 0 if linear.bias is None else torch.stack([linear.bias[h * D + d] for d in range(D)])
        return torch.stack([torch.stack([rows @ token for token in sample]) for sample in x]) + shift

    shape = (query.shape[0], H, query.shape[1], key.shape[1])
    may, added = (x if x is None else x.expand(shape) for x in (mask, bias))
    every = []
    out = torch.zeros_like(query) + (0 if module.out_proj.bias is None else module.out_proj.bias)
    for h in range(H):
        shared = next(g for g in range(Hkv) if h in range(g * (H // Hkv), (g + 1) * (H // Hkv)))
        q = head(module.q_proj, query, h)
        k, v = head(module.k_proj, key, shared), head(module.v_proj, value, shared)
        _, weights, heads = reference.attention(
            q, k, v, mask=None if may is None else may[:, h], score_bias=None if added is None else added[:, h]
        )
        every.append(weights)
        for d in range(D):
            out = out + heads[..., d, None] * module.out_proj.weight[:, h * D + d]
    return torch.stack(every, 1), out
