"""Explorer `positions`, mode "clocks": a position as hands of clocks, and where they pointed in training."""

from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy import ndarray

from mha_course import plots
from mha_course.explorers.base import Choice, Explorer, Readout, Slider
from mha_course.positions import rotary_frequencies

PAIRS, POSITIONS, FACTOR = 8, 256, 4
TURN = 2 * np.pi
RADIUS = 0.4
SEEN, NEVER = "#74B9E2", "#E4E4E4"  # on the faces: angles that training showed, and the others
WRONG = plots.COLOURS[1]
SCALINGS: dict[str, Literal["interpolation", "ntk", "yarn"] | None] = {
    "none": None,
    "interpolation": "interpolation",
    "NTK": "ntk",
    "YaRN": "yarn",
}

CONTROLS = (
    Slider("position", "position p", 0, POSITIONS - 1, 1, 100, digits=0),
    Choice("trained", "trained length L", ("16", "32", "64", "128", "256"), "64"),
    Choice("base", "base", ("10", "1000", "10000", "500000"), "10000"),
    Choice("scaling", "scaled for 4 L", tuple(SCALINGS), "none"),
)


class State(NamedTuple):
    """One state of the explorer; angles in radians, pair 0 first."""

    position: int
    trained: int
    scaled: bool
    periods: Float[ndarray, " pairs"]  # positions a turn, as the clocks run now
    arcs: Float[ndarray, " pairs"]  # swept within L as they ran in training, more than a turn too
    hands: Float[ndarray, " pairs"]  # in [0, 2 pi)
    unseen: Bool[ndarray, " pairs"]  # the hand points where it never did in training
    table: Float[ndarray, "positions E"]  # sine and cosine of each pair in turn


def compute(*, position: float, trained: str, base: str, scaling: str) -> State:
    """Read the clocks at a position, as they run now, over the angles that they swept within L as trained."""
    p, L = int(position), int(trained)
    before = _frequencies(base, "none", L)  # (pairs,)
    now = _frequencies(base, scaling, L)
    arcs = L * before
    hands = p * now % TURN
    # The arc goes up to, not including, the angle of position L; the margin is for rounding.
    unseen = hands >= arcs * (1 - 1e-9)
    angles = np.arange(POSITIONS)[:, None] * now  # (positions, pairs)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(POSITIONS, 2 * PAIRS)
    return State(p, L, scaling != "none", TURN / now, arcs, hands, unseen, table)


def draw(figure: Figure, state: State) -> None:
    """Draw a clock for each pair, and the table of all positions with the column of this one marked."""
    parts = plots.once(figure, _lay_out)
    parts.arcs.set_verts([_wedge(i, arc) for i, arc in enumerate(state.arcs)])
    ends = np.stack([np.sin(state.hands), np.cos(state.hands)], axis=-1)  # the pair itself, at 12 o'clock for p = 0
    parts.hands.set_segments([[(i, 0), (i + RADIUS * x, RADIUS * y)] for i, (x, y) in enumerate(ends)])
    parts.hands.set_color([WRONG if wrong else "black" for wrong in state.unseen])
    parts.hands.set_linewidth([4 if wrong else 2.5 for wrong in state.unseen])
    for text, arc in zip(parts.numbers, state.arcs, strict=True):
        text.set_text(f"{_short(arc / TURN)} turns")
    parts.table.set_data(state.table.T.astype(np.float32))  # drawn in half the time
    parts.later.set_bounds(state.trained - 0.5, -0.5, POSITIONS - state.trained, 2 * PAIRS)
    parts.here.set_xdata([state.position] * 2)
    parts.mark.set_x(np.clip(state.position, 8, POSITIONS - 16))  # clear of the colour bar's numbers
    parts.mark.set_text(f"p = {state.position}")


def readout(state: State) -> Readout:
    """The numbers behind the picture, and what training says of this position."""
    beyond = np.rad2deg(np.where(state.unseen, np.maximum(state.hands - state.arcs, 0), -1))
    worst = int(beyond.argmax())
    farthest = "at its end" if beyond[worst] < 0.5 else f"{beyond[worst]:.0f}°"
    rows = [
        ("", "measured"),
        ("pairs that made a turn within L", f"{(state.arcs >= TURN).sum()} of {PAIRS}"),
        ("hands where they never were", f"{state.unseen.sum()} of {PAIRS}"),
        ("farthest past the trained arc", f"{farthest} (pair {worst})" if state.unseen.any() else "none"),
        ("step of the fastest hand", f"{np.rad2deg(TURN / state.periods[0]):.0f}° a position"),
        ("fastest and slowest period", f"{state.periods[0]:.1f}, {state.periods[-1]:,.0f}"),
    ]
    place = f"Position {state.position}, trained on 0 to {state.trained - 1}: "
    if state.unseen.any():
        return Readout(rows, f"{place}some hands point where they never did.")
    return Readout(rows, f"{place}every hand points where it has pointed.")


def clocks() -> Explorer:
    """Move the position beyond the trained length; watch the hands of the slow clocks."""
    return Explorer(
        title="A position as eight clocks",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "Eight clocks at position 100 after training on 64 positions: the three fast ones made whole turns in "
            "training, the hands of the five slow ones point beyond the arc that they had swept. Below, the table of "
            "sines and cosines, whose upper rows change fast and whose lower rows hardly change."
        ),
        size=(8, 3.6),
    )


def _frequencies(base: str, scaling: str, trained: int) -> Float[ndarray, " pairs"]:
    """Radians a position of each pair; these are the sinusoidal encoding's and rotary's alike."""
    kind = SCALINGS[scaling]
    return rotary_frequencies(
        2 * PAIRS,
        base=float(base),
        scaling=kind,
        factor=1 if kind is None else FACTOR,
        trained_length=trained if kind == "yarn" else None,
        dtype=torch.float64,
    ).numpy()


def _wedge(i: int, arc: float) -> Float[ndarray, "vertices 2"]:
    """The part of clock i's face from 12 o'clock on, clockwise: from the centre to the rim and back, or all of it."""
    angle = np.linspace(0, min(arc, TURN), 61)
    rim = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    centre = rim[:1] if arc >= TURN else np.zeros((1, 2))
    return np.array([i, 0]) + RADIUS * np.concatenate([centre, rim])


def _short(x: float) -> str:
    """A number of turns, in five characters at most."""
    return f"{x:.1f}" if x >= 1 else f"{x:.2f}" if x >= 0.01 else "<0.01"


def _lay_out(figure: Figure) -> SimpleNamespace:
    faces, table = figure.subplots(2, 1, height_ratios=(1.75, 1.7))
    return SimpleNamespace(**_lay_out_clocks(faces), **_lay_out_table(table))


def _lay_out_clocks(ax: Axes) -> dict[str, Any]:
    ax.set(xlim=(-0.5, PAIRS - 0.5), ylim=(-0.75, 0.72), aspect="equal", anchor="W")
    ax.set_title("hands at p, and turns made within L (blue: angles swept, grey: never)")
    ax.set_axis_off()
    everything = [_wedge(i, TURN) for i in range(PAIRS)]
    ax.add_collection(PolyCollection(everything, facecolor=NEVER, edgecolor="none"))
    arcs = PolyCollection(everything, facecolor=SEEN, edgecolor="0.35", linewidth=0.8)
    arcs.set(animated=True, zorder=2)
    ax.add_collection(arcs)
    rims = PolyCollection(everything, facecolor="none", edgecolor="0.35", linewidth=1.2)
    rims.set(animated=True, zorder=3)
    ax.add_collection(rims)
    hands = LineCollection([], capstyle="round", animated=True, zorder=4)
    ax.add_collection(hands)
    for i in range(PAIRS):
        ax.text(i, 0.47, f"pair {i}", ha="center", va="bottom", fontsize=10)
    how: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 9, "animated": True}
    numbers = [ax.text(i, -0.48, "", **how) for i in range(PAIRS)]
    return {"arcs": arcs, "hands": hands, "numbers": numbers}


def _lay_out_table(ax: Axes) -> dict[str, Any]:
    ends = (-0.5, POSITIONS - 0.5, 2 * PAIRS - 0.5, -0.5)  # dimension 0 at the top
    image = ax.imshow(
        np.zeros((2 * PAIRS, POSITIONS)),
        extent=ends,
        vmin=-1,
        vmax=1,
        cmap="PuOr_r",
        aspect="auto",
        interpolation="nearest",
        animated=True,
    )
    later = Rectangle((0, 0), 1, 1, facecolor="white", alpha=0.55, edgecolor="none", animated=True, zorder=2)
    ax.add_patch(later)
    (here,) = ax.plot([0, 0], [-0.5, 2 * PAIRS - 0.5], color="black", linewidth=2, animated=True, zorder=3)
    mark = ax.text(0, -0.8, "", ha="center", va="bottom", fontsize=10, animated=True, zorder=4)
    ax.set(xlabel="position (pale: beyond L)", ylabel="dimension", xlim=ends[:2], ylim=ends[2:])
    ax.set_xticks([0, 32, 64, 96, 128, 160, 192, 224, 255])
    ax.set_yticks(range(0, 2 * PAIRS, 4))
    ax.set_title("sine and cosine of each pair", pad=18)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.figure.colorbar(image, ax=ax, ticks=[-1, 0, 1], pad=0.01, fraction=0.04)
    return {"table": image, "later": later, "here": here, "mark": mark}
