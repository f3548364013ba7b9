"""Explorer `cache`: what a KV cache holds and reads, which batch and context fit, and what a window drops."""

from functools import cache as cached
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy import ndarray

from mha_course import plots
from mha_course.cache import KVCache, RingCache, bytes_per_token
from mha_course.explorers.base import Choice, Explorer, Readout, Slider

GB = 10**9
MEMORIES = (8, 24, 80)  # GB
WINDOW, SINKS = 4096, 4
ALL, LAST, FIRST = KEEP = ("all tokens", f"last {WINDOW}", f"last {WINDOW} + {SINKS} sinks")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn}

CONTROLS = (
    Choice("layers", "layers", ("16", "32", "40", "80", "126"), "32"),
    Choice("heads", "kv heads", ("1", "2", "4", "8", "16", "32", "40", "64"), "8"),
    Choice("width", "head_dim", ("64", "128", "256"), "128"),
    Choice("dtype", "dtype", tuple(DTYPES), "bfloat16"),
    Choice("context", "context, tokens", ("2048", "8192", "32768", "131072"), "8192"),
    Slider("batch", "batch", 1, 64, 1, 16, digits=0),
    Choice("keep", "kept", KEEP, ALL),
)

MODELS = {  # layers, kv heads, head_dim
    (32, 32, 128): "Llama-2 7B",
    (40, 40, 128): "Llama-2 13B",
    (80, 8, 128): "Llama-2 70B, Llama-3 70B",
    (32, 8, 128): "Llama-3 8B, Mistral 7B",
    (126, 8, 128): "Llama-3.1 405B",
    (32, 1, 64): "Falcon 7B",
}

SMALL, SMALL_WINDOW, SMALL_SINKS = 20, 6, 2  # the text on the right
SMALL_NAMES = {
    ALL: "all tokens",
    LAST: f"last {SMALL_WINDOW}",
    FIRST: f"last {SMALL_WINDOW}\n+ {SMALL_SINKS} sinks",
}
NOT_YET, DROPPED, HELD, SINK = range(4)
SHADES = ("1", "0.85", "0.35", plots.COLOURS[3])
LINES = (plots.COLOURS[2], plots.COLOURS[0], plots.COLOURS[1])
WORDS = 9


class State(NamedTuple):
    """One state of the explorer."""

    model: tuple[int, int, int]  # layers, kv heads, head_dim
    dtype: str
    context: int
    batch: int
    keep: str
    per_token: int  # bytes
    held: int  # tokens of one sequence
    frontiers: Float[ndarray, "memories contexts"]  # the batch that fits
    small: Int[ndarray, "20 20"]  # of each token (columns) after each token (rows)

    @property
    def read(self) -> int:
        """Bytes that a new token of one sequence reads."""
        return self.per_token * self.held

    @property
    def total(self) -> int:
        """Bytes of all sequences."""
        return self.batch * self.read


def compute(*, layers: str, heads: str, width: str, dtype: str, context: str, batch: float, keep: str) -> State:
    """Count bytes, and run a small cache token by token."""
    model = (int(layers), int(heads), int(width))
    per_token = bytes_per_token(*model, DTYPES[dtype])
    room = np.array(MEMORIES)[:, None] * GB
    return State(
        model=model,
        dtype=dtype,
        context=int(context),
        batch=int(batch),
        keep=keep,
        per_token=per_token,
        held=min(int(context), slots(keep)),
        frontiers=room / (per_token * np.minimum(_contexts(), slots(keep))),
        small=_small(keep),
    )


def draw(figure: Figure, state: State) -> None:
    """Draw the frontiers and the chosen point, and what is held of a short text."""
    parts = plots.once(figure, _lay_out)
    for line, batches in zip(parts.lines, state.frontiers, strict=True):
        line.set_ydata(batches)
    fits = _fits(state)
    parts.point.set(
        data=([state.context], [state.batch]),
        markerfacecolor="black" if fits is None else LINES[MEMORIES.index(fits)],
    )
    shades = np.array([to_rgb(shade) for shade in SHADES])
    parts.held.set_facecolor(shades[state.small].reshape(-1, 3))
    parts.name.set_text(SMALL_NAMES[state.keep])


def readout(state: State) -> Readout:
    """What is held and read, what fits, and what this means."""
    batches = [memory * GB // state.read for memory in MEMORIES]
    named = " / ".join(map(str, MEMORIES))
    rows = [
        (f"cache in {state.dtype}", MODELS.get(state.model, "no known model")),
        ("bytes of a token", f"{state.per_token:,}"),
        ("tokens held", f"{state.held:,} of {state.context:,}"),
        (f"held, {_sequences(state.batch)}", _size(state.total)),
        ("read for a new token", _size(state.read)),
        ("for all, at 1 TB/s", f"{state.total / 1e9:,.3g} ms" if state.total < 1e12 else f"{state.total / 1e12:.3g} s"),
        (f"fits {named} GB:", ""),
        ("batch, this context", " / ".join(f"{batch:,}" for batch in batches)),
        ("context, this batch", " / ".join(_longest(state, memory) for memory in MEMORIES)),
    ]
    return Readout(rows, f"{_of_size(state)} {_of_keep(state)}")


def cache() -> Explorer:
    """Change model, context and batch; watch what is held, and which memory it fits."""
    return Explorer(
        title="What a cache holds",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "Left, batch against context: three falling lines, on which a cache fills 8, 24 and 80 GB; 16 sequences of "
            "8192 tokens, the point, lie between those of 8 and 24. Right, a short text: each token is held from its "
            "own step on to the end."
        ),
        size=(8, 4.1),
    )


def slots(keep: str) -> int:
    """The most tokens of a sequence that are held; more than any text has if all are."""
    return {ALL: 2**62, LAST: WINDOW, FIRST: WINDOW + SINKS}[keep]


@cached
def _contexts() -> ndarray:
    return np.geomspace(512, 2**19, 161)  # 16 in each doubling, so that corners are points


@cached
def _small(keep: str) -> ndarray:
    """What a cache holds of a short text, asked of the caches of the package."""
    sinks = SMALL_SINKS if keep == FIRST else 0
    held = KVCache(1, 1, SMALL, 1) if keep == ALL else RingCache(1, 1, SMALL_WINDOW, 1, sinks=sinks)
    rows = np.full((SMALL, SMALL), NOT_YET)
    for t, token in enumerate(torch.arange(SMALL, dtype=torch.float32).view(SMALL, 1, 1, 1, 1)):
        there, _ = held.update(token, token)
        rows[t, : t + 1] = DROPPED
        rows[t, there.flatten().int().numpy()] = HELD
        rows[t, : min(sinks, t + 1)] = SINK
    return rows


def _fits(state: State) -> int | None:
    """The smallest of the memories that holds all sequences."""
    return next((memory for memory in MEMORIES if state.total <= memory * GB), None)


def _longest(state: State, memory: int) -> str:
    tokens = memory * GB // (state.per_token * state.batch)
    return "any" if tokens >= slots(state.keep) else f"{tokens:,}"


def _sequences(batch: int) -> str:
    return "1 sequence" if batch == 1 else f"{batch} sequences"


def _of_size(state: State) -> str:
    fits = _fits(state)
    said = f"it fits in {fits} GB" if fits else f"more than {MEMORIES[-1]} GB"
    return f"{_sequences(state.batch)} of {state.context:,} tokens: {_size(state.total)}, {said} (weights not counted)."


def _of_keep(state: State) -> str:
    if state.keep == ALL:
        return f"Twice the context is twice the memory, and {_size(2 * state.read)} to read for each new token."
    if state.held == state.context:
        return "The text is shorter than the window: nothing is dropped yet."
    share = state.context / state.held
    kept = f"the last {WINDOW:,} tokens" + (f" and the first {SINKS}" if state.keep == FIRST else "")
    said = f"Only {kept} are held: {share:.0f} times less, however long the text;"
    return f"{said} no later token attends to what is dropped."


def _size(count: int) -> str:
    for unit, name in ((10**12, "TB"), (GB, "GB"), (10**6, "MB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count / 1000:.3g} kB"


def _lay_out(figure: Figure) -> SimpleNamespace:
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    return SimpleNamespace(**_lay_out_frontiers(left), **_lay_out_held(right))


def _lay_out_frontiers(ax: Axes) -> dict[str, Any]:
    contexts = _contexts()
    lines = [
        ax.plot(contexts, np.ones(len(contexts)), color=color, linewidth=2.5, animated=True, zorder=3)[0]
        for color in LINES
    ]
    (point,) = ax.plot([], [], "o", markeredgecolor="black", markersize=11, animated=True, zorder=5)
    ax.set(xscale="log", yscale="log", xlim=(512, 2**19), ylim=(0.7, 1e5), title="what fits: below a line")
    ax.set(xlabel="context (tokens)", ylabel="batch (sequences)")
    ax.set_xticks([2**n for n in (9, 11, 13, 15, 17, 19)], ["512", "2k", "8k", "32k", "128k", "512k"])
    ax.set_yticks([10**n for n in range(6)], ["1", "10", "100", "1000", "10k", "100k"])
    ax.minorticks_off()
    ax.legend(
        handles=[
            Line2D([], [], color=color, linewidth=2.5, label=f"{memory} GB")
            for color, memory in zip(LINES, MEMORIES, strict=True)
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=3,
        fontsize=WORDS,
    )
    return {"lines": lines, "point": point}


def _lay_out_held(ax: Axes) -> dict[str, Any]:
    edges = np.arange(SMALL + 1) - 0.5
    held = ax.pcolormesh(
        edges, edges, np.zeros((SMALL, SMALL)), edgecolor="white", linewidth=0.6, animated=True, zorder=1
    )
    held.set_array(None)  # its colours are given one by one
    ax.set(aspect="equal", xlim=(-0.5, SMALL - 0.5), ylim=(SMALL - 0.5, -0.5), xlabel="token", ylabel="after token")
    ax.set(xticks=range(0, SMALL, 5), yticks=range(0, SMALL, 5))
    ax.set_title(f"a text of {SMALL} tokens")
    name = ax.text(0.97, 0.95, "", transform=ax.transAxes, ha="right", va="top", animated=True, zorder=3)
    ax.grid(visible=False)
    ax.legend(
        handles=[
            Patch(color=SHADES[shade], label=name)
            for shade, name in ((HELD, "held"), (SINK, "sink"), (DROPPED, "dropped"))
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=3,
        fontsize=WORDS,
        handlelength=1,
    )
    return {"held": held, "name": name}
