"""Explorer `collapse`: how the rows of a stack of attention layers become alike at initialisation."""

from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from mha_course import plots
from mha_course.dot_product import attention
from mha_course.explorers.base import Choice, Explorer, Readout, Slider

TOKENS, WIDTH, HEADS, MOST, DRAWS = 32, 64, 4, 12, 3
HEAD_WIDTH = WIDTH // HEADS
FLOOR = 1e-17  # where smaller residuals are drawn; rounding alone leaves about 2e-16
ALIKE = 0.01

CONTROLS = (
    Slider("layers", "layers", 0, MOST, 1, 3, digits=0),
    Slider("spread", "score spread", 0, 8, 0.5, 1),
    Choice("skip", "skip", ("no", "yes"), "no"),
    Choice("norm", "norm", ("none", "pre", "post"), "none"),
    Choice("mlp", "MLP", ("no", "yes"), "no"),
)


class State(NamedTuple):
    """One state of the explorer: a stack of a dozen layers, read after some of them."""

    layers: int
    residuals: Float[ndarray, "draws depths"]  # Frobenius, of several draws of the weights
    alone: Float[ndarray, " depths"]  # of attention alone, draw 0
    rows: Float[ndarray, "T E"]  # after the chosen layers, draw 0
    cosines: Float[ndarray, "T T"]  # of these rows
    measured_spread: float  # of the scores of layer 1, draw 0


def compute(*, layers: float, spread: float, skip: str, norm: str, mlp: str) -> State:
    """Send random tokens through a stack that was never trained."""
    depth = int(layers)
    stack = _run(float(spread), skip == "yes", norm, mlp == "yes")
    rows = stack.rows[depth]
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    alone = _run(1.0, False, "none", False).residuals[0]
    return State(depth, stack.residuals, alone, rows, units @ units.T, stack.spread)


def draw(figure: Figure, state: State) -> None:
    """Draw the residual of every depth, and the cosine of every two rows at the chosen one."""
    parts = plots.once(figure, _lay_out)
    shown = np.maximum(state.residuals, FLOOR)
    for line, residuals in zip(parts.draws, shown, strict=True):
        line.set_ydata(residuals)
    parts.alone.set_ydata(np.maximum(state.alone, FLOOR))
    parts.depth.set_xdata([state.layers] * 2)
    parts.here.set_data([state.layers], shown[:1, state.layers])
    parts.cosines.set_data(state.cosines)


def readout(state: State) -> Readout:
    """The numbers behind the picture, and what is left to tell the tokens apart."""
    residual = state.residuals[0, state.layers]
    apart = state.cosines[~np.eye(TOKENS, dtype=bool)]
    below = np.flatnonzero(state.residuals[0] < ALIKE)
    rows = [
        (f"after {_layers(state.layers)}", "measured", "equal rows"),
        ("residual (Frobenius)", _short(residual), "0"),
        ("residual (1, inf)", _short(relative_residual_1_inf(state.rows)), "0"),
        ("mean cosine", f"{apart.mean():.3f}", "1"),
        ("effective rank", f"{effective_rank(state.rows):.1f} of {TOKENS}", "1"),
        ("below 0.01", f"layer {below[0]}" if len(below) else "never", ""),
        ("spread, layer 1", f"{state.measured_spread:.2f}", ""),
    ]
    if state.layers == 0:
        return Readout(rows, "The input: 32 tokens drawn one by one, nothing in common.")
    said = f"After {_layers(state.layers)} the rows differ by {_short(residual)} of their size: "
    if residual < ALIKE:
        return Readout(rows, f"{said}collapsed, the next layer cannot tell one token from another.")
    return Readout(
        rows, f"{said}{'they have grown alike, but ' if residual < 0.5 else ''}the tokens can be told apart."
    )


def collapse() -> Explorer:
    """Stack layers; watch rows become alike, and what keeps them apart."""
    return Explorer(
        title="What keeps the rows apart",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "Attention layers alone, never trained: the residual from rank one falls from 0.98 over 0.7 and 0.02 to "
            "1e-7 after three layers and to the limit of rounding after four; after three layers the cosine "
            "of any two of the 32 rows is 1."
        ),
        size=(8, 3.7),
    )


def relative_residual(x: Float[Tensor, "... T E"]) -> Float[Tensor, "..."]:
    """|X - 1 m^T| / |X| in the Frobenius norm, in which the mean row m is the best."""
    rest = x - x.mean(-2, keepdim=True)
    return rest.norm(dim=(-2, -1)) / x.norm(dim=(-2, -1))


def relative_residual_1_inf(x: Float[ndarray, "T E"]) -> float:
    """The same rest, in the norm sqrt(largest column sum * largest row sum) of Dong et al. 2021, section 2.1."""
    rest, whole = np.abs(x - x.mean(axis=0)), np.abs(x)
    ratio = rest.sum(axis=0).max() * rest.sum(axis=1).max() / (whole.sum(axis=0).max() * whole.sum(axis=1).max())
    return float(np.sqrt(ratio))


def effective_rank(x: Float[ndarray, "T E"]) -> float:
    """Exponential of the entropy of the singular values' shares (Roy and Vetterli 2007)."""
    values = np.linalg.svd(x, compute_uv=False)
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


@cache
def _drawn() -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Tokens (draws, T, E), and the matrices of each layer, which keep a variance of 1."""
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(DRAWS, rows, columns, generator=generator, dtype=torch.float64) / rows**0.5

    tokens = torch.randn(DRAWS, TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    layers = [
        {name: matrix(WIDTH, WIDTH) for name in "qkvo"}
        | {"up": matrix(WIDTH, 4 * WIDTH), "down": matrix(4 * WIDTH, WIDTH)}
        for _ in range(MOST)
    ]
    return tokens, layers


@lru_cache(maxsize=64)
def _run(spread: float, skip: bool, norm: str, mlp: bool) -> SimpleNamespace:
    """Residuals and rows after 0, 1, ... layers; the measured spread of the first scores."""
    x, layers = _drawn()  # (draws, T, E)
    states, first = [x], None

    def sublayer(x: Tensor, change: Any) -> Tensor:
        y = change(layer_norm(x, (WIDTH,)) if norm == "pre" else x)
        y = x + y if skip else y
        return layer_norm(y, (WIDTH,)) if norm == "post" else y

    def attend(x: Tensor) -> Tensor:
        nonlocal first
        q, k, v = ((x @ at[name]).unflatten(-1, (HEADS, HEAD_WIDTH)).transpose(-3, -2) for name in "qkv")
        scores, _, heads = attention(q, k, v, scale=spread / HEAD_WIDTH**0.5)  # (draws, H, T, D)
        first = float(scores[0].std()) if first is None else first
        return heads.transpose(-3, -2).flatten(-2) @ at["o"]

    for at in layers:
        x = sublayer(x, attend)
        if mlp:
            x = sublayer(x, lambda y: gelu(y @ at["up"]) @ at["down"])  # noqa: B023 called at once
        states.append(x)
    stacked = torch.stack(states, dim=1)  # (draws, depths, T, E)
    return SimpleNamespace(residuals=relative_residual(stacked).numpy(), rows=stacked[0].numpy(), spread=first)


def _layers(count: int) -> str:
    return f"{count} layer" if count == 1 else f"{count} layers"


def _short(x: float) -> str:
    return f"{x:.2f}" if x >= 0.01 else f"{x:.0e}"


def _lay_out(figure: Figure) -> SimpleNamespace:
    residuals, cosines = figure.subplots(1, 2, width_ratios=(1.45, 1))
    return SimpleNamespace(**_lay_out_residuals(residuals), **_lay_out_cosines(cosines))


def _lay_out_residuals(ax: Axes) -> dict[str, Any]:
    depths, ones = np.arange(MOST + 1), np.ones(MOST + 1)
    depth = ax.axvline(0, color="0.6", linewidth=1.5, animated=True, zorder=1)
    (alone,) = ax.plot(depths, ones, "--", color="0.35", linewidth=1.5, animated=True, zorder=2)
    thin: dict[str, Any] = {"color": plots.COLOURS[5], "linewidth": 1.5, "animated": True, "zorder": 3}
    others = [ax.plot(depths, ones, **thin)[0] for _ in range(DRAWS - 1)]
    (first,) = ax.plot(depths, ones, "o-", color=plots.COLOURS[0], markersize=5, animated=True, zorder=4)
    (here,) = ax.plot([0], [1], "o", color=plots.COLOURS[1], markersize=11, animated=True, zorder=5)
    ax.set(xlabel="layers", ylabel="residual from rank one", yscale="log", title="how much the rows differ")
    ax.set(xlim=(-0.4, MOST + 0.4), ylim=(FLOOR, 30), xticks=range(0, MOST + 1, 2))
    ax.set_yticks([1, 1e-4, 1e-8, 1e-12, 1e-16])
    ax.minorticks_off()
    names = {"this stack": first, "other draws of its weights": others[0], "attention alone, spread 1": alone}
    ax.figure.legend(names.values(), names.keys(), loc="outside lower left", fontsize=10, ncols=3)
    return {"draws": [first, *others], "alone": alone, "depth": depth, "here": here}


def _lay_out_cosines(ax: Axes) -> dict[str, Any]:
    image = ax.imshow(np.zeros((TOKENS, TOKENS)), vmin=-1, vmax=1, cmap="PuOr_r", animated=True)
    ax.set(xlabel="token", ylabel="token", xticks=[0, 10, 20, 31], yticks=[0, 10, 20, 31])
    ax.set_title("cosine of two rows")
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.figure.colorbar(image, ax=ax, ticks=[-1, 0, 1], pad=0.03, fraction=0.045)
    return {"cosines": image}
