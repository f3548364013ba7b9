"""Explorer `geometry`: every value of every control, without a kernel."""

import io
import itertools
import math
from typing import Any

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.figure import Figure
from PIL import Image

from mha_course import plots
from mha_course.explorers import _geometry, geometry
from mha_course.explorers.base import Slider
from tests.plots.drawn import texts_outside

CONTROLS = {control.name: control for control in _geometry.CONTROLS}
FIRST = {name: float(c.start) if isinstance(c, Slider) else c.start for name, c in CONTROLS.items()}
EXTREMES = {name: (control.values()[0], control.values()[-1]) for name, control in CONTROLS.items()}
SIZE = (8, 3.4)


def state(**changes: Any) -> _geometry.State:
    return _geometry.compute(**{**FIRST, **changes})


def drawn(state: _geometry.State) -> Figure:
    figure = plots.blank(SIZE)
    _geometry.draw(figure, state)
    return figure


def check(controls: dict[str, Any], figure: Figure) -> _geometry.Readout:
    """Compute, draw and read out one state, and compare all of it with the formula."""
    got = _geometry.compute(**controls)
    _geometry.draw(figure, got)
    readout = _geometry.readout(got)

    def vector(angle: float, length: float) -> np.ndarray:
        return np.array([length * math.cos(math.radians(angle)), length * math.sin(math.radians(angle))])

    q = vector(controls["q_angle"], controls["q_length"])
    keys = np.stack([vector(controls[f"{name}_angle"], controls[f"{name}_length"]) for name in "abc"])
    exponentials = [math.exp(key @ q / controls["temperature"]) for key in keys]
    weights = np.array(exponentials) / sum(exponentials)
    np.testing.assert_allclose(got.q, q, atol=1e-12)
    np.testing.assert_allclose(got.keys, keys, atol=1e-12)
    np.testing.assert_allclose(got.scores, keys @ q, atol=1e-12)
    np.testing.assert_allclose(got.weights, weights, rtol=1e-9, atol=1e-12)
    assert abs(got.weights.sum() - 1) < 1e-12
    np.testing.assert_allclose(got.out, weights @ _geometry.VALUES, atol=1e-12)
    for i, name in enumerate("abc"):
        if controls["q_length"] == 0 or controls[f"{name}_length"] == 0:
            assert np.isnan(got.cosines[i])
            assert readout.rows[i + 1][2] == "none"
        else:
            between = math.radians(controls["q_angle"] - controls[f"{name}_angle"])
            assert abs(got.cosines[i] - math.cos(between)) < 1e-12
            assert float(readout.rows[i + 1][2]) == pytest.approx(math.cos(between), abs=0.00501)
        length, score, weight = (float(readout.rows[i + 1][column]) for column in (1, 3, 4))
        assert length == pytest.approx(controls[f"{name}_length"], abs=0.00501)
        assert score == pytest.approx(keys[i] @ q, abs=0.00501)
        assert weight == pytest.approx(weights[i], abs=0.000501)

    plane, bars, triangle = figure.axes
    arrows = {len(c.U): np.stack([c.U, c.V], axis=1) for c in plane.collections}
    np.testing.assert_allclose(arrows[1][0], q, atol=1e-12)
    np.testing.assert_allclose(arrows[3], keys, atol=1e-12)
    np.testing.assert_allclose([bar.get_height() for bar in bars.patches], weights, atol=1e-9)
    assert [text.get_text() for text in bars.texts] == [f"{weight:.2f}" for weight in weights]
    np.testing.assert_allclose(np.ravel(triangle.lines[-1].get_data()), weights @ _geometry.VALUES, atol=1e-9)
    return readout


def readouts_of_every_value() -> list[_geometry.Readout]:
    figure = plots.blank(SIZE)
    return [check({**FIRST, name: value}, figure) for name, c in CONTROLS.items() for value in c.values()]


def test_every_value_of_every_control() -> None:
    readouts = readouts_of_every_value()
    assert len(readouts) == 4 * 73 + 4 * 31 + 50 + 3
    for readout in readouts:
        assert [len(row) for row in readout.rows] == [5] * 4
        assert [row[0] for row in readout.rows] == ["key", "A", "B", "C"]
        assert not {"nan", "inf"} & set(readout.text().lower().replace(".", " ").split())
    # the panel does not jump: every column is as wide as it was, give or take a sign
    for column in range(5):
        widths = {len(row[column]) for readout in readouts for row in readout.rows[1:]}
        assert max(widths) - min(widths) <= 1, (column, widths)
    sentences = {len(readout.sentence) for readout in readouts}
    assert max(sentences) - min(sentences) <= 20
    assert max(sentences) <= 90


def test_all_pairs_of_extremes() -> None:
    figure = plots.blank(SIZE)
    for a, b in itertools.combinations(CONTROLS, 2):
        for x, y in itertools.product(EXTREMES[a], EXTREMES[b]):
            check({**FIRST, a: x, b: y}, figure)


def test_all_extremes_at_once() -> None:
    figure = plots.blank(SIZE)
    lengths = [name for name in CONTROLS if name.endswith("length")]
    for values in itertools.product((0.0, 3.0), repeat=4):
        for temperature, angle in itertools.product(EXTREMES["temperature"], (-180.0, 0.0, 180.0)):
            check(
                {**FIRST, **dict(zip(lengths, values, strict=True)), "temperature": temperature, "q_angle": angle},
                figure,
            )


def test_no_negative_zero_is_written() -> None:
    assert not any(cell == "-0.00" for readout in readouts_of_every_value() for row in readout.rows for cell in row)


def test_sentence_says_whether_the_worst_aligned_key_wins() -> None:
    solved = _geometry.readout(
        state(a_angle=170.0, a_length=0.1, b_angle=90.0, b_length=3.0, c_angle=95.0, c_length=1.0)
    )
    assert solved.sentence.startswith("Worst aligned: A. Largest weight: B.")
    assert solved.sentence.endswith("not solved.")
    # behind, all of them, and A both the most and the shortest
    solved = _geometry.readout(
        state(a_angle=180.0, a_length=0.1, b_angle=120.0, b_length=3.0, c_angle=120.0, c_length=3.0)
    )
    assert solved.sentence == "Worst aligned: A. Largest weight: A. Task, let the worst aligned key win: solved."
    alike = {f"{key}_angle": 40.0 for key in "abc"} | {f"{key}_length": 1.0 for key in "abc"}
    tie = _geometry.readout(state(**alike))
    assert tie.sentence == "Worst aligned: tie. Largest weight: tie. Task, let the worst aligned key win: not solved."
    nothing = _geometry.readout(state(q_length=0.0))
    assert nothing.sentence == "A vector of length 0 has no direction, so no cosine; its score is 0."
    assert _geometry.readout(state(b_length=0.0)).sentence == nothing.sentence


def test_first_state_is_what_the_alternative_text_says() -> None:
    first = state()
    assert first.weights.argmax() == 0
    assert first.cosines.argmax() == 0


def test_compute_is_pure() -> None:
    once, values, style = state(q_angle=35.0), _geometry.VALUES.copy(), dict(rcParams)
    for name, ends in EXTREMES.items():
        for end in ends:
            drawn(state(**{name: end}))
    again = state(q_angle=35.0)
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(_geometry.VALUES, values)
    assert dict(rcParams) == style


@pytest.mark.parametrize("guided", "ABC")
@pytest.mark.parametrize("q_angle", [-180.0, -75.0, 0.0, 20.0, 90.0])
def test_guides_hold_what_they_promise(guided: str, q_angle: float) -> None:
    now = state(guides=guided, q_angle=q_angle, b_length=0.7)
    key = now.keys["ABC".index(guided)]
    lines = {line.get_linestyle(): np.stack(line.get_data(), axis=1) for line in drawn(now).axes[0].lines}
    same_score, same_cosine = lines["--"], lines[":"]

    np.testing.assert_allclose(same_score @ now.q, [key @ now.q] * 2, atol=1e-9)  # perpendicular to q, through the key
    np.testing.assert_allclose(same_score.mean(0), key, atol=1e-9)
    assert np.linalg.norm(same_score[1] - same_score[0]) > 4 * _geometry.REACH  # reaches the edges of the plane

    np.testing.assert_allclose(same_cosine[0], [0, 0], atol=1e-12)
    far = same_cosine[1]
    assert abs(far[0] * key[1] - far[1] * key[0]) < 1e-9  # collinear
    assert far @ key > 0  # to the key's side
    assert np.linalg.norm(far) > math.sqrt(2) * _geometry.REACH
    colours = {line.get_color() for line in drawn(now).axes[0].lines}
    assert colours == {_geometry.COLOURS["ABC".index(guided)]}


@pytest.mark.parametrize("changes", [{"q_length": 0.0}, {"a_length": 0.0}, {"q_length": 0.0, "a_length": 0.0}], ids=str)
def test_guides_without_a_direction_are_not_drawn(changes: dict) -> None:
    lines = {line.get_linestyle(): np.stack(line.get_data()) for line in drawn(state(**changes)).axes[0].lines}
    assert np.isnan(lines["--"]).all() == ("q_length" in changes)
    assert np.isnan(lines[":"]).all() == ("a_length" in changes)


STATES = {
    "first": {},
    "turned": {"q_angle": 135.0, "q_length": 3.0, "a_angle": -90.0, "guides": "C"},
    "nothing": {"q_length": 0.0, "a_length": 0.0, "b_length": 0.0, "c_length": 0.0},
    "one wins": {"temperature": 0.1, "q_length": 3.0},
    "corners": {
        "q_angle": 45.0,
        "q_length": 3.0,
        "a_angle": -135.0,
        "b_angle": -45.0,
        "b_length": 3.0,
        "c_length": 3.0,
    },
}


@pytest.mark.parametrize("changes", STATES.values(), ids=STATES)
def test_a_blitted_redraw_equals_a_fresh_full_draw(changes: dict) -> None:
    figure = drawn(state(c_angle=70.0, guides="B"))
    painter = plots.Painter(figure)
    painter.png()
    for controls in ({"q_angle": -100.0, "temperature": 5.0}, changes):
        _geometry.draw(figure, state(**controls))
        blitted = painter.png()

    fresh = drawn(state(**changes))
    for artist in fresh.findobj(lambda artist: artist.get_animated()):
        artist.set(animated=False, zorder=artist.get_zorder() + 100)  # over all that stands still, the frame too
    a, b = (np.asarray(Image.open(io.BytesIO(data))).astype(int) for data in (blitted, plots.png(fresh)))
    assert a.shape == b.shape == (544, 1280, 3)
    assert (np.abs(a - b).max(-1) > 8).sum() == 0


@pytest.mark.parametrize("changes", STATES.values(), ids=STATES)
def test_every_text_lies_inside_the_picture(changes: dict) -> None:
    assert texts_outside(drawn(state(**changes))) == []


def test_through_the_panel_every_control_answers() -> None:
    explorer = geometry()
    assert list(explorer.controls) == list(CONTROLS)
    picture, numbers = bytes(explorer.picture.value), explorer.numbers.value
    for name, ends in EXTREMES.items():
        for end in {*ends} - {FIRST[name]}:
            explorer.controls[name].value = end
            assert explorer.error.value == ""
            assert bytes(explorer.picture.value) != picture, (name, end)
            assert (explorer.numbers.value == numbers) == (name == "guides"), (name, end)
            assert Image.open(io.BytesIO(explorer.picture.value)).size == (1280, 544)
        explorer.controls[name].value = FIRST[name]
        assert (bytes(explorer.picture.value), explorer.numbers.value) == (picture, numbers), name
    explorer.close()


def test_what_is_stored_is_the_same_each_time() -> None:
    bundles = []
    for _ in range(2):
        explorer = geometry()
        bundles.append(explorer._repr_mimebundle_())
        explorer.close()
    (a, meta), (b, _) = bundles
    assert a["image/png"] == b["image/png"]
    assert a["text/plain"] == b["text/plain"]
    assert "Key A points most nearly where the query points, and has the largest weight" in meta["image/png"]["alt"]
    assert meta["image/png"]["alt"] in a["text/plain"]
