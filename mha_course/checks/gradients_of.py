"""Whether the gradients of a solution are right too, once its numbers are."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mha_course.checks import words
from mha_course.checks.calls import Checked, Problem
from mha_course.checks.limit import OutOfTime
from mha_course.checks.task import Case, Task

TOLERANCE = 1e-5  # of the largest entry of a gradient, and absolute
CASES = 2  # that are looked at

_CUT_HINTS = (
    "Look for what takes numbers out of the graph: detach(), item(), tolist(), .data, numpy(), torch.tensor(x), "
    "torch.no_grad(), and for writing into x.data.",
    "Compute every step with tensors, from the inputs to the result, so that what stands before it can be trained.",
)
_OTHER_HINTS = (
    "Look for a step that is cut off on one of several ways: detach(), .data, item() or torch.no_grad().",
    "Let every step that depends on that input stay in the graph.",
)
_OVERWRITTEN = "an operation in place (+=, *=, exp_) overwrites what backward needs"


class _Gradients(NamedTuple):
    """The gradient of each input by name, None where nothing arrives; or the error of the call or of backward."""

    by_name: dict[str, Tensor | None] | None = None
    error: BaseException | None = None
    in_backward: bool = False


def applies(task: Task) -> bool:
    """Whether gradients of this exercise's results are compared."""
    return task.gradients and not task.numpy and task.dtype != "bool"


def check_gradients(task: Task, fn: Callable[..., Any], cases: tuple[Case, ...]) -> Checked:
    """Compare the gradients of a random projection of the results, by each float64 input and each parameter."""
    if not applies(task):
        return Checked()
    for index, case in enumerate(cases[:CASES]):
        right = _gradients(task, task.reference, case)
        if not right.by_name:
            continue
        got = _gradients(task, fn, case)
        where = words.case_sizes(index, case)
        if got.error is not None:
            return _of_error(fn, got, _reached(right.by_name), where)
        found = _compared(right.by_name, got.by_name or {}, where)
        if found is not None:
            return Checked(found)
    return Checked()


def _reached(gradients: dict[str, Tensor | None]) -> list[str]:
    """The names of the inputs on which the result depends."""
    return [name for name, x in gradients.items() if x is not None and bool((x.abs() > TOLERANCE).any())]


def _of_error(fn: Callable[..., Any], got: _Gradients, names: list[str], where: str) -> Checked:
    assert got.error is not None
    said, line = words.raised(got.error, fn)
    if got.in_backward:
        overwritten = "modified by an inplace operation" in words.message(got.error)
        return Checked(None, f"no gradient can be computed: {_OVERWRITTEN if overwritten else said}")
    if not isinstance(got.error, RuntimeError | TypeError):
        return Checked()
    seen = f"with inputs that need a gradient it raises {said}"
    return Checked(
        Problem(
            f"no gradient reaches {', '.join(names)}: the numbers are right",
            f"{seen}, {line}, {where}" if line else f"{seen}, {where}",
            _CUT_HINTS,
        )
    )


def _compared(right: dict[str, Tensor | None], got: dict[str, Tensor | None], where: str) -> Problem | None:
    missing = [name for name in _reached(right) if (there := got.get(name)) is None or not bool(there.any())]
    if missing:
        names = ", ".join(missing)
        return Problem(f"no gradient reaches {names}: the numbers are right", where, _CUT_HINTS)
    for name, wanted in right.items():
        there = got.get(name)
        wanted = torch.zeros_like(there) if wanted is None and there is not None else wanted
        if wanted is None:
            continue
        there = torch.zeros_like(wanted) if there is None else there
        difference = (there - wanted).abs()
        if there.isnan().any():
            return Problem(f"the gradient of {name} holds NaN: the numbers are right", where, _OTHER_HINTS)
        if difference.max() > TOLERANCE * (1 + wanted.abs().max()):
            largest = difference.max()
            first = (difference >= largest * (1 - 1e-6)).nonzero()[0].tolist()
            at = f" at {name}[{', '.join(map(str, first))}]" if first else ""
            seen = f"the numbers are right; largest difference {words.number(largest.item())}{at}, {where}"
            return Problem(f"the gradient of {name} differs from the reference", seen, _OTHER_HINTS)
    return None


def _gradients(task: Task, fn: Callable[..., Any], case: Case) -> _Gradients:
    """Call fn on inputs that need a gradient; none of them is a leaf, so that writing into one is no error."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves: dict[str, Tensor] = {}
        inputs: list[Any] = []
        for name, x in zip(task.arguments, case.inputs, strict=True):
            if isinstance(x, Tensor) and x.dtype == torch.float64:
                leaves[name] = x.detach().clone().requires_grad_()
                inputs.append(leaves[name].clone())
            elif isinstance(x, nn.Module):
                inputs.append(copy.deepcopy(x).requires_grad_())
                leaves.update({f"{name}.{part}": parameter for part, parameter in inputs[-1].named_parameters()})
            else:
                inputs.append(x.clone() if isinstance(x, Tensor) else x)
        if not leaves:
            return _Gradients()
        try:
            returned = fn(*inputs)
        except (KeyboardInterrupt, OutOfTime):
            raise
        except BaseException as error:
            return _Gradients(error=error)
        results = returned if isinstance(returned, tuple | list) else (returned,)
        generator = torch.Generator().manual_seed(0)
        total = torch.zeros((), dtype=torch.float64)
        for x in results:
            if not isinstance(x, Tensor):
                return _Gradients()
            total = total + (x * torch.randn(x.shape, generator=generator, dtype=torch.float64)).sum()
        if not total.requires_grad:
            return _Gradients(dict.fromkeys(leaves))
        try:
            found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        except (KeyboardInterrupt, OutOfTime):
            raise
        except BaseException as error:
            return _Gradients(error=error, in_backward=True)
        return _Gradients(dict(zip(leaves, found, strict=True)))
