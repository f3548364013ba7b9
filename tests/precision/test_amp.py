"""A training step in mixed precision."""

import math

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional as F

from mha_course.precision import amp_step

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def loss_fn(model, x, y):
    return F.mse_loss(model(x).float(), y)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(7, 5, generator=generator), torch.randn(7, 2, generator=generator)


def fresh(lr=0.125):
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


@pytest.mark.parametrize("max_norm", [None, 0.25])
@pytest.mark.parametrize(
    ("dtype", "scaled", "tolerance"),
    [(FP32, False, 1e-6), (BF16, False, 2e-2), (FP16, True, 2e-3), (FP16, False, 2e-3)],
)
def test_a_step_is_that_of_float64(batch, dtype, scaled, tolerance, max_norm):
    model, optimizer = fresh()
    scaler = GradScaler("cpu", init_scale=1024.0) if scaled else None
    exact = nn.Linear(5, 2).double()
    exact.load_state_dict(model.state_dict())
    output = exact(batch[0].double())
    loss = F.mse_loss(output, batch[1].double())
    gradients = torch.autograd.grad(loss, list(exact.parameters()))
    norm = torch.cat([g.flatten() for g in gradients]).norm().item()
    factor = 0.125 * (min(1.0, max_norm / norm) if max_norm else 1.0)
    want = [p.detach() - factor * g for p, g in zip(exact.parameters(), gradients, strict=True)]
    step = amp_step(model, optimizer, loss_fn, *batch, dtype=dtype, scaler=scaler, max_norm=max_norm)
    assert norm > 0.5  # so that clipping cuts
    assert not step.skipped
    assert step.scale == (1024 if scaled else 1)
    assert step.loss == pytest.approx(loss.item(), rel=tolerance)
    assert step.grad_norm == pytest.approx(norm, rel=tolerance)
    for p, w in zip(model.parameters(), want, strict=True):
        torch.testing.assert_close(p.detach().double(), w, rtol=tolerance, atol=tolerance * factor)


def test_gradients_of_the_last_step_are_dropped(batch):
    (model, optimizer), (again, optimizer_again) = fresh(0.0), fresh(0.0)
    norms = [amp_step(model, optimizer, loss_fn, *batch, dtype=BF16).grad_norm for _ in range(3)]
    assert len(set(norms)) == 1
    again.weight.grad = torch.full((2, 5), 1e6)
    assert amp_step(again, optimizer_again, loss_fn, *batch, dtype=BF16).grad_norm == norms[0]


def test_clipping_comes_after_unscaling(batch):
    model, optimizer = fresh()
    scaler = GradScaler("cpu", init_scale=2.0**12)
    amp_step(model, optimizer, loss_fn, *batch, dtype=FP16, scaler=scaler, max_norm=0.25)
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.testing.assert_close(norm, torch.tensor(0.25), rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_forward_is_under_autocast_and_backward_is_not(batch, dtype):
    seen = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(x.dtype)
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            seen.append((g.dtype, torch.is_autocast_enabled("cpu")))
            return g

    def loss(model, x, y):
        return F.mse_loss(Watched.apply(model(x)).float(), y)

    model, optimizer = fresh()
    with torch.autocast("cpu", dtype=FP16 if dtype == BF16 else BF16):  # has no effect
        amp_step(model, optimizer, loss, *batch, dtype=dtype)
    assert seen == [dtype, (dtype, False)]


class TestSkipped:
    def test_infinite_gradient(self, batch):
        model, optimizer = fresh()
        before = [p.detach().clone() for p in model.parameters()]
        scaler = GradScaler("cpu", init_scale=2.0**40, growth_interval=1)
        step = amp_step(model, optimizer, loss_fn, *batch, dtype=FP16, scaler=scaler, max_norm=1.0)
        assert step.skipped
        assert not math.isfinite(step.grad_norm)
        assert math.isfinite(step.loss)
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert (step.scale, scaler.get_scale()) == (2.0**40, 2.0**39)

    def test_seen_where_the_scale_does_not_fall(self, batch):
        model, optimizer = fresh()
        scaler = GradScaler("cpu", init_scale=2.0**40, backoff_factor=1 - 1e-16)
        scales = []
        for _ in range(2):
            assert amp_step(model, optimizer, loss_fn, *batch, dtype=FP16, scaler=scaler).skipped
            scales.append(scaler.get_scale())
        assert scales == [2.0**40] * 2

    def test_a_scale_that_grows_is_not_a_skip(self, batch):
        model, optimizer = fresh()
        scaler = GradScaler("cpu", init_scale=8.0, growth_interval=1)
        steps = [amp_step(model, optimizer, loss_fn, *batch, dtype=FP16, scaler=scaler) for _ in range(3)]
        assert [step.skipped for step in steps] == [False] * 3
        assert [step.scale for step in steps] == [8, 16, 32]
        assert steps[2].loss < steps[0].loss

    def test_it_comes_down_until_it_fits(self, batch):
        model, optimizer = fresh()
        scaler = GradScaler("cpu", init_scale=2.0**24)
        skipped = [amp_step(model, optimizer, loss_fn, *batch, dtype=FP16, scaler=scaler).skipped for _ in range(20)]
        assert skipped[0]
        assert not skipped[-1]
        assert sorted(skipped, reverse=True) == skipped

    def test_a_scaler_that_is_off(self, batch):
        model, optimizer = fresh()
        step = amp_step(model, optimizer, loss_fn, *batch, dtype=BF16, scaler=GradScaler("cpu", enabled=False))
        assert (step.scale, step.skipped) == (1, False)

    def test_mode_is_kept(self, batch):
        model, optimizer = fresh()
        model.eval()
        amp_step(model, optimizer, loss_fn, *batch, dtype=BF16)
        assert not model.training


@pytest.mark.unchecked
class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "error", "says"),
        [
            ({"dtype": torch.int8}, TypeError, "dtype must be a floating point type, got torch.int8"),
            ({"dtype": "float16"}, TypeError, "dtype must be a floating point type, got float16"),
            ({"dtype": torch.float64}, ValueError, "dtype must be torch.float32, .*, got torch.float64"),
            ({"dtype": BF16, "max_norm": 0.0}, ValueError, "max_norm must be above 0 and finite, got 0.0"),
            ({"dtype": BF16, "max_norm": math.nan}, ValueError, "max_norm must be above 0 and finite, got nan"),
        ],
    )
    def test_options(self, batch, options, error, says):
        model, optimizer = fresh()
        with pytest.raises(error, match=says):
            amp_step(model, optimizer, loss_fn, *batch, **options)

    @pytest.mark.parametrize(
        ("loss", "error", "says"),
        [
            (lambda m, x, y: 1.0, TypeError, "loss_fn must return a tensor, got float"),
            (lambda m, x, y: m(x), ValueError, r"loss_fn must return one element, got shape \(7, 2\)"),
            (
                lambda m, x, y: x.sum(),
                ValueError,
                "must depend on a parameter that the optimizer holds, got a constant",
            ),
        ],
    )
    def test_loss(self, batch, loss, error, says):
        model, optimizer = fresh()
        with pytest.raises(error, match=says):
            amp_step(model, optimizer, loss, *batch, dtype=BF16)

    def test_parameters_of_another_model(self, batch):
        (model, _), (_, optimizer) = fresh(), fresh()
        with pytest.raises(ValueError, match="that the optimizer holds, got one that does not"):
            amp_step(model, optimizer, loss_fn, *batch, dtype=BF16)

    def test_float16_parameters_with_a_scaler(self, batch):
        model = nn.Linear(5, 2).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match="FP16"):
            amp_step(model, optimizer, loss_fn, *batch, dtype=FP16, scaler=GradScaler("cpu"))

    def test_infinite_gradient_without_a_scaler(self, batch):
        model, optimizer = fresh()
        before = model.weight.detach().clone()
        with pytest.raises(FloatingPointError, match="a gradient is infinite or NaN, with a loss of"):
            amp_step(model, optimizer, lambda m, x, y: 1e9 * m(x).sum(), *batch, dtype=FP16)
        assert torch.equal(model.weight, before)
