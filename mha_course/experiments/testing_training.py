"""Trainings of notebook 09: right and faulty attention overfits one batch, and learns to copy 2 back."""

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.data import NO_ANSWER, copy_back
from mha_course.experiments.heads_layout import can_reach
from mha_course.experiments.scaling_training import at_least
from mha_course.experiments.testing_modules import FAULTY, NOTHING, RIGHT, make
from mha_course.training import Batch, fit

EMBED_DIM, NUM_HEADS, VOCABULARY = 32, 4, 16
LENGTH, BACK = 16, 2  # T, and how far back the answer of copy 2 back stands
SEQUENCES = 8  # of the batch to overfit
BATCH, TESTED = 16, 256  # sequences of a step, and of the test, of copy 2 back
WARM_UP = 10  # steps
LR = 1e-2
TEST_SEED = 1_000_000_000


class Reader(nn.Module):
    """One block around an attention, with learned places, that names a token at every place.

    Args:
        name: of the attention, as in `testing_modules.make`, which says what is raised.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, EMBED_DIM)
        self.place = nn.Parameter(torch.randn(LENGTH, EMBED_DIM))
        self.norm = nn.LayerNorm(EMBED_DIM)
        self.attention = make(name, EMBED_DIM, NUM_HEADS)
        hidden = nn.Linear(EMBED_DIM, 2 * EMBED_DIM)
        self.read = nn.Sequential(nn.LayerNorm(EMBED_DIM), hidden, nn.ReLU(), nn.Linear(2 * EMBED_DIM, VOCABULARY))

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T vocabulary"]:
        """Return the logits of the token to name at each place."""
        x = self.token(tokens) + self.place[: tokens.shape[1]]
        return self.read(x + self.attention(self.norm(x)))


class Accuracy(NamedTuple):
    """Shares of right answers of a trained model, in evaluation mode.

    Attributes:
        whole: it is given whole sequences, as in training.
        stepwise: at each place it is given the tokens up to there alone, as when it is used to continue a text. Who
            attends to nothing later gives the same answers in both ways, but for rounding.
    """

    whole: float
    stepwise: float


class Trained(NamedTuple):
    """Accuracies of all modules, in the order of `names`; see `Accuracy` for whole and stepwise.

    Attributes:
        names: "right", then the ten of FAULTY, then "no attention".
        overfit, overfit_stepwise: (n,), after training on one batch, on that batch.
        copied, copied_stepwise: (n,), on new sequences of copy 2 back; 1/16 = .06 for a blind guess.
        ceiling: the largest share that overfitting can reach without a look ahead, by `ceiling`.
    """

    names: tuple[str, ...]
    overfit: Float[np.ndarray, " n"]
    overfit_stepwise: Float[np.ndarray, " n"]
    copied: Float[np.ndarray, " n"]
    copied_stepwise: Float[np.ndarray, " n"]
    ceiling: float


def train_all(*, seed: int = 0) -> Trained:
    """Train the right module, ten faulty ones, and a model without attention, on both tasks.

    With one seed all of them start from the same parameters and see the same sequences. See `overfit` for Raises.
    """
    names = (RIGHT, *FAULTY, NOTHING)
    overfitted, overfitted_stepwise = np.array([overfit(name, seed=seed) for name in names]).T
    copied, copied_stepwise = np.array([copy_two_back(name, seed=seed) for name in names]).T
    return Trained(names, overfitted, overfitted_stepwise, copied, copied_stepwise, ceiling(one_batch(seed)))


def overfit(name: str, *, seed: int = 0, steps: int = 150) -> Accuracy:
    """Train on one batch of 8 random sequences, over and over, to name the next token at 16 places of each.

    Args:
        name: of the attention, as in `testing_modules.make`.
        seed: of the model and the batch.
        steps: updates with Adam, the learning rate warmed up, and decayed over the second half.

    Returns:
        Accuracy(whole, stepwise) on the 128 next tokens of the batch.

    Raises:
        TypeError: steps is not an integer.
        ValueError: another name; steps below 1.
    """
    sequences = one_batch(seed)
    batch = sequences[:, :-1], sequences[:, 1:]
    return _right(_train(name, seed, itertools.repeat(batch), steps), *batch)


def copy_two_back(name: str, *, seed: int = 0, steps: int = 200) -> Accuracy:
    """Train on new sequences of 16 tokens at every step to name the token two places back, and test on others.

    Args:
        name: of the attention, as in `testing_modules.make`.
        seed: of the model and the data; all are tested on the same 256 sequences.
        steps: updates, as in `overfit`, on 16 sequences each.

    Returns:
        Accuracy(whole, stepwise) in the test.

    Raises:
        TypeError: steps is not an integer.
        ValueError: another name; steps below 1.
    """
    generator = torch.Generator().manual_seed(seed)
    batches = (
        copy_back(BATCH, LENGTH, back=BACK, vocabulary=VOCABULARY, generator=generator) for _ in itertools.count()
    )
    test = copy_back(
        TESTED, LENGTH, back=BACK, vocabulary=VOCABULARY, generator=torch.Generator().manual_seed(TEST_SEED)
    )
    return _right(_train(name, seed, batches, steps), *test)


def one_batch(seed: int) -> Int[Tensor, "B T"]:
    """Draw the 8 sequences of 17 tokens, uniform over 16, that `overfit` trains on."""
    return torch.randint(VOCABULARY, (SEQUENCES, LENGTH + 1), generator=torch.Generator().manual_seed(seed))


def ceiling(sequences: Int[Tensor, "B T"]) -> float:
    """Find the largest share of next tokens that can be named by who sees only what came before.

    Sequences that begin alike have to be continued alike: of those that share tokens 0 to t, the ones whose next token
    is the most frequent one can be right.

    Args:
        sequences: (B, T), T of 2 or more.

    Returns:
        Share from 0 to 1.

    Raises:
        ValueError: T below 2, or no sequence.
    """
    B, T = sequences.shape
    at_least("B", B, 1)
    at_least("T", T, 2)
    right = 0
    for t in range(1, T):
        next_tokens: dict[tuple[int, ...], Counter[int]] = {}
        for row in sequences[:, : t + 1].tolist():
            next_tokens.setdefault(tuple(row[:t]), Counter())[row[t]] += 1
        right += sum(max(counts.values()) for counts in next_tokens.values())
    return right / (B * (T - 1))


def most_copied(layout: str) -> float:
    """Find the largest share of copy 2 back that a layout of heads allows, by who can reach whom.

    share = (places that reach the token 2 places back + the others / 16) / places with an answer

    Tokens are independent, so who does not reach that token can only guess, whatever else it sees.

    Args:
        layout: one of `heads_layout.LAYOUTS`; another is a ValueError.

    Returns:
        Share from 0 to 1, the mean over all sequences.
    """
    reached = can_reach(LENGTH, NUM_HEADS, layout, causal=True).diagonal(-BACK).double()
    return (reached + (1 - reached) / VOCABULARY).mean().item()


def _train(name: str, seed: int, batches: Iterable[Batch], steps: int) -> Reader:
    at_least("steps", steps, 1)
    with torch.random.fork_rng(devices=[]):  # modules draw from the global generator
        torch.default_generator.manual_seed(seed)
        model = Reader(name)
    fit(
        model,
        batches,
        loss=lambda logits, target: F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=NO_ANSWER),
        steps=steps,
        lr=lambda step: LR * min(step / WARM_UP, 1.0, 2 * (steps + 1 - step) / steps),
        optimizer=lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, fused=True),
    )
    return model.eval()


@torch.no_grad()
def _right(model: Reader, tokens: Int[Tensor, "B T"], target: Int[Tensor, "B T"]) -> Accuracy:
    last = [model(tokens[:, : t + 1])[:, -1] for t in range(tokens.shape[1])]  # T of (B, classes)
    asked = target != NO_ANSWER
    shares = [
        (logits.argmax(-1) == target)[asked].double().mean().item() for logits in (model(tokens), torch.stack(last, 1))
    ]
    return Accuracy(*shares)
