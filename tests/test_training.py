"""`fit` and `repeat`: what they compute, when they stop, and what they refuse."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.training import fit, interval, repeat, t_quantile


def line() -> nn.Linear:
    """One weight and one bias, both 0."""
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def batch(x: float = 1.0, y: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[x]]), torch.tensor([[y]])


def sgd_fit(model: nn.Module, batches, **changes):
    options = {"loss": F.mse_loss, "steps": 1, "lr": 0.25, "optimizer": torch.optim.SGD} | changes
    return fit(model, batches, **options)


def test_two_steps_of_gradient_descent_by_hand():
    # loss = (w + b - 2)^2: 4, gradient -4 for both, w = b = 1 after lr .25; then loss 0
    model = line()
    done = sgd_fit(model, [batch()], steps=2)
    assert_close(done.losses, np.array([4.0, 0.0]))
    assert_close(model.weight.detach(), torch.tensor([[1.0]]))
    assert_close(model.bias.detach(), torch.tensor([1.0]))
    assert done.stopped is False


def test_several_inputs_reach_the_model():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, a, b):
            return self.weight * (a + 2 * b)

    done = sgd_fit(Sum(), [(torch.tensor(1.0), torch.tensor(3.0), torch.tensor(5.0))])
    assert_close(done.losses, np.array([4.0]))


def test_clip_shortens_the_whole_gradient():
    # the gradient is (-4, -4), of norm 4 sqrt 2; cut to norm 1 each part is -1 / sqrt 2
    model = line()
    sgd_fit(model, [batch()], clip=1.0)
    assert_close(model.weight.item(), 0.25 / math.sqrt(2), rtol=1e-4, atol=0)
    assert_close(model.bias.item(), 0.25 / math.sqrt(2), rtol=1e-4, atol=0)


def test_clip_leaves_a_shorter_gradient_alone():
    model = line()
    sgd_fit(model, [batch()], clip=100.0)
    assert_close(model.weight.item(), 1.0)


def test_learning_rate_may_follow_the_step():
    seen = []
    model = line()

    def rate(step: int) -> float:
        seen.append(step)
        return 0.0 if step == 1 else 0.25

    done = sgd_fit(model, [batch()], steps=3, lr=rate)
    assert set(seen) == {1, 2, 3}
    assert_close(done.losses, np.array([4.0, 4.0, 0.0]))


def test_adam_is_the_default():
    mine, theirs = line(), line()
    fit(mine, [batch()], loss=F.mse_loss, steps=3, lr=0.1)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(theirs(batch()[0]), batch()[1]).backward()
        optimizer.step()
    assert_close(mine.weight, theirs.weight, rtol=0, atol=0)


def test_each_batch_is_used_once_and_no_further_one_is_drawn():
    supply = iter([batch(y=float(y)) for y in range(5)])
    done = sgd_fit(line(), supply, steps=3, lr=0.0)
    assert_close(done.losses, np.array([0.0, 1.0, 4.0]))
    assert next(supply)[1].item() == 3.0


def test_a_list_starts_anew():
    done = sgd_fit(line(), [batch(y=1.0), batch(y=3.0)], steps=5, lr=0.0)
    assert_close(done.losses, np.array([1.0, 9.0, 1.0, 9.0, 1.0]))


def test_a_frozen_parameter_stays():
    model = line()
    model.bias.requires_grad_(False)
    sgd_fit(model, [batch()], steps=4)
    assert model.bias.item() == 0.0
    assert model.weight.item() > 1.0


def test_callback_sees_the_step_after_its_update_and_stops():
    seen = []
    model = line()

    def callback(step: int, loss: float) -> bool:
        seen.append((step, loss, model.weight.item()))
        return step == 2

    done = sgd_fit(model, [batch()], steps=9, callback=callback)
    assert seen == [(1, 4.0, 1.0), (2, 0.0, 1.0)]
    assert done.stopped is True
    assert len(done.losses) == 2


def test_callback_that_returns_none_goes_on():
    done = sgd_fit(line(), [batch()], steps=3, callback=lambda step, loss: None)
    assert len(done.losses) == 3
    assert done.stopped is False


def mixed_modes() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)).eval()
    model[1].train()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_trains_in_training_mode_and_puts_the_modes_back():
    model = mixed_modes()
    inside = []
    sgd_fit(model, [batch()], callback=lambda step, loss: inside.extend(modes(model)))
    assert inside == [True, True, True]
    assert modes(model) == [False, False, True]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_the_model_whole(kind):
    model = mixed_modes()

    def callback(step: int, loss: float) -> None:
        if step == 2:
            raise kind

    with pytest.raises(kind):
        sgd_fit(model, [batch()], steps=5, callback=callback)
    assert modes(model) == [False, False, True]
    assert all(p.grad is None for p in model.parameters())
    assert len(sgd_fit(model, [batch()], steps=2).losses) == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_names_the_step(bad):
    model = line()
    with pytest.raises(FloatingPointError, match=rf"the loss is {bad} at step 3"):
        sgd_fit(model, [batch(), batch(), batch(y=bad)], steps=5, lr=0.125)
    assert_close(model.weight.item(), 0.75)  # two updates: w + b = 1, then 1.5
    assert model.weight.grad is None


def test_a_gradient_that_is_not_finite_names_the_step():
    model = line()  # the root of 0: loss 0, slope infinite
    with pytest.raises(FloatingPointError, match=r"norm of the gradient is (inf|nan) at step 1, with a loss of 0"):
        sgd_fit(model, [batch()], loss=lambda out, target: out.sqrt().sum())
    assert model.weight.item() == 0.0


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        ({"model": torch.sin}, TypeError, "model must be an nn.Module, got builtin"),
        ({"steps": 1.0}, TypeError, "steps must be an integer, got float"),
        ({"steps": True}, TypeError, "steps must be an integer, got bool"),
        ({"batches": [torch.ones(2, 1)]}, TypeError, r"a batch must be a tuple .*, got Tensor at step 1"),
        ({"loss": lambda out, target: 1.0}, TypeError, "loss must return a tensor, got float"),
        ({"callback": lambda step, loss: loss}, TypeError, "callback must return None or a bool, got float"),
        ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
        ({"lr": -0.1}, ValueError, "lr must be finite and at least 0, got -0.1 at step 1"),
        ({"lr": math.nan}, ValueError, "lr must be finite and at least 0, got nan"),
        ({"lr": lambda step: math.inf if step == 2 else 0.1, "steps": 2}, ValueError, "got inf at step 2"),
        ({"clip": 0.0}, ValueError, "clip must be above 0 or None, got 0"),
        ({"clip": math.nan}, ValueError, "clip must be above 0 or None, got nan"),
        ({"model": nn.ReLU()}, ValueError, "model must have a parameter that requires a gradient"),
        ({"model": line().requires_grad_(False)}, ValueError, "model must have a parameter that requires a gradient"),
        ({"batches": []}, ValueError, "batches ran out: steps is 1, got 0 batches"),
        ({"batches": iter([batch()]), "steps": 2}, ValueError, "batches ran out: steps is 2, got 1 batches"),
        ({"batches": [(torch.ones(1, 1),)]}, ValueError, "a batch must hold inputs and a target, got 1 at step 1"),
        ({"loss": lambda out, target: torch.cat([out, out])}, ValueError, r"loss must return one element.*\(2, 1\)"),
        ({"loss": lambda out, target: out.detach().sum()}, ValueError, "loss must depend on the model's parameters"),
    ],
)
@pytest.mark.unchecked
def test_fit_refuses(changes, kind, match):
    arguments = {"model": line(), "batches": [batch()]} | changes
    with pytest.raises(kind, match=match):
        sgd_fit(arguments.pop("model"), arguments.pop("batches"), **arguments)


def test_interval_by_hand():
    # 1, 2, 3, 4, 5: mean 3, s^2 = 10 / 4, half-width 2.776445 sqrt(2.5) / sqrt(5) = 1.963243
    found = repeat(lambda seed: seed + 1, 5)
    assert_close(found.values, np.arange(1.0, 6.0))
    assert_close(found.mean.item(), 3.0)
    assert_close(found.low.item(), 1.036757, rtol=0, atol=1e-6)
    assert_close(found.high.item(), 4.963243, rtol=0, atol=1e-6)


def test_interval_of_two_runs_for_every_entry_of_an_array():
    # 0 and 2: mean 1, s = sqrt 2, half-width 12.706205; 7 and 7: no spread
    found = repeat(lambda seed: np.array([2.0 * seed, 7.0]), range(2))
    assert found.values.shape == (2, 2)
    assert_close(found.mean, np.array([1.0, 7.0]))
    assert_close(found.low, np.array([-11.706205, 7.0]), rtol=0, atol=1e-5)
    assert_close(found.high, np.array([13.706205, 7.0]), rtol=0, atol=1e-5)


def test_interval_of_a_table_takes_the_runs_from_the_first_axis():
    table = np.array([[1.0, 7.0], [2.0, 7.0], [3.0, 7.0], [4.0, 7.0], [5.0, 7.0]])
    found = interval(table)
    assert_close(found.mean, np.array([3.0, 7.0]))
    assert_close(found.low, np.array([1.036757, 7.0]), rtol=0, atol=1e-6)
    assert_close(found.high, np.array([4.963243, 7.0]), rtol=0, atol=1e-6)
    assert found.values is table


def test_one_run_has_no_interval():
    found = repeat(lambda seed: 4.0, 1)
    assert found.mean.item() == 4.0
    assert math.isnan(found.low.item())
    assert math.isnan(found.high.item())


def test_an_infinite_result_is_kept():
    found = repeat(lambda seed: math.inf if seed == 1 else 2.0, 3)
    assert found.mean.item() == math.inf
    assert math.isnan(found.low.item())
    assert_close(found.values, np.array([2.0, math.inf, 2.0]))


def test_seeds_arrive_as_given_from_any_iterable():
    seen = []
    repeat(lambda seed: seen.append(seed) or 0.0, (seed for seed in (5, 3, np.int64(8))))
    assert seen == [5, 3, 8]
    assert all(type(seed) is int for seed in seen)


@pytest.mark.parametrize(
    ("fn", "seeds", "kind", "match"),
    [
        (float, 2.5, TypeError, "seeds must be an integer or integers, got float"),
        (float, [0, 1.5], TypeError, "seeds must be integers, got float"),
        (float, 0, ValueError, "seeds must hold at least one seed, got none"),
        (float, [4, 1, 4], ValueError, "seeds must differ, got 4 twice"),
        (np.ones, 3, ValueError, r"one shape, got \(0,\), then \(1,\) for seed 1$"),
    ],
)
@pytest.mark.unchecked
def test_repeat_refuses(fn, seeds, kind, match):
    with pytest.raises(kind, match=match):
        repeat(fn, seeds)


@pytest.mark.parametrize("values", [np.zeros((0, 3)), np.array(1.0)])
@pytest.mark.unchecked
def test_interval_refuses(values):
    with pytest.raises(ValueError, match="values must hold at least one run, got shape"):
        interval(values)


@pytest.mark.parametrize(
    ("df", "printed"),  # as in printed tables
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_t_quantile_equals_the_printed_tables(df, printed):
    assert_close(t_quantile(df), printed, rtol=0, atol=5.1e-4)


@pytest.mark.unchecked
def test_t_quantile_refuses():
    with pytest.raises(ValueError, match="df must be at least 1, got 0"):
        t_quantile(0)


@pytest.mark.unchecked
def test_a_forgotten_return_is_named():
    with pytest.raises(TypeError, match=r"^fn must return a number or an array, got None: is a return missing\?$"):
        repeat(lambda seed: None, 2)


def test_repeat_takes_tensors_that_require_a_gradient():
    found = repeat(lambda seed: torch.tensor(float(seed), requires_grad=True), [1, 3])
    assert found.mean == 2


def test_no_gradient_is_left_in_any_parameter():
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    model.bias.grad = torch.ones(1)
    other = nn.Parameter(torch.zeros(1))
    model.register_parameter("other", other)  # not handed to the optimizer below

    def of_weight_alone(parameters, lr):
        return torch.optim.SGD([p for p in parameters if p is not other], lr=lr)

    def loss(out, target):
        return (out + other - target).square().mean()

    batch = (torch.ones(3, 2), torch.zeros(3, 1))
    fit(model, [batch], loss=loss, steps=3, lr=0.1, optimizer=of_weight_alone)
    assert all(p.grad is None for p in model.parameters())
