"""Pictures of notebook 02: dot product and cosine as maps of the plane, the hull of the values."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from mha_course.plots.style import COLOURS, STYLE, figure


@rc_context(STYLE)
def dot_and_cosine(query: Any, *, reach: float = 3.2) -> Figure:
    """Map the plane of possible keys twice: by q.k and by the cosine between q and k.

    Args:
        query: (2,), not zero.
        reach: half the width of the plane shown.

    Returns:
        A figure with two panels; a colour stands for one score, or for one cosine.
    """
    q = np.asarray(query, dtype=float)
    line = np.linspace(-reach, reach, 300)
    plane = np.stack(np.meshgrid(line, line), axis=-1)  # (300, 300, 2)
    dots = plane @ q
    cosines = dots / (np.linalg.norm(plane, axis=-1) * np.linalg.norm(q))
    fig, axes = figure(1, 2, size=(8, 3.8), sharey=True)
    panels = (
        ("what the dot product sees", dots, np.arange(-3, 3.1, 1), "q.k"),
        ("what the cosine sees", cosines, np.arange(-0.75, 0.76, 0.25), "cosine of q and k"),
    )
    for ax, (title, field, levels, quantity) in zip(axes, panels, strict=True):
        top = np.abs(field).max()
        colours = ax.pcolormesh(line, line, field, cmap="PuOr_r", vmin=-top, vmax=top, alpha=0.75)
        colours.set_rasterized(True)
        ax.contour(line, line, field, levels=levels, colors="0.35", linewidths=0.7)
        ax.set(title=title, xlabel="first coordinate of k", aspect="equal")
        ax.grid(visible=False)
        arrow = {"arrowstyle": "-|>", "color": "black", "linewidth": 3, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", xy=q, xytext=(0, 0), arrowprops=arrow)
        ax.annotate("q", xy=1.35 * q, ha="center", va="center", weight="bold", fontsize=13)
        fig.colorbar(colours, ax=ax, label=quantity, shrink=0.84)
    axes[0].set_ylabel("second coordinate of k")
    return fig


@rc_context(STYLE)
def hull(values: Any, outputs: Any, marked: Mapping[str, Any]) -> Figure:
    """Draw values in the plane, their convex hull, and outputs of attention over them.

    Args:
        values: (3, 2), the corners of a triangle.
        outputs: (n, 2), drawn as small dots.
        marked: label -> (2,), single outputs drawn large.

    Returns:
        The figure.
    """
    corners, dots = np.asarray(values, dtype=float), np.asarray(outputs, dtype=float)
    fig, ax = figure(size=(8, 3.6))
    ax.fill(*corners.T, facecolor="0.93", edgecolor="0.5", label="convex hull of the values")
    ax.scatter(*dots.T, s=12, color=COLOURS[5], label=f"{len(dots)} outputs", zorder=2)
    ax.scatter(*corners.T, s=70, color=COLOURS[0], label="values", zorder=3)
    for (label, place), marker in zip(marked.items(), "DsX", strict=False):
        ax.plot(*np.asarray(place), marker, color=COLOURS[1], markersize=10, label=label)
    ax.plot(0, 0, "+", color="black", markersize=14, markeredgewidth=2, label="the zero vector")
    ax.set(xlabel="first coordinate", ylabel="second coordinate", aspect="equal")
    ax.margins(0.12)
    fig.legend(loc="outside right center")
    return fig
