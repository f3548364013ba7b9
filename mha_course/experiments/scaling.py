"""Experiments of notebook 03: what the factor 1/sqrt(d_k) does to the scores, to their gradient and to training."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mha_course.dot_product import attention
from mha_course.experiments.scaling_training import INITS, RULES, Run, at_least, draw_map, steps_to, train

__all__ = [
    "INITS",
    "RULES",
    "SPREADS",
    "Crowding",
    "Products",
    "Run",
    "Saturation",
    "Spread",
    "crowding",
    "dot_products",
    "draw_map",
    "saturation",
    "score_spread",
    "steps_to",
    "three_layers",
    "train",
    "weights_by_width",
]

EMBED_DIM, VALUE_DIM = 64, 16  # of `saturation`
SPREADS = (*INITS, "Q = K", "QK-norm")


class Products(NamedTuple):
    """Mean and standard deviation of `pairs` products q.k in every repeat and width."""

    mean: Float[np.ndarray, "repeats n"]
    std: Float[np.ndarray, "repeats n"]


def dot_products(widths: Sequence[int], *, repeats: int = 20, pairs: int = 1000, seed: int = 0) -> Products:
    """Measure q.k of independent standard normal q and k, whose mean is 0 and whose standard deviation is sqrt(d_k).

    Args:
        widths: widths d_k.
        repeats: how often each measurement is made.
        pairs: vectors q and k of one measurement, at least 2.
        seed: of the vectors; a width's result does not depend on the other widths.

    Returns:
        Products(mean, std), float64; std with divisor pairs - 1.

    Raises:
        TypeError: a size is not an integer.
        ValueError: no width, or one below 1; repeats below 1; pairs below 2.

    Source: Vaswani et al. 2017, footnote 4.
    """
    widths = _sizes("widths", widths)
    at_least("repeats", repeats, 1)
    at_least("pairs", pairs, 2)
    found = np.empty((2, repeats, len(widths)))
    for column, d_k in enumerate(widths):
        generator = torch.Generator().manual_seed(seed)
        for row in range(repeats):
            q, k = torch.randn(2, pairs, d_k, dtype=torch.float64, generator=generator)
            dots = (q * k).sum(-1)
            found[:, row, column] = dots.mean(), dots.std()
    return Products(*found)


def weights_by_width(widths: Sequence[int], *, keys: int = 8, seed: int = 0) -> Float[np.ndarray, "2 n keys"]:
    """Weigh `keys` random keys by one random query at every width, first without the scale, then with it.

    Args:
        widths: widths d_k; each takes the first entries of the same standard normal query and keys.
        keys: number of keys S.
        seed: of the query and the keys.

    Returns:
        Weights (2, n, S), float64.

    Raises:
        TypeError: a size is not an integer.
        ValueError: no width, or one below 1; keys below 1.
    """
    widths = _sizes("widths", widths)
    at_least("keys", keys, 1)
    drawn = torch.randn(1 + keys, max(widths), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    q, k = drawn[:1], drawn[1:]
    rows = [[attention(q[:, :d], k[:, :d], k, scale=scale).weights[0].numpy() for d in widths] for scale in (1.0, None)]
    return np.array(rows)


class Saturation(NamedTuple):
    """What softmax and its gradient are like at every width, see `saturation`.

    Attributes:
        entropy: (seeds, n), of a query's weights in nats, mean over the queries.
        largest: (seeds, n), the largest weight, mean over the queries.
        score_gradient: (seeds, n, queries), norm of dL_t/ds_t, the scores' gradient of a query's own loss.
        query_gradient: (seeds, n, queries), norm of dL_t/dW_q, what one query alone would tell W_q.
        batch_gradient: (seeds, n), norm of dL/dW_q for L = mean of L_t: the mean of the above as matrices.
    """

    entropy: Float[np.ndarray, "seeds n"]
    largest: Float[np.ndarray, "seeds n"]
    score_gradient: Float[np.ndarray, "seeds n queries"]
    query_gradient: Float[np.ndarray, "seeds n queries"]
    batch_gradient: Float[np.ndarray, "seeds n"]


def saturation(
    widths: Sequence[int], *, scaled: bool, keys: int = 64, queries: int = 256, seeds: Iterable[int] = range(5)
) -> Saturation:
    """Measure the weights of untrained attention, and which gradient they let through, at every width.

    q = x W_q,  k = y W_k,  s = scale * q k^T,  out = softmax(s) v,  L_t = z_t . out_t,  L = mean of L_t

    with tokens x (queries, 64) and y (keys, 64), values v and z of width 16, all from N(0, 1), and W_q, W_k (64, d_k)
    from N(0, 1/64), so that the entries of q and k have variance 1. z_t stands for the gradient that a longer model
    sends back to out_t. With w = softmax(s_t) and g = v z_t, query t gives

    dL_t/ds_t = w * (g - w.g),   dL_t/dW_q = scale * x_t (dL_t/ds_t k)^T

    Args:
        widths: widths d_k.
        scaled: scale is 1/sqrt(d_k) if True, 1 if False.
        keys: number of keys S.
        queries: number of queries T, all of which see the same keys.
        seeds: each draws its own tokens, values, z and maps; for one seed the tokens, values and z are the same
            at every width.

    Returns:
        Saturation(entropy, largest, score_gradient, query_gradient, batch_gradient), float64.

    Raises:
        TypeError: a size is not an integer.
        ValueError: no width, or one below 1; keys or queries below 1; no seed.
    """
    widths = _sizes("widths", widths)
    at_least("keys", keys, 1)
    at_least("queries", queries, 1)
    found = [[_saturation(d_k, scaled, keys, queries, seed) for d_k in widths] for seed in _some(seeds, "seeds")]
    return Saturation(*(np.array([[numbers[i] for numbers in row] for row in found]) for i in range(5)))


def _saturation(d_k: int, scaled: bool, keys: int, queries: int, seed: int) -> tuple[Float[np.ndarray, "..."], ...]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    x, y = draw(queries, EMBED_DIM), draw(keys, EMBED_DIM)
    v, z = draw(keys, VALUE_DIM), draw(queries, VALUE_DIM)
    k = y @ draw(EMBED_DIM, d_k) / math.sqrt(EMBED_DIM)
    q = x @ draw(EMBED_DIM, d_k) / math.sqrt(EMBED_DIM)
    scale = 1 / math.sqrt(d_k) if scaled else 1.0
    weights = attention(q, k, v, scale=scale).weights
    g = z @ v.T  # (T, S)
    slope = weights * (g - (weights * g).sum(-1, keepdim=True))  # (T, S), dL_t/ds_t
    into_q = scale * slope @ k  # (T, D), dL_t/dq_t
    one_query = x.norm(dim=-1) * into_q.norm(dim=-1)  # the norm of a product of a column and a row
    batch = (x.T @ into_q / queries).norm()
    entropy = torch.special.entr(weights).sum(-1).mean()
    numbers = (entropy, weights.amax(-1).mean(), slope.norm(dim=-1), one_query, batch)
    return tuple(number.numpy() for number in numbers)


class Spread(NamedTuple):
    """Scores of tokens among themselves, see `score_spread`; one entry a repeat.

    Attributes:
        std: standard deviation of the scores between different tokens.
        own: mean score of a token with itself.
        own_weight: mean weight of a token on itself.
        largest: mean of a token's largest weight.
    """

    std: Float[np.ndarray, " repeats"]
    own: Float[np.ndarray, " repeats"]
    own_weight: Float[np.ndarray, " repeats"]
    largest: Float[np.ndarray, " repeats"]


def score_spread(
    init: str, *, d_model: int = 512, d_k: int = 64, tokens: int = 64, repeats: int = 20, seed: int = 0
) -> Spread:
    """Measure the scaled scores x W_q (x W_k)^T / sqrt(d_k) of standard normal tokens x under an initialisation.

    "Q = K" takes W_k = W_q, drawn as "unit". "QK-norm" gives q and k length 1 and leaves out the scale: the scores
    are cosines.

    Args:
        init: one of SPREADS; all but the last two are those of `draw_map`.
        d_model: width of a token.
        d_k: width of the head.
        tokens: tokens T of one repeat, at least 2.
        repeats: how often tokens and maps are drawn anew.
        seed: of the draws.

    Returns:
        Spread(std, own, own_weight, largest).

    Raises:
        TypeError: a size is not an integer.
        ValueError: another init; d_model, d_k or repeats below 1; tokens below 2.
    """
    if init not in SPREADS:
        raise ValueError(f"init must be one of {SPREADS}, got {init!r}")
    for name, size, least in (("d_model", d_model, 1), ("d_k", d_k, 1), ("tokens", tokens, 2), ("repeats", repeats, 1)):
        at_least(name, size, least)
    generator = torch.Generator().manual_seed(seed)
    others = ~torch.eye(tokens, dtype=torch.bool)
    found = np.empty((4, repeats))
    for i in range(repeats):
        x = torch.randn(tokens, d_model, generator=generator)
        W_q, W_k = (draw_map(init if init in INITS else "unit", d_model, d_k, generator) for _ in range(2))
        q, k = x @ W_q, x @ (W_q if init == "Q = K" else W_k)
        if init == "QK-norm":
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        scores, weights, _ = attention(q, k, x, scale=1.0 if init == "QK-norm" else None)
        own = (scores.diagonal().mean(), weights.diagonal().mean())
        found[:, i] = scores[others].std(), *own, weights.amax(-1).mean()
    return Spread(*found)


def three_layers(widths: Sequence[int], *, d_model: int = 64, seed: int = 0) -> Float[np.ndarray, "3 n"]:
    """Measure the std of the scores of three layers at every width d_k; the second one lacks the scale.

    Drawn as "randn", "default" and "unit", see `score_spread`, which raises for a width or d_model below 1.
    """
    widths = _sizes("widths", widths)
    spreads = [
        [score_spread(init, d_model=d_model, d_k=d_k, seed=seed).std.mean() for d_k in widths]
        for init in ("randn", "default", "unit")
    ]
    return np.array(spreads) * [np.ones(len(widths)), np.sqrt(widths), np.ones(len(widths))]


class Crowding(NamedTuple):
    """The weight of the one key that matters, and the entropy of all weights in nats, at every length."""

    weight: Float[np.ndarray, "repeats n"]
    entropy: Float[np.ndarray, "repeats n"]


def crowding(
    lengths: Sequence[int], *, score: float = 5.0, log_scaling: bool = False, repeats: int = 20, seed: int = 0
) -> Crowding:
    """Measure what a key with a given score gets among S - 1 others whose scores come from N(0, 1).

    weight = softmax(f s) at that key, where f is 1, or log S / log 64 with log_scaling

    Args:
        lengths: numbers of keys S.
        score: the score of the one key, before f.
        log_scaling: multiply all scores by log S / log 64, which changes nothing at S = 64.
        repeats: how often the other scores are drawn.
        seed: of the scores; a length's result does not depend on the other lengths.

    Returns:
        Crowding(weight, entropy), float64.

    Raises:
        TypeError: a size is not an integer.
        ValueError: no length, or one below 1; repeats below 1; score is not finite.

    Source: for log S, Chiang and Cholak 2022, "Overcoming a theoretical limitation of self-attention".
    """
    lengths = _sizes("lengths", lengths)
    at_least("repeats", repeats, 1)
    if not math.isfinite(score):
        raise ValueError(f"score must be finite, got {score}")
    found = np.empty((2, repeats, len(lengths)))
    for column, S in enumerate(lengths):
        scores = torch.randn(repeats, S, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        scores[:, 0] = score
        weights = (scores * (math.log(S) / math.log(64) if log_scaling else 1.0)).softmax(-1)
        found[:, :, column] = weights[:, 0], torch.special.entr(weights).sum(-1)
    return Crowding(*found)


def _sizes(name: str, sizes: Iterable[int]) -> list[int]:
    for size in (sizes := _some(sizes, name)):
        at_least(f"each of {name}", size, 1)
    return sizes


def _some(numbers: Iterable[int], name: str) -> list[int]:
    if not (numbers := list(numbers)):
        raise ValueError(f"{name} must hold at least one number, got none")
    return numbers
