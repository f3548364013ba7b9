"""Experiments of notebook 13: how finely formats count, a training in each of them, and what they cost in time."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional as F

from mha_course.data import random_rotation, retrieval
from mha_course.masks._inputs import check_integer
from mha_course.measure import PairedRatio, paired_ratio
from mha_course.multihead import MultiHeadAttention
from mha_course.precision import FORMATS, amp_step

WIDTH, CLASSES, KEYS, BATCH = 32, 16, 16, 32
LAST = 10  # batches over which the accuracy is taken


class Training(NamedTuple):
    """What became of a training.

    Attributes:
        accuracy: share that is named rightly in the last 10 batches, each before its update; 1/16 is chance.
        zeros: share of exact zeros in the gradient of W_q at the first step.
        skipped: number of steps that the scaler skipped.
    """

    accuracy: float
    zeros: float
    skipped: int


class Reader(nn.Module):
    """One head of attention that answers `data.retrieval`, and a linear map from its output to the classes."""

    def __init__(self) -> None:
        """Draw the parameters from PyTorch's global generator."""
        super().__init__()
        self.attention = MultiHeadAttention(WIDTH, 1, vdim=CLASSES)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(
        self, query: Float[Tensor, "B 1 width"], key: Float[Tensor, "B S width"], value: Float[Tensor, "B S classes"]
    ) -> Float[Tensor, "B classes"]:
        """Return the logits of the classes."""
        return self.head(self.attention(query, key, value))[:, 0]


def train(
    dtype: torch.dtype, *, factor: float = 1.0, scaler: GradScaler | None = None, steps: int = 120, seed: int = 0
) -> Training:
    """Train a `Reader` with Adam; its loss is cross-entropy times a factor.

    Adam divides each gradient by its own size, so that in exact arithmetic the factor changes next to nothing.

    Args:
        dtype: torch.float32 trains without autocast, the others with it.
        factor: on the loss.
        scaler: see `amp_step`.
        steps: at least 10.
        seed: of parameters and data.

    Returns:
        Training(accuracy, zeros, skipped).

    Raises:
        TypeError: steps is not an integer; else see `amp_step`.
        ValueError: steps is below 10; else see `amp_step`.
    """
    check_integer("steps", steps, least=LAST)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Reader()
    generator, rotation = torch.Generator().manual_seed(seed), random_rotation(WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    right: list[Tensor] = []

    def loss_fn(model: nn.Module, query: Tensor, key: Tensor, value: Tensor, target: Tensor) -> Tensor:
        logits = model(query, key, value)
        right.append((logits.argmax(-1) == target).float().mean())
        return factor * F.cross_entropy(logits, target)

    zeros, skipped = list[float](), 0
    for _ in range(steps):
        batch = retrieval(BATCH, KEYS, rotation=rotation, generator=generator)
        skipped += amp_step(model, optimizer, loss_fn, *batch, dtype=dtype, scaler=scaler).skipped
        gradient = model.attention.q_proj.weight.grad
        assert gradient is not None
        zeros.append((gradient == 0).float().mean().item())
    return Training(torch.stack(right[-LAST:]).mean().item(), zeros[0], skipped)


def relative_spacing(powers: Sequence[int]) -> dict[str, Float[np.ndarray, " powers"]]:
    """Say how far the values of each format lie apart at a power of two, as a share of it.

    Args:
        powers: exponents of two, -300 to 300.

    Returns:
        For each of `FORMATS` (powers,): spacing(x) / x for x = 2^power, NaN where the format does not hold x.
    """
    x = torch.tensor([2.0**power for power in powers], dtype=torch.float64)
    return {
        name: torch.where(form.round(x) == x, form.spacing(x) / x, torch.nan).numpy() for name, form in FORMATS.items()
    }


def against_float32(
    dtype: torch.dtype, *, B: int = 2, S: int = 64, E: int = 256, num_heads: int = 8, rounds: int = 9
) -> PairedRatio:
    """Time forward and backward of `MultiHeadAttention` under autocast against the same in float32.

    Args:
        dtype: torch.bfloat16 or torch.float16.
        B, S, E, num_heads: sizes; S tokens attend to each other.
        rounds: see `paired_ratio`.

    Returns:
        Time under autocast / time in float32; below 1, autocast is faster.
    """
    generator = torch.Generator().manual_seed(0)
    module, x = MultiHeadAttention(E, num_heads), torch.randn(B, S, E, generator=generator)
    parameters = list(module.parameters())

    def run(low: bool) -> None:
        with torch.autocast("cpu", dtype=dtype, enabled=low):
            out = module(x)
        torch.autograd.grad(out.float().sum(), parameters)

    return paired_ratio(lambda: run(True), lambda: run(False), rounds=rounds)
