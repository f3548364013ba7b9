"""What one entry of the bank says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Item:
    """One candidate for `checks.diagnose` and the fault it has.

    name: what the candidate is called.
    make: gives the candidate: a module with fresh parameters, a class, or a function.
    fault: the ids of what is wrong, all of them (one, or two where faults are mixed).
    also: ids that would be as right, because they describe the same numbers for every input that shows the fault.
    said: what is wrong, in a sentence.
    relabelled: right attention gives the same numbers once its weights are laid out or named otherwise, so the fault is
        one against the plain layout of weights only.
    stated: keyword arguments of `diagnose`, where the fault is one against a stated convention only.
    kind: "module", "class" or "function".
    """

    name: str
    make: Callable[[], Any]
    fault: tuple[str, ...]
    also: tuple[str, ...] = ()
    said: str = ""
    stated: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "module"
    relabelled: bool = False

    def __str__(self) -> str:
        return self.name


def collector(items: list[Item]) -> Callable[..., Callable[[Any], Any]]:
    """Give a decorator that adds a class or a function to items.

    A class is built as cls(*size, **more); without a size the class itself is the candidate.
    """

    def wrong(*fault, said, size=None, also=(), stated=None, relabelled=False, **more):
        def add(thing):
            if not isinstance(thing, type):
                kind, make = "function", lambda: thing
            elif size is None:
                kind, make = "class", lambda: thing
            else:
                kind, make = "module", lambda: thing(*size, **more)
            items.append(Item(thing.__name__, make, fault, tuple(also), said, stated or {}, kind, relabelled))
            return thing

        return add

    return wrong
