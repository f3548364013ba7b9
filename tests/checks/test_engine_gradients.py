"""Gradients of right results: cut, wrong, legitimately absent."""

import math

import numpy as np
import pytest
import torch

from mha_course.checks import check, engine
from mha_course.checks.gradients_of import applies, check_gradients

DIFFERENTIABLE = [task for task in engine._TASKS.values() if applies(task)]


def attend(q, k, v, weights=lambda w: w):
    return weights((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)) @ v


def from_numpy(q, k, v):
    return torch.from_numpy(np.asarray(attend(q, k, v).numpy()))


def by_item(q, k, v):
    w = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return torch.tensor(w.tolist(), dtype=q.dtype) @ v


def under_no_grad(q, k, v):
    with torch.no_grad():
        w = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return w @ v


CUT = [
    (under_no_grad, "q, k"),
    (by_item, "q, k"),
    (from_numpy, "q, k, v"),
    (lambda q, k, v: attend(q, k, v).detach(), "q, k, v"),
    (lambda q, k, v: attend(q, k, v).data, "q, k, v"),
    (lambda q, k, v: attend(q.detach(), k, v), "q"),
    (lambda q, k, v: attend(q, k.data, v), "k"),
    (lambda q, k, v: attend(q, k, v.detach()), "v"),
    (torch.no_grad()(attend), "q, k, v"),
]


@pytest.mark.parametrize(("fn", "names"), CUT)
def test_a_cut_gradient_is_named_with_the_input(fn, names):
    verdict = check("batched_attention", fn)
    assert verdict.fault == f"no gradient reaches {names}: the numbers are right"
    assert "case 1 (B, T, S, D, Dv = 2, 3, 5, 7, 11)" in verdict.evidence
    assert "detach()" in verdict.hints[0]
    assert not verdict.ok


def test_what_raises_only_with_a_gradient_says_so():
    evidence = check("batched_attention", from_numpy).evidence
    assert evidence.startswith("with inputs that need a gradient it raises RuntimeError: Can't call numpy()")
    assert "line 2 of from_numpy" in evidence


def half_detached(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (0.5 * scores + 0.5 * scores.detach()).softmax(-1) @ v


def test_a_wrong_gradient_is_named_with_its_place():
    verdict = check("batched_attention", half_detached)
    assert verdict.fault == "the gradient of q differs from the reference"
    assert verdict.evidence.startswith("the numbers are right; largest difference 0.")
    assert " at q[" in verdict.evidence


def nan_gradient(q, k, v):
    return attend(q, k, v) + 0 * (q - q).abs().sqrt().sum()


def test_a_gradient_of_nan():
    assert check("batched_attention", nan_gradient).fault == "the gradient of q holds NaN: the numbers are right"


def in_place_on_input(q, k, v):
    """Writes into an input and back: no leaf, so that it may."""
    q.mul_(2).div_(2)
    return attend(q, k, v)


def shifted(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    powers = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return powers / powers.sum(-1, keepdim=True) @ v


def filled(q, k, v):
    out = q.new_zeros(*q.shape[:2], v.shape[-1])
    for b in range(len(q)):
        out[b] = attend(q[b], k[b], v[b])
    return out


def in_place_scores(q, k, v):
    scores = q @ k.mT
    scores /= math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("fn", [attend, in_place_on_input, shifted, filled, in_place_scores])
def test_right_gradients(fn):
    verdict = check("batched_attention", fn)
    assert verdict.ok, verdict
    assert not verdict.remarks


def overwrites(q, k, v):
    powers = (q @ k.mT / math.sqrt(q.shape[-1])).exp()
    powers /= powers.sum(-1, keepdim=True)
    return powers @ v


def test_what_backward_cannot_do_is_a_remark():
    verdict = check("batched_attention", overwrites)
    assert verdict.ok
    (remark,) = verdict.remarks
    assert remark.startswith("no gradient can be computed: an operation in place")


def test_it_works_where_gradients_are_off():
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert check("batched_attention", attend), off
            assert check("batched_attention", half_detached).fault.startswith("the gradient of q"), off


def test_parameters_of_layers_count():
    def cut(x, norm_1, attention, norm_2, mlp):
        with torch.no_grad():
            for parameter in mlp.parameters():
                parameter.requires_grad_(False)
        middle = x + attention(norm_1(x))
        return middle + mlp(norm_2(middle))

    def cut_attention(x, norm_1, attention, norm_2, mlp):
        middle = x + attention(norm_1(x).detach())
        return middle + mlp(norm_2(middle))

    fault = check("pre_norm_block", cut_attention).fault
    assert fault.startswith("no gradient reaches norm_1.weight, norm_1.bias: ")
    assert "changes its input" in (check("pre_norm_block", cut).fault or "changes its input")


@pytest.mark.parametrize("task", DIFFERENTIABLE, ids=[task.name for task in DIFFERENTIABLE])
def test_a_detached_reference_is_cut(task):
    def detached(*inputs):
        results = task.reference(*inputs)
        return tuple(x.detach() for x in results) if isinstance(results, tuple) else results.detach()

    assert check_gradients(task, task.reference, task.cases()) == (None, "")
    assert check(task.name, detached).fault.startswith("no gradient reaches ")


def test_measurements_may_be_taken_without_a_graph():
    assert not any(applies(engine._TASKS[name]) for name in ("softmax", "angles", "growth_exponents", "causal"))
    assert check("softmax", lambda x: torch.from_numpy(x.softmax(1).numpy()))


@pytest.mark.parametrize("name", ["split_heads", "merge_heads"])
def test_numpy_on_the_way_cuts_the_gradient(name):
    reference = engine._TASKS[name].reference
    verdict = check(name, lambda x, *H: reference(torch.from_numpy(x.numpy().copy()), *H))
    assert verdict.fault == "no gradient reaches x: the numbers are right"
