"""The explorer `collapse`: the stack by hand, its measures by their definitions, and that the picture says so."""

import math
from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy import ndarray

from mha_course import plots
from mha_course.explorers import _collapse as collapse

START = {control.name: control.start for control in collapse.CONTROLS}
STACKS = list(product((0, 1, 4.5), ("no", "yes"), ("none", "pre", "post"), ("no", "yes")))


def state(**moved: object) -> collapse.State:
    return collapse.compute(**(START | moved))


def rows(one: collapse.State) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in collapse.readout(one).rows}


@cache
def figure() -> Figure:
    return plots.blank((8, 3.7))


def drawn(one: collapse.State) -> SimpleNamespace:
    """What the explorer draws, always in the same figure: nothing of the state before may be left."""
    collapse.draw(figure(), one)
    return figure().mha_course_parts


def normed(x: ndarray) -> ndarray:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


def by_hand(spread: float, skip: str, norm: str, mlp: str, draw: int = 0) -> list[ndarray]:
    """Rows after each layer: a plain loop over heads and queries."""
    tokens, layers = collapse._drawn()
    x = tokens[draw].numpy()
    found = [x]
    erf = np.vectorize(math.erf)
    for layer in layers:
        w = {name: matrix[draw].numpy() for name, matrix in layer.items()}

        def attend(x: ndarray, w: dict[str, ndarray] = w) -> ndarray:
            q, k, v = x @ w["q"], x @ w["k"], x @ w["v"]
            merged = np.zeros_like(x)
            for h in range(4):
                of = slice(16 * h, 16 * (h + 1))
                for t in range(32):
                    scores = spread * (k[:, of] @ q[t, of]) / 4
                    e = np.exp(scores - scores.max())
                    merged[t, of] = e @ v[:, of] / e.sum()
            return merged @ w["o"]

        def widen(x: ndarray, w: dict[str, ndarray] = w) -> ndarray:
            up = x @ w["up"]
            return (up * 0.5 * (1 + erf(up / math.sqrt(2)))) @ w["down"]

        for change in (attend, widen)[: 1 + (mlp == "yes")]:
            y = change(normed(x) if norm == "pre" else x) + (x if skip == "yes" else 0)
            x = normed(y) if norm == "post" else y
        found.append(x)
    return found


def residual(x: ndarray) -> float:
    """Least distance to equal rows, by least squares over the common row, as a share of the whole."""
    common, *_ = np.linalg.lstsq(np.ones((len(x), 1)), x, rcond=None)
    return float(np.linalg.norm(x - common) / np.linalg.norm(x))


@pytest.mark.parametrize(("spread", "skip", "norm", "mlp"), STACKS)
def test_the_stack_by_hand(spread: float, skip: str, norm: str, mlp: str) -> None:
    expected = by_hand(spread, skip, norm, mlp)
    for layers in (0, 1, 2, 5, 12):
        one = state(layers=layers, spread=spread, skip=skip, norm=norm, mlp=mlp)
        assert one.layers == layers
        np.testing.assert_allclose(one.rows, expected[layers], rtol=1e-7, atol=1e-7 * np.abs(expected[layers]).max())
    np.testing.assert_allclose(one.residuals[0], [residual(x) for x in expected], rtol=1e-3, atol=2e-15)


@pytest.mark.parametrize("draw", [1, 2])
def test_the_other_draws(draw: int) -> None:
    one = state(skip="yes", mlp="yes", norm="pre")
    expected = [residual(x) for x in by_hand(1, "yes", "pre", "yes", draw)]
    np.testing.assert_allclose(one.residuals[draw], expected, rtol=1e-9)
    assert one.residuals.shape == (3, 13)


def test_the_input_and_the_matrices_keep_a_variance_of_one() -> None:
    tokens, layers = collapse._drawn()
    assert len(layers) == 12
    assert tokens.shape == (3, 32, 64)
    assert tokens.std() == pytest.approx(1, abs=0.03)
    for layer in layers:
        for matrix in layer.values():
            assert matrix.std() == pytest.approx(matrix.shape[-2] ** -0.5, rel=0.05)
    one = state(spread=2)
    assert one.measured_spread == pytest.approx(2, rel=0.1)
    assert state(spread=0).measured_spread == 0
    q, k = (tokens[0] @ layers[0][name][0] for name in "qk")
    scores = torch.stack([q[:, 16 * h : 16 * h + 16] @ k[:, 16 * h : 16 * h + 16].T / 4 for h in range(4)])
    assert state().measured_spread == pytest.approx(float(scores.std()))


@pytest.mark.parametrize("spread", [0, 8])
def test_a_moved_common_row_is_no_better(spread: float) -> None:
    x = state(layers=1, spread=spread, skip="yes").rows
    least = float(collapse.relative_residual(torch.from_numpy(x))) * np.linalg.norm(x)
    for row in 0.01 * np.random.default_rng(0).standard_normal((50, 64)):
        assert np.linalg.norm(x - x.mean(0) - row) > least


def test_both_norms_by_hand() -> None:
    x = np.array([[3.0, 0.0], [1.0, 4.0]])  # mean row (2, 2), rest (1, -2), (-1, 2)
    assert float(collapse.relative_residual(torch.from_numpy(x))) == pytest.approx(math.sqrt(10 / 26))
    # largest column sums 4 and 4, largest row sums 3 and 5
    assert collapse.relative_residual_1_inf(x) == pytest.approx(math.sqrt(4 * 3 / (4 * 5)))
    x = state().rows
    rest, whole = (math.sqrt(np.linalg.norm(y, 1) * np.linalg.norm(y, np.inf)) for y in (x - x.mean(0), x))
    assert collapse.relative_residual_1_inf(x) == pytest.approx(rest / whole)


def test_equal_rows_have_residual_0_and_effective_rank_1() -> None:
    x = np.ones((32, 1)) @ np.arange(1.0, 65)[None]
    assert float(collapse.relative_residual(torch.from_numpy(x))) == 0
    assert collapse.relative_residual_1_inf(x) == 0
    assert collapse.effective_rank(x) == pytest.approx(1)
    assert collapse.effective_rank(np.eye(7)) == pytest.approx(7)
    assert collapse.effective_rank(np.diag([3.0, 1.0, 0.0])) == pytest.approx(4 / 3**0.75)  # exp of the entropy


def test_cosines_by_hand() -> None:
    one = state(skip="yes")
    for t, s in ((0, 0), (3, 17), (31, 2)):
        a, b = one.rows[t], one.rows[s]
        assert one.cosines[t, s] == pytest.approx(a @ b / math.sqrt(a @ a * (b @ b)))


@pytest.mark.parametrize("draw", range(3))
def test_what_the_lesson_says(draw: int) -> None:
    """Attention alone collapses, an MLP does not help, a norm delays, the skip holds: in every draw of the weights."""
    alone = state().residuals[draw]
    assert 0.6 < alone[1] < 0.9
    assert 0.01 < alone[2] < 0.05
    assert alone[3] < 1e-6
    assert alone[4:].max() < 1e-14
    assert (state(mlp="yes").residuals[draw, 2:4] < alone[2:4]).all()
    for norm in ("pre", "post"):
        held = state(norm=norm).residuals[draw]
        assert 1e-3 < held[3] < 1e-2
        assert held[5:].max() < 1e-6
        assert state(norm=norm, mlp="yes").residuals[draw, 6:].max() < 1e-6
    for norm, mlp in product(("none", "pre", "post"), ("no", "yes")):
        held = state(skip="yes", norm=norm, mlp=mlp).residuals[draw]
        assert held[3] > 0.7
        assert held[12] > 0.03
    for mlp in ("no", "yes"):
        assert state(skip="yes", norm="pre", mlp=mlp).residuals[draw, 12] > 0.4
        assert state(skip="yes", norm="post", mlp=mlp).residuals[draw, 12] < 0.2
    assert state(spread=0).residuals[draw, 1] < 1e-14
    assert state(spread=8).residuals[draw, 4] > 0.4
    assert state(spread=8).residuals[draw, 12] < 1e-14


def test_readout() -> None:
    one = state(layers=2)
    found = rows(one)
    assert found["after 2 layers"] == ("measured", "equal rows")
    assert found["residual (Frobenius)"] == (f"{one.residuals[0, 2]:.2f}", "0")
    assert found["residual (1, inf)"] == (f"{collapse.relative_residual_1_inf(one.rows):.2f}", "0")
    pairs = [one.cosines[t, s] for t in range(32) for s in range(32) if t != s]
    assert found["mean cosine"] == (f"{sum(pairs) / len(pairs):.3f}", "1")
    values = np.linalg.eigvalsh(one.rows @ one.rows.T).clip(1e-30) ** 0.5
    shares = values / values.sum()
    assert found["effective rank"] == (f"{math.exp(-(shares * np.log(shares)).sum()):.1f} of 32", "1")
    assert found["below 0.01"] == ("layer 3", "")
    assert rows(state(skip="yes"))["below 0.01"] == ("never", "")
    assert found["spread, layer 1"] == (f"{one.measured_spread:.2f}", "")
    assert rows(state())["residual (Frobenius)"] == ("1e-07", "0")
    assert "after 1 layer" in rows(state(layers=1))


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ({"layers": 0}, "The input: 32 tokens drawn one by one, nothing in common."),
        ({"layers": 1}, "After 1 layer the rows differ by 0.73 of their size: the tokens can be told apart."),
        ({}, "After 3 layers the rows differ by 1e-07 of their size: collapsed, the next layer cannot tell"),
        ({"skip": "yes"}, "of their size: the tokens can be told apart."),
        (
            {"layers": 2},
            "After 2 layers the rows differ by 0.02 of their size: they have grown alike, but the tokens can",
        ),
    ],
)
def test_what_a_state_means(moved: dict[str, object], said: str) -> None:
    assert said in collapse.readout(state(**moved)).sentence


@pytest.mark.parametrize("moved", [{}, {"skip": "yes", "layers": 12}, {"spread": 0, "mlp": "yes", "layers": 0}])
def test_the_picture(moved: dict[str, object]) -> None:
    one = state(**moved)
    parts = drawn(one)
    for line, residuals in zip(parts.draws, one.residuals, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), range(13))
        np.testing.assert_array_equal(line.get_ydata(), np.maximum(residuals, 1e-17))
    np.testing.assert_array_equal(parts.alone.get_ydata(), state().residuals[0])
    assert list(parts.depth.get_xdata()) == [one.layers] * 2
    (x,), (y,) = parts.here.get_data()
    assert (x, y) == (one.layers, max(one.residuals[0, one.layers], 1e-17))
    np.testing.assert_array_equal(parts.cosines.get_array(), one.cosines)
    assert parts.cosines.get_clim() == (-1, 1)
    low, high = parts.depth.axes.get_ylim()
    assert low <= 1e-17 < 1 < high
    (legend,) = figure().legends
    colours = [line.get_color() for line in legend.get_lines()]
    assert colours == [line.get_color() for line in (*parts.draws[:2], parts.alone)]


def test_every_value_of_every_control_changes_the_picture() -> None:
    painter = plots.Painter(figure())
    for control in collapse.CONTROLS:
        seen = set()
        for value in control.values():
            drawn(state(**{control.name: value}))
            seen.add(painter.png())
        assert len(seen) == len(control.values()), control.name


def test_a_picture_does_not_depend_on_what_was_drawn_before() -> None:
    start, end = state(layers=12, spread=8), state(layers=1, skip="yes", norm="post", mlp="yes")
    pictures = []
    for states in ([end], [start, end]):
        own = plots.blank((8, 3.7))
        painter = plots.Painter(own)
        for one in states:
            collapse.draw(own, one)
            picture = painter.png()
        pictures.append(picture)
    assert pictures[0] == pictures[1]


def test_all_is_finite_at_every_corner() -> None:
    ends = [(control.values()[0], control.values()[-1]) for control in collapse.CONTROLS]
    for values in product(*ends):
        one = state(**dict(zip(START, values, strict=True)))
        for part in (one.residuals, one.rows, one.cosines):
            assert np.isfinite(part).all()
