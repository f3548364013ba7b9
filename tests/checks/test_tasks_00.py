"""Right and wrong softmax functions as learners write them."""

import math
import re

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mha_course.checks import check, engine


def loops(scores):
    out = torch.empty_like(scores)
    for t, row in enumerate(scores):
        largest = max(row.tolist())
        powers = [np.exp(x - largest) for x in row.tolist()]
        for s, power in enumerate(powers):
            out[t, s] = power / sum(powers)
    return out


def shifted(scores):
    powers = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
    return powers / powers.sum(dim=1, keepdim=True)


RIGHT = [
    loops,
    shifted,
    lambda x: F.softmax(x, dim=-1),
    lambda x: torch.exp(x - x.logsumexp(1, keepdim=True)),
    lambda x: F.log_softmax(x, 1).exp(),
    lambda x: x.T.softmax(0).T,
    lambda x: torch.stack([row.softmax(0) for row in x]),
    lambda x: torch.from_numpy(np.exp(x.numpy() - np.logaddexp.reduce(x.numpy(), 1)[:, None])),
    lambda x: x.clone().requires_grad_().softmax(1),
]


def exps(x, base=math.e):
    return base ** (x - x.amax(1, keepdim=True))


WRONG = [
    (lambda x: F.softmax(x, dim=0), "each column sums to 1, not each row"),
    (lambda x: x.exp() / x.exp().sum(0), "each column sums to 1, not each row"),
    (lambda x: x.T.softmax(1).T, "each column sums to 1, not each row"),
    (lambda x: x.exp() / x.exp().sum(), "the softmax runs over the whole matrix"),
    (lambda x: x.view(-1).softmax(0).view_as(x), "the softmax runs over the whole matrix"),
    (lambda x: x.exp() / x.exp().sum(1, keepdim=True), "large scores overflow"),
    (lambda x: (x - x.max()).exp() / (x - x.max()).exp().sum(1, keepdim=True), "the largest score"),
    (lambda x: x / x.sum(-1, keepdim=True), "the exponential is missing"),
    (lambda x: (x - x.max(-1, keepdim=True)[0]).exp(), "the weights of a row do not sum to 1"),
    (lambda x: x.exp(), "the weights of a row do not sum to 1"),
    (lambda x: (x - x.max()).exp(), "the weights of a row do not sum to 1"),
    (lambda x: exps(x) / exps(x).sum(), "each row is divided by the sum of the whole matrix"),
    (lambda x: exps(x) / exps(x).sum(0), "each column sums to 1, not each row"),
    (lambda x: (x - x.amax(0)).exp() / (x - x.amax(0)).exp().sum(1, keepdim=True), "the largest score of each column"),
    (lambda x: 2**x / (2**x).sum(1, keepdim=True), "powers of 2 are taken"),
    (lambda x: exps(x, 2) / exps(x, 2).sum(1, keepdim=True), "powers of 2 are taken"),
    (lambda x: x.log_softmax(-1), "the result is the logarithm"),
    # not named
    (lambda x: x.softmax(1) + 1e-5, "the numbers differ"),
    (lambda x: 2 ** (x - x.amax(1, keepdim=True)), "the numbers differ"),
    (lambda x: torch.ones_like(x) / x.shape[1], "the numbers differ"),
    (lambda x: (2 * x).softmax(1), "the numbers differ"),
    (lambda x: torch.sigmoid(x), "the numbers differ"),
    (lambda x: torch.rand_like(x), "the numbers differ"),
    (lambda x: x.abs().exp() / x.abs().exp().sum(1, keepdim=True), "the numbers differ"),
    (lambda x: x.exp() / x.exp().sum(1), "it raises RuntimeError: The size of tensor a"),
    (lambda x: x.softmax(1).T, "weights has the wrong shape"),
    (lambda x: x.softmax(1).sum(1), "weights has the wrong shape"),
    (lambda x: x.float().softmax(1), "weights has type float32, expected float64"),
    (lambda x: x.softmax(1).numpy(), "weights is a NumPy array, expected a tensor"),
    (lambda x: x.softmax(1).tolist(), "it returns a list of 3 instead of one tensor"),
    (lambda x: (x.softmax(1),), "it returns a tuple of 1 instead of one tensor"),
    (lambda x: print(end=""), "it returns None, perhaps the return is missing"),
    (lambda x: x.softmax(1) * torch.inf, "weights holds infinity"),
    (lambda x: x.log().softmax(1), "weights holds NaN"),
]


@pytest.mark.parametrize("fn", RIGHT)
def test_right(fn):
    assert check("softmax", fn).fault is None


@pytest.mark.parametrize(("fn", "fault"), WRONG)
def test_wrong(fn, fault):
    verdict = check("softmax", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert not verdict.ok
    assert len(verdict.hints) == 2


def test_numbers_around_1000_are_named():
    seen = check("softmax", lambda x: x.exp() / x.exp().sum(1, keepdim=True)).evidence
    assert seen == (
        "10 of 15 numbers, the first at row 0, column 0 (counted from 0), "
        "case 4 (rows, columns = 3, 5; scores around 1000 and -1000)"
    )


def test_queries_and_keys_are_not_known_yet():
    """Notebook 00 comes before the words and letters of attention."""
    task = engine._TASKS["softmax"]
    fns = [v.fn for v in task.variations] + [fn for fn, _ in WRONG]
    said = [*task.hints, *(repr(check("softmax", fn)) for fn in fns)]
    for text in said:
        assert not re.search(r"\b(quer\w+|keys?|T|S)\b", text), text


def test_hints_fit_a_shape():
    assert check("softmax", lambda x: x.softmax(1).sum(1)).hints == (
        "Print the shape after each line, with rows and columns different, and find the first that surprises.",
        "Return one weight for each score: the result has the shape of the scores.",
    )
