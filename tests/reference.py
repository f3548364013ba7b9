"""Attention once more, from the formula, in plain Python loops and float64: what the tests compare with."""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    score_bias: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (..., T, S), weights (..., T, S) and out (..., T, Dv), every number by itself."""
    T, S, D, Dv = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    batch = q.shape[:-2]
    factor = 1 / math.sqrt(D) if scale is None else scale
    scores = torch.zeros(*batch, T, S, dtype=torch.float64)
    weights = torch.zeros(*batch, T, S, dtype=torch.float64)
    out = torch.zeros(*batch, T, Dv, dtype=torch.float64)
    may = None if mask is None else mask.expand(*batch, T, S)
    bias = None if score_bias is None else score_bias.expand(*batch, T, S)
    for place in itertools.product(*map(range, batch)):
        queries, keys, values = q[place].tolist(), k[place].tolist(), v[place].tolist()
        for t in range(T):
            row = []
            for s in range(S):
                score = factor * sum(queries[t][d] * keys[s][d] for d in range(D))
                if bias is not None:
                    score += bias[place][t][s].item()
                if may is not None and not may[place][t][s].item():
                    score = -math.inf
                row.append(score)
            parts = _softmax(row)
            for s in range(S):
                scores[place][t][s], weights[place][t][s] = row[s], parts[s]
            for d in range(Dv):
                out[place][t][d] = sum(parts[s] * values[s][d] for s in range(S))
    return scores, weights, out


def _softmax(row: list[float]) -> list[float]:
    top = max(row, default=-math.inf)
    if top == -math.inf:
        return [0.0] * len(row)
    exponentials = [math.exp(score - top) for score in row]
    return [part / sum(exponentials) for part in exponentials]


def broadcastable(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every shape that broadcasts to `shape`: each axis whole or 1, leading axes there or not."""
    for axes in range(len(shape) + 1):
        tail = shape[len(shape) - axes :]
        yield from set(itertools.product(*[(1, size) for size in tail]))
