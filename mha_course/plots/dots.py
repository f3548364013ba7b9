"""One dot for each run or query: what a mean would hide."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

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
            run without a result: it is not drawn but counted, as "3 never".
        ylabel, xlabel: with units.
        yscale: "linear" or "log".
        floor: values below it are drawn at it.
        limits: least and largest y.
        size: inches.

    Returns:
        The figure.

    Raises:
        ValueError: no group; a group without exactly n lists.
    """
    if not groups:
        raise ValueError("groups must hold at least one group of dots")
    fig, ax = figure(size=size)
    width = 0.8 / len(groups)
    for i, (name, columns) in enumerate(groups.items()):
        if len(columns) != len(labels):
            raise ValueError(f"{name!r} must have {len(labels)} lists of values, got {len(columns)}")
        colour, named = COLOURS[i % len(COLOURS)], name
        for column, values in enumerate(columns):
            middle = column + (i - (len(groups) - 1) / 2) * width
            y = np.asarray(values, dtype=float)
            missing = int(np.isnan(y).sum())
            if missing:
                ax.text(middle, 0.98, f"{missing} never", transform=ax.get_xaxis_transform(), ha="center", va="top")
            y = y[~np.isnan(y)]
            if y.size == 0:
                continue
            if floor is not None:
                y = np.maximum(y, floor)
            # Spread over the column in an order that has no pattern, the same each time.
            places = np.random.default_rng(0).permutation(y.size)
            x = middle + width * 0.7 * ((places + 0.5) / y.size - 0.5)
            size_of_dot = 6 if y.size <= 20 else 2.5
            marker = MARKERS[i % len(MARKERS)]
            ax.plot(x, y, marker, color=colour, markersize=size_of_dot, alpha=0.8, markeredgewidth=0, label=named)
            ax.hlines(np.median(y), middle - 0.42 * width, middle + 0.42 * width, color="black", linewidth=2, zorder=3)
            named = "_"  # one entry of the legend for each group
    ax.set_xticks(range(len(labels)), labels)
    ax.set(ylabel=ylabel, xlabel=xlabel or "", yscale=yscale, xlim=(-0.5, len(labels) - 0.5))
    if limits is not None:
        ax.set_ylim(limits)
    ax.grid(visible=False, axis="x")
    if len(groups) > 1:
        fig.legend(loc="outside right center", markerscale=1 if ax.lines[0].get_markersize() > 5 else 3)
    return fig
