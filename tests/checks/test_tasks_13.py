"""Right and wrong solutions of notebook 13: a softmax in every format, and a step of mixed precision training."""

import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from mha_course.checks import check, engine
from mha_course.checks.tasks_13_run import run_steps
from mha_course.precision import amp_step, stable_softmax
from tests.checks import bank_exercises as bank

bank.load()
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
EMPTY = "rows that are -inf throughout give NaN"


def softmax(
    first=lambda x: x,
    shift=lambda x: x - x.amax(-1, keepdim=True),
    total=lambda e: e.sum(-1, keepdim=True),
    last=torch.nan_to_num,
):
    """A solution in steps, some of them changed, in the type of the scores."""

    def fn(scores):
        e = shift(first(scores)).exp()
        return last(e / total(e)).to(scores.dtype)

    return fn


def step(
    clear=lambda model, optimizer: optimizer.zero_grad(),
    dtype=torch.float16,
    enabled=True,
    grow=lambda scaler, loss: scaler.scale(loss),
    order=("unscale", "clip", "step", "update"),
    give=lambda loss: loss.item(),
    **more,
):
    """A solution in steps, some of them changed."""

    def fn(model, optimizer, scaler, loss_fn, batch, max_norm):
        clear(model, optimizer)
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            loss = loss_fn(model, *batch)
        grow(scaler, loss).backward()
        do = {
            "unscale": lambda: scaler.unscale_(optimizer),
            "clip": lambda: clip_grad_norm_(model.parameters(), max_norm),
            "step": lambda: scaler.step(optimizer),
            "plain step": optimizer.step,
            "update": scaler.update,
            **{name: lambda one=one: one(model, optimizer, scaler, max_norm) for name, one in more.items()},
        }
        for name in order:
            do[name]()
        return give(loss)

    return fn


def exp2_softmax(scores):
    e = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).nan_to_num()


def winner(scores):
    return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1)


def clamped(low, high):
    return softmax(shift=lambda x: x.clamp(low, high))


SOFTMAX = [
    (softmax(shift=lambda x: x), "the maximum is not subtracted before exp"),
    (softmax(first=torch.Tensor.float, shift=lambda x: x), "the maximum is not subtracted before exp"),
    (softmax(first=torch.Tensor.double, shift=lambda x: x, last=lambda w: w), "the maximum is not subtracted"),
    (softmax(shift=lambda x: x - x.max()), "one maximum of several rows is subtracted"),
    (softmax(shift=lambda x: x - x.amax(-2, keepdim=True)), "the maximum is taken along another axis"),
    (softmax(shift=lambda x: x - x.amin(-1, keepdim=True)), "the minimum of each row is subtracted"),
    (softmax(shift=lambda x: x - x.mean(-1, keepdim=True)), "the mean of each row is subtracted"),
    (softmax(first=torch.Tensor.float, shift=lambda x: x - x.amax(-1, keepdim=True).clamp(min=0)), "the maximum that"),
    (softmax(shift=lambda x: x / x.amax(-1, keepdim=True)), "scores are divided by their maximum"),
    *((clamped(-most, most), "scores are clamped, not shifted") for most in (10, 50, 80, 88, 100)),
    (clamped(None, 80), "scores are clamped, not shifted"),
    (softmax(shift=lambda x: x - x.amax((-2, -1), keepdim=True)), "one maximum of several rows is subtracted"),
    (
        softmax(shift=lambda x: x if (m := x.amax(-1, keepdim=True)).isinf().any() else x - m),
        "one row of -inf keeps all rows from being shifted",
    ),
    (softmax(shift=lambda x: x - x[..., :1]), "another score of each row is subtracted"),
    (softmax(shift=lambda x: x - x.median(-1, keepdim=True).values), "another score of each row is subtracted"),
    (softmax(shift=lambda x: x + x.amax(-1, keepdim=True)), "the maximum is added, not subtracted"),
    (softmax(shift=lambda x: x.amax(-1, keepdim=True) - x), "the signs of the scores are turned"),
    (lambda scores: exp2_softmax(scores), "powers of 2 are taken"),
    (lambda scores: (scores.sigmoid() / scores.sigmoid().sum(-1, keepdim=True)).nan_to_num(), "the sigmoid is taken"),
    (lambda scores: (scores / scores.shape[-1] ** 0.5).softmax(-1).nan_to_num(), "the scores are divided by a square"),
    (softmax(total=lambda e: e.sum(-2, keepdim=True)), "the exponentials are summed along another axis"),
    (softmax(total=lambda e: 1 + e.sum(-1, keepdim=True)), "a number is added to the sum"),
    (softmax(total=lambda e: e.sum(-1, keepdim=True) + 1e-2), "a number is added to the sum"),
    (
        lambda scores: F.normalize(softmax(total=torch.ones_like)(scores), dim=-1),
        "the exponentials are divided by thei",
    ),
    *(
        (
            lambda scores, low=low: scores.to(low).softmax(-1).nan_to_num().to(scores.dtype),
            "it computes in a smaller type than that of the scores",
        )
        for low in (torch.float16, torch.bfloat16, torch.float32)
    ),
    (lambda scores: scores.log_softmax(-1).exp().nan_to_num().softmax(-1), "the softmax is taken twice"),
    (softmax(last=lambda w: w), EMPTY),
    (lambda scores: F.log_softmax(scores.float(), -1).exp().type_as(scores), EMPTY),
    (
        softmax(shift=lambda x: (x - x.amax(-1, keepdim=True)).nan_to_num(0, neginf=-torch.inf)),
        "rows that are -inf throughout give equal",
    ),
    (softmax(total=torch.ones_like), "the exponentials are not divided by their sum"),
    (softmax(total=torch.sum), "the exponentials are divided by the sum of all"),
    (lambda scores: scores.softmax(-2).nan_to_num(), "the softmax is taken along the queries"),
    (lambda scores: scores.float().softmax(0).nan_to_num().type_as(scores), "the softmax is taken along the samples"),
    (lambda scores: scores.log_softmax(-1), "the logarithms of the weights are returned"),
    (winner, "the largest score of a row gets all"),
    (lambda scores: scores.softmax(-1).nan_to_num().float(), "weights has type float32, expected float64"),
    (lambda scores: scores.float().softmax(-1).nan_to_num().bfloat16(), "weights has type bfloat16, expected float64"),
]


def divided(model, optimizer, scaler, max_norm):
    for p in model.parameters():
        p.grad /= scaler.get_scale()


class Unmoved:
    """A loss whose backward is never called."""

    def __init__(self, loss):
        self.loss = loss

    def backward(self):
        pass


def to_max_norm(model, optimizer, scaler, max_norm):
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad.mul_(max_norm / norm)


def scaled_by_hand(model, optimizer, scaler, loss_fn, batch, max_norm):
    fixed = torch.amp.GradScaler("cpu", init_scale=512.0)
    return step(grow=lambda scaler, loss: 512 * loss, order=("divide", "clip", "plain step"), divide=divided)(
        model, optimizer, fixed, loss_fn, batch, max_norm
    )


def skipped_by_hand(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = clip_grad_norm_(model.parameters(), max_norm)
    if norm.isfinite():
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


def returns_the_scale(*arguments):
    step()(*arguments)
    return arguments[2].get_scale()


def without_gradients(model, optimizer, scaler, loss_fn, batch, max_norm):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()


def clipping(**options):
    return step(
        order=("unscale", "own clip", "step", "update"),
        **{"own clip": lambda model, optimizer, scaler, most: clip_grad_norm_(model.parameters(), most, **options)},
    )


def twice(scaler, loss):
    loss.backward(retain_graph=True)
    return scaler.scale(loss)


OFF, NEVER = "the forward pass is not under autocast", "the gradients are never cleared"
CLIP, SCALED = "the gradients are clipped while they are still scaled", "optimizer.step() uses gradients that are still"
STEP = [
    (step(clear=lambda model, optimizer: None), NEVER),
    (step(order=("clip", "unscale", "step", "update")), CLIP),
    (step(order=("clip", "step", "update")), CLIP),
    (step(order=("unscale", "step", "clip", "update")), "the gradients are not clipped before the step"),
    (step(order=("step", "update")), "the gradients are not clipped before the step"),
    (step(grow=lambda scaler, loss: loss), "backward is called on the loss that is not scaled: scaler.scale is never"),
    (
        step(grow=lambda scaler, loss: (scaler.scale(loss), loss)[1]),
        "backward is called on the loss that is not scaled",
    ),
    (step(order=("unscale", "clip", "plain step", "update")), "optimizer.step() is called instead of scaler.step"),
    (step(order=("clip", "plain step")), SCALED),
    (step(order=("clip", "plain step", "update")), SCALED),
    (step(order=("plain step",)), SCALED),
    (step(order=("plain step", "update")), SCALED),
    (step(order=("unscale", "clip", "step")), "scaler.update() is missing"),
    (step(order=("unscale", "clip", "update", "step")), "scaler.update() is called before scaler.step(optimizer)"),
    (step(order=("unscale", "clip", "update")), "no step is made: the weights do not move"),
    (step(order=("unscale", "clip")), "no step is made"),
    (step(order=("divide", "clip", "step", "update"), divide=divided), "the gradients are divided by the scale twice"),
    (step(order=("unscale", "clip", "step", "plain step", "update")), "two steps are made with the same gradients"),
    (step(order=("unscale", "unscale", "clip", "step", "update")), "scaler.unscale_(optimizer) is called twice"),
    (step(order=("unscale", "clip", "step", "update", "update")), "scaler.update() is called twice in one step"),
    (step(order=("clip", "step", "unscale", "update")), CLIP),
    (
        step(
            order=("small clip", "step", "update"),
            **{"small clip": lambda m, _, scaler, most: clip_grad_norm_(m.parameters(), most / scaler.get_scale())},
        ),
        "max_norm is divided by the scale",
    ),
    (step(grow=twice), "backward is called on the loss and on the scaled loss"),
    (step(grow=lambda scaler, loss: scaler.scale(loss.detach())), "backward does not reach the weights"),
    (without_gradients, "backward does not reach the weights"),
    (step(grow=lambda scaler, loss: Unmoved(scaler.scale(loss))), "no gradients are found"),
    (step(order=("step",)), "scaler.update() is missing"),
    (step(order=("clip", "step")), "scaler.update() is missing"),
    (skipped_by_hand, "scaler.update() is left out where the step is skipped"),
    (scaled_by_hand, "the loss is scaled by hand"),
    (returns_the_scale, "the scale is returned, not the loss"),
    (clipping(norm_type=torch.inf), "the gradients are not clipped before the step to max_norm, but by their largest"),
    (clipping(norm_type=1), "the gradients are not clipped before the step to max_norm, but by the sum"),
    (
        step(order=("unscale", "to max_norm", "step", "update"), **{"to max_norm": to_max_norm}),
        "all gradients are given the norm max_norm",
    ),
    (step(enabled=False), OFF),
    (step(dtype=torch.bfloat16), "the forward pass is in bfloat16"),
    (step(give=lambda loss: None), "it returns None, perhaps the return is missing"),
    (step(give=lambda loss: (loss, 1)), "it returns tuple instead of one number"),
    (step(give=lambda loss: loss.expand(3)), "it returns a tensor of shape (3,) instead of one number"),
    (step(give=lambda loss: True), "it returns bool instead of one number"),
    (step(clear=lambda model, optimizer: None, enabled=False), f"two faults: {NEVER}"),
    (step(order=("clip", "step", "update"), dtype=torch.bfloat16), f"two faults: {CLIP}"),
    (step(order=("step", "update"), clear=lambda model, optimizer: None), f"two faults: {NEVER}"),
    (lambda model, optimizer: None, "it cannot be called as fn(model, optimizer, scaler, loss_fn, batch, max_norm)"),
]
WRONG = {"stable_softmax": SOFTMAX, "training_step": STEP}


@pytest.mark.parametrize(("name", "fn"), [("stable_softmax", softmax()), ("training_step", step())])
def test_right(name, fn):
    verdict = check(name, fn)
    assert verdict.ok, verdict
    assert not verdict.remarks


@pytest.mark.parametrize(("name", "fn", "fault"), [(name, *one) for name, wrong in WRONG.items() for one in wrong])
def test_wrong(name, fn, fault):
    verdict = check(name, fn)
    assert not verdict.ok
    assert verdict.fault.startswith(fault), verdict
    assert len(verdict.hints) >= 2


@pytest.mark.parametrize("name", WRONG)
def test_every_fault_is_one_that_some_solution_has(name):
    faults = {v.fault for v in engine._TASKS[name].variations}
    seen = {check(name, fn).fault for fn, _ in WRONG[name]}
    seen |= {check(item.task, item.fn).fault for item in bank.WRONG if item.task == name}
    assert faults <= seen


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cases_hold_every_type_with_huge_scores_and_empty_rows(dtype):
    of_type = [case.inputs[0] for case in engine._TASKS["stable_softmax"].cases() if case.inputs[0].dtype == dtype]
    finite = [scores for scores in of_type if scores.isfinite().all()]
    assert any(scores.min() < -8000 < 8000 < scores.max() for scores in finite)
    assert any((scores == -torch.inf).all(-1).any() and scores.isfinite().any() for scores in of_type)


def test_the_package_solves_the_exercises():
    assert check("stable_softmax", stable_softmax)

    def packaged(model, optimizer, scaler, loss_fn, batch, max_norm):
        stepped = amp_step(model, optimizer, loss_fn, *batch, dtype=torch.float16, scaler=scaler, max_norm=max_norm)
        return stepped.loss

    assert check("training_step", packaged)


def test_the_references_overflow_where_they_should():
    found = [run_steps(step(), *case.inputs) for case in engine._TASKS["training_step"].cases()]
    scales = [scale.tolist() for _, _, scale, _ in found]
    assert scales[2] == scales[3] == [2.0**10, 2.0**9, 2.0**9]
    assert scales[4] == [2, 4, 4, 8, 8]
    for _, weights, _, digits in found:
        assert weights.isfinite().all()
        assert digits.eq(10).all()
    torch.testing.assert_close(found[2][1][1], found[2][1][0], rtol=0, atol=0)


OF = [
    *(float, np.float32, torch.detach, lambda loss: loss, lambda loss: loss.reshape(1)),
    *(lambda loss: loss.detach().numpy(), lambda loss: loss.detach().numpy().reshape(1)),
]


@pytest.mark.parametrize("of", OF)
def test_a_loss_may_be_any_single_number(of):
    assert check("training_step", step(give=lambda loss: of(loss if of is not np.float32 else loss.item())))


def test_no_warning_and_no_autocast_is_left():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check("training_step", step())
        assert not check("training_step", bank_item("autocast_of_cuda"))
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def bank_item(name):
    return next(item.fn for item in bank.WRONG if item.fn.__name__ == name)


def test_evidence_names_the_format():
    verdict = check("stable_softmax", bank_item("epsilon_vanishes"))
    assert "float16, rows with -inf" in verdict.evidence
    verdict = check("stable_softmax", lambda scores: stable_softmax(scores.double()))
    assert verdict.fault == "weights has type float64, expected float32, the type of the inputs"
