"""Trainings of notebook 03: one head learns to find a key, its scores scaled by different rules."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.data import random_rotation, retrieval
from mha_course.dot_product import attention
from mha_course.training import fit

WIDTH, CLASSES, GAIN = 32, 16, 8.0
WINDOW = 10  # steps over which `steps_to` takes the mean

NONE, SQRT, CONSTANT, LINEAR = "none", "1/sqrt(d_k)", "1/10", "1/d_k"
COSINE, FACTOR, SMALL = "cosine", "cosine, factor", "none, small W_q"
RULES = (NONE, SQRT, CONSTANT, LINEAR, COSINE, FACTOR, SMALL)
INITS = ("unit", "default", "randn", "xavier", "1/sqrt(d_k)")


class Run(NamedTuple):
    """One training: share of a step's batch that is named rightly, and its loss, both before the step's update."""

    accuracy: Float[np.ndarray, " steps"]
    loss: Float[np.ndarray, " steps"]


class Retriever(nn.Module):
    """One head of attention that answers `data.retrieval`; it learns W_q and W_k alone.

    The values are one-hot, so that the output is the weight that every class gets. The logits are 8 times that: with
    all weight on one class its probability is e^8 / (e^8 + 15) = .995.
    """

    def __init__(self, rule: str, d_k: int, init: str, generator: torch.Generator) -> None:
        """Draw W_q and W_k (32, d_k) by `init`, see `draw_map`; with "none, small W_q", W_q is divided by sqrt(d_k)."""
        super().__init__()
        self.rule = rule
        self.W_q = nn.Parameter(draw_map(init, WIDTH, d_k, generator))
        self.W_k = nn.Parameter(draw_map(init, WIDTH, d_k, generator))
        if rule == SMALL:
            self.W_q.data /= math.sqrt(d_k)
        self.log_factor = nn.Parameter(torch.tensor(math.log(10.0))) if rule == FACTOR else None

    def forward(
        self, query: Float[Tensor, "B 1 width"], key: Float[Tensor, "B S width"], value: Float[Tensor, "B S classes"]
    ) -> Float[Tensor, "B classes"]:
        """Return the logits of the classes."""
        q, k = query @ self.W_q, key @ self.W_k
        d_k = q.shape[-1]
        if self.rule in (COSINE, FACTOR):
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        if self.log_factor is not None:
            q = q * self.log_factor.exp()
        scale = {SQRT: 1 / math.sqrt(d_k), CONSTANT: 0.1, LINEAR: 1 / d_k}.get(self.rule, 1.0)
        return GAIN * attention(q, k, value, scale=scale).out[:, 0]


def train(
    rule: str,
    *,
    d_k: int = 256,
    keys: int = 16,
    lr: float = 3e-3,
    init: str = "unit",
    steps: int = 250,
    batch: int = 32,
    seed: int = 0,
    until: float | None = None,
) -> Run:
    """Train a `Retriever` of width d_k on `data.retrieval` with Adam and cross-entropy, its scores scaled by a rule.

    "none": q.k,  "1/sqrt(d_k)", "1/10", "1/d_k": q.k times that,  "cosine": q.k / (|q| |k|),
    "cosine, factor": the cosine times exp(a), where a is learned and starts at log 10
    "none, small W_q": q.k, with W_q divided by sqrt(d_k) at the start: the function of "1/sqrt(d_k)", before training

    Every batch is new, so that the accuracy on it, taken before the update, is that on unseen data. For one seed all
    rules start from the same W_q and W_k, but for that factor, and see the same batches. Whoever ignores the query and
    names the most frequent class is right in 19 % of the sequences with 16 keys, in 15 % with 32.

    Args:
        rule: one of RULES.
        d_k: width of the head.
        keys: keys S of a sequence.
        lr: learning rate.
        init: how W_q and W_k are drawn, one of INITS, see `draw_map`.
        steps: updates.
        batch: sequences B of a batch.
        seed: of W_q, W_k and the data; the rotation of the data is the same for all seeds.
        until: stop after the step for which `steps_to` finds this level of accuracy; None goes on to the end.

    Returns:
        Run(accuracy, loss), each with an entry for every step that was done.

    Raises:
        TypeError: d_k, keys, steps or batch is not an integer.
        ValueError: another rule or init; d_k, keys, steps or batch below 1; lr below 0 or not finite;
            until outside (0, 1].
        FloatingPointError: the loss or its gradient is not finite, as with a huge lr.

    Source: cosine with a learned factor: Henry et al. 2020, "Query-key normalization for transformers".
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {RULES}, got {rule!r}")
    at_least("d_k", d_k, 1)
    if until is not None and not 0 < until <= 1:
        raise ValueError(f"until must lie in (0, 1], got {until}")
    model = Retriever(rule, d_k, init, torch.Generator().manual_seed(seed))
    data = torch.Generator().manual_seed(1_000_000 + seed)
    R = random_rotation(WIDTH)
    batches = (
        retrieval(batch, keys, width=WIDTH, classes=CLASSES, rotation=R, generator=data) for _ in itertools.count()
    )
    accuracy: list[float] = []

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        accuracy.append((logits.argmax(-1) == target).double().mean().item())
        return F.cross_entropy(logits, target)

    def reached(step: int, _loss: float) -> bool:
        return until is not None and steps_to(np.array(accuracy[-WINDOW:]), until) <= step

    losses = fit(model, batches, loss=loss, steps=steps, lr=lr, callback=reached).losses
    return Run(np.array(accuracy), losses)


def steps_to(accuracy: Float[np.ndarray, " steps"], level: float = 0.9, *, window: int = WINDOW) -> float:
    """Find the first step at which the mean accuracy of the last `window` steps reaches a level.

    A mean over 10 batches of 32 has a standard error of .017 at .9, and lags a rising curve by 4.5 steps.

    Args:
        accuracy: (steps,), entry 0 is step 1.
        level: the level.
        window: steps of the mean.

    Returns:
        The step, counted from 1, `window` at the earliest; NaN if the level is never reached.

    Raises:
        ValueError: window below 1.
    """
    at_least("window", window, 1)
    if len(accuracy) < window:
        return math.nan
    means = np.convolve(accuracy, np.full(window, 1 / window), mode="valid")
    reached = np.flatnonzero(means >= level - 1e-9)  # a sum of window terms is not exact
    return float(reached[0] + window) if len(reached) else math.nan


def at_least(name: str, value: int, least: int) -> None:
    """Raise unless an argument is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def draw_map(init: str, rows: int, columns: int, generator: torch.Generator) -> Float[Tensor, "rows columns"]:
    """Draw the matrix W of y = x W.

    "unit": N(0, 1 / rows), which keeps variance 1,  "default": nn.Linear's, uniform within 1 / sqrt(rows),
    "randn": N(0, 1),  "xavier": uniform within sqrt(6 / (rows + columns)),  "1/sqrt(d_k)": N(0, 1 / columns)

    Args:
        init: one of INITS.
        rows: width of x (fan-in).
        columns: width of y (fan-out).
        generator: source of the entries.

    Returns:
        W (rows, columns), float32.

    Raises:
        TypeError: rows or columns is not an integer.
        ValueError: another init; rows or columns below 1.

    Source: for "xavier", Glorot and Bengio 2010.
    """
    if init not in INITS:
        raise ValueError(f"init must be one of {INITS}, got {init!r}")
    at_least("rows", rows, 1)
    at_least("columns", columns, 1)
    if init in ("default", "xavier"):
        bound = 1 / math.sqrt(rows) if init == "default" else math.sqrt(6 / (rows + columns))
        return (2 * torch.rand(rows, columns, generator=generator) - 1) * bound
    std = {"unit": 1 / math.sqrt(rows), "randn": 1.0, "1/sqrt(d_k)": 1 / math.sqrt(columns)}[init]
    return torch.randn(rows, columns, generator=generator) * std
