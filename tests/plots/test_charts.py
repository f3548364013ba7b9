"""The charts: what they show, where they write it, and that it can be read."""

import math
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import tensor

from mha_course import plots
from tests.plots.drawn import overlapping, texts, texts_outside

MATRIX = np.array([[0.1, 0.2, 0.7], [0.9, 0.05, 0.05]])  # T = 2 queries, S = 3 keys


def written(ax: Any) -> dict[tuple[float, float], str]:
    return {text.get_position(): text.get_text() for text in ax.texts}


def ticks(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def legend(fig: Figure) -> list[str]:
    return [text.get_text() for box in fig.legends for text in box.get_texts()]


# heatmap


def test_heatmap_rows_are_queries_from_the_top_and_columns_are_keys() -> None:
    fig = plots.heatmap(MATRIX, queries=["it", "is"], keys=["a", "b", "c"], titles=["one"])
    ax, bar = fig.axes
    (image,) = ax.images
    np.testing.assert_array_equal(image.get_array(), MATRIX)
    assert ax.get_ylim() == (1.5, -0.5)  # row 0 on top
    assert ax.get_xlim() == (-0.5, 2.5)
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left")) == ("key", "query", "one")
    assert (ticks(ax.xaxis), ticks(ax.yaxis)) == (["a", "b", "c"], ["it", "is"])
    assert list(ax.get_yticks()) == [0, 1]
    want = {(s, t): f"{MATRIX[t, s]:.2f}" for t in range(2) for s in range(3)}
    assert written(ax) == want
    assert bar.get_ylabel() == "weight"
    assert image.get_clim() == (0, 1)


def test_heatmap_limits_quantity_and_digits() -> None:
    fig = plots.heatmap(10 * MATRIX, limits=None, quantity="score", digits=0)
    assert fig.axes[0].images[0].get_clim() == pytest.approx((0.5, 9))
    assert fig.axes[1].get_ylabel() == "score"
    assert written(fig.axes[0])[0, 1] == "9"
    fig = plots.heatmap(MATRIX, limits=(-2, 3), digits=None)
    assert fig.axes[0].images[0].get_clim() == (-2, 3)
    assert written(fig.axes[0]) == {}


def test_heatmap_of_several_shares_one_scale() -> None:
    fig = plots.heatmap(np.stack([MATRIX, 3 * MATRIX, MATRIX]), titles=["a", "b", "c"], limits=None)
    *axes, _ = fig.axes
    assert [ax.get_title(loc="left") for ax in axes] == ["a", "b", "c"]
    assert {ax.images[0].get_clim() for ax in axes} == {(0.05, 3 * 0.9)}
    np.testing.assert_array_equal(axes[1].images[0].get_array(), 3 * MATRIX)
    assert [ax.get_ylabel() for ax in axes] == ["query", "", ""]


def test_heatmap_of_scores_with_minus_infinity() -> None:
    scores = np.array([[1.0, -np.inf], [2.0, 4.0]])
    fig = plots.heatmap(scores, limits=None)
    ax = fig.axes[0]
    assert ax.images[0].get_clim() == (1, 4)
    hidden = next(text for text in ax.texts if text.get_position() == (1, 0))
    assert hidden.get_text() == "-inf"
    assert to_rgb(hidden.get_color()) == (0, 0, 0), "a hidden cell is not coloured, so white could not be read"
    assert plots.png(fig)


def test_heatmap_numbers_can_be_read_on_their_colour() -> None:
    fig = plots.heatmap(np.linspace(0, 1, 21).reshape(3, 7))
    ax = fig.axes[0]
    for text in ax.texts:
        s, t = text.get_position()
        cell = ax.images[0].to_rgba(ax.images[0].get_array())[t, s, :3]
        light, dark = sorted((_luminance(cell), _luminance(to_rgb(text.get_color()))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, text.get_text()  # WCAG's contrast for large text


def _luminance(colour: Any) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("n", [1, 12, 13, 40])
def test_heatmap_without_labels_numbers_a_few_rows_one_by_one(n: int) -> None:
    fig = plots.heatmap(np.zeros((n, n)), digits=None)
    if n <= 12:
        assert list(fig.axes[0].get_xticks()) == list(fig.axes[0].get_yticks()) == list(range(n))
    assert texts_outside(fig) == []
    assert overlapping(fig) == []


def test_heatmap_takes_lists_and_tensors() -> None:
    for matrix in (MATRIX.tolist(), tensor(MATRIX), MATRIX.astype(int), MATRIX[None]):
        assert plots.heatmap(matrix).axes[0].images[0].get_array().shape == (2, 3)


@pytest.mark.parametrize(
    ("matrices", "options", "match"),
    [
        (np.zeros(3), {}, r"^matrices must be \(T, S\) or \(n, T, S\), got \(3,\)$"),
        (np.zeros((1, 2, 3, 4)), {}, r"^matrices must be .* got \(1, 2, 3, 4\)$"),
        (MATRIX, {"queries": ["a", "b", "c"]}, r"^queries must have 2 entries, got 3$"),
        (MATRIX, {"keys": ["a", "b"]}, r"^keys must have 3 entries, got 2$"),
        (MATRIX, {"titles": []}, r"^titles must have 1 entries, got 0$"),
        (np.zeros((2, 3, 4)), {"titles": ["a"]}, r"^titles must have 2 entries, got 1$"),
        (np.zeros((2, 0)), {}, r"^matrices must hold a finite number, got \(2, 0\)$"),
        (MATRIX * np.nan, {"limits": None}, r"^matrices must hold a finite number, got \(2, 3\)$"),
    ],
)
def test_heatmap_bad_input(matrices: Any, options: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        plots.heatmap(matrices, **options)


# curves

AXES = {"xlabel": "head width D", "ylabel": "seconds (s)"}


def test_curves_show_means_whiskers_and_guides() -> None:
    repeats = np.array([[1.0, 2, 3], [3.0, 2, 9], [2.0, 5, 3]])
    fig = plots.curves([1, 10, 100], {"many": repeats, "one": [4, 5, 6]}, guides={"rule": [1, 1, 2]}, title="t", **AXES)
    (ax,) = fig.axes
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left")) == ("head width D", "seconds (s)", "t")
    many, one = ax.containers
    np.testing.assert_allclose(many.lines[0].get_xydata(), [[1, 2], [10, 3], [100, 5]])
    whiskers = np.stack(many.lines[2][0].get_segments())
    np.testing.assert_allclose(whiskers, [[[1, 1], [1, 3]], [[10, 2], [10, 5]], [[100, 3], [100, 9]]])
    np.testing.assert_allclose(one.lines[0].get_ydata(), [4, 5, 6])
    assert not one.has_yerr
    assert many.lines[0].get_color() == plots.COLOURS[0] != one.lines[0].get_color() == plots.COLOURS[1]
    assert many.lines[0].get_marker() != one.lines[0].get_marker()
    (guide,) = [line for line in ax.lines if line.get_linestyle() == "--"]
    np.testing.assert_allclose(guide.get_ydata(), [1, 1, 2])
    assert set(legend(fig)) == {"many", "one", "rule"}


def test_a_curve_of_many_points_has_few_markers() -> None:
    for points, markers in ((40, 40), (64, 13)):
        (ax,) = plots.curves(range(points), {"a": range(points)}, **AXES).axes
        line = ax.containers[0].lines[0]
        assert len(range(0, points, line.get_markevery() or 1)) == markers


def test_curves_with_equal_repeats_despite_rounding() -> None:
    # the mean of three times 0.1 is 0.10000000000000002
    fig = plots.curves([1, 2], {"a": [[0.1, 0.7]] * 3}, **AXES)
    whiskers = np.stack(fig.axes[0].containers[0].lines[2][0].get_segments())
    np.testing.assert_allclose(whiskers[:, :, 1], [[0.1, 0.1], [0.7, 0.7]])


def test_curves_scales_and_limits() -> None:
    fig = plots.curves([4, 16, 64], {"a": [1, 2, 3]}, xscale="log", yscale="log", limits=(0.5, 20), **AXES)
    (ax,) = fig.axes
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylim()) == ("log", "log", (0.5, 20))
    assert ax.xaxis.get_minorticklocs().size == 0
    assert list(ax.get_xticks()) == [4, 16, 64]
    assert ticks(ax.xaxis) == ["4", "16", "64"]
    (ax,) = plots.curves([4, 16, 64], {"a": [1, 2, 3]}, **AXES).axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "linear")


def test_curves_more_than_there_are_colours_or_markers_differ() -> None:
    fig = plots.curves([1, 2], {str(i): [i, i] for i in range(6)}, **AXES)
    looks = {(c.lines[0].get_color(), c.lines[0].get_marker()) for c in fig.axes[0].containers}
    assert len(looks) == 6


@pytest.mark.parametrize(
    ("lines", "guides", "match"),
    [
        ({}, {}, r"^lines must hold at least one curve$"),
        ({"a": [1, 2]}, {}, r"^'a' must have 3 values, one for each x, got \(1, 2\)$"),
        ({"b": np.zeros((3, 4))}, {}, r"^'b' must have 3 values, one for each x, got \(3, 4\)$"),
        ({"a": [1, 2, 3]}, {"rule": [1, 2, 3, 4]}, r"^'rule' must have 3 values, one for each x, got \(4,\)$"),
    ],
)
def test_curves_bad_input(lines: dict, guides: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        plots.curves([1, 2, 3], lines, guides=guides, **AXES)


# bars


def test_bars_heights_places_and_written_values() -> None:
    fig = plots.bars(["x", "y", "z"], {"one": [1, 2, 3], "two": [0.5, 0.25, 0.126]}, ylabel="share (1)")
    (ax,) = fig.axes
    assert (ax.get_ylabel(), ticks(ax.xaxis)) == ("share (1)", ["x", "y", "z"])
    one, two = ax.containers
    assert [bar.get_height() for bar in one] == [1, 2, 3]
    assert [bar.get_height() for bar in two] == [0.5, 0.25, 0.126]
    assert [text.get_text() for text in ax.texts] == ["1.00", "2.00", "3.00", "0.50", "0.25", "0.13"]
    assert legend(fig) == ["one", "two"]
    for i, (a, b) in enumerate(zip(one, two, strict=True)):  # side by side around their label
        assert i - 0.5 < a.get_x() < a.get_x() + a.get_width() <= b.get_x() < b.get_x() + b.get_width() < i + 0.5
        assert math.isclose(a.get_x() + b.get_x() + b.get_width(), 2 * i, abs_tol=1e-9)
    assert one[0].get_facecolor() != two[0].get_facecolor()


def test_bars_of_one_group_have_no_legend_and_stand_on_their_labels() -> None:
    fig = plots.bars(["x", "y"], {"only": [1.25, 2]}, ylabel="y", limits=(0, 5), digits=1)
    (ax,) = fig.axes
    assert legend(fig) == []
    assert ax.get_ylim() == (0, 5)
    assert [text.get_text() for text in ax.texts] == ["1.2", "2.0"]
    assert [bar.get_x() + bar.get_width() / 2 for bar in ax.containers[0]] == pytest.approx([0, 1])


def test_bars_bad_input() -> None:
    with pytest.raises(ValueError, match=r"^'two' must have 3 values, got 2$"):
        plots.bars(["x", "y", "z"], {"one": [1, 2, 3], "two": [1, 2]}, ylabel="y")
    with pytest.raises(ValueError, match=r"^groups must hold at least one group of bars$"):
        plots.bars(["x", "y", "z"], {}, ylabel="y")


# All of them

SHORT, LONG = ["the", "cat", "sat"], ["Donaudampfschiff", "the same for all", "[end of sentence]"]


VALUES = [0.2, 1.0, 123.4]

CHARTS: dict[str, Callable[[list[str]], Figure]] = {
    "heatmap": lambda labels: plots.heatmap(
        np.eye(3), queries=labels, keys=labels, titles=[" ".join(labels)[:24]], quantity=labels[0]
    ),
    "heatmaps": lambda labels: plots.heatmap(
        np.stack([np.eye(3)] * 2), queries=labels, titles=[label[:24] for label in labels[:2]]
    ),
    "curves": lambda labels: plots.curves(
        [1, 2, 3], dict.fromkeys(labels, VALUES), xlabel=" ".join(labels), ylabel=labels[0], title=" ".join(labels)
    ),
    "log curves": lambda labels: plots.curves(
        [1, 1000, 1e6], dict.fromkeys(labels, VALUES), xlabel="x", ylabel="y", xscale="log", yscale="log"
    ),
    "bars": lambda labels: plots.bars(labels, dict.fromkeys(labels, VALUES), ylabel=labels[1], digits=0),
    "tall bars": lambda labels: plots.bars(labels, {"a": [1.0, 1.0, 0.5]}, ylabel="y", limits=(0, 1)),
}
each_chart = pytest.mark.parametrize("make", CHARTS.values(), ids=CHARTS)


@each_chart
@pytest.mark.parametrize("labels", [SHORT, LONG], ids=["short", "long"])
def test_every_text_is_inside_the_figure(make: Callable[[list[str]], Figure], labels: list[str]) -> None:
    assert texts_outside(make(labels)) == []


@each_chart
def test_no_text_is_written_over_another(make: Callable[[list[str]], Figure]) -> None:
    fig = make(SHORT)
    assert len(texts(fig)) >= 8
    assert overlapping(fig) == []


@pytest.mark.parametrize("name", ["curves", "log curves", "bars"])
@pytest.mark.parametrize("labels", [SHORT, LONG], ids=["short", "long"])
def test_the_legend_stands_beside_the_axes(name: str, labels: list[str]) -> None:
    fig = CHARTS[name](labels)
    plots.png(fig)
    assert fig.legends[0].get_window_extent().x0 > fig.axes[0].get_window_extent().x1


@each_chart
def test_the_same_chart_gives_the_same_bytes_whatever_the_readers_style(make: Callable[[list[str]], Figure]) -> None:
    before = dict(mpl.rcParams)
    first = plots.png(make(SHORT))
    assert dict(mpl.rcParams) == before
    with mpl.rc_context({"font.size": 20, "axes.grid": False, "lines.linewidth": 7, "axes.labelsize": 30}):
        assert plots.png(make(SHORT)) == first
