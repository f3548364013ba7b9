"""Explorer `heads`: split features into heads and merge them again, in the right and in the wrong way."""

from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from numpy import ndarray
from torch import Tensor

from mha_course import plots
from mha_course.dot_product import attention
from mha_course.explorers.base import Choice, Explorer, Readout, Slider
from mha_course.plots.written import Font, outlines, written

TOKENS, WIDTH = "abcdef", 8  # T tokens, E features
T = len(TOKENS)
PLACES = "012345"  # of the rows after a wrong split, which no longer hold one token each
STEPS = ("input", "view", "transpose", "transpose back", "merge")
RIGHT, WRONG = "right", "wrong"
COLOURS = np.array([*plots.COLOURS, "#F0E442", "#4D4D4D"])  # of the heads; yellow is Okabe and Ito's too
INKS = np.array(["white", *["black"] * 6, "white"])  # on them
HEADS = tuple(f"head {h}" for h in range(WIDTH))

CONTROLS = (
    Choice("heads", "heads H", ("1", "2", "4", "8"), "4"),
    Slider("step", "step", 1, len(STEPS), 1, 3, digits=0),
    Choice("split", "split", (RIGHT, WRONG), RIGHT),
    Choice("merge", "merge", (RIGHT, WRONG), RIGHT),
    Choice("token", "framed token", tuple(TOKENS), "c"),
)

# In CSS pixels, from the top left corner
SIZE = (800, 474)
CELL = (34, 20)
GAPS = {"BTE": (0, 0), "BTHD": (3, 6), "BHTD": (12, 0)}  # between heads and between tokens: the outer axis apart
LEFTS, TOP = (30, 440), 64  # of the two grids
WEIGHTS_LEFT, WEIGHTS_TOPS, WEIGHT = 118, (276, 374), 15
TITLE, CHOSEN, CODE = Font(11, origin="left"), Font(10, origin="left"), Font(10, "DejaVu Sans Mono", "left")


class Step(NamedTuple):
    """One tensor on the way: entry i stands for feature i % E of token i // E."""

    name: str
    code: str
    axes: str
    entries: Int[ndarray, "B ..."]
    in_place: int  # entries that are where the right way has them

    @property
    def shape(self) -> str:
        """Letters and sizes of the axes."""
        return f"({', '.join(self.axes)}) = ({', '.join(map(str, self.entries.shape))})"


class Weighed(NamedTuple):
    """What the heads of one way to split see."""

    weights: Float[ndarray, "H T S"]
    tokens: Int[ndarray, "H T"]  # whose features are in row t of head h
    owners: Int[ndarray, "H T"]  # the head to which these features belong


class State(NamedTuple):
    """One state of the explorer."""

    heads: int
    steps: tuple[Step, ...]
    shown: int  # which step
    ways: tuple[Weighed, Weighed]  # the right and the wrong split
    split: str
    merge: str
    token: int


def compute(*, heads: str, step: float, split: str, merge: str, token: str) -> State:
    """Send numbered entries through split and merge, and attend with the heads of both ways to split."""
    H = int(heads)
    x = torch.arange(T * WIDTH).view(1, T, WIDTH)  # (B, T, E)
    ways = _weigh(H, RIGHT), _weigh(H, WRONG)
    return State(H, _steps(x, H, split, merge), int(step) - 1, ways, split, merge, TOKENS.index(token))


def draw(figure: Figure, state: State) -> None:
    """Draw the tensor of one step, the merged one, and the weights of each head after the right and the wrong split."""
    parts, D = plots.once(figure, _lay_out), WIDTH // state.heads
    shown, merged = state.steps[state.shown], state.steps[-1]
    owners = np.arange(T * WIDTH) % WIDTH // D
    frames = []
    for grid, left, title, step in zip(parts.grids, LEFTS, (shown.name, "at the end"), (shown, merged), strict=True):
        corners = np.empty((T * WIDTH, 2))
        corners[step.entries.ravel()] = _corners(step, left)
        grid.cells.set(verts=_boxes(corners, CELL), facecolor=COLOURS[owners])
        grid.labels.set(offsets=corners + np.array(CELL) / 2, facecolor=INKS[owners])
        pieces = corners[state.token * WIDTH : (state.token + 1) * WIDTH : D]
        frames.append(_boxes(pieces, (D * CELL[0], CELL[1])))
        grid.title.set_paths(outlines((f"{title}: {step.shape}",), TITLE))
        grid.code.set_paths(outlines((step.code,), CODE))
    _label(parts, shown, state.heads)
    parts.rows.set_paths(outlines(PLACES if state.split == WRONG and "H" in shown.axes else TOKENS))

    size, pitch = ((WEIGHT, WEIGHT), 9 * WEIGHT) if state.heads < 8 else ((10, WEIGHT), 85)
    lefts = WEIGHTS_LEFT + pitch * np.arange(state.heads)
    for part, way, top, name in zip(parts.ways, state.ways, WEIGHTS_TOPS, (RIGHT, WRONG), strict=True):
        rows = _points(lefts[:, None], top + WEIGHT * np.arange(T))  # (H, T, 2)
        part.owners.set(verts=_boxes(rows, (0.7 * size[0], WEIGHT)), facecolor=COLOURS[way.owners.ravel()])
        cells = rows[:, :, None] + _points((1 + np.arange(T)) * size[0], 0)  # (H, T, S, 2)
        part.weights.set(verts=_boxes(cells, size), facecolor=colormaps["viridis"](way.weights.ravel()))
        frames.append(_boxes(rows[way.tokens == state.token], ((1 + T) * size[0], WEIGHT)))
        if name == state.split:
            parts.chosen.set_offsets((8, top + 3.9 * WEIGHT))
    parts.weighed.set(paths=outlines(HEADS[: state.heads]), offsets=_points(lefts + 3.5 * size[0], WEIGHTS_TOPS[0] - 9))
    parts.frames.set_verts(np.concatenate(frames))


def readout(state: State) -> Readout:
    """The shape of every step, how many entries are where they belong, and what the state means."""
    rows = [("step", "shape", "measured")]
    rows += [(step.name, step.shape, f"{step.in_place} of {step.entries.size} in place") for step in state.steps]
    rows.insert(4, ("scores", f"(B, H, T, S) = (1, {state.heads}, {T}, {T})", f"{state.heads * T * T} scores"))
    rows.append(("four projections", f"(E, E) = ({WIDTH}, {WIDTH})", f"{4 * (WIDTH + 1) * WIDTH} parameters, any H"))
    return Readout(rows, _meaning(state))


def heads() -> Explorer:
    """Split features into heads and merge them; watch where each entry goes and what attention sees."""
    return Explorer(
        title="Split into heads, and back",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "Six tokens of eight features in four heads: after the right split each head is a block of one colour, "
            "and the four heads look zero, one, two and three tokens back; after the wrong split the rows of each "
            "head have mixed colours and the four patterns are gone."
        ),
        size=(SIZE[0] / 100, SIZE[1] / 100),
    )


def _split(x: Tensor, H: int, way: str) -> Tensor:
    """(B, T, E) -> (B, H, T, D); without the transpose the shape is right, and the entries are not."""
    B, length, width = x.shape
    if way == WRONG:
        return x.view(B, H, length, width // H)
    return x.view(B, length, H, width // H).transpose(1, 2)


def _steps(x: Tensor, H: int, split: str, merge: str) -> tuple[Step, ...]:
    right = x.view(1, T, H, WIDTH // H)  # (B, T, H, D)
    where = {"BTE": x, "BTHD": right, "BHTD": right.transpose(1, 2)}  # what belongs where

    def step(name: str, code: str, axes: str, entries: Tensor) -> Step:
        return Step(name, code, axes, entries.numpy(), int((entries == where[axes]).sum()))

    split_heads = _split(x, H, split)  # (B, H, T, D)
    back = split_heads.transpose(1, 2) if merge == RIGHT else split_heads
    viewed = ("BTHD", right) if split == RIGHT else ("BHTD", split_heads)
    view = f"q.view({', '.join(viewed[0])})"
    swap, left_out = {RIGHT: ".transpose(1, 2)", WRONG: ""}, {RIGHT: "", WRONG: ", left out"}
    return (
        step("input", "q", "BTE", x),
        step("view", view, *viewed),
        step("transpose" + left_out[split], view + swap[split], "BHTD", split_heads),
        step("transpose back" + left_out[merge], "heads" + swap[merge], "BTHD" if merge == RIGHT else "BHTD", back),
        step("merge", f"heads{swap[merge]}.reshape(B, T, E)", "BTE", back.reshape(x.shape)),
    )


@cache
def _drawn() -> tuple[Tensor, Tensor]:
    """Queries and keys (B, T, E): features 2i and 2i + 1 are a clock's hand that finds the token i back."""
    place = torch.arange(T, dtype=torch.float64)[:, None]
    sought = place + torch.arange(WIDTH // 2)  # (T, E/2)
    hands = [torch.pi / T * hand for hand in (place.expand_as(sought), sought)]
    q, k = (5 * torch.stack([hand.cos(), hand.sin()], dim=-1).view(1, T, WIDTH) for hand in hands)
    return q, k


@cache
def _weigh(H: int, way: str) -> Weighed:
    q, k = (_split(x, H, way) for x in _drawn())  # (B, H, T, D)
    first = _split(torch.arange(T * WIDTH).view(1, T, WIDTH), H, way)[0, :, :, 0].numpy()  # (H, T)
    return Weighed(attention(q, k, k).weights[0].numpy(), first // WIDTH, first % WIDTH // (WIDTH // H))


def _meaning(state: State) -> str:
    if state.heads == 1:
        return "Round trip: exact. With one head there is nothing to split: the right and the wrong way are the same."
    exact = "exact" if state.steps[-1].in_place == T * WIDTH else "not exact"
    held = ", ".join(TOKENS[token] for token in np.unique(state.ways[1].tokens[0]))
    said = {
        "right right": "Each head holds its own features of every token.",
        "right wrong": "The heads are right, the merge scrambles them: right shape, wrong entries.",
        "wrong right": f"Right shapes, wrong entries: of all tokens, head 0 holds only {held}.",
        "wrong wrong": f"The mistakes cancel, but between them attention saw wrong heads: head 0 held only {held}.",
    }
    return f"Round trip: {exact}. {said[f'{state.split} {state.merge}']}"


def _corners(step: Step, left: float) -> ndarray:
    """Top left corner of every cell, in the order of the tensor's entries; its outer axis is set apart."""
    at = dict(zip(step.axes, np.indices(step.entries.shape), strict=True))
    head = at.get("H", np.zeros_like(at["T"]))
    feature = at["E"] if "E" in at else head * (at["D"].max() + 1) + at["D"]
    between_heads, between_tokens = GAPS[step.axes]
    x, y = feature * CELL[0] + head * between_heads, at["T"] * (CELL[1] + between_tokens)
    return _points(left + x.ravel(), TOP + y.ravel())


def _points(x: ndarray, y: ndarray | float) -> ndarray:
    return np.stack(np.broadcast_arrays(x, y), axis=-1)


def _boxes(corners: ndarray, size: tuple[float, float]) -> ndarray:
    """The four points of rectangles of one size, (n, 4, 2), from their top left corners (..., 2)."""
    return corners.reshape(-1, 1, 2) + np.array([(0, 0), (1, 0), (1, 1), (0, 1)]) * size


def _label(parts: SimpleNamespace, step: Step, H: int) -> None:
    """Put the letters of the tokens and the names of the heads where the step has its rows and blocks."""
    between_heads, between_tokens = GAPS[step.axes]
    ys = TOP + np.arange(T) * (CELL[1] + between_tokens) + CELL[1] / 2
    parts.rows.set_offsets(_points(np.array(LEFTS[0] - 10), ys))
    shown, width = H * ("H" in step.axes), WIDTH // H * CELL[0]
    xs = LEFTS[0] + np.arange(shown) * (width + between_heads) + width / 2
    names = HEADS[:shown] if H < WIDTH else ("head 0", *map(str, range(1, shown)))[:shown]
    parts.heads.set(paths=outlines(names), offsets=_points(xs, TOP - 9))


def _lay_out(figure: Figure) -> SimpleNamespace:
    figure.set_layout_engine("none")  # every place is given in pixels
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, SIZE[0]), ylim=(SIZE[1], 0))
    ax.set_axis_off()
    lower = [(WEIGHTS_LEFT - 9, *place, WEIGHT) for place in zip(WEIGHTS_TOPS, (TOKENS, PLACES), strict=True)]
    for x, top, names, pitch in [(LEFTS[1] - 10, TOP, TOKENS, CELL[1]), *lower]:
        for t, name in enumerate(names):
            ax.text(x, top + (t + 0.5) * pitch, name, ha="center", va="center", fontsize=9)
    ax.text(8, 232, "cells: letter = token, digit = feature, colour = head that the feature belongs to", fontsize=9)
    ax.text(8, 251, "weights: row = query, column = key, dark 0, yellow 1; strip = head of its features", fontsize=9)
    for top, name in zip(WEIGHTS_TOPS, (RIGHT, WRONG), strict=True):
        ax.text(8, top + 2.9 * WEIGHT, f"{name} split", fontsize=10)
    return SimpleNamespace(
        grids=[_grid(ax, left) for left in LEFTS],
        rows=written(ax, tuple(TOKENS)),
        heads=written(ax, HEADS),
        ways=[SimpleNamespace(owners=_cells(ax), weights=_cells(ax)) for _ in WEIGHTS_TOPS],
        chosen=written(ax, ("(chosen)",), CHOSEN),
        weighed=written(ax, HEADS),
        frames=_cells(ax, facecolor="none", edgecolor="black", linewidth=2, zorder=4),
    )


def _grid(ax: Axes, left: float) -> SimpleNamespace:
    """The cells of one tensor with a label each, and above them its shape and code."""
    return SimpleNamespace(
        cells=_cells(ax, edgecolor="white", linewidth=0.8),
        labels=written(ax, tuple(f"{token}{e}" for token in TOKENS for e in range(WIDTH))),
        title=written(ax, ("q",), TITLE, (left, 13)),
        code=written(ax, ("q",), CODE, (left, 33)),
    )


def _cells(ax: Axes, **style: Any) -> PolyCollection:
    cells = PolyCollection([], animated=True, **style)
    ax.add_collection(cells, autolim=False)
    return cells
