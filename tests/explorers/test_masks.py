"""The explorer `masks`: what each way to apply a mask gives, and that every target can be reached."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from mha_course import plots
from mha_course.explorers import _masks as masks

START = {control.name: control.start for control in masks.CONTROLS} | {"order": "causal"}
WINDOW = START | {"order": "window"}  # the explorer's own start
LOWER = np.tri(8, dtype=bool)


def state(**moved: object) -> masks.State:
    return masks.compute(**(START | moved))


def rows(**moved: object) -> dict[str, str]:
    return dict(masks.readout(state(**moved)).rows)


def drawn(*states: masks.State) -> Figure:
    figure = plots.blank((8, 2.5))
    for one in states:
        masks.draw(figure, one)
    return figure


@pytest.mark.parametrize("order", ["all", "causal", "window", "prefix"])
@pytest.mark.parametrize("real", [0, 5, 8])
@pytest.mark.parametrize("read", [masks.MAY, masks.BLOCKED])
def test_a_right_mask_lets_through_exactly_what_it_says(order: str, real: int, read: str) -> None:
    one = state(order=order, real=real, read=read, first=3)
    np.testing.assert_array_equal(one.leaks, one.mask)
    sees = one.mask.any(axis=1)
    np.testing.assert_allclose(one.weights.sum(axis=1), sees)
    assert (one.weights[~one.mask] == 0).all()


def test_orders() -> None:
    np.testing.assert_array_equal(state(order="all").mask, np.ones((8, 8)))
    np.testing.assert_array_equal(state().mask, LOWER)
    np.testing.assert_array_equal(state(order="window", reach=2).mask, LOWER & ~np.tri(8, k=-2, dtype=bool))
    np.testing.assert_array_equal(state(order="prefix", reach=4).mask, LOWER | (np.arange(8) < 4))


def test_padding_hides_keys_and_documents_are_blocks() -> None:
    np.testing.assert_array_equal(state(order="all", real=6).mask, np.ones((8, 1)) * (np.arange(8) < 6))
    block = np.zeros((8, 8), dtype=bool)
    block[:5, :5] = block[5:, 5:] = True
    np.testing.assert_array_equal(state(order="all", first=5).mask, block)


def test_zero_after_the_softmax_lets_every_key_through() -> None:
    one = state(applied=masks.AFTER)
    assert one.leaks.all()
    assert one.future == 28
    assert (one.weights.sum(axis=1)[:-1] < 1).all()


def test_a_large_number_makes_an_empty_row_the_mean() -> None:
    one = state(real=0, applied=masks.LARGE)
    np.testing.assert_allclose(one.weights, 1 / 8)
    assert one.from_padding == 64
    assert state(applied=masks.LARGE).future == 0


def test_the_other_convention_shows_the_future_alone() -> None:
    one = state(read=masks.BLOCKED)
    np.testing.assert_array_equal(one.mask, ~LOWER)
    assert (one.future, one.name) == (28, "~causal(8)")
    assert rows(read=masks.BLOCKED)["rows that see nothing"] == "1"


def test_padding_that_is_seen_is_counted() -> None:
    assert state(real=5).from_padding == 0
    assert state(real=5, applied=masks.AFTER).from_padding == 3 * 8


@pytest.mark.parametrize("target", masks.TARGETS)
def test_every_target_can_be_reached_and_no_other_solves_it(target: str) -> None:
    solution = masks.TARGETS[target]
    assert masks.readout(masks.compute(**(WINDOW | {"target": target} | solution))).sentence.endswith(": solved.")
    for other, moved in masks.TARGETS.items():
        solved = masks.readout(masks.compute(**(WINDOW | {"target": target} | moved))).sentence.endswith(": solved.")
        assert solved == (other == target)
    assert "pairs must change, they are framed" in masks.readout(state(target=target)).sentence


def test_scores_are_those_that_go_into_the_softmax() -> None:
    plain = state(order="all").scores
    np.testing.assert_allclose(state().scores, np.where(LOWER, plain, -np.inf))
    np.testing.assert_allclose(state(applied=masks.LARGE).scores, np.where(LOWER, plain, -1e9))
    np.testing.assert_allclose(state(applied=masks.AFTER).scores, plain)


def test_minus_infinity_is_drawn_hidden_and_a_large_number_as_the_lowest_score() -> None:
    hidden = np.ma.getmaskarray(drawn(state()).axes[1].images[0].get_array())
    np.testing.assert_array_equal(hidden, ~LOWER)
    large = drawn(state(applied=masks.LARGE)).axes[1].images[0].get_array()
    assert not np.ma.getmaskarray(large).any()
    assert (large[~LOWER] == -1e9).all()


def test_readout() -> None:
    assert rows() == {
        "": "measured",
        "pairs that may attend": "36 of 64",
        "rows that see nothing": "0",
        "sums of the rows of weights": "1.00 to 1.00",
        "pairs in which a row moves": "36",
        "with a key of its future": "0",
        "with a key of the padding": "0",
    }
    assert masks.readout(state()).sentence == "The mask: causal(8)."
    solved = masks.readout(state(target="1", real=6)).sentence
    assert solved == "The mask: causal(8) & padding. Target 1: solved."


def test_the_picture_shows_the_state_and_frames_what_differs() -> None:
    one = state(order="window", reach=2, target="1")
    mask, scores, weights, leaks = drawn(state(target="2"), one).axes
    shown = scores.images[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), ~one.mask)
    np.testing.assert_allclose(shown[one.mask], one.scores[one.mask])
    np.testing.assert_array_equal(mask.images[0].get_array(), one.mask)
    np.testing.assert_allclose(weights.images[0].get_array(), one.weights)
    np.testing.assert_array_equal(leaks.images[0].get_array(), one.leaks)
    assert [text.get_text() for text in weights.texts] == ["1.00"] * 8
    x, y = leaks.lines[0].get_data()
    np.testing.assert_array_equal(sorted(zip(y, x, strict=True)), np.argwhere(one.wanted != one.leaks))
    assert len(drawn(one, state()).axes[3].lines[0].get_xdata()) == 0
