"""Explorer `geometry`: a query, three keys, and what the dot product sees of them."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from numpy import ndarray

from mha_course import plots
from mha_course.dot_product import attention
from mha_course.explorers.base import Choice, Explorer, Readout, Slider

COLOURS = plots.COLOURS[:3]
KEYS = ("A", "B", "C")
VALUES = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.87]])
LABEL_OFFSETS = np.array([[0, -0.12], [0, -0.12], [0, 0.12]])
REACH = 3.5  # half the width of the plane that is shown

CONTROLS = (
    Slider("q_angle", "query angle (deg)", -180, 180, 5, 0, digits=0),
    Slider("q_length", "query length", 0, 3, 0.1, 1),
    Slider("a_angle", "key A angle (deg)", -180, 180, 5, 30, digits=0),
    Slider("a_length", "key A length", 0, 3, 0.1, 1.5),
    Slider("b_angle", "key B angle (deg)", -180, 180, 5, -60, digits=0),
    Slider("b_length", "key B length", 0, 3, 0.1, 2),
    Slider("c_angle", "key C angle (deg)", -180, 180, 5, 150, digits=0),
    Slider("c_length", "key C length", 0, 3, 0.1, 1.5),
    Slider("temperature", "temperature", 0.1, 5, 0.1, 1),
    Choice("guides", "guides through", KEYS, "A"),
)


class State(NamedTuple):
    """One state of the explorer; keys in the order A, B, C."""

    q: Float[ndarray, "2"]
    keys: Float[ndarray, "3 2"]
    cosines: Float[ndarray, "3"]  # NaN where a length is 0
    scores: Float[ndarray, "3"]  # q.k, before the temperature
    weights: Float[ndarray, "3"]
    out: Float[ndarray, "2"]
    guided: int


def compute(
    *,
    q_angle: float,
    q_length: float,
    a_angle: float,
    a_length: float,
    b_angle: float,
    b_length: float,
    c_angle: float,
    c_length: float,
    temperature: float,
    guides: str,
) -> State:
    """Attend from one query to three keys in the plane: weights = softmax(q.k / temperature)."""
    q = _vector(q_angle, q_length)
    keys = np.stack([_vector(a_angle, a_length), _vector(b_angle, b_length), _vector(c_angle, c_length)])
    trace = attention(
        torch.from_numpy(q[None]),
        torch.from_numpy(keys),
        torch.from_numpy(VALUES),
        scale=1 / temperature,
    )
    lengths = q_length * np.array([a_length, b_length, c_length])
    scores = keys @ q
    cosines = np.divide(scores, lengths, out=np.full(3, np.nan), where=lengths > 0)
    weights, out = trace.weights[0].numpy(), trace.out[0].numpy()
    return State(q, keys, cosines, scores, weights, out, KEYS.index(guides))


def draw(figure: Figure, state: State) -> None:
    """Draw the plane with its vectors, the weights, and where the output lies among the values."""
    parts = plots.once(figure, _lay_out)
    parts.query.set_UVC(*state.q[:, None])
    parts.keys.set_UVC(*state.keys.T)
    parts.query_label.set_position(state.q + 0.4 * (_turned(_direction(state.q))))
    for label, key in zip(parts.key_labels, state.keys, strict=True):
        label.set_position(key + 0.35 * _direction(key))
    parts.equal_score.set_data(*_equal_score(state.q, state.keys[state.guided]))
    parts.equal_cosine.set_data(*_ray(state.keys[state.guided]))
    for line in (parts.equal_score, parts.equal_cosine):
        line.set_color(COLOURS[state.guided])
    for bar, number, weight in zip(parts.bars, parts.numbers, state.weights, strict=True):
        bar.set_height(weight)
        number.set_text(f"{weight:.2f}")
        number.set_y(weight + 0.02)
    parts.out.set_data([state.out[0]], [state.out[1]])


def readout(state: State) -> Readout:
    """The numbers behind the picture, and whether the task is solved."""
    rows = [("key", "length", "cosine", "score", "weight")]
    for i, name in enumerate(KEYS):
        cosine = "none" if np.isnan(state.cosines[i]) else f"{state.cosines[i]:+z.2f}"
        length = np.hypot(*state.keys[i])
        rows.append((name, f"{length:.2f}", cosine, f"{state.scores[i]:+z.2f}", f"{state.weights[i]:.3f}"))
    return Readout(rows, _task(state))


def geometry() -> Explorer:
    """Move a query and three keys; watch scores, weights and the output."""
    return Explorer(
        title="What a dot product sees",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "A query and three keys as arrows, the weights of the keys as bars, and the output "
            "as a point in the triangle of the three values. Key A points most nearly where the "
            "query points, and has the largest weight."
        ),
        size=(8, 3.4),
    )


def _vector(angle: float, length: float) -> Float[ndarray, "2"]:
    radians = np.deg2rad(angle)
    return length * np.array([np.cos(radians), np.sin(radians)])


def _direction(vector: ndarray) -> ndarray:
    """The vector at length 1; straight up if it has none."""
    length = np.hypot(*vector)
    return vector / length if length > 0 else np.array([0.0, 1.0])


def _turned(vector: ndarray) -> ndarray:
    """The vector turned a quarter clockwise."""
    return np.array([vector[1], -vector[0]])


def _equal_score(q: ndarray, key: ndarray) -> ndarray:
    """Ends of the line through the key on which q.k does not change: perpendicular to q."""
    if not q.any():
        return np.full((2, 2), np.nan)
    across = _turned(_direction(q))
    return np.stack([key - 4 * REACH * across, key + 4 * REACH * across], axis=1)


def _ray(key: ndarray) -> ndarray:
    """Ends of the ray through the key on which the cosine does not change."""
    if not key.any():
        return np.full((2, 2), np.nan)
    return np.stack([np.zeros(2), 4 * REACH * _direction(key)], axis=1)


def _task(state: State) -> str:
    if np.isnan(state.cosines).any():
        return "A vector of length 0 has no direction, so no cosine; its score is 0."
    worst, winner = _only(-state.cosines), _only(state.weights)
    solved = "solved" if worst is not None and worst == winner else "not solved"
    names = ["tie" if i is None else KEYS[i] for i in (worst, winner)]
    return f"Worst aligned: {names[0]}. Largest weight: {names[1]}. Task, let the worst aligned key win: {solved}."


def _only(values: ndarray) -> int | None:
    """Index of the largest value, None if another one comes as close as rounding."""
    first, second = np.sort(values)[::-1][:2]
    return int(values.argmax()) if first - second > 1e-9 else None


def _lay_out(figure: Figure) -> SimpleNamespace:
    plane, weights, triangle = figure.subplots(1, 3, width_ratios=(3.2, 2, 2.6))
    return SimpleNamespace(**_lay_out_plane(plane), **_lay_out_weights(weights), **_lay_out_triangle(triangle))


def _lay_out_plane(ax: Axes) -> dict[str, Any]:
    ax.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal", title="query and keys")
    ax.set(xlabel="first coordinate", ylabel="second coordinate")
    how: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "animated": True}
    zeros = np.zeros(3)
    head = {"headwidth": 1.8, "headlength": 2, "headaxislength": 2}
    query = ax.quiver([0], [0], [0], [0], color="0.6", width=0.036, zorder=3, **head, **how)
    keys = ax.quiver(zeros, zeros, zeros, zeros, color=COLOURS, width=0.014, zorder=4, **how)
    (equal_score,) = ax.plot([], [], "--", animated=True, linewidth=1.5)
    (equal_cosine,) = ax.plot([], [], ":", animated=True, linewidth=2)
    legend = ax.legend(
        handles=[
            Line2D([], [], color="0.3", linestyle="--", linewidth=1.5, label="same score"),
            Line2D([], [], color="0.3", linestyle=":", linewidth=2, label="same cosine"),
        ],
        loc="lower right",
        fontsize=9,
        handlelength=1.6,
        frameon=True,
        framealpha=1,
        edgecolor="none",
    )
    legend.set(animated=True, zorder=7)
    return {
        "query": query,
        "keys": keys,
        "query_label": _label(ax, "q", "0.25"),
        "key_labels": [_label(ax, *pair) for pair in zip(KEYS, COLOURS, strict=True)],
        "equal_score": equal_score,
        "equal_cosine": equal_cosine,
    }


def _label(ax: Axes, text: str, colour: str) -> Text:
    label = ax.text(0, 0, text, color=colour, weight="bold", ha="center", va="center")
    label.set_path_effects([withStroke(linewidth=3, foreground="white")])
    label.set(animated=True, zorder=6)
    return label


def _lay_out_weights(ax: Axes) -> dict[str, Any]:
    bars = ax.bar(KEYS, [0.0] * 3, color=COLOURS, animated=True)
    numbers = [ax.text(i, 0, "", ha="center", va="bottom", animated=True, zorder=6) for i in range(3)]
    ax.set(ylim=(0, 1.12), title="weights", xlabel="key")
    ax.grid(visible=False, axis="x")
    return {"bars": bars.patches, "numbers": numbers}


def _lay_out_triangle(ax: Axes) -> dict[str, Any]:
    ax.fill(*VALUES.T, facecolor="0.93", edgecolor="0.6")
    ax.scatter(*VALUES.T, c=COLOURS, s=45, zorder=3)
    for name, place in zip(KEYS, VALUES + LABEL_OFFSETS, strict=True):
        ax.text(*place, f"value {name}", ha="center", va="center", fontsize=10)
    (out,) = ax.plot([], [], "D", color="black", markersize=9, animated=True, zorder=5)
    ax.set(xlim=(-0.25, 1.25), ylim=(-0.5, 1.3), title="output (diamond)")
    ax.set_axis_off()
    return {"out": out}
