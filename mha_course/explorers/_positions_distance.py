"""Explorer `positions`, mode "distance": the score of a query and a key against the distance between them."""

from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy import ndarray
from torch import Tensor

from mha_course import plots
from mha_course.explorers.base import Choice, Explorer, Readout, Slider
from mha_course.positions import Rotary, alibi, sinusoidal, t5_buckets

HEADS, WIDTH, PAIRS = 8, 64, 400  # one head is as wide as the model: E = D = 64
POSITIONS, FIRST = 128, 64  # FIRST is the query's first place: from there on it has keys at all distances
DISTANCES = FIRST + 1
READ = (0, 1, 10, 50)  # distances in the table
LOW, HIGH = -12, 28  # of the curves; ALiBi's steep heads leave below
SAME, APART = "q = k", "independent"
T5_SPREAD = 2  # of the random biases that stand for learned ones
INTERLEAVED = "rotary, interleaved"
STILL = 1e-9  # a curve that moves by less has moved by rounding alone

CONTROLS = (
    Choice("scheme", "scheme", ("none", "sinusoidal", "rotary", INTERLEAVED, "ALiBi", "T5"), "rotary"),
    Choice("vectors", "query and key", (SAME, APART), SAME),
    Slider("position", "query's position", FIRST, POSITIONS - 1, 1, 100, digits=0),
    Slider("head", "head", 1, HEADS, 1, 4, digits=0),
    Choice("base", "base", ("10", "100", "10000", "500000"), "10000"),
)


class State(NamedTuple):
    """One state of the explorer; entry d of a curve is for the key d tokens before the query."""

    scheme: str
    position: int
    scores: Float[ndarray, "T S"]  # of one pair of tokens, the query's at every place t, the key's at every s <= t
    curve: Float[ndarray, " distances"]  # of that pair, the query at `position`
    first: Float[ndarray, " distances"]  # of that pair, the query at FIRST
    mean: Float[ndarray, " distances"]  # of PAIRS pairs, the query at `position`
    spread: Float[ndarray, " distances"]  # their standard deviation


def compute(*, scheme: str, vectors: str, position: float, head: float, base: str) -> State:
    """Score one pair of tokens at every pair of places, and many pairs with the query at one place.

    Tokens are N(0, 1), W_q and W_k of each head N(0, 1/E). "q = k" is one token twice and W_k = W_q: before a scheme
    acts, query and key are equal.
    """
    p, h = int(position), int(head) - 1
    drawn = _drawn()
    other = 0 if vectors == SAME else 1
    tokens = drawn.tokens[0], drawn.tokens[other]  # (PAIRS, E) each
    maps = drawn.maps[h, 0], drawn.maps[h, other]  # (E, D) each

    def place(which: int, pairs: int, length: int, offset: int, dtype: torch.dtype) -> Float[Tensor, "pairs length D"]:
        """The queries (0) or keys (1) of the first so many pairs, each at so many places from an offset on."""
        return _placed(tokens[which][:pairs].to(dtype), maps[which].to(dtype), scheme, float(base), length, offset)

    bias = _biases(scheme)[h]  # (T, S)
    (q,), (k,) = place(0, 1, POSITIONS, 0, torch.float64), place(1, 1, POSITIONS, 0, torch.float64)  # (T, D), (S, D)
    scores = q @ k.T / WIDTH**0.5 + bias  # (T, S)
    # In float32: means and spreads need no more, and it takes a quarter of the time.
    q, k = place(0, PAIRS, 1, p, torch.float32), place(1, PAIRS, DISTANCES, p - FIRST, torch.float32)
    many = (q * k).sum(-1).flip(-1) / WIDTH**0.5  # (PAIRS, distances)
    where = p - torch.arange(DISTANCES)  # of the keys
    return State(
        scheme,
        p,
        np.where(np.tri(POSITIONS, dtype=bool), scores, np.nan),
        scores[p, where].numpy(),
        scores[FIRST, :DISTANCES].flip(0).numpy(),
        (many.mean(dim=0) + bias[p, where]).numpy(),
        many.std(dim=0).numpy(),
    )


def draw(figure: Figure, state: State) -> None:
    """Draw the scores of all places with the query's row marked, and that row against the distance."""
    parts = plots.once(figure, _lay_out)
    low, high = np.nanmin(state.scores), np.nanmax(state.scores)
    middle, half = (low + high) / 2, max((high - low) / 2, 0.5)  # equal scores differ by rounding
    parts.scores.set(data=state.scores, clim=(middle - half, middle + half))
    parts.row.set_data([-0.5, state.position + 0.5], [state.position] * 2)
    parts.curve.set_ydata(state.curve)
    parts.first.set_ydata(state.first)
    parts.mean.set_ydata(state.mean)
    x = np.arange(DISTANCES)
    low, high = state.mean - state.spread, state.mean + state.spread
    parts.band.set_verts([np.stack([np.append(x, x[::-1]), np.append(low, high[::-1])], axis=-1)])


def readout(state: State) -> Readout:
    """The numbers behind the picture, and whether the curve has moved with the query."""
    rows = [("distance", "this pair", f"mean of {PAIRS}", "their spread")]
    for d in READ:
        rows.append((f"{d}", f"{state.curve[d]:+z.2f}", f"{state.mean[d]:+z.2f}", f"{state.spread[d]:.2f}"))
    moved = np.abs(state.curve - state.first).max()
    start = f"The query at {state.position} instead of {FIRST}: "
    if state.position == FIRST:
        said = f"The query at {FIRST}, where the curves start to be compared."
    elif moved < STILL and np.ptp(state.curve) < STILL:
        said = f"{start}the curve has not moved, and it is level: neither place nor distance counts."
    elif moved < STILL:
        said = f"{start}the curve has not moved, only the distance counts."
    else:
        said = f"{start}the curve has moved by up to {moved:.2f}, the place counts."
    return Readout(rows, said)


def distance() -> Explorer:
    """Choose a scheme and move the query; watch whether its scores against the distance move."""
    return Explorer(
        title="Score against distance",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "Rotary positions with q = k: the scores of all pairs of places are stripes along the diagonal. Against "
            "the distance, the curve of a query at 100 covers that of a query at 64, and the mean of 400 pairs falls "
            "from 8 at distance 0 to 4 at distance 50."
        ),
        size=(8, 3.5),
    )


def _placed(
    x: Float[Tensor, "pairs E"], W: Float[Tensor, "E D"], scheme: str, base: float, length: int, offset: int
) -> Float[Tensor, "pairs T D"]:
    """Queries or keys of tokens, each as it is at the places offset, offset + 1, ..."""
    content = (x @ W).unsqueeze(1).expand(-1, length, -1)  # (pairs, T, D)
    if scheme == "sinusoidal":  # (x + PE) W = x W + PE W
        return content + sinusoidal(length, WIDTH, base=base, offset=offset, dtype=x.dtype) @ W
    if scheme in ("rotary", INTERLEAVED):
        return Rotary(WIDTH, base=base, interleaved=scheme == INTERLEAVED)(content, offset=offset)
    return content


@cache
def _biases(scheme: str) -> Float[Tensor, "H T S"]:
    if scheme == "ALiBi":
        return alibi(POSITIONS, num_heads=HEADS, dtype=torch.float64)
    if scheme == "T5":
        place = torch.arange(POSITIONS)
        return _drawn().biases[:, t5_buckets(place - place[:, None], bidirectional=False)]
    return torch.zeros(HEADS, POSITIONS, POSITIONS, dtype=torch.float64)


@cache
def _drawn() -> SimpleNamespace:
    """Tokens, maps and biases, the same in every state."""
    generator = torch.Generator().manual_seed(0)

    def draw_one(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return SimpleNamespace(
        tokens=draw_one(2, PAIRS, WIDTH),
        maps=draw_one(HEADS, 2, WIDTH, WIDTH) / WIDTH**0.5,
        biases=T5_SPREAD * draw_one(HEADS, 32),
    )


def _lay_out(figure: Figure) -> SimpleNamespace:
    places, curves = figure.subplots(1, 2, width_ratios=(1, 1.35))
    figure.legend(
        handles=[
            Line2D([], [], color=plots.COLOURS[0], linewidth=2, label="this pair, query at its place"),
            Line2D([], [], color=plots.COLOURS[4], linewidth=6, alpha=0.6, label=f"query at {FIRST}"),
            Line2D([], [], color="0.3", linestyle="--", linewidth=1.5, label=f"mean of {PAIRS} pairs"),
            Patch(color="0.88", label="± their spread"),
        ],
        loc="outside upper center",
        ncols=4,
        fontsize=10,
    )
    return SimpleNamespace(**_lay_out_places(places), **_lay_out_curves(curves))


def _lay_out_places(ax: Axes) -> dict[str, Any]:
    image = ax.imshow(
        np.zeros((POSITIONS, POSITIONS)),
        cmap=colormaps["viridis"].with_extremes(bad="#E4E4E4"),
        interpolation="nearest",
        animated=True,
    )
    (row,) = ax.plot([], [], color="black", linewidth=2, animated=True, zorder=3)
    ax.set(title="scores of this pair at all places", xlabel="key's position", ylabel="query's position")
    ax.set(xlim=(-0.5, POSITIONS - 0.5), ylim=(POSITIONS - 0.5, -0.5))
    ax.set_xticks(range(0, POSITIONS, 32))
    ax.set_yticks(range(0, POSITIONS, 32))
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    # The bar stands still and has no numbers: its ends are the lowest and the highest score of each state.
    bar = ax.figure.colorbar(ScalarMappable(cmap=image.cmap), ax=ax, shrink=0.85, pad=0.02, label="score")
    bar.set_ticks([0, 1], labels=["lowest", "highest"])
    return {"scores": image, "row": row}


def _lay_out_curves(ax: Axes) -> dict[str, Any]:
    x = np.arange(DISTANCES)
    band = PolyCollection([], facecolor="0.88", edgecolor="none", animated=True, zorder=1)
    ax.add_collection(band)
    how: dict[str, Any] = {"animated": True}
    (mean,) = ax.plot(x, 0 * x, "--", color="0.3", linewidth=1.5, zorder=2, **how)
    (first,) = ax.plot(x, 0 * x, color=plots.COLOURS[4], linewidth=6, alpha=0.6, zorder=3, **how)
    (curve,) = ax.plot(x, 0 * x, color=plots.COLOURS[0], linewidth=2, zorder=4, **how)
    ax.set(xlabel="distance: query's position - key's", ylabel="score before the softmax")
    ax.set(xlim=(0, FIRST), ylim=(LOW, HIGH), title="the row of the query (black line)")
    ax.set_yticks(range(-8, HIGH, 8))
    ax.set_xticks(range(0, DISTANCES, 16))
    return {"band": band, "mean": mean, "first": first, "curve": curve}
