"""From figures to bytes: style, size, redrawing only what moves, and letting go of memory."""

import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from mha_course import plots


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def lay_out(figure: Figure) -> Any:
    ax = figure.subplots()
    ax.set(xlim=(0, 1), ylim=(0, 1), title="still")
    low = ax.axhspan(0.4, 0.6, color=plots.COLOURS[0], animated=True, zorder=5)
    dot = ax.plot([0.5], [0.5], "o", markersize=20, color=plots.COLOURS[1], animated=True, zorder=9)[0]
    text = ax.text(0.5, 0.5, "", animated=True, zorder=12)
    return ax, low, dot, text


def move(figure: Figure, x: float) -> None:
    _, _, dot, text = plots.once(figure, lay_out)
    dot.set_xdata([x])
    text.set_text(f"at {x}")


def moved(x: float) -> Figure:
    figure = plots.blank((3, 2))
    move(figure, x)
    return figure


# figure, blank


def test_figure_has_the_courses_style_and_leaves_no_trace() -> None:
    before = dict(mpl.rcParams)
    fig, ax = plots.figure(size=(5, 3))
    assert isinstance(ax, Axes)
    assert tuple(fig.get_size_inches()) == (5, 3)
    assert fig.get_layout_engine() is not None
    assert not ax.spines["top"].get_visible()
    assert ax.xaxis.label.get_fontsize() == 11
    (line,) = ax.plot([0, 1])
    assert line.get_color() == plots.COLOURS[0]
    assert dict(mpl.rcParams) == before


def test_figure_grid_of_axes() -> None:
    _, axes = plots.figure(2, 3)
    assert axes.shape == (2, 3)
    _, axes = plots.figure(1, 1, squeeze=False)
    assert axes.shape == (1, 1)
    _, (a, b) = plots.figure(1, 2, sharey=True)
    a.set_ylim(3, 4)
    assert b.get_ylim() == (3, 4)


def test_colours_can_be_told_apart_in_grey_and_in_colour() -> None:
    rgb = np.array([mpl.colors.to_rgb(colour) for colour in plots.COLOURS])
    apart = [np.abs(a - b).max() for i, a in enumerate(rgb) for b in rgb[:i]]
    assert len(set(plots.COLOURS)) == 6
    assert min(apart) > 0.15


# png


@pytest.mark.parametrize("size", [(3, 2), (8, 3.4), (4.25, 1.7)])
def test_size_in_css_pixels_and_in_drawn_pixels(size: tuple[float, float]) -> None:
    figure = plots.blank(size)
    assert plots.css_size(figure) == (round(size[0] * 100), round(size[1] * 100))
    height, width, channels = pixels(plots.png(figure)).shape
    assert (width, height, channels) == (round(size[0] * 160), round(size[1] * 160), 3)
    assert plots.css_size(figure) == (round(size[0] * 100), round(size[1] * 100)), "drawing does not change the size"


def test_png_is_the_same_twice_and_depends_on_what_is_drawn() -> None:
    figure = moved(0.3)
    assert plots.png(figure) == plots.png(figure) == plots.png(moved(0.3))
    assert plots.png(moved(0.8)) != plots.png(figure)


def test_png_needs_no_window_system_and_no_pyplot_figure() -> None:
    import matplotlib.pyplot as plt

    plots.png(moved(0.3))
    assert plt.get_fignums() == []


# once


def test_once_lays_out_once_a_figure_in_the_courses_style() -> None:
    calls: list[Figure] = []

    def count(figure: Figure) -> float:
        calls.append(figure)
        return mpl.rcParams["axes.labelsize"]

    a, b = plots.blank(), plots.blank()
    with mpl.rc_context({"axes.labelsize": 30}):
        assert [plots.once(a, count), plots.once(a, count), plots.once(b, count)] == [11, 11, 11]
    assert calls == [a, b]


def test_once_that_fails_is_tried_again() -> None:
    figure = plots.blank()

    def fail(figure: Figure) -> None:
        raise ValueError("not yet")

    with pytest.raises(ValueError, match="not yet"):
        plots.once(figure, fail)
    assert plots.once(figure, lambda figure: 7) == 7


# Painter


def test_a_redraw_equals_a_fresh_draw_of_the_same_state() -> None:
    figure = moved(0.1)
    painter = plots.Painter(figure)
    for x in (0.1, 0.9, 0.35, 0.1):
        move(figure, x)
        np.testing.assert_array_equal(pixels(painter.png()), pixels(plots.png(moved(x))))


def test_a_redraw_equals_a_full_draw_with_nothing_animated() -> None:
    figure = moved(0.1)
    painter = plots.Painter(figure)
    painter.png()
    move(figure, 0.7)
    full = moved(0.7)
    for artist in full.findobj(lambda artist: artist.get_animated()):
        artist.set_animated(False)
    np.testing.assert_array_equal(pixels(painter.png()), pixels(plots.png(full)))


def test_moving_artists_are_drawn_in_their_z_order() -> None:
    def at_the_dot(dot_over_band: bool) -> tuple[int, ...]:
        figure = moved(0.2)
        ax, band, _, text = plots.once(figure, lay_out)
        text.set_text("")
        band.set_zorder(1 if dot_over_band else 99)
        image = pixels(plots.png(figure))
        x, y = ax.transData.transform((0.2, 0.5))  # after the layout
        return tuple(image[image.shape[0] - round(y), round(x)])

    blue, orange = ([round(255 * c) for c in mpl.colors.to_rgb(colour)] for colour in plots.COLOURS[:2])
    np.testing.assert_allclose(at_the_dot(dot_over_band=True), orange, atol=2)
    np.testing.assert_allclose(at_the_dot(dot_over_band=False), blue, atol=2)


def test_what_stands_still_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = moved(0.1)
    painter = plots.Painter(figure)
    painter.png()
    drawn: list[Any] = []
    plain = Axes.draw
    monkeypatch.setattr(Axes, "draw", lambda self, renderer: (drawn.append(self), plain(self, renderer)))
    move(figure, 0.4)
    painter.png()
    assert drawn == []


def test_the_axes_stay_where_they_are_when_a_label_grows() -> None:
    figure, ax = plots.figure(size=(3, 2))
    painter = plots.Painter(figure)
    painter.png()
    before = ax.get_position().bounds
    ax.set_ylabel("a label\nof three\nlines")
    ax.set_title("t", fontsize=40)
    painter.png()
    assert ax.get_position().bounds == before


def test_a_figure_without_moving_parts_is_drawn_whole_each_time() -> None:
    figure, ax = plots.figure(size=(3, 2))
    (line,) = ax.plot([0, 1], [0, 1])
    painter = plots.Painter(figure)
    first = painter.png()
    line.set_ydata([1, 0])
    assert painter.png() != first
    line.set_ydata([0, 1])
    assert painter.png() == first


def test_invisible_moving_parts_are_not_drawn() -> None:
    figure = moved(0.5)
    _, band, dot, text = plots.once(figure, lay_out)
    shown = plots.png(figure)
    for artist in (band, dot, text):
        artist.set_visible(False)
    bare = plots.png(figure)
    assert bare != shown
    assert len(np.unique(pixels(bare).reshape(-1, 3), axis=0)) < len(np.unique(pixels(shown).reshape(-1, 3), axis=0))


# Memory


@pytest.mark.parametrize(
    "make",
    [
        lambda: moved(0.3),
        lambda: plots.figure()[0],
        lambda: plots.heatmap(np.eye(2)),
        lambda: plots.curves([1, 2], {"a": [1, 2]}, xlabel="x", ylabel="y"),
        lambda: plots.bars(["a"], {"a": [1]}, ylabel="y"),
    ],
    ids=["once", "figure", "heatmap", "curves", "bars"],
)
def test_a_figure_is_freed_when_nobody_holds_it(make: Callable[[], Figure]) -> None:
    figure = make()
    painter = plots.Painter(figure)
    painter.png()
    plots.png(figure)
    gone = weakref.ref(figure)
    assert gone() is figure
    del figure, painter
    gc.collect()
    assert gone() is None
