"""Which test of attention finds which of ten faults; equality with nn.MultiheadAttention."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn
from torch.testing import assert_close

from mha_course.checks import probe
from mha_course.experiments import testing as lesson
from mha_course.masks import causal
from mha_course.multihead import MultiHeadAttention

TEN = tuple(lesson.FAULTY)
SEEING = {
    "softmax over queries",
    "mask after softmax",
    "sees one ahead",
    "mask thrown away",
    "wrong split",
    "wrong merge",
}
SUMS = {"softmax over queries", "softmax over all heads", "mask after softmax"}
BIAS = {
    "keys, values swapped",
    "keys as queries",
    "softmax over queries",
    "softmax over all heads",
    "wrong split",
}


def inputs(seed, B=2, T=6, E=8, dtype=torch.float32):
    return torch.randn(B, T, E, generator=torch.Generator().manual_seed(100 + seed)).to(dtype)


@pytest.fixture(params=range(3))
def seed(request):
    return request.param


def test_there_are_ten_with_the_same_weights(seed):
    made = lesson.patients(seed=seed)
    assert tuple(made) == (lesson.RIGHT, *TEN)
    assert len(TEN) == 10
    right = made[lesson.RIGHT].state_dict()
    for module in made.values():
        assert not module.training
        assert_close(dict(module.state_dict()), dict(right), rtol=0, atol=0)
    assert all(x.std() > 0.2 for name, x in right.items() if name.endswith("bias"))
    other = lesson.patients(seed=seed + 1)[lesson.RIGHT]
    assert (other.q_proj.weight - right["q_proj.weight"]).abs().max() > 0.1


def test_the_right_module_is_the_explicit_formula(seed):
    module, x = lesson.patients(seed=seed, dtype=torch.float64)[lesson.RIGHT], inputs(seed, dtype=torch.float64)
    q, k, v = (linear(x) for linear in (module.q_proj, module.k_proj, module.v_proj))
    heads = torch.zeros_like(x)
    for b in range(2):
        for h in (slice(0, 4), slice(4, 8)):
            for t in range(6):
                scores = [(q[b, t, h] @ k[b, s, h] / 2).exp() for s in range(t + 1)]
                heads[b, t, h] = sum(e * v[b, s, h] for s, e in enumerate(scores)) / sum(scores)
    assert_close(module(x), module.out_proj(heads))


def test_values_find_all_ten_and_nothing_in_the_right_one(seed):
    x = inputs(seed)
    for name, module in lesson.patients(seed=seed).items():
        out, gradient = lesson.gap(module, x)
        assert (out < 1e-5) == (gradient < 1e-4) == (name == lesson.RIGHT), name
        assert name == lesson.RIGHT or min(out, gradient) > 0.1
        assert lesson.looks_fine(module, x)


def test_a_gap_is_rounding_if_it_goes_with_float64():
    x = inputs(0, dtype=torch.float64)
    for name, module in lesson.patients(dtype=torch.float64).items():
        out = lesson.gap(module, x).out
        assert out < 1e-14 if name == lesson.RIGHT else out > 0.1


@pytest.mark.parametrize("small", [False, True])
def test_gap_is_the_difference_of_outputs_and_of_gradients(small):
    made = lesson.patients()
    module, right, x = made["sees one ahead"], made[lesson.RIGHT], inputs(0)
    if small:  # then the gradient of x is the largest
        x = x / 100
        for m in (module, right):
            for linear in (m.q_proj, m.k_proj, m.v_proj, m.out_proj):
                nn.init.zeros_(linear.bias)
    r = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    leaves = []
    for m in (module, right):
        leaf = x.clone().requires_grad_()
        (r * m(leaf)).sum().backward()
        leaves.append(leaf.grad)
    pairs = zip(module.parameters(), right.parameters(), strict=True)
    parameters = max((a.grad - b.grad).abs().max().item() for a, b in pairs)
    of_x = (leaves[0] - leaves[1]).abs().max().item()
    assert (of_x > parameters) == small
    expected = [(module(x) - right(x)).abs().max().item(), max(parameters, of_x)]
    assert_allclose(lesson.gap(module, x), expected, rtol=1e-4)


def test_one_head_or_one_token_hides_faults():
    hidden = {name for name, m in lesson.patients(num_heads=1).items() if lesson.gap(m, inputs(0)).out < 1e-5}
    assert hidden == {lesson.RIGHT, "scaled by sqrt(E)", "softmax over all heads", "wrong split", "wrong merge"}
    hidden = {name for name, m in lesson.patients().items() if lesson.gap(m, inputs(0, T=1)).out < 1e-5}
    assert hidden == {lesson.RIGHT, *TEN} - {"keys, values swapped", "softmax over all heads"}


def test_which_cheap_test_finds_which(seed):
    x, may = inputs(seed), causal(6)
    for name, module in lesson.patients(seed=seed).items():
        moved = probe.leaks(module, x)
        weights = module.attend(x)[0]
        found = probe.gradients(module, x)
        assert bool((moved.tokens & ~may).any()) == (name in SEEING), name
        assert not moved.between_samples
        assert (not probe.row_sums(weights)) == (name in SUMS), name
        assert bool(probe.row_sums(weights, may).hidden) == (name in {"sees one ahead", "mask thrown away"}), name
        only_key_bias = (found.none, found.zero, found.rounding) == ((), (), ("k_proj.bias",))
        assert only_key_bias == (name not in BIAS), name
        assert (lesson.key_bias(module, x) > 1e-3) == (name in BIAS), name
        assert bool(found.none) == (name == "keys as queries")
    assert {*TEN} - SEEING - SUMS - BIAS == {"scaled by sqrt(E)"}


def test_every_fault_is_what_its_name_says():
    x, made = inputs(1), lesson.patients(seed=1)
    weights = {name: module.attend(x)[0] for name, module in made.items()}
    right, (q, k, v) = made[lesson.RIGHT], made[lesson.RIGHT].project(x)
    plain = q @ k.mT / math.sqrt(q.shape[-1])
    later = ~causal(6)
    assert_close(weights["scaled by sqrt(E)"], (plain / math.sqrt(2)).masked_fill(later, -math.inf).softmax(-1))
    assert_close(weights["softmax over queries"].sum(-2), torch.ones(2, 2, 6))
    assert_close(weights["softmax over all heads"].sum((1, -1)), torch.ones(2, 6))
    both = weights["softmax over all heads"]
    assert_close(both / both.sum(-1, keepdim=True), weights[lesson.RIGHT])
    assert_close(weights["mask after softmax"], plain.softmax(-1) * ~later)
    assert_close(weights["mask thrown away"], plain.softmax(-1))
    assert_close(weights["sees one ahead"], plain.masked_fill(later & later.roll(1, -1), -math.inf).softmax(-1))
    for a, b in zip(made["keys, values swapped"].project(x), (q, v, k), strict=True):
        assert_close(a, b)
    for a, b in zip(made["keys as queries"].project(x), (k, k, v), strict=True):
        assert_close(a, b)
    assert_close(made["wrong split"].split(x), x.view(2, 2, 6, 4))
    assert_close(made["wrong merge"].merge(right.split(x)), right.split(x).contiguous().view(2, 6, 8))


def test_equality_needs_each_of_the_steps():
    found = lesson.equality(seeds=3)
    assert found.copied.shape == (3,)
    assert found.copied.max() < 1e-6
    assert_array_equal(found.nan_rows, 2)  # the last row of each sample sees nothing
    for wrong in (found.mask_kept, found.dropout_on, found.own_weights):
        assert wrong.min() > 0.1
    assert lesson.equality(seeds=2, dtype=torch.float64).copied.max() < 1e-14
    assert len(np.unique(found.own_weights)) == 3


def test_equality_sees_a_bias_that_was_not_copied(monkeypatch):
    copy = MultiHeadAttention.from_torch

    def without_bias(module):
        ours = copy(module)
        nn.init.zeros_(ours.v_proj.bias)
        return ours

    monkeypatch.setattr(MultiHeadAttention, "from_torch", without_bias)
    assert lesson.equality(seeds=1).copied.max() > 0.01


class NotFinite(nn.Module):
    def forward(self, x):
        return x / 0


class Wide(nn.Module):
    def forward(self, x):
        return torch.cat([x, x], -1)


@pytest.mark.unchecked
def test_a_shape_and_nan_test_sees_shape_and_nan():
    assert not lesson.looks_fine(NotFinite(), torch.zeros(2, 3, 8))
    assert not lesson.looks_fine(Wide(), torch.zeros(2, 3, 8))


def test_gap_of_nan_is_nan():
    (module,) = lesson.patients((lesson.RIGHT,)).values()
    nn.init.constant_(module.v_proj.bias, math.nan)
    assert all(map(math.isnan, lesson.gap(module, inputs(0))))


def test_the_random_state_is_left_alone():
    before = torch.get_rng_state()
    made = lesson.patients()
    lesson.equality(seeds=1)
    lesson.rotary_and_not()
    lesson.gap(made["wrong split"], inputs(0))
    assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
    assert isinstance(lesson.reference(made[lesson.RIGHT]), MultiHeadAttention)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda: lesson.patients(("wrong",)), ValueError, "name must be one of .*, got 'wrong'"),
        (lambda: lesson.patients(num_heads=3), ValueError, "num_heads must divide embed_dim, got 3 and 8"),
        (lambda: lesson.patients(embed_dim=0), ValueError, "embed_dim must be at least 1, got 0"),
        (lambda: lesson.patients(num_heads=0), ValueError, "num_heads must be at least 1, got 0"),
        (lambda: lesson.patients(num_heads=2.0), TypeError, "num_heads must be an integer, got float"),
        (lambda: lesson.gradients(nn.Linear(2, 2), torch.ones(1, 2), loss="mean"), ValueError, "loss must be one of"),
        (lambda: lesson.equality(seeds=0), ValueError, "seeds must be at least 1, got 0"),
        (lambda: lesson.equality(seeds=1.0), TypeError, "seeds must be an integer, got float"),
    ],
)
def test_bad_arguments_are_refused(call, kind, match):
    with pytest.raises(kind, match=match):
        call()
