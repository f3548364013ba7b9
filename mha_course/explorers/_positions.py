"""Explorer `positions`: a position as hands of clocks, and what becomes of it in a score."""

from typing import Literal

from mha_course.explorers._positions_clocks import clocks
from mha_course.explorers._positions_distance import distance
from mha_course.explorers.base import Explorer


def positions(mode: Literal["clocks", "distance"] = "clocks") -> Explorer:
    """Move a position.

    Args:
        mode: "clocks" shows the pairs of a sinusoidal or rotary encoding as clocks, and where their hands pointed in
            training; "distance" shows the score of a query and a key against their distance, under each scheme.

    Returns:
        The panel.

    Raises:
        ValueError: another mode.
    """
    if mode not in ("clocks", "distance"):
        raise ValueError(f"mode must be 'clocks' or 'distance', got {mode!r}")
    return clocks() if mode == "clocks" else distance()
