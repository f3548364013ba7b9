"""Errors of the low types against float64."""

import pytest
import torch
from torch import nn

from mha_course import MultiHeadAttention
from mha_course.precision import errors_against_float64

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return MultiHeadAttention(24, 3)


def test_float32_below_float16_below_bfloat16(layer):
    errors = errors_against_float64(layer, torch.randn(2, 11, 24))
    assert tuple(errors) == DTYPES
    for part in ("out", "gradients"):
        single, brain, half = (getattr(errors[dtype], part) for dtype in DTYPES)
        assert 1e-8 < single < 2e-6
        assert 1e-4 < half < 2e-3
        assert 3 * half < brain < 2e-2


def test_by_hand():
    # out = w x, gradient = noise x: both are rounded to 8 binary digits
    linear = nn.Linear(1, 1, bias=False)
    nn.init.constant_(linear.weight, 1.0)
    x = 1 + 2**-8  # in bfloat16 a tie, rounded to 1
    (errors,) = errors_against_float64(linear, torch.tensor([[x]]), dtypes=[torch.bfloat16]).values()
    assert errors.out == pytest.approx(2**-8 / x)
    assert errors.gradients > 0


def test_dropout_drops_the_same(layer):
    layer.dropout = 0.5
    x = torch.randn(2, 11, 24)
    state = torch.get_rng_state()
    errors = errors_against_float64(layer, x)[torch.float32]
    assert errors.out < 2e-6
    assert torch.equal(torch.get_rng_state(), state)


def test_the_module_is_untouched(layer):
    layer.q_proj.weight.grad = torch.ones(24, 24)
    with torch.no_grad():
        errors_against_float64(layer, torch.randn(2, 5, 24))
    assert layer.q_proj.weight.dtype == torch.float32
    assert layer.q_proj.weight.grad.sum() == 24 * 24
    assert layer.k_proj.weight.grad is None


def test_an_autocast_around_it_changes_nothing(layer):
    x = torch.randn(2, 11, 24)
    alone = errors_against_float64(layer, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert errors_against_float64(layer, x) == alone


def test_each_run_starts_from_the_same_buffers():
    class Counts(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.register_buffer("n", torch.ones(1))

        def forward(self, x):
            self.n.add_(1)
            return super().forward(x) * self.n

    counts = Counts()
    errors = errors_against_float64(counts, torch.randn(5, 3), dtypes=DTYPES[::-1])
    assert max(max(pair) for pair in errors.values()) < 2e-2
    assert errors[torch.float32].out < 1e-6
    assert counts.n.item() == 1


@pytest.mark.unchecked
class TestBadInput:
    def test_arguments(self, layer):
        with pytest.raises(TypeError, match=r"args must be floating point tensors, got torch\.int64"):
            errors_against_float64(layer, torch.arange(3))
        with pytest.raises(TypeError, match="args must be floating point tensors, got int"):
            errors_against_float64(layer, 3)

    def test_module_returns_two(self):
        class Two(nn.Linear):
            def forward(self, x):
                return x, x

        with pytest.raises(TypeError, match="module must return a tensor, got tuple"):
            errors_against_float64(Two(3, 3), torch.ones(3))

    def test_nothing_to_learn(self):
        with pytest.raises(ValueError, match="module must have a parameter that needs a gradient, got none"):
            errors_against_float64(nn.ReLU(), torch.ones(3))
