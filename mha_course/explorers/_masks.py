"""Explorer `masks`: build a mask, apply it in a right or a wrong way, see who reaches whom."""

from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy import ndarray
from torch import Tensor

from mha_course import plots
from mha_course.dot_product import attention
from mha_course.explorers.base import Choice, Explorer, Readout, Slider
from mha_course.masks import block_diagonal, causal, explain, padding, prefix, sliding_window

TOKENS, WIDTH = 8, 4
BEFORE, AFTER, LARGE = "-inf before softmax", "zero after softmax", "-1e9 before softmax"
MAY, BLOCKED = "True = may attend", "True = blocked"

CONTROLS = (
    Choice("order", "pattern", ("all", "causal", "window", "prefix"), "window"),
    Slider("reach", "window or prefix", 1, TOKENS, 1, 3, digits=0),
    Slider("real", "real tokens", 0, TOKENS, 1, TOKENS, digits=0),
    Slider("first", "document 1", 1, TOKENS, 1, TOKENS, digits=0),
    Choice("applied", "applied as", (BEFORE, AFTER, LARGE), BEFORE),
    Choice("read", "read as", (MAY, BLOCKED), MAY),
    Choice("target", "target", ("none", "1", "2", "3", "4"), "none"),
)
TARGETS: dict[str, dict[str, Any]] = {
    "1": {"order": "causal", "real": 6},
    "2": {"order": "window", "reach": 2, "first": 5},
    "3": {"order": "prefix", "reach": 3, "real": 7},
    "4": {"real": 5, "applied": LARGE},
}


class State(NamedTuple):
    """One state of the explorer. True in `mask` means "may attend", whatever convention it was read by."""

    mask: Bool[ndarray, "T S"]
    scores: Float[ndarray, "T S"]  # that go into the softmax
    weights: Float[ndarray, "T S"]
    leaks: Bool[ndarray, "T S"]  # row t of the output moves when key and value s change
    wanted: Bool[ndarray, "T S"] | None  # leaks of the target
    target: str
    name: str  # what `masks.explain` calls the mask
    future: int  # pairs in which a later token reaches an earlier row
    from_padding: int


def compute(*, order: str, reach: float, real: float, first: float, applied: str, read: str, target: str) -> State:
    """Build the mask, attend with it, and probe every pair: change key and value s, see which rows move."""
    mask = _mask(order, int(reach), int(real), int(first), read)
    scores, weights, leaks = _probe(mask, applied)
    wanted = None
    if target != "none":
        start = {control.name: control.start for control in CONTROLS}
        wanted = compute(**(start | TARGETS[target])).leaks
    rows, columns = np.indices(leaks.shape)
    return State(
        mask.numpy(),
        scores.numpy(),
        weights.numpy(),
        leaks,
        wanted,
        target,
        explain(mask).name or "no mask that has a name",
        int((leaks & (columns > rows)).sum()),
        int(leaks[:, int(real) :].sum()),
    )


def draw(figure: Figure, state: State) -> None:
    """Draw the mask, scores, weights with their row sums, and the pairs in which a key reaches a row."""
    parts = plots.once(figure, _lay_out)
    parts.mask.set_data(state.mask)
    parts.scores.set_data(np.where(np.isneginf(state.scores), np.nan, state.scores))
    parts.weights.set_data(np.nan_to_num(state.weights))
    for text, total in zip(parts.sums, state.weights.sum(axis=1), strict=True):
        text.set_text(f"{total:.2f}")
    parts.leaks.set_data(state.leaks)
    wrong = np.zeros_like(state.leaks) if state.wanted is None else state.wanted != state.leaks
    parts.frames.set_data(*wrong.nonzero()[::-1])


def readout(state: State) -> Readout:
    """The numbers behind the picture, and how far the target is."""
    sums = state.weights.sum(axis=1)
    rows = [
        ("", "measured"),
        ("pairs that may attend", f"{state.mask.sum()} of {state.mask.size}"),
        ("rows that see nothing", f"{(~state.mask.any(axis=1)).sum()}"),
        ("sums of the rows of weights", f"{sums.min():.2f} to {sums.max():.2f}"),
        ("pairs in which a row moves", f"{state.leaks.sum()}"),
        ("with a key of its future", f"{state.future}"),
        ("with a key of the padding", f"{state.from_padding}"),
    ]
    if state.wanted is None:
        return Readout(rows, f"The mask: {state.name}.")
    wrong = int((state.wanted != state.leaks).sum())
    how = "solved" if wrong == 0 else f"{wrong} pairs must change, they are framed"
    return Readout(rows, f"The mask: {state.name}. Target {state.target}: {how}.")


def masks() -> Explorer:
    """Build masks and apply them; watch weights, row sums and who reaches whom."""
    return Explorer(
        title="Who may look at whom",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "A window of 3 over eight tokens: mask, scores, weights and the matrix of which row moves "
            "when a key and its value change show the same band, and every row of weights sums to one."
        ),
        size=(8, 2.5),
    )


def _mask(order: str, reach: int, real: int, first: int, read: str) -> Bool[Tensor, "T S"]:
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    if order == "causal":
        mask = causal(TOKENS)
    elif order == "window":
        mask = sliding_window(TOKENS, reach)
    elif order == "prefix":
        mask = prefix(TOKENS, reach)
    mask = mask & block_diagonal(torch.tensor([first, TOKENS - first])) & padding(torch.tensor([real]), TOKENS)[0, 0]
    return mask if read == MAY else ~mask


@cache
def _drawn() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(5, TOKENS, WIDTH, generator=generator, dtype=torch.float64))


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, applied: str) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, weights and output under one of three ways to apply a mask."""
    if applied == BEFORE:
        scores, weights, out = attention(q, k, v, mask=mask)
        return scores, weights, out
    scores = attention(q, k, v).scores
    if applied == LARGE:
        scores = scores.masked_fill(~mask, -1e9)
    weights = scores.softmax(-1) * (mask if applied == AFTER else 1)
    return scores, weights, weights @ v


def _probe(mask: Tensor, applied: str) -> tuple[Tensor, Tensor, Bool[ndarray, "T S"]]:
    """Scores, weights, and leaks[t, s]: whether row t of the output moves when key and value s change."""
    q, k, v, other_k, other_v = _drawn()
    # Copy s has key and value s changed, the last copy none: all in one product, so that equal means bit-equal.
    changed = torch.eye(TOKENS + 1, TOKENS, dtype=torch.bool).unsqueeze(-1)  # (S + 1, S, 1)
    ks, vs = torch.where(changed, other_k, k), torch.where(changed, other_v, v)  # (S + 1, S, D)
    scores, weights, out = _attend(q.expand_as(ks), ks, vs, mask, applied)
    return scores[-1], weights[-1], (out[:-1] != out[-1]).any(-1).T.numpy()


def _lay_out(figure: Figure) -> SimpleNamespace:
    mask, scores, weights, leaks = figure.subplots(1, 4)
    figure.get_layout_engine().set(wspace=0.08)  # room for the sums
    (frames,) = leaks.plot(
        [], [], "s", fillstyle="none", color="black", markersize=10, markeredgewidth=2, animated=True
    )
    shades = colormaps["PuOr_r"].with_extremes(bad="#BBBBBB")  # hidden
    two = ListedColormap(["#E8E8E8", plots.COLOURS[0]])
    sums = [weights.text(TOKENS, row, "", ha="left", va="center", fontsize=8, animated=True) for row in range(TOKENS)]
    return SimpleNamespace(
        mask=_matrix(mask, "mask (blue: may)", "key", "query", two),
        scores=_matrix(scores, "scores", "key", "", shades, (-3, 3)),
        weights=_matrix(weights, "weights, row sums", "key", "", "viridis"),
        sums=sums,
        leaks=_matrix(leaks, "row moves (red)", "changed key", "", ListedColormap(["#E8E8E8", plots.COLOURS[1]])),
        frames=frames,
    )


def _matrix(ax: Axes, title: str, xlabel: str, ylabel: str, colours: Any, limits: tuple[float, float] = (0, 1)) -> Any:
    image = ax.imshow(np.zeros((TOKENS, TOKENS)), vmin=limits[0], vmax=limits[1], cmap=colours, animated=True)
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel, xticks=range(TOKENS), yticks=range(TOKENS) if ylabel else [])
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return image
