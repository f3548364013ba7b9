"""Wrong and right solutions of the exercises, written as learners write, without a look at how a check finds faults.

`said` is the fault in the author's words; `match` is written from it, and the sentence of the verdict must match it.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

GRADIENT = r"gradient"
CHANGED = r"in place|(chang|modif|overwr|alter)\w*.*(input|argument|scores|slopes|tensor|array|\b[qkxv]\b|keys|mask)"


class Item(NamedTuple):
    """One solution of an exercise."""

    task: str
    fn: Callable[..., Any]
    said: str = ""
    match: str = ""

    @property
    def name(self) -> str:
        """The exercise and what the function is called."""
        return f"{self.task}-{self.fn.__name__}"


WRONG: list[Item] = []
RIGHT: list[Item] = []


def wrong(task: str, said: str, match: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a wrong solution of an exercise into the bank."""

    def keep(fn: Callable[..., Any]) -> Callable[..., Any]:
        WRONG.append(Item(task, fn, said, match))
        return fn

    return keep


def right(task: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a right solution of an exercise into the bank."""

    def keep(fn: Callable[..., Any]) -> Callable[..., Any]:
        RIGHT.append(Item(task, fn))
        return fn

    return keep


def load() -> None:
    """Import every file of the bank, which fills WRONG and RIGHT."""
    for found in pkgutil.iter_modules(__path__):
        if found.name.startswith(("wrong_", "right_")):
            importlib.import_module(f"{__name__}.{found.name}")
