"""Experiments of notebook 01: how far one fact is carried by an LSTM and by one attention hop."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.dot_product import attention
from mha_course.training import fit

LSTM, LSTM_BIAS_6, ATTENTION = "LSTM", "LSTM, forget bias 6", "attention"
CONVOLUTION = "dilated convolutions"
MODELS = (LSTM, LSTM_BIAS_6, ATTENTION)
CLASSES, NOISE_TOKENS = 8, 16
EMBED_DIM, BATCH, LEARNING_RATE, CLIP, TEST_SEQUENCES = 32, 32, 5e-3, 1.0, 2000

Run = tuple[str, int, int]


class Retrieval(NamedTuple):
    """A soft retrieval that can be followed by hand; row t of scores and weights is query t.

    Attributes:
        words: T words.
        q, k: (T, 4), what each word looks for, what it offers.
        v: (T, 2), what each word passes on.
        scores, weights: (T, T), q k^T / 2; softmax over the keys of each row.
        out: (T, 2), weights @ v.
    """

    words: tuple[str, ...]
    q: Float[np.ndarray, "T 4"]
    k: Float[np.ndarray, "T 4"]
    v: Float[np.ndarray, "T 2"]
    scores: Float[np.ndarray, "T T"]
    weights: Float[np.ndarray, "T T"]
    out: Float[np.ndarray, "T 2"]


class Mixing(NamedTuple):
    """How much position t takes from position s, for a sequence and after two tokens swapped.

    Attributes:
        convolution, attention: (2, T, T): [0] before the swap, [1] after; row t, column s.
    """

    convolution: Float[np.ndarray, "2 T T"]
    attention: Float[np.ndarray, "2 T T"]


class LastState(nn.Module):
    """An LSTM that returns its last output, with PyTorch's initial biases or a set forget bias.

    Args:
        embed_dim: width of tokens and state, E.
        forget_bias: initial bias of the forget gate. nn.LSTM adds two bias vectors, b_ih and
            b_hh: b_ih gets all of it and b_hh gets 0. None leaves both as PyTorch draws them.

    Source: Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000; large forget bias:
        Jozefowicz et al. 2015, section 2.2.
    """

    def __init__(self, embed_dim: int, forget_bias: float | None = None) -> None:
        super().__init__()
        self.lstm = nn.LSTM(embed_dim, embed_dim, batch_first=True)
        if forget_bias is not None:
            forget = slice(embed_dim, 2 * embed_dim)  # PyTorch's order: input, forget, cell, out
            with torch.no_grad():
                self.lstm.bias_ih_l0[forget] = forget_bias
                self.lstm.bias_hh_l0[forget] = 0.0

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B E"]:
        """Return the output at the last position."""
        return self.lstm(x)[0][:, -1]


class OneHop(nn.Module):
    """One head of attention from the last token to all tokens; it does not know their order.

    Args:
        embed_dim: width of tokens, queries, keys and values, E.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B E"]:
        """Return the average of the values that the last token's query asks for."""
        query = self.q_proj(x[:, -1:])  # (B, 1, E)
        return attention(query, self.k_proj(x), self.v_proj(x)).out[:, 0]


class Recall(nn.Module):
    """Embedding, a reader that sums a sequence up in one vector, and a linear map to classes.

    Args:
        model: one of MODELS, the reader.
        embed_dim: width of tokens and reader, E.
    """

    def __init__(self, model: str, embed_dim: int = EMBED_DIM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES + NOISE_TOKENS, embed_dim)
        self.reader = reader(model, embed_dim)
        self.classes = nn.Linear(embed_dim, CLASSES)

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B classes"]:
        """Return a score for each class."""
        return self.classes(self.reader(self.embedding(tokens)))


def reader(model: str, embed_dim: int = EMBED_DIM) -> LastState | OneHop:
    """Build one of the three readers, with PyTorch's default initialisation.

    Args:
        model: one of MODELS.
        embed_dim: width E.

    Returns:
        A module from (B, T, E) to (B, E).

    Raises:
        ValueError: a name that is not in MODELS.
    """
    if model not in MODELS:
        raise ValueError(f"model must be one of {MODELS}, got {model!r}")
    if model == ATTENTION:
        return OneHop(embed_dim)
    return LastState(embed_dim, 6.0 if model == LSTM_BIAS_6 else None)


def parameter_counts() -> dict[str, int]:
    """Count the parameters of each model of the recall task: {name: parameters}."""
    with _seeded(0):
        return {name: sum(p.numel() for p in Recall(name).parameters()) for name in MODELS}


def gradient_reach(
    lengths: Sequence[int], seeds: Iterable[int] = range(5), *, dtype: torch.dtype = torch.float64
) -> dict[str, Float[np.ndarray, "lengths seeds"]]:
    """Measure how strongly the last output of an untrained reader depends on the first input.

    reach = ||J||_F / sqrt(E),   J = d out_T / d x_1, an (E, E) matrix

    which is the root mean square length of the change in the output for a change of length 1 of
    the first input in a random direction: 1 if the first input were copied, E = 32, inputs from
    a standard normal, one seed for inputs and weights.

    An LSTM's reach shrinks by a factor of about .6 a step. At n = 200 it is between 1e-47 and
    1e-42 in float64. In float32 that is below the smallest normal number, 1.2e-38, and near the
    smallest of all, 1.4e-45: the result is a few subnormal steps, or 0, and always 0 once
    `torch.set_flush_denormal(True)` was called. A zero is thus underflow: the true gradient is
    small, never 0. This function leaves that setting as it is (PyTorch cannot tell it, so it
    could not be put back), and float64, whose range ends at 1e-308, does not depend on it.

    Args:
        lengths: sequence lengths n, each at least 2.
        seeds: one run per seed.
        dtype: type of the weights, inputs and gradients; the norm is taken in float64.

    Returns:
        {name in MODELS: reach (lengths, seeds)}.

    Raises:
        ValueError: no length, or one below 2; no seed.
    """
    lengths, seeds = _check_lengths(lengths), _check_seeds(seeds)
    return {
        name: np.array([[_reach(name, n, seed, dtype) for seed in seeds] for n in lengths])
        for name in MODELS
    }


def recall_accuracy(
    lengths: Sequence[int] = (10, 20, 50, 100),
    seeds: Iterable[int] = range(5),
    *,
    steps: int = 150,
    progress: Callable[[list[Run]], Iterable[Run]] = iter,
) -> dict[str, Float[np.ndarray, "lengths seeds"]]:
    """Train every model on every length and seed with `recall`, and collect the accuracies.

    Args:
        lengths: sequence lengths n, each at least 2.
        seeds: one run per seed.
        steps: updates of each run.
        progress: wraps the list of runs (name, n, seed) in an iterable that shows how far it is.

    Returns:
        {name in MODELS: accuracy on fresh sequences, 0 to 1 (lengths, seeds)}; chance is 1/8.

    Raises:
        ValueError: no length, or one below 2; no seed.
    """
    lengths, seeds = _check_lengths(lengths), _check_seeds(seeds)
    runs = [(name, n, seed) for name in MODELS for n in lengths for seed in seeds]
    found = [recall(*run, steps=steps) for run in progress(runs)]
    table = np.array(found).reshape(len(MODELS), len(lengths), len(seeds))
    return dict(zip(MODELS, table, strict=True))


def recall(model: str, length: int, seed: int, *, steps: int = 150) -> float:
    """Train a model to name the class in the first token after reading n tokens; test it.

    Batches of 32, Adam with learning rate 5e-3, gradient clipped to norm 1, E = 32. For one seed
    all models see the same batches. The caller's random state is left as it was.

    Args:
        model: one of MODELS.
        length: tokens n of a sequence, at least 2.
        seed: of the initial weights and of the data.
        steps: updates.

    Returns:
        Share of 2,000 fresh sequences that are classified rightly.

    Raises:
        ValueError: an unknown model; length below 2; steps below 1.
    """
    (length,) = _check_lengths([length])
    with _seeded(seed):
        module = Recall(model)
    data = torch.Generator().manual_seed(1_000_000 + seed)
    batches = (first_token_task(BATCH, length, data) for _ in range(steps))
    fit(module, batches, loss=F.cross_entropy, steps=steps, lr=LEARNING_RATE, clip=CLIP)
    tokens, target = first_token_task(TEST_SEQUENCES, length, data)
    with torch.no_grad():
        return (module(tokens).argmax(-1) == target).double().mean().item()


def first_token_task(
    batch: int, length: int, generator: torch.Generator
) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """Draw sequences whose first token is the class (0 to 7) and all others noise (8 to 23).

    Args:
        batch: sequences B.
        length: tokens T.
        generator: the only source of randomness.

    Returns:
        tokens (B, T) and target (B,), the first token of each.
    """
    tokens = torch.randint(CLASSES, CLASSES + NOISE_TOKENS, (batch, length), generator=generator)
    target = torch.randint(CLASSES, (batch,), generator=generator)
    tokens[:, 0] = target
    return tokens, target


def sequential_steps(
    lengths: Sequence[int], *, kernel: int = 3
) -> dict[str, Int[np.ndarray, " lengths"]]:
    """Count the layers or time steps, each waiting for the one before, from first to last token.

    An LSTM needs n and attention 1. A stack of convolutions whose dilation grows by the factor
    `kernel` from layer to layer sees kernel^L tokens with L layers: the smallest L with
    kernel^L >= n, which is log n to the base `kernel`, rounded up. Steps inside a layer, such as
    the sum over n terms in attention, are not counted.

    Args:
        lengths: sequence lengths n, each at least 2.
        kernel: width of the convolution, at least 2.

    Returns:
        {LSTM, CONVOLUTION, ATTENTION: steps (lengths,)}.

    Raises:
        ValueError: no length, or one below 2; kernel below 2.

    Source: Vaswani et al. 2017, table 1, column "maximum path length"; van den Oord et al. 2016
        for the dilated stack.
    """
    lengths = _check_lengths(lengths)
    if kernel < 2:
        raise ValueError(f"kernel must be at least 2, got {kernel}")
    layers = []
    for n in lengths:
        layers.append(1)
        while kernel ** layers[-1] < n:
            layers[-1] += 1
    return {
        LSTM: np.array(lengths),
        CONVOLUTION: np.array(layers),
        ATTENTION: np.ones(len(lengths), dtype=int),
    }


def forward_seconds(
    lengths: Sequence[int], *, repeats: int = 7
) -> dict[str, Float[np.ndarray, " lengths"]]:
    """Time the last output of the LSTM and of the attention hop; the numbers are the machine's.

    Args:
        lengths: sequence lengths n, each at least 2.
        repeats: timings of each model, taken in turn; the shortest counts.

    Returns:
        {LSTM, ATTENTION: seconds for one sequence (lengths,)}.

    Raises:
        ValueError: no length, or one below 2; repeats below 1.
    """
    lengths = _check_lengths(lengths)
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    with _seeded(0), torch.no_grad():
        modules = {name: reader(name) for name in (LSTM, ATTENTION)}
        best = {name: np.full(len(lengths), math.inf) for name in modules}
        for i, n in enumerate(lengths):
            x = torch.randn(1, n, EMBED_DIM)
            for name in list(modules) * (repeats + 1):  # the first round warms up, harmlessly
                start = time.perf_counter()
                modules[name](x)
                best[name][i] = min(best[name][i], time.perf_counter() - start)
    return best


def swap_two_tokens(
    first: int = 1, second: int = 4, *, length: int = 6, seed: int = 0
) -> Mixing:
    """Compare what a convolution and self-attention mix before and after two tokens swap places.

    A convolution's weight depends on the offset s - t alone: both of its matrices are equal.
    Attention's weight depends on the two tokens: after the swap its matrix is the old one with
    the rows and the columns of the two tokens swapped.

    The convolution's matrix is measured, as the derivative of its outputs by its inputs at the
    sequence. The maps to q and k are drawn so that scores have a standard deviation of about 2;
    under PyTorch's default the rows of an untrained layer are nearly uniform.

    Args:
        first, second: the positions that swap, counted from 0.
        length: tokens T.
        seed: of the tokens and of the maps to q and k.

    Returns:
        Mixing(convolution, attention), each (2, T, T).

    Raises:
        ValueError: positions that are equal or outside the sequence.
    """
    if first == second or not (0 <= first < length and 0 <= second < length):
        raise ValueError(
            f"first and second must be two positions below {length}, got {first} and {second}"
        )
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, EMBED_DIM, generator=generator, dtype=torch.float64)  # (T, E)
    maps = torch.randn(2, EMBED_DIM, EMBED_DIM, generator=generator, dtype=torch.float64)
    q_map, k_map = maps * math.sqrt(2 / EMBED_DIM)
    order = torch.arange(length)
    order[[first, second]] = order[[second, first]]
    both = torch.stack([x, x[order]])  # (2, T, E)
    weights = attention(both @ q_map, both @ k_map, both).weights  # (2, T, T)
    return Mixing(np.stack([_convolution_weights(tokens) for tokens in both]), weights.numpy())


def retrieve_by_hand() -> Retrieval:
    """Attend over "I love NLP" with vectors small enough to follow with a pencil.

    The four features are person, action, thing, topic. The key of a word says which it is: "I"
    a person, "love" an action, "NLP" a thing and a topic. The query says what a word looks for:
    "love" looks for an action with 1 and for a thing and a topic with 2 each, so its products
    with the keys are 0, 2, 4; divided by sqrt(4) they are 0, 1, 2, and the softmax of that is
    1, e, e^2 over their sum: .09, .24, .67. "NLP" looks for everything equally and gets 1/3 each.

    Returns:
        Retrieval(words, q, k, v, scores, weights, out), D = 4 and Dv = 2, float64.
    """
    # person, action, thing, topic
    q = np.array([[0.0, 2, 0, 0], [0, 1, 2, 2], [1, 1, 1, 1]])
    k = np.array([[2.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 1]])
    v = np.array([[10.0, 0], [0, 10], [10, 10]])
    trace = attention(*(torch.from_numpy(x) for x in (q, k, v)))
    return Retrieval(("I", "love", "NLP"), q, k, v, *(x.numpy() for x in trace))


def _reach(model: str, length: int, seed: int, dtype: torch.dtype) -> float:
    with _seeded(seed):
        x = torch.randn(length, EMBED_DIM).to(dtype)  # (T, E)
        module = reader(model).to(dtype)
    # One copy of the sequence per output feature: a single backward pass gives the whole of J.
    copies = x.expand(EMBED_DIM, -1, -1).clone().requires_grad_()  # (E, T, E)
    (gradient,) = torch.autograd.grad(module(copies).diagonal().sum(), copies)
    # In float64, since squares of float32 numbers below 1e-23 are 0.
    return gradient[:, 0].double().norm().item() / math.sqrt(EMBED_DIM)


def _convolution_weights(tokens: Float[Tensor, "T E"]) -> Float[np.ndarray, "T T"]:
    kernel = torch.tensor([[[0.5, 0.3, 0.2]]], dtype=tokens.dtype)  # of offsets -1, 0, +1

    def convolve(feature: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        return F.conv1d(feature[None, None], kernel, padding=1)[0, 0]

    return torch.autograd.functional.jacobian(convolve, tokens[:, 0]).numpy()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from a seeded CPU generator inside, and leave the caller's random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed GPUs as well
        yield


def _check_lengths(lengths: Sequence[int]) -> list[int]:
    checked = [int(n) for n in lengths]
    if not checked or min(checked) < 2:
        raise ValueError(f"lengths must hold integers of at least 2, got {checked}")
    return checked


def _check_seeds(seeds: Iterable[int]) -> list[int]:
    checked = list(seeds)
    if not checked:
        raise ValueError("seeds must hold at least one seed, got none")
    return checked
