"""The check of annotations in the package, as pyproject.toml names it: beartype, where an int may stand for a float."""

from collections import Counter
from typing import Any

from beartype import BeartypeConf, beartype

# A function inside a function is decorated anew each time it is made, which takes milliseconds: the first four stand
# for all (jaxtyping decorates each twice).
ENOUGH = 8
_conf: Any = BeartypeConf(is_pep484_tower=True)
_made: Counter[tuple[str, str]] = Counter()


def checked(fn: Any) -> Any:
    """Return a function that checks its annotations."""
    name = getattr(fn, "__qualname__", "")
    if "<locals>" in name:
        _made[fn.__module__, name] += 1
        if _made[fn.__module__, name] > ENOUGH:
            return fn
    return beartype(fn, conf=_conf)
