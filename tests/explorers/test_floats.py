"""The explorer `floats`: bits, neighbours, spacing and both softmaxes, against counts by hand and PyTorch's types."""

import itertools
import math
import struct
from functools import cache as cached
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from mha_course import explorers, plots
from mha_course.explorers import _floats as floats
from mha_course.explorers import _floats_state as states
from mha_course.plots.written import outlines
from tests.explorers.panel import expect_every_value_to_change_the_picture

START = {control.name: control.start for control in floats.CONTROLS}
SIZE = (8, 5.6)
MINUS = "\u2212"
ROUNDED = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8 e4m3": torch.float8_e4m3fn,
    "float8 e5m2": torch.float8_e5m2,
}


def state(**moved: object) -> states.State:
    return floats.compute(**(START | moved))


def rows(one: states.State) -> dict[str, str]:
    return dict(floats.readout(one).rows)


@cached
def figure() -> Figure:
    return plots.blank(SIZE)


def drawn(one: states.State) -> SimpleNamespace:
    """What the explorer draws, always in the same figure: nothing of the state before may be left."""
    floats.draw(figure(), one)
    return figure().mha_course_parts


def words(artist: object, candidates: list[str], font: object = floats.MIDDLE) -> list[str]:
    """What is written, as one of the candidates each."""
    named = {id(path): word for word, path in zip(candidates, outlines(candidates, font), strict=True)}
    return [named.get(id(path), "?") for path in artist.get_paths()]


def test_the_start_is_a_tenth() -> None:
    one = state()
    assert one.x == 0.1
    whole = "".join(one.bits[floats.NAMES.index("float32")])
    assert int(whole, 2) == struct.unpack(">I", struct.pack(">f", 0.1))[0]
    half = "".join(one.bits[floats.NAMES.index("float16")])
    assert int(half, 2) == struct.unpack(">H", struct.pack(">e", 0.1))[0]
    found = rows(one)
    assert found["number"] == "0.1"
    assert found["held as"] == "0.099976"
    assert found["relative error"] == "0.024 %"
    assert found["spacing here"] == "6.1e\u22125"  # 2^-14
    assert found["float16"] == "5 + 10 bits"
    assert found["largest"] == "65504"
    assert found["smallest"] == "5.96e\u22128"
    assert found["sum of exp(s)"] == "inf"
    assert found[f"sum of exp(s {MINUS} max)"] == "1.57"


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize(("factor", "power"), [(1.6, -4), (-1.35, 3), (1.95, 20), (1.05, -30), (0.0, 0), (-1.1, -15)])
def test_what_is_held_is_what_torch_holds(name: str, factor: float, power: float) -> None:
    one = state(format=name, factor=factor, power=power)
    wanted = torch.tensor(factor * 2.0**power).to(ROUNDED[name]).double().item()
    assert one.line.nearest == wanted
    assert one.held[floats.NAMES.index(name)] == wanted


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ({}, "float16 rounds this number; what it holds is normal. exp of the scores overflows: infinity / infinity"),
        ({"factor": 1.5}, "float16 holds this number exactly."),
        ({"factor": 0.0}, "float16 holds 0 exactly."),
        ({"power": -30}, "This number is too small for float16: 0 is left of it."),
        ({"power": -16, "factor": 1.05}, "float16 rounds this number; what it holds is subnormal, with fewer digits."),
        ({"power": 20}, "This number is too large for float16: it becomes infinity."),
        ({"power": 20, "factor": -1.0}, "This number is too large for float16: it becomes infinity."),
        ({"power": 12, "format": "float8 e4m3"}, "This number is too large for float8 e4m3: it becomes 448."),
        ({"top": -30}, "exp of all scores is 0, and 0 / 0 is NaN. With the maximum subtracted, the largest exp is 1."),
        ({"top": 11, "apart": 0}, "Each exp is finite, but their sum overflows, and all weights become 0."),
        ({"top": 2}, "Neither overflows: the weights agree with and without the maximum, up to rounding."),
        ({"top": 9, "format": "float8 e4m3"}, "exp of the scores, or their sum, stops at 448, the largest number"),
        ({"top": -15}, "Few digits of exp are left: the weights differ by up to 0."),
    ],
)
def test_what_a_state_means(moved: dict[str, object], said: str) -> None:
    assert said in floats.readout(state(**moved)).sentence


@pytest.mark.parametrize(
    ("top", "apart", "same"), [(80, 0.2, True), (100, 0.2, True), (100, 0.5, False), (2, 0.1, False), (2, 0, False)]
)
def test_scores_that_become_one_are_named(top: float, apart: float, same: bool) -> None:
    sentence = floats.readout(state(format="bfloat16", top=top, apart=apart)).sentence
    assert sentence.endswith(" Different scores are held as the same number.") == same
    assert not sentence.endswith(" ")


@pytest.mark.parametrize(("name", "top", "overflows"), [("float16", 11, False), ("float16", 12, True)])
def test_where_exp_overflows(name: str, top: float, overflows: bool) -> None:
    assert math.isinf(state(format=name, top=top).plain.exponentials[0].item()) == overflows
    for other in ("float32", "bfloat16"):
        assert math.isfinite(state(format=other, top=88).plain.exponentials[0].item())
        assert math.isinf(state(format=other, top=89).plain.exponentials[0].item())


def test_the_softmax_of_float32_is_that_of_torch() -> None:
    one = state(format="float32", top=20, apart=0.5)
    wanted = torch.softmax(torch.tensor(one.scores), -1)
    for steps in (one.plain, one.less):
        torch.testing.assert_close(steps.weights, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(one.scores, [20, 19.5, 19, 18.5, 18])


@pytest.mark.parametrize("name", floats.NAMES)
def test_the_cells(name: str) -> None:
    one = state(format=name, factor=-1.35)
    parts = drawn(one)
    colours = parts.cells.get_facecolor().reshape(6, 32, -1)[..., :3]
    for row, (other, fields) in enumerate(zip(floats.NAMES, one.bits, strict=True)):
        strength = 1 if other == name else floats.PALE
        kinds = [colour for colour, field in zip(floats.FIELDS, fields, strict=True) for _ in field]
        for i in range(32):
            wanted = strength * np.array(to_rgb(kinds[i])) + 1 - strength if i < len(kinds) else np.ones(3)
            np.testing.assert_allclose(colours[row, i], wanted, atol=1e-12)
    written = words(parts.digits, ["0", "1"], floats.MONO)
    assert "".join(written) == "".join("".join(fields) for fields in one.bits)
    places = parts.digits.get_offsets()
    assert [(x, y) for x, y in places] == [
        (i + 0.5, row) for row, fields in enumerate(one.bits) for i in range(len("".join(fields)))
    ]
    (_,), (row,) = parts.chosen.get_data()
    assert row == floats.NAMES.index(name)
    labels = [text.get_text() for text in parts.cells.axes.texts]
    assert labels == list(floats.NAMES)


def test_the_legend_names_the_fields() -> None:
    legend = drawn(state()).cells.axes.get_legend()
    named = {
        text.get_text(): patch.get_facecolor()[:3]
        for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True)
    }
    assert named == dict(zip(("sign", "exponent", "fraction"), map(to_rgb, floats.FIELDS), strict=True))


def test_the_line_is_true_to_scale() -> None:
    parts = drawn(state(factor=1.0, power=0, format="float16"))  # half as far below 1 as above it
    marks, _ = parts.marks.get_data()
    np.testing.assert_allclose(marks, [0, 1 / 3, 1])
    (x,), _ = parts.number.get_data()
    assert x == pytest.approx(1 / 3)
    parts = drawn(state())
    below, nearest, above = state().line
    (x,), _ = parts.number.get_data()
    assert x == pytest.approx((0.1 - below) / (above - below))
    said = [states.say(value, state().form) for value in (below, nearest, above)]
    assert said == ["0.099915", "0.099976", "0.10004"]
    assert words(parts.values, said) == said
    marks, _ = parts.marks.get_data()
    assert [tuple(place) for place in parts.values.get_offsets()] == list(zip(marks, (-1, -2, -1), strict=True))


@pytest.mark.parametrize(
    ("name", "factor", "power", "wanted", "said"),
    [
        ("float16", 1.9, 20, 0.25, ["65504", "inf", "none"]),
        ("float16", -1.9, 20, 0.75, ["none", f"{MINUS}inf", f"{MINUS}65504"]),
        ("float8 e4m3", 1.9, 20, 1.08, ["416", "448", "none"]),
        ("float8 e4m3", -1.9, 20, -0.08, ["none", f"{MINUS}448", f"{MINUS}416"]),
    ],
)
def test_the_line_beyond_the_largest(name: str, factor: float, power: float, wanted: float, said: list[str]) -> None:
    parts = drawn(state(format=name, factor=factor, power=power))
    marks = [place for place, word in zip((0, 0.5, 1), said, strict=True) if word != "none"]
    assert list(parts.marks.get_data()[0]) == marks
    (x,), _ = parts.number.get_data()
    assert x == pytest.approx(wanted)
    assert words(parts.values, said) == said


@pytest.mark.parametrize("name", floats.NAMES)
def test_the_spacing(name: str) -> None:
    one = state(format=name, factor=-1.25, power=-2)
    parts = drawn(one)
    xs, ys = parts.curve.get_data()
    for x, y in list(zip(xs, ys, strict=True))[::53]:
        if x > one.form.largest:
            assert math.isnan(y)
            continue
        octave = max(2.0 ** math.floor(math.log2(x)), one.form.smallest_normal)
        assert y == pytest.approx(octave * one.form.epsilon / x)
    (x,), (y,) = parts.point.get_data()
    assert (x, y) == (0.3125, pytest.approx(one.form.epsilon / 1.25))
    assert parts.curve.axes.get_ylim()[0] <= min(ys[~np.isnan(ys)])


@pytest.mark.parametrize("moved", [{"factor": 0.0}, {"power": 20}])
def test_no_point_where_there_is_no_relative_spacing(moved: dict[str, object]) -> None:
    _, (y,) = drawn(state(**moved)).point.get_data()
    assert math.isnan(y)


@pytest.mark.parametrize(
    ("moved", "less", "plain"),
    [
        ({}, [], ["NaN", "0", "0", "0", "0"]),
        ({"top": -30}, [], ["NaN"] * 5),
        ({"top": 11, "apart": 0}, [], ["0"] * 5),
        ({"top": 2}, [], []),
        ({"top": 2, "apart": 10}, ["0", "0", "0"], ["0", "0", "0"]),
    ],
)
def test_the_bars(moved: dict[str, object], less: list[str], plain: list[str]) -> None:
    one = state(**moved)
    parts = drawn(one)
    for bars, steps in ((parts.less, one.less), (parts.plain, one.plain)):
        heights = [bar.get_height() for bar in bars]
        np.testing.assert_allclose(heights, steps.weights.nan_to_num(0).numpy())
    assert words(parts.none, ["NaN", "0"]) == [*less, *plain]
    assert len(parts.none.get_offsets()) == len([*less, *plain])


def test_the_table_under_the_bars() -> None:
    said = ["12", "11", "10", "9", "8", "1", "0.368", "0.135", "0.0498", "0.0183"]
    said += ["inf", "5.99e4", "2.2e4", "8.1e3", "2.98e3"]
    parts = drawn(state())
    assert words(parts.table, [*said, "?"])[:15] == said
    assert [text.get_text() for text in parts.table.axes.texts] == ["s, as held", f"exp(s {MINUS} max)", "exp(s)"]
    offsets = parts.table.get_offsets()
    assert [x for x, _ in offsets] == [0, 1, 2, 3, 4] * 3
    assert [y for _, y in offsets[::5]] == [text.get_position()[1] for text in parts.table.axes.texts]


def test_the_table_shows_the_scores_as_they_are_held() -> None:
    said = ["100", "99.5", "99"]  # 0.5 apart
    parts = drawn(state(format="bfloat16", top=100, apart=0.2))
    assert words(parts.table, [*said, "?"])[:5] == ["100", "100", "99.5", "99.5", "99"]


def test_numbers_are_short() -> None:
    assert states.short(-1.25e-12) == f"{MINUS}1.25e{MINUS}12"
    assert states.short(3.5e7) == "3.5e7"
    assert states.short(math.nan) == "NaN"
    assert states.short(-math.inf) == f"{MINUS}inf"
    assert rows(state(format="float32", factor=-1.95))["relative error"].endswith(f"e{MINUS}6 %")
    assert rows(state(power=20))["relative error"] == "infinite"
    assert rows(state(power=20))["spacing here"] == "beyond the largest"
    assert rows(state(factor=0.0))["relative error"] == "0"


@pytest.mark.parametrize("name", floats.NAMES)
def test_neighbours_are_told_apart(name: str) -> None:
    for power in range(floats.LOW, floats.HIGH, 3):
        one = state(format=name, factor=1.95, power=power)
        assert len({states.say(value, one.form) for value in one.line}) == 3


def spans(artist: object, dpi: float) -> list[tuple[float, float]]:
    """From where to where each word reaches, in dots from the left."""
    places = artist.axes.transData.transform(artist.get_offsets())[:, 0]
    boxes = [path.get_extents() for path in artist.get_paths()]
    return [(x + box.x0 * dpi / 72, x + box.x1 * dpi / 72) for x, box in zip(places, boxes, strict=True)]


@pytest.mark.parametrize(
    "moved",
    [
        {"format": "float32", "factor": -1.95, "power": -30},
        {"format": "float32", "factor": -1.95, "power": 10, "apart": 9.5, "top": -81},
        {"format": "bfloat16", "factor": -1.95, "power": -16, "apart": 3.5, "top": -80},
        {"format": "float16", "factor": -1.65, "power": -9},
    ],
)
def test_every_word_is_inside_and_none_meets_another(moved: dict[str, object]) -> None:
    own = plots.blank(SIZE)
    floats.draw(own, state(**moved))
    plots.Painter(own).png()
    parts = own.mha_course_parts
    for artist in (parts.held, parts.values):  # cut off by their axes
        for left, right in spans(artist, own.dpi):
            assert artist.axes.bbox.x0 <= left
            assert right <= artist.axes.bbox.x1
    below, _, above = spans(parts.values, own.dpi)
    assert below[1] + 8 < above[0]
    table = spans(parts.table, own.dpi)
    assert max(right for _, right in table) <= own.bbox.x1
    labels = [text.get_window_extent().x1 for text in parts.table.axes.texts]
    for row, label in enumerate(labels):
        edges = [(-math.inf, label), *table[5 * row : 5 * row + 5]]
        assert all(one[1] + 2 < other[0] for one, other in itertools.pairwise(edges))


def test_every_control_changes_the_picture() -> None:
    expect_every_value_to_change_the_picture(explorers.floats(), [1, 2])


def test_a_picture_does_not_depend_on_what_was_drawn_before() -> None:
    start = state(format="float32", factor=-1.5, top=100)
    end = state(format="float8 e5m2", power=20, top=2)
    pictures = []
    for shown in ([end], [start, end]):
        own = plots.blank(SIZE)
        painter = plots.Painter(own)
        for one in shown:
            floats.draw(own, one)
            picture = painter.png()
        pictures.append(picture)
    assert pictures[0] == pictures[1]
