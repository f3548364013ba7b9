"""Experiments of notebook 06: scores that know the distance, and which scheme survives a longer sequence."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mha_course.experiments.extrapolation import (
    ALIBI,
    COPY,
    LATEST,
    ROTARY,
    SCHEMES,
    Reader,
    accuracy,
    train,
    weight_by_distance,
    within_and_beyond,
)
from mha_course.positions import Rotary, alibi, t5_buckets

__all__ = [
    "ALIBI",
    "COPY",
    "LATEST",
    "RECIPES",
    "ROTARY",
    "SCHEMES",
    "accuracies",
    "rotary_scores",
    "stretched",
    "three_schemes",
    "train",
    "train_all",
    "weight_by_distance",
]

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "interpolation": {"scaling": "interpolation", "factor": 4},
    "NTK-aware": {"scaling": "ntk", "factor": 4},
    "YaRN": {"scaling": "yarn", "factor": 4, "trained_length": 32},
}


def three_schemes(length: int) -> Float[np.ndarray, "3 T T"]:
    """Return what three schemes say of every pair of places, scaled to [-1, 1] for 24 tokens.

    The bias of ALiBi's third head of 8, over 3; T5's buckets in both directions, over 32; the rotary score of equal
    vectors of width 32 over that at distance 0.
    """
    place = torch.arange(length)
    ones = Rotary(32)(torch.ones(length, 32))
    buckets = t5_buckets(place - place[:, None]) / 32
    return torch.stack([alibi(length, num_heads=8)[2] / 3, buckets, ones @ ones.T / 32]).numpy()


def rotary_scores(
    distances: Sequence[int], *, equal: bool, head_dim: int = 64, pairs: int = 2000, seed: int = 0
) -> Float[np.ndarray, "pairs n"]:
    """Measure the rotary scores of standard normal queries and keys at given distances.

    score = q . R(d) k / sqrt(D)

    Args:
        distances: n distances d, at least 0.
        equal: whether k is q, or drawn independently of it.
        head_dim: D, even.
        pairs: how many pairs of q and k.
        seed: of the pairs, which are the same at every distance.

    Returns:
        Scores (pairs, n), float64.

    Raises:
        TypeError, ValueError: what `Rotary` raises.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, pairs, 1, head_dim, dtype=torch.float64, generator=generator)
    k, rotary = q if equal else k, Rotary(head_dim)
    scores = [(q * rotary(k, offset=d)).sum(-1) for d in distances]  # (pairs, 1) each
    return (torch.cat(scores, dim=-1) / head_dim**0.5).numpy()


def train_all(task: str, *, seeds: int = 3) -> dict[str, list[Reader]]:
    """Train a `Reader` with every scheme and seed on a task; see `extrapolation.train` for what it raises."""
    return {scheme: [train(scheme, task, seed=seed) for seed in range(seeds)] for scheme in SCHEMES}


def accuracies(
    models: Mapping[str, Sequence[Reader]], task: str, *, window: int | None = None
) -> Float[np.ndarray, "2 schemes seeds"]:
    """Measure the share of right answers within the 32 trained places, then beyond them up to 128.

    Args:
        models: of `train_all`.
        task: the one that they were trained on.
        window: number of keys that a query sees, its own included; all up to its own if None.

    Returns:
        (2, schemes, seeds).

    Raises:
        TypeError, ValueError: what `extrapolation.accuracy` raises.
    """
    curves = [[accuracy(model, task, window=window) for model in row] for row in models.values()]
    return np.moveaxis(within_and_beyond(np.array(curves)), -1, 0)


def stretched(models: Sequence[Reader], task: str) -> Float[np.ndarray, "2 recipes seeds"]:
    """Measure trained rotary models, each with its clocks changed by every one of RECIPES, as `accuracies` does."""
    curves = [[accuracy(model, task, rotary=Rotary(8, **recipe)) for model in models] for recipe in RECIPES.values()]
    return np.moveaxis(within_and_beyond(np.array(curves)), -1, 0)
