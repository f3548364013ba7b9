"""Right and wrong solutions of notebook 03: spread of scores, scaled scores, growth with the width."""

import itertools
import math

import numpy as np
import pytest
import torch

from mha_course.checks import check


def spread(d_model, d_k, w_std):
    return d_model * w_std**2 * math.sqrt(d_k), d_model * w_std**2


def spread_step_by_step(d_model, d_k, w_std):
    entry = (torch.tensor(d_model).double() * w_std.square()).sqrt()
    variance = d_k * entry**4
    return [variance.sqrt(), (variance / d_k).sqrt()]


def spread_in_numpy(d_model, d_k, w_std):
    after = np.array([d_model * std.item() ** 2 for std in w_std])
    return torch.from_numpy(after * d_k**0.5), torch.from_numpy(after)


SPREAD_RIGHT = [spread, spread_step_by_step, spread_in_numpy]

SPREAD_WRONG = [
    (lambda m, d, w: (d * m**2 * w**4, m**2 * w**4), "the results are variances"),
    (lambda m, d, w: (math.sqrt(d) * w**2, w**2), "d_model is left out"),
    (lambda m, d, w: (math.sqrt(d) * m**2 * w**2, m**2 * w**2), "an entry of q is given d_model times"),
    (lambda m, d, w: (math.sqrt(d) * m * w, m * w), "w_std is used as a variance"),
    (lambda m, d, w: (math.sqrt(d * m) * w, math.sqrt(m) * w), "only one of the two projections"),
    (lambda m, d, w: (d * m * w**2, math.sqrt(d) * m * w**2), "the standard deviations of d_k products"),
    (lambda m, d, w: (m * w**2, m * w**2 / math.sqrt(d)), "q.k is not summed"),
    (lambda m, d, w: (math.sqrt(d) * m * w**2, m * w**2 / math.sqrt(d)), "the scores are divided by d_k, not"),
    (
        lambda m, d, w: (math.sqrt(d) * m * w**2, math.sqrt(d * m) * w**2),
        "the scores are divided by the square root of d_m",
    ),
    (lambda m, d, w: (math.sqrt(d) * m * w**2, torch.ones_like(w)), "the scaled spread is 1 whatever"),
    (lambda m, d, w: (torch.tensor([d**0.5] * len(w)).double(), w / w), "w_std is left out"),
    (lambda m, d, w: (math.sqrt(d * m) * w**2, math.sqrt(m) * w**2), "d_model counts once"),
    (lambda m, d, w: (math.sqrt(m) * d * w**2, d * w**2), "d_model and d_k have changed places"),
    (lambda m, d, w: (math.sqrt(d) * m * w**2, math.sqrt(d) * m * w**2 / 8), "the scores are divided by 8"),
    (lambda *x: (spread(*x)[0], spread(*x)[0]), "the second result is not divided"),
    (lambda m, d, w: (math.sqrt(d) * m * w**2, d * m * w**2), "the scaled score is multiplied"),
    (lambda m, d, w: (d * (m * w**2) ** 2, m * w**2), "q.k is given its variance"),
    (lambda m, d, w: (math.sqrt(d) * m * w**2, (m * w**2) ** 2), "the scaled score is given its variance"),
    (lambda m, d, w: (d**1 / 2 * m * w**2, d**1 / 2 * m * w**2 / d**0.5), "half of d_k is taken"),
    (lambda *x: spread(*x)[::-1], "the two results are in the wrong order"),
    (lambda m, d, w: (math.sqrt(d) * m * w**2, 3 * m * w**2), "the numbers differ"),
    (lambda m, d, w: spread(m, d, w)[0], "it returns one Tensor instead of 2 results"),
    (lambda m, d, w: (math.sqrt(d), 1.0), "before is a float, expected a tensor"),
    (lambda m, d, w: tuple(x.mean() for x in spread(m, d, w)), "before has the wrong shape"),
]


def scores(q, k, factor=None):
    return q @ k.mT * (q.shape[-1] ** -0.5 if factor is None else factor)


def in_loops(q, k):
    out = q.new_zeros(len(q), q.shape[1], k.shape[1])
    for b, t, s in np.ndindex(*out.shape):
        out[b, t, s] = q[b, t].dot(k[b, s]) / math.sqrt(q.shape[2])
    return out


def in_place(q, k):
    q /= q.shape[-1] ** 0.5
    return q @ k.mT


SCORES_RIGHT = [
    scores,
    in_loops,
    lambda q, k: torch.einsum("btd,bsd->bts", q, k) / torch.tensor(k.size(-1)).sqrt(),
    lambda q, k: torch.bmm(q / q.shape[-1] ** 0.25, (k / k.shape[-1] ** 0.25).transpose(1, 2)),
]

SCORES_WRONG = [
    (lambda q, k: scores(q, k, 1), "the scores are not scaled"),
    (lambda q, k: scores(q, k, 1 / q.shape[-1]), "the scores are divided by D, not"),
    (lambda q, k: scores(q / q.shape[-1] ** 0.5, k), "the scores are divided by D, not"),
    (lambda q, k: scores(q, k, q.shape[-1] ** 0.5), "the scores are multiplied by"),
    (lambda q, k: scores(q, k, k.shape[1] ** -0.5), "the scores are divided by the square root of the number"),
    (lambda q, k: scores(q, k, q.shape[1] ** -0.5), "the scores are divided by the square root of T"),
    (lambda q, k: scores(q, k, 0.125), "the scores are divided by 8"),
    (lambda q, k: scores(q, k, 0.25), "the scores are divided by 4"),
    (lambda q, k: scores(q, k, 0.5), "the scores are divided by 2, the square root of 4"),
    (lambda q, k: scores(q, k, 2**-0.5), "the scores are divided by the square root of 2"),
    (lambda q, k: scores(k, q), "the scores are transposed"),
    (lambda q, k: scores(q, k).mT, "the scores are transposed"),
    (lambda q, k: scores(q, k.reshape(len(k), k.shape[2], -1).mT), "the keys are reshaped"),
    (lambda q, k: scores(q, k).softmax(-1), "the softmax is taken too"),
    (lambda q, k: scores(q, k).softmax(1), "the softmax is taken too"),
    (lambda q, k: scores(q, k).softmax(0), "the softmax is taken too"),
    (lambda q, k: (q @ k.mT).softmax(-1) / q.shape[-1] ** 0.5, "the softmax is taken before the division"),
    (lambda q, k: torch.cosine_similarity(q[:, :, None], k[:, None], -1), "the scores are cosines"),
    (lambda q, k: (q @ k.mT) / (q @ k.mT).std(-1, keepdim=True), "each row is divided by its own"),
    (lambda q, k: (q @ k.mT).softmax(-1), "the softmax is taken, and the scale is missing"),
    (lambda q, k: q @ k.mT / (q.shape[-1] ** 1 / 2), "the scores are divided by D / 2"),
    (lambda q, k: q @ k.mT / len(q) ** 0.5, "the scores are divided by the square root of B"),
    (lambda q, k: (q @ k.mT) / (q @ k.mT).std(), "all scores are divided by their standard"),
    (in_place, "it changes its input q in place"),
    (lambda q, k: scores(q, k) + 1e-4, "the numbers differ"),
    (lambda q, k: scores(q, k).squeeze(), "scores has the wrong shape"),
    (lambda q, k: (scores(q, k), q), "it returns a tuple of 2 instead of one tensor"),
]


def growth(widths, spreads):
    return (spreads[:, -1] / spreads[:, 0]).log() / (widths[-1] / widths[0]).log()


def growth_by_least_squares(widths, spreads):
    x, y = widths.log2(), spreads.log2()
    x = x - x.mean()
    return (y * x).sum(1) / x.square().sum()


def two_bases(widths, spreads, run, rise):
    return rise(spreads[:, -1] / spreads[:, 0]) / run(widths[-1] / widths[0])


def growth_by_polyfit(widths, spreads):
    return torch.tensor([np.polyfit(np.log(widths), np.log(one), 1)[0] for one in spreads.numpy()])


GROWTH_RIGHT = [
    growth,
    growth_by_least_squares,
    growth_by_polyfit,
    lambda x, y: (y.log().diff(dim=1) / x.log().diff()).mean(1),
    lambda x, y: torch.linalg.lstsq(torch.stack([x.log(), x**0], 1), y.log().T).solution[0],
]

GROWTH_WRONG = [
    (lambda x, y: (y[:, -1] - y[:, 0]) / (x[-1] - x[0]), "the slope is taken on linear axes"),
    (lambda x, y: (y[:, -1] / y[:, 0]).log() / (x[-1] - x[0]), "the widths are not on a log axis"),
    (lambda x, y: (y[:, -1] - y[:, 0]) / (x[-1] / x[0]).log(), "the spreads are not on a log axis"),
    (lambda x, y: 1 / growth(x, y), "the slope is upside down"),
    (lambda x, y: growth(x, y**2), "the growth of the variance"),
    (lambda x, y: growth(x, y) * (x[-1] / x[0]).log(), "the change of the width is left out"),
    (lambda x, y: y[:, -1].log() / x[-1].log(), "the ratio of the logarithms"),
    (lambda x, y: y.log().diff(dim=1) / x.log().diff(), "the exponents are for steps"),
    (lambda x, y: torch.tensor([np.polyfit(np.log(x), np.log(one), 1)[1] for one in y.numpy()]), "the intercept"),
    (lambda x, y: (y.log() @ x.log()) / (x.log() @ x.log()), "the line is forced"),
    (lambda x, y: torch.tensor([np.polyfit(x, one, 1)[0] for one in y.numpy()]), "the slope is taken on linear"),
    (lambda x, y: torch.tensor([np.polyfit(x, np.log(one), 1)[0] for one in y.numpy()]), "the widths are not on"),
    (lambda x, y: torch.tensor([np.polyfit(np.log(x), one, 1)[0] for one in y.numpy()]), "the spreads are not on"),
    (lambda x, y: (y[:, 1] / y[:, 0]).log2(), "the numbers differ"),
    (lambda x, y: y.log2().diff(dim=1).mean(1), "the numbers differ"),
    *(
        (lambda x, y, run=run, rise=rise: two_bases(x, y, run, rise), "the logarithms have different bases")
        for run, rise in itertools.permutations((torch.log, torch.log2, torch.log10), 2)
    ),
    (lambda x, y: growth(x, y).round(decimals=2), "the numbers differ"),
    (lambda x, y: growth(x, y) + 0.01, "the numbers differ"),
    (lambda x, y: growth(x, y).argmax(), "exponents has type int64"),
    (lambda x, y: growth(x, y)[0], "exponents has the wrong shape"),
]

RIGHT = [
    *(("score_std", fn) for fn in SPREAD_RIGHT),
    *(("scaled_scores", fn) for fn in SCORES_RIGHT),
    *(("growth_exponents", fn) for fn in GROWTH_RIGHT),
]
WRONG = [
    *(("score_std", *pair) for pair in SPREAD_WRONG),
    *(("scaled_scores", *pair) for pair in SCORES_WRONG),
    *(("growth_exponents", *pair) for pair in GROWTH_WRONG),
]


def test_a_named_fault_says_what_was_infinite():
    verdict = check("growth_exponents", lambda x, y: 1 / growth(x, y))
    assert verdict.evidence.startswith("exponents holds infinity, 2 of 3 numbers")


def test_a_hint_names_no_step_that_the_exercise_does_not_have():
    verdict = check("scaled_scores", lambda q, k: q @ k.mT)
    assert verdict.hints[0] == "Look at what happens to the dot products: a step is missing there."


@pytest.mark.parametrize(("name", "fn"), RIGHT)
def test_right(name, fn):
    verdict = check(name, fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(("name", "fn", "fault"), WRONG)
def test_wrong(name, fn, fault):
    verdict = check(name, fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2
