"""Explorer `floats`: a number in six formats bit by bit, its neighbours, and a softmax in one of the formats."""

import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy import ndarray

from mha_course import plots
from mha_course.explorers._floats_state import KEYS, State, compute, readout, say, short
from mha_course.explorers.base import Choice, Explorer, Slider
from mha_course.plots.written import Font, outlines, written
from mha_course.precision.formats import FORMATS

NAMES = tuple(FORMATS)
LOW, HIGH = -30, 20  # powers of two
MOST = max(form.bits for form in FORMATS.values())

CONTROLS = (
    Slider("factor", "number", -2, 2, 0.05, 1.6, digits=2),
    Slider("power", "times 2 to the", LOW, HIGH, 1, -4, digits=0),
    Slider("top", "largest score", -120, 120, 1, 12, digits=0),
    Slider("apart", "scores apart by", 0, 10, 0.1, 1, digits=1),
    Choice("format", "format", NAMES, "float16"),
)

SIGN, EXPONENT, FRACTION = FIELDS = (plots.COLOURS[1], plots.COLOURS[4], plots.COLOURS[5])
LESS, PLAIN = plots.COLOURS[0], plots.COLOURS[1]  # bars with and without the maximum subtracted
PALE, DARK = 0.3, "0.45"
WORDS = 9
LEFT, MIDDLE, MONO = Font(WORDS, origin="left"), Font(WORDS), Font(10, "DejaVu Sans Mono")


def draw(figure: Figure, state: State) -> None:
    """Draw the bits in all formats, the neighbours on a line, the relative spacing, and both softmaxes."""
    parts = plots.once(figure, _lay_out)
    _draw_bits(parts, state)
    places, x = _places(state)
    there = [place for place, value in zip(places, state.line, strict=True) if not math.isnan(value)]
    parts.marks.set_data(there, np.zeros(len(there)))
    parts.number.set_data([x], [0])
    parts.values.set(
        paths=outlines("none" if math.isnan(value) else say(value, state.form) for value in state.line),
        offsets=[*zip(places, (-1, -2, -1), strict=True)],
    )
    parts.curve.set_ydata(_relative(state.form.name))
    inside = math.isfinite(state.spacing) and state.x != 0
    relative = min(max(state.spacing / abs(state.x), 2e-8), 5.0) if inside else math.nan
    parts.point.set_data([abs(state.x)], [relative])
    _draw_softmax(parts, state)


def floats() -> Explorer:
    """Change a number, a format and scores; watch bits, neighbours, and where a softmax overflows."""
    return Explorer(
        title="A number in a format, and a softmax in it",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "Above, the bits of 0.1 in six formats. Below them its neighbours in float16 on a line, and the relative "
            "spacing: about one in a thousand from 6e-5 up, more below. On the right, the weights of scores from 12 "
            "to 8 in float16: bars where the maximum is subtracted, NaN or 0 where it is not, as exp(12) overflows."
        ),
        size=(8, 5.6),
    )


def _places(state: State) -> tuple[list[float], float]:
    """Where the neighbours and the number are drawn: true to scale between them if all are finite."""
    below, nearest, above = state.line
    if all(map(math.isfinite, state.line)):
        places = [0.0, (nearest - below) / (above - below), 1.0]
        return places, (state.x - below) / (above - below)
    step = 2 * state.form.spacing(torch.tensor([state.form.largest], dtype=torch.float64)).item()
    off = (state.x - nearest) / step if math.isfinite(nearest) else math.copysign(0.25, -nearest)
    return [0.0, 0.5, 1.0], min(max(0.5 + off, -0.08), 1.08)


@cache
def _grid() -> ndarray:
    return 2.0 ** np.arange(LOW - 1, HIGH + 1.001, 1 / 16)


@cache
def _relative(name: str) -> ndarray:
    grid = _grid()
    return FORMATS[name].spacing(torch.from_numpy(grid)).numpy() / grid


def _draw_bits(parts: SimpleNamespace, state: State) -> None:
    colours = np.ones((len(NAMES), MOST, 3))
    digits: list[str] = []
    shades: list[str] = []
    for row, (name, fields) in enumerate(zip(NAMES, state.bits, strict=True)):
        chosen = name == state.form.name
        strength = 1.0 if chosen else PALE
        widths = [len(field) for field in fields]
        ends = np.cumsum(widths)
        for colour, start, end in zip(FIELDS, ends - widths, ends, strict=True):
            colours[row, start:end] = strength * np.array(to_rgb(colour)) + 1 - strength
        digits += "".join(fields)
        shades += ["black" if chosen else DARK] * int(ends[-1])
    parts.cells.set_facecolor(colours.reshape(-1, 3))
    parts.digits.set(paths=outlines(digits, MONO), facecolor=shades)
    held = [say(value, form) for value, form in zip(state.held, FORMATS.values(), strict=True)]
    bold = ["black" if name == state.form.name else DARK for name in NAMES]
    parts.held.set(paths=outlines(held, LEFT), facecolor=bold)
    parts.chosen.set_data([-0.35], [NAMES.index(state.form.name)])


def _draw_softmax(parts: SimpleNamespace, state: State) -> None:
    words, at = [], []
    for bars, steps, shift in ((parts.less, state.less, -0.2), (parts.plain, state.plain, 0.2)):
        for key, (bar, weight) in enumerate(zip(bars, steps.weights.tolist(), strict=True)):
            bar.set_height(0.0 if math.isnan(weight) else weight)
            if math.isnan(weight) or weight == 0:
                words.append("NaN" if math.isnan(weight) else "0")
                at.append((key + shift, 0.04))
    parts.none.set(paths=outlines(words), offsets=at or np.zeros((0, 2)))
    held, less, plain = (x.tolist() for x in (state.plain.shifted, state.less.exponentials, state.plain.exponentials))
    parts.table.set_paths(outlines([*(short(s, 4) for s in held), *(short(e) for e in (*less, *plain))]))


def _lay_out(figure: Figure) -> SimpleNamespace:
    axes = figure.subplot_mosaic(
        [["bits", "bits"], ["line", "softmax"], ["spacing", "softmax"]],
        height_ratios=(1.55, 0.62, 1.4),
        width_ratios=(1, 1.15),
    )
    return SimpleNamespace(
        **_lay_out_bits(axes["bits"]),
        **_lay_out_line(axes["line"]),
        **_lay_out_spacing(axes["spacing"]),
        **_lay_out_softmax(axes["softmax"]),
    )


def _bare(ax: Axes) -> None:
    ax.set(xticks=[], yticks=[])
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)


def _lay_out_bits(ax: Axes) -> dict[str, Any]:
    rows = len(NAMES)
    edges = np.arange(MOST + 1.0), np.arange(rows + 1) - 0.5
    cells = ax.pcolormesh(*edges, np.zeros((rows, MOST)), edgecolor="white", linewidth=1.2, animated=True, zorder=1)
    cells.set_array(None)  # its colours are given one by one
    places = [(i + 0.5, row) for row, form in enumerate(FORMATS.values()) for i in range(form.bits)]
    digits = written(ax, ("0",) * len(places), MONO)
    digits.set_offsets(places)
    held = written(ax, NAMES, LEFT)
    held.set_offsets([(MOST + 0.4, row) for row in range(rows)])
    (chosen,) = ax.plot([], [], ">", color="black", markersize=7, clip_on=False, animated=True, zorder=4)
    for row, name in enumerate(NAMES):
        ax.text(-1, row, name, ha="right", va="center", fontsize=10)
    _bare(ax)
    ax.set(xlim=(-5.6, MOST + 7.6), ylim=(rows - 0.5, -0.5))
    ax.legend(
        handles=[
            Patch(color=colour, label=name)
            for colour, name in zip(FIELDS, ("sign", "exponent", "fraction"), strict=True)
        ],
        loc="lower center",
        bbox_to_anchor=(0.5, 0.98),
        ncols=3,
        fontsize=WORDS,
        handlelength=1,
    )
    return {"cells": cells, "digits": digits, "held": held, "chosen": chosen}


def _lay_out_line(ax: Axes) -> dict[str, Any]:
    ax.plot([-0.1, 1.1], [0, 0], color="0.3", linewidth=1.5)
    (marks,) = ax.plot([], [], "|", color="black", markersize=16, markeredgewidth=2, animated=True, zorder=3)
    (number,) = ax.plot([], [], "D", color=plots.COLOURS[3], markeredgecolor="black", animated=True, zorder=4)
    _bare(ax)
    ax.set(xlim=(-0.38, 1.38), ylim=(-2.4, 0.8))
    ax.set_title("neighbours; diamond: the number", fontsize=11)
    return {"marks": marks, "number": number, "values": written(ax, ("0",) * 3, MIDDLE)}


def _lay_out_spacing(ax: Axes) -> dict[str, Any]:
    grid = _grid()
    for name in NAMES:
        ax.plot(grid, _relative(name), color="0.8", linewidth=1)
    (curve,) = ax.plot(grid, grid, color="black", linewidth=2, animated=True, zorder=3)
    (point,) = ax.plot([], [], "D", color=plots.COLOURS[3], markeredgecolor="black", animated=True, zorder=4)
    ax.set(xscale="log", yscale="log", xlim=(grid[0], grid[-1]), ylim=(2e-8, 5))
    ax.set_xlabel("number")
    ax.set_title("spacing / number; grey: other formats", fontsize=11)
    ax.set_xticks([1e-8, 1e-4, 1, 1e4], ["1e\u22128", "1e\u22124", "1", "1e4"])
    ax.set_yticks([1e-6, 1e-4, 1e-2, 1], ["1e\u22126", "1e\u22124", "0.01", "1"])
    ax.minorticks_off()
    return {"curve": curve, "point": point}


def _lay_out_softmax(ax: Axes) -> dict[str, Any]:
    keys = np.arange(KEYS)
    less = ax.bar(keys - 0.2, np.ones(KEYS), 0.38, color=LESS, animated=True, zorder=3, label="maximum subtracted")
    plain = ax.bar(
        keys + 0.2, np.ones(KEYS), 0.38, color=PLAIN, hatch="//", animated=True, zorder=3, label="scores as they are"
    )
    rows = {-0.11: "s, as held", -0.22: "exp(s \u2212 max)", -0.33: "exp(s)"}
    table = written(ax, ("0",) * (KEYS * len(rows)))
    table.set(offsets=[(key, y) for y in rows for key in keys], clip_on=False)
    for y, name in rows.items():
        ax.text(-0.65, y, name, ha="right", va="center", fontsize=WORDS)
    ax.set(xlim=(-0.6, KEYS - 0.4), ylim=(0, 1.3), xticks=[], yticks=[0, 0.5, 1])
    ax.set_title("softmax of five scores: weights", fontsize=11)
    ax.grid(visible=False)
    ax.legend(loc="upper right", fontsize=WORDS)
    return {"less": less, "plain": plain, "table": table, "none": written(ax, ())}
