"""A large, slow memory and a small, fast one, which count what crosses between them and what is held."""

from typing import NamedTuple

import torch
from torch import Tensor


class Traffic(NamedTuple):
    """Elements that cross between the two memories.

    Attributes:
        loads: elements read from slow memory.
        stores: elements written to it.
    """

    loads: int
    stores: int

    @property
    def moved(self) -> int:
        """Both together."""
        return self.loads + self.stores


class Move(NamedTuple):
    """One block that crossed; printed, it is a line of a table.

    Attributes:
        kind: "load" or "store".
        name: Q, K, V, O, l, m, or L for the logsumexp of each row.
        rows: which rows of it.
        elements: how many elements crossed.
        held: elements in fast memory after the move.
    """

    kind: str
    name: str
    rows: range
    elements: int
    held: int

    def __str__(self) -> str:
        """For example: load  K[0:2]   4 elements, 8 in fast memory."""
        what = f"{self.name}[{self.rows.start}:{self.rows.stop}]"
        return f"{self.kind:5} {what:10} {self.elements:3} elements, {self.held:3} in fast memory"


class Memory:
    """A slow memory of named tensors, and a fast one that counts what it holds and what crosses.

    Work inside fast memory is free, and done in place as far as the count goes: a block that
    replaces another of its name takes no more room, and what an operation needs on its way is not counted.

    Args:
        tensors: what lies in slow memory at the start, by name; rows along the first axis.
    """

    def __init__(self, **tensors: Tensor) -> None:
        self.slow, self.fast = dict(tensors), dict[str, Tensor]()
        self.log: list[Move] = []
        self.peak = 0

    @property
    def held(self) -> int:
        """Elements now in fast memory."""
        return sum(block.numel() for block in self.fast.values())

    @property
    def traffic(self) -> Traffic:
        """Elements moved so far."""
        loads, stores = (sum(move.elements for move in self.log if move.kind == kind) for kind in ("load", "store"))
        return Traffic(loads, stores)

    def load(self, name: str, rows: range) -> Tensor:
        """Copy rows from slow memory into fast memory."""
        block = self.hold(name, self.slow[name][rows.start : rows.stop].clone())
        self._record("load", name, rows, block)
        return block

    def hold(self, name: str, block: Tensor) -> Tensor:
        """Put a block that was computed into fast memory, in the place of one with its name."""
        self.fast[name] = block
        self.peak = max(self.peak, self.held)
        return block

    def store(self, name: str, rows: range) -> None:
        """Write the block of that name over these rows in slow memory, and let go of it."""
        block = self.fast.pop(name)
        self.slow[name][rows.start : rows.stop] = block
        self._record("store", name, rows, block)

    def fill(self, name: str, like: Tensor, value: float) -> None:
        """Write a constant all over a new tensor in slow memory, which takes no room in fast memory."""
        self.slow[name] = torch.full_like(like, value)
        self._record("store", name, range(len(like)), like)

    def free(self, *names: str) -> None:
        """Let go of blocks without writing them back."""
        for name in names:
            del self.fast[name]

    def _record(self, kind: str, name: str, rows: range, block: Tensor) -> None:
        self.log.append(Move(kind, name, rows, block.numel(), self.held))
