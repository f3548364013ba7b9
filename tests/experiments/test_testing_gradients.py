"""What gradients tell of attention, and what they do not."""

import math

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn
from torch.testing import assert_close

from mha_course.checks import probe
from mha_course.experiments import testing as lesson

TEN = tuple(lesson.FAULTY)


def inputs(seed, B=2, T=6, E=8, dtype=torch.float32):
    return torch.randn(B, T, E, generator=torch.Generator().manual_seed(100 + seed)).to(dtype)


@pytest.fixture(params=range(3))
def seed(request):
    return request.param


def test_scores_without_a_graph_have_right_values_and_wrong_gradients():
    (module,) = lesson.patients((lesson.DETACHED,)).values()
    found = lesson.gap(module, inputs(0))
    assert found.out < 1e-5
    assert found.gradient > 0.1
    names = probe.gradients(module, inputs(0)).none
    assert set(names) == {"q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias"}


def test_gradcheck_finds_a_wrong_backward_and_no_wrong_forward():
    made = lesson.patients((lesson.RIGHT, *TEN, lesson.DETACHED), embed_dim=4, dtype=torch.float64)
    x = inputs(0, B=1, T=3, E=4, dtype=torch.float64)
    assert {name for name, module in made.items() if not lesson.gradcheck(module, x)} == {lesson.DETACHED}
    ours = lesson.reference(made[lesson.RIGHT])
    assert lesson.gradcheck(ours.requires_grad_(False), x, is_causal=True)


class InputDetached(nn.Linear):
    def forward(self, x):
        return super().forward(x.detach())


@pytest.mark.unchecked
def test_gradcheck_looks_at_the_input_too():
    assert not lesson.gradcheck(InputDetached(4, 4, dtype=torch.float64), inputs(0, E=4, dtype=torch.float64))
    assert lesson.gradcheck(nn.Linear(4, 4, dtype=torch.float64), inputs(0, E=4, dtype=torch.float64))


def test_gradients_are_those_of_the_loss():
    module, x = lesson.patients()[lesson.RIGHT], inputs(0)
    r = torch.randn(x.shape, generator=torch.Generator().manual_seed(5))
    losses = [module(x).sum(), module(x).square().sum(), (r * module(x)).sum()]
    for name, value in zip(lesson.LOSSES, losses, strict=True):
        module.zero_grad()
        value.backward()
        sizes = {n: p.grad.abs().max().item() for n, p in module.named_parameters()}
        found = lesson.gradients(module, x, loss=name, seed=5)
        assert found == pytest.approx(sizes, rel=1e-4, abs=1e-5)


def test_a_sum_through_a_norm_has_no_gradient(seed):
    module, x = lesson.patients(seed=seed)[lesson.RIGHT], inputs(seed)
    norm = lesson.WithNorm(module, 8)
    found = {loss: lesson.gradients(norm, x, loss=loss)["attention.v_proj.weight"] for loss in lesson.LOSSES}
    assert found["sum"] < 1e-5
    assert found["sum of squares"] < 0.01
    assert found["random weights"] > 1
    assert lesson.gradients(module, x, loss="sum")["v_proj.weight"] > 1


def test_softmax_over_queries_hides_in_a_sum(seed):
    found = lesson.gradients(lesson.patients(seed=seed)["softmax over queries"], inputs(seed), loss="sum")
    assert found["q_proj.weight"] < 1e-4
    assert found["v_proj.weight"] > 1


def test_one_token_leaves_queries_and_keys_without_a_gradient():
    found = lesson.gradients(lesson.patients()[lesson.RIGHT], inputs(0, T=1))
    assert {name for name, size in found.items() if size == 0} == {
        f"{x}_proj.{kind}" for x in "qk" for kind in ("weight", "bias")
    }


def test_key_bias_has_no_gradient_without_rotary_and_one_with(seed):
    for dtype, most in ((torch.float64, 1e-14), (torch.float32, 1e-5)):
        plain, rotary = lesson.rotary_and_not(seed=seed, dtype=dtype)
        assert plain < most
        assert rotary > 0.05


def test_key_bias_of_nothing_is_nan():
    (module,) = lesson.patients((lesson.NOTHING,)).values()
    assert math.isnan(lesson.key_bias(module, inputs(0)))
    assert_close(module(inputs(0)), module.out_proj.bias.expand(2, 6, 8))


def test_reach_is_zero_at_other_samples_and_later_tokens():
    made, x = lesson.patients(), inputs(0)
    right, ahead = (lesson.reach(made[name], x, 1, 2) for name in (lesson.RIGHT, "sees one ahead"))
    assert_array_equal(right > 0, [[False] * 6, [True] * 3 + [False] * 3])
    assert_array_equal(ahead > 0, [[False] * 6, [True] * 4 + [False] * 2])
    leaf = x.clone().requires_grad_()
    made[lesson.RIGHT](leaf)[1, 2].sum().backward()
    assert_allclose(right, leaf.grad.abs().amax(-1), rtol=1e-5)
    assert_allclose(lesson.reach(lesson.reference(made[lesson.RIGHT]), x, 1, 2, is_causal=True), right, rtol=1e-4)
