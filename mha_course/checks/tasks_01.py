"""The exercises of notebook 01: attention for one query in NumPy, and for a batch in PyTorch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks import attention_faults as faults
from mha_course.checks.task import Case, Task, Variation, draw


def batched_cases() -> tuple[Case, ...]:
    """Inputs q (B, T, D), k (B, S, D), v (B, S, Dv); the second case has T = S, the last B = T = 1."""
    cases = []
    for seed, sizes in enumerate([(2, 3, 5, 7, 11), (3, 5, 5, 7, 2), (5, 7, 2, 3, 13), (1, 1, 5, 7, 3)]):
        B, T, S, D, Dv = sizes
        inputs = draw(seed, (B, T, D), (B, S, D), (B, S, Dv))
        cases.append(Case(dict(zip(("B", "T", "S", "D", "Dv"), sizes, strict=True)), inputs))
    return tuple(cases)


def _one_query_cases() -> tuple[Case, ...]:
    cases = []
    for seed, (S, D, Dv) in enumerate([(5, 7, 11), (5, 5, 3), (13, 3, 2), (1, 3, 1)]):
        inputs = tuple(x.numpy() for x in draw(seed, (D,), (S, D), (S, Dv)))
        cases.append(Case({"S": S, "D": D, "Dv": Dv}, inputs))
    return tuple(cases)


def _only_out(fn: Callable[..., faults.Pair]) -> Callable[..., Float[Tensor, "..."]]:
    return lambda q, k, v: fn(q, k, v)[1]


def _for_one_query(fn: Callable[..., faults.Pair]) -> Callable[..., Float[np.ndarray, " Dv"]]:
    """From fn(q (1, 1, D), k (1, S, D), v (1, S, Dv)) on tensors to one query on arrays."""

    def one(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        batched = (torch.from_numpy(x)[None] for x in (q[None], keys, values))
        return fn(*batched)[1][0, 0].numpy()

    return one


def _summed_over_keys(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The keys transposed; a ValueError unless S = D."""
    np.matmul(q, keys)
    return _for_one_query(faults.right)(q, keys.T, values)


def _built_for_one_query(**changes: Any) -> Callable[..., Any]:
    return _for_one_query(faults.built(**changes))


def _built_out(**changes: Any) -> Callable[..., Any]:
    return _only_out(faults.built(**changes))


def _variations(source: tuple[Variation, ...], change: Callable[..., Callable[..., object]]) -> tuple[Variation, ...]:
    return tuple(replace(variation, fn=change(variation.fn)) for variation in source)


_HINTS = (
    "Work out one query by hand: its scores, its weights, which must sum to 1, then the sum.",
    "Compare with your function step by step: score, scale, softmax, weighted sum of the values.",
)

one_query = Task(
    name="one_query",
    arguments=("q", "keys", "values"),
    results=(("out", ("Dv",)),),
    reference=_for_one_query(faults.right),
    cases=_one_query_cases,
    variations=(
        *_variations((*faults.SCALE, *faults.WEIGHTS), _for_one_query),
        Variation(
            "the scores sum over the keys (S), not over the features (D)",
            _summed_over_keys,
            (
                "Which axis of keys has the length of q? Case 2 hides the fault: there both have, as S = D.",
                "A score is the product of q with one row of keys, summed over the features.",
            ),
        ),
    ),
    build=_built_for_one_query,
    hints=_HINTS,
    numpy=True,
)

batched_attention = Task(
    name="batched_attention",
    arguments=("q", "k", "v"),
    results=(("out", ("B", "T", "Dv")),),
    reference=_only_out(faults.right),
    cases=batched_cases,
    variations=_variations(
        (
            *faults.SCALE,
            faults.SCALE_BY_T.in_attention(),
            *faults.WEIGHTS,
            *faults.SOFTMAX_AXIS,
            *faults.LAYOUT,
            faults.KEYS_BY_QUERIES,
        ),
        _only_out,
    ),
    build=_built_out,
    steps=faults.steps,
    hints=_HINTS,
)

TASKS = (one_query, batched_attention)
