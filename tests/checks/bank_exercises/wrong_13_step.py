"""Wrong solutions of the second exercise of notebook 13: a step of mixed precision training."""

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tests.checks.bank_exercises import wrong

task = "training_step"

NOT_CLEARED = r"zero_grad|clear|accumul|add up|kept|old gradients"
CLIP_FIRST = r"clip.*(before|scaled|without|not unscaled)|unscale"
UNSCALED = r"(unscaled|not scaled|without).*(loss|scal)|backward.*(loss|scal)|not scaled"
SKIPPED = r"skip|optimizer\.step|overflow|infinite"
NO_UPDATE = r"update"
NO_AUTOCAST = r"autocast"


@wrong(task, "gradients are never cleared", NOT_CLEARED)
def never_cleared(model, optimizer, scaler, loss_fn, batch, max_norm):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "gradients are cleared right after backward, before the step", r"clear|zero_grad|no gradient|not move")
def cleared_too_late(model, optimizer, scaler, loss_fn, batch, max_norm):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    optimizer.zero_grad(set_to_none=False)
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "gradients are set to None before the step: the scaler finds nothing", r"clear|zero_grad|no gradient")
def none_before_the_step(model, optimizer, scaler, loss_fn, batch, max_norm):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    optimizer.zero_grad()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "clipped before unscaled", CLIP_FIRST)
def clip_then_unscale(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "never unscaled before the clip", CLIP_FIRST)
def no_unscale(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@wrong(task, "backward on the unscaled loss", UNSCALED)
def loss_not_scaled(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss)
    loss.backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "backward on the unscaled loss, scale never called", UNSCALED)
def scale_never_called(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    loss.backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "optimizer.step instead of scaler.step: no step is skipped", SKIPPED)
def optimizer_steps(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    scaler.update()
    return loss.item()


@wrong(task, "optimizer.step with gradients that were never unscaled", r"unscale|scaled|optimizer\.step")
def optimizer_steps_with_scaled(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.item()


@wrong(task, "optimizer.step, then update without any check for infinity", r"unscale|scaled|optimizer\.step")
def nothing_recorded(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    scaler.update()
    return loss.item()


@wrong(task, "update is missing", NO_UPDATE)
def no_update(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    return loss.item()


@wrong(task, "update comes before the step", NO_UPDATE)
def update_first(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.update()
    scaler.step(optimizer)
    return loss.item()


@wrong(task, "no autocast at all", NO_AUTOCAST)
def full_precision(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "autocast only around backward", NO_AUTOCAST)
def autocast_of_backward(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    loss = loss_fn(model, *batch)
    with torch.autocast("cpu", dtype=torch.float16):
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "autocast without a dtype: bfloat16 on a CPU", r"bfloat16")
def default_autocast(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu"):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "autocast for another device does nothing", NO_AUTOCAST)
def autocast_of_cuda(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "the model itself is made half", r"half|model.*float16|float16.*(model|weights|parameters)|autocast")
def half_model(model, optimizer, scaler, loss_fn, batch, max_norm):
    model.half()
    optimizer.zero_grad()
    loss = loss_fn(model, *(x.half() for x in batch))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "the scaled loss is returned", r"scaled loss|loss.*(scal|times)")
def scaled_loss(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    loss = scaler.scale(loss)
    loss.backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "the norm is returned instead of the loss", r"norm.*(return|loss)|return.*norm|loss")
def returns_the_norm(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm.item()


@wrong(task, "the return is missing", r"None|return")
def returns_nothing(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


@wrong(task, "not clipped", r"clip")
def no_clip(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "clipped after the step", r"clip")
def clip_after_step(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.update()
    return loss.item()


@wrong(task, "clips each number instead of the norm", r"clip.*(value|number|entry|each)|norm")
def clip_by_value(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_value_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "clips every parameter on its own", r"clip.*(each|every|own|parameter|together)|norm")
def clip_each(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        clip_grad_norm_(p, max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "max_norm is a fixed 1.0", r"clip|max_norm")
def fixed_norm(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "a scaler of its own in each call", r"scaler.*(own|new|other|given|each)|new scaler")
def own_scaler(model, optimizer, scaler, loss_fn, batch, max_norm):
    scaler = torch.amp.GradScaler("cpu")
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "both steps are made", r"twice|two steps|both|optimizer\.step")
def two_steps(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    optimizer.step()
    scaler.update()
    return loss.item()


@wrong(task, "unscaled twice: by hand, and again by the scaler", r"twice|unscale|divided")
def unscaled_twice(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    for p in model.parameters():
        p.grad /= scaler.get_scale()
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "no scaler is used", r"scal")
def no_scaler(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    loss.backward()
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.item()


@wrong(task, "there is no step", r"(no|never|without).*step|step.*(missing|never)|not move|weights")
def no_step(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.update()
    return loss.item()


@wrong(task, "an infinite gradient raises instead of being skipped", r"skip|infinit|raises|non-finite")
def refuses_infinity(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "infinite gradients are replaced by 0, and the step is made", r"infinit|skip|replac|nan_to_num")
def infinite_to_zero(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    for p in model.parameters():
        p.grad = torch.nan_to_num(p.grad, posinf=0.0, neginf=0.0)
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@wrong(task, "the loss after the step is returned", r"after the step|again|second|loss")
def loss_afterwards(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, *batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        return loss_fn(model, *batch).item()


@wrong(task, "the batch is handed over as one argument", r"raises TypeError|missing|batch")
def batch_not_unpacked(model, optimizer, scaler, loss_fn, batch, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()
