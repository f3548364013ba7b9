"""The explorer `bits`: its numbers by plain loops, its task, and that the picture says so."""

from functools import cache as cached
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from mha_course import plots
from mha_course.explorers import _bits as bits
from mha_course.explorers import _bits_state as inputs

START = {control.name: control.start for control in bits.CONTROLS}
TENSOR, CHANNEL, GROUPS = SCHEMES = ("tensor", "channel (row)", "group of 32")
SHARED = {TENSOR: 24 * 128, CHANNEL: 128, GROUPS: 32}  # neighbours with one scale, rows laid end to end


def state(**moved: object) -> inputs.State:
    return inputs.compute(**(START | moved))


def rows(one: inputs.State) -> dict[str, str]:
    return dict(bits.readout(one).rows)


@cached
def figure() -> Figure:
    return plots.blank((8, 5.2))


def drawn(one: inputs.State) -> SimpleNamespace:
    """What the explorer draws, always in the same figure: nothing of the state before may be left."""
    bits.draw(figure(), one)
    return figure().mha_course_parts


def grid_of(numbers: np.ndarray, width: int, symmetric: bool) -> np.ndarray:
    """The values that have a code, for numbers that share a scale."""
    if symmetric:
        top = 2 ** (width - 1) - 1
        return np.abs(numbers).max() / top * np.arange(-top, top + 1)
    low, high = min(numbers.min(), 0), max(numbers.max(), 0)
    scale = (high - low) / (2**width - 1)
    return scale * (np.arange(2**width) - np.round(-low / scale))


def quantized(W: np.ndarray, width: int, scheme: str, symmetric: bool) -> np.ndarray:
    """Every weight moved to the nearest value of its grid."""
    out = []
    for numbers in W.astype(np.float64).reshape(-1, SHARED[scheme]):
        grid = grid_of(numbers, width, symmetric)
        out.append(grid[np.abs(numbers[:, None] - grid).argmin(1)])
    return np.stack(out).reshape(W.shape)


def relative(lost: np.ndarray, whole: np.ndarray) -> float:
    return float(np.sqrt((lost**2).mean() / (whole**2).mean()))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("width", "grid", "outlier", "row", "column"),
    [
        (4, "symmetric", 12, 12, 40),
        (2, "asymmetric", 16, 23, 124),
        (3, "symmetric", 0, 0, 0),
        (8, "asymmetric", 5, 7, 96),
    ],
)
def test_weights_errors_and_grids_by_loops(
    scheme: str, width: int, grid: str, outlier: int, row: int, column: int
) -> None:
    one = state(bits=width, scheme=scheme, grid=grid, outlier=outlier, row=row, column=column)
    W, symmetric = one.weights, grid == "symmetric"
    np.testing.assert_allclose(one.rounded, quantized(W, width, scheme, symmetric), atol=1e-5)
    assert one.weight_error == pytest.approx(relative(one.rounded - W, W), rel=1e-4)
    x = inputs._tokens().double().numpy()
    for scheme_, errors in zip(SCHEMES, one.errors, strict=True):
        for width_, error in zip(range(2, 9), errors, strict=True):
            lost = x @ (quantized(W, width_, scheme_, symmetric) - W).T
            assert error == pytest.approx(relative(lost, x @ W.T.astype(float)), rel=1e-3)
    assert one.output_error == one.errors[SCHEMES.index(scheme), width - 2]
    shared, place = SHARED[scheme], row * 128 + column
    other = (row + 12) % 24 * 128 + column
    for values, step, at in ((one.own, one.step, place), (one.other, one.other_step, other)):
        numbers = W.reshape(-1, shared)[at // shared]
        np.testing.assert_allclose(values, grid_of(numbers, width, symmetric), atol=1e-5)
        assert step == pytest.approx(values[1] - values[0], rel=1e-4)


def test_the_outlier_is_put_where_it_is_said_and_nothing_else_changes() -> None:
    plain = inputs._matrix().numpy()
    assert plain.shape == (24, 128)
    assert plain.std(ddof=1) == pytest.approx(1, rel=1e-5)
    assert np.abs(plain).max() < 8, "an outlier of 8 stands out"
    spread = plain.std(1)
    assert spread[-4:].mean() > 3 * spread[:4].mean()
    one = state(outlier=9, row=5, column=88)
    assert one.weights[5, 88] == 9
    changed = np.argwhere(one.weights != plain)
    assert changed.tolist() == [[5, 88]]
    assert one.place == (5, 88)
    np.testing.assert_array_equal(state(outlier=0, row=5).weights, plain)


@pytest.mark.parametrize(
    ("scheme", "grid", "width", "scales", "stored", "of_float"),
    [
        (TENSOR, "symmetric", 4, 1, 4 * 3072 + 16, "12.5%"),
        (CHANNEL, "symmetric", 8, 24, 8 * 3072 + 24 * 16, "25.4%"),
        (GROUPS, "asymmetric", 4, 96, 4 * 3072 + 96 * 20, "14.5%"),
        (GROUPS, "symmetric", 2, 96, 2 * 3072 + 96 * 16, "7.8%"),
        (CHANNEL, "asymmetric", 3, 24, 3 * 3072 + 24 * 19, "9.8%"),
    ],
)
def test_sizes_by_hand(scheme: str, grid: str, width: int, scales: int, stored: int, of_float: str) -> None:
    one = state(scheme=scheme, grid=grid, bits=width)
    assert (one.scales, one.stored) == (scales, stored)
    found = rows(one)
    assert found["scales"] == str(scales)
    assert found["bits per weight"] == f"{stored / 3072:.2f}"
    assert found["size"] == f"{stored // 8:,} bytes"
    assert found["of float32"] == of_float


def test_readout() -> None:
    found = rows(state())
    assert found["4 bits, symmetric"] == "tensor"
    assert found["step at the outlier"] == found["step in another row"] == "1.7 std"  # 12 / 7
    assert found["task"] == "not yet"
    one = state(scheme=CHANNEL)
    found = rows(one)
    assert found["weight error"] == f"{100 * one.weight_error:.1f}%"
    assert found["output error"] == f"{100 * one.output_error:.1f}%"
    assert found["step at the outlier"] == "1.7 std"
    assert found["step in another row"] == f"{np.abs(one.weights[0]).max() / 7:.2g} std"
    assert found["weights that become 0"] == f"{100 * (one.rounded == 0).mean():.0f}%"


TASK = "4 bits and an outlier of 12 or more, with an output error below 10%"


@pytest.mark.parametrize(
    ("moved", "done"),
    [
        ({}, False),
        ({"scheme": GROUPS}, False),
        ({"scheme": CHANNEL, "grid": "asymmetric"}, False),
        ({"scheme": GROUPS, "grid": "asymmetric"}, True),
        ({"scheme": GROUPS, "grid": "asymmetric", "outlier": 11}, False),
        ({"scheme": GROUPS, "grid": "asymmetric", "bits": 5}, False),
        ({"bits": 8}, False),
    ],
)
def test_the_task(moved: dict[str, object], done: bool) -> None:
    one = state(**moved)
    assert rows(one)["task"] == ("done" if done else "not yet")
    sentence = bits.readout(one).sentence
    if done:
        assert sentence.endswith(f" The task is done, {TASK}: it took 4.62 bits per weight.")
    else:
        assert sentence.endswith(f" Task: {TASK}.")


@pytest.mark.parametrize(("row", "column"), [(0, 0), (12, 40), (23, 124)])
def test_the_task_can_be_done_wherever_the_outlier_lies_but_with_a_finer_cut_alone(row: int, column: int) -> None:
    for scheme in SCHEMES:
        for grid in ("symmetric", "asymmetric"):
            one = state(scheme=scheme, grid=grid, row=row, column=column)
            assert one.done == (scheme == GROUPS and grid == "asymmetric")


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ({"outlier": 0}, "There is no outlier; "),
        ({}, "The outlier makes the steps of all weights {wider} times as wide; "),
        ({"scheme": CHANNEL}, "The outlier makes the steps of its row {wider} times as wide; "),
        ({"scheme": GROUPS}, "The outlier makes the steps of its group of 32 {wider} times as wide; "),
        ({"outlier": 1, "row": 23}, "The outlier is too small to widen the steps of all weights; "),
    ],
)
def test_what_a_state_means(moved: dict[str, object], said: str) -> None:
    one = state(**moved)
    row, column = one.place
    first = {TENSOR: 0, CHANNEL: row * 128, GROUPS: row * 128 + column // 32 * 32}[one.scheme]
    usual = np.abs(inputs._matrix().numpy().flatten()[first : first + SHARED[one.scheme]]).max()
    zeros = f"{100 * (one.rounded == 0).mean():.0f}% of all weights become 0. "
    assert bits.readout(one).sentence.startswith(said.format(wider=f"{12 / usual:.1f}") + zeros)


def test_the_picture_of_the_weights() -> None:
    one = state(scheme=CHANNEL, bits=3)
    parts = drawn(one)
    for stairs, numbers in ((parts.before, one.weights), (parts.after, one.rounded)):
        heights, edges, _ = stairs.get_data()
        for height, low, high in zip(heights, edges[:-1], edges[1:], strict=True):
            count = int(((numbers >= low) & (numbers < high)).sum())
            assert height == (count or 0.1)
    assert [float(x) for x in parts.outlier.get_xdata()] == [12]
    for ticks, values, y in ((parts.own, one.own, 1), (parts.other, one.other, 0)):
        segments = ticks.get_segments()
        np.testing.assert_allclose([segment[0][0] for segment in segments], values, rtol=1e-6)
        assert all(segment[0][0] == segment[1][0] for segment in segments)
        assert {round(float(end[1]), 2) for segment in segments for end in segment} == {y - 0.38, y + 0.38}
    assert same_color(parts.outlier.get_color(), parts.own.get_color()[0])
    assert not same_color(parts.own.get_color()[0], parts.other.get_color()[0])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("grid", ["symmetric", "asymmetric"])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (12, 40), (23, 124)])
def test_every_number_lies_within_the_axes(scheme: str, grid: str, row: int, column: int) -> None:
    for outlier in (0, 16):
        one = state(scheme=scheme, grid=grid, outlier=outlier, row=row, column=column, bits=2)
        parts = drawn(one)
        low, high = parts.before.axes.get_xlim()
        assert parts.own.axes.get_xlim() == (low, high), "a grid lies below the weights that it is for"
        for numbers in (one.weights, one.rounded, one.own, one.other):
            assert low < numbers.min() <= numbers.max() < high
        low, high = parts.here.axes.get_ylim()
        assert low < one.errors.min() <= one.errors.max() < high
        assert max(np.histogram(one.rounded, bits.EDGES)[0]) < parts.before.axes.get_ylim()[1]


def test_the_picture_of_the_errors() -> None:
    one = state(scheme=GROUPS, bits=6, row=3, column=64)
    parts = drawn(one)
    for line, errors in zip(parts.errors, one.errors, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), range(2, 9))
        np.testing.assert_array_equal(line.get_ydata(), errors)
    widths = [line.get_linewidth() for line in parts.errors]
    assert widths[2] > widths[0] == widths[1]
    (x,), (y,) = parts.here.get_data()
    assert (x, y) == (6, one.errors[2, 4])
    assert same_color(parts.here.get_markerfacecolor(), parts.errors[2].get_color())
    legend = parts.here.axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == list(SCHEMES)
    for handle, line in zip(legend.get_lines(), parts.errors, strict=True):
        assert handle.get_color() == line.get_color()
        assert handle.get_linestyle() == line.get_linestyle()
    assert len({line.get_color() for line in parts.errors}) == len({line.get_linestyle() for line in parts.errors}) == 3
    lost = np.abs(one.rounded - one.weights)
    shown = np.asarray(parts.map.get_array())
    np.testing.assert_allclose(10**shown, np.maximum(lost, 10**-2.5), rtol=1e-4)
    assert parts.map.get_clim() == (-2.5, 0.5)
    for ring in parts.place:
        (x,), (y,) = ring.get_data()
        assert (x, y) == (64, 3)


def test_finer_cuts_and_more_bits_lose_less() -> None:
    for outlier in (0, 6, 16):
        errors = state(outlier=outlier).errors
        assert (np.diff(errors, axis=0) < 0).all()
        assert (np.diff(errors, axis=1)[1:] < 0).all()


def test_every_value_of_every_control_changes_the_picture() -> None:
    painter = plots.Painter(figure())
    for control in bits.CONTROLS:
        seen, values = set(), control.values()
        values = values if len(values) < 10 else values[:: len(values) // 5]
        for value in values:
            drawn(state(**{control.name: value}))
            seen.add(painter.png())
        assert len(seen) == len(values), control.name


def test_a_picture_does_not_depend_on_what_was_drawn_before() -> None:
    start = state(bits=8, scheme=GROUPS, grid="asymmetric", outlier=16, row=1, column=0)
    end = state(bits=3, scheme=CHANNEL)
    pictures = []
    for states in ([end], [start, end]):
        own = plots.blank((8, 5.2))
        painter = plots.Painter(own)
        for one in states:
            bits.draw(own, one)
            picture = painter.png()
        pictures.append(picture)
    assert pictures[0] == pictures[1]


def test_computing_leaves_the_matrix_as_it_is() -> None:
    before = inputs._matrix().clone()
    state(outlier=16, row=2, column=4)
    torch.testing.assert_close(inputs._matrix(), before, rtol=0, atol=0)
