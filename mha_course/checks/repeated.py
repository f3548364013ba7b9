"""Whether a solution that decodes computes each token once, and none before its turn."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from mha_course.checks.calls import Checked, Problem
from mha_course.checks.limit import OutOfTime
from mha_course.checks.task import Case, Task
from mha_course.checks.watching import Watching

_AGAIN = "the numbers are right, but tokens that were read before are computed again"
_AGAIN_HINTS = (
    "Print the shape of what you multiply by W_q, W_k and W_v in each step: how many of its rows are new?",
    "Multiply the new token alone, and keep its key and its value beside those of the tokens before it.",
)
_AT_ONCE = "the numbers are right, but all tokens are computed at once, not one at a time"
_AT_ONCE_HINTS = (
    "In use, the next token is known only when the output of the last one is there: what may your first line read?",
    "Read the prompt at once, then one token in each step of a loop.",
)


class Products(Watching):
    """Counts multiplications of numbers, in matrix products and one by one.

    Attributes:
        total: of all operations.
        most: of a single one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out an operation, and count it."""
        result = func(*args, **(kwargs or {}))
        count = _count(func.overloadpacket.__name__, args, result)
        self.total += count
        self.most = max(self.most, count)
        return result


def _count(name: str, args: Any, result: Any) -> int:
    first = 1 if name in ("addmm", "addmv", "baddbmm") else 0
    if name in ("mm", "bmm", "mv", "dot", "addmm", "addmv", "baddbmm"):
        return math.prod(result.shape) * int(args[first].shape[-1])
    return math.prod(result.shape) if name == "mul" else 0


def check_repeated(task: Task, fn: Callable[..., Any], cases: tuple[Case, ...]) -> Checked:
    """Call a solution once more, and count the rows that it projects."""
    if task.work is None:
        return Checked()
    inputs = [x.clone() if isinstance(x, Tensor) else x for x in task.work.inputs]
    products = Products()
    try:
        with products:
            fn(*inputs)
    except (KeyboardInterrupt, OutOfTime):
        raise
    except BaseException:  # right in every case: what fails under the count alone is no fault
        return Checked()
    T, E, D, prompt = (task.work.sizes[name] for name in ("T", "E", "D", "prompt"))
    rows, most = products.total // (E * D), products.most // (E * D)
    where = f"T, prompt = {T}, {prompt}"
    if rows > 7 * T:  # the same product made twice in a step is no matter
        seen = f"{rows} rows of queries, keys and values are computed, {3 * T} are needed, with {where}"
        return Checked(Problem(_AGAIN, seen, _AGAIN_HINTS))
    if most > 3 * prompt:
        return Checked(
            Problem(_AT_ONCE, f"a product reads more tokens than the prompt has, with {where}", _AT_ONCE_HINTS)
        )
    return Checked()
