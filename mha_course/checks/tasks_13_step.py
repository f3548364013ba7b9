"""The second exercise of notebook 13: a step of mixed precision training, everything in its order."""

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from mha_course.checks.task import Task, Variation
from mha_course.checks.tasks_13_run import (
    Fn,
    backward_alone,
    both_steps,
    cleared,
    clip_alone,
    clip_then_unscale,
    clipped,
    divide_too,
    each_alone,
    finite,
    never_scaled,
    nothing,
    run_steps,
    step_cases,
    stepped,
    under,
    unscale_then,
    unscaled,
    update_first,
)
from mha_course.checks.tasks_13_whole import (
    both_backward,
    by_hand,
    clip_by,
    clip_to_divided,
    gives_scale,
    half,
    lengthen_too,
    no_update_if_skipped,
    own_scaler,
    step_then_unscale,
    unscale_twice,
    without_graph,
)


def _alone(fault: str, hints: tuple[str, str], **changes: Fn) -> Variation:
    """A fault that is not tried together with others."""
    fn = stepped(**changes)
    return Variation(fault, lambda *inputs: fn(*inputs), hints)


_ORDER = (
    "zero_grad, loss under autocast, scale(loss).backward(), unscale_(optimizer), clip, step(optimizer), update(), all"
    " but the first three of the scaler or with what it unscaled."
)
_CLEAR_HINTS = (
    "Print the norm of the gradients after each backward, with the same batch: does it grow?",
    "Call optimizer.zero_grad() before backward, or after the step.",
)
_EARLY_HINTS = (
    "Print p.grad for a parameter just before the step.",
    "Call scaler.scale(loss).backward(), and optimizer.zero_grad() before it or after the step, not between them.",
)
_CLIP_HINTS = (
    "Print the norm of the gradients just before you clip: it is as large as the scale is.",
    "Call scaler.unscale_(optimizer) after backward, and clip after it.",
)
_NO_CLIP_HINTS = (
    "Print the norm of the gradients just before the step: it may not be above max_norm.",
    "Between unscale_ and step: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).",
)
_SCALE_HINTS = (
    "Print a gradient just after backward: is it the true one times the scale?",
    "Call scaler.scale(loss).backward(); unscale_ and step divide by the scale again.",
)
_STEP_HINTS = (
    "Make a gradient infinite before the step: are the weights still finite after it?",
    "Call scaler.step(optimizer): it skips the step where a gradient is not finite.",
)
_STILL_SCALED_HINTS = (
    "Print a gradient just before the step: it is the true one times the scale.",
    "Call scaler.unscale_(optimizer) before you clip, and scaler.step(optimizer), not optimizer.step().",
)
_UPDATE_HINTS = (
    "Print scaler.get_scale() after a step whose gradients overflow: is it smaller?",
    "Call scaler.update() last, after scaler.step(optimizer).",
)
_CAST_HINTS = (
    "Print torch.is_autocast_enabled('cpu') and torch.get_autocast_dtype('cpu') inside your forward pass.",
    "Call loss_fn within: with torch.autocast('cpu', dtype=torch.float16).",
)
_GIVE_HINTS = (
    "Print what you return beside what loss_fn gave.",
    "Return the loss of this batch as loss_fn gave it: before it is scaled, before the step.",
)
_INFINITE_HINTS = (
    "Make the scale very large: what does your step do with infinite gradients?",
    "Leave infinite gradients to the scaler: it skips the step, and update() makes the scale smaller.",
)
_CLIPPED_SCALED = "the gradients are clipped while they are still scaled: unscale_ must come first"
_NOT_SCALED = "backward is called on the loss that is not scaled"
_STILL_SCALED = "optimizer.step() uses gradients that are still scaled"
_NO_UPDATE = "scaler.update() is missing"
_OFF = "the forward pass is not under autocast"
_NOT_CLIPPED = "the gradients are not clipped before the step"

training_step = Task(
    name="training_step",
    arguments=("model", "optimizer", "scaler", "loss_fn", "batch", "max_norm"),
    results=(
        ("loss", ("steps",)),
        ("weights", ("steps", "n")),
        ("scale", ("steps",)),
        ("fraction bits of the forward pass", ("steps",)),
    ),
    axes={"steps": "step", "n": "number"},
    gradients=False,
    reference=stepped(),
    build=stepped,
    run=run_steps,
    cases=step_cases,
    variations=(
        Variation(
            "the gradients are never cleared, so that those of earlier steps add up: zero_grad is missing",
            stepped(clear=nothing),
            _CLEAR_HINTS,
        ),
        Variation(_CLIPPED_SCALED, stepped(prepare=clip_then_unscale), _CLIP_HINTS),
        Variation(_NOT_SCALED, stepped(backward=unscaled), _SCALE_HINTS),
        Variation(
            "optimizer.step() is called instead of scaler.step(optimizer): no step is skipped",
            stepped(move=lambda scaler, optimizer: optimizer.step()),
            _STEP_HINTS,
        ),
        Variation(_NO_UPDATE, stepped(update=nothing), _UPDATE_HINTS),
        Variation(_OFF, stepped(forward=under(None)), _CAST_HINTS),
        Variation(
            "the forward pass is in bfloat16, the type of autocast on a CPU if none is named",
            stepped(forward=under(torch.bfloat16)),
            _CAST_HINTS,
        ),
        Variation(f"{_NOT_CLIPPED}: max_norm has no effect", stepped(prepare=unscale_then(nothing)), _NO_CLIP_HINTS),
        Variation("the scaled loss is returned", stepped(give=lambda loss, scaled, *_: scaled), _GIVE_HINTS),
        _alone(f"{_OFF}: backward alone is", _CAST_HINTS, forward=under(None), backward=backward_alone),
        _alone(f"{_NOT_SCALED}: scaler.scale is never called", _SCALE_HINTS, backward=never_scaled),
        _alone(
            "the scaler has no part in it: no loss is scaled and no step is skipped",
            _SCALE_HINTS,
            backward=never_scaled,
            prepare=clip_alone,
            move=lambda scaler, optimizer: optimizer.step(),
            update=nothing,
        ),
        *(
            _alone(
                _STILL_SCALED,
                _STILL_SCALED_HINTS,
                prepare=prepare,
                move=lambda scaler, optimizer: optimizer.step(),
                update=update,
            )
            for prepare in (clip_alone, nothing)
            for update in (nothing, lambda scaler: scaler.update())
        ),
        _alone(
            "the gradients are cleared after backward, before the step: nothing is left of them",
            _EARLY_HINTS,
            prepare=cleared(to_none=False),
        ),
        _alone(
            "no gradients are found: backward is missing or comes too late, or they are cleared after it",
            _EARLY_HINTS,
            prepare=cleared(to_none=True),
        ),
        _alone(_CLIPPED_SCALED, _CLIP_HINTS, prepare=clip_alone, move=step_then_unscale),
        _alone(_NO_UPDATE, _UPDATE_HINTS, prepare=nothing, update=nothing),
        _alone(_NO_UPDATE, _UPDATE_HINTS, prepare=clip_alone, update=nothing),
        _alone(
            "max_norm is divided by the scale, and the gradients are still scaled: unscale_ must come first",
            _CLIP_HINTS,
            prepare=clip_to_divided,
        ),
        _alone(
            "scaler.unscale_(optimizer) is called twice in one step",
            ("Count the calls of unscale_ in one step.", "Call scaler.unscale_(optimizer) once, before you clip."),
            prepare=unscale_twice,
        ),
        _alone(
            "backward is called on the loss and on the scaled loss: their gradients add up",
            _SCALE_HINTS,
            backward=both_backward,
        ),
        _alone(
            "backward does not reach the weights: the loss has lost its graph",
            (
                "Print loss.requires_grad just before backward.",
                "Look for detach(), item() and no_grad() before backward: they belong after it.",
            ),
            backward=without_graph,
        ),
        Variation(
            "scaler.update() is left out where the step is skipped: it is update that makes the scale smaller",
            no_update_if_skipped,
            _UPDATE_HINTS,
        ),
        *(
            Variation(
                "the loss is scaled by hand, and the scaler has no part in it: no step is skipped",
                by_hand(scale),
                _STEP_HINTS,
            )
            for scale in (None, 2.0**10, 2.0**16)
        ),
        _alone(
            "scaler.update() is called before scaler.step(optimizer)", _UPDATE_HINTS, move=update_first, update=nothing
        ),
        *(
            _alone("no step is made: the weights do not move", _STEP_HINTS, move=nothing, update=update)
            for update in (lambda scaler: scaler.update(), nothing)
        ),
        _alone(
            "two steps are made with the same gradients: scaler.step(optimizer) and optimizer.step()",
            _STEP_HINTS,
            move=both_steps,
        ),
        _alone(
            "the gradients are divided by the scale twice: by hand, and by scaler.step",
            (
                "Print a gradient before and after each line: how often is it divided by the scale?",
                "Let scaler.unscale_(optimizer) divide: step sees then that it is done.",
            ),
            prepare=divide_too,
        ),
        *(
            _alone(
                f"{_NOT_CLIPPED} to max_norm, but {how}",
                _NO_CLIP_HINTS,
                prepare=unscale_then(clip),
            )
            for how, clip in (
                ("each number to max_norm", lambda model, most: clip_grad_value_(model.parameters(), most)),
                ("the gradient of each parameter on its own", each_alone),
                ("by their largest number", clip_by(torch.inf)),
                ("by the sum of their absolute values", clip_by(1.0)),
                ("to a norm of 1", lambda model, most: clipped(model, 1.0)),
            )
        ),
        *(
            Variation(
                "the scaler that is given is not used: each step makes a new one, which has no memory",
                own_scaler(scale),
                (
                    "Print scaler.get_scale() of the scaler that you were given, after a few steps.",
                    "Use the argument scaler: it keeps the scale from one step to the next.",
                ),
            )
            for scale in (2.0**16, 2.0**10)
        ),
        Variation(
            "the model itself is made float16, and the scaler refuses its gradients",
            half,
            (
                "Print the type of the parameters: small updates vanish in float16.",
                "Leave the model in float32, and call loss_fn under autocast.",
            ),
        ),
        _alone(
            "gradients that are not finite raise: the step has to be skipped",
            _INFINITE_HINTS,
            prepare=unscale_then(
                lambda model, most: clip_grad_norm_(model.parameters(), most, error_if_nonfinite=True)
            ),
        ),
        _alone(
            "gradients that are not finite are replaced: the step has to be skipped", _INFINITE_HINTS, prepare=finite
        ),
        _alone("the loss after the step is returned", _GIVE_HINTS, give=lambda loss, scaled, norm, again: again()),
        _alone(
            "all gradients are given the norm max_norm: smaller ones are made larger",
            (
                "Take a large max_norm: what do your gradients become?",
                "Multiply only where the norm is above max_norm.",
            ),
            prepare=unscale_then(lengthen_too),
        ),
        Variation("the scale is returned, not the loss", gives_scale, _GIVE_HINTS),
        _alone(
            "the norm of the gradients is returned, not the loss", _GIVE_HINTS, give=lambda loss, scaled, norm, _: norm
        ),
    ),
    hints=(
        "Take two steps with one batch, and print loss, norm of the gradients and scale after each line.",
        f"The order is: {_ORDER}",
    ),
    shape_hint="Return the loss of the batch, one number.",
)
