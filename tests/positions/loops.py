"""Positions once more, number by number in plain Python: from the papers, or the code that was published with them."""

import math
from itertools import groupby

import torch
from torch import Tensor


def table(length: int, embed_dim: int, base: float = 10_000.0, offset: int = 0) -> Tensor:
    """Vaswani et al. 2017, section 3.5: (T, E) in float64."""
    rows = torch.zeros(length, embed_dim, dtype=torch.float64)
    for t in range(length):
        for column in range(embed_dim):
            angle = (t + offset) / base ** (2 * (column // 2) / embed_dim)
            rows[t, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return rows


def turned(
    x: Tensor, frequencies: list[float], *, interleaved: bool, offset: int = 0, magnitude: float = 1.0
) -> Tensor:
    """Su et al. 2021, equation 15: x (T, D), each pair of its first 2 len(frequencies) entries times a matrix."""
    out, pairs = x.double().clone(), len(frequencies)
    for t in range(len(x)):
        for i, frequency in enumerate(frequencies):
            first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
            turn = magnitude * complex(math.cos((t + offset) * frequency), math.sin((t + offset) * frequency))
            z = turn * complex(x[t, first].item(), x[t, second].item())
            out[t, first], out[t, second] = z.real, z.imag
    return out


def frequencies(rotary_dim: int, base: float = 10_000.0) -> list[float]:
    """Su et al. 2021, section 3.4.3: theta_i = base^(-2 (i - 1) / d), i = 1 ... d / 2."""
    return [base ** (-2 * (i - 1) / rotary_dim) for i in range(1, rotary_dim // 2 + 1)]


def yarn(dim: int, base: float, scale: float, trained_length: int) -> list[float]:
    """The frequencies of `LlamaYaRNScaledRotaryEmbedding`, the code of Peng et al. 2023."""

    def find_correction_dim(num_rotations: float) -> float:
        return (dim * math.log(trained_length / (num_rotations * 2 * math.pi))) / (2 * math.log(base))

    low, high = math.floor(find_correction_dim(32)), math.ceil(find_correction_dim(1))
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # prevents singularity
    found = []
    for i in range(dim // 2):
        ramp = min(max((i - low) / (high - low), 0), 1)
        extrapolation = 1.0 / base ** (2 * i / dim)
        found.append(extrapolation / scale * ramp + extrapolation * (1 - ramp))
    return found


def slopes(n: int) -> list[float]:
    """`get_slopes`, the code of Press et al. 2022."""
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return slopes(closest) + slopes(2 * closest)[0::2][: n - closest]


def bucket(distance: int, bidirectional: bool, num_buckets: int, max_distance: int) -> set[int]:
    """Raffel et al. 2020, in exact integers: the bucket, or two where a group ends at this very distance."""
    n = num_buckets // 2 if bidirectional else num_buckets
    ahead = n if bidirectional and distance > 0 else 0
    away = abs(distance) if bidirectional else max(-distance, 0)
    m = n // 2
    if away < m:
        return {ahead + away}
    # the last k with k log(max_distance / m) <= (n - m) log(away / m)
    groups = {max(k for k in range(n - m) if max_distance**k * m ** (n - m) <= away ** (n - m) * m**k)}
    share = (n - m) * math.log(away / m) / math.log(max_distance / m)
    if abs(share - round(share)) < 1e-5:
        groups |= {max(round(share) - 1, 0), round(share)}
    return {ahead + min(m + k, n - 1) for k in groups}


def runs(values: list[int]) -> list[tuple[int, int]]:
    """Each value and how many times it comes in a row."""
    return [(value, len(list(group))) for value, group in groupby(values)]
