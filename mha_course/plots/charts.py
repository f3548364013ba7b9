"""The charts that most lessons need: a labelled heat map, curves with error bars, bars."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mha_course.plots.style import COLOURS, STYLE, figure

MARKERS = "osD^vP"


@rc_context(STYLE)
def heatmap(
    matrices: Any,
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    row: str = "query",
    column: str = "key",
    quantity: str = "weight",
    limits: tuple[float, float] | None = (0, 1),
    digits: int | None = 2,
    size: tuple[float, float] | None = None,
) -> Figure:
    """Show one or several (T, S) matrices: a row is a query, a column is a key.

    Args:
        matrices: array (T, S) or (n, T, S).
        queries, keys: T and S labels; numbers if None.
        titles: n titles.
        row, column: what the two axes are.
        quantity: what the colour means, written at the colour bar.
        limits: least and largest value of the colour scale; those of the data if None.
        digits: decimals of the number written in each cell; no numbers if None.
        size: inches; chosen from n if None.

    Returns:
        The figure.

    Raises:
        ValueError: matrices holds no finite number, has fewer than two or more than three axes, or a list of labels or
            titles does not have as many entries as there are rows, columns or matrices.
    """
    data = np.asarray(matrices, dtype=float)
    if data.ndim == 2:
        data = data[None]
    if data.ndim != 3:
        raise ValueError(f"matrices must be (T, S) or (n, T, S), got {np.shape(matrices)}")
    n, T, S = data.shape
    for name, labels, count in (("queries", queries, T), ("keys", keys, S), ("titles", titles, n)):
        if labels is not None and len(labels) != count:
            raise ValueError(f"{name} must have {count} entries, got {len(labels)}")
    seen = data[np.isfinite(data)]  # the scale cannot hold -inf, the score of a hidden key
    if seen.size == 0:
        raise ValueError(f"matrices must hold a finite number, got {np.shape(matrices)}")
    low, high = limits if limits is not None else (seen.min(), seen.max())
    rows = math.ceil(n / 3)  # at most three side by side
    columns = math.ceil(n / rows)
    fig, axes = figure(rows, columns, size=size or (min(8, 1.2 + 3.4 * columns), 0.5 + 3.1 * rows), squeeze=False)
    for ax in axes.flat[n:]:
        ax.remove()
    for i, ax in enumerate(axes.flat[:n]):
        image = ax.imshow(data[i], vmin=low, vmax=high, aspect="auto")
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        if i + columns >= n:
            ax.set_xlabel(column)
        if i % columns == 0:
            ax.set_ylabel(row)
        _ticks(ax, T, S, queries, keys)
        if titles is not None:
            ax.set_title(titles[i])
        if digits is not None:
            _numbers(ax, data[i], digits, low + 0.6 * (high - low))
    fig.colorbar(image, ax=axes.flat[:n].tolist(), label=quantity, fraction=0.05)
    return fig


def _ticks(ax: Axes, T: int, S: int, queries: Sequence[str] | None, keys: Sequence[str] | None) -> None:
    if keys is not None:
        ax.set_xticks(range(S), keys)
    elif S <= 12:
        ax.set_xticks(range(S))
    if queries is not None:
        ax.set_yticks(range(T), queries)
    elif T <= 12:
        ax.set_yticks(range(T))
    ax.tick_params(length=0)


def _numbers(ax: Axes, matrix: Any, digits: int, dark_below: float) -> None:
    for (row, column), value in np.ndenumerate(matrix):
        colour = "white" if -np.inf < value < dark_below else "black"
        ax.text(column, row, f"{value:z.{digits}f}", ha="center", va="center", color=colour)


@rc_context(STYLE)
def curves(
    x: Sequence[float],
    lines: Mapping[str, Any],
    *,
    xlabel: str,
    ylabel: str,
    xscale: str = "linear",
    yscale: str = "linear",
    guides: Mapping[str, Any] | None = None,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
    size: tuple[float, float] = (8, 3.6),
) -> Figure:
    """Draw measured curves with error bars, and dashed guides for what a rule predicts.

    Args:
        x: n positions.
        lines: label -> (n,) values, or (repeats, n) values, drawn as mean and whiskers from the
            least to the largest repeat.
        xlabel, ylabel: with units.
        xscale, yscale: "linear" or "log". Zeros do not appear on a log axis.
        guides: label -> (n,) values, drawn dashed and grey.
        limits: least and largest y.
        title: title of the axes.
        size: inches.

    Returns:
        The figure.

    Raises:
        ValueError: no curve; a curve or guide whose last axis does not have n entries.
    """
    if not lines:
        raise ValueError("lines must hold at least one curve")
    at = np.asarray(x, dtype=float)
    fig, ax = figure(size=size)
    for i, (label, values) in enumerate(lines.items()):
        y = np.atleast_2d(np.asarray(values, dtype=float))
        _check_width(label, y, at)
        mean, low, high = y.mean(axis=0), y.min(axis=0), y.max(axis=0)
        ax.errorbar(
            at,
            mean,
            # Rounding can put the mean of equal repeats outside them.
            yerr=np.maximum((mean - low, high - mean), 0) if len(y) > 1 else None,
            marker=MARKERS[i % len(MARKERS)],
            markersize=6,
            markevery=1 if len(at) <= 40 else len(at) // 12,  # many markers would hide the line
            color=COLOURS[i % len(COLOURS)],
            capsize=3,
            label=label,
        )
    for label, values in (guides or {}).items():
        y = np.asarray(values, dtype=float)
        _check_width(label, y, at)
        ax.plot(at, y, "--", color="0.45", linewidth=1.5, label=label, zorder=1)
    ax.set(xlabel=xlabel, ylabel=ylabel, xscale=xscale, yscale=yscale)
    if limits is not None:
        ax.set_ylim(limits)
    if xscale == "log":
        ticks = at[:: math.ceil(len(at) / 8)]
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
    if title is not None:
        ax.set_title(title)
    fig.legend(loc="outside right center")
    return fig


@rc_context(STYLE)
def bars(
    labels: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    *,
    ylabel: str,
    limits: tuple[float, float] | None = None,
    digits: int = 2,
    size: tuple[float, float] = (8, 3.2),
) -> Figure:
    """Draw groups of bars with their values written on top.

    Args:
        labels: n names under the bars.
        groups: label -> (n,) values, one colour each.
        ylabel: with units.
        limits: least and largest y.
        digits: decimals of the written values.
        size: inches.

    Returns:
        The figure.

    Raises:
        ValueError: no group; a group without exactly n values.
    """
    if not groups:
        raise ValueError("groups must hold at least one group of bars")
    fig, ax = figure(size=size)
    width = 0.8 / len(groups)
    for i, (label, values) in enumerate(groups.items()):
        if len(values) != len(labels):
            raise ValueError(f"{label!r} must have {len(labels)} values, got {len(values)}")
        at = np.arange(len(labels)) + (i - (len(groups) - 1) / 2) * width
        drawn = ax.bar(at, values, width * 0.92, color=COLOURS[i % len(COLOURS)], label=label)
        ax.bar_label(drawn, fmt=f"%.{digits}f", padding=2, fontsize=10)
    ax.set_xticks(range(len(labels)), labels)
    ax.set_ylabel(ylabel)
    ax.grid(visible=False, axis="x")
    ax.margins(y=0.15)
    if limits is not None:
        ax.set_ylim(limits)
    if len(groups) > 1:
        fig.legend(loc="outside right center")
    return fig


def _check_width(label: str, y: Any, x: Any) -> None:
    if y.shape[-1] != len(x):
        raise ValueError(f"{label!r} must have {len(x)} values, one for each x, got {y.shape}")
