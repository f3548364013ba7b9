"""Read plain results: numbers in a dict or a tuple, and words that stand for one of a few things."""

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Wrong = tuple[str, str, tuple[str, str]]  # fault, evidence, hints


@dataclass(frozen=True)
class Plain:
    """How the plain results of an exercise are read, and said again.

    Attributes:
        kind: what holds them. In the keys of a dict an underscore is as good as a space.
        words: name of a result -> the words that it may be; its number is the place among them.
    """

    kind: Literal["dict", "tuple"]
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def read(self, returned: Any, names: Sequence[str]) -> tuple[tuple[Tensor, ...], Wrong | None]:
        """Each result as a float64 tensor without axes, and what is wrong if that cannot be."""
        parts = self._by_name(returned, names)
        wanted = f"a {self.kind} with {', '.join(names)}"
        if isinstance(parts, str):
            return (), (parts, f"expected {wanted}", ("Look at the return line.", f"Return {wanted}."))
        found = {name: self._number(name, parts[name]) for name in names}
        for name, number in found.items():
            if number is None:
                expected = " or ".join(map(repr, self.words.get(name, ()))) or "a number"
                hints = ("Print what your function returns.", f"Let {name} be {expected}.")
                return (), (f"{name} is {_what(parts[name])}, not {expected}", f"expected {wanted}", hints)
        return tuple(torch.tensor(number, dtype=torch.float64) for number in found.values()), None

    def said(self, name: str, got: float, right: float) -> str:
        """A result that is wrong, beside the right one."""
        words = self.words.get(name)
        digits = next(n for n in range(4, 18) if f"{got:.{n}g}" != f"{right:.{n}g}" or n == 17)
        x, y = (
            repr(words[int(x)]) if words else f"{x:,.0f}" if x == int(x) else f"{x:.{digits}g}" for x in (got, right)
        )
        return f"{name} is {x}, expected {y}"

    def _by_name(self, returned: Any, names: Sequence[str]) -> dict[Any, Any] | str:
        """The results by name, or a sentence on what is missing."""
        if returned is None:
            return "it returns None, perhaps the return is missing"
        if self.kind == "tuple" and isinstance(returned, tuple | list):
            if len(returned) != len(names):
                return f"it returns a {type(returned).__name__} of {len(returned)}, expected {len(names)}"
            return dict(zip(names, returned, strict=True))
        if self.kind == "tuple" or not isinstance(returned, Mapping):
            return f"it returns {_what(returned)}, not a {self.kind}"
        spaced = {_spaced(name): name for name in names}
        parts = {spaced.get(_spaced(key), key): x for key, x in returned.items()}
        missing, more = ([a for a in one if a not in other] for one, other in ((names, parts), (parts, names)))
        if missing:
            return f"the key {missing[0]!r} is missing in the dict"
        return f"the dict has a key too many, {more[0]!r}" if more else parts

    def _number(self, name: str, x: Any) -> float | None:
        if isinstance(x, Tensor | np.ndarray | np.generic) and np.prod(x.shape) == 1:
            x = x.item()
        if name in self.words:
            word = x.strip().lower() if isinstance(x, str) else None
            return float(self.words[name].index(word)) if word in self.words[name] else None
        return float(x) if isinstance(x, numbers.Real | Decimal) and not isinstance(x, bool) else None


def _spaced(key: Any) -> str:
    return str(key).replace("_", " ")


def _what(x: Any) -> str:
    if isinstance(x, str | bool):
        return repr(x)
    name = type(x).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
