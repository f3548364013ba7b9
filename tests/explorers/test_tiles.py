"""The explorer `tiles`: its walk by plain loops, its counts by the formulas, and that the picture says so."""

import math
from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy import ndarray

from mha_course import plots
from mha_course.explorers import _tiles as tiles

START = {control.name: control.start for control in tiles.CONTROLS}
ORDERS = ("keys outside", "queries outside")
WALK = {  # order -> top left corner of each tile, in blocks (queries, keys)
    "keys outside": [(i, j) for j in range(4) for i in range(4)],
    "queries outside": [(i, j) for i in range(4) for j in range(4)],
}


def state(**moved: object) -> tiles.State:
    return tiles.compute(**(START | moved))


def rows(one: tiles.State) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in tiles.readout(one).rows}


@cache
def figure() -> Figure:
    return plots.blank((8, 4.2))


def drawn(one: tiles.State) -> SimpleNamespace:
    """What the explorer draws, always in the same figure: nothing of the state before may be left."""
    tiles.draw(figure(), one)
    return figure().mha_course_parts


def by_hand(order: str, step: int) -> SimpleNamespace:
    """Walk cell by cell through the first tiles of the small case."""
    scores = state().scores
    maxima, seen, changes, rescaled = [-math.inf] * 12, set(), 0, 0
    for i, j in WALK[order][:step]:
        factors = []
        for t in range(3 * i, 3 * i + 3):
            tile = [(t, s) for s in range(3 * j, 3 * j + 3)]
            seen.update(tile)
            old, maxima[t] = maxima[t], max(maxima[t], *(scores[cell] for cell in tile))
            factors.append(math.exp(old - maxima[t]))
            changes += maxima[t] > old
            rescaled += maxima[t] > old > -math.inf
    return SimpleNamespace(maxima=maxima, seen=seen, changes=changes, rescaled=rescaled, factors=factors, tile=(i, j))


@pytest.mark.parametrize(("order", "step"), list(product(ORDERS, range(1, 17))))
def test_the_walk(order: str, step: int) -> None:
    one, hand = state(order=order, step=step), by_hand(order, step)
    np.testing.assert_allclose(one.maxima, hand.maxima, rtol=1e-12)
    np.testing.assert_allclose(one.factors, hand.factors, rtol=1e-12)
    assert set(zip(*np.nonzero(one.seen), strict=True)) == hand.seen
    assert (one.changes, one.rescaled) == (hand.changes, hand.rescaled)
    assert (one.queries.start, one.queries.stop) == (3 * hand.tile[0], 3 * hand.tile[0] + 3)
    assert (one.keys.start, one.keys.stop) == (3 * hand.tile[1], 3 * hand.tile[1] + 3)


def test_the_small_case_shows_something() -> None:
    """Each order has tiles that rescale none, some and all of their rows; the first picture rescales some."""
    for order in ORDERS:
        so_far = [0, *(state(order=order, step=step).rescaled for step in range(1, 17))]
        assert set(np.diff(so_far)) == {0, 1, 2, 3}
    assert 0 < ((state().factors > 0) & (state().factors < 1)).sum() < 3
    np.testing.assert_allclose(state(step=16).maxima, state().scores.max(axis=1), rtol=1e-12)


@pytest.mark.parametrize(
    ("order", "passes", "blocks"), [("keys outside", 82, "64 x 100"), ("queries outside", 82, "100 x 64")]
)
def test_readout_by_hand(order: str, passes: int, blocks: str) -> None:
    N, d = 8192, 64
    moved = {
        "keys outside": 3 * N * d + 2 * N + passes * (3 * N * d + 4 * N),
        "queries outside": 2 * N * d + N + passes * 2 * N * d,
    }[order]
    standard = 4 * N * N + 4 * N * d
    one = state(order=order)
    found = rows(one)
    assert found["N = 8192, d = 64"] == (order, "standard")
    assert found["tile, queries x keys"] == (blocks, "")
    assert found["tiles"] == ("10,496", "")  # 82 x 128
    assert found["elements moved"] == (f"{moved:,}", f"{standard:,}")
    size = {"keys outside": "508.3 MiB", "queries outside": "332.0 MiB"}[order]
    assert found["bytes, float32"] == (size, "1.01 GiB")
    assert found["moved / standard"] == (f"{moved / standard:.2f}", "1")
    even = {"keys outside": "3 d² = 48 KiB", "queries outside": "2 d² = 32 KiB"}[order]
    assert found["break-even"] == (even, "")
    statistics = {"keys outside": 64, "queries outside": 100}[order]
    peak = 2 * 64 * 164 + 2 * statistics + 64 * 100
    assert found["Q, K, V, O fill"] == ("100 KiB", "")
    assert found["with scores, l, m"] == (f"{peak / 256:.0f} KiB", "")
    hand = by_hand(order, 7)
    assert found["12 x 12 scores"] == ("tile 7", "so far")
    assert found["rows rescaled"] == (f"{sum(0 < f < 1 for f in hand.factors)} of 3", str(hand.rescaled))
    assert found["maxima set or raised"] == (f"{sum(f < 1 for f in hand.factors)} of 3", str(hand.changes))


def test_the_first_tile_sets_maxima_and_rescales_nothing() -> None:
    found = rows(state(step=1))
    assert found["rows rescaled"] == ("0 of 3", "0")
    assert found["maxima set or raised"] == ("3 of 3", "3")


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ({}, "Tiles pay: the standard algorithm moves 2.0 times as much."),
        ({"sram": 16}, "This SRAM is too small: tiles move 3.0 times as much as the standard algorithm."),
        ({"sram": 48}, "About break-even: tiles move as much as the standard algorithm."),
        ({"sram": 32, "order": "queries outside"}, "About break-even: tiles move as much"),
        ({"step": 1}, "Tile 1 is the first of its rows: it sets their maxima."),
        ({}, "Tile 7 raises the maximum of 2 of its 3 rows: their earlier sums are scaled down."),
        ({"step": 8}, "Tile 8 raises no maximum: nothing is rescaled."),
    ],
)
def test_what_a_state_means(moved: dict[str, object], said: str) -> None:
    assert said in tiles.readout(state(**moved)).sentence


@pytest.mark.parametrize(
    "moved", [{}, {"order": "queries outside", "step": 16, "sram": 16}, {"width": "32", "length": "512", "step": 1}]
)
def test_the_picture(moved: dict[str, object]) -> None:
    one = state(**moved)
    parts, hand = drawn(one), by_hand(one.order, one.step)
    i, j = hand.tile
    assert parts.tile.get_xy() == (3 * j - 0.5, 3 * i - 0.5)
    colours = parts.scores.get_facecolor().reshape(12, 12, 4)
    unseen = [cell for cell in product(range(12), repeat=2) if cell not in hand.seen]
    assert all((colours[cell][:3] == 0.9).all() for cell in unseen)
    assert not any((colours[cell][:3] == 0.9).all() for cell in hand.seen)
    pale = {cell for cell in hand.seen if colours[cell][:3].min() >= 0.55}
    assert pale == {cell for cell in hand.seen if (cell[0] // 3, cell[1] // 3) != hand.tile}
    keys, queries = parts.found.get_data()
    assert list(queries) == [t for t in range(12) if hand.maxima[t] > -math.inf]
    assert all(one.scores[t, s] == hand.maxima[t] and (t, s) in hand.seen for t, s in zip(queries, keys, strict=True))
    known = [t for t in range(12) if hand.maxima[t] > -math.inf]
    expect_written(
        parts.maxima,
        [f"{hand.maxima[t]:+.2f}".replace("-", "\u2212") for t in known],
        rows=known,
        colours=["black" if t // 3 == i else "0.45" for t in known],
    )
    expect_written(
        parts.factors,
        [f"× {f:.2f}" if f else "first" for f in hand.factors],
        rows=[3 * i, 3 * i + 1, 3 * i + 2],
        colours=[plots.COLOURS[1] if 0 < f < 1 else "black" for f in hand.factors],
    )


def expect_written(collection: PathCollection, words: list[str], *, rows: list[int], colours: list[str]) -> None:
    outlines = tiles.outlines(words)  # each word's outline is made once
    assert all(path is outline for path, outline in zip(collection.get_paths(), outlines, strict=True))
    assert list(collection.get_offsets()[:, 1]) == rows
    np.testing.assert_array_equal(collection.get_facecolor()[:, :3], [to_rgb(colour) for colour in colours])


@pytest.mark.parametrize("order", ORDERS)
def test_the_curves(order: str) -> None:
    one = state(order=order, width="128", length="1024", sram=150)
    parts, sizes = drawn(one), np.arange(8, 229, 2)
    N, d = 1024, 128
    outer = np.ceil(N / np.ceil(sizes * 256 / (4 * d)))
    curves = (3 * N * d + 2 * N + outer * (3 * N * d + 4 * N), 2 * N * d + N + outer * 2 * N * d)
    for name, line, point, curve in zip(ORDERS, parts.lines, parts.points, curves, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), sizes)
        np.testing.assert_allclose(line.get_ydata(), curve / (4 * N * N + 4 * N * d), rtol=1e-12)
        (x,), (y,) = point.get_data()
        assert (x, y) == (150, line.get_ydata()[71])
        assert (line.get_linewidth() == 3) == (point.get_markersize() == 11) == (name == order)
        assert line.get_color() == point.get_color()
    assert list(parts.even.get_xdata()) == [3 * d * d / 256, 2 * d * d / 256]
    assert list(parts.even.get_ydata()) == [1, 1]
    assert parts.unit.get_text() == "1 = 18.0 MiB moved by standard"
    named = {text.get_text(): handle for text, handle in legend()}
    assert [named[name].get_color() for name in ORDERS] == [line.get_color() for line in parts.lines]


def legend() -> list[tuple[object, object]]:
    found = figure().axes[1].get_legend()
    return list(zip(found.get_texts(), found.get_lines(), strict=True))


def test_every_curve_is_inside_the_axes_and_above_the_words() -> None:
    low, high = drawn(state()).lines[0].axes.get_ylim()
    assert low < 0.01 * 1.01
    for d, N in product(*({c.name: c.options for c in tiles.CONTROLS[3:]}[name] for name in ("width", "length"))):
        curves: ndarray = state(width=d, length=N).curves
        assert 0.03 < curves.min() < curves.max() < high


def test_every_value_of_every_control_changes_the_picture() -> None:
    painter = plots.Painter(figure())
    for control in tiles.CONTROLS:
        seen, values = set(), control.values()
        values = values if len(values) < 20 else values[::11]
        for value in values:
            drawn(state(**{control.name: value}))
            seen.add(painter.png())
        assert len(seen) == len(values), control.name


def test_a_picture_does_not_depend_on_what_was_drawn_before() -> None:
    start = state(order="queries outside", step=16, width="256")
    end = state(step=3, sram=8, length="512")
    pictures = []
    for states in ([end], [start, end]):
        own = plots.blank((8, 4.2))
        painter = plots.Painter(own)
        for one in states:
            tiles.draw(own, one)
            picture = painter.png()
        pictures.append(picture)
    assert pictures[0] == pictures[1]
