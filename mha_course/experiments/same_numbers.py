"""Experiments of notebook 10: what the ways to compute attention cost as the sequence grows."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mha_course import tiled
from mha_course.dot_product import attention
from mha_course.experiments.scaling_training import at_least
from mha_course.measure import peak_memory, timings

Way = Callable[..., Tensor]
WIDTH = 64


def explicit(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S D"]
) -> Float[Tensor, "B H T D"]:
    """Return the output of `attention`, which forms all T x S scores."""
    return attention(q, k, v).out


WAYS: Mapping[str, Way] = {
    "explicit": explicit,
    "SDPA": F.scaled_dot_product_attention,
    "tiles": tiled.attention,
}


def peaks(
    ways: Mapping[str, Way], lengths: Sequence[int], *, backward: bool = False, device: str = "cpu"
) -> dict[str, Float[np.ndarray, " lengths"]]:
    """Count the bytes that each way holds at its peak, beyond its inputs, for B = H = 1, T = S, D = 64, float32.

    Args:
        ways: name -> (q, k, v) -> out.
        lengths: values of S, each at least 1.
        backward: whether the gradients of q, k and v are computed as well.
        device: where.

    Returns:
        name -> bytes, one for each length.

    Raises:
        TypeError: a length is not an integer.
        ValueError: a length is below 1.
    """
    drawn = [_inputs(S, backward, device) for S in lengths]
    return {
        name: np.array([peak_memory(_call(way, inputs, backward), device=device) for inputs in drawn], dtype=float)
        for name, way in ways.items()
    }


def seconds(
    ways: Mapping[str, Way],
    lengths: Sequence[int],
    *,
    repeats: int = 3,
    backward: bool = False,
    device: str = "cpu",
) -> dict[str, Float[np.ndarray, "repeats lengths"]]:
    """Time each way in turn, so that a machine that slows down slows all of them; otherwise as `peaks`.

    Returns:
        name -> seconds, `repeats` times for each length.
    """
    at_least("repeats", repeats, 1)
    taken = {name: np.empty((repeats, len(lengths))) for name in ways}
    for column, S in enumerate(lengths):
        inputs = _inputs(S, backward, device)
        for row in range(repeats):
            for name, way in ways.items():
                timing = timings(_call(way, inputs, backward), repeats=1, warmup=int(row == 0))
                taken[name][row, column] = timing.median
    return taken


def exponent(lengths: Sequence[int], values: Float[np.ndarray, "*repeats lengths"]) -> float:
    """Return the slope of log values against log lengths, by least squares over the medians of the repeats.

    values ~ constant * lengths ** exponent

    Raises:
        ValueError: fewer than two lengths; another number of values; a value that is not positive.
    """
    middle = np.median(np.atleast_2d(values), axis=0)
    if len(lengths) < 2 or middle.shape != (len(lengths),):
        raise ValueError(f"values must hold one for each of two or more lengths, got {np.shape(values)}")
    if not (middle > 0).all():
        raise ValueError("values must be positive")
    return float(np.polyfit(np.log(lengths), np.log(middle), 1)[0])


def _inputs(S: int, backward: bool, device: str) -> tuple[Tensor, ...]:
    at_least("lengths", S, 1)
    generator = torch.Generator().manual_seed(S)
    drawn = torch.randn(3, 1, 1, S, WIDTH, generator=generator).to(device)
    return tuple(x.clone().requires_grad_(backward) for x in drawn)


def _call(way: Way, inputs: tuple[Tensor, ...], backward: bool) -> Callable[[], object]:
    if backward:
        return lambda: torch.autograd.grad(way(*inputs).sum(), inputs)

    @torch.no_grad()
    def forward() -> Tensor:
        return way(*inputs)

    return forward
