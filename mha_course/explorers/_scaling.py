"""Explorer `scaling`: what the size of the scores does to weights and gradients."""

from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy import ndarray

from mha_course import plots
from mha_course.dot_product import attention
from mha_course.explorers.base import Choice, Explorer, Readout, Slider

QUERIES, MOST_KEYS, MOST_WIDTH, VALUE_WIDTH = 128, 512, 1024, 16
RULES = {
    "none": lambda d_k: 1.0,
    "1/10": lambda d_k: 0.1,
    "1/sqrt(d_k)": lambda d_k: d_k**-0.5,
    "1/d_k": lambda d_k: 1 / d_k,
}
EDGE = 12.5  # scores beyond it are counted together, in the bars at both ends
SHOWN = 16  # weights of one row, the largest first
FLOOR = 1e-8  # of the axis of gradients; smaller ones are drawn there
DEAD = 1e-6

CONTROLS = (
    Choice("d_k", "width d_k", ("1", "4", "16", "64", "256", "1024"), "64"),
    Choice("rule", "scale", tuple(RULES), "none"),
    Choice("keys", "number of keys", ("1", "8", "64", "512"), "64"),
    Slider("spread", "spread of q and k", 0, 3, 0.1, 1),
    Slider("correlation", "correlation", -1, 1, 0.05, 0, digits=2),
)


class State(NamedTuple):
    """One state of the explorer: T queries over S keys, query t's own key being number t modulo S."""

    scores: Float[ndarray, "T S"]  # scaled
    weights: Float[ndarray, "T S"]
    gradients: Float[ndarray, " T"]  # norm of dL/dscores, for L = sum of out * g, g random
    predicted: float  # standard deviation of scores of independent q and k
    keys: int
    rule: str


def compute(*, d_k: str, rule: str, keys: str, spread: float, correlation: float) -> State:
    """Weigh random keys by random queries, and send a random gradient back through the softmax.

    The entries of q and k have standard deviation `spread`. A query is `correlation` times its own
    key plus noise, so that its length stays the same.
    """
    width, S = int(d_k), int(keys)
    drawn = _drawn()
    k = drawn.keys[:S, :width]  # (S, d_k)
    own = k[torch.arange(QUERIES) % S]  # (T, d_k)
    q = correlation * own + (1 - correlation**2) ** 0.5 * drawn.noise[:, :width]  # (T, d_k)
    v = drawn.values[:S]  # (S, Dv)
    scores, weights, _ = attention(q, k, v, scale=RULES[rule](width) * spread**2)
    demands = drawn.demands @ v.T  # (T, S), dL/dweights
    through = weights * (demands - (weights * demands).sum(dim=-1, keepdim=True))
    predicted = RULES[rule](width) * spread**2 * width**0.5
    return State(scores.numpy(), weights.numpy(), through.norm(dim=-1).numpy(), predicted, S, rule)


def draw(figure: Figure, state: State) -> None:
    """Draw the scores as a histogram, the largest weights of one row, and one gradient for each query."""
    parts = plots.once(figure, _lay_out)
    shares = _shares(state.scores)
    for bar, share in zip(parts.scores, shares, strict=True):
        bar.set_height(share)
    order = np.argsort(-state.weights[0], kind="stable")[:SHOWN]
    heights = np.zeros(SHOWN)
    heights[: len(order)] = state.weights[0, order]
    for i, (bar, height) in enumerate(zip(parts.weights, heights, strict=True)):
        bar.set_height(height)
        bar.set_color(plots.COLOURS[1 if i < len(order) and order[i] == 0 else 0])
    parts.uniform.set_ydata([1 / state.keys] * 2)
    parts.dots.set_ydata(np.maximum(state.gradients, FLOOR))
    parts.median.set_ydata([max(float(np.median(state.gradients)), FLOOR)] * 2)


def readout(state: State) -> Readout:
    """The numbers behind the picture, and whether the task is solved."""
    entropy = _entropy(state.weights)
    dead = (state.gradients < DEAD).mean()
    rows = [
        ("", "measured", "reference"),
        ("spread of scores", f"{state.scores.std():.2f}", f"{state.predicted:.2f} if independent"),
        ("entropy", f"{abs(entropy):.2f}", f"at most {np.log(state.keys):.2f}"),
        ("largest weight", f"{state.weights.max(axis=1).mean():.3f}", f"at least {1 / state.keys:.3f}"),
        ("gradient", f"{np.median(state.gradients):.1e}", f"{dead:.0%} below 1e-6"),
    ]
    solved = "solved" if entropy > 3 and state.rule == "none" else "not solved"
    return Readout(
        rows,
        f"Means over 128 queries; of the gradient the median. Task, entropy above 3 with the scale at none: {solved}.",
    )


def scaling() -> Explorer:
    """Choose width, scale, spread and correlation; watch scores, weights and gradients."""
    return Explorer(
        title="What the scale holds in place",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "Width 64 without a scale: the scores spread far beyond 12, one key of the row shown has "
            "nearly all the weight, and the gradients of 128 queries lie over many powers of ten."
        ),
        size=(8, 3.2),
    )


@cache
def _drawn() -> SimpleNamespace:
    """Standard normal numbers, of which every state uses the first so many keys and columns."""
    generator = torch.Generator().manual_seed(0)

    def draw_one(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return SimpleNamespace(
        noise=draw_one(QUERIES, MOST_WIDTH),
        keys=draw_one(MOST_KEYS, MOST_WIDTH),
        values=draw_one(MOST_KEYS, VALUE_WIDTH),
        demands=draw_one(QUERIES, VALUE_WIDTH) / VALUE_WIDTH**0.5,  # dL/dout
    )


def _shares(scores: ndarray) -> ndarray:
    """Share of the scores in each unit around -13, -12, ..., 13; all beyond in the first and last."""
    places = np.clip(np.rint(scores), -EDGE - 0.5, EDGE + 0.5).astype(int) + 13
    return np.bincount(places.ravel(), minlength=27) / scores.size


def _entropy(weights: ndarray) -> float:
    logs = np.log(np.where(weights > 0, weights, 1))
    return float(-(weights * logs).sum(axis=1).mean())


def _lay_out(figure: Figure) -> SimpleNamespace:
    scores, weights, gradients = figure.subplots(1, 3, width_ratios=(3, 2.4, 2.2))
    return SimpleNamespace(**_lay_out_scores(scores), **_lay_out_weights(weights), **_lay_out_gradients(gradients))


def _lay_out_scores(ax: Axes) -> dict[str, Any]:
    at = np.arange(-13, 14)
    colours = [plots.COLOURS[4] if abs(place) == 13 else plots.COLOURS[0] for place in at]
    bars = ax.bar(at, np.zeros(27), width=0.9, color=colours, animated=True)
    ax.set(xlim=(-14, 14), ylim=(0, 1.02), title="scores", xlabel="score after the scale", ylabel="share of the scores")
    ax.set_xticks([-13, -8, -4, 0, 4, 8, 13], ["beyond", "-8", "-4", "0", "4", "8", "beyond"])
    return {"scores": bars.patches}


def _lay_out_weights(ax: Axes) -> dict[str, Any]:
    bars = ax.bar(np.arange(1, SHOWN + 1), np.zeros(SHOWN), animated=True)
    uniform = ax.axhline(0, color="0.3", linestyle="--", linewidth=1.5, animated=True, zorder=3)
    ax.set(xlim=(0.3, SHOWN + 0.7), ylim=(0, 1.02), title="weights of query 0", xlabel="keys, largest first")
    ax.set_xticks([1, 4, 8, 12, 16])
    ax.legend(
        handles=[
            Patch(color=plots.COLOURS[1], label="its own key"),
            Patch(color=plots.COLOURS[0], label="another key"),
            Line2D([], [], color="0.3", linestyle="--", linewidth=1.5, label="all equal"),
        ],
        loc="upper right",
        fontsize=9,
        handlelength=1.6,
    )
    ax.grid(visible=False, axis="x")
    return {"weights": bars.patches, "uniform": uniform}


def _lay_out_gradients(ax: Axes) -> dict[str, Any]:
    (dots,) = ax.plot(np.arange(QUERIES), np.ones(QUERIES), ".", color=plots.COLOURS[0], markersize=5, animated=True)
    median = ax.axhline(1, color=plots.COLOURS[1], linewidth=2, animated=True, zorder=3)
    ax.set(ylim=(FLOOR / 3, 30), yscale="log", title="gradients", xlabel="query")
    ax.set_ylabel("norm for the scores (line: median)")
    ax.set_yticks([1e-8, 1e-6, 1e-4, 1e-2, 1])
    ax.minorticks_off()
    return {"dots": dots, "median": median}
