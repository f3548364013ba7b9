"""Experiments of notebook 05: what attention knows about the order of its tokens."""

import itertools

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.dot_product import attention
from mha_course.masks import causal as causal_mask
from mha_course.positions import Learned, Sinusoidal
from mha_course.training import fit

TOKENS, VOCABULARY, WIDTH = 8, 16, 32
BATCH, STEPS, RATE, TESTED = 64, 300, 5e-3, 2000
SCHEMES = ("none", "sinusoidal", "learned")
READERS = ("1 layer", "2 layers", "1 layer, causal", "2 layers, causal")


class Reader(nn.Module):
    """Embedding and positions, layers of one head with a residual path, and the last token's vector read out."""

    def __init__(self, scheme: str, layers: int, causal: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        schemes = {"none": nn.Identity(), "sinusoidal": Sinusoidal(WIDTH), "learned": Learned(TOKENS, WIDTH)}
        self.positions = schemes[scheme]
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(layers))
        self.read = nn.Linear(WIDTH, VOCABULARY)
        self.mask = causal_mask(TOKENS) if causal else None

    def forward(self, tokens: Integer[Tensor, "B T"]) -> Float[Tensor, "B vocabulary"]:
        """Return the logits of the token that stands first, as the last token sees it."""
        x = self.positions(self.embedding(tokens))  # (B, T, E)
        for layer in self.layers:
            q, k, v = layer(x).chunk(3, dim=-1)  # (B, T, E) each
            x = x + attention(q, k, v, mask=self.mask).out
        return self.read(x[:, -1])


def name_first(scheme: str, *, layers: int = 1, causal: bool = False, steps: int = STEPS, seed: int = 0) -> float:
    """Train a reader to name the first of eight different tokens, with Adam; return its accuracy on 2000 new ones.

    The answer is read from the last token's vector. Whoever knows which tokens there are, and which is the last, but
    no order, is right in 1 of 7 cases.

    Args:
        scheme: one of SCHEMES.
        layers: attention layers, at least 1.
        causal: whether a token sees itself and those before it only.
        steps: updates, at least 1.
        seed: of the model and the training data; all are tested on the same sequences.

    Returns:
        Share of the tested sequences whose first token is named rightly; its standard error is .011 at most.

    Raises:
        TypeError: layers is not an integer.
        ValueError: another scheme; layers or steps below 1.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"scheme must be one of {SCHEMES}, got {scheme!r}")
    if isinstance(layers, bool) or not isinstance(layers, int):
        raise TypeError(f"layers must be an integer, got {type(layers).__name__}")
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Reader(scheme, layers, causal)
    generator = torch.Generator().manual_seed(seed)
    batches = (_draw(BATCH, generator) for _ in itertools.count())
    fit(model, batches, loss=F.cross_entropy, steps=steps, lr=RATE)
    tokens, first = _draw(TESTED, torch.Generator().manual_seed(1_000_000))
    with torch.no_grad():
        return (model(tokens).argmax(-1) == first).double().mean().item()


def without_positions(*, seeds: int = 3) -> Float[np.ndarray, "readers seeds"]:
    """Train each of READERS to name the first token without position vectors; return the accuracies."""
    accuracies = [
        [name_first("none", layers=layers, causal=causal, seed=seed) for seed in range(seeds)]
        for causal in (False, True)
        for layers in (1, 2)
    ]
    return np.array(accuracies)


def _draw(batch: int, generator: torch.Generator) -> tuple[Integer[Tensor, "B T"], Integer[Tensor, " B"]]:
    """Different tokens in random order, and the first of each row."""
    tokens = torch.rand(batch, VOCABULARY, generator=generator, dtype=torch.float32).argsort(-1)[:, :TOKENS]  # (B, T)
    return tokens, tokens[:, 0]


def explained_by_distance(scores: Float[Tensor, "T T"]) -> float:
    """Return how much of the variance of scores the distance between query and key explains.

    share = 1 - sum over (t, s) of (scores[t, s] - m[t - s])^2 / sum of (scores[t, s] - m)^2

    with m[d] the mean of all scores at distance d, m that of all scores.

    Args:
        scores: (T, T), not all equal.

    Returns:
        1 if a score depends on its distance alone, about (2T - 1) / T^2 if all scores are independent.

    Raises:
        ValueError: scores is not square; one is not finite; all are equal.
    """
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1]:
        raise ValueError(f"scores must have shape (T, T), got {tuple(scores.shape)}")
    numbers = scores.detach().double().numpy()
    if not np.isfinite(numbers).all():
        raise ValueError("scores must be finite, got NaN or infinity, perhaps of a mask")
    if not numbers.size or np.ptp(numbers) <= 1e-12 * abs(numbers).max():
        raise ValueError("scores must not all be equal")
    T, around = len(numbers), numbers - numbers.mean()
    diagonals = [np.diagonal(numbers, offset) for offset in range(1 - T, T)]
    left = sum(((diagonal - diagonal.mean()) ** 2).sum() for diagonal in diagonals)
    return float(1 - left / (around**2).sum())
