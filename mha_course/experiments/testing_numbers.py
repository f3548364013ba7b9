"""Numbers of notebook 09: dropout before and after the softmax, matmul and bmm, and what rounding looks like."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mha_course.experiments.scaling_training import at_least
from mha_course.multihead import MultiHeadAttention

WEIGHTS, SCORES, KEYS = "weights", "scores", "keys (DropKey)"
KINDS = (WEIGHTS, SCORES, KEYS)


class Dropped(NamedTuple):
    """Weights of one query under dropout, over many draws.

    Attributes:
        without: (S,), the weights without dropout.
        mean: (S,), the mean weight over the draws.
        error: (S,), its standard error.
        sums: (draws,), the sum of the weights in each draw; NaN where a draw gave NaN.
        nan: share of the draws that gave NaN; mean and error are over the others.
    """

    without: Float[np.ndarray, " S"]
    mean: Float[np.ndarray, " S"]
    error: Float[np.ndarray, " S"]
    sums: Float[np.ndarray, " draws"]
    nan: float


def drop(scores: Float[Tensor, " S"], kind: str, *, p: float = 0.1, draws: int = 20_000, seed: int = 0) -> Dropped:
    """Draw dropout many times for one row of scores.

    "weights": dropout(softmax(scores)): a weight is 0 with probability p, else over 1 - p.
    "scores": softmax(dropout(scores)): a score is 0 with probability p, else over 1 - p.
    "keys (DropKey)": softmax(scores, -inf with probability p).

    Args:
        scores: (S,), -inf for a key that is hidden.
        kind: one of KINDS.
        p: probability of dropping, from 0 to below 1.
        draws: how many, 2 or more.
        seed: of the draws.

    Returns:
        Dropped(without, mean, error, sums, nan), in float64.

    Raises:
        TypeError: draws is not an integer.
        ValueError: another kind; p outside [0, 1); draws below 2.

    Source: Li et al. 2022, "DropKey" (arXiv:2208.02646), who set -inf, drop before the softmax, and not scale.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}, got {kind!r}")
    if not 0 <= p < 1:
        raise ValueError(f"p must lie in [0, 1), got {p}")
    at_least("draws", draws, 2)
    scores = scores.double()
    generator = torch.Generator().manual_seed(seed)
    gone = torch.rand(draws, len(scores), generator=generator, dtype=torch.float64) < p
    factor = ~gone / (1 - p)  # what F.dropout multiplies with
    if kind == WEIGHTS:
        weights = scores.softmax(-1) * factor
    elif kind == SCORES:
        weights = (scores * factor).softmax(-1)
    else:
        weights = scores.masked_fill(gone, -math.inf).softmax(-1)
    sums = weights.sum(-1)
    kept = weights[~sums.isnan()]
    error = kept.std(0) / math.sqrt(max(len(kept), 1))
    arrays = [x.numpy() for x in (scores.softmax(-1), kept.mean(0), error, sums)]
    return Dropped(arrays[0], arrays[1], arrays[2], arrays[3], sums.isnan().double().mean().item())


class Rounding(NamedTuple):
    """Largest differences over a typical output (root of the mean square), one a seed.

    Attributes:
        ours: our module in float32 from itself in float64.
        theirs: nn.MultiheadAttention in float32 from the same.
        between: ours from theirs, both in float32; 0 where both compute in the same order.
    """

    ours: Float[np.ndarray, " seeds"]
    theirs: Float[np.ndarray, " seeds"]
    between: Float[np.ndarray, " seeds"]


def rounding(*, embed_dim: int = 64, tokens: int = 64, seeds: int = 8, backend: str = "sdpa") -> Rounding:
    """Measure how far two right implementations are from the truth, and from each other.

    B = 2, H = 4, x ~ N(0, 1), no mask. Weights copied from nn.MultiheadAttention. (Behind a causal mask the largest
    error is that of the first row, which is v of the first token whatever the softmax does: the same for both.)

    Args:
        embed_dim: E, a multiple of 4.
        tokens: T.
        seeds: how many modules and inputs.
        backend: of our module, "explicit" or "sdpa".

    Returns:
        Rounding(ours, theirs, between), (seeds,) each.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size below 1; embed_dim that 4 does not divide; another backend.
    """
    for name, size in (("embed_dim", embed_dim), ("tokens", tokens), ("seeds", seeds)):
        at_least(name, size, 1)
    if embed_dim % 4:
        raise ValueError(f"embed_dim must be a multiple of 4, got {embed_dim}")
    return Rounding(*np.array([_rounding(embed_dim, tokens, seed, backend) for seed in range(seeds)]).T)


@torch.no_grad()
def _rounding(embed_dim: int, tokens: int, seed: int, backend: str) -> list[float]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        theirs = nn.MultiheadAttention(embed_dim, 4, batch_first=True).eval()
        x = torch.randn(2, tokens, embed_dim)
    ours = MultiHeadAttention.from_torch(theirs)
    ours.backend = backend  # type: ignore[assignment]
    a, b = ours(x).double(), theirs(x, x, x, need_weights=False)[0].double()
    truth = ours.double()(x.double())
    size = truth.square().mean().sqrt()
    return [(d.abs().max() / size).item() for d in (a - truth, b - truth, a - b)]


def matmul_and_bmm(*, seed: int = 0) -> dict[str, float]:
    """Compute q k^T and x W in several ways, float32, and compare with `matmul`.

    Returns:
        Largest difference over 20 sizes; 0: bit-equal. "bmm" and "einsum" of q (B, H, T, D) and k (B, H, S, D); "one by
        one", a product of two matrices for each head; "bmm, shared", x (B, H T, D) times one matrix, expanded.
    """
    generator = torch.Generator().manual_seed(seed)
    found = {"bmm": 0.0, "einsum": 0.0, "one by one": 0.0, "bmm, shared": 0.0}
    for _ in range(20):
        B, H, T, S, D = torch.randint(1, 40, (5,), generator=generator).tolist()
        q, k = torch.randn(B, H, T, D, generator=generator), torch.randn(B, H, S, D, generator=generator)
        x, W = q.flatten(1, 2), k[0, 0].T.contiguous()  # (B, H T, D), (D, S)
        flat_q, flat_k = q.flatten(0, 1), k.flatten(0, 1)  # (B H, T, D), (B H, S, D)
        single = torch.stack([a @ b.T for a, b in zip(flat_q, flat_k, strict=True)])
        ways = {
            "bmm": torch.bmm(flat_q, flat_k.mT).view(B, H, T, S) - q @ k.mT,
            "einsum": torch.einsum("bhtd,bhsd->bhts", q, k) - q @ k.mT,
            "one by one": single.view(B, H, T, S) - q @ k.mT,
            "bmm, shared": torch.bmm(x, W.expand(B, D, S)) - x @ W,
        }
        for name, difference in ways.items():
            found[name] = max(found[name], difference.abs().max().item())
    return found


SHAPES = {
    "(B, T, D) (B, D, S)": ((2, 5, 7), (2, 7, 3)),
    "(B, H, T, D) (B, H, D, S)": ((2, 4, 5, 7), (2, 4, 7, 3)),
    "(B, T, E) (E, F)": ((2, 5, 7), (7, 3)),
    "(B, T, D) (1, D, S)": ((2, 5, 7), (1, 7, 3)),
    "(T, D) (D, S)": ((5, 7), (7, 3)),
}


def refused() -> dict[str, tuple[bool, str]]:
    """Try matmul and bmm on five pairs of shapes.

    Returns:
        By the shapes: whether matmul takes them, and the first line of what bmm says, "" if it takes them.
    """
    found = {}
    for name, (a, b) in SHAPES.items():
        said = ""
        try:
            torch.bmm(torch.zeros(a), torch.zeros(b))
        except RuntimeError as error:
            said = str(error).splitlines()[0]
        found[name] = (torch.matmul(torch.zeros(a), torch.zeros(b)).shape[-1] == b[-1], said)
    return found
