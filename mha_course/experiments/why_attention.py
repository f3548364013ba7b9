"""Experiments of notebook 01: how far one fact is carried by an LSTM and by one attention hop."""

import math
import timeit
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.dot_product import attention
from mha_course.training import fit

LSTM, FORGET_OPEN, BOTH_SET, ATTENTION = "LSTM", "LSTM, forget gate open", "LSTM, both gates set", "attention"
GATE_BIASES = {LSTM: (None, None), FORGET_OPEN: (None, 6.0), BOTH_SET: (-3.0, 6.0)}  # input, forget
MODELS = (*GATE_BIASES, ATTENTION)
CONVOLUTION = "causal convolutions"
CLASSES, TOKENS, EMBED_DIM = 8, 24, 32

Run = tuple[str, int, int]  # model, length, seed


class LastState(nn.Module):
    """The last output of an LSTM; to raise the forget bias at the start is advice of Jozefowicz et al. 2015."""

    def __init__(self, embed_dim: int, input_bias: float | None = None, forget_bias: float | None = None) -> None:
        """Give two gates a bias at the start, None: PyTorch's. Of nn.LSTM's two, which add up, b_hh gets 0."""
        super().__init__()
        self.lstm = nn.LSTM(embed_dim, embed_dim, batch_first=True)
        for gate, bias in enumerate((input_bias, forget_bias)):  # PyTorch's order: input, forget, cell, out
            if bias is not None:
                rows = slice(gate * embed_dim, (gate + 1) * embed_dim)
                nn.init.constant_(self.lstm.get_parameter("bias_ih_l0")[rows], bias)
                nn.init.zeros_(self.lstm.get_parameter("bias_hh_l0")[rows])

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B E"]:
        """Read all tokens, return the output at the last."""
        return self.lstm(x)[0][:, -1]


class OneHop(nn.Module):
    """One head of attention from the last token to all; it does not know the tokens' order."""

    def __init__(self, embed_dim: int) -> None:
        """Project tokens of width E to queries, keys and values of width E."""
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(3))

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B E"]:
        """Return the average of all values that the last token's query asks for."""
        q = self.q_proj(x[:, -1:])  # (B, 1, E)
        return attention(q, self.k_proj(x), self.v_proj(x)).out[:, 0]


def reader(model: str) -> LastState | OneHop:
    """Build the module named in MODELS, (B, T, 32) to (B, 32); another name is a ValueError."""
    if model not in MODELS:
        raise ValueError(f"model must be one of {MODELS}, got {model!r}")
    if model == ATTENTION:
        return OneHop(EMBED_DIM)
    return LastState(EMBED_DIM, *GATE_BIASES[model])


def recall_model(model: str) -> nn.Sequential:
    """Chain embedding, reader and map to the classes: 9,480 parameters with an LSTM, 4,200 with attention."""
    return nn.Sequential(nn.Embedding(TOKENS, EMBED_DIM), reader(model), nn.Linear(EMBED_DIM, CLASSES))


def gradient_reach(
    lengths: Sequence[int], seeds: Iterable[int] = range(5), *, dtype: torch.dtype = torch.float64
) -> dict[str, Float[np.ndarray, "lengths seeds"]]:
    """Measure how strongly the last output of an untrained reader depends on the first input.

    reach = ||J||_F / sqrt(E),   J = d out_T / d x_1, an (E, E) matrix

    This is the root mean square change of the output per unit of a small move of the first input: 1 for a copy.
    E = 32, inputs from a standard normal.

    The plain LSTM's reach is about 1e-44 at n = 200, where float32 ends (smallest normal number 1.2e-38, smallest of
    all 1.4e-45): the float32 result is a few such units or 0, and always 0 after `torch.set_flush_denormal(True)`.
    A zero is thus underflow: the gradient is small, never 0. float64 reaches down to 1e-308 and does not depend on
    that setting, which is left alone, as PyTorch has no getter to restore it from.

    Args:
        lengths: sequence lengths n, each at least 2.
        seeds: each draws its own inputs and weights.
        dtype: type of weights, inputs and gradients; the norm is taken in float64.

    Returns:
        {name in MODELS: reach (lengths, seeds)}.

    Raises:
        ValueError: no length, or one below 2; no seed.
    """
    lengths, seeds = _check(lengths, seeds)
    return {name: np.array([[_reach(name, n, seed, dtype) for seed in seeds] for n in lengths]) for name in MODELS}


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
        seeds: of the initial weights and of the data.
        steps: updates of each run.
        progress: wraps the list of runs in an iterable that shows how far it is.

    Returns:
        {name in MODELS: accuracy from 0 to 1 (lengths, seeds)}; chance is 1/8.

    Raises:
        ValueError: no length, or one below 2; no seed; steps below 1.
    """
    lengths, seeds = _check(lengths, seeds)
    runs = [(name, n, seed) for name in MODELS for n in lengths for seed in seeds]
    found = {run: recall(*run, steps=steps) for run in progress(runs)}
    return {name: np.array([[found[name, n, seed] for seed in seeds] for n in lengths]) for name in MODELS}


def recall(model: str, length: int, seed: int, *, steps: int = 150) -> float:
    """Train a model to name, after reading `length` tokens, the first of them; then test it.

    Batches of 32, Adam with learning rate 5e-3, gradient clipped to norm 1, E = 32. For one seed all models see the
    same batches. The caller's random state is left as it was.

    Args:
        model: one of MODELS.
        length: tokens n of a sequence, at least 2.
        seed: of the initial weights and of the data.
        steps: updates.

    Returns:
        Share of 2,000 fresh sequences that are classified rightly.

    Raises:
        ValueError: another model; length below 2; steps below 1.
    """
    _check([length], [seed])
    with _seeded(seed):
        module = recall_model(model)
    data = torch.Generator().manual_seed(1_000_000 + seed)
    batches = (first_token_task(32, length, data) for _ in range(steps))
    fit(module, batches, loss=F.cross_entropy, steps=steps, lr=5e-3, clip=1.0)
    tokens, target = first_token_task(2000, length, data)
    with torch.no_grad():
        return (module(tokens).argmax(-1) == target).double().mean().item()


def first_token_task(
    batch: int, length: int, generator: torch.Generator
) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """Draw tokens (B, T), first the class (0 to 7), then noise (8 to 23), and the classes (B,)."""
    tokens = torch.randint(CLASSES, TOKENS, (batch, length), generator=generator)
    target = torch.randint(CLASSES, (batch,), generator=generator)
    tokens[:, 0] = target
    return tokens, target


def sequential_steps(lengths: Sequence[int], *, kernel: int = 3) -> dict[str, Int[np.ndarray, " lengths"]]:
    """Count the steps, each waiting for the one before, between the first and the last token.

    An LSTM needs n - 1, attention 1. L convolutions that look back only, their dilation growing by the factor `kernel`
    a layer, see kernel^L tokens: the smallest L with kernel^L >= n. What happens inside a step is not counted.

    Args:
        lengths: sequence lengths n, each at least 2.
        kernel: width of a convolution, at least 2.

    Returns:
        {LSTM, CONVOLUTION, ATTENTION: steps (lengths,)}.

    Raises:
        ValueError: no length, or one below 2; kernel below 2.

    Source: Vaswani et al. 2017, table 1, column "maximum path length".
    """
    lengths, _ = _check(lengths, [0])
    if kernel < 2:
        raise ValueError(f"kernel must be at least 2, got {kernel}")
    layers = [next(L for L in range(1, n) if kernel**L >= n) for n in lengths]
    steps = {LSTM: [n - 1 for n in lengths], CONVOLUTION: layers, ATTENTION: [1] * len(lengths)}
    return {name: np.array(counts) for name, counts in steps.items()}


def forward_seconds(lengths: Sequence[int], *, repeats: int = 7) -> dict[str, Float[np.ndarray, " lengths"]]:
    """Time the last output for one sequence, best of `repeats`: {LSTM, ATTENTION: seconds (lengths,)}."""
    lengths, _ = _check(lengths, [0])
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    with _seeded(0), torch.no_grad():
        calls = {m: [partial(reader(m), torch.randn(1, n, EMBED_DIM)) for n in lengths] for m in (LSTM, ATTENTION)}
        best = {m: [min(timeit.repeat(call, number=1, repeat=repeats)) for call in row] for m, row in calls.items()}
    return {name: np.array(row) for name, row in best.items()}


class Mixing(NamedTuple):
    """Weight of position s (column) in output t (row): [0] at first, [1] with two tokens swapped."""

    convolution: Float[np.ndarray, "2 T T"]
    attention: Float[np.ndarray, "2 T T"]


def swap_two_tokens(first: int = 1, second: int = 4, *, length: int = 6, seed: int = 0) -> Mixing:
    """Compare what a convolution and self-attention mix before and after two tokens swap places.

    A convolution's weight depends on the offset s - t alone, so its two matrices are equal. Attention's depends on
    the two tokens, so its rows and columns swap as the tokens do. The convolution's matrix is measured: the
    derivative of its outputs by its inputs. The maps to q and k spread the scores by about 2 so that rows are uneven.

    Args:
        first: one position, counted from 0.
        second: the other.
        length: tokens T.
        seed: of the tokens and of the maps to q and k.

    Returns:
        Mixing(convolution, attention), each (2, T, T).

    Raises:
        ValueError: positions that are equal or outside the sequence.
    """
    if first == second or not (0 <= first < length and 0 <= second < length):
        raise ValueError(f"first and second must differ, below {length}, got {first}, {second}")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, EMBED_DIM, generator=generator)  # (T, E)
    maps = torch.randn(2, EMBED_DIM, EMBED_DIM, generator=generator) * math.sqrt(2 / EMBED_DIM)
    both = torch.stack([x, x])  # (2, T, E)
    both[1, [first, second]] = x[[second, first]]
    kernel = torch.tensor([[[0.5, 0.3, 0.2]]])  # the weights of offsets -1, 0, +1
    slopes = [
        torch.autograd.functional.jacobian(lambda row: F.conv1d(row, kernel, padding=1), tokens)
        for tokens in both[:, None, :, 0]  # (1, T), one feature
    ]
    weights = attention(both @ maps[0], both @ maps[1], both).weights  # (2, T, T)
    return Mixing(torch.stack(slopes)[:, 0, :, 0].numpy(), weights.numpy())


class Retrieval(NamedTuple):
    """A soft retrieval to follow by hand: row t of q, scores, weights and out is word t's query."""

    words: tuple[str, ...]
    q: Float[np.ndarray, "T 4"]
    k: Float[np.ndarray, "T 4"]
    v: Float[np.ndarray, "T 2"]
    scores: Float[np.ndarray, "T T"]
    weights: Float[np.ndarray, "T T"]
    out: Float[np.ndarray, "T 2"]


def retrieve_by_hand() -> Retrieval:
    """Attend over "I love NLP" with vectors small enough to follow with a pencil.

    The features are person, action, thing, topic. A key says what a word is: "I" a person, "love" an action, "NLP"
    a thing and a topic. A query says what it looks for: "love" an action (1), a thing (2), a topic (2), so q.k is
    0, 2, 4, over sqrt(4) it is 0, 1, 2, and its softmax 1, e, e^2 over their sum: .09, .24, .67.
    """
    q = np.array([[0.0, 2, 0, 0], [0, 1, 2, 2], [1, 1, 1, 1]])
    k = np.array([[2.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 1]])
    v = np.array([[10.0, 0], [0, 10], [10, 10]])
    trace = attention(*(torch.from_numpy(x) for x in (q, k, v)))
    return Retrieval(("I", "love", "NLP"), q, k, v, *(x.numpy() for x in trace))


def _reach(model: str, length: int, seed: int, dtype: torch.dtype) -> float:
    with _seeded(seed):
        x = torch.randn(length, EMBED_DIM).to(dtype)  # (T, E)
        module = reader(model).to(dtype)
    # One copy of the sequence for each output feature: one backward pass gives all of J.
    copies = x.expand(EMBED_DIM, -1, -1).clone().requires_grad_()  # (E, T, E)
    (gradient,) = torch.autograd.grad(module(copies).diagonal().sum(), copies)
    return gradient[:, 0].double().norm().item() / math.sqrt(EMBED_DIM)  # float32 squares would underflow earlier


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from a seeded CPU generator inside; leave the caller's random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed GPUs too
        yield


def _check(lengths: Iterable[int], seeds: Iterable[int]) -> tuple[list[int], list[int]]:
    lengths, seeds = list(lengths), list(seeds)
    if not lengths or min(lengths) < 2:
        raise ValueError(f"lengths must hold integers of at least 2, got {lengths}")
    if not seeds:
        raise ValueError("seeds must hold at least one seed, got none")
    return lengths, seeds
