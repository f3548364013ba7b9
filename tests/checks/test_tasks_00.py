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
    lambda x: torch.nn.Parameter(x.softmax(1)),
    lambda x: lowered(x, x.logsumexp(1, keepdim=True)),
]


class Lies(torch.Tensor):
    """Its numbers are zeros, and every function gives ones that are right."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return shifted(torch.randn(3, 5, dtype=torch.float64))


def lies(x, says):
    """A plain tensor, with a method of its own."""
    x.detach = lambda: says
    return x


def lowered(x, number):
    powers = (x - number).exp()
    return powers / powers.sum(1, keepdim=True)


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
    (lambda x: lowered(x, x.amin(-1, keepdim=True)), "another number than the row's maximum"),
    (lambda x: lowered(x, x.mean(-1, keepdim=True)), "another number than the row's maximum"),
    (lambda x: lowered(x, x.median(-1, keepdim=True).values), "another number than the row's maximum"),
    (lambda x: lowered(x, (x.amax(1, True) + x.amin(1, True)) / 2), "another number than the row's maximum"),
    (lambda x: lowered(x, x[:, :1]), "another number than the row's maximum"),
    (lambda x: lowered(x, x[:, -1:]), "another number than the row's maximum"),
    (lambda x: 2**x / (2**x).sum(1, keepdim=True), "powers of 2 are taken"),
    (lambda x: exps(x, 2) / exps(x, 2).sum(1, keepdim=True), "powers of 2 are taken"),
    (lambda x: x.log_softmax(-1), "the result is the logarithm"),
    (lambda x: x.clamp(max=700).softmax(1), "large scores are cut off"),
    (lambda x: x.clamp(max=20).softmax(1), "large scores are cut off"),
    (lambda x: x.clamp(-88, 88).softmax(1), "large scores are cut off"),
    (lambda x: torch.ones_like(x) / x.shape[1], "all weights of a row are equal"),
    (lambda x: F.one_hot(x.argmax(1), x.shape[1]).double(), "the largest score takes all"),
    (lambda x: (-x).softmax(1), "the smallest score gets the largest weight"),
    # not named
    (lambda x: lowered(x, x[:, x.shape[1] // 2, None]), "weights holds NaN"),
    (lambda x: x.clamp(-1000, 1000).softmax(1), "the numbers differ"),
    (lambda x: x.clamp(-1000.5, 1000.5).softmax(1), "the numbers differ"),
    (lambda x: lowered(x, 1000), "weights holds NaN"),
    (lambda x: x.softmax(1).squeeze(), "weights has the wrong shape"),
    (lambda x: x.softmax(1).squeeze(0), "weights has the wrong shape"),
    (lambda x: x.softmax(1).squeeze(1), "weights has the wrong shape"),
    (lambda x: x.softmax(1).to_sparse(), "weights is a sparse tensor, expected a dense one"),
    (lambda x: x.softmax(1).to_sparse_csr(), "weights is a sparse tensor, expected a dense one"),
    (lambda x: torch.nested.nested_tensor([x.softmax(1)]), "weights is a nested tensor, expected a dense one"),
    (lambda x: torch.nested.nested_tensor([x], layout=torch.jagged), "weights is a NestedTensor, expected a plain"),
    (lambda x: torch.zeros_like(x).as_subclass(Lies), "weights is a Lies, expected a plain tensor"),
    (lambda x: lies(torch.zeros_like(x), x.softmax(1)), "the numbers differ"),
    (lambda x: x.softmax(1) + 1e-5, "the numbers differ"),
    (lambda x: 2 ** (x - x.amax(1, keepdim=True)), "the numbers differ"),
    (lambda x: (2 * x).softmax(1), "the numbers differ"),
    (lambda x: torch.sigmoid(x), "a sigmoid squashes every score by itself"),
    (lambda x: torch.rand_like(x), "each call gives another result"),
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
        "weights holds NaN, 10 of 15 numbers, the first at row 0, column 0 (counted from 0), "
        "case 4 (rows, columns = 3, 5; scores around 1000 and -1000)"
    )


def test_a_row_that_holds_both_is_named():
    verdict = check("softmax", lambda x: lowered(x, x.mean(1, keepdim=True)))
    assert verdict.evidence == (
        "weights holds NaN, 6 of 15 numbers, the first at row 0, column 0 (counted from 0), "
        "case 5 (rows, columns = 3, 5; scores around 1000 and -1000 in each row)"
    )
    assert "makes the largest score 0" in verdict.hints[1]


def test_large_scores_lie_in_every_column_and_a_row_holds_both():
    x = engine._TASKS["softmax"].cases()[4].inputs[0]
    assert x.dtype == torch.float64
    large, low = x > 990, x < -990
    assert (large | low).all()
    for both in (large, low):
        assert both.any(0).all()
        assert both.any(1).all()


def test_an_axis_that_is_lost_gets_its_own_hints():
    verdict = check("softmax", lambda x: x.softmax(1).squeeze())
    assert (
        verdict.evidence == "shape (columns,) = (5,), expected (rows, columns) = (1, 5), case 6 (rows, columns = 1, 5)"
    )
    assert "squeeze() takes all of them away" in verdict.hints[1]
    assert "squeeze" not in repr(check("softmax", lambda x: x.softmax(1).flatten()))


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
