"""Modes that see every operation of PyTorch while they are on, and what is left of them."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import overrides
from torch.utils import _python_dispatch as dispatch


class Watching(dispatch.TorchDispatchMode):
    """A `TorchDispatchMode` that loads no compiler, which would take seconds: nothing is compiled under it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@contextmanager
def no_mode_left() -> Iterator[None]:
    """Switch off at the end what was switched on inside: a time limit may strike where a mode is being left."""
    stacks = (
        (dispatch._get_current_dispatch_mode_stack, dispatch._pop_mode),
        (overrides._get_current_function_mode_stack, overrides._pop_mode),
    )
    depths = [len(stack()) for stack, _ in stacks]
    try:
        yield
    finally:
        for (stack, pop), depth in zip(stacks, depths, strict=True):
            while len(stack()) > depth:
                pop()
