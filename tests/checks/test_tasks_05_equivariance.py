"""Right and wrong solutions of notebook 05: how far a layer is from equivariance."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from mha_course.checks import calls, check, engine
from mha_course.checks.task import Case


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
    (compared(lambda a, b: round(gap(a, b).item())), "error is an int, expected a tensor"),
    (compared(lambda a, b: gap(a, b).numpy()[()]), "error is a NumPy float64, expected a tensor"),
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


@pytest.mark.parametrize("plain", [torch.Tensor.item, lambda d: round(d.item()), lambda d: np.max(d.numpy())])
def test_a_plain_number_is_told_to_stay_a_tensor(plain):
    verdict = check("equivariance_error", compared(lambda a, b: plain(gap(a, b))))
    assert "error is a" in verdict.fault
    assert verdict.evidence.startswith("expected one tensor, error, case 1 ")
    assert verdict.hints[1] == "Return the tensor as it is, without .item(), float() or NumPy."


@pytest.mark.parametrize("ask", [torch.allclose, lambda a, b: np.bool_(torch.equal(a, b)), lambda a, b: (a == b).all()])
def test_yes_or_no_is_told_to_be_a_number(ask):
    verdict = check("equivariance_error", compared(ask))
    assert verdict.hints[0] == "A comparison, or torch.allclose, answers yes or no: a number is asked for here."


def zeros(module, args, out):
    return 0 * out


def sets_forward(layer):
    layer.forward = lambda y: 0 * y


def sets_attributes(layer):
    layer.places = layer.causal = False


def hooks(layer):
    layer.register_forward_hook(zeros)


def becomes_another(layer):
    layer.__class__ = nn.Identity


def adds_a_layer(layer):
    layer.more = nn.Linear(2, 2)


CHANGES = [sets_forward, sets_attributes, hooks, becomes_another, adds_a_layer]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_layer_changes_nothing_in_the_reference(change):
    def before(layer, x, order):
        change(layer)
        return x.new_zeros(())

    verdict = check("equivariance_error", before)
    assert verdict.fault == "the result is 0 for every layer"
    assert verdict.evidence.endswith("; also, it changes its input layer in place")

    def after(layer, x, order):
        result = error(layer, x, order)
        change(layer)
        return result

    verdict = check("equivariance_error", after)
    assert (verdict.fault, verdict.evidence) == ("it changes its input layer in place", "its results are right")
    assert verdict.hints[1] == "Call it, layer(x), and leave it as it was."
    assert check("equivariance_error", error), "the next check has layers of its own"


def test_a_layer_may_be_watched():
    def watched(layer, x, order):
        seen = []
        handle = layer.register_forward_hook(lambda module, args, out: seen.append(out))
        layer(x), layer(x[:, order])
        handle.remove()
        return gap(seen[0][:, order], seen[1])

    assert check("equivariance_error", watched)


def test_weights_count_and_evaluation_mode_does_not():
    task = engine._TASKS["equivariance_error"]
    layer = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).double()
    case = Case({"B": 2, "T": 1, "E": 3}, (layer, torch.ones(2, 1, 3).double(), torch.tensor([0])))

    def drops_a_bias(layer, x, order):
        layer[0].bias.data.zero_()
        return error(layer, x, order)

    assert calls.call(task, drops_a_bias, case).changed == ("layer",)
    assert layer[0].bias.all()
    assert calls.call(task, lambda layer, x, order: error(layer.eval(), x, order), case).changed == ()
    assert layer.training
