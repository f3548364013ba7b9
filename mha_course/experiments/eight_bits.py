"""Experiments of notebook 14: the error at each number of bits, a model with fewer and fewer of them, and times."""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.data import NO_ANSWER, copy_back
from mha_course.masks._inputs import check_integer
from mha_course.measure import PairedRatio, paired_ratio
from mha_course.models import Decoder
from mha_course.multihead import MultiHeadAttention
from mha_course.quantization import convert, fake_quantize, find_affine, prepare_qat, quantize_module
from mha_course.training import fit

LENGTH, BACK, VOCABULARY = 24, 5, 16
SCHEMES: dict[str, Any] = {"tensor": "tensor", "channel": "channel", "group of 32": 32}


def relative_error(approximate: Float[Tensor, "*S"], exact: Float[Tensor, "*S"]) -> float:
    """Return |approximate - exact| / |exact|, both norms over all entries, in float64."""
    exact = exact.double()
    return ((approximate.double() - exact).norm() / exact.norm()).item()


def weight_errors(
    weight: Float[Tensor, "N K"], bits: Sequence[int], *, calibration: Any = "min-max"
) -> dict[str, Float[np.ndarray, " bits"]]:
    """Measure the relative error of a quantized weight at each number of bits, for each of `SCHEMES`, symmetric.

    Args:
        weight: (N, K), K a multiple of 32.
        bits: numbers from 2 to 16.
        calibration: see `quantization.find_affine`.

    Returns:
        scheme -> (bits,).

    Raises:
        TypeError, ValueError: see `quantization.find_affine`.
    """
    errors = {}
    for name, per in SCHEMES.items():
        affines = [find_affine(weight, b, per=per, calibration=calibration) for b in bits]
        errors[name] = np.array([relative_error(fake_quantize(weight, affine), weight) for affine in affines])
    return errors


class FewerBits(NamedTuple):
    """Accuracy of small trained models whose weights have fewer and fewer bits.

    Attributes:
        trained: (seeds,), in float32.
        rounded: (seeds, bits), the same models with their linear maps quantized.
        clipped: (seeds,), at the least number of bits, with the ranges of least squared error of their weights.
        aware: (seeds,), at the least number of bits, after more training with rounded weights.
        longer: (seeds,), at the least number of bits, after as much more training in float32.
    """

    trained: Float[np.ndarray, " seeds"]
    rounded: Float[np.ndarray, "seeds bits"]
    clipped: Float[np.ndarray, " seeds"]
    aware: Float[np.ndarray, " seeds"]
    longer: Float[np.ndarray, " seeds"]


def fewer_bits(seeds: Sequence[int], bits: Sequence[int], *, steps: int = 200, more: int = 150) -> FewerBits:
    """Train small decoders to name the token five places back, then round their weights.

    Two layers, E = 16, 4 heads, 24 places, 16 tokens (a guess is right in one of 16 cases). All linear maps are
    quantized, a scale for each output feature, read-out included; embeddings, places and norms are not. What comes
    after is trained on new sequences, the same for `aware` and `longer`, at a third of the rate.

    Args:
        seeds: of a model and its training data; all are tested on the same 1000 sequences.
        bits: from 2 to 16.
        steps: updates with Adam on 32 new sequences each, in float32.
        more: updates afterwards.

    Returns:
        FewerBits(trained, rounded, clipped, aware, longer).

    Raises:
        TypeError: steps or more is not an integer.
        ValueError: steps or more is below 1; bits has no number, or one outside [2, 16].
    """
    check_integer("steps", steps, least=1)
    check_integer("more", more, least=1)
    if not bits:
        raise ValueError("bits must hold at least one number, got none")
    trained, rounded, clipped, aware, longer = [], [], [], [], []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model = Decoder(VOCABULARY, 16, 4, 2, max_length=LENGTH, tied=False)
        _train(model, steps, 3e-3, seed)
        trained.append(accuracy(model))
        rounded.append([accuracy(quantize_module(model, bits=b)) for b in bits])
        clipped.append(accuracy(quantize_module(model, bits=min(bits), calibration="mse")))
        prepared, plain = prepare_qat(model, bits=min(bits)), copy.deepcopy(model)
        for each in (prepared, plain):
            _train(each, more, 1e-3, seed + 1000)
        aware.append(accuracy(convert(prepared)))
        longer.append(accuracy(quantize_module(plain, bits=min(bits))))
    return FewerBits(*map(np.array, (trained, rounded, clipped, aware, longer)))


@torch.no_grad()
def accuracy(model: Callable[[Tensor], Tensor]) -> float:
    """Share of the places whose answer a model names, over 1000 sequences that no training sees."""
    tokens, target = copy_back(1000, LENGTH, back=BACK, generator=torch.Generator().manual_seed(1_000_000))
    right = model(tokens).argmax(-1) == target
    return right[target != NO_ANSWER].double().mean().item()


def _train(model: nn.Module, steps: int, lr: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    batches = (copy_back(32, LENGTH, back=BACK, generator=generator) for _ in itertools.count())
    fit(model, batches, loss=_cross_entropy, steps=steps, lr=lr)


def _cross_entropy(logits: Float[Tensor, "B T V"], target: Tensor) -> Float[Tensor, ""]:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=NO_ANSWER)


@torch.no_grad()
def speed(
    reference: MultiHeadAttention,
    others: Mapping[str, Callable[..., Tensor]],
    tokens: Sequence[int],
    *,
    rounds: int = 7,
) -> dict[str, list[PairedRatio]]:
    """Compare a layer with its quantized forms, each in turn with it.

    Args:
        reference: takes (1, N, E).
        others: name -> what takes the same.
        tokens: values of N.
        rounds: see `measure.paired_ratio`, of which a is the reference: above 1, the other is faster.

    Returns:
        name -> a ratio for each N.

    Raises:
        TypeError, ValueError: see `measure.paired_ratio`.
    """
    ratios: dict[str, list[PairedRatio]] = {name: [] for name in others}
    for n in tokens:
        x = torch.randn(1, n, reference.embed_dim, generator=torch.Generator().manual_seed(0))
        for name, other in others.items():
            ratios[name].append(paired_ratio(partial(reference, x), partial(other, x), rounds=rounds))
    return ratios
