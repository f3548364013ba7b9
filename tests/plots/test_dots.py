"""One dot for each value: all are there, in their column, and what is missing is said."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from mha_course import plots
from tests.plots.drawn import overlapping, texts_outside

NAN = float("nan")
LABELS = ["none", "root"]
GROUPS = {"S = 16": [[3.0, 1.0, 8.0], [2.0, 2.0]], "S = 32": [[NAN, 9.0, NAN], [NAN]]}


def drawn(**options: object) -> Figure:
    return plots.dots(LABELS, GROUPS, ylabel="steps", **options)


def points(fig: Figure) -> list[tuple[float, float]]:
    return sorted((round(float(x)), float(y)) for line in fig.axes[0].lines for x, y in line.get_xydata())


def test_every_value_is_a_dot_over_its_label() -> None:
    fig = drawn()
    assert points(fig) == [(0, 1.0), (0, 3.0), (0, 8.0), (0, 9.0), (1, 2.0), (1, 2.0)]
    assert [label.get_text() for label in fig.axes[0].get_xticklabels()] == LABELS
    assert fig.axes[0].get_ylabel() == "steps"


def test_groups_stand_side_by_side_in_their_colours() -> None:
    first, second, third = fig_lines = drawn().axes[0].lines
    assert (first.get_color(), third.get_color()) == plots.COLOURS[:2]
    assert first.get_xdata().max() < third.get_xdata().min() < 0.5 < second.get_xdata().min()
    assert first.get_marker() != third.get_marker()
    assert len(fig_lines) == 3


def test_dots_of_one_column_do_not_lie_on_each_other() -> None:
    x = plots.dots(["a"], {"": [[5.0] * 7]}, ylabel="y").axes[0].lines[0].get_xdata()
    assert len(set(x)) == 7
    assert x.min() > -0.4
    assert x.max() < 0.4


def test_a_bar_marks_the_median() -> None:
    bars = drawn().axes[0].collections
    assert [float(bar.get_segments()[0][0, 1]) for bar in bars] == [3, 2, 9]


def test_what_is_missing_is_counted() -> None:
    assert [text.get_text() for text in drawn().axes[0].texts] == ["2 never", "1 never"]


def test_small_values_stand_on_the_floor() -> None:
    fig = plots.dots(["a"], {"": [[0.0, 1e-30, 1.0]]}, ylabel="y", yscale="log", floor=1e-8)
    assert sorted(fig.axes[0].lines[0].get_ydata()) == [1e-8, 1e-8, 1.0]
    assert float(fig.axes[0].collections[0].get_segments()[0][0, 1]) == 1e-8
    assert fig.axes[0].get_yscale() == "log"


def test_legend_names_each_group_once_and_one_group_needs_none() -> None:
    fig = drawn()
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["S = 16", "S = 32"]
    assert plots.dots(LABELS, {"S = 16": GROUPS["S = 16"]}, ylabel="steps").legends == []


@pytest.mark.parametrize("yscale", ["linear", "log"])
def test_all_can_be_read(yscale: str) -> None:
    many = np.random.default_rng(0).lognormal(size=(6, 300))
    names = ["4", "16", "64", "256", "1024", "4096"]
    fig = plots.dots(names, {"no scale": many, "scaled": many}, ylabel="norm", xlabel="width", yscale=yscale)
    for one in (fig, drawn(limits=(0, 12))):
        assert texts_outside(one) == []
        assert overlapping(one) == []


def test_options_and_order() -> None:
    fig = drawn(limits=(0, 12), xlabel="rule")
    (ax,) = fig.axes
    assert (ax.get_ylim(), ax.get_xlabel()) == ((0, 12), "rule")
    assert all(abs(x - round(x)) < 0.4 for line in ax.lines for x in line.get_xdata())
    one, two = (plots.dots(["a"], {"": [range(50)]}, ylabel="y").axes[0].lines[0] for _ in range(2))
    assert list(one.get_xdata()) == list(two.get_xdata())
    assert (np.diff(one.get_xdata()) < 0).any()
    assert one.get_markersize() < ax.lines[0].get_markersize()
    assert len(plots.dots(["a"], {str(i): [[1.0]] for i in range(7)}, ylabel="y").axes[0].lines) == 7


def test_missing_everywhere_can_still_be_read() -> None:
    nothing = {name: [[NAN] * 3] * 4 for name in ("one", "two", "three")}
    for groups in (nothing, nothing | {"four": [[1.0, 2.0]] * 4}):
        fig = plots.dots(["0.001", "0.003", "0.01", "0.03"], groups, ylabel="steps")
        assert overlapping(fig) == []
        assert [text.get_text() for text in fig.legends[0].get_texts()] == list(groups)


@pytest.mark.unchecked
def test_bad_axes() -> None:
    with pytest.raises(ValueError, match=r"^labels must hold at least one name$"):
        plots.dots([], {"a": []}, ylabel="y")
    with pytest.raises(ValueError, match=r"^floor must be above 0 on a log axis, got 0$"):
        plots.dots(["a"], {"a": [[1.0]]}, ylabel="y", yscale="log", floor=0)
    with pytest.raises(ValueError, match=r"^'a' must hold finite values, above 0 on a log axis$"):
        plots.dots(["a"], {"a": [[0.0]]}, ylabel="y", yscale="log")


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        ({}, r"^groups must hold at least one group of dots$"),
        ({"a": [[1.0]]}, r"^'a' must have 2 lists of values, got 1$"),
        ({"a": [[1.0], [float("inf")]]}, r"^'a' must hold finite values$"),
    ],
)
def test_bad_input(groups: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        plots.dots(LABELS, groups, ylabel="y")
