"""What a fault of the catalogue is made of."""

from collections.abc import Mapping
from typing import NamedTuple

from mha_course.checks.diagnosis.steps import ATTEND, Step, Steps


class Fault(NamedTuple):
    """A fault, as the steps of attention that show it.

    Attributes:
        name: a stable name for programs; several variations may share one.
        said: the fault in a sentence, without capital and full stop.
        changes: the steps that differ, see `steps.DEFAULT`.
        hints: where to look, then what to change.
        axes: of the masks with which it is tried, "" for all.
        convention: of these masks, "" for all.
        keys: it shows with more keys than these alone.
    """

    name: str
    said: str
    changes: Steps
    hints: tuple[str, str]
    axes: str = ""
    convention: str = ""
    keys: int = 0

    @property
    def touches(self) -> frozenset[str]:
        """The steps that the fault changes or replaces: two faults that share one cannot be told apart."""
        return frozenset(self.changes) | (ATTEND if "attend" in self.changes else frozenset())


def every(*names: str, step: Step) -> Mapping[str, Step]:
    """The same change of several steps."""
    return dict.fromkeys(names, step)
