"""Right and wrong solutions of notebook 05: how far a layer is from equivariance."""

import math

import pytest
import torch
from torch import nn

from mha_course.checks import check


def error(layer, x, order):
    return (layer(x)[:, order] - layer(x[:, order])).abs().max()


def error_after_going_back(layer, x, order):
    back = torch.argsort(order)
    return torch.amax(torch.abs(layer(x[:, order])[:, back] - layer(x)))


def error_by_a_matrix(layer, x, order):
    p = torch.eye(len(order), dtype=x.dtype)[order]
    return torch.linalg.vector_norm(p @ layer(x) - layer(p @ x), math.inf)


def error_by_loops(layer, x, order):
    with torch.no_grad():
        before, after = layer(x), layer(torch.stack([x[:, t] for t in order.tolist()], dim=1))
    worst = 0.0
    for new, old in enumerate(order.tolist()):
        for a, b in zip(before[:, old].flatten().tolist(), after[:, new].flatten().tolist(), strict=True):
            worst = max(worst, abs(a - b))
    return torch.tensor(worst, dtype=torch.float64)


def error_by_writing(layer, x, order):
    back = torch.empty_like(x)
    back[:, order] = layer(x.index_select(1, order))
    return (back - layer(x)).abs().flatten().sort().values[-1]


EQUIVARIANCE_RIGHT = [error, error_after_going_back, error_by_a_matrix, error_by_loops, error_by_writing]


def compared(fn):
    """fn(layer(x)[:, order], layer(x[:, order]))."""
    return lambda layer, x, order: fn(layer(x)[:, order], layer(x[:, order]))


def gap(a, b):
    return (a - b).abs().max()


CONFUSED = "order and its inverse are confused"
SIGN = "the largest difference is taken with its sign"
EQUIVARIANCE_WRONG = [
    (lambda layer, x, order: gap(layer(x)[:, :, order], layer(x[:, :, order])), "the features are put in order"),
    (lambda layer, x, order: gap(layer(x)[order], layer(x[order])), "the samples are put in order"),
    (lambda layer, x, order: gap(layer(x), layer(x[:, order])), "this measures whether the output stays the same"),
    (
        lambda layer, x, order: gap(layer(x)[:, order], layer(x[:, order])[:, order]),
        "this measures whether the output stays the same",
    ),
    (lambda layer, x, order: gap(layer(x)[:, order], layer(x)), "only the output is put in order"),
    (lambda layer, x, order: gap(layer(x)[:, order.argsort()], layer(x[:, order])), CONFUSED),
    (lambda layer, x, order: gap(layer(x[:, order])[:, order], layer(x)), CONFUSED),
    (lambda layer, x, order: gap(layer(x)[:, order], layer(x[:, order.argsort()])), CONFUSED),
    (
        lambda layer, x, order: gap(layer(x)[:, order.argsort()], layer(x[:, order.argsort()])),
        "both sides are put in the inverse order",
    ),
    (
        lambda layer, x, order: gap(layer(x)[:, order], layer(x[:, order])[:, order.argsort()]),
        "one output is put in order and the other one is put back",
    ),
    (compared(lambda a, b: (a - b).max()), SIGN),
    (compared(lambda a, b: torch.max(b - a)), SIGN),
    (compared(lambda a, b: abs((a - b).max())), SIGN),
    (compared(lambda a, b: (b - a).max().abs()), SIGN),
    (compared(lambda a, b: (a - b).min()), SIGN),
    (compared(lambda a, b: (a - b).abs().mean()), "the differences are averaged, not"),
    (compared(nn.functional.l1_loss), "the differences are averaged, not"),
    (compared(lambda a, b: (a - b).mean()), "the differences are averaged with their signs"),
    (compared(lambda a, b: (a - b).mean().abs()), "the differences are averaged with their signs"),
    (compared(lambda a, b: (a - b).abs().sum()), "the differences are added up"),
    (compared(nn.functional.mse_loss), "the mean of the squared differences"),
    (compared(lambda a, b: nn.functional.mse_loss(a, b) ** 0.5), "the root of the mean square"),
    (compared(torch.dist), "the length of the difference"),
    (compared(lambda a, b: (a - b).abs().min()), "the smallest difference"),
    (compared(lambda a, b: ((a - b) ** 2).max()), "the largest difference is squared"),
    (compared(lambda a, b: gap(a, b) / a.abs().max()), "the difference is divided by the largest output"),
    (compared(lambda a, b: gap(a[0], b[0])), "only the first sample"),
    (compared(lambda a, b: gap(a[:, 0], b[:, 0])), "only the first token"),
    (lambda layer, x, order: gap(layer(x)[:, order], x[:, order]), "the layer is left out on one side"),
    (lambda layer, x, order: gap(layer(x[:, order]), x[:, order]), "the layer is left out on one side"),
    (lambda layer, x, order: gap(layer(x[:, order][:, order.argsort()]), layer(x)), "the result is 0 for every layer"),
    (lambda layer, x, order: torch.tensor(0.0).double(), "the result is 0 for every layer"),
    # not named
    (compared(lambda a, b: (a - b).abs()), "error has the wrong shape"),
    (compared(lambda a, b: (a - b).abs().amax((1, 2))), "error has the wrong shape"),
    (compared(lambda a, b: gap(a, b).item()), "error is a float, expected a tensor"),
    (compared(torch.allclose), "error is a bool, expected a tensor"),
    (compared(lambda a, b: gap(a, b) > 1e-6), "error has type bool, expected float64"),
    (compared(lambda a, b: torch.tensor(gap(a, b).item())), "error has type float32, expected float64"),
    (compared(lambda a, b: gap(a, b) + 1), "the numbers differ"),
    (compared(lambda a, b: gap(a, b) / 0), "error holds infinity"),
    (lambda layer, x: layer(x), "it cannot be called as fn(layer, x, order)"),
    (lambda layer, x, order: gap(order(x), layer(x)), "it raises TypeError"),
]


@pytest.mark.parametrize("fn", EQUIVARIANCE_RIGHT)
def test_right(fn):
    verdict = check("equivariance_error", fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(("fn", "fault"), EQUIVARIANCE_WRONG)
def test_wrong(fn, fault):
    verdict = check("equivariance_error", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_evidence_of_a_single_number_names_the_layer():
    verdict = check("equivariance_error", lambda layer, x, order: x.new_zeros(()))
    assert verdict.evidence.startswith("largest difference ")
    assert verdict.evidence.endswith(" in error, case 1 (B, T, E = 7, 5, 11; a layer that adds positions)")
    verdict = check("equivariance_error", compared(lambda a, b: gap(a, b) * math.nan))
    assert verdict.evidence == "1 of 1 numbers, case 1 (B, T, E = 7, 5, 11; a layer that adds positions)"


def test_a_layer_may_be_put_into_evaluation_mode():
    assert check("equivariance_error", lambda layer, x, order: error(layer.eval(), x, order))


def test_changing_the_tokens_is_a_fault():
    def in_place(layer, x, order):
        before = layer(x)[:, order]
        x[:] = x[:, order]
        return gap(before, layer(x))

    assert check("equivariance_error", in_place).fault == "it changes its input x in place"
