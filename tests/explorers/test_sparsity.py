"""The explorer `sparsity`: its masks, reach and errors by plain loops, and that the picture says so."""

import math
from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy import ndarray

from mha_course import plots
from mha_course.explorers import _sparsity as sparsity

START = {control.name: control.start for control in sparsity.CONTROLS}
T = 64
SEES = {  # what links do not decide
    "window": lambda t, s, w: 0 <= t - s < w,
    "dilated by 3": lambda t, s, w: t - s in range(0, 3 * w, 3),
    "block": lambda t, s, w: s <= t and s // w == t // w,
    "random": lambda t, s, w: s == t,
    "window + random": lambda t, s, w: 0 <= t - s < w,
}


def state(**moved: object) -> sparsity.State:
    return sparsity.compute(**(START | moved))


def rows(one: sparsity.State) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in sparsity.readout(one).rows}


@cache
def figure() -> Figure:
    return plots.blank((8, 4.4))


def drawn(one: sparsity.State) -> SimpleNamespace:
    """What the explorer draws, always in the same figure: nothing of the state before may be left."""
    sparsity.draw(figure(), one)
    return figure().mha_course_parts


@pytest.mark.parametrize(("pattern", "window"), list(product(SEES, (1, 2, 5, 16, 32))))
def test_the_masks(pattern: str, window: int) -> None:
    mask = state(pattern=pattern, window=window, links=3).mask
    for t in range(T):
        own = {s for s in range(T) if SEES[pattern](t, s, window)}
        found = set(np.flatnonzero(mask[t]))
        if "random" in pattern:
            assert own <= found <= set(range(t + 1))
            assert len(found - own) <= 3
            if pattern == "random":
                assert len(found) == 1 + min(3, t)
        else:
            assert found == own


def test_links_are_the_same_whatever_the_window() -> None:
    links = state(pattern="random", links=4).mask
    for window in (1, 9):
        np.testing.assert_array_equal(
            state(window=window, links=4).mask, links | state(pattern="window", window=window).mask
        )


def reached_by_hand(mask: ndarray, start: int, layers: int) -> set[int]:
    """From one token back, a layer at a time."""
    found = {start}
    for _ in range(layers):
        found = {int(s) for t in found for s in np.flatnonzero(mask[t])}
    return found


@pytest.mark.parametrize(("pattern", "layers"), list(product(SEES, (1, 2, 5, 8))))
def test_reach_over_layers(pattern: str, layers: int) -> None:
    one = state(pattern=pattern, layers=layers)
    for t in (0, 7, 31, 63):
        assert set(np.flatnonzero(one.reached[t])) == reached_by_hand(one.mask, t, layers)
    assert [len(reached_by_hand(one.mask, 63, n)) for n in range(1, 9)] == list(one.fields)


def test_a_window_reaches_further_with_each_layer_and_blocks_do_not() -> None:
    assert list(state(pattern="window", window=6).fields) == [6, 11, 16, 21, 26, 31, 36, 41]
    assert set(state(pattern="block", window=16).fields) == {16}
    fields = state(pattern="dilated by 3", window=6).fields
    assert fields[-1] == 22, "every third of 64"
    assert state(pattern="random", links=0).fields[-1] == 1


def attend(q: ndarray, k: ndarray, v: ndarray, keys: ndarray) -> tuple[ndarray, ndarray]:
    powers = np.exp(k[keys] @ q / math.sqrt(len(q)))
    return powers / powers.sum(), powers @ v[keys] / powers.sum()


@pytest.mark.parametrize("pattern", SEES)
def test_errors_by_hand(pattern: str) -> None:
    one = state(pattern=pattern)
    q, k, v = (x.numpy() for x in sparsity._full()[:3])
    for i, t in product(range(2), (0, 5, 17, 63)):
        weights, full = attend(q[i, t], k[i], v[i], np.arange(t + 1))
        out = attend(q[i, t], k[i], v[i], np.flatnonzero(one.mask[t]))[1]
        np.testing.assert_allclose(one.weights[i, t, : t + 1], weights, atol=1e-12)
        np.testing.assert_allclose(one.errors[i, t], np.sqrt(np.mean((out - full) ** 2)), atol=1e-12)


def test_one_input_is_sharp_the_other_is_flat() -> None:
    weights = state().weights
    np.testing.assert_allclose(weights.sum(-1), np.ones((2, T)), rtol=1e-12)
    assert np.median(weights[0].max(-1)) > 0.95
    assert all(weights[1, t].max() < 3 / (t + 1) for t in range(T))


def test_hiding_nothing_costs_nothing() -> None:
    for pattern in ("window", "block"):
        one = state(pattern=pattern, window=32)
        assert one.errors[:, :32].max() < 1e-12


def test_readout_by_hand() -> None:
    one = state(pattern="window", window=8, layers=4)
    pairs = 8 * T - 28
    touched = 8 + 7  # the diagonal, and the one beside it
    hidden = [float((one.weights[i] * ~one.mask).sum() / T) for i in range(2)]
    errors = [float(np.sqrt(np.mean(one.errors[i] ** 2))) for i in range(2)]
    assert rows(one) == {
        "64 tokens, causal": ("window", "full"),
        "keys a token sees, mean": (f"{pairs / T:.1f}", "32.5"),
        "density": (f"{pairs / 2080:.0%}", "100%"),
        "8 x 8 blocks touched": (str(touched), "36"),
        "a window as dense": ("8", ""),
        "reach the last, 4 layers": ("29", "64"),
        "layers until all reach it": ("over 8", "1"),
        "weight hidden, sharp": (f"{hidden[0]:.0%}", "0%"),
        "weight hidden, flat": (f"{hidden[1]:.0%}", "0%"),
        "error, sharp": (f"{errors[0]:.2f}", "0"),
        "error, flat": (f"{errors[1]:.2f}", "0"),
    }


@pytest.mark.parametrize(("pattern", "window"), list(product(SEES, (2, 7, 20))))
def test_a_window_as_dense(pattern: str, window: int) -> None:
    one = state(pattern=pattern, window=window)
    pairs = [sum(min(t + 1, w) for t in range(T)) for w in range(1, T + 1)]
    away = [abs(n - one.mask.sum()) for n in pairs]
    assert away[one.as_window - 1] == min(away)


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        (
            {},
            "After 2 layers 29 of 64 tokens have reached the last one. The input is sharp: 38 of 64 tokens see the key",
        ),
        ({"layers": 1}, "After 1 layer 7 of 64 tokens"),
        ({"layers": 4}, "After 4 layers every token has reached the last one."),
        ({"pattern": "block", "window": 16}, "16 of 64 tokens have reached the last one, and more layers add none."),
        (
            {"pattern": "window", "window": 5, "layers": 8},
            "After 8 layers 33 of 64 tokens have reached the last one. The",
        ),
        ({"given": "flat"}, "The input is flat: every key counts a little, those seen stand for the others, and the"),
    ],
)
def test_what_a_state_means(moved: dict[str, object], said: str) -> None:
    sentence = sparsity.readout(state(**moved)).sentence
    assert said in sentence
    error = rows(state(**moved))[f"error, {moved.get('given', 'sharp')}"][0]
    assert sentence.endswith(f"the output is off by {error} sizes of a value.")


def test_the_alt_text_counts_as_the_picture_does() -> None:
    panel = sparsity.sparsity()
    alt = panel._first_metadata["image/png"]["alt"]
    panel.close()
    one = state()
    best = one.weights[0].argmax(-1)
    assert f"{sum(not one.mask[t, best[t]] for t in range(T))} of the 64 keys" in alt
    assert "a window of 5 with two random links in a row of 64 tokens" in alt
    assert (START["window"], START["links"], START["layers"]) == (5, 2, 2)


@pytest.mark.parametrize(
    "moved",
    [{}, {"given": "flat", "layers": 5}, {"pattern": "block", "window": 16}, {"pattern": "random", "layers": 8}],
)
def test_the_picture(moved: dict[str, object]) -> None:
    one = state(**moved)
    parts = drawn(one)
    levels = parts.mask.get_array()
    for t, s in product(range(T), repeat=2):
        wanted = 0 if s > t else 3 if one.mask[t, s] else 2 if one.reached[t, s] else 1
        assert levels[t, s] == wanted
    names = ["white", sparsity.NEVER, sparsity.REACHED, sparsity.SEEN]
    colours = parts.mask.cmap(parts.mask.norm(np.arange(4.0)))
    assert colours[0, 3] == 0, "nothing is drawn over the legend"
    np.testing.assert_allclose(colours[1:, :3], [to_rgb(name) for name in names[1:]])
    weights = one.weights[("sharp", "flat").index(one.given)]
    best = weights.argmax(-1)
    np.testing.assert_array_equal(parts.best.get_offsets(), np.column_stack([best, np.arange(T)]))
    shades = ["white" if one.mask[t, best[t]] else plots.COLOURS[1] for t in range(T)]
    np.testing.assert_array_equal(parts.best.get_facecolor()[:, :3], [to_rgb(shade) for shade in shades])
    order = np.argsort(weights.max(-1))
    assert (np.diff(parts.best.get_sizes()[order]) >= 0).all()
    assert list(parts.field.get_ydata()) == list(one.fields)
    window = state(pattern="window", window=min(one.as_window, 32)).fields
    assert one.as_window <= 32
    assert list(parts.window.get_ydata()) == list(window)
    (x,), (y,) = parts.here.get_data()
    assert (x, y) == (one.layers, one.fields[one.layers - 1])
    for name, line, errors in zip(("sharp", "flat"), parts.errors, one.errors, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), errors)
        assert (line.get_color() == plots.COLOURS[1]) == (name == one.given)


def test_the_legends_name_what_is_drawn() -> None:
    parts = drawn(state())
    mask, field, error = (ax.get_legend() for ax in (parts.mask.axes, parts.field.axes, parts.errors[0].axes))
    said = {text.get_text(): handle for text, handle in zip(mask.get_texts(), mask.legend_handles, strict=True)}
    shades = {"seen": sparsity.SEEN, "reached over layers": sparsity.REACHED, "not reached": sparsity.NEVER}
    for name, shade in shades.items():
        assert said[name].get_facecolor()[:3] == to_rgb(shade)
    assert said["largest weight, not seen"].get_color() == plots.COLOURS[1]
    assert [line.get_linestyle() for line in field.get_lines()] == ["-", "--"]
    assert [text.get_text() for text in error.get_texts()] == ["sharp", "flat"]
    assert [line.get_marker() for line in error.get_lines()] == [line.get_marker() for line in parts.errors]


def test_every_error_and_field_is_below_the_words() -> None:
    parts = drawn(state())
    high = parts.errors[0].axes.get_ylim()[1]
    assert parts.field.axes.get_ylim()[1] > 1.3 * T
    for pattern, window, links in product(SEES, (1, 2, 5, 32), (0, 1, 16)):
        assert state(pattern=pattern, window=window, links=links).errors.max() < 0.77 * high


def test_every_value_of_every_control_changes_the_picture() -> None:
    painter = plots.Painter(figure())
    for control in sparsity.CONTROLS:
        seen, values = set(), control.values()
        values = values if len(values) < 10 else values[::5]
        for value in values:
            drawn(state(**{control.name: value}))
            seen.add(painter.png())
        assert len(seen) == len(values), control.name


def test_a_picture_does_not_depend_on_what_was_drawn_before() -> None:
    start = state(pattern="block", given="flat", layers=8)
    end = state(window=3, links=9)
    pictures = []
    for states in ([end], [start, end]):
        own = plots.blank((8, 4.4))
        painter = plots.Painter(own)
        for one in states:
            sparsity.draw(own, one)
            picture = painter.png()
        pictures.append(picture)
    assert pictures[0] == pictures[1]
