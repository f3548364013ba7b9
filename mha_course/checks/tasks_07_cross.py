"""The fourth exercise of notebook 07: attention of one sequence to another."""

import math
from typing import Any

import torch

from mha_course.checks.parting import Step
from mha_course.checks.task import Case, Task, Variation, by_steps, draw
from mha_course.checks.tasks_07_faults import Array, Fault, Mask, Solution, Three, built, numbers
from mha_course.checks.tasks_07_steps import ROLE_HINTS, STEPS, TRANSPOSED_HINTS


def _cases() -> tuple[Case, ...]:
    """With Ek = E and T = S in one case, so that a matrix of the other sequence fits there."""
    cases = []
    letters = ("B", "T", "S", "H", "D", "E", "Ek")
    drawn = [(3, 5, 11, 2, 7, 13), (3, 5, 5, 2, 3, 6), (5, 2, 7, 3, 1, 13), (2, 7, 1, 3, 5, 11), (1, 1, 3, 2, 7, 5)]
    for seed, (B, T, S, H, D, Ek) in enumerate(drawn):
        E = H * D
        query, context, W_q, W_k, W_v, W_o = draw(seed, (B, T, E), (B, S, Ek), (E, E), (Ek, E), (Ek, E), (E, E))
        weights = (W / math.sqrt(len(W)) for W in (W_q, W_k, W_v, W_o))  # q, k and v stay as large as the input
        sizes = dict(zip(letters, (B, T, S, H, D, E, Ek), strict=True))
        cases.append(Case(sizes, (query, context, *weights, H)))
    return tuple(cases)


def _unmasked(fn: Solution) -> Any:
    return lambda query, context, W_q, W_k, W_v, W_o, num_heads: fn(query, context, W_q, W_k, W_v, W_o, num_heads, None)


@by_steps
def _built(**changes: Any) -> Any:
    return _unmasked(built(**changes))


def _numbers(*inputs: Any) -> tuple[Step, ...]:
    return numbers(*(*inputs, None))


def _causal(offset: int | None) -> Any:
    """Steps that hide the future: key s from query t if s > t + offset; None: lower right."""

    def see(scores: Array, mask: Mask | None) -> Mask:
        T, S = scores.shape[-2:]
        return torch.ones(T, S, dtype=torch.bool).tril(S - T if offset is None else offset)

    return {"see": see}


def _transposed(query: Array, context: Array, W_q: Array, W_k: Array, W_v: Array) -> Three:
    return query @ W_q.T, context @ W_k.T, context @ W_v.T


_SOURCE_HINTS = (
    "Change the context alone: which of q, k and v change?",
    "The query asks, the context answers: q comes from the query, k and v come from the context.",
)
_CAUSAL_HINTS = (
    "Change the last token of the context: does the result of the first query change?",
    "There is no mask in this exercise: every query sees the whole context.",
)
_CAUSAL = "the future is hidden, as if query and context were one sequence"

_SOURCES = (
    Fault(
        "the keys are made from the query, not from the context",
        {"project": lambda query, context, W_q, W_k, W_v: (query @ W_q, query @ W_k, context @ W_v)},
        _SOURCE_HINTS,
    ),
    Fault(
        "the values are made from the query, not from the context",
        {"project": lambda query, context, W_q, W_k, W_v: (query @ W_q, context @ W_k, query @ W_v)},
        _SOURCE_HINTS,
    ),
    Fault(
        "keys and values are made from the query: it attends to itself, the context is not used",
        {"project": lambda query, context, W_q, W_k, W_v: (query @ W_q, query @ W_k, query @ W_v)},
        _SOURCE_HINTS,
    ),
    Fault(
        "the queries are made from the context: it attends to itself, the query is not used",
        {"project": lambda query, context, W_q, W_k, W_v: (context @ W_q, context @ W_k, context @ W_v)},
        _SOURCE_HINTS,
    ),
    Fault(
        "query and context have changed places: the context asks",
        {"project": lambda query, context, W_q, W_k, W_v: (context @ W_q, query @ W_k, query @ W_v)},
        _SOURCE_HINTS,
    ),
    Fault(
        "the keys are made with W_q, not with W_k",
        {"project": lambda query, context, W_q, W_k, W_v: (query @ W_q, context @ W_q, context @ W_v)},
        ROLE_HINTS,
    ),
    Fault(
        "keys and values are made with W_q, not with W_k and W_v",
        {"project": lambda query, context, W_q, W_k, W_v: (query @ W_q, context @ W_q, context @ W_q)},
        ROLE_HINTS,
    ),
    Fault(
        "the queries are made with W_k, not with W_q",
        {"project": lambda query, context, W_q, W_k, W_v: (query @ W_k, context @ W_k, context @ W_v)},
        ROLE_HINTS,
    ),
    Fault(
        "the matrix W_q is transposed",
        {"project": lambda query, context, W_q, W_k, W_v: (query @ W_q.T, context @ W_k, context @ W_v)},
        TRANSPOSED_HINTS,
    ),
    Fault("the matrices W_q, W_k and W_v are transposed", {"project": _transposed}, TRANSPOSED_HINTS),
    Fault(
        "all four matrices are transposed",
        {"project": _transposed, "finish": lambda out, W_o, query: out @ W_o.T},
        TRANSPOSED_HINTS,
    ),
    Fault(
        "the scores are transposed, keys against queries: (B, H, S, T) instead of (B, H, T, S)",
        {"use": lambda q, k, v: (k, q, v)},
        (
            "Try T and S different: which of the two comes first in your scores?",
            "A row of the scores is a query: swap the two factors of the product, and transpose k.",
        ),
    ),
)


def _width_scale(width: int, said: str) -> Variation:
    """A scale by a size of an input that the heads do not show: the axis of query or context."""

    def fn(query: Array, context: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array, num_heads: int) -> Array:
        size = (query.shape[1], context.shape[2])[width]
        steps = built(scale=lambda q, k, v: 1 / math.sqrt(size))
        return steps(query, context, W_q, W_k, W_v, W_o, num_heads, None)

    return Variation(
        f"the scores are divided by the square root of {said}, not of D",
        fn,
        (
            "Look at the number that the scores are divided by: which size is under the root?",
            "Divide the scores by the square root of D, the width of one head.",
        ),
    )


cross_attention = Task(
    name="cross_attention",
    arguments=("query", "context", "W_q", "W_k", "W_v", "W_o", "num_heads"),
    results=(("out", ("B", "T", "E")),),
    reference=_unmasked(built()),
    build=_built,
    steps=_numbers,
    cases=_cases,
    variations=(
        *(
            Variation(said, _built(**change), hints)
            for said, change, hints in (
                *_SOURCES,
                *STEPS,
                Fault(_CAUSAL, _causal(0), _CAUSAL_HINTS),
                Fault(_CAUSAL, _causal(None), _CAUSAL_HINTS),
                Fault(
                    "only as many keys are seen as there are queries, the rest of the context is cut off",
                    {"use": lambda q, k, v: (q, k[:, :, : q.shape[2]], v[:, :, : q.shape[2]])},
                    ("Change the last token of the context: does your result change?", "Keep all S keys: S is not T."),
                ),
            )
        ),
        _width_scale(0, "T, the number of queries"),
        _width_scale(1, "Ek, the width of the context"),
    ),
    hints=(
        "Try num_heads = 1 first: if that is right, look at split and merge.",
        "Compare step by step: q (B, H, T, D), k and v (B, H, S, D), scores (B, H, T, S), merged (B, T, E).",
    ),
    shape_hint="The query gives the length of the result, T; the length of the context, S, is summed over.",
)
