"""An explorer with a fault: a test runs this file's text as a cell of a notebook."""

from types import SimpleNamespace

from matplotlib.figure import Figure

from mha_course import plots
from mha_course.explorers.base import Explorer, Readout, Slider


def compute(*, x: float) -> float:
    if x == 2:
        raise ValueError("no <x> & 2")
    return x


def lay_out(figure: Figure) -> SimpleNamespace:
    ax = figure.subplots()
    ax.set(xlim=(-1, 5))
    return SimpleNamespace(dot=ax.plot([0], [0], "o", animated=True)[0])


def draw(figure: Figure, x: float) -> None:
    plots.once(figure, lay_out).dot.set_xdata([x])


def readout(x: float) -> Readout:
    return Readout([["x"], [f"{x:.0f}"]], "Fine.")


def raises_at_2() -> Explorer:
    return Explorer(
        title="Raises at 2",
        controls=[Slider("x", "the x", 0, 4, 1, 1)],
        compute=compute,
        draw=draw,
        readout=readout,
        alt="A dot.",
        size=(3, 2),
    )
