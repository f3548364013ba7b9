"""One dot for each run or query: what a mean would hide."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mha_course.plots.charts import MARKERS
from mha_course.plots.style import COLOURS, STYLE, figure


@rc_context(STYLE)
def dots(
    labels: Sequence[str],
    groups: Mapping[str, Any],
    *,
    ylabel: str,
    xlabel: str | None = None,
    yscale: str = "linear",
    floor: float | None = None,
    limits: tuple[float, float] | None = None,
    size: tuple[float, float] = (8, 3.6),
) -> Figure:
    """Draw every single value as a dot over its label, with a bar at the median of each column.

    Args:
        labels: n names under the columns.
        groups: label -> n lists of values, one colour each, side by side over each name. A NaN is a
            run without a result: it is not drawn but counted, as "3 never" over its column.
        ylabel, xlabel: with units.
        yscale: "linear" or "log".
        floor: values below it are drawn at it.
        limits: least and largest y; values outside are cut off.
        size: inches.

    Returns:
        The figure.

    Raises:
        ValueError: no label; no group; a group without exactly n lists; an infinite value, or one that a log axis
            cannot show; a floor of 0 or less on a log axis.
    """
    if not labels:
        raise ValueError("labels must hold at least one name")
    if not groups:
        raise ValueError("groups must hold at least one group of dots")
    if floor is not None and yscale == "log" and floor <= 0:
        raise ValueError(f"floor must be above 0 on a log axis, got {floor}")
    fig, ax = figure(size=size)
    width = 0.8 / len(groups)
    for i, (name, columns) in enumerate(groups.items()):
        if len(columns) != len(labels):
            raise ValueError(f"{name!r} must have {len(labels)} lists of values, got {len(columns)}")
        for column, values in enumerate(columns):
            middle = column + (i - (len(groups) - 1) / 2) * width
            y = np.asarray(values, dtype=float)
            missing = int(np.isnan(y).sum())
            if missing:  # a line of text for each group, so that neighbours do not meet
                where = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "top"}
                ax.text(middle, 0.98 - 0.08 * i, f"{missing} never", color=COLOURS[i % len(COLOURS)], **where)
            y = _to_draw(name, y[~np.isnan(y)], yscale, floor)
            if y.size == 0:
                continue
            # Spread over the column in an order that has no pattern, the same each time.
            places = np.random.default_rng(0).permutation(y.size)
            x = middle + width * 0.7 * ((places + 0.5) / y.size - 0.5)
            ax.plot(x, y, color=COLOURS[i % len(COLOURS)], markersize=6 if y.size <= 20 else 2.5, **_marker(i))
            ax.hlines(np.median(y), middle - 0.42 * width, middle + 0.42 * width, color="black", linewidth=2, zorder=3)
    ax.set_xticks(range(len(labels)), labels)
    ax.set(ylabel=ylabel, xlabel=xlabel or "", yscale=yscale, xlim=(-0.5, len(labels) - 0.5))
    if limits is not None:
        ax.set_ylim(limits)
    elif ax.texts:
        ax.margins(y=0.2)
    ax.grid(visible=False, axis="x")
    if len(groups) > 1:
        named = [Line2D([], [], color=COLOURS[i % len(COLOURS)], label=g, **_marker(i)) for i, g in enumerate(groups)]
        fig.legend(handles=named, loc="outside right center")
    return fig


def _marker(group: int) -> dict[str, Any]:
    return {"linestyle": "", "marker": MARKERS[group % len(MARKERS)], "alpha": 0.8, "markeredgewidth": 0}


def _to_draw(name: str, y: Any, yscale: str, floor: float | None) -> Any:
    """The values with those below the floor put on it; all of them must have a place on the axis."""
    y = y if floor is None else np.maximum(y, floor)
    if np.isinf(y).any() or (yscale == "log" and (y <= 0).any()):
        raise ValueError(f"{name!r} must hold finite values{', above 0 on a log axis' if yscale == 'log' else ''}")
    return y
