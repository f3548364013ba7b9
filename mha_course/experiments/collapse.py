"""Experiments of notebook 08: what a stack of attention does to its tokens before any training."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mha_course.block import Block
from mha_course.experiments.scaling_training import at_least

TOKENS, EMBED_DIM, HEADS = 32, 64, 4
SKIPS = ("both", "attention", "mlp", "none")
NORMS = ("none", "pre", "post")
STACKS: Mapping[str, Mapping[str, Any]] = {
    "attention alone": {"skip": "none", "norm": "none", "mlp": False},
    "with an MLP": {"skip": "none", "norm": "none", "mlp": True},
    "with LayerNorm": {"skip": "none", "norm": "pre", "mlp": False},
    "with MLP and LayerNorm": {"skip": "none", "norm": "pre", "mlp": True},
    "with a skip": {"skip": "both", "norm": "none", "mlp": False},
    "with all (a block)": {"skip": "both", "norm": "pre", "mlp": True},
}


class Collapse(NamedTuple):
    """How alike the tokens are after each layer; entry 0 is the input.

    Attributes:
        residual: (depth + 1,), `residual`.
        similarity: (depth + 1,), `similarity`.
        tokens: (depth + 1, n, E), the stream itself.
    """

    residual: Float[np.ndarray, " layers"]
    similarity: Float[np.ndarray, " layers"]
    tokens: Float[np.ndarray, "layers n E"]


def residual(x: Float[Tensor, "n E"]) -> float:
    """Return which part of x is not the same in every row: 0 if all tokens are equal, about 1 if they are unrelated.

    || x - 1 m^T || / || x ||,   m the mean of the rows, in the Frobenius norm

    It is the distance to the nearest matrix 1 m^T of equal rows, which has rank one. In float64 equal rows leave about
    2e-16, what rounding makes of 0.

    Source: Dong et al. 2021, section 2: res(X) = X - 1 x^T; they take the norm sqrt(|| ||_1 || ||_inf).
    """
    return ((x - x.mean(0)).norm() / x.norm()).item()


def similarity(x: Float[Tensor, "n E"]) -> float:
    """Return the cosine of two rows, mean over all pairs: 1 if all point the same way, about 0 if unrelated."""
    unit = x / x.norm(dim=-1, keepdim=True)
    n = len(x)
    return ((unit.sum(0).square().sum() - n) / (n * (n - 1))).item()


@torch.no_grad()
def collapse(
    depth: int = 12,
    *,
    skip: str = "both",
    norm: str = "pre",
    mlp: bool = True,
    spread: float = 1.0,
    seed: int = 0,
) -> Collapse:
    """Pass 32 random tokens (E = 64, N(0, 1), float64) through freshly drawn layers with H = 4, and compare them.

    A layer is a `Block` as it starts, whose parts can be left out. For one seed, the tokens and the weights of the
    parts that remain are the same whatever is left out.

    Without a skip all rows of the weights become alike as soon as the tokens do, and equal rows of weights give equal
    tokens: a residual r becomes about r^3 in a layer.

    Args:
        depth: number of layers, at least 0.
        skip: around which parts x is added, one of SKIPS.
        norm: "none", "pre" or "post": a LayerNorm nowhere, before each part, or after each sum.
        mlp: whether a layer has one.
        spread: factor of the scores, at least 0; with 1 those of normalised tokens have standard deviation 1.
        seed: of the tokens and the weights.

    Returns:
        Collapse(residual, similarity, tokens).

    Raises:
        TypeError: depth is not an integer.
        ValueError: depth below 0; another skip or norm; spread negative or not finite.

    Source: Dong et al. 2021, "Attention is not all you need: pure attention loses rank doubly exponentially with
        depth", theorem 2.2 (attention), section 3 (skip, MLP, LayerNorm).
    """
    at_least("depth", depth, 0)
    for name, value, known in (("skip", skip, SKIPS), ("norm", norm, NORMS)):
        if value not in known:
            raise ValueError(f"{name} must be one of {known}, got {value!r}")
    if not 0 <= spread < np.inf:
        raise ValueError(f"spread must be finite and at least 0, got {spread}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        x = torch.randn(1, TOKENS, EMBED_DIM, dtype=torch.float64)
        blocks = [Block(EMBED_DIM, HEADS, dtype=torch.float64) for _ in range(depth)]
    stream = [x]
    for block in blocks:
        block.attention.q_proj.weight.mul_(spread)
        x = _half(x, block.attention, block.attention_norm, skip in ("both", "attention"), norm)
        if mlp:
            x = _half(x, block.mlp, block.mlp_norm, skip in ("both", "mlp"), norm)
        stream.append(x)
    rows = [layer[0] for layer in stream]
    residuals, similarities = (np.array([measure(layer) for layer in rows]) for measure in (residual, similarity))
    return Collapse(residuals, similarities, torch.stack(rows).numpy())


def _half(
    x: Float[Tensor, "B n E"], part: nn.Module, layer_norm: nn.Module, skip: bool, norm: str
) -> Float[Tensor, "B n E"]:
    added = part(layer_norm(x) if norm == "pre" else x)
    x = x + added if skip else added
    return layer_norm(x) if norm == "post" else x


def all_stacks(depth: int = 12, *, spread: float = 1.0, seeds: int = 5) -> dict[str, Float[np.ndarray, "seeds layers"]]:
    """Measure the `residual` after each layer in every one of STACKS.

    Args:
        depth, spread: see `collapse`.
        seeds: number of draws of the tokens and the weights, seeds 0 to seeds - 1.

    Returns:
        By name, (seeds, depth + 1).

    Raises:
        TypeError: depth or seeds is not an integer.
        ValueError: seeds below 1; what `collapse` raises.
    """
    at_least("seeds", seeds, 1)
    return {
        name: np.stack([collapse(depth, spread=spread, seed=seed, **stack).residual for seed in range(seeds)])
        for name, stack in STACKS.items()
    }
