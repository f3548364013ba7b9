"""One look for every picture: colours that colour-blind readers can tell apart, legible sizes."""

from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette (2008), without yellow and black: blue, vermillion, green, ..."""

STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 11,
    "axes.prop_cycle": mpl.cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "font.family": "DejaVu Sans",  # matplotlib brings it along
    "font.size": 11,
    "grid.alpha": 0.35,
    "image.cmap": "viridis",
    "legend.frameon": False,
    "lines.linewidth": 2,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
}


def blank(size: tuple[float, float] = (8, 3.6)) -> Figure:
    """Make a figure without axes, laid out by matplotlib's constrained layout.

    Args:
        size: width and height in inches; one inch is shown as 100 CSS pixels.
    """
    return Figure(figsize=size, layout="constrained")


@mpl.rc_context(STYLE)
def figure(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (8, 3.6), **subplots: Any
) -> tuple[Figure, Any]:
    """Make a figure in the course's style.

    Args:
        rows, columns: grid of axes.
        size: width and height in inches; one inch is shown as 100 CSS pixels.
        subplots: further arguments of `matplotlib.figure.Figure.subplots`.

    Returns:
        The figure and its axes: one `Axes`, or an array of them, as `Figure.subplots` returns.
    """
    fig = blank(size)
    return fig, fig.subplots(rows, columns, **subplots)
