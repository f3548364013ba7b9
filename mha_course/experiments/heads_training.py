"""Trainings of notebook 07: fetch two things and keep them apart, and reverse a sequence by cross-attention."""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.experiments.heads_layout import RIGHT, Laid
from mha_course.experiments.scaling_training import at_least
from mha_course.training import fit

CLASSES, EMBED_DIM, BATCH, TESTED = 16, 32, 64, 1000
PLACES = 8  # of `fetch_two`
LENGTH, KDIM, VDIM, HEADS = 12, 24, 16, 4  # of `reverse`


class Fetched(NamedTuple):
    """How well a trained layer names both neighbours, on places whose two neighbours differ.

    Attributes:
        left: share of the places whose left neighbour is named rightly.
        right: the same for the right neighbour.
        both: share of the places where both are.
        loss: cross-entropy of a neighbour in nats, mean over the last 20 steps; log 16 = 2.77 for a blind guess.
        weights: (H, T, T), which do not depend on the tokens.
        on_left, on_right: (H,), a head's weight on the left and on the right neighbour, mean over the places.
    """

    left: float
    right: float
    both: float
    loss: float
    weights: Float[np.ndarray, "H T T"]
    on_left: Float[np.ndarray, " H"]
    on_right: Float[np.ndarray, " H"]


class Neighbours(nn.Module):
    """One layer of attention whose queries and keys are learned places and whose values are tokens, then a read-out."""

    def __init__(self, heads: int, embed_dim: int, hidden: int, layout: str) -> None:
        super().__init__()
        self.token = nn.Embedding(CLASSES, embed_dim)
        self.place = nn.Parameter(torch.randn(PLACES, embed_dim))
        self.attention = Laid(layout, embed_dim, heads)
        linear = nn.Linear(embed_dim, 2 * CLASSES)
        mlp = nn.Sequential(nn.Linear(embed_dim, hidden or 1), nn.ReLU(), nn.Linear(hidden or 1, 2 * CLASSES))
        self.read = mlp if hidden else linear

    def forward(self, tokens: Integer[Tensor, "B T"]) -> Float[Tensor, "B T 2 classes"]:
        """Return the logits of the left and of the right neighbour."""
        places = self.place.expand(len(tokens), -1, -1)  # (B, T, E)
        return self.read(self.attention(places, places, self.token(tokens))).unflatten(-1, (2, CLASSES))


def fetch_two(
    heads: int,
    *,
    embed_dim: int = EMBED_DIM,
    hidden: int = 0,
    steps: int = 200,
    lr: float = 1e-2,
    seed: int = 0,
    layout: str = RIGHT,
) -> Fetched:
    """Train one layer to name, at each of 8 places in a ring, the token on its left and the token on its right.

    Tokens are drawn from 16 classes. Queries and keys are made from learned places, values from tokens, so that a head
    has one set of weights, whatever the tokens are. The number of parameters does not depend on the number of heads.

    A single head gives a place w a + (1 - w) b, where a is its left neighbour, b its right one (what it gets from other
    places stays the same below). A linear read-out of the right neighbour prefers b to a by some r > 0 when both are b,
    by -p < 0 when both are a, if it is right about equal neighbours. Between them it is linear: for left a and right b
    it prefers b by (1 - w) r - w p, for left b and right a by w r - (1 - w) p. The first should be positive, the second
    negative, but with w >= 1/2 the second is not the smaller one. So in one of the two orders the right neighbour is
    named wrongly, or, with w <= 1/2, the left one: whoever is right about equal neighbours names both of different
    ones in half of the cases at the most, for any width of the model and any training.

    Args:
        heads: H.
        embed_dim: E.
        hidden: width of the hidden layer of the read-out, 0: linear read-out.
        steps: updates with Adam on 64 new sequences each.
        lr: learning rate.
        seed: of the model and of the training data; all are tested on the same 1000 sequences.
        layout: one of `heads_layout.LAYOUTS`.

    Returns:
        Fetched(left, right, both, loss, weights, on_left, on_right).

    Raises:
        TypeError: heads, embed_dim, hidden or steps is not an integer.
        ValueError: heads, embed_dim or steps below 1; hidden below 0; heads does not divide embed_dim; lr below 0 or
            not finite; another layout.
    """
    at_least("hidden", hidden, 0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Neighbours(heads, embed_dim, hidden, layout)
    generator = torch.Generator().manual_seed(seed)
    batches = (_ring(BATCH, generator) for _ in itertools.count())
    losses = fit(model, batches, loss=_cross_entropy, steps=steps, lr=lr).losses
    tokens, target = _ring(TESTED, torch.Generator().manual_seed(1_000_000))
    with torch.no_grad():
        named = (model(tokens).argmax(-1) == target)[target[..., 0] != target[..., 1]].double()  # (places, 2)
        places = model.place[None]
        weights = model.attention.attend(places, places, places)[0][0]  # (H, T, T)
    left, right = named.mean(0).tolist()
    here = torch.arange(PLACES)
    on = [weights[:, here, here.roll(shift)].mean(-1).numpy() for shift in (1, -1)]
    return Fetched(left, right, named.prod(-1).mean().item(), losses[-20:].mean(), weights.numpy(), *on)


def _ring(batch: int, generator: torch.Generator) -> tuple[Integer[Tensor, "B T"], Integer[Tensor, "B T 2"]]:
    """Tokens in a ring, and the left and the right neighbour of each."""
    tokens = torch.randint(CLASSES, (batch, PLACES), generator=generator)
    return tokens, torch.stack([tokens.roll(1, -1), tokens.roll(-1, -1)], -1)


def _cross_entropy(logits: Float[Tensor, "*B classes"], target: Integer[Tensor, "*B"]) -> Float[Tensor, ""]:
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


class Mixture(NamedTuple):
    """What the best linear read-out makes of w a + (1 - w) b, at every w: loss in nats when it names a."""

    loss: Float[np.ndarray, " n"]
    accuracy: Float[np.ndarray, " n"]


def best_read_out(shares: Float[np.ndarray, " n"]) -> Mixture:
    """Find the linear read-out with the least cross-entropy for a, given one vector w a + (1 - w) b.

    a and b are one-hot, 16 classes each, drawn independently; any other embedding of tokens is a linear function of
    that. The loss is convex, and does not change when classes are renamed: among the best read-outs is one that treats
    all classes alike, so that its logits are s (w a + (1 - w) b), and only s, searched from 0 to 1000, is to be found.

    Args:
        shares: (n,), w from 0 to 1.

    Returns:
        Mixture(loss, accuracy). loss is over all pairs of tokens, accuracy over pairs of different ones, and half where
            a and b get the same logit, 1/16 where all classes do.

    Raises:
        ValueError: a share outside [0, 1].
    """
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(f"shares must lie in [0, 1], got {shares.min()} to {shares.max()}")
    s = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 6001)])
    equal = np.log1p((CLASSES - 1) * np.exp(-s))
    loss, accuracy = np.empty((2, len(shares)))
    for i, w in enumerate(shares):
        differ = np.logaddexp(np.logaddexp(0, (1 - 2 * w) * s), np.log(CLASSES - 2) - w * s)
        total = equal / CLASSES + differ * (1 - 1 / CLASSES)
        best = total.argmin()
        loss[i] = total[best]
        accuracy[i] = 1 / CLASSES if best == 0 else 0.5 * (1 + np.sign(round(2 * w - 1, 12)))
    return Mixture(loss, accuracy)


class Reversal(NamedTuple):
    """How well a trained model reverses new sequences.

    Attributes:
        exact: share of the sequences with no mistake.
        tokens: share of the tokens that are right.
        weights: (H, T, S), which do not depend on the tokens; 1/S each where the values are pooled.
        on_target: (H, T), weight on the token to be fetched.
    """

    exact: float
    tokens: float
    weights: Float[np.ndarray, "H T S"]
    on_target: Float[np.ndarray, "H T"]


class Reverser(nn.Module):
    """Cross-attention: queries from places of the answer, keys from places of the source, values from its tokens."""

    def __init__(self, layout: str, pooled: bool) -> None:
        super().__init__()
        self.pooled = pooled
        self.answer = nn.Parameter(torch.randn(LENGTH, EMBED_DIM))
        self.source = nn.Parameter(torch.randn(LENGTH, KDIM))
        self.token = nn.Embedding(CLASSES, VDIM)
        self.attention = Laid(layout, EMBED_DIM, HEADS, kdim=KDIM, vdim=VDIM)
        self.pool = nn.Linear(VDIM, EMBED_DIM)
        self.read = nn.Linear(EMBED_DIM, CLASSES)

    def forward(self, tokens: Integer[Tensor, "B S"]) -> Float[Tensor, "B T classes"]:
        """Return the logits of the answer's tokens."""
        query, key, value = (x.expand(len(tokens), -1, -1) for x in (self.answer, self.source, self.token(tokens)))
        if self.pooled:
            return self.read((query + self.pool(value.mean(1, keepdim=True))).relu())
        return self.read(self.attention(query, key, value))


def reverse(
    *, pooled: bool = False, steps: int = 150, lr: float = 1e-2, seed: int = 0, layout: str = RIGHT
) -> Reversal:
    """Train cross-attention with four heads to say 12 tokens in reverse order.

    Queries are learned places of the answer (E = 32), keys learned places of the source (Ek = 24), values the tokens'
    embeddings (Ev = 16), with 16 classes.

    Args:
        pooled: give each place of the answer the mean of the values instead of attention, and a hidden layer.
        steps: updates with Adam on 64 new sequences each.
        lr: learning rate.
        seed: of the model and of the training data; all are tested on the same 1000 sequences.
        layout: one of `heads_layout.LAYOUTS`.

    Returns:
        Reversal(exact, tokens, weights, on_target).

    Raises:
        TypeError: steps is not an integer.
        ValueError: steps below 1; lr below 0 or not finite; another layout.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Reverser(layout, pooled)
    generator = torch.Generator().manual_seed(seed)
    batches = (_reversed(BATCH, generator) for _ in itertools.count())
    fit(model, batches, loss=_cross_entropy, steps=steps, lr=lr)
    tokens, target = _reversed(TESTED, torch.Generator().manual_seed(1_000_000))
    with torch.no_grad():
        right = model(tokens).argmax(-1) == target  # (B, T)
        value = model.token(tokens[:1])
        weights = model.attention.attend(model.answer[None], model.source[None], value)[0][0]  # (H, T, S)
    if pooled:
        weights = torch.full_like(weights, 1 / LENGTH)
    on_target = weights.flip(-1).diagonal(dim1=-2, dim2=-1)
    shares = (right.all(-1).double().mean().item(), right.double().mean().item())
    return Reversal(*shares, weights.numpy(), on_target.numpy())


def _reversed(batch: int, generator: torch.Generator) -> tuple[Integer[Tensor, "B S"], Integer[Tensor, "B T"]]:
    tokens = torch.randint(CLASSES, (batch, LENGTH), generator=generator)
    return tokens, tokens.flip(-1)
