"""Explorer `bits`: weights on a grid of few codes, what an outlier does to it, and what a finer cut of scales saves."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mha_course import plots
from mha_course.explorers._bits_state import (
    CHANNEL,
    COLUMNS,
    FEWEST,
    GRIDS,
    GROUP,
    GROUPS,
    MOST,
    ROWS,
    SCHEMES,
    SYMMETRIC,
    TASK_BITS,
    TASK_ERROR,
    TASK_OUTLIER,
    TENSOR,
    State,
    compute,
)
from mha_course.explorers.base import Choice, Explorer, Readout, Slider

CONTROLS = (
    Slider("bits", "bits", FEWEST, MOST, 1, 4, digits=0),
    Slider("outlier", "outlier (0: none)", 0, 16, 1, 12, digits=0),
    Choice("scheme", "a scale for each", SCHEMES, TENSOR),
    Slider("row", "outlier's row", 0, ROWS - 1, 1, 12, digits=0),
    Choice("grid", "grid", GRIDS, SYMMETRIC),
    Slider("column", "outlier's column", 0, COLUMNS - 4, 4, 40, digits=0),
)

EDGES = np.linspace(-20, 20, 161)
LEAST_SHOWN, MOST_SHOWN = -2.5, 0.5  # log10 of an error in the picture
WITH, WITHOUT = plots.COLOURS[1], plots.COLOURS[0]
LINES = dict(zip(SCHEMES, (plots.COLOURS[3], plots.COLOURS[2], plots.COLOURS[0]), strict=True))
STYLES = dict(zip(SCHEMES, ("-", "--", "-."), strict=True))
WORDS = 9


def draw(figure: Figure, state: State) -> None:
    """Draw the weights before and after, both grids, the error of each weight, and that of the output against bits."""
    parts = plots.once(figure, _lay_out)
    for stairs, numbers in ((parts.before, state.weights), (parts.after, state.rounded)):
        stairs.set_data(np.maximum(np.histogram(numbers, EDGES)[0], 0.1))
    parts.outlier.set_data([state.weights[state.place]], [4])
    for ticks, values, y in ((parts.own, state.own, 1), (parts.other, state.other, 0)):
        ticks.set_segments([[(value, y - 0.38), (value, y + 0.38)] for value in values])
        ticks.set_linewidth(1.8 if values[1] - values[0] > 0.5 else 0.7)  # apart as long as they can be
    lost = np.log10(np.abs(state.rounded - state.weights).clip(10**LEAST_SHOWN))
    parts.map.set_data(lost)
    for ring in parts.place:
        ring.set_data([state.place[1]], [state.place[0]])
    for scheme, line, errors in zip(SCHEMES, parts.errors, state.errors, strict=True):
        line.set(ydata=errors, linewidth=3.2 if scheme == state.scheme else 1.4)
    parts.here.set_data([state.bits], [state.output_error])
    parts.here.set_markerfacecolor(LINES[state.scheme])


def readout(state: State) -> Readout:
    """Errors, steps and size, and what they mean."""
    rows = [
        (f"{state.bits} bits, {state.grid}", state.scheme),
        ("weight error", f"{state.weight_error:.1%}"),
        ("output error", f"{state.output_error:.1%}"),
        ("step at the outlier", f"{state.step:.2g} std"),
        ("step in another row", f"{state.other_step:.2g} std"),
        ("weights that become 0", f"{state.zeros:.0%}"),
        ("scales", f"{state.scales}"),
        ("bits per weight", f"{state.stored / (ROWS * COLUMNS):.2f}"),
        ("size", f"{state.stored // 8:,} bytes"),
        ("of float32", f"{state.stored / (32 * ROWS * COLUMNS):.1%}"),
        ("task", "done" if state.done else "not yet"),
    ]
    return Readout(rows, f"{_of_step(state)} {_of_task(state)}")


def bits() -> Explorer:
    """Choose bits and scales, move one outlier; watch the grid, the errors and the size."""
    return Explorer(
        title="Weights in few bits",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "Upper left, 3072 weights around 0 and an outlier at 12 standard deviations: with one scale for all in 4 "
            "bits the 15 values lie 1.7 apart, and most weights become 0. Upper right, the error of the output falls "
            "with the bits, and is largest with one scale for all, smallest with one for each group. Below, the error "
            "of each weight, large in every row."
        ),
        size=(8, 5.2),
    )


def _of_step(state: State) -> str:
    if not state.outlier:
        return f"There is no outlier; {state.zeros:.0%} of all weights become 0."
    shared = {TENSOR: "of all weights", CHANNEL: "of its row", GROUPS: f"of its group of {GROUP}"}[state.scheme]
    wider = state.step / state.plain_step
    if wider < 1.05:
        return f"The outlier is too small to widen the steps {shared}; {state.zeros:.0%} of all weights become 0."
    return f"The outlier makes the steps {shared} {wider:.1f} times as wide; {state.zeros:.0%} of all weights become 0."


def _of_task(state: State) -> str:
    task = f"{TASK_BITS} bits and an outlier of {TASK_OUTLIER} or more, with an output error below {TASK_ERROR:.0%}"
    if state.done:
        return f"The task is done, {task}: it took {state.stored / (ROWS * COLUMNS):.2f} bits per weight."
    return f"Task: {task}."


def _lay_out(figure: Figure) -> SimpleNamespace:
    axes = figure.subplot_mosaic(
        [["weights", "errors"], ["grids", "errors"], ["map", "map"]],
        width_ratios=(1.5, 1),
        height_ratios=(1.5, 0.5, 1.15),
    )
    return SimpleNamespace(
        **_lay_out_weights(axes["weights"]),
        **_lay_out_grids(axes["grids"]),
        **_lay_out_errors(axes["errors"]),
        **_lay_out_map(axes["map"], figure),
    )


def _lay_out_weights(ax: Axes) -> dict[str, Any]:
    none = np.full(len(EDGES) - 1, 0.1)
    before = ax.stairs(none, EDGES, baseline=0.1, fill=True, color="0.75", animated=True, zorder=2)
    after = ax.stairs(none, EDGES, baseline=0.1, color="black", linewidth=1.2, animated=True, zorder=3)
    (outlier,) = ax.plot([], [], "v", color=WITH, markersize=9, markeredgecolor="black", animated=True, zorder=4)
    ax.set(yscale="log", ylim=(0.7, 4000), xlim=(EDGES[0], EDGES[-1]), title=f"{ROWS} x {COLUMNS} weights")
    ax.set(ylabel="how many", yticks=[1, 10, 100, 1000], yticklabels=["1", "10", "100", "1000"])
    ax.minorticks_off()
    ax.tick_params(labelbottom=False)
    ax.legend(
        handles=[
            Patch(color="0.75", label="float32"),
            Line2D([], [], color="black", linewidth=1.2, label="quantized"),
            Line2D([], [], linestyle="", marker="v", color=WITH, markeredgecolor="black", label="outlier"),
        ],
        loc="upper left",
        fontsize=WORDS,
    )
    return {"before": before, "after": after, "outlier": outlier}


def _lay_out_grids(ax: Axes) -> dict[str, Any]:
    own, other = (LineCollection([], colors=colour, animated=True, zorder=3) for colour in (WITH, WITHOUT))
    ax.add_collection(own)
    ax.add_collection(other)
    ax.set(xlim=(EDGES[0], EDGES[-1]), ylim=(-0.6, 1.6), xlabel="weight (std)")
    ax.set_yticks([1, 0], ["outlier's grid", "another row's"])
    ax.grid(visible=False)
    return {"own": own, "other": other}


def _lay_out_errors(ax: Axes) -> dict[str, Any]:
    widths = np.arange(FEWEST, MOST + 1)
    ax.axhline(TASK_ERROR, color="0.3", linewidth=1, linestyle=":")
    lines = [
        ax.plot(widths, np.ones(len(widths)), STYLES[name], color=LINES[name], animated=True, zorder=3)[0]
        for name in SCHEMES
    ]
    (here,) = ax.plot([], [], "o", markeredgecolor="black", markersize=11, animated=True, zorder=5)
    ax.set(yscale="log", ylim=(0.003, 2), xlim=(1.6, 8.4), xticks=widths, title="error of the output", xlabel="bits")
    ax.set_yticks([0.003, 0.01, 0.03, 0.1, 0.3, 1], ["0.3%", "1%", "3%", "10%", "30%", "100%"])
    ax.minorticks_off()
    ax.legend(
        handles=[Line2D([], [], color=LINES[name], linestyle=STYLES[name], label=name) for name in SCHEMES],
        loc="lower left",
        fontsize=WORDS,
    )
    return {"errors": lines, "here": here}


def _lay_out_map(ax: Axes, figure: Figure) -> dict[str, Any]:
    image = ax.imshow(
        np.zeros((ROWS, COLUMNS)),
        vmin=LEAST_SHOWN,
        vmax=MOST_SHOWN,
        cmap="cividis",
        aspect="auto",
        interpolation="nearest",
        animated=True,
    )
    ring: dict[str, Any] = {"fillstyle": "none", "clip_on": False, "animated": True}
    place = [
        ax.plot([], [], "o", color=colour, markersize=11, markeredgewidth=width, zorder=3, **ring)[0]
        for colour, width in (("white", 5), (WITH, 2.5))
    ]
    ax.set(title="error of each weight", xlabel="column, an input", ylabel="row, an output")
    ax.set(xticks=range(0, COLUMNS, GROUP), yticks=range(0, ROWS, 8))
    ax.grid(visible=False)
    bar = figure.colorbar(image, ax=ax, pad=0.01)
    bar.set_ticks([-2, -1, 0], labels=["0.01", "0.1", "1"])
    bar.set_label("std")
    return {"map": image, "place": place}
