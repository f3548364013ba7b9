"""A training step in mixed precision, with everything in its order."""

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from mha_course.precision._inputs import check_real


class AmpStep(NamedTuple):
    """What one training step did.

    Attributes:
        loss: the loss, not scaled, before the update.
        grad_norm: the norm of the gradient of all parameters together, not scaled, before clipping.
        scale: what the loss was multiplied by.
        skipped: whether the scaler left the parameters as they were, as a gradient was infinite or NaN.
    """

    loss: float
    grad_norm: float
    scale: float
    skipped: bool


def amp_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[..., Tensor],
    *batch: Any,
    dtype: torch.dtype,
    scaler: GradScaler | None = None,
    max_norm: float | None = None,
) -> AmpStep:
    """Train for one step: forward under autocast, zero the gradients, backward, unscale, clip, step, update the scale.

    The parameters stay in float32. The backward pass runs outside autocast, in the types of the forward pass; an
    autocast or no_grad around the call has no effect. Gradients are clipped after they are divided by the scale. If
    loss_fn raises, everything is as before. Works on every device that autocast knows.

    Args:
        model: in float32. It is left in the mode it is in.
        optimizer: of its parameters; one whose step needs no closure.
        loss_fn: called as loss_fn(model, *batch) inside autocast, returns a tensor with one element.
        batch: passed on.
        dtype: torch.bfloat16 or torch.float16; torch.float32 runs without autocast.
        scaler: float16 needs one where gradients are small, `torch.amp.GradScaler(device_type)`; None does not scale.
        max_norm: largest norm of the gradient; None does not clip.

    Returns:
        AmpStep(loss, grad_norm, scale, skipped). After a step, or a skipped one, the gradients are still there.

    Raises:
        TypeError: dtype is not a floating point type; max_norm is not a number; loss_fn does not return a tensor.
        ValueError: dtype is another; max_norm is not above 0, or infinite; the optimizer needs a closure; the loss
            has several elements or does not depend on what the optimizer holds; a parameter is in float16 and there
            is a scaler.
        FloatingPointError: a gradient is infinite or NaN, and there is no scaler to skip the step; or so many steps
            were skipped that the scale is too small to divide by. The parameters are as before.

    Source: Micikevicius et al. 2018, section 3.2 (loss scaling).
    """
    device = _check(model, optimizer, dtype, max_norm)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    scaler = GradScaler(device, enabled=False) if scaler is None else scaler
    scale = scaler.get_scale()
    if scale < torch.finfo(torch.float32).tiny:  # 1 / scale would be infinite, which the scaler does not see
        raise FloatingPointError(f"the scale has fallen to {scale:.4g}: gradients were infinite or NaN at every scale")
    low = dtype != torch.float32
    # Within an autocast around the call, its cache of converted weights would outlive the step that changes them.
    options: dict[str, Any] = {"dtype": dtype if low else torch.bfloat16, "enabled": low, "cache_enabled": False}
    with torch.enable_grad(), torch.autocast(device, **options):
        loss = _check_loss(loss_fn(model, *batch))
    optimizer.zero_grad()
    with torch.enable_grad(), torch.autocast(device, enabled=False):
        scaler.scale(loss).backward()
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        raise ValueError("the loss must depend on a parameter that the optimizer holds, got one that does not")
    scaler.unscale_(optimizer)  # notes infinities; clipping may turn them into NaN afterwards
    values = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    finite = all(bool(torch.isfinite(v).all()) for v in values)  # the scale tells nothing where it may not fall
    norm = nn.utils.get_total_norm(values)
    if not finite and not scaler.is_enabled():
        raise FloatingPointError(f"a gradient is infinite or NaN, with a loss of {loss.item():.4g}")
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    try:
        scaler.step(optimizer)
    finally:
        scaler.update()  # else the scaler refuses the next step, if this one raises
    return AmpStep(loss.item(), norm.item(), scale, not finite)


def _check(model: nn.Module, optimizer: torch.optim.Optimizer, dtype: torch.dtype, max_norm: float | None) -> str:
    """Return the device type of the model; raise for what is wrong."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating point type, got {dtype}")
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype must be torch.float32, torch.bfloat16 or torch.float16, got {dtype}")
    if max_norm is not None and not 0 < check_real("max_norm", max_norm) < math.inf:
        raise ValueError(f"max_norm must be above 0 and finite, got {max_norm}")
    try:
        inspect.signature(optimizer.step).bind()
    except TypeError:
        what = type(optimizer).__name__
        raise ValueError(f"optimizer must make its step without a closure, got {what}, which needs one") from None
    return next((p.device.type for p in model.parameters()), "cpu")


def _check_loss(loss: Tensor) -> Tensor:
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_fn must return a tensor, got {type(loss).__name__}")
    if loss.numel() != 1:
        raise ValueError(f"loss_fn must return one element, got shape {tuple(loss.shape)}")
    if not loss.requires_grad:
        raise ValueError("the loss must depend on a parameter that the optimizer holds, got a constant")
    return loss
