"""Explorer `tiles`: attention tile by tile, and what it moves between a slow and a fast memory."""

from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy import ndarray

from mha_course import plots
from mha_course.dot_product import attention
from mha_course.explorers.base import Choice, Explorer, Readout, Slider
from mha_course.plots.written import outlines, written
from mha_course.tiled import traffic
from mha_course.tiled.traffic import Blocks, Simulation, Traffic

KEYS, QUERIES = ORDERS = ("keys outside", "queries outside")
BREAK_EVEN = {KEYS: 3, QUERIES: 2}  # times d^2 elements
SMALL, SMALL_WIDTH, SMALL_SRAM = 12, 3, 36  # the case on the left: tiles of 3 x 3 in both orders
TILE, TILES = 3, 16
BYTES, KIB = 4, 1024  # float32

CONTROLS = (
    Slider("step", "tile", 1, TILES, 1, 7, digits=0),
    Choice("order", "loop order", ORDERS, KEYS),
    Slider("sram", "SRAM in KiB", 8, 228, 2, 100, digits=0),
    Choice("width", "head width d", ("32", "64", "128", "256"), "64"),
    Choice("length", "length N", ("512", "2048", "8192", "16384"), "8192"),
)

FOUND, GREW = "0.45", plots.COLOURS[1]  # of a running maximum that stays, and of one that grew
LINES = dict(zip(ORDERS, (plots.COLOURS[0], plots.COLOURS[2]), strict=True))
WORDS = 9
MAXIMUM, FACTOR = SMALL + 0.9, SMALL + 3.4  # places of the columns beside the scores
NOTE = "score: dark low, yellow high; ring: maximum so far\npale: tile done, bright: at work, grey: to come"


class State(NamedTuple):
    """One state of the explorer."""

    order: str
    # the small case, after some of its tiles
    step: int
    queries: range  # of the tile at work
    keys: range
    scores: Float[ndarray, "12 12"]
    seen: Bool[ndarray, "12 12"]  # the tile at work too
    maxima: Float[ndarray, " 12"]  # -inf in rows without a tile yet
    factors: Float[ndarray, " rows"]  # of what the rows at work summed before; 0 if nothing
    changes: int  # of a running maximum so far, the first of each row too
    rescaled: int  # rows so far
    # the large one
    length: int
    width: int
    sram: float  # KiB
    blocks: Blocks
    moved: Traffic
    standard: Traffic
    curves: Float[ndarray, "orders srams"]  # moved / standard


def compute(*, step: float, order: str, sram: float, width: str, length: str) -> State:
    """Walk through the tiles of a small case, and count the moves of a large one."""
    scores, run = _small()[0], _small()[1][order]
    past = run.steps[: int(step)]
    seen, maxima = np.zeros((SMALL, SMALL), dtype=bool), np.full(SMALL, -np.inf)
    for one in past:
        seen[np.ix_(one.queries, one.keys)] = True
        maxima[one.queries] = one.after.numpy()
    N, d = int(length), int(width)
    elements = int(sram * KIB // BYTES)
    return State(
        order=order,
        step=int(step),
        queries=past[-1].queries,
        keys=past[-1].keys,
        scores=scores,
        seen=seen,
        maxima=maxima,
        factors=(past[-1].before - past[-1].after).exp().numpy(),
        changes=sum(int((one.after > one.before).sum()) for one in past),
        rescaled=sum(int(one.rescaled.sum()) for one in past),
        length=N,
        width=d,
        sram=sram,
        blocks=traffic.block_sizes(d, sram=elements, order=order),
        moved=traffic.counts(N, N, d, sram=elements, order=order),
        standard=traffic.standard(N, N, d),
        curves=_curves(N, d),
    )


def draw(figure: Figure, state: State) -> None:
    """Draw the scores that were seen, the maximum of each row, and traffic against the size of the SRAM."""
    parts = plots.once(figure, _lay_out)
    _draw_tiles(parts, state)
    for line, point, curve, order in zip(parts.lines, parts.points, state.curves, ORDERS, strict=True):
        chosen = order == state.order
        line.set(ydata=curve, linewidth=3 if chosen else 1.3)
        point.set(data=([state.sram], curve[_srams() == state.sram]), markersize=11 if chosen else 5)
    parts.even.set_xdata([_break_even(order, state.width) for order in ORDERS])
    parts.unit.set_text(f"1 = {_bytes(state.standard.moved)} moved by standard")


def readout(state: State) -> Readout:
    """The traffic of the large case, the state of the small one, and what both mean."""
    N, d, blocks = state.length, state.width, state.blocks
    peak = blocks.peak(N, N, d) * BYTES / KIB
    rows = [
        (f"N = {N}, d = {d}", state.order, "standard"),
        ("tile, queries x keys", f"{blocks.queries} x {blocks.keys}", ""),
        ("tiles", f"{blocks.tiles(N, N):,}", ""),
        ("elements moved", f"{state.moved.moved:,}", f"{state.standard.moved:,}"),
        ("bytes, float32", _bytes(state.moved.moved), _bytes(state.standard.moved)),
        ("moved / standard", f"{_ratio(state):.2f}", "1"),
        ("break-even", f"{BREAK_EVEN[state.order]} d² = {_break_even(state.order, d):g} KiB", ""),
        ("Q, K, V, O fill", f"{state.sram:g} KiB", ""),
        ("with scores, l, m", f"{peak:.0f} KiB", ""),
        (f"{SMALL} x {SMALL} scores", f"tile {state.step}", "so far"),
        ("rows rescaled", f"{_grew(state).sum()} of {TILE}", f"{state.rescaled}"),
        ("maxima set or raised", f"{(state.factors < 1).sum()} of {TILE}", f"{state.changes}"),
    ]
    return Readout(rows, f"{_of_traffic(state)} {_of_tile(state)}")


def tiles() -> Explorer:
    """Step through tiles; watch running maxima, rescaled rows, and what crosses between the memories."""
    return Explorer(
        title="Tile by tile, and what it moves",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "Left, 12 x 12 scores in tiles of 3 x 3: six tiles are done, the seventh is at work, and the maxima of "
            "two of its rows grew. Right, traffic falls as SRAM grows: for d = 64 tiles move more than the "
            "standard algorithm below 48 KiB and half as much at 100 KiB."
        ),
        size=(8, 4.2),
    )


@cache
def _small() -> tuple[ndarray, dict[str, Simulation]]:
    """The scores of the small case, and its run in both orders."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(SMALL, SMALL_WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))
    runs = {order: traffic.simulate(q, k, v, sram=SMALL_SRAM, order=order) for order in ORDERS}
    return attention(q, k, v).scores.numpy(), runs


def _srams() -> ndarray:
    """Every size that the slider can take, in KiB."""
    (slider,) = (control for control in CONTROLS if control.name == "sram")
    return np.array(slider.values())


@cache
def _curves(N: int, d: int) -> ndarray:
    elements = (_srams() * KIB // BYTES).astype(int).tolist()
    moved = [[traffic.counts(N, N, d, sram=sram, order=order).moved for sram in elements] for order in ORDERS]
    return np.array(moved) / traffic.standard(N, N, d).moved


def _break_even(order: str, d: int) -> float:
    """KiB at which tiles move as much as the standard algorithm, if N is large."""
    return BREAK_EVEN[order] * d * d * BYTES / KIB


def _ratio(state: State) -> float:
    return state.moved.moved / state.standard.moved


def _grew(state: State) -> ndarray:
    return (state.factors > 0) & (state.factors < 1)


def _of_traffic(state: State) -> str:
    ratio = _ratio(state)
    if ratio > 1.05:
        return f"This SRAM is too small: tiles move {ratio:.1f} times as much as the standard algorithm."
    if ratio < 0.95:
        return f"Tiles pay: the standard algorithm moves {1 / ratio:.1f} times as much."
    return "About break-even: tiles move as much as the standard algorithm."


def _of_tile(state: State) -> str:
    if not state.factors.any():
        return f"Tile {state.step} is the first of its rows: it sets their maxima."
    grew = int(_grew(state).sum())
    if not grew:
        return f"Tile {state.step} raises no maximum: nothing is rescaled."
    return f"Tile {state.step} raises the maximum of {grew} of its {TILE} rows: their earlier sums are scaled down."


def _bytes(elements: int) -> str:
    size = elements * BYTES / KIB**2
    return f"{size / KIB:.2f} GiB" if size >= KIB else f"{size:.1f} MiB"


def _draw_tiles(parts: SimpleNamespace, state: State) -> None:
    colours = colormaps["viridis"](np.interp(state.scores, (state.scores.min(), state.scores.max()), (0, 1)))
    now = np.ix_(state.queries, state.keys)
    done = state.seen.copy()
    done[now] = False
    colours[done] = 0.45 * colours[done] + 0.55  # towards white
    colours[~state.seen] = 0.9
    parts.scores.set_facecolor(colours.reshape(-1, 4))
    parts.tile.set_xy((state.keys.start - 0.5, state.queries.start - 0.5))
    known = np.flatnonzero(state.maxima > -np.inf)
    where = np.where(state.seen, state.scores, -np.inf).argmax(axis=1)
    parts.found.set_data(where[known], known)
    maxima = [f"{maximum:+.2f}".replace("-", "\u2212") for maximum in state.maxima[known]]  # signs of one width
    parts.maxima.set(paths=outlines(maxima), offsets=[(MAXIMUM, row) for row in known])
    parts.maxima.set_facecolor(["black" if row in state.queries else FOUND for row in known])
    parts.factors.set_paths(outlines(f"× {factor:.2f}" if factor else "first" for factor in state.factors))
    parts.factors.set_offsets([(FACTOR, row) for row in state.queries])
    parts.factors.set_facecolor([GREW if grew else "black" for grew in _grew(state)])


def _lay_out(figure: Figure) -> SimpleNamespace:
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    return SimpleNamespace(**_lay_out_tiles(left), **_lay_out_traffic(right))


def _lay_out_tiles(ax: Axes) -> dict[str, Any]:
    edges = np.arange(SMALL + 1) - 0.5
    scores = ax.pcolormesh(edges, edges, np.zeros((SMALL, SMALL)), animated=True, zorder=1)  # quicker than an image
    scores.set_array(None)  # its colours are given one by one
    cuts = np.arange(TILE, SMALL, TILE) - 0.5
    ends = (-0.5, SMALL - 0.5)
    cross = [[(cut, end) for end in ends] for cut in cuts] + [[(end, cut) for end in ends] for cut in cuts]
    ax.add_collection(LineCollection(cross, color="white", linewidth=2.5, animated=True, zorder=2))
    (found,) = ax.plot([], [], "o", color="white", markeredgecolor="black", markersize=5, animated=True, zorder=3)
    tile = ax.add_patch(
        Rectangle((0, 0), TILE, TILE, fill=False, edgecolor=GREW, linewidth=3.5, clip_on=False, animated=True, zorder=4)
    )
    for x, name in ((MAXIMUM, "max"), (FACTOR, "rescale")):
        ax.text(x, -0.9, name, ha="center", va="bottom", fontsize=WORDS)
    ax.set(
        aspect="equal",
        xlim=(-0.5, SMALL + 4.6),
        ylim=(SMALL - 0.5, -0.5),
        xticks=range(0, SMALL, TILE),
        yticks=range(0, SMALL, TILE),
    )
    ax.set_title(f"{SMALL} x {SMALL} scores (fixed), tiles {TILE} x {TILE}")
    ax.set_ylabel("query")
    ax.set_xlabel("key", x=0.35)  # in the middle of the scores
    ax.text(-0.5, SMALL + 2.6, NOTE, va="top", fontsize=WORDS)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    return {"scores": scores, "found": found, "tile": tile, "maxima": written(ax, ()), "factors": written(ax, ())}


def _lay_out_traffic(ax: Axes) -> dict[str, Any]:
    srams = _srams()
    ax.axhline(1, color="0.3", linestyle="--", linewidth=1.5)
    lines = [ax.plot(srams, np.ones(len(srams)), color=LINES[order], animated=True, zorder=3)[0] for order in ORDERS]
    points = [
        ax.plot([8], [1], "o", color=LINES[order], markeredgecolor="black", animated=True, zorder=5)[0]
        for order in ORDERS
    ]
    (even,) = ax.plot(
        [8, 8], [1, 1], "D", color="white", markeredgecolor="black", markersize=7, animated=True, zorder=4
    )
    unit = ax.text(0.03, 0.03, "", transform=ax.transAxes, fontsize=WORDS, animated=True, zorder=6)
    ax.set(xscale="log", yscale="log", xlim=(7, 290), ylim=(0.01, 200), title="traffic", xlabel="SRAM (KiB)")
    ax.set_ylabel("moved / standard")
    ax.set_xticks([8, 16, 32, 64, 128, 228], ["8", "16", "32", "64", "128", "228"])
    ax.set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    ax.minorticks_off()
    ax.legend(
        handles=[
            *(Line2D([], [], color=LINES[order], label=order) for order in ORDERS),
            Line2D([], [], color="0.3", linestyle="--", linewidth=1.5, label="standard"),
            Line2D([], [], linestyle="", marker="D", color="white", markeredgecolor="black", label="break-even"),
        ],
        loc="upper center",
        bbox_to_anchor=(0.45, -0.2),
        ncols=2,
        fontsize=WORDS,
    )
    return {"lines": lines, "points": points, "even": even, "unit": unit}
