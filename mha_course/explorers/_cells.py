"""Which explorers each notebook cell shows, so that running the cell again closes the earlier ones.

Without this every run of a cell would leave its widgets, its figure and about 8 MB behind:
ipywidgets keeps each widget until it is closed.
"""

from typing import Any

from IPython.core.getipython import get_ipython
from ipywidgets import Widget

_shown: dict[str, tuple[str, list[Widget]]] = {}  # cell -> (its last run, what that run shows)


def shown(item: Widget) -> None:
    """Note that the cell now running shows `item`; close what its earlier runs showed."""
    cell, run = _now()
    if cell is None:
        return
    last_run, items = _shown.get(cell, (run, []))
    if last_run == run:
        _shown[cell] = (run, [*items, item])
        return
    _shown[cell] = (run, [item])
    still = [one for _, others in _shown.values() for one in others]
    for old in items:
        if not any(old is one for one in still):
            old.close()


def _now() -> tuple[str | None, str]:
    """(id of the cell that is running, id of this run of it); no cell outside a notebook."""
    shell: Any = get_ipython()
    if shell is None or not hasattr(shell, "get_parent"):
        return None, ""
    request = shell.get_parent()
    return request.get("metadata", {}).get("cellId"), request.get("header", {}).get("msg_id", "")
