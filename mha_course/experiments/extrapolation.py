"""Trainings of notebook 06: one block reads sequences of 32 tokens, then longer ones, under each position scheme."""

import itertools
import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.data import NO_ANSWER, Sequences, copy_back, latest_marked
from mha_course.dot_product import attention
from mha_course.masks import sliding_window
from mha_course.positions import Learned, Rotary, Sinusoidal, T5Bias, alibi
from mha_course.training import fit

EMBED_DIM, NUM_HEADS, HEAD_DIM, VOCABULARY = 32, 4, 8, 16
TRAINED, LONGEST = 32, 128  # tokens: L of the training, 4 L of the test
BACK = 2
WARM_UP = 25  # steps
TEST_SEEDS = 1_001_000_000  # far from those of the trainings
QUERIES = 16  # of `weight_by_distance`

NONE, LEARNED, SINUSOIDAL, T5, ALIBI, ROTARY = "none", "learned", "sinusoidal", "T5", "ALiBi", "rotary"
SCHEMES = (NONE, LEARNED, SINUSOIDAL, T5, ALIBI, ROTARY)
COPY, LATEST = "copy 2 back", "latest marked"
TASKS = (COPY, LATEST)


class Reader(nn.Module):
    """One pre-norm block of causal attention that names a token at every place; the tasks need no MLP.

    Args:
        scheme: what tells the positions, one of SCHEMES.
        longest: rows of the learned table.
        max_distance: of `T5Bias`, whose buckets are 32.

    Raises:
        TypeError: longest or max_distance is not an integer.
        ValueError: another scheme; longest below 1, max_distance below 17, each if the scheme uses it.
    """

    def __init__(self, scheme: str, *, longest: int = LONGEST, max_distance: int = 128) -> None:
        super().__init__()
        if scheme not in SCHEMES:
            raise ValueError(f"scheme must be one of {SCHEMES}, got {scheme!r}")
        self.scheme = scheme
        self.embed = nn.Embedding(VOCABULARY, EMBED_DIM)
        nn.init.normal_(self.embed.weight, std=0.02)  # as the learned positions
        self.norm = nn.LayerNorm(EMBED_DIM)
        self.qkv_proj = nn.Linear(EMBED_DIM, 3 * EMBED_DIM)
        self.out_proj = nn.Linear(EMBED_DIM, EMBED_DIM)
        self.readout = nn.Sequential(nn.LayerNorm(EMBED_DIM), nn.Linear(EMBED_DIM, VOCABULARY))
        self.absolute: nn.Module = nn.Identity()
        if scheme == LEARNED:
            self.absolute = Learned(longest, EMBED_DIM)
        elif scheme == SINUSOIDAL:
            self.absolute = Sinusoidal(EMBED_DIM)
        self.t5 = T5Bias(NUM_HEADS, bidirectional=False, max_distance=max_distance) if scheme == T5 else None
        self.rotary = Rotary(HEAD_DIM) if scheme == ROTARY else None

    def forward(
        self, tokens: Int[Tensor, "B T"], *, window: int | None = None, rotary: Rotary | None = None
    ) -> Float[Tensor, "B T vocabulary"]:
        """Return the logits of the token to name at each place.

        Args:
            tokens: (B, T), 0 to VOCABULARY - 1.
            window: number of keys that a query sees, its own included; all up to its own if None.
            rotary: stands in for the rotation that the model was trained with.

        Returns:
            (B, T, VOCABULARY).

        Raises:
            TypeError: window is not an integer.
            ValueError: window below 1; rotary for a model of another scheme; T above the rows of a learned table.
        """
        x, q, k, v = self.project(tokens, rotary)
        mask, score_bias = self.mask_and_bias(tokens.shape[1], window)
        added = mask if score_bias is None else score_bias.masked_fill(~mask, -math.inf)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=added)  # (B, H, T, D)
        return self.readout(x + self.out_proj(heads.transpose(1, 2).flatten(-2)))

    def weights(
        self, tokens: Int[Tensor, "B T"], *, window: int | None = None, rotary: Rotary | None = None
    ) -> Float[Tensor, "B H T T"]:
        """Return the attention weights of `forward`, which takes and raises the same."""
        _, q, k, v = self.project(tokens, rotary)
        mask, score_bias = self.mask_and_bias(tokens.shape[1], window)
        return attention(q, k, v, mask=mask, score_bias=score_bias).weights

    def project(
        self, tokens: Int[Tensor, "B T"], rotary: Rotary | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return x (B, T, E), to which attention is added, and q, k, v (B, H, T, D), q and k turned if rotary."""
        if rotary is not None and self.rotary is None:
            raise ValueError(f"rotary is for a model of scheme {ROTARY!r}, got one of {self.scheme!r}")
        x = self.absolute(self.embed(tokens))
        qkv = self.qkv_proj(self.norm(x)).unflatten(-1, (3, NUM_HEADS, HEAD_DIM))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        turn = self.rotary if rotary is None else rotary
        return (x, q, k, v) if turn is None else (x, turn(q), turn(k), v)

    def mask_and_bias(self, T: int, window: int | None) -> tuple[Bool[Tensor, "T T"], Float[Tensor, "H T T"] | None]:
        """Return who may attend to whom, and the score_bias of ALiBi or T5."""
        mask = sliding_window(T, T if window is None else window)
        if self.t5 is not None:
            return mask, self.t5(T)
        return mask, alibi(T, num_heads=NUM_HEADS) if self.scheme == ALIBI else None


def train(
    scheme: str,
    task: str,
    *,
    seed: int = 0,
    steps: int = 250,
    batch: int = 16,
    lr: float = 1e-2,
    longest: int = LONGEST,
    max_distance: int = 128,
) -> Reader:
    """Train a `Reader` on sequences of 32 tokens, always new ones, with AdamW and the `rate` of learning.

    The rows of a learned table beyond 32 stay what they were drawn as, but for weight decay, 2 % in all; so do the
    biases of T5's buckets that no distance below 32 falls into: with a max_distance of 128, those from distance 35 on.
    For one seed all schemes see the same batches.

    Args:
        scheme: one of SCHEMES.
        task: one of TASKS.
        seed: of the parameters and the data.
        steps: updates.
        batch: sequences B of a batch.
        lr: largest learning rate.
        longest, max_distance: see `Reader`.

    Returns:
        The trained model, in evaluation mode.

    Raises:
        TypeError: steps, batch, longest or max_distance is not an integer.
        ValueError: another task; steps or batch below 1; lr below 0 or not finite; what `Reader` raises.
        FloatingPointError: the loss or its gradient is not finite.
    """
    with torch.random.fork_rng(devices=[]):  # modules draw from the global generator
        torch.default_generator.manual_seed(seed)
        model = Reader(scheme, longest=longest, max_distance=max_distance)
    data = torch.Generator().manual_seed(1_000_000 + seed)
    fit(
        model,
        (draw(task, batch, TRAINED, data) for _ in itertools.count()),
        loss=lambda logits, target: F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=NO_ANSWER),
        steps=steps,
        lr=lambda step: lr * rate(step, steps),
        optimizer=lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, fused=True),
    )
    return model.eval()


def rate(step: int, steps: int) -> float:
    """Return the learning rate as a share of the largest: up for 25 steps, level, down over the second half."""
    return min(step / WARM_UP, 1.0, 2 * (steps + 1 - step) / steps)


def draw(task: str, batch: int, length: int, generator: torch.Generator) -> Sequences:
    """Draw sequences of a task: `data.copy_back` or `data.latest_marked`."""
    if task not in TASKS:
        raise ValueError(f"task must be one of {TASKS}, got {task!r}")
    kind = copy_back if task == COPY else latest_marked
    return kind(batch, length, vocabulary=VOCABULARY, generator=generator)


@torch.no_grad()
def accuracy(
    model: Reader,
    task: str,
    length: int = LONGEST,
    *,
    window: int | None = None,
    rotary: Rotary | None = None,
    sequences: int = 256,
    seed: int = 0,
) -> Float[np.ndarray, " length"]:
    """Measure the share of right answers at each place of sequences that no training saw.

    Attention is causal: the first 32 places of longer sequences are read as sequences of 32 are.

    Args:
        model: a trained `Reader`.
        task: one of TASKS.
        length: tokens T of a sequence.
        window, rotary: see `Reader.forward`.
        sequences: how many of them.
        seed: of the sequences, which differ from those of every training with a seed below a billion.

    Returns:
        (length,), NaN where no sequence has an answer.

    Raises:
        TypeError: a size is not an integer.
        ValueError: another task; a size below 1; what `Reader.forward` raises.
    """
    tokens, target = _test_set(task, sequences, length, seed)
    right = model(tokens, window=window, rotary=rotary).argmax(-1) == target
    return (right.sum(0).double() / (target != NO_ANSWER).sum(0)).numpy()


def within_and_beyond(curve: Float[np.ndarray, "*runs length"]) -> Float[np.ndarray, "*runs 2"]:
    """Average what was measured at each place over the 32 places of the training, and over those beyond.

    Args:
        curve: (..., length), above 32; places of NaN are left out.

    Returns:
        (..., 2), NaN where all places are.

    Raises:
        ValueError: length of 32 or less.
    """
    if curve.shape[-1] <= TRAINED:
        raise ValueError(f"curve must have more than {TRAINED} places, got {curve.shape[-1]}")
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, as documented
        means = [np.nansum(x, axis=-1) / (~np.isnan(x)).sum(axis=-1) for x in np.split(curve, [TRAINED], axis=-1)]
    return np.stack(means, axis=-1)


@torch.no_grad()
def weight_by_distance(
    model: Reader,
    task: str,
    length: int = LONGEST,
    *,
    window: int | None = None,
    rotary: Rotary | None = None,
    sequences: int = 64,
    seed: int = 0,
) -> Float[np.ndarray, "H length"]:
    """Average the attention weights of the last 16 queries by the distance to the key, over all sequences.

    Args:
        model, task, window, rotary, sequences, seed: see `accuracy`.
        length: tokens T of a sequence.

    Returns:
        (H, length), entry d for the key d places back, 0 for a query that has none; a head's weights sum to 1.

    Raises:
        TypeError, ValueError: as `accuracy`.
    """
    tokens, _ = _test_set(task, sequences, length, seed)
    mean = model.weights(tokens, window=window, rotary=rotary).mean(0)  # (H, T, T)
    queries = min(QUERIES, length)
    by_distance = [mean.diagonal(-d, dim1=-2, dim2=-1)[:, -queries:].sum(-1) for d in range(length)]
    return (torch.stack(by_distance, -1) / queries).numpy()


@torch.no_grad()
def weight_on_answer(
    model: Reader,
    task: str,
    length: int = LONGEST,
    *,
    window: int | None = None,
    rotary: Rotary | None = None,
    sequences: int = 64,
    seed: int = 0,
) -> Float[np.ndarray, "H length"]:
    """Average the attention weight of each place's query on the key that holds its answer.

    Args:
        model, task, length, window, rotary, sequences, seed: see `accuracy`.

    Returns:
        (H, length), NaN where no sequence has an answer.

    Raises:
        TypeError, ValueError: as `accuracy`.
    """
    tokens, target = _test_set(task, sequences, length, seed)
    place = torch.arange(length)
    marked = tokens >= VOCABULARY // 2
    source = place - BACK if task == COPY else torch.where(marked, place, 0).cummax(1).values
    source = source.clamp(min=0).expand_as(tokens)[:, None, :, None]  # (B, 1, T, 1)
    weights = model.weights(tokens, window=window, rotary=rotary)
    found = weights.take_along_dim(source, -1)[..., 0].double()  # (B, H, T)
    asked = (target != NO_ANSWER)[:, None]
    return ((found * asked).sum(0) / asked.sum(0)).numpy()


def _test_set(task: str, sequences: int, length: int, seed: int) -> Sequences:
    return draw(task, sequences, length, torch.Generator().manual_seed(TEST_SEEDS + seed))
