"""Explorer `positions`, the clocks: their angles, what counts as unseen, and that the picture shows just that."""

import io
import itertools
import math

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from mha_course import explorers, plots
from mha_course.explorers import _positions_clocks as clocks
from mha_course.positions import sinusoidal
from tests.explorers.panel import expect_every_value_to_change_the_picture
from tests.plots.drawn import overlapping, texts_outside

CONTROLS = {control.name: control for control in clocks.CONTROLS}
START = {control.name: control.start for control in clocks.CONTROLS}
LENGTHS, BASES = CONTROLS["trained"].values(), CONTROLS["base"].values()
SIZE = (8, 3.6)
EVERYWHERE = range(0, 256, 5)  # 16, 32, ... are neither among them nor needed: the edges have a test of their own


def state(**moved: object) -> clocks.State:
    return clocks.compute(**(START | moved))


def rows(**moved: object) -> dict[str, str]:
    return dict(clocks.readout(state(**moved)).rows)


def drawn(*states: clocks.State) -> Figure:
    figure = plots.blank(SIZE)
    for one in states:
        clocks.draw(figure, one)
    return figure


def frequency(i: int, base: float) -> float:
    return base ** (-2 * i / 16)


def test_positions_without_a_mode_are_the_clocks() -> None:
    for explorer, controls in (
        (explorers.positions(), clocks.CONTROLS),
        (explorers.positions("clocks"), clocks.CONTROLS),
    ):
        assert explorer.specification == controls
        explorer.close()
    explorer = explorers.positions("distance")
    assert "scheme" in explorer.controls
    explorer.close()


@pytest.mark.unchecked
def test_there_is_no_third_mode() -> None:
    with pytest.raises(ValueError, match="mode must be 'clocks' or 'distance', got 'hands'"):
        explorers.positions("hands")


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("trained", LENGTHS)
def test_every_hand_and_arc(trained: str, base: str) -> None:
    L = int(trained)
    for p in EVERYWHERE:
        one = state(position=p, trained=trained, base=base)
        for i in range(8):
            speed = frequency(i, float(base))
            hand = math.fmod(p * speed, 2 * math.pi)
            assert one.hands[i] == pytest.approx(hand, abs=1e-9)
            assert one.arcs[i] == pytest.approx(L * speed)
            assert one.periods[i] == pytest.approx(2 * math.pi / speed)
            # the moment, within the first turn, at which the hand first pointed there
            assert one.unseen[i] == (hand / speed >= L and 2 * math.pi / speed > L)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("trained", LENGTHS)
def test_what_was_trained_is_seen_and_the_next_position_is_not(trained: str, base: str) -> None:
    L = int(trained)
    for p in range(L):
        assert not state(position=p, trained=trained, base=base).unseen.any()
    if L < 256:
        slow = [2 * math.pi / frequency(i, float(base)) > L for i in range(8)]
        assert state(position=L, trained=trained, base=base).unseen.tolist() == slow


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("trained", LENGTHS)
@pytest.mark.parametrize("scaling", ["interpolation", "YaRN"])
def test_two_scalings_keep_every_hand_where_it_has_been(scaling: str, trained: str, base: str) -> None:
    for p in range(min(256, 4 * int(trained))):
        assert not state(position=p, trained=trained, base=base, scaling=scaling).unseen.any(), p


def test_ntk_holds_the_slowest_hand_only() -> None:
    unseen = [state(position=p, scaling="NTK").unseen for p in range(256)]
    assert np.flatnonzero(np.any(unseen, axis=0)).tolist() == [3, 4, 5, 6]
    assert [one.any() for one in unseen].index(True) == 116


def test_a_hand_is_seen_at_the_angle_that_four_times_the_length_scales_to_the_edge() -> None:
    # position 4 L, by rounding alone before or behind the angle of L, is the first one beyond
    assert state(position=64, trained="16", scaling="interpolation").unseen[1:].all()
    assert state(position=64, trained="16", scaling="NTK").unseen[7]
    assert not state(position=63, trained="16", scaling="NTK").unseen[7]


def test_scalings() -> None:
    plain = state()
    ratio = {name: state(scaling=name).periods / plain.periods for name in ("interpolation", "NTK", "YaRN")}
    np.testing.assert_allclose(ratio["interpolation"], np.full(8, 4))
    np.testing.assert_allclose(ratio["NTK"], [4 ** (i / 7) for i in range(8)])
    # YaRN: a share of the old speed that falls from 1 at pair 0 to 0 at the first pair with less than a turn
    kept = [max(0, 1 - i / 3) for i in range(8)]
    np.testing.assert_allclose(1 / ratio["YaRN"], [k + (1 - k) / 4 for k in kept])
    for name in ratio:
        np.testing.assert_array_equal(state(scaling=name).arcs, plain.arcs)  # as they ran in training


@pytest.mark.parametrize("base", BASES)
def test_the_table_is_the_sinusoidal_encoding(base: str) -> None:
    table = state(base=base).table
    wanted = sinusoidal(256, 16, base=float(base), dtype=torch.float64)
    np.testing.assert_allclose(table, wanted.numpy(), atol=1e-10)


@pytest.mark.parametrize("moved", [{}, {"scaling": "NTK", "position": 255}, {"base": "10", "position": 7}], ids=str)
def test_hands_point_to_the_numbers_of_the_marked_column(moved: dict) -> None:
    one = state(**moved)
    faces, table, _ = drawn(state(), one).axes
    (hands,) = [c for c in faces.collections if isinstance(c, LineCollection)]
    ends = np.array([end - start for start, end in hands.get_segments()])
    np.testing.assert_allclose(ends / 0.4, one.table[one.position].reshape(8, 2), atol=1e-12)
    np.testing.assert_allclose([start for start, _ in hands.get_segments()], [(i, 0) for i in range(8)])
    assert list(table.lines[0].get_xdata()) == [one.position] * 2
    assert table.texts[0].get_text() == f"p = {one.position}"
    assert table.texts[0].get_position()[0] == pytest.approx(one.position, abs=16)


def test_dimension_0_is_at_the_top_of_the_table_and_fast() -> None:
    one = state()
    table = drawn(one).axes[1]
    (image,) = table.images
    np.testing.assert_allclose(image.get_array(), one.table.T, atol=1e-7)
    top, bottom = table.get_ylim()[::-1]
    assert top < bottom
    assert image.get_extent()[3] == top  # row 0 of the array
    turns = (np.diff(np.sign(image.get_array()), axis=1) != 0).sum(axis=1)
    assert turns[0] > 50
    assert turns[-1] == 0


def test_wrong_hands_have_another_colour_and_width() -> None:
    one = state()
    (hands,) = [c for c in drawn(state(position=0), one).axes[0].collections if isinstance(c, LineCollection)]
    colours = [to_hex(colour) for colour in hands.get_colors()]
    assert colours == [clocks.WRONG.lower() if wrong else "#000000" for wrong in one.unseen]
    assert [width > 3 for width in hands.get_linewidths()] == one.unseen.tolist()


def area(polygon: np.ndarray) -> float:
    x, y = polygon.T
    return abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2


def test_the_blue_part_of_a_face_is_the_arc_that_was_swept() -> None:
    one = state(trained="16")
    coloured = {
        to_hex(*c.get_facecolor()): c for c in drawn(state(), one).axes[0].collections if len(c.get_facecolor())
    }
    blue = [path.vertices[:-1] for path in coloured[clocks.SEEN.lower()].get_paths()]
    shares = [area(part) / (math.pi * 0.4**2) for part in blue]
    np.testing.assert_allclose(shares, np.minimum(one.arcs / (2 * math.pi), 1), rtol=5e-3)
    # it starts at 12 o'clock and goes right
    assert blue[3][1] == pytest.approx((3, 0.4))
    assert blue[3][-1][0] > 3
    # a whole turn has no edge from the centre
    assert np.hypot(*(blue[0] - (0, 0)).T).min() == pytest.approx(0.4)


def test_what_is_written() -> None:
    faces, table, _ = drawn(state(), state(trained="16", base="500000")).axes
    said = [text.get_text() for text in faces.texts]
    assert said[:8] == [f"pair {i}" for i in range(8)]
    assert said[8:] == ["2.5 turns", "0.49 turns", "0.10 turns", "0.02 turns"] + 4 * ["<0.01 turns"]
    (pale,) = table.patches
    assert (pale.get_x(), pale.get_x() + pale.get_width()) == (15.5, 255.5)


def test_trained_on_everything_nothing_is_pale() -> None:
    (pale,) = drawn(state(), state(trained="256")).axes[1].patches
    assert pale.get_width() == 0


def test_readout_by_hand() -> None:
    # pair 3 turns by 10 ** -1.5 a position: 181.2 degrees at 100, 116.0 at 64
    assert rows() == {
        "": "measured",
        "pairs that made a turn within L": "3 of 8",
        "hands where they never were": "5 of 8",
        "farthest past the trained arc": "65° (pair 3)",
        "step of the fastest hand": "57° a position",
        "fastest and slowest period": "6.3, 19,869",
    }
    assert rows(scaling="interpolation") == rows() | {
        "hands where they never were": "0 of 8",
        "farthest past the trained arc": "none",
        "step of the fastest hand": "14° a position",
        "fastest and slowest period": "25.1, 79,477",
    }
    assert rows(base="10")["pairs that made a turn within L"] == "8 of 8"
    assert clocks.readout(state()).sentence == (
        "Position 100, trained on 0 to 63: some hands point where they never did."
    )
    assert clocks.readout(state(position=63)).sentence == (
        "Position 63, trained on 0 to 63: every hand points where it has pointed."
    )


def test_farthest_past_the_arc_is_the_largest_excess_of_a_wrong_hand() -> None:
    for p, L, base in itertools.product(EVERYWHERE, LENGTHS, BASES):
        one = state(position=p, trained=L, base=base)
        said = clocks.readout(one).rows[3][1]
        beyond = {i: math.degrees(one.hands[i] - one.arcs[i]) for i in range(8) if one.unseen[i]}
        if not beyond:
            assert said == "none"
            continue
        worst = max(beyond, key=lambda i: max(beyond[i], 0))  # rounding puts some 1e-14 before the end
        far = "at its end" if beyond[worst] < 0.5 else f"{beyond[worst]:.0f}°"
        assert said == f"{far} (pair {worst})"


def test_a_hand_at_the_end_of_its_arc_is_not_called_0_degrees_past() -> None:
    assert clocks.readout(state(position=16, trained="16", base="10")).rows[3][1] == "at its end (pair 4)"


def test_first_state_is_what_the_alternative_text_says() -> None:
    one = state()
    assert (one.position, one.trained) == (100, 64)
    assert (one.arcs >= 2 * math.pi).tolist() == 3 * [True] + 5 * [False]
    assert one.unseen.tolist() == 3 * [False] + 5 * [True]


STATES = {
    "first": {},
    "start": {"position": 0, "trained": "256"},
    "end": {"position": 255, "trained": "16", "base": "500000", "scaling": "YaRN"},
    "fast": {"position": 244, "base": "10", "scaling": "interpolation"},
}


@pytest.mark.parametrize("moved", STATES.values(), ids=STATES)
def test_texts_lie_inside_the_picture_and_apart(moved: dict) -> None:
    figure = drawn(state(**moved))
    assert texts_outside(figure) == []
    assert overlapping(figure) == []


@pytest.mark.parametrize("moved", STATES.values(), ids=STATES)
def test_a_blitted_redraw_equals_a_fresh_full_draw(moved: dict) -> None:
    figure = drawn(state(position=17, base="1000"))
    painter = plots.Painter(figure)
    painter.png()
    for controls in ({"trained": "256", "scaling": "NTK"}, moved):
        clocks.draw(figure, state(**controls))
        blitted = painter.png()
    fresh = drawn(state(**moved))
    for artist in fresh.findobj(lambda artist: artist.get_animated()):
        artist.set(animated=False, zorder=artist.get_zorder() + 100)  # over all that stands still
    a, b = (np.asarray(Image.open(io.BytesIO(data))).astype(int) for data in (blitted, plots.png(fresh)))
    assert a.shape == b.shape
    assert (np.abs(a - b).max(-1) > 8).sum() == 0


def test_through_the_panel_every_value_of_every_control_changes_the_picture() -> None:
    expect_every_value_to_change_the_picture(explorers.positions(), (0, 99, 101, 255))
