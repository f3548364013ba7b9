"""How a step of mixed precision training is called, and its parts: for the second exercise of notebook 13."""

import numbers
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_

from mha_course.checks.calls import Problem
from mha_course.checks.task import Case, by_steps

Fn = Callable[..., Any]
IN, WIDTH, SAMPLES = 2, 3, 5
RATE = 0.125
LARGE = 1000.0  # a target whose scaled gradient is more than float16 holds

_PLAIN = "a number, the loss"
_TWICE_HINTS = (
    "Count the calls of update in one step.",
    "Call scaler.update() once, after scaler.step(optimizer).",
)
_RETURN_HINTS = ("Look at the return line.", f"Return {_PLAIN}: loss.item(), or the tensor.")


def _case(steps: int, scale: float, max_norm: float, interval: int = 2000, large: int = -1, note: str = "") -> Case:
    sizes = {"steps": steps, "n": WIDTH * (IN + 2) + 1}
    return Case(sizes, (steps, scale, max_norm, interval, large), note, 1e-3)


def step_cases() -> tuple[Case, ...]:
    """An ordinary scale, then gradients that are clipped, not clipped, infinite, and scales that grow."""
    _warm_up()
    return (
        _case(3, 2.0**10, 0.25, note="gradients are clipped"),
        _case(2, 2.0, 1e6, note="no gradient is clipped, a small scale"),
        _case(3, 2.0**10, 0.25, large=1, note="the gradients of step 1 overflow"),
        _case(3, 2.0**10, 1e6, large=1, note="the gradients of step 1 overflow, no gradient is clipped"),
        _case(5, 2.0, 0.5, interval=2, note="a small scale, which grows every other step"),
        _case(1, 2.0**12, 0.25),
    )


@cache
def _warm_up() -> None:
    """Take a step: with the first optimizer PyTorch loads its compiler, seconds that no solution is to answer for."""
    run_steps(stepped(), 1, 2.0, 1.0, 1, -1)


def run_steps(fn: Fn, steps: int, scale: float, max_norm: float, interval: int, large: int) -> Any:
    """Call a solution step by step: what it returns, and after each step the weights and the scale.

    Weights and inputs are multiples of 1/8, so that the first products are exact on every machine.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(*sizes: int) -> Tensor:
        return torch.randint(-8, 9, sizes, generator=generator) / 8

    model = nn.Sequential(nn.Linear(IN, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    for p in model.parameters():
        p.data = drawn(*p.shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
    scaler = _Counting("cpu", init_scale=scale, growth_interval=interval)
    digits: list[int] = []

    def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        digits.append(_digits(model))
        return nn.functional.mse_loss(model(x).float(), y)

    losses, weights, scales, seen = [], [], [], []
    for step in range(steps):
        digits.clear()
        scaler.updates = 0
        y = drawn(SAMPLES, 1) + (LARGE if step == large else 3)
        try:
            returned = fn(model, optimizer, scaler, loss_fn, (drawn(SAMPLES, IN), y), max_norm)
        except AssertionError:  # a second update finds what a step without the scaler leaves: nothing
            if scaler.updates > 1:
                return Problem("scaler.update() is called twice in one step", f"in step {step}", _TWICE_HINTS)
            raise
        loss = _number(returned)
        if isinstance(loss, Problem):
            return loss
        losses.append(loss)
        weights.append(torch.cat([p.detach().flatten().double() for p in model.parameters()]))
        scales.append(scaler.get_scale())
        seen.append(digits[0] if digits else 0)
    made = torch.tensor([losses, scales, seen], dtype=torch.float64)
    return made[0], torch.stack(weights), made[1], made[2]


class _Counting(GradScaler):
    """Counts the updates in one step."""

    updates = 0

    def update(self, new_scale: Any = None) -> None:
        self.updates += 1
        super().update(new_scale)


def _digits(model: nn.Module) -> int:
    """The fraction bits with which a product is made now."""
    dtype = next(model.parameters()).dtype
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
    return {torch.float16: 10, torch.bfloat16: 7}.get(dtype, 23)


def _number(returned: Any) -> float | Problem:
    if returned is None:
        return Problem("it returns None, perhaps the return is missing", f"expected {_PLAIN}", _RETURN_HINTS)
    if isinstance(returned, np.ndarray) and returned.size == 1 and np.issubdtype(returned.dtype, np.floating):
        return float(returned.item())
    if isinstance(returned, Tensor) and returned.numel() == 1 and returned.is_floating_point():
        return returned.item()
    if isinstance(returned, numbers.Real) and not isinstance(returned, bool):
        return float(returned)
    what = f"a tensor of shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else type(returned).__name__
    return Problem(f"it returns {what} instead of one number", f"expected {_PLAIN}", _RETURN_HINTS)


def under(dtype: torch.dtype | None) -> Fn:
    """The loss under autocast in that type, or without it."""

    def forward(loss_fn: Fn, model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=dtype or torch.float16, enabled=dtype is not None):
            return loss_fn(model, *batch)

    return forward


def scaled(scaler: Any, loss: Tensor) -> Tensor:
    """Backward of the scaled loss."""
    scaled = scaler.scale(loss)
    scaled.backward()
    return scaled


def unscaled(scaler: Any, loss: Tensor) -> Tensor:
    """Backward of the loss, though the scaler has been asked."""
    scaled = scaler.scale(loss)
    loss.backward()
    return scaled


def never_scaled(scaler: Any, loss: Tensor) -> Tensor:
    """Backward of the loss, without the scaler."""
    loss.backward()
    return loss


def backward_alone(scaler: Any, loss: Tensor) -> Tensor:
    """Backward under autocast."""
    with torch.autocast("cpu", dtype=torch.float16):
        return scaled(scaler, loss)


def clipped(model: nn.Module, max_norm: float) -> Any:
    """All gradients together have at most that norm."""
    return clip_grad_norm_(model.parameters(), max_norm)


def unscale_then(clip: Fn) -> Fn:
    """Unscale, then clip."""

    def prepare(scaler: Any, optimizer: Any, model: nn.Module, max_norm: float) -> Any:
        scaler.unscale_(optimizer)
        return clip(model, max_norm)

    return prepare


def clip_alone(scaler: Any, optimizer: Any, model: nn.Module, max_norm: float) -> Any:
    """Clip what is still scaled."""
    return clipped(model, max_norm)


def clip_then_unscale(scaler: Any, optimizer: Any, model: nn.Module, max_norm: float) -> Any:
    """Clip what is still scaled, then unscale."""
    norm = clipped(model, max_norm)
    scaler.unscale_(optimizer)
    return norm


def divide_too(scaler: Any, optimizer: Any, model: nn.Module, max_norm: float) -> Any:
    """Divide by the scale; the scaler does so again."""
    for p in model.parameters():
        p.grad /= scaler.get_scale()
    return clipped(model, max_norm)


def finite(scaler: Any, optimizer: Any, model: nn.Module, max_norm: float) -> Any:
    """Replace what is not finite, so that the scaler sees nothing of it."""
    for p in model.parameters():
        if p.grad is not None:
            p.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    scaler.unscale_(optimizer)
    return clipped(model, max_norm)


def cleared(to_none: bool) -> Fn:
    """Clear the gradients that backward has just made."""

    def prepare(scaler: Any, optimizer: Any, model: nn.Module, max_norm: float) -> Any:
        optimizer.zero_grad(set_to_none=to_none)
        scaler.unscale_(optimizer)
        return clipped(model, max_norm)

    return prepare


def each_alone(model: nn.Module, max_norm: float) -> Any:
    """Each gradient has at most that norm."""
    return [clip_grad_norm_(p, max_norm) for p in model.parameters()]


def update_first(scaler: Any, optimizer: Any) -> None:
    """Update before the step."""
    scaler.update()
    scaler.step(optimizer)


def both_steps(scaler: Any, optimizer: Any) -> None:
    """A step of the scaler and one of the optimizer."""
    scaler.step(optimizer)
    optimizer.step()


def nothing(*_: Any) -> None:
    """Leave out a part."""
    pass


_in_half = under(torch.float16)
_prepared = unscale_then(clipped)


@by_steps
def stepped(
    clear: Fn = lambda optimizer: optimizer.zero_grad(),
    forward: Fn = _in_half,
    backward: Fn = scaled,
    prepare: Fn = _prepared,
    move: Fn = lambda scaler, optimizer: scaler.step(optimizer),
    update: Fn = lambda scaler: scaler.update(),
    give: Fn = lambda loss, scaled, norm, again: loss,
) -> Fn:
    """A step of training, with some parts of it changed.

    Args:
        clear: called with the optimizer, first of all.
        forward: from loss function, model and batch to the loss.
        backward: called with scaler and loss; returns the scaled loss.
        prepare: called with scaler, optimizer, model and max_norm: unscales and clips; returns the norm.
        move: called with scaler and optimizer.
        update: called with the scaler.
        give: from loss, scaled loss, norm and a function for the loss of now to what is returned.
    """

    def fn(model: nn.Module, optimizer: Any, scaler: Any, loss_fn: Fn, batch: Any, max_norm: float) -> Any:
        clear(optimizer)
        loss = forward(loss_fn, model, batch)
        scaled = backward(scaler, loss)
        norm = prepare(scaler, optimizer, model, max_norm)
        move(scaler, optimizer)
        update(scaler)
        return give(loss, scaled, norm, lambda: forward(loss_fn, model, batch))

    return fn
