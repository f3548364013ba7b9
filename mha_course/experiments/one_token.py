"""Experiments of notebook 12: what a decoder repeats, what a cache saves, and what published models keep."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from mha_course.cache import KVCache
from mha_course.masks._inputs import check_integer
from mha_course.measure import timings
from mha_course.models import Decoder

MODELS = {  # layers, key and value heads, head_dim; from the models' published configurations
    "Falcon 7B": (32, 1, 64),
    "Llama-3 8B": (32, 8, 128),
    "Llama-2 70B": (80, 8, 128),
    "Llama-3.1 405B": (126, 8, 128),
    "Llama-2 7B": (32, 32, 128),
    "Llama-2 13B": (40, 40, 128),
}


class Generated(NamedTuple):
    """What a model wrote, and what it took.

    Attributes:
        tokens: (B, n), the new ones.
        passed: how many tokens went through the model, those of the prompt and repeated ones included.
    """

    tokens: Integer[Tensor, "B n"]
    passed: int


@torch.no_grad()
def generate(model: Decoder, prompt: Integer[Tensor, "B T"], n: int, *, cached: bool) -> Generated:
    """Let the model write n tokens, the likeliest each time.

    Args:
        model: in evaluation mode.
        prompt: (B, T), at least one token.
        n: number of new tokens.
        cached: whether keys and values are kept. If not, the whole text goes through the model for each token.

    Returns:
        Generated(tokens, passed).

    Raises:
        TypeError: n is not an integer.
        ValueError: n is below 1, or the prompt is empty.
    """
    check_integer("n", n, least=1)
    B, T = prompt.shape
    if T == 0:
        raise ValueError("prompt must hold at least one token, got none")
    cache = model.new_cache(B, T + n) if cached else None
    text, new, passed = prompt, prompt, 0
    for _ in range(n):
        given = new if cached else text
        new = model(given, cache=cache)[:, -1:].argmax(-1)  # (B, 1)
        text, passed = torch.cat([text, new], dim=1), passed + given.shape[1]
    return Generated(text[:, T:], passed)


def speed_up(
    lengths: Sequence[int], *, embed_dim: int = 256, num_heads: int = 8, num_layers: int = 4, repeats: int = 3
) -> Float[np.ndarray, "repeats lengths"]:
    """Measure how many times as long a small rotary decoder takes without a cache, to write n tokens after one.

    Args:
        lengths: values of n.
        embed_dim, num_heads, num_layers: of the decoder; 64 tokens are known, nothing is trained.
        repeats: number of pairs, one after the other.

    Returns:
        (repeats, lengths), time without over time with a cache.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = Decoder(64, embed_dim, num_heads, num_layers, positions="rotary").eval()
    prompt = torch.zeros(1, 1, dtype=torch.int64)
    ratios = np.empty((repeats, len(lengths)))
    for column, n in enumerate(lengths):
        for row in range(repeats):
            seconds = []
            for cached in (False, True):
                run = partial(generate, model, prompt, n, cached=cached)
                seconds.append(timings(run, repeats=1, warmup=int(row == 0)).median)
            ratios[row, column] = seconds[0] / seconds[1]
    return ratios


def keep_by_concatenation(k: Float[Tensor, "T B H D"], v: Float[Tensor, "T B H D"]) -> int:
    """Add tokens one by one to keys and values by torch.cat; return the bytes that were written."""
    held, written = (k[:0], v[:0]), 0
    for new_k, new_v in zip(k, v, strict=True):
        held = torch.cat([held[0], new_k[None]]), torch.cat([held[1], new_v[None]])
        written += held[0].nbytes + held[1].nbytes
    return written


def keep_preallocated(k: Float[Tensor, "T B H D"], v: Float[Tensor, "T B H D"]) -> int:
    """Add the same tokens to a `KVCache`; return the bytes that were written."""
    T, B, H, D = k.shape
    cache = KVCache(B, H, T, D, dtype=k.dtype)
    written = 0
    for new_k, new_v in zip(k, v, strict=True):
        cache.update(new_k.unsqueeze(2), new_v.unsqueeze(2))
        written += new_k.nbytes + new_v.nbytes
    return written
