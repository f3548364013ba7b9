"""The clinic of notebook 09: six attention modules with one fault each, and the measurements that tell them apart."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course import masks
from mha_course.checks import probe
from mha_course.multihead import MultiHeadAttention

Tokens = Float[Tensor, "..."]
Heads = Float[Tensor, "B H _ D"]
Weights = Float[Tensor, "B H T S"]
Mask = Bool[Tensor, "..."]

EMBED_DIM, NUM_HEADS = 12, 3
LENGTH, CONTEXT_LENGTH = 6, 5  # tokens of `examine`
LENGTHS = torch.tensor([4, 6])  # of its two samples
TOLERANCE = 1e-5  # of values, in float32


class Attention(nn.Module):
    """Multi-head attention as it should be; each patient has one step of its own.

    Args:
        embed_dim: E.
        num_heads: H, a divisor of E.
        dropout: probability that a weight is dropped, in training.

    Raises:
        ValueError: H does not divide E.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"num_heads must divide embed_dim, got {num_heads} and {embed_dim}")
        self.num_heads, self.dropout = num_heads, dropout
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query: Tokens, context: Tokens, mask: Mask | None = None) -> Tokens:
        """Attend from query (B, T, E) to context (B, S, E); mask is bool, True = may attend: (B, T, E)."""
        q, k, v = self.project(query, context)
        out = self.drop(self.weigh(q, k, mask)) @ v  # (B, H, T, D)
        return self.out_proj(out.transpose(1, 2).flatten(2))

    def weights(self, query: Tokens, context: Tokens, mask: Mask | None = None) -> Weights:
        """Return the weights (B, H, T, S), before dropout."""
        return self.weigh(*self.project(query, context)[:2], mask)

    def project(self, query: Tokens, context: Tokens) -> tuple[Heads, Heads, Heads]:
        """Return q, k and v, split into heads."""
        return self.split(self.q_proj(query)), self.split(self.k_proj(context)), self.split(self.v_proj(context))

    def split(self, x: Tokens) -> Heads:
        """Cut the features into heads."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def weigh(self, q: Heads, k: Heads, mask: Mask | None) -> Weights:
        """Scores, scale, mask, softmax."""
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(-1)

    def drop(self, weights: Weights) -> Weights:
        """Drop weights, in training."""
        return F.dropout(weights, self.dropout, self.training)


class PatientA(Attention):
    """Attention with one fault."""

    def drop(self, weights: Weights) -> Weights:
        """Drop weights."""
        return F.dropout(weights, self.dropout)


class PatientB(Attention):
    """Attention with one fault."""

    def weigh(self, q: Heads, k: Heads, mask: Mask | None) -> Weights:
        """Weights of every query."""
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(-1) / math.sqrt(q.shape[-1])


class PatientC(Attention):
    """Attention with one fault."""

    def weigh(self, q: Heads, k: Heads, mask: Mask | None) -> Weights:
        """Weights of every query."""
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores + mask.to(scores.dtype) * torch.finfo(scores.dtype).min
        return scores.softmax(-1)


class PatientD(Attention):
    """Attention with one fault."""

    def project(self, query: Tokens, context: Tokens) -> tuple[Heads, Heads, Heads]:
        """Return q, k and v, split into heads."""
        return self.split(self.q_proj(query)), self.split(self.k_proj(query)), self.split(self.v_proj(query))


class PatientE(Attention):
    """Attention with one fault."""

    def weigh(self, q: Heads, k: Heads, mask: Mask | None) -> Weights:
        """Weights of every query."""
        q = q / math.sqrt(q.shape[-1])
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(-1)


class PatientF(Attention):
    """Attention with one fault."""

    def weigh(self, q: Heads, k: Heads, mask: Mask | None) -> Weights:
        """Weights of every query."""
        B, H = q.shape[:2]
        scores = q.flatten(0, 1) @ k.flatten(0, 1).mT / math.sqrt(q.shape[-1])  # (B H, T, S)
        if mask is not None:
            mask = mask.expand(B, 1, *scores.shape[1:])[:, 0]  # (B, T, S)
            scores = scores.masked_fill(~mask.repeat(H, 1, 1), -math.inf)
        return scores.softmax(-1).unflatten(0, (B, H))


PATIENTS = {"A": PatientA, "B": PatientB, "C": PatientC, "D": PatientD, "E": PatientE, "F": PatientF}
DIAGNOSES = {
    "A": "dropout never ends: F.dropout is not told whether the module is in training",
    "B": "the scale comes after the softmax, where it shrinks the weights",
    "C": "the mask is converted the wrong way round: what may be seen is hidden",
    "D": "keys and values are made from the query: the context is never read",
    "E": "the scores are scaled twice",
    "F": "the masks are repeated as M0 M1 M0 M1, the heads lie as M0 M0 M1 M1: samples use each other's masks",
}


def patient(letter: str, seed: int = 0) -> Attention:
    """Give one of the six modules, in evaluation mode.

    Args:
        letter: "A" to "F".
        seed: of its parameters; the global generator is not touched.

    Returns:
        fn(query (B, T, E), context (B, S, E), mask=None) -> (B, T, E) with E = EMBED_DIM, H = NUM_HEADS; mask is bool,
        True = may attend, (B or 1, 1, T or 1, S). Its `weights`, called in the same way, gives the weights.

    Raises:
        ValueError: another letter.
    """
    if letter not in PATIENTS:
        raise ValueError(f"letter must be one of {', '.join(PATIENTS)}, got {letter!r}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return PATIENTS[letter](EMBED_DIM, NUM_HEADS).eval()


class Chart(NamedTuple):
    """What `examine` measured; print it to read it.

    Attributes:
        same_twice: whether two calls on the same input give the same, to the last bit.
        rows_sum_to_one: whether every row of weights sums to 1.
        alone: whether no row of one sample moves with a token that its mask hides.
        together: the same in a batch of two samples with different masks.
        context: whether some row moves with each token of the context, in cross-attention.
        difference: largest difference from `MultiHeadAttention` with the same weights; NaN if there is one.
    """

    same_twice: bool
    rows_sum_to_one: bool
    alone: bool
    together: bool
    context: bool
    difference: float

    @property
    def shown_by(self) -> tuple[str, ...]:
        """The measurements that show that something is wrong, the cheapest first."""
        names = ("two calls", "row sums", "leak probe, one sample", "leak probe, two samples", "change of the context")
        found = [name for name, fine in zip(names, self, strict=False) if not fine]
        return (*found, *(() if self.difference <= TOLERANCE else ("values",)))

    def __str__(self) -> str:
        """The measurements that show something."""
        return ", ".join(self.shown_by) or "nothing found"


def examine(module: Attention) -> Chart:
    """Measure a module in every way that the lesson knows.

    Args:
        module: called like a patient, with a method `weights` and parameters named like those of
            `MultiHeadAttention`. It may return NaN; it is left as it is.

    Returns:
        A Chart. Every call but those of `same_twice` starts from the same random state, so that a module that draws
        can be measured too. The global generator is not touched.
    """
    x, context = (_tokens(seed, n) for seed, n in enumerate((LENGTH, CONTEXT_LENGTH)))
    mask = masks.padding(LENGTHS, LENGTH)  # (2, 1, 1, T)

    def seeded(query: Tokens, context: Tokens, mask: Mask | None = None) -> Tokens:
        torch.default_generator.manual_seed(0)
        return module(query, context, mask)

    def hides(samples: int) -> bool:
        shown = mask[:samples]
        found = probe.leaks(lambda x: seeded(x, x, shown), x[:samples])
        may = shown[:, 0] | torch.eye(LENGTH, dtype=torch.bool)  # a row's own token makes its query
        return not ((found.moves & ~may).any() or found.between_samples or found.nan_rows.any())

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)
        first, second = module(x, x, mask), module(x, x, mask)
        return Chart(
            same_twice=torch.allclose(first, second, 0, 0, equal_nan=True),
            rows_sum_to_one=probe.row_sums(module.weights(x, x, mask)).ok,
            alone=hides(1),
            together=hides(2),
            context=bool(probe.leaks(seeded, x, context, change=1).tokens.any(0).all()),
            difference=_difference(module, [(x, x, mask), (x, context, None)]),
        )


def _tokens(seed: int, length: int) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(LENGTHS), length, EMBED_DIM, generator=generator)


def _difference(module: Attention, inputs: list[tuple[Tokens, Tokens, Mask | None]]) -> float:
    reference = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    reference.load_state_dict(module.state_dict())
    gaps = [(module(x, y, mask) - reference(x, y, mask=mask)).abs().max() for x, y, mask in inputs]
    return torch.stack(gaps).max().item()
