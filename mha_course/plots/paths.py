"""The cover of notebook 01: the way from the first token to the last, by recurrence and by attention."""

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

from mha_course.plots.style import COLOURS, STYLE, figure


@rc_context(STYLE)
def chain_and_hop(n: int = 8) -> Figure:
    """Draw n tokens twice: joined by a chain of n - 1 steps, and by one hop from the last to each.

    Args:
        n: number of tokens, at least 2.

    Returns:
        The figure.

    Raises:
        ValueError: n is smaller than 2.
    """
    if n < 2:
        raise ValueError(f"n must be at least 2, got {n}")
    fig, axes = figure(2, 1, size=(8, 3.9), height_ratios=(1.25, 2.2))
    for ax, title in zip(
        axes,
        (f"recurrence: {n - 1} steps, one after the other", "attention: one hop, all at once"),
        strict=True,
    ):
        _tokens(ax, n)
        ax.set(title=title, xlim=(-0.6, n - 0.4), aspect="equal")
        ax.set_axis_off()
    for i in range(n - 1):
        _arrow(axes[0], i, i + 1, COLOURS[1], width=2.2, bend=0, gap=16)
    axes[0].set_ylim(-0.75, 0.5)
    for i in range(n - 1):
        wanted = i == 0
        colour = COLOURS[0] if wanted else "0.75"
        _arrow(axes[1], i, n - 1, colour, width=2.8 if wanted else 1.2, bend=-0.28, gap=14)
    axes[1].set_ylim(-0.75, 1.45)
    return fig


def _tokens(ax: Axes, n: int) -> None:
    for i in range(n):
        face = COLOURS[4] if i == 0 else "0.88"
        ax.add_patch(Circle((i, 0), 0.22, facecolor=face, edgecolor="0.4", zorder=3))
        ax.text(i, -0.5, f"{i + 1}", ha="center", va="center", fontsize=10)
    ax.text(0, 0, "!", ha="center", va="center", weight="bold", zorder=4)
    ax.text(n - 1, 0, "?", ha="center", va="center", weight="bold", zorder=4)


def _arrow(ax: Axes, start: float, end: float, colour: str, *, width: float, bend: float, gap: float) -> None:
    ax.add_patch(
        FancyArrowPatch(
            (start, 0),
            (end, 0),
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>",
            mutation_scale=14,
            shrinkA=gap,
            shrinkB=gap,
            color=colour,
            linewidth=width,
            zorder=2 + 0.1 * width,
        )
    )
