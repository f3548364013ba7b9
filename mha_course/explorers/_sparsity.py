"""Explorer `sparsity`: few keys for each token, how far they reach over layers, and what the output loses."""

from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy import ndarray
from torch import Tensor

from mha_course import plots
from mha_course.dot_product import attention
from mha_course.explorers.base import Choice, Explorer, Readout, Slider
from mha_course.masks import blocks, causal, dilated, random_links, sliding_window

TOKENS, WIDTH, MOST, BLOCK, DILATION = 64, 16, 8, 8, 3
WINDOW, DILATED, BLOCKS, RANDOM, BOTH = PATTERNS = (
    "window",
    f"dilated by {DILATION}",
    "block",
    "random",
    "window + random",
)
SHARP, FLAT = INPUTS = ("sharp", "flat")
LOOKED_FOR, OTHERS = 3.0, 0.25  # factor on the key that a sharp query looks for; spread of the scores of a flat one

CONTROLS = (
    Choice("pattern", "pattern", PATTERNS, BOTH),
    Slider("window", "window or block", 1, 32, 1, 5, digits=0),
    Slider("links", "random links", 0, 16, 1, 2, digits=0),
    Slider("layers", "layers", 1, MOST, 1, 2, digits=0),
    Choice("given", "input", INPUTS, SHARP),
)

SEEN, REACHED, NEVER = plots.COLOURS[0], "#BFDDEE", "0.87"
MISSED = plots.COLOURS[1]
SMALL = 9


class State(NamedTuple):
    """One state of the explorer."""

    pattern: str
    layers: int
    given: str
    mask: Bool[ndarray, "T T"]
    reached: Bool[ndarray, "T T"]  # over the chosen layers
    fields: Int[ndarray, " layers"]  # tokens that reach the last one, after 1, 2, ... layers
    as_window: int  # a window with as many pairs, as nearly as one can
    weights: Float[ndarray, "inputs T T"]  # of full causal attention
    errors: Float[ndarray, "inputs T"]  # of the output, in sizes of a value


def compute(*, pattern: str, window: float, links: float, layers: float, given: str) -> State:
    """Build the mask, follow it over layers, and attend with it and without."""
    mask = _mask(pattern, int(window), int(links))
    steps = _steps(mask)
    q, k, v, weights, full = _full()
    out = attention(q, k, v, mask=mask).out  # (inputs, T, D)
    return State(
        pattern=pattern,
        layers=int(layers),
        given=given,
        mask=mask.numpy(),
        reached=steps[int(layers) - 1].numpy(),
        fields=steps[:, -1].sum(-1).numpy(),
        as_window=int((_window_pairs() - mask.sum()).abs().argmin()) + 1,
        weights=weights.numpy(),
        errors=(out - full).square().mean(-1).sqrt().numpy(),
    )


def draw(figure: Figure, state: State) -> None:
    """Draw who sees and reaches whom, the receptive field over layers, and the error of each token."""
    parts = plots.once(figure, _lay_out)
    parts.mask.set_data(_levels(state))
    best, largest, seen = _looked_for(state)
    parts.best.set_offsets(np.column_stack([best, np.arange(TOKENS)]))
    parts.best.set_sizes(1 + 22 * largest)
    parts.best.set_facecolor(["white" if one else MISSED for one in seen])
    parts.field.set_ydata(state.fields)
    parts.window.set_ydata(_window_fields(state.as_window))
    parts.here.set_data([state.layers], state.fields[state.layers - 1 : state.layers])
    for line, errors, name in zip(parts.errors, state.errors, INPUTS, strict=True):
        chosen = name == state.given
        line.set(ydata=errors, color=MISSED if chosen else "0.6", zorder=4 if chosen else 3)


def readout(state: State) -> Readout:
    """The numbers behind the picture, and what they mean."""
    pairs = TOKENS * (TOKENS + 1) // 2
    side = TOKENS // BLOCK
    touched = int(state.mask.reshape(side, BLOCK, side, BLOCK).any(axis=(1, 3)).sum())
    full = np.flatnonzero(state.fields == TOKENS)
    hidden = (state.weights * ~state.mask).sum(-1).mean(-1)
    errors = _error(state)
    rows = [
        (f"{TOKENS} tokens, causal", state.pattern, "full"),
        ("keys a token sees, mean", f"{state.mask.sum() / TOKENS:.1f}", f"{pairs / TOKENS:.1f}"),
        ("density", f"{state.mask.sum() / pairs:.0%}", "100%"),
        (f"{BLOCK} x {BLOCK} blocks touched", f"{touched}", f"{side * (side + 1) // 2}"),
        ("a window as dense", f"{state.as_window}", ""),
        (f"reach the last, {_layers(state.layers)}", f"{state.fields[state.layers - 1]}", f"{TOKENS}"),
        ("layers until all reach it", f"{full[0] + 1}" if len(full) else f"over {MOST}", "1"),
        *((f"weight hidden, {name}", f"{one:.0%}", "0%") for name, one in zip(INPUTS, hidden, strict=True)),
        *((f"error, {name}", f"{one:.2f}", "0") for name, one in zip(INPUTS, errors, strict=True)),
    ]
    return Readout(rows, f"{_of_reach(state)} {_of_error(state)}")


def sparsity() -> Explorer:
    """Choose which keys a token sees; watch how far it reaches over layers, and what its output loses."""
    return Explorer(
        title="Few keys for each token",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "Left, a window of 5 with two random links in a row of 64 tokens: a blue band, scattered blue cells, and "
            "pale cells that are reached over two layers; 26 of the 64 keys that a sharp input looks for are not "
            "seen. Right, the tokens that reach the last one grow faster over layers than with a window as dense; "
            "the error of most tokens is about 0 or about as large as a value."
        ),
        size=(8, 4.4),
    )


@cache
def _mask(pattern: str, window: int, links: int) -> Bool[Tensor, "T T"]:
    if pattern == DILATED:
        return dilated(TOKENS, window, DILATION)
    if pattern == BLOCKS:
        count = -(-TOKENS // window)
        return blocks(torch.eye(count, dtype=torch.bool), window, TOKENS, TOKENS) & causal(TOKENS)
    mask = sliding_window(TOKENS, window if pattern != RANDOM else 1)
    if pattern in (RANDOM, BOTH):
        mask = mask | random_links(TOKENS, links, generator=torch.Generator().manual_seed(3))
    return mask


def _steps(mask: Tensor) -> Bool[Tensor, "layers T T"]:
    """Who reaches whom over 1, 2, ... layers."""
    steps = [mask.double()]
    for _ in range(MOST - 1):
        steps.append((steps[-1] @ steps[0]).clamp(max=1))
    return torch.stack(steps) > 0


@cache
def _window_pairs() -> Int[Tensor, " T"]:
    """Pairs in a window of 1, 2, ... keys."""
    return torch.stack([sliding_window(TOKENS, window).sum() for window in range(1, TOKENS + 1)])


def _window_fields(window: int) -> Int[ndarray, " layers"]:
    return np.minimum(TOKENS, 1 + np.arange(1, MOST + 1) * (window - 1))


@cache
def _full() -> tuple[Tensor, ...]:
    """Queries, keys and values (inputs, T, D), weights and output of full causal attention."""
    generator = torch.Generator().manual_seed(0)
    noise, k, v = (torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))
    draws = torch.rand(TOKENS, generator=generator, dtype=torch.float64)
    place = torch.arange(TOKENS)
    back = ((place + 1.0) ** draws).long() - 1  # as often 0 as 1 or 2, as 3 to 6, ...: near ones more often
    q = torch.stack([LOOKED_FOR * k[place - back], OTHERS * noise])
    k, v = k.expand_as(q), v.expand_as(q)
    _, weights, out = attention(q, k, v, mask=causal(TOKENS))
    return q, k, v, weights, out


def _levels(state: State) -> Int[ndarray, "T T"]:
    """0 to come, 1 never reached, 2 reached over layers, 3 seen."""
    past = np.tri(TOKENS, dtype=int)
    return past + (past & state.reached) + state.mask


def _looked_for(state: State) -> tuple[ndarray, ndarray, ndarray]:
    """The key with the largest weight of each token in full attention, that weight, and whether it is seen."""
    weights = state.weights[INPUTS.index(state.given)]
    best, rows = weights.argmax(-1), np.arange(TOKENS)
    return best, weights[rows, best], state.mask[rows, best]


def _error(state: State) -> ndarray:
    return np.sqrt(np.square(state.errors).mean(-1))


def _of_reach(state: State) -> str:
    field, further = state.fields[state.layers - 1], state.fields[-1]
    if field == TOKENS:
        return f"After {_layers(state.layers)} every token has reached the last one."
    said = f"After {_layers(state.layers)} {field} of {TOKENS} tokens have reached the last one"
    if field == further and state.layers < MOST:
        return f"{said}, and more layers add none."
    return f"{said}."


def _of_error(state: State) -> str:
    error = _error(state)[INPUTS.index(state.given)]
    if state.given == SHARP:
        seen = int(_looked_for(state)[2].sum())
        return (
            f"The input is sharp: {seen} of {TOKENS} tokens see the key that they look for, "
            f"and the output is off by {error:.2f} sizes of a value."
        )
    return (
        f"The input is flat: every key counts a little, those seen stand for the others, "
        f"and the output is off by {error:.2f} sizes of a value."
    )


def _layers(count: int) -> str:
    return f"{count} layer" if count == 1 else f"{count} layers"


def _lay_out(figure: Figure) -> SimpleNamespace:
    axes = figure.subplot_mosaic([["mask", "field"], ["mask", "error"]], width_ratios=(1.35, 1))
    return SimpleNamespace(
        **_lay_out_mask(axes["mask"]), **_lay_out_field(axes["field"]), **_lay_out_error(axes["error"])
    )


def _lay_out_mask(ax: Axes) -> dict[str, Any]:
    colours = ListedColormap([(0, 0, 0, 0), NEVER, REACHED, SEEN])  # the legend shows through
    image = ax.imshow(np.zeros((TOKENS, TOKENS)), vmin=-0.5, vmax=3.5, cmap=colours, animated=True)
    nowhere = np.zeros(TOKENS)
    best = ax.scatter(nowhere, nowhere, s=1, edgecolors="black", linewidths=0.6, animated=True, zorder=3)
    ticks = range(0, TOKENS, 16)
    ax.set(title="who sees, and reaches, whom", xlabel="key", ylabel="query", xticks=ticks, yticks=ticks)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    dot: dict[str, Any] = {"linestyle": "", "marker": "o", "markeredgecolor": "black", "markersize": 6}
    ax.legend(
        handles=[
            Patch(color=SEEN, label="seen"),
            Patch(color=REACHED, label="reached over layers"),
            Patch(color=NEVER, label="not reached"),
            Line2D([], [], color="white", label="largest weight, seen", **dot),
            Line2D([], [], color=MISSED, label="largest weight, not seen", **dot),
        ],
        loc="upper right",
        fontsize=SMALL,
    )
    return {"mask": image, "best": best}


def _lay_out_field(ax: Axes) -> dict[str, Any]:
    layers, ones = np.arange(1, MOST + 1), np.ones(MOST)
    (window,) = ax.plot(layers, ones, "--", color="0.35", linewidth=1.5, animated=True, label="window as dense")
    (field,) = ax.plot(layers, ones, "o-", color=SEEN, markersize=4, animated=True, label="this pattern")
    (here,) = ax.plot([1], [1], "o", color=MISSED, markersize=10, animated=True)
    ax.set(title="tokens that reach the last", xlabel="layers", xticks=layers, ylim=(0, 1.4 * TOKENS))
    ax.set_yticks(range(0, TOKENS + 1, 16))
    ax.legend(handles=[field, window], loc="upper left", fontsize=SMALL, ncols=2)
    return {"field": field, "window": window, "here": here}


def _lay_out_error(ax: Axes) -> dict[str, Any]:
    tokens = np.arange(TOKENS)
    (sharp,) = ax.plot(tokens, 0.0 * tokens, "o", markersize=4, animated=True)
    (flat,) = ax.plot(tokens, 0.0 * tokens, "-", linewidth=2, animated=True)
    ax.set(title="error of the output", xlabel="token", ylabel="sizes of a value", ylim=(-0.1, 2.6))
    ax.set_xticks(range(0, TOKENS, 16))
    ax.legend(
        handles=[
            Line2D([], [], linestyle="", marker="o", color="0.3", markersize=4, label=SHARP),
            Line2D([], [], color="0.3", linewidth=2, label=FLAT),
        ],
        loc="upper left",
        fontsize=SMALL,
        ncols=2,
    )
    return {"errors": [sharp, flat]}
