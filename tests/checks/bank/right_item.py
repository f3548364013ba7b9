"""What an item of the banks of right, borderline and badly behaved candidates says."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Right:
    """A right implementation, or (in the edge bank) one that is right wherever a key is visible.

    `make` gives the candidate, `stated` the conventions to be stated, and `remark` is a regular expression (case does
    not matter) that one of the remarks should match; empty where no remark is needed.
    """

    name: str
    make: Callable[[], Any]
    stated: dict[str, Any] = field(default_factory=dict)
    remark: str = ""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Badly:
    """A candidate that cannot be taken seriously, and what should be said of it.

    `expect` is a fault's id, "not judged", or "TypeError" where the call itself should be refused; alternatives are
    separated by " | ". `note` says why, where it is not plain.
    """

    name: str
    make: Callable[[], Any]
    expect: str
    stated: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        return self.name
