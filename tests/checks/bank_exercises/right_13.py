"""Right solutions of the exercises of notebook 13, in many styles."""

import numpy as np
import torch
from torch.nn import functional as F

from tests.checks.bank_exercises import right

softmax, step = "stable_softmax", "training_step"


@right(softmax)
def with_where(scores):
    m = scores.amax(-1, keepdim=True)
    m = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    e = torch.exp(scores - m)
    total = e.sum(-1, keepdim=True)
    return torch.where(total == 0, torch.zeros_like(e), e / total)


@right(softmax)
def nan_afterwards(scores):
    e = (scores - scores.max(dim=-1, keepdim=True).values).exp()
    return torch.nan_to_num(e / e.sum(dim=-1, keepdim=True), nan=0.0)


@right(softmax)
def of_the_library(scores):
    return F.softmax(scores, dim=-1).nan_to_num(0.0)


@right(softmax)
def in_float32(scores):
    x = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    x = x - x.max(-1, keepdim=True)[0].clamp(min=torch.finfo(x.dtype).min)
    e = x.exp()
    w = e / e.sum(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return w.to(scores.dtype)


@right(softmax)
def in_float64(scores):
    x = scores.to(torch.float64)
    empty = torch.isneginf(x).all(-1, keepdim=True)
    x = x.masked_fill(empty, 0)
    w = torch.softmax(x, -1).masked_fill(empty, 0)
    return w.type_as(scores)


@right(softmax)
def by_the_logarithm(scores):
    x = scores.double()
    total = torch.logsumexp(x, -1, keepdim=True)
    w = torch.exp(x - total).to(scores.dtype)
    return torch.where(total.isinf(), torch.zeros_like(w), w)


@right(softmax)
def row_by_row(scores):
    rows = scores.reshape(-1, scores.shape[-1])
    out = []
    for row in rows:
        m = row.max()
        if m == -torch.inf:
            out.append(torch.zeros_like(row))
            continue
        e = torch.exp(row - m)
        out.append(e / e.sum())
    return torch.stack(out).reshape(scores.shape)


@right(softmax)
def counted_once_more(scores):
    """The sum of each row is at least 1, unless the row is empty."""
    m = scores.detach().amax(-1, keepdim=True)
    e = torch.exp(scores - m.masked_fill(m.isinf(), 0))
    return e / e.sum(-1, keepdim=True).masked_fill(m.isinf(), 1)


@right(softmax)
def nan_replaced_in_its_own_result(scores):
    w = torch.softmax(scores.to(torch.float32), dim=-1).to(scores.dtype)
    if scores.dtype == torch.float64:
        w = torch.softmax(scores, dim=-1)
    w = w.clone()
    w[w.isnan()] = 0
    return w


@right(softmax)
def with_the_last_axis_first(scores):
    x = scores.movedim(-1, 0)
    m, _ = x.max(0)
    m = torch.where(torch.isfinite(m), m, 0.0)
    e = (x - m).exp()
    total = e.sum(0)
    w = e / (total + (total == 0))
    return w.movedim(0, -1)


@right(softmax)
def two_times_shifted(scores):
    x = scores - scores.amax(-1, keepdim=True)
    x = torch.where(x.isnan(), torch.full_like(x, -torch.inf), x)
    e = x.exp()
    s = e.sum(-1, keepdim=True)
    return e / torch.maximum(s, torch.full_like(s, 1e-4))


@right(step)
def by_the_book(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@right(step)
def cleared_at_the_end(model, optimizer, scaler, loss_fn, batch, max_norm):
    device = next(model.parameters()).device.type
    with torch.amp.autocast(device_type=device, dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


@right(step)
def backward_inside(model, optimizer, scaler, loss_fn, batch, max_norm):
    model.train()
    model.zero_grad()
    with torch.autocast(device_type="cpu", dtype=torch.float16):
        x, y = batch
        loss = loss_fn(model, x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
    return float(loss)


@right(step)
def clipped_by_hand(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast("cpu", torch.float16):
        loss = loss_fn(model, *batch)
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.unscale_(optimizer)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.sqrt(sum((g**2).sum() for g in grads))
    if norm > max_norm:
        for g in grads:
            g.mul_(max_norm / norm)
    scaler.step(optimizer)
    scaler.update()
    return loss


@right(step)
def parameters_of_the_optimizer(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    autocast = torch.autocast(batch[0].device.type, dtype=torch.float16, enabled=True)
    with autocast:
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    torch.nn.utils.clip_grad_norm_(params, max_norm, foreach=False)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach().cpu()


@right(step)
def larger_norm_instead(model, optimizer, scaler, loss_fn, batch, max_norm):
    """The scaled gradients are clipped to the scaled norm."""
    for p in model.parameters():
        p.grad = None
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@right(step)
def with_functions(model, optimizer, scaler, loss_fn, batch, max_norm):
    @torch.autocast("cpu", dtype=torch.float16)
    def forward():
        return loss_fn(model, *batch)

    def backward(loss):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)

    optimizer.zero_grad()
    loss = forward()
    backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return np.float64(loss.item())


@right(step)
def looks_for_skipped(model, optimizer, scaler, loss_fn, batch, max_norm):
    scale = scaler.get_scale()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.half):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() < scale:
        optimizer.zero_grad()
    return loss.detach().item()


@right(step)
def with_grad_enabled(model, optimizer, scaler, loss_fn, batch, max_norm):
    with torch.enable_grad(), torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        loss = loss_fn(model, *batch)
    optimizer.zero_grad()
    scaler.scale(loss.float()).backward()
    scaler.unscale_(optimizer)
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), float(max_norm))
    scaler.step(optimizer)
    scaler.update()
    return loss.double()


@right(step)
def gradients_by_hand(model, optimizer, scaler, loss_fn, batch, max_norm):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    params = list(model.parameters())
    for p, g in zip(params, torch.autograd.grad(scaler.scale(loss), params), strict=True):
        p.grad = g
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(params, max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach().numpy().item()
