"""Right and wrong attention functions as learners write them: one query, and a batch."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mha_course.checks import check, engine


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


def one_query_loops(q, keys, values):
    scores = [sum(a * b for a, b in zip(q, key, strict=True)) / math.sqrt(len(q)) for key in keys]
    powers = [math.exp(score - max(scores)) for score in scores]
    out = np.zeros(values.shape[1])
    for power, value in zip(powers, values, strict=True):
        out += power / sum(powers) * value
    return out


ONE_RIGHT = [
    one_query_loops,
    lambda q, k, v: softmax(k @ q / np.sqrt(q.size)) @ v,
    lambda q, k, v: np.einsum("s,se->e", softmax(np.einsum("d,sd->s", q, k) * len(q) ** -0.5), v),
    lambda q, k, v: (softmax(q @ k.T / np.sqrt(len(q)))[:, None] * v).sum(0),
    lambda q, k, v: F.scaled_dot_product_attention(*(torch.from_numpy(x)[None] for x in (q[None], k, v)))[0, 0].numpy(),
    lambda q, k, v: one_query_loops(q, k, v).astype(">f8"),
    lambda q, k, v: one_query_loops(q, k, v).astype("<f8"),
    lambda q, k, v: one_query_loops(q, k, v)[::-1].copy()[::-1],
]

ONE_WRONG = [
    (lambda q, k, v: softmax(k @ q) @ v, "the scores are not scaled"),
    (lambda q, k, v: softmax(k @ q / len(q)) @ v, "the scores are divided by D,"),
    (lambda q, k, v: softmax(k @ q * np.sqrt(len(q))) @ v, "the scores are multiplied"),
    (
        lambda q, k, v: softmax(k @ q / np.sqrt(len(k))) @ v,
        "the scores are divided by the square root of the number",
    ),
    (
        lambda q, k, v: softmax(k @ q / np.sqrt(v.shape[1])) @ v,
        "the scores are divided by the square root of Dv",
    ),
    (lambda q, k, v: softmax(k @ q / 4**0.5) @ v, "the scores are divided by 2, the square root of 4, whatever D"),
    (lambda q, k, v: softmax(k @ q / 4) @ v, "the scores are divided by 4, whatever D"),
    (lambda q, k, v: softmax(k @ q / 2**0.5) @ v, "the scores are divided by the square root of 2, whatever D"),
    (lambda q, k, v: softmax(k @ q / 64**0.5) @ v, "the scores are divided by 8, the square root of 64, whatever D"),
    (lambda q, k, v: softmax(k @ q) / np.sqrt(len(q)) @ v, "the division by the square root of D comes after"),
    (lambda q, k, v: (k @ q / np.sqrt(len(q))) @ v, "the softmax is missing"),
    (lambda q, k, v: (k @ q / (k @ q).sum()) @ v, "the exponential is missing"),
    (lambda q, k, v: np.exp(k @ q / np.sqrt(len(q))) @ v, "the weights of a query do not sum to 1"),
    (lambda q, k, v: v[(k @ q).argmax()], "the best key takes all"),
    (lambda q, k, v: v.mean(0), "every value counts alike"),
    (lambda q, k, v: softmax(q @ k) @ v, "it raises ValueError: matmul"),
    (lambda q, k, v: softmax(q @ k / np.sqrt(len(q))) @ v, "the scores sum over the keys"),
    # not named
    (lambda q, k, v: softmax(k @ q / np.sqrt(len(q))) @ v + 1e-4, "the numbers differ"),
    (lambda q, k, v: softmax(-k @ q / np.sqrt(len(q))) @ v, "the numbers differ"),
    (lambda q, k, v: softmax(((k - q) ** 2).sum(1)) @ v, "the numbers differ"),
    (lambda q, k, v: v.sum(0), "the numbers differ"),
    (lambda q, k, v: softmax(k @ q / np.sqrt(len(q))), "out has the wrong shape"),
    (lambda q, k, v: (softmax(k @ q / np.sqrt(len(q))) @ v)[None], "out has the wrong shape"),
    (lambda q, k, v: float(v.mean()), "out is a float, expected a NumPy array"),
    (lambda q, k, v: torch.from_numpy(v[0]), "out is a Tensor, expected a NumPy array"),
    (lambda q, k, v: (softmax(k @ q / np.sqrt(len(q))) @ v).astype("f4"), "out has type float32"),
    (lambda q, k, v: np.array(["a"]), "out has type <U1, expected float64"),
    (lambda q, k, v: v[0].astype(">f4"), "out has type float32, expected float64"),
    (lambda q, k, v: one_query_loops(q, k, v).squeeze(), "out has the wrong shape"),
    (lambda q, k, v: np.ma.array(one_query_loops(q, k, v)), "out is a MaskedArray, expected a plain NumPy array"),
    (lambda q, k, v: np.asmatrix(one_query_loops(q, k, v)), "out is a matrix, expected a plain NumPy array"),
]


def batch_loops(q, k, v):
    rows = [
        [(torch.stack([x @ y for y in k[b]]) / math.sqrt(q.shape[-1])).softmax(0) @ v[b] for x in q[b]]
        for b in range(len(q))
    ]
    return torch.stack([torch.stack(row) for row in rows])


def batch_einsum(q, k, v):
    weights = torch.einsum("btd,bsd->bts", q, k).div(q.size(-1) ** 0.5).softmax(-1)
    return torch.einsum("bts,bse->bte", weights, v)


BATCH_RIGHT = [
    batch_loops,
    batch_einsum,
    F.scaled_dot_product_attention,
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1 / math.sqrt(k.size(2))),
    lambda q, k, v: torch.bmm(F.softmax(torch.bmm(q, k.mT) * q.shape[2] ** -0.5, dim=2), v),
    lambda q, k, v: (k @ q.mT / q.shape[2] ** 0.5).softmax(1).mT @ v,
    lambda q, k, v: torch.baddbmm(torch.zeros(1, dtype=q.dtype), (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1), v),
]


def attend(q, k, v, scale=None, dim=-1):
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return F.softmax(q @ k.transpose(1, 2) * scale, dim=dim) @ v


def across(q, k, v):
    B, T, D = q.shape
    return attend(q.reshape(1, B * T, D), k.reshape(1, -1, D), v.reshape(1, -1, v.shape[2])).view(B, T, -1)


CALLS = itertools.count()
BATCH_WRONG = [
    (lambda q, k, v: attend(q, k, v, 1), "the scores are not scaled"),
    (lambda q, k, v: attend(q, k, v, 1 / q.shape[-1]), "the scores are divided by D,"),
    (lambda q, k, v: attend(q, k, v, q.shape[-1] ** 0.5), "the scores are multiplied"),
    (
        lambda q, k, v: attend(q, k, v, k.shape[1] ** -0.5),
        "the scores are divided by the square root of the number",
    ),
    (
        lambda q, k, v: attend(q, k, v, v.shape[2] ** -0.5),
        "the scores are divided by the square root of Dv",
    ),
    (
        lambda q, k, v: attend(q, k, v, q.shape[1] ** -0.5),
        "the scores are divided by the square root of T, the number of queries",
    ),
    (lambda q, k, v: attend(q, k, v, 4**-0.5), "the scores are divided by 2, the square root of 4, whatever D"),
    (lambda q, k, v: attend(q, k, v, 1 / 4), "the scores are divided by 4, whatever D"),
    (lambda q, k, v: attend(q, k, v, 2**-0.5), "the scores are divided by the square root of 2, whatever D"),
    (lambda q, k, v: attend(q, k, v, 1 / 8), "the scores are divided by 8, the square root of 64, whatever D"),
    (lambda q, k, v: (q @ k.mT).softmax(-1) / q.shape[-1] ** 0.5 @ v, "the division by the square root of D comes"),
    (lambda q, k, v: attend(q, k, v, 1) / q.shape[-1] ** 0.5, "the division by the square root of D comes after"),
    (lambda q, k, v: q @ k.mT / q.shape[-1] ** 0.5 @ v, "the softmax is missing"),
    (lambda q, k, v: F.normalize(q @ k.mT, p=1, dim=-1) @ v, "the numbers differ"),
    (
        lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).exp() @ v,
        "the weights of a query do not sum",
    ),
    (
        lambda q, k, v: F.one_hot((q @ k.mT).argmax(-1), k.shape[1]).double() @ v,
        "the best key takes all",
    ),
    (
        lambda q, k, v: v.mean(1, keepdim=True).expand(-1, q.shape[1], -1),
        "every value counts alike",
    ),
    (lambda q, k, v: attend(q, k, v, dim=1), "the softmax runs over the queries"),
    (lambda q, k, v: attend(q, k, v, dim=0), "the softmax runs over the batch"),
    (lambda q, k, v: attend(q, k, v, dim=None), "the softmax runs over the batch"),  # old default
    (
        lambda q, k, v: (q @ k.view(k.shape[0], k.shape[2], -1) / q.shape[-1] ** 0.5).softmax(-1) @ v,
        "the keys are reshaped",
    ),
    (across, "queries attend to the keys of every sample"),
    (
        lambda q, k, v: attend(q, k[:1], v[:1]),
        "every sample attends to the keys and values of the first",
    ),
    (lambda q, k, v: (k @ q.mT / q.shape[-1] ** 0.5).softmax(-1) @ v, "the scores are transposed"),
    # not named
    (lambda q, k, v: attend(q, k, v) + 1e-4, "the numbers differ"),
    (lambda q, k, v: attend(q, k[:1].expand_as(k), v), "every sample attends to the keys of the first sample"),
    (lambda q, k, v: attend(q, k, v).relu(), "the numbers differ"),
    (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), "the numbers differ"),
    (lambda q, k, v: F.dropout(attend(q, k, v), 0.1), "each call gives another result"),
    (lambda q, k, v: attend(q, k, v) + next(CALLS), "each call gives another result"),
    (
        lambda q, k, v: attend(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, 1),
        "cosines are taken",
    ),
    (lambda q, k, v: q @ k @ v, "it raises RuntimeError: Expected size"),
    (lambda q, k, v: attend(q, k, v).mT, "out has the wrong shape"),
    (lambda q, k, v: attend(q, k, v)[0], "out has the wrong shape"),
    (lambda q, k, v: attend(q, k, v).squeeze(), "out has the wrong shape"),
    (lambda q, k, v: attend(q, k, v).squeeze(0), "out has the wrong shape"),
    (lambda q, k, v: attend(q, k, v).squeeze(1), "out has the wrong shape"),
    (lambda q, k, v: attend(q, k, v).sum(), "out has the wrong shape"),
    (lambda q, k, v: (attend(q, k, v), q), "it returns a tuple of 2 instead of one tensor"),
    (lambda q, k, v: attend(q, k, v).numpy(), "out is a NumPy array, expected a tensor"),
    (lambda q, k, v: attend(q.float(), k.float(), v.float()), "out has type float32"),
    (lambda q, k, v: None, "it returns None"),
    (lambda q, k, v: attend(q, k, v).to("meta"), "it raises NotImplementedError: Cannot copy out"),
]


@pytest.mark.parametrize("fn", ONE_RIGHT)
def test_right_for_one_query(fn):
    assert check("one_query", fn).fault is None


@pytest.mark.parametrize(("fn", "fault"), ONE_WRONG)
def test_wrong_for_one_query(fn, fault):
    verdict = check("one_query", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


@pytest.mark.parametrize("fn", BATCH_RIGHT)
def test_right_for_a_batch(fn):
    assert check("batched_attention", fn).fault is None


@pytest.mark.parametrize(("fn", "fault"), BATCH_WRONG)
def test_wrong_for_a_batch(fn, fault):
    verdict = check("batched_attention", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_shapes_are_given_in_letters():
    verdict = check("batched_attention", lambda q, k, v: attend(q, k, v).mT)
    assert verdict.evidence.startswith("shape (B, Dv, T) = (2, 11, 3), expected (B, T, Dv) = (2, 3, 11)")
    verdict = check("batched_attention", lambda q, k, v: attend(q, k, v).flatten(0, 1))
    assert verdict.evidence.startswith("shape (6, Dv) = (6, 11), expected (B, T, Dv) = (2, 3, 11)")
    verdict = check("batched_attention", lambda q, k, v: attend(q, k, v).sum())
    assert verdict.evidence.startswith("shape (), a single number, expected (B, T, Dv)")
    verdict = check("batched_attention", lambda q, k, v: attend(q, k, v).squeeze(1))
    assert verdict.evidence == (
        "shape (1, Dv) = (1, 3), expected (B, T, Dv) = (1, 1, 3), case 4 (B, T, S, D, Dv = 1, 1, 5, 7, 3)"
    )
    assert "squeeze() takes all of them away" in verdict.hints[1]
    verdict = check("one_query", lambda q, k, v: q)
    assert verdict.evidence.startswith("shape (D,) = (7,), expected (Dv,) = (11,)")


def test_a_hint_names_the_letters_of_its_exercise_and_the_case_that_hides_a_fault():
    shape = check("one_query", lambda q, keys, values: q).hints[0]
    assert (
        shape == "Print the shape after each line, with S, D and Dv all different, and find the first that surprises."
    )
    assert "with B, T, S, D and Dv all different" in check("batched_attention", lambda q, k, v: q).hints[0]
    turned = check("one_query", lambda q, k, v: softmax(q @ k / np.sqrt(len(q))) @ v).hints[0]
    assert "Case 2 hides the fault: there both have, as S = D." in turned
    cases = engine._TASKS["one_query"].cases()
    assert [case.sizes["S"] == case.sizes["D"] for case in cases] == [False, True, False, False]


@pytest.mark.parametrize("name", ["one_query", "batched_attention", "weights_and_output"])
def test_hints_need_no_later_lesson_and_fit_the_fault(name):
    variations = {v.fault: " ".join(v.hints) for v in engine._TASKS[name].variations}
    for fault, said in variations.items():
        assert "deviation" not in said
        assert "last case" not in said
        if fault.startswith("the scores are divided by"):
            assert "the square root of D, the width of the queries and keys" in said
    assert "divided by" not in variations["the scores are not scaled"].partition(".")[0]
    assert "negative" not in variations["the weights of a query do not sum to 1, the division is missing"]
    assert "Sum" not in variations["the exponential is missing, scores are divided by their sum"]
