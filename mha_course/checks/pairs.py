"""Two faults at once: pairs of a task's variations that change different steps."""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mha_course.checks.calls import Outcome
from mha_course.checks.task import Case, Task, Variation

MOST = 4000  # pairs that are tried

_MADE: dict[tuple[Any, ...], Variation] = {}  # with annotations checked, to make one takes longer than to try it
_SAYS_THE_REST_IS_RIGHT = re.compile(r"\b(is|are|turned) right\b")


def pairs(task: Task) -> Iterator[Variation]:
    """Variations with the faults of two, made only as they are asked for; none without steps."""
    build = task.build
    if build is None:
        return
    stepped = [v for v in task.variations if v.changes and not _SAYS_THE_REST_IS_RIGHT.search(v.fault)]
    joined = (two for two in itertools.combinations(stepped, 2) if not two[0].changes.keys() & two[1].changes.keys())
    for first, second in itertools.islice(joined, MOST):
        if first.fault != second.fault:
            key = build, first, second
            if key not in _MADE:
                fn = build(**first.changes, **second.changes)
                _MADE[key] = Variation(_both(first, second), fn, _hints(first, second), _either(first, second))
            yield _MADE[key]


def _both(first: Variation, second: Variation) -> str:
    return f"two faults: {first.fault}; and {second.fault}"


def _hints(first: Variation, second: Variation) -> tuple[str, ...]:
    return (
        *(f"First fault: {hint}" for hint in first.hints),
        *(f"Second fault: {hint}" for hint in second.hints if hint not in first.hints),
    )


def _either(first: Variation, second: Variation) -> Any:
    return lambda sizes: first.may_raise(sizes) or second.may_raise(sizes)


def telling_case(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> int | None:
    """The case that is tried first with every pair: small, no size 1, with numbers; None if there is none.

    None too if results of some case are NaN throughout: too many pairs would give the same.
    """
    if any(outcome.results is not None and not _tells(outcome.results) for outcome in outcomes):
        return None

    def cost(index: int) -> tuple[bool, int]:
        sizes = cases[index].sizes.values()
        return min(sizes) == 1, math.prod(sizes)

    return min((i for i, outcome in enumerate(outcomes) if _tells(outcome.results)), key=cost, default=None)


def _tells(results: tuple[Tensor, ...] | None) -> bool:
    return results is not None and all(bool(x.isfinite().any()) for x in results)


def may_fit(task: Task, variation: Variation, case: Case, got: Outcome) -> bool:
    """Whether a variation gives the results of one case, by a plain call: variations change no input."""
    if got.results is None:
        return False
    if task.written or task.plain or task.run:  # a plain call would change the case, or gives no tensors
        return True
    try:
        returned = variation.fn(*case.inputs)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return variation.may_raise(case.sizes)
    parts = returned if isinstance(returned, tuple) else (returned,)
    if len(parts) != len(got.results):
        return False
    return all(_near(torch.as_tensor(x), y) for x, y in zip(parts, got.results, strict=True))


def _near(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape:
        return False
    x = x.to(torch.float64)
    if x.numel() > 8:  # a few numbers tell most apart
        a, b = x.flatten()[:: x.numel() // 4], y.flatten()[:: x.numel() // 4]
        if not torch.allclose(a, b, 1e-6, 1e-6, equal_nan=True):
            return False
    return torch.allclose(x, y, 1e-6, 1e-6, equal_nan=True)
