"""A training step in mixed precision."""

import contextlib
import copy
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


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("outer", [None, True, False], ids=["alone", "in autocast", "in autocast that is off"])
def test_twenty_steps_are_those_of_a_loop_by_hand(make, outer):
    generator = torch.Generator().manual_seed(1)
    (model, _), (by_hand, _) = fresh(), fresh()
    optimizer, optimizer_by_hand = (make(m.parameters(), lr=0.01) for m in (model, by_hand))
    scaler, scaler_by_hand = (GradScaler("cpu", init_scale=2.0**16, growth_interval=3) for _ in range(2))
    skipped = []
    for i in range(20):
        target = torch.randn(7, 2, generator=generator) * (1e6 if i in (3, 4, 11) else 1)
        x = torch.randn(7, 5, generator=generator)
        before = by_hand.weight.detach().clone()
        optimizer_by_hand.zero_grad()
        with torch.autocast("cpu", dtype=FP16):
            loss = loss_fn(by_hand, x, target)
        scaler_by_hand.scale(loss).backward()
        scaler_by_hand.unscale_(optimizer_by_hand)
        norm = nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5)
        scaler_by_hand.step(optimizer_by_hand)
        scaler_by_hand.update()
        step = amp_step(model, optimizer, loss_fn, x, target, dtype=FP16, scaler=scaler, max_norm=0.5)
        skipped.append(step.skipped)
        assert step.loss == loss.item()
        torch.testing.assert_close(step.grad_norm, norm.item(), rtol=0, atol=0, equal_nan=True)
        assert step.skipped == torch.equal(by_hand.weight, before)
        assert scaler.get_scale() == scaler_by_hand.get_scale()
        for p, q in zip(model.parameters(), by_hand.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=0)
    assert 2 < sum(skipped) < 10
    if outer is None:
        return
    (inside, _), losses = fresh(), []
    optimizer = make(inside.parameters(), lr=0.01)
    with torch.autocast("cpu", dtype=FP16, enabled=outer):  # its cache of weights must not outlive a step
        for _ in range(3):
            losses.append(amp_step(inside, optimizer, loss_fn, x, target, dtype=FP16).loss)
    assert losses[0] > losses[1] > losses[2]


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

    def test_a_scale_that_fell_to_almost_nothing(self, batch):
        model, optimizer = fresh()
        before = model.weight.detach().clone()
        scaler = GradScaler("cpu", init_scale=2.0**-125)
        for _ in range(2):
            assert amp_step(model, optimizer, lambda m, x, y: math.nan * m(x).sum(), *batch, dtype=FP16, scaler=scaler)
        for _ in range(2):
            with pytest.raises(
                FloatingPointError, match=r"the scale has fallen to 5\.877e-39: gradients were infinite"
            ):
                amp_step(model, optimizer, loss_fn, *batch, dtype=FP16, scaler=scaler)
        assert torch.equal(model.weight, before)

    def test_mode_is_kept(self, batch):
        model, optimizer = fresh()
        model.eval()
        amp_step(model, optimizer, loss_fn, *batch, dtype=BF16)
        assert not model.training


def test_sparse_gradients():
    rows, target = torch.tensor([1, 2, 2]), torch.ones(3, 3)
    norms, weights = [], []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Embedding(5, 3, sparse=sparse)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scaler = GradScaler("cpu", init_scale=8.0)
        step = amp_step(model, optimizer, loss_fn, rows, target, dtype=FP16, scaler=scaler, max_norm=0.25)
        norms.append(step.grad_norm)
        weights.append(model.weight.detach())
    assert norms[0] == pytest.approx(norms[1])
    assert norms[0] > 0.5
    torch.testing.assert_close(*weights)


def test_without_gradients_around_it(batch):
    (model, optimizer), (again, optimizer_again) = fresh(), fresh()
    with torch.no_grad():
        step = amp_step(model, optimizer, loss_fn, *batch, dtype=BF16)
        assert not torch.is_grad_enabled()
    assert step == amp_step(again, optimizer_again, loss_fn, *batch, dtype=BF16)
    torch.testing.assert_close(model.weight, again.weight, rtol=0, atol=0)


class TestAfterAnError:
    def test_of_the_loss_all_is_as_before(self, batch):
        model, optimizer = fresh()
        scaler = GradScaler("cpu", init_scale=8.0)
        amp_step(model, optimizer, loss_fn, *batch, dtype=FP16, scaler=scaler)
        before = [t.clone() for p in model.parameters() for t in (p.detach(), p.grad)]
        states = copy.deepcopy((scaler.state_dict(), optimizer.state_dict()))

        def fails(model, x, y):
            model(x)
            raise RuntimeError("on purpose")

        for loss, error in ((fails, RuntimeError), (lambda m, x, y: x.sum(), ValueError)):
            with pytest.raises(error):
                amp_step(model, optimizer, loss, *batch, dtype=FP16, scaler=scaler)
            after = [t for p in model.parameters() for t in (p.detach(), p.grad)]
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            assert (scaler.state_dict(), optimizer.state_dict()) == states
            assert not torch.is_autocast_enabled("cpu")

    def test_of_the_optimizer_the_scaler_goes_on(self, batch):
        class Fails(torch.optim.SGD):
            def step(self, closure=None):
                if self.param_groups[0]["lr"] == 0:
                    raise RuntimeError("on purpose")
                return super().step(closure)

        model, _ = fresh()
        optimizer, scaler = Fails(model.parameters(), lr=0), GradScaler("cpu", init_scale=8.0)
        with pytest.raises(RuntimeError, match="on purpose"):
            amp_step(model, optimizer, loss_fn, *batch, dtype=FP16, scaler=scaler)
        optimizer.param_groups[0]["lr"] = 0.1
        assert not amp_step(model, optimizer, loss_fn, *batch, dtype=FP16, scaler=scaler).skipped

    def test_float16_parameters_made_float32(self, batch):
        model, optimizer = fresh()
        scaler = GradScaler("cpu", init_scale=8.0)
        with contextlib.suppress(ValueError):
            amp_step(model.half(), optimizer, loss_fn, *batch, dtype=FP16, scaler=scaler)
        assert not amp_step(model.float(), optimizer, loss_fn, *batch, dtype=FP16, scaler=scaler).skipped


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
            ({"dtype": BF16, "max_norm": math.inf}, ValueError, "max_norm must be above 0 and finite, got inf"),
            ({"dtype": BF16, "max_norm": "1"}, TypeError, "max_norm must be a number, got str"),
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

    def test_an_optimizer_that_needs_a_closure(self, batch):
        model, _ = fresh()
        optimizer = torch.optim.LBFGS(model.parameters())
        with pytest.raises(ValueError, match="must make its step without a closure, got LBFGS, which needs one"):
            amp_step(model, optimizer, loss_fn, *batch, dtype=BF16)
        assert model.weight.grad is None

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
