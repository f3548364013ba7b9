"""Right and wrong solutions of notebook 02: scores from angles, and weights beside the output."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mha_course.checks import check


def angles_loops(q_length, q_angle, key_lengths, key_angles):
    scores = [
        q_length * n * math.cos(math.radians(q_angle - a))
        for n, a in zip(key_lengths.tolist(), key_angles.tolist(), strict=True)
    ]
    powers = [math.exp(score) for score in scores]
    weights = [power / sum(powers) for power in powers]
    return torch.tensor(scores, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)


def angles_vectors(q_length, q_angle, key_lengths, key_angles):
    a, b = math.radians(q_angle), torch.deg2rad(key_angles)
    q = q_length * torch.tensor([math.cos(a), math.sin(a)], dtype=torch.float64)
    keys = key_lengths[:, None] * torch.stack([b.cos(), b.sin()], dim=1)
    return keys @ q, (keys @ q).softmax(0)


def angles_float32_query(q_length, q_angle, key_lengths, key_angles):
    between = torch.deg2rad(torch.tensor(q_angle)) - key_angles * torch.pi / 180
    scores = torch.tensor(q_length) * key_lengths * torch.cos(between)
    return [scores, F.softmax(scores, dim=-1)]


ANGLES_RIGHT = [angles_loops, angles_vectors, angles_float32_query]


def angles(score, weigh=lambda s: s.softmax(0)):
    def fn(*inputs):
        scores = score(*inputs)
        return scores, weigh(scores)

    return fn


def score(n, a, m, b):
    return n * m * torch.cos(torch.deg2rad(b - a))


ANGLES_WRONG = [
    (angles(lambda n, a, m, b: n * m * torch.cos(b - a)), "the angles are used as radians"),
    (
        angles(lambda n, a, m, b: n * m * np.cos(np.degrees(b - a))),
        "the angles are converted from radians",
    ),
    (angles(lambda n, a, m, b: n * m * torch.cos(torch.deg2rad(b) - a)), "the angle of the query is left in degrees"),
    (
        angles(lambda n, a, m, b: n * m * torch.cos(math.radians(a) - b)),
        "the angles of the keys are left in degrees",
    ),
    (angles(lambda n, a, m, b: torch.cos(torch.deg2rad(b - a))), "the scores are cosines"),
    (angles(lambda n, a, m, b: m * torch.cos(torch.deg2rad(b - a))), "the length of the query"),
    (angles(lambda n, a, m, b: n * torch.cos(torch.deg2rad(b - a))), "the lengths of the keys"),
    (
        angles(lambda n, a, m, b: n * m * torch.cos(torch.deg2rad(b))),
        "the angle of the key is used",
    ),
    (angles(lambda n, a, m, b: n * m * torch.cos(torch.deg2rad(b + a))), "the angles are added"),
    (angles(lambda n, a, m, b: n * m * torch.sin(torch.deg2rad(b - a))), "the sine is taken"),
    (angles(lambda n, a, m, b: n * m * torch.sin(torch.deg2rad(a - b))), "the sine is taken"),
    (angles(score, torch.exp), "the weights do not sum to 1"),
    (angles(score, lambda s: s / s.sum()), "the exponential is missing"),
    (angles(score, lambda s: s), "the softmax is missing"),
    (
        angles(score, lambda s: (s / math.sqrt(2)).softmax(0)),
        "the weights are the softmax of the scores divided",
    ),
    (angles(lambda *x: score(*x) / math.sqrt(2)), "the scores are divided by the square root of 2"),
    (lambda *x: angles(score)(*x)[::-1], "the two results are in the wrong order"),
    # not named
    (angles(score, lambda s: (s * 2).softmax(0)), "the numbers differ"),
    (angles(lambda n, a, m, b: score(n, a, m, b).abs()), "the numbers differ"),
    (angles(lambda n, a, m, b: n * m * torch.tan(torch.deg2rad(b - a))), "the numbers differ"),
    (angles(score, lambda s: F.one_hot(s.argmax(), len(s)).double()), "the numbers differ"),
    (lambda n, a, m, b: score(n, a, m, b), "it returns one Tensor instead of 2 results"),
    (lambda n, a, m, b: (m, m, m), "it returns a tuple of 3, expected 2"),
    (lambda n, a, m, b: n * m * torch.cos(a), "it raises TypeError: cos()"),
    (lambda n, a, m, b: (m.numpy(), b), "scores is a NumPy array, expected a tensor"),
    (lambda *x: tuple(part.squeeze() for part in angles(score)(*x)), "scores has the wrong shape"),
    (lambda n, a, m, b: (m, 1.0), "weights is a float, expected a tensor"),
    (lambda n, a, m, b: (score(n, a, m, b).float(), m), "scores has type float32"),
    (lambda n, a, m, b: (score(n, a, m, b), m.sum()), "weights has the wrong shape"),
]


def both(q, k, v, scale=None, dim=-1):
    weights = (q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)).softmax(dim)
    return weights, weights @ v


def loops(q, k, v):
    weights = q.new_zeros(len(q), q.shape[1], k.shape[1])
    for b in range(len(q)):
        for t in range(q.shape[1]):
            weights[b, t] = (k[b] @ q[b, t] / math.sqrt(q.shape[2])).softmax(0)
    return weights, (weights[..., None] * v[:, None]).sum(2)


def sdpa(q, k, v):
    one_hot = torch.eye(k.shape[1], dtype=q.dtype).expand(len(k), -1, -1)
    attend = F.scaled_dot_product_attention
    return attend(q, k, one_hot), attend(q, k, v, scale=1 / math.sqrt(q.shape[-1]))


BOTH_RIGHT = [
    both,
    loops,
    sdpa,
    lambda q, k, v: list(both(q, k, v)),
    lambda q, k, v: both(q / q.shape[-1] ** 0.25, k / k.shape[-1] ** 0.25, v, 1),
]


def scores(q, k):
    return torch.bmm(q, k.mT) / math.sqrt(q.shape[-1])


def transposed(q, k, v):
    weights = (torch.bmm(k, q.mT) / math.sqrt(q.shape[-1])).softmax(-1)
    return weights, torch.bmm(weights, v)


def turned(q, k, v):
    weights = scores(q, k).softmax(-1).mT
    return weights, weights @ v


def late(q, k, v):
    weights = torch.bmm(q, k.mT).softmax(-1) / math.sqrt(q.shape[-1])
    return weights, weights @ v


BOTH_WRONG = [
    (transposed, "the scores are transposed"),
    (lambda q, k, v: (both(q, k, v)[0].mT, both(q, k, v)[1]), "the weights are transposed"),
    (turned, "the weights are transposed"),
    (lambda q, k, v: both(q, k, v, 1), "the scores are not scaled"),
    (lambda q, k, v: both(q, k, v, 1 / q.shape[-1]), "the scores are divided by D,"),
    (
        lambda q, k, v: both(q, k, v, v.shape[-1] ** -0.5),
        "the scores are divided by the square root of Dv",
    ),
    (
        lambda q, k, v: both(q, k, v, k.shape[1] ** -0.5),
        "the scores are divided by the square root of the number",
    ),
    (lambda q, k, v: both(q, k, v, q.shape[1] ** -0.5), "the scores are divided by the square root of T"),
    (lambda q, k, v: both(q, k, v, 4**-0.5), "the scores are divided by 2, the square root of 4, whatever D"),
    (lambda q, k, v: both(q, k, v, 1 / 4), "the scores are divided by 4, whatever D"),
    (lambda q, k, v: both(q, k, v, 2**-0.5), "the scores are divided by the square root of 2, whatever D"),
    (late, "the division by the square root of D comes after the softmax"),
    (
        lambda q, k, v: (both(q, k, v, 1)[0], both(q, k, v, 1)[1] / q.shape[-1] ** 0.5),
        "the output is divided by the square root of D",
    ),
    (lambda q, k, v: both(q, k, v, dim=1), "the softmax runs over the queries"),
    (lambda q, k, v: both(q, k, v, dim=0), "the softmax runs over the batch"),
    (lambda q, k, v: (scores(q, k), scores(q, k) @ v), "the softmax is missing"),
    (lambda q, k, v: (scores(q, k), both(q, k, v)[1]), "the scores are returned in place of"),
    (
        lambda q, k, v: (both(q, k, v)[0], scores(q, k) @ v),
        "the weights are right, but the output is the scores",
    ),
    (
        lambda q, k, v: (both(q, k, v)[0], v.mean(1, keepdim=True).repeat(1, q.shape[1], 1)),
        "the weights are right, but the output is the mean",
    ),
    (
        lambda q, k, v: (both(q, k, v)[0], both(q, k, v)[0].mT @ v),
        "the weights are right, but transposed",
    ),
    (lambda q, k, v: both(q, k, v)[::-1], "the two results are in the wrong order"),
    (lambda q, k, v: both(q, k.reshape(len(k), k.shape[2], -1).mT, v), "the keys are reshaped"),
    (lambda q, k, v: both(q, k[:1].expand_as(k), v[:1].expand_as(v)), "every sample attends"),
    # not named
    (lambda q, k, v: (both(q, k, v)[0], both(q, k, v)[1] + 1e-4), "the numbers differ"),
    (lambda q, k, v: (both(q, k, v)[0], both(q, k, v, 1)[1]), "the numbers differ"),
    (lambda q, k, v: both(q, k, v)[1], "it returns one Tensor instead of 2 results"),
    (lambda q, k, v: (both(q, k, v)[0], both(q, k, v)[1].squeeze()), "out has the wrong shape"),
    (lambda q, k, v: (both(q, k, v)[0].squeeze(1), both(q, k, v)[1]), "weights has the wrong shape"),
    (lambda q, k, v: (both(q, k, v)[0], q), "out has the wrong shape"),
    (lambda q, k, v: (both(q, k, v)[0], None), "out is a NoneType, expected a tensor"),
    (lambda q, k, v: {"weights": q}, "it returns one dict instead of 2 results"),
]


@pytest.mark.parametrize("fn", ANGLES_RIGHT)
def test_right_angles(fn):
    assert check("angles", fn).fault is None


@pytest.mark.parametrize(("fn", "fault"), ANGLES_WRONG)
def test_wrong_angles(fn, fault):
    verdict = check("angles", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


@pytest.mark.parametrize("fn", BOTH_RIGHT)
def test_right_weights_and_output(fn):
    assert check("weights_and_output", fn).fault is None


@pytest.mark.parametrize(("fn", "fault"), BOTH_WRONG)
def test_wrong_weights_and_output(fn, fault):
    verdict = check("weights_and_output", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_hints_fit_a_scale_that_should_not_be_there():
    """Softmax of scores over the square root of 2 has no negative weights to look for."""
    for fn in (angles(score, lambda s: (s / 2**0.5).softmax(0)), angles(lambda *x: score(*x) / 2**0.5)):
        verdict = check("angles", fn)
        assert "negative" not in verdict.hints[0]
        assert "no scale in this exercise" in verdict.hints[1]
    assert check("angles", lambda *x: (score(*x), score(*x).sum())).hints == (
        "Print the shape after each line, and find the first that surprises.",
        "Return one score and one weight for each key.",
    )
