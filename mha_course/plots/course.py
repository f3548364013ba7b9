"""The map of the course: twenty questions in four rows."""

import textwrap
from collections.abc import Collection

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from mha_course.plots.style import COLOURS, STYLE, figure

ROWS = {
    "the mechanism": (
        "Start here",
        "Why attention?",
        "What does a dot product see?",
        "Why divide by the root of d_k?",
        "Who may look at whom?",
    ),
    "order, heads,\nbeing right": (
        "How does it know the order?",
        "What if only the distance counts?",
        "Why many heads?",
        "What holds attention up?",
        "It learns. Is it right?",
    ),
    "memory,\nlength, bits": (
        "Same numbers, less memory",
        "When the sequence is long",
        "One token at a time",
        "Half the bits",
        "Eight bits and fewer",
    ),
    "at work": (
        "Where does the time go?",
        "Does it read?",
        "Does it forecast?",
        "What do real heads do?",
        "Open questions, tested small",
    ),
}


@rc_context(STYLE)
def course_map(ready: Collection[int]) -> Figure:
    """Draw the twenty lessons, filled if they are there and dashed if they are planned.

    Args:
        ready: numbers of the lessons that are there.

    Returns:
        The figure.
    """
    fig, ax = figure(size=(8, 4.2))
    for row, (name, titles) in enumerate(ROWS.items()):
        colour = COLOURS[row]
        ax.text(-0.1, -row, name, ha="right", va="center", color=colour, weight="bold", fontsize=10)
        for column, title in enumerate(titles):
            number = 5 * row + column
            _box(ax, column, -row, f"{number:02}", title, colour, ready=number in ready)
    ax.set(xlim=(-1.05, 5), ylim=(-3.55, 0.55))
    ax.set_axis_off()
    return fig


def _box(ax: Axes, x: float, y: float, number: str, title: str, colour: str, *, ready: bool) -> None:
    box = FancyBboxPatch(
        (x + 0.06, y - 0.38),
        0.88,
        0.76,
        boxstyle="round,pad=0,rounding_size=0.06",
        edgecolor=colour,
        facecolor=colour if ready else "white",
        linestyle="-" if ready else "--",
        linewidth=1.5,
    )
    ax.add_patch(box)
    ink = "white" if ready else "0.25"
    ax.text(x + 0.12, y + 0.32, number, color=ink, weight="bold", fontsize=10, va="top")
    lines = textwrap.fill(title, 14)
    ax.text(x + 0.12, y + 0.14, lines, color=ink, fontsize=9, va="top", linespacing=1.15)
