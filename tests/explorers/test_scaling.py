"""The explorer `scaling`: what its numbers are, at the extremes too, and what its picture shows."""

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from mha_course import plots
from mha_course.explorers import _scaling as scaling

START = {control.name: control.start for control in scaling.CONTROLS}
SOLVED = "Means over 128 queries; of the gradient the median. Task, entropy above 3 with the scale at none: solved."


def state(**moved: object) -> scaling.State:
    return scaling.compute(**(START | moved))


def rows(**moved: object) -> dict[str, tuple[str, str]]:
    return {name: (measured, reference) for name, measured, reference in scaling.readout(state(**moved)).rows}


def drawn(*states: scaling.State) -> Figure:
    figure = plots.blank((8, 3.2))
    for one in states:
        scaling.draw(figure, one)
    return figure


def heights(figure: Figure, axes: int) -> np.ndarray:
    return np.array([bar.get_height() for bar in figure.axes[axes].patches])


@pytest.mark.parametrize("d_k", ["1", "16", "64", "1024"])
def test_independent_scores_spread_as_the_root_of_d_k(d_k: str) -> None:
    one = state(d_k=d_k)
    assert one.predicted == pytest.approx(math.sqrt(int(d_k)))
    # 128 queries and 64 keys: for d_k = 1 their own spreads count, each off by 1 / sqrt(2 n)
    assert one.scores.std() == pytest.approx(one.predicted, rel=0.25 if d_k == "1" else 0.06)


@pytest.mark.parametrize(("rule", "scale"), [("none", 1), ("1/10", 0.1), ("1/sqrt(d_k)", 1 / 16), ("1/d_k", 1 / 256)])
def test_rules(rule: str, scale: float) -> None:
    np.testing.assert_allclose(state(d_k="256", rule=rule).scores, scale * state(d_k="256").scores, atol=1e-12)


def test_the_spread_acts_twice() -> None:
    np.testing.assert_allclose(state(spread=3).scores, 9 * state(spread=1).scores, atol=1e-10)


def test_correlation_one_makes_the_query_its_key() -> None:
    one = state(correlation=1, rule="1/sqrt(d_k)")
    own = one.scores[np.arange(128), np.arange(128) % 64]  # mean |k|^2 / sqrt(64) = 8, spread sqrt(2)
    assert own.mean() == pytest.approx(8, abs=0.5)
    assert (one.weights.argmax(axis=1) == np.arange(128) % 64).all()
    opposite = state(correlation=-1, rule="1/sqrt(d_k)")
    np.testing.assert_allclose(opposite.scores, -one.scores, atol=1e-10)


@pytest.mark.parametrize("correlation", [-0.6, 0.0, 0.6])
def test_correlation_keeps_the_length_of_a_query(correlation: float) -> None:
    away = state(correlation=correlation, d_k="1024").scores.copy()
    away[np.arange(128), np.arange(128) % 64] = np.nan
    assert np.nanstd(away) == pytest.approx(32, rel=0.03)


def test_gradients_are_those_of_autograd() -> None:
    one = state(d_k="16", keys="8")
    drawn = scaling._drawn()
    scores = torch.from_numpy(one.scores).requires_grad_()
    ((scores.softmax(-1) @ drawn.values[:8]) * drawn.demands).sum().backward()
    np.testing.assert_allclose(one.gradients, scores.grad.norm(dim=1).numpy(), rtol=1e-10)


def test_one_key_has_all_the_weight_and_no_gradient() -> None:
    one = rows(keys="1")
    assert one["entropy"] == ("0.00", "at most 0.00")
    assert one["largest weight"] == ("1.000", "at least 1.000")
    assert one["gradient"] == ("0.0e+00", "100% below 1e-6")


def test_equal_keys_share_the_weight() -> None:
    one = rows(spread=0)
    assert one["spread of scores"] == ("0.00", "0.00 if independent")
    assert one["entropy"] == ("4.16", "at most 4.16")
    assert one["largest weight"] == ("0.016", "at least 0.016")


def test_all_is_finite_at_the_widest() -> None:
    one = state(d_k="1024", spread=3, correlation=1)
    for part in one[:3]:
        assert np.isfinite(part).all()
    assert np.abs(one.weights.sum(axis=1) - 1).max() < 1e-12


def test_the_task_must_be_solved_without_a_scale() -> None:
    assert scaling.readout(state()).sentence.endswith("not solved.")
    assert scaling.readout(state(rule="1/sqrt(d_k)")).sentence.endswith("not solved.")
    assert scaling.readout(state(spread=0.3)).sentence == SOLVED
    assert scaling.readout(state(d_k="1")).sentence == SOLVED
    assert scaling.readout(state(keys="512")).sentence.endswith("not solved.")


def test_readout_by_hand() -> None:
    moved = {"keys": "8", "spread": 2, "d_k": "256"}
    one, found, figure = state(**moved), rows(**moved), drawn(state(**moved))
    assert found["spread of scores"][1] == "64.00 if independent"
    assert found["largest weight"] == (f"{one.weights.max(axis=1).mean():.3f}", "at least 0.125")
    dead = (one.gradients < 1e-6).mean()
    assert 0 < dead < 1
    assert found["gradient"] == (f"{np.median(one.gradients):.1e}", f"{dead:.0%} below 1e-6")
    scores, weights, gradients = figure.axes
    assert weights.lines[0].get_ydata()[0] == 1 / 8
    assert gradients.get_ylim()[0] < 1e-8
    assert scores.patches[0].get_facecolor() != scores.patches[13].get_facecolor()
    named = [text.get_text() for text in weights.get_legend().get_texts()]
    assert named == ["its own key", "another key", "all equal"]


@pytest.mark.parametrize(("d_k", "spread", "solved"), [("64", 0.4, True), ("64", 0.5, False), ("4", 0.9, True)])
def test_threshold_of_the_task(d_k: str, spread: float, solved: bool) -> None:
    one = scaling.readout(state(d_k=d_k, spread=spread))
    assert one.sentence.endswith("none: solved.") == solved


def test_the_histogram_counts_every_score() -> None:
    one = state()
    shares = heights(drawn(one), 0)
    assert shares.sum() == pytest.approx(1)
    assert shares[13] == pytest.approx((np.abs(one.scores) < 0.5).mean())
    assert shares[0] == pytest.approx((one.scores < -12.5).mean())
    assert shares[-1] == pytest.approx((one.scores > 12.5).mean())
    assert shares[13 + 5] == pytest.approx(((one.scores > 4.5) & (one.scores < 5.5)).mean())


def test_the_weights_of_query_0_are_sorted_and_its_own_key_is_marked() -> None:
    one = state(correlation=0.5, rule="1/sqrt(d_k)")
    figure = drawn(state(), one)
    np.testing.assert_allclose(heights(figure, 1), np.sort(one.weights[0])[::-1][:16])
    marked = [bar.get_facecolor() == figure.axes[1].patches[0].get_facecolor() for bar in figure.axes[1].patches]
    assert one.weights[0].argmax() == 0
    assert marked == [True] + [False] * 15


def test_fewer_keys_than_bars_leave_no_old_bar() -> None:
    assert (heights(drawn(state(), state(keys="8")), 1)[8:] == 0).all()


def test_one_dot_a_query_and_the_median() -> None:
    one = state(d_k="1024", spread=3)
    dots, median = drawn(one).axes[2].lines[:2]
    np.testing.assert_allclose(dots.get_ydata(), np.maximum(one.gradients, 1e-8))
    assert list(median.get_ydata()) == [1e-8, 1e-8]
