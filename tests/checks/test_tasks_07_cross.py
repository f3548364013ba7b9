"""Right and wrong solutions of notebook 07: attention of one sequence to another."""

import math

import pytest
import torch
from torch.nn import functional as F

from mha_course.checks import check
from tests.checks.heads import RIGHT, by_einsum, by_loops, cross, merge, roles, split, textbook, unreached
from tests.checks.wrong_heads import SHARED


def sources(q, k, v):
    """Which of query (0) and context (1) each of q, k and v is made from."""
    return {
        "q_of": lambda *of: of[q] @ of[2],
        "k_of": lambda *of: of[k] @ of[3],
        "v_of": lambda *of: of[v] @ of[4],
    }


def causal(offset):
    def weights(scores):
        T, S = scores.shape[-2:]
        return scores.masked_fill(torch.ones(T, S).triu(1 + offset(T, S)).bool(), -math.inf).softmax(-1)

    return {"weights": weights}


def scale_of(size):
    def fn(query, context, W_q, W_k, W_v, W_o, H):
        q, k, v = split(query @ W_q, H), split(context @ W_k, H), split(context @ W_v, H)
        return merge(F.scaled_dot_product_attention(q, k, v, scale=size(query, context) ** -0.5)) @ W_o

    return fn


def transposed_in_cross(query, context, W_q, W_k, W_v, W_o, H):
    q, k, v = split(query @ W_q, H), split(context @ W_k, H), split(context @ W_v, H)
    weights = (torch.einsum("bhtd,bhsd->bhst", q, k) / q.shape[-1] ** 0.5).softmax(-1)
    return merge(weights @ v) @ W_o


def by_linear(*which):
    """F.linear with some of the matrices W_q, W_k, W_v, W_o, 0 to 3."""

    def fn(query, context, *rest):
        *W, H = rest
        apply = [F.linear if i in which else torch.matmul for i in range(4)]
        q, k, v = (split(apply[i](x, W[i]), H) for i, x in enumerate((query, context, context)))
        return apply[3](merge(F.scaled_dot_product_attention(q, k, v)), W[3])

    return fn


OWN = [
    (sources(0, 0, 1), "the keys are made from the query"),
    (sources(0, 1, 0), "the values are made from the query"),
    (sources(0, 0, 0), "keys and values are made from the query: it attends to itself"),
    (sources(1, 1, 1), "the queries are made from the context"),
    (sources(1, 0, 0), "query and context have changed places"),
    (cross(lambda query, context, *rest: by_loops(context, query, *rest)), "query and context have changed places"),
    (cross(lambda query, context, *rest: by_einsum(query, query, *rest)), "keys and values are made from the query"),
    ({"k_of": lambda *of: of[1] @ of[2]}, "the keys are made with W_q"),
    (roles("q", "q", "q"), "keys and values are made with W_q"),
    ({"q_of": lambda *of: of[0] @ of[3]}, "the queries are made with W_k"),
    (by_linear(0), "the matrix W_q is transposed"),
    (by_linear(0, 1, 2), "the matrices W_q, W_k and W_v are transposed"),
    (by_linear(0, 1, 2, 3), "all four matrices are transposed"),
    (transposed_in_cross, "the scores are transposed"),
    (causal(lambda T, S: 0), "the future is hidden"),
    (causal(lambda T, S: S - T), "the future is hidden"),
    (
        {"heads": lambda q, k, v: (q, k[:, :, : q.shape[2]], v[:, :, : q.shape[2]])},
        "only as many keys are seen as there are queries",
    ),
    (scale_of(lambda query, context: query.shape[1]), "the scores are divided by the square root of T"),
    (scale_of(lambda query, context: context.shape[2]), "the scores are divided by the square root of Ek"),
    (by_linear(0, 3), "two faults: the matrix W_q is transposed; and the matrix W_o is transposed"),
    ({"split": lambda x, H: x.view(len(x), 5, H, -1).transpose(1, 2)}, "it raises RuntimeError: shape '[3, 5, 2, -1]'"),
    ({"merge": lambda x: merge(x).mean(1)}, "out has the wrong shape"),
    (lambda query, context: query, "it cannot be called as fn(query, context, W_q, W_k, W_v, W_o, num_heads)"),
]


WRONG = [(cross(textbook(**f) if isinstance(f, dict) else f), said) for f, said in SHARED]
WRONG += [(cross(textbook(**f)) if isinstance(f, dict) else f, said) for f, said in OWN]


@pytest.mark.parametrize("fn", RIGHT)
def test_right(fn):
    verdict = check("cross_attention", cross(fn))
    assert verdict.ok, verdict


@pytest.mark.parametrize(("fn", "fault"), WRONG)
def test_wrong(fn, fault):
    verdict = check("cross_attention", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_every_variation_is_what_some_solution_does():
    assert unreached("cross_attention", [fn for fn, _ in WRONG]) == []


def test_a_matrix_of_the_wrong_sequence_is_named_though_it_raises():
    def keys_of_the_query(query, context, W_q, W_k, W_v, W_o, H):
        q, k, v = split(query @ W_q, H), split(query @ W_k, H), split(context @ W_v, H)
        return merge(F.scaled_dot_product_attention(q, k, v)) @ W_o

    verdict = check("cross_attention", keys_of_the_query)
    assert verdict.fault == "the keys are made from the query, not from the context"
    assert verdict.evidence.startswith("it raises RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert verdict.evidence.endswith("case 1 (B, T, S, H, D, E, Ek = 3, 5, 11, 2, 7, 14, 13)")


def test_shapes_are_said_in_letters():
    assert check("cross_attention", cross(textbook(**sources(1, 1, 1)))).fault.startswith("the queries are made from")
    assert check("cross_attention", lambda query, context, *rest: context).evidence == (
        "shape (B, S, Ek) = (3, 11, 13), expected (B, T, E) = (3, 5, 14), "
        "case 1 (B, T, S, H, D, E, Ek = 3, 5, 11, 2, 7, 14, 13)"
    )
