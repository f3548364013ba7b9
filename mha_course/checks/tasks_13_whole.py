"""Wrong steps of mixed precision training that no exchange of single parts makes: for notebook 13."""

from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, get_total_norm

from mha_course.checks.tasks_13_run import Fn, clipped, scaled, stepped, under


def own_scaler(scale: float) -> Fn:
    """Each step makes its own scaler."""

    def fn(model: nn.Module, optimizer: Any, scaler: Any, *others: Any) -> Any:
        return stepped()(model, optimizer, torch.amp.GradScaler("cpu", init_scale=scale), *others)

    return fn


def half(model: nn.Module, optimizer: Any, scaler: Any, loss_fn: Fn, batch: Any, max_norm: float) -> Any:
    """The model is made float16."""
    fn = stepped(forward=under(None))
    return fn(model.half(), optimizer, scaler, loss_fn, tuple(x.half() for x in batch), max_norm)


def gives_scale(model: nn.Module, optimizer: Any, scaler: Any, *others: Any) -> float:
    """The scale is returned."""
    stepped()(model, optimizer, scaler, *others)
    return float(scaler.get_scale())


def by_hand(scale: float | None) -> Fn:
    """The loss is multiplied, the gradients are divided, and no gradient is looked at."""

    def fn(model: nn.Module, optimizer: Any, scaler: Any, loss_fn: Fn, batch: Any, max_norm: float) -> Any:
        factor: Any = scale or scaler.get_scale()
        optimizer.zero_grad()
        loss = under(torch.float16)(loss_fn, model, batch)
        (loss * factor).backward()
        for p in model.parameters():
            p.grad /= factor
        clipped(model, max_norm)
        optimizer.step()
        return loss

    return fn


def no_update_if_skipped(
    model: nn.Module, optimizer: Any, scaler: Any, loss_fn: Fn, batch: Any, max_norm: float
) -> Any:
    """Step and update only with finite gradients."""
    optimizer.zero_grad()
    loss = under(torch.float16)(loss_fn, model, batch)
    scaled(scaler, loss)
    scaler.unscale_(optimizer)
    if torch.isfinite(clipped(model, max_norm)):
        scaler.step(optimizer)
        scaler.update()
    return loss


def both_backward(scaler: Any, loss: Any) -> Any:
    """Backward of the loss and of the scaled loss."""
    loss.backward(retain_graph=True)
    return scaled(scaler, loss)


def without_graph(scaler: Any, loss: Any) -> Any:
    """Backward of a loss that has lost its graph."""
    return scaled(scaler, loss.detach())


def unscale_twice(scaler: Any, optimizer: Any, model: nn.Module, max_norm: float) -> Any:
    """Unscale two times, then clip."""
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)
    return clipped(model, max_norm)


def clip_to_divided(scaler: Any, optimizer: Any, model: nn.Module, max_norm: float) -> Any:
    """Clip what is scaled, to max_norm divided by the scale."""
    return clipped(model, max_norm / scaler.get_scale())


def step_then_unscale(scaler: Any, optimizer: Any) -> None:
    """Unscale after the step."""
    scaler.step(optimizer)
    scaler.unscale_(optimizer)


def lengthen_too(model: nn.Module, max_norm: float) -> None:
    """All gradients together have that norm, be they smaller."""
    norm = get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= max_norm / norm


def clip_by(norm_type: float) -> Fn:
    """Another norm."""
    return lambda model, max_norm: clip_grad_norm_(model.parameters(), max_norm, norm_type)
