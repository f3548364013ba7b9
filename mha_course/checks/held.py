"""How many scores a solution makes and holds, once its numbers are right: all of them, or fewer."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from mha_course.checks import words
from mha_course.checks.calls import Checked, Problem
from mha_course.checks.limit import OutOfTime
from mha_course.checks.task import Case, Growth, Task
from mha_course.checks.watching import Watching

_PRODUCTS = {"mm", "bmm", "mv", "addmm", "baddbmm", "addmv"}

_ALL = "the numbers are right, but all T x S scores are held at once"
_ALL_HINTS = (
    "Print the shape of every product of queries and keys, and count the tiles that a list keeps.",
    "Cut the keys before the product, and let go of a tile once its share is in the sum and in the output.",
)
_ROWS = "the numbers are right, but whole rows of scores are held at once: the keys are not cut into blocks"
_ROWS_HINTS = (
    "Print the shape of every product of queries and keys: how many keys are in it?",
    "Cut the keys and the values into blocks, and carry maximum, sum and output from one block to the next.",
)
_WIDE = "the numbers are right, but the tiles are not block keys wide"
_WIDE_HINTS = (
    "Print how many keys each of your blocks holds: chunk(n) makes n pieces, split(n) pieces of n.",
    "block is the number of keys in one block: step through the keys by block.",
)
_STEEP = 3  # by how much the numbers grow when S is doubled: by 2 with S, by 4 with S x S
_ALL_PAIRS = "the numbers are right, but all S x S scores are held at once"
_STEEP_COST = "the numbers are right, but the cost grows with S x S: twice the tokens, four times the numbers"


class Held(Watching):
    """Counts the numbers in tensors made while it is on, and notes the products.

    What one operation of PyTorch makes and drops inside itself is not seen.

    Attributes:
        most: the most floating point numbers that were there at the same time, without the inputs.
        made: the numbers in all tensors that were made, of any type.
        products: the shapes of all products.
    """

    def __init__(self, inputs: Iterable[Any]) -> None:
        super().__init__()
        self.most = 0
        self.made = 0
        self.products: set[tuple[int, ...]] = set()
        self._given = {_storage(x).cdata: _storage(x) for x in inputs if isinstance(x, Tensor)}
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out an operation, and count what it gives."""
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.layout == torch.strided:
                self._count(x)
                if func.overloadpacket.__name__ in _PRODUCTS:
                    self.products.add(tuple(x.shape))
        return result

    def _count(self, x: Tensor) -> None:
        reference = _storage(x)
        if reference.cdata in self._given:
            return
        self._live = {key: one for key, one in self._live.items() if not one[0].expired()}
        numbers = x.untyped_storage().nbytes() // x.element_size()
        if reference.cdata not in self._live:
            self.made += numbers
        self._live[reference.cdata] = (reference, numbers if x.is_floating_point() else 0)
        self.most = max(self.most, sum(held for _, held in self._live.values()))


def _storage(x: Tensor) -> StorageWeakRef:
    return StorageWeakRef(x.untyped_storage())


def check_held(task: Task, fn: Callable[..., Any], cases: tuple[Case, ...]) -> Checked:
    """Call a solution once more, and see whether it holds or makes more scores than it should."""
    if task.tiles is not None:
        held = _watched(fn, task.tiles)
        return Checked(None if held is None else _problem(held, task.tiles))
    if task.growth is not None:
        short, long = (_watched(fn, case) for case in (task.growth.short, task.growth.long))
        return Checked(None if short is None or long is None else _growth_problem(short, long, task.growth))
    return Checked()


def _watched(fn: Callable[..., Any], case: Case) -> Held | None:
    """What a solution holds and makes in a case; None if it fails: right in every case, what fails here is no fault."""
    inputs = [x.clone() if isinstance(x, Tensor) else x for x in case.inputs]
    held = Held(inputs)
    try:
        with held:
            fn(*inputs)
    except (KeyboardInterrupt, OutOfTime):
        raise
    except BaseException:
        return None
    return held


def _growth_problem(short: Held, long: Held, growth: Growth) -> Problem | None:
    few, many = growth.short.sizes["S"], growth.long.sizes["S"]
    if long.most >= many * many and long.most > _STEEP * short.most:
        seen = f"{long.most} numbers are held at the same time: S x S = {many * many}, with S = {many}"
        return Problem(_ALL_PAIRS, seen, growth.hints)
    if long.made > _STEEP * short.made:
        seen = f"{short.made} numbers are made with S = {few}, {long.made} with S = {many}"
        return Problem(_STEEP_COST, seen, growth.hints)
    return None


def _problem(held: Held, case: Case) -> Problem | None:
    T, S, block = (case.sizes[name] for name in ("T", "S", "block"))
    widest = max(held.products, key=lambda shape: (max(shape, default=0), math.prod(shape)), default=())
    where = f"T, S, block = {T}, {S}, {block}"
    product = f"a product of shape {words.shape_in_letters(widest, case.sizes, ())} is made, with {where}"
    if S in widest and math.prod(widest) < T * S:
        return Problem(_ROWS, product, _ROWS_HINTS)
    if math.prod(widest) < T * S and max(widest, default=0) > max(T, block):
        return Problem(_WIDE, product, _WIDE_HINTS)
    if held.most >= T * S:
        seen = f"{held.most} numbers are held at the same time: T x S = {T * S}, T x block = {T * block}, with {where}"
        return Problem(_ALL, seen, _ALL_HINTS)
    return None
