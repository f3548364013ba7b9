"""The base of the explorers, with a tiny explorer of our own."""

import base64
import gc
import io
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import ipywidgets as widgets
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from mha_course import plots
from mha_course.explorers import _cells
from mha_course.explorers.base import Choice, Explorer, Readout, Slider

SIZE = (3, 2)
ALT = "A dot at height 1."


def compute(*, x: float, kind: str) -> float:
    if x == 2:
        raise ValueError("no <i>x</i> & 2")
    return x if kind == "plus" else -x


def lay_out(figure: Figure) -> Any:
    ax = figure.subplots()
    ax.set(xlim=(-1, 1), ylim=(-5, 5))
    return ax.plot([0], [0], "o", animated=True)[0]


def draw(figure: Figure, y: float) -> None:
    dot = plots.once(figure, lay_out)
    dot.set_ydata([y])
    if y == 3:
        raise RuntimeError("cannot draw 3")


def readout(y: float) -> Readout:
    if y == 4:
        raise KeyError("cannot read 4")
    return Readout([("y", "<b>"), (f"{y:+.1f}", "a & b")], f"y < 5 is {y < 5}.")


def tiny(**changes: Any) -> Explorer:
    controls = (Slider("x", "the x", 0, 4, 0.5, 1), Choice("kind", "the sign", ("plus", "minus"), "plus"))
    whole = {"title": "Tiny <1>", "controls": controls, "compute": compute, "draw": draw, "readout": readout}
    return Explorer(**{**whole, "alt": ALT, "size": SIZE, **changes})


@pytest.fixture
def explorer() -> Iterator[Explorer]:
    explorer = tiny()
    yield explorer
    explorer.close()


def test_a_slider_snaps_to_its_values() -> None:
    seen = []

    def keep(*, x: float, kind: str) -> float:
        seen.append(x)
        return x

    explorer = tiny(compute=keep, controls=(Slider("x", "the x", -1, 140, 1, 1), Choice("kind", "", ("a",), "a")))
    assert explorer.specification[0].nearest(-5) == -1
    assert explorer.specification[0].nearest(900) == 140
    for sent in (119.99999999999999, 120.00000000000001, -0.9999999999, 140.0):
        explorer.controls["x"].value = sent
    assert seen == [1, 120, 120, -1, 140]
    explorer.close()


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def all_widgets(root: widgets.Widget) -> list[widgets.Widget]:
    return [root, *(w for child in getattr(root, "children", ()) for w in all_widgets(child))]


# Controls


@pytest.mark.parametrize(
    ("low", "high", "step", "start", "match"),
    [
        (0, 3, 0.7, 0, r"^x: steps of 0\.7 must lead from low to high$"),
        (0, 0, 1, 0, r"^x: steps of 1 must lead from low to high$"),
        (3, 0, 1, 0, r"^x: steps of 1 must lead from low to high$"),
        (0, 3, 1, 4, r"^x: start must lie in \[0, 3\]$"),
        (0, 3, 1, -1, r"^x: start must lie in \[0, 3\]$"),
    ],
)
def test_slider_bad_range(low: float, high: float, step: float, start: float, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Slider("x", "x", low, high, step, start)


def test_two_controls_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^every control must have a name of its own$"):
        tiny(controls=(Slider("x", "a", 0, 4, 1, 1), Slider("x", "b", 0, 4, 1, 1)))


def test_slider_values_are_floats_with_exact_ends_and_even_steps() -> None:
    for low, high, step, count in ((0, 3, 0.1, 31), (-180, 180, 5, 73), (0.1, 5, 0.1, 50), (-1, 1, 1 / 3, 7)):
        values = Slider("x", "x", low, high, step, low).values()
        assert {type(value) for value in values} == {float}
        assert (values[0], values[-1], len(values)) == (low, high, count)
        np.testing.assert_allclose(np.diff(values), step, atol=1e-9)
    assert Slider("x", "x", 0, 3, 0.1, 0).values()[3] == 0.3  # not 0.30000000000000004


def test_slider_widget_carries_every_field() -> None:
    widget = Slider("x", "the x", -2, 3, 0.25, 0.5, digits=2).widget()
    assert isinstance(widget, widgets.FloatSlider)
    got = (widget.min, widget.max, widget.step, widget.value, widget.description, widget.readout_format)
    assert got == (-2, 3, 0.25, 0.5, "the x", ".2f")


def test_choice_widget_carries_every_field() -> None:
    choice = Choice("kind", "the sign", ("plus", "minus"), "minus")
    widget = choice.widget()
    assert isinstance(widget, widgets.ToggleButtons)
    assert (widget.options, widget.value, widget.description) == (("plus", "minus"), "minus", "the sign")
    assert choice.values() == ["plus", "minus"]


def test_controls_are_all_in_the_panel_in_order(explorer: Explorer) -> None:
    assert list(explorer.controls) == ["x", "kind"]
    shown = [w for w in all_widgets(explorer) if isinstance(w, widgets.FloatSlider | widgets.ToggleButtons)]
    assert shown == list(explorer.controls.values())
    for part in (explorer.picture, explorer.numbers, explorer.error):
        assert part in all_widgets(explorer)


# Readout


def test_readout_text_is_aligned() -> None:
    readout = Readout([("key", "score"), ("A", "+1.25"), ("long", "0")], "Done.")
    assert readout.text() == "key   score\nA     +1.25\nlong  0\nDone."


def test_readout_html_is_escaped_and_announced() -> None:
    text = readout(1.0).html()
    assert 'aria-live="polite"' in text
    assert text.count("<tr>") == 2
    assert text.count("<th ") == text.count("<td ") == 2
    assert ">&lt;b&gt;</th>" in text
    assert ">a &amp; b</td>" in text
    assert "<p>y &lt; 5 is True.</p>" in text


@pytest.mark.parametrize("rows", [[("a", "b"), ("c",)], [("a",), ("b", "c")]])
def test_readout_with_ragged_rows_is_refused(rows: list) -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        Readout(rows, "").text()


# The panel


def test_moving_a_control_changes_picture_and_numbers(explorer: Explorer) -> None:
    seen = [(explorer.picture.value, explorer.numbers.value)]
    for name, value in (("x", 2.5), ("kind", "minus"), ("x", 0.5)):
        explorer.controls[name].value = value
        seen.append((explorer.picture.value, explorer.numbers.value))
    assert len({picture for picture, _ in seen}) == 4
    assert ["+1.0" in seen[0][1], "+2.5" in seen[1][1], "-2.5" in seen[2][1], "-0.5" in seen[3][1]] == [True] * 4
    explorer.controls["kind"].value = "plus"
    explorer.controls["x"].value = 1
    assert (explorer.picture.value, explorer.numbers.value) == seen[0], "the way there leaves no trace"


def test_the_picture_is_that_of_the_state(explorer: Explorer) -> None:
    explorer.controls["x"].value = 3.5
    figure = plots.blank(SIZE)
    draw(figure, 3.5)
    np.testing.assert_array_equal(pixels(explorer.picture.value), pixels(plots.png(figure)))


def test_only_what_moves_is_drawn_again(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Axes, renderer: Any) -> None:
        raise AssertionError("the axes are drawn again")

    monkeypatch.setattr(Axes, "draw", refuse)
    explorer.controls["x"].value = 3.5
    assert explorer.error.value == ""
    assert "+3.5" in explorer.numbers.value


def test_the_size_never_changes(explorer: Explorer) -> None:
    for value in (0, 4, 2, 1):
        explorer.controls["x"].value = value
        assert pixels(explorer.picture.value).shape == (320, 480, 3)
    assert (explorer.picture.width, explorer.picture.height) == ("300", "200")
    assert explorer.picture.format == "png"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (2, "ValueError: no &lt;i&gt;x&lt;/i&gt; &amp; 2"),
        (3, "RuntimeError: cannot draw 3"),
        (4, "KeyError: &#x27;cannot read 4&#x27;"),
    ],
    ids=["compute", "draw", "readout"],
)
def test_an_exception_is_shown_and_the_next_good_value_clears_it(explorer: Explorer, value: float, said: str) -> None:
    assert explorer.error.value == ""
    explorer.controls["x"].value = 1.5
    picture, numbers = explorer.picture.value, explorer.numbers.value
    assert explorer.error.value == ""
    explorer.controls["x"].value = value
    assert said in explorer.error.value
    assert 'role="alert"' in explorer.error.value
    assert (explorer.picture.value, explorer.numbers.value) == (picture, numbers)
    explorer.controls["x"].value = 0.5
    assert explorer.error.value == ""
    assert "+0.5" in explorer.numbers.value
    explorer.controls["x"].value = 1.5
    assert (explorer.picture.value, explorer.numbers.value) == (picture, numbers)


@pytest.mark.parametrize(("start", "error"), [(2, ValueError), (3, RuntimeError), (4, KeyError)])
def test_a_first_state_that_fails_raises(start: float, error: type[Exception]) -> None:
    with pytest.raises(error, match=str(start)):
        tiny(controls=(Slider("x", "x", 0, 4, 1, start), Choice("kind", "k", ("plus",), "plus")))


def test_a_control_that_compute_does_not_know_raises() -> None:
    with pytest.raises(TypeError, match="'y'"):
        tiny(
            controls=(
                Slider("x", "x", 0, 4, 1, 1),
                Choice("kind", "k", ("plus",), "plus"),
                Slider("y", "y", 0, 1, 1, 0),
            )
        )


# What is stored


def test_the_bundle_carries_the_first_picture_its_alt_and_stable_text(explorer: Explorer) -> None:
    data, metadata = explorer._repr_mimebundle_()
    first = explorer.picture.value
    assert set(data) == {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"}
    assert base64.b64decode(data["image/png"]) == first
    assert data["text/plain"] == f"Tiny <1>\n{ALT}\ny     <b>\n+1.0  a & b\ny < 5 is True."
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    assert metadata == {"image/png": {"alt": ALT, "width": 300, "height": 200}}
    assert explorer.picture.tooltip is None  # ipywidgets 8.1 cannot show an Image that has one
    assert any(
        "<b>Tiny &lt;1&gt;</b>" in getattr(w, "value", "") for w in all_widgets(explorer) if isinstance(w, widgets.HTML)
    )

    explorer.controls["x"].value = 2.5
    assert explorer.picture.value != first
    again, _ = explorer._repr_mimebundle_()
    assert (again["image/png"], again["text/plain"]) == (data["image/png"], data["text/plain"])


def test_two_explorers_store_the_same_and_do_not_share_a_state(explorer: Explorer) -> None:
    other = tiny()
    a, b = explorer._repr_mimebundle_()[0], other._repr_mimebundle_()[0]
    assert (a["image/png"], a["text/plain"]) == (b["image/png"], b["text/plain"])
    other.controls["x"].value = 0
    assert explorer.picture.value != other.picture.value
    assert explorer.controls["x"].value == 1
    other.close()


def test_a_warning_is_not_swallowed() -> None:
    def warns(*, x: float, kind: str) -> float:
        warnings.warn("look here", stacklevel=1)
        return x

    with pytest.warns(UserWarning, match="look here"):
        tiny(compute=warns).close()


# Closing


def test_close_lets_go_of_every_widget_and_of_the_figure() -> None:
    before = len(widgets.widget._instances)
    explorer = tiny()
    figure = weakref.ref(explorer._figure)
    assert len(widgets.widget._instances) > before
    explorer.close()
    gc.collect()
    assert figure() is None
    left = len(widgets.widget._instances) - before
    assert left <= 0, f"{left} widgets are left"
    explorer.close()  # a second time does nothing


class Shell:
    """What the base asks of IPython: the request that runs now."""

    def __init__(self) -> None:
        self.cell: str | None = None
        self.run = ""

    def get_parent(self) -> dict:
        metadata = {} if self.cell is None else {"cellId": self.cell}
        return {"metadata": metadata, "header": {"msg_id": self.run}}


class Counting(widgets.Widget):
    """A widget that counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1
        super().close()


def test_a_cell_that_runs_again_closes_what_it_showed(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell()
    monkeypatch.setattr(_cells, "get_ipython", lambda: shell)
    monkeypatch.setattr(_cells, "_shown", {})
    first, second, third, elsewhere = (Counting() for _ in range(4))

    def show(cell: str | None, run: str, *items: Counting) -> list[int]:
        shell.cell, shell.run = cell, run
        for item in items:
            _cells.shown(item)
        return [item.closed for item in (first, second, third, elsewhere)]

    assert show("a", "1", first, second) == [0, 0, 0, 0]  # two in one run of a cell
    assert show("b", "2", second, elsewhere) == [0, 0, 0, 0]
    assert show("a", "3", third) == [1, 0, 0, 0]  # cell b still shows the second
    assert show("b", "4", first) == [1, 1, 0, 1]
    assert show(None, "5", third) == [1, 1, 0, 1]  # a front end that does not name its cells
    assert show(None, "6", third) == [1, 1, 0, 1]


def test_an_explorer_alive_at_the_end_of_python_says_nothing() -> None:
    code = "from mha_course import explorers; explorer = explorers.geometry()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
