"""The explorer `heads`: where each entry goes, what attention sees, and that the picture says so."""

import math
from functools import cache
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from numpy import ndarray

from mha_course import plots
from mha_course.explorers import _heads as heads

START = {control.name: control.start for control in heads.CONTROLS}
EVERY_H = pytest.mark.parametrize("H", [1, 2, 4, 8])
EVERY_WAY = pytest.mark.parametrize(("split", "merge"), list(product(("right", "wrong"), repeat=2)))


def state(**moved: object) -> heads.State:
    """With the heads as a number, and the step by its name."""
    if "heads" in moved:
        moved["heads"] = str(moved["heads"])
    if isinstance(moved.get("step"), str):
        moved["step"] = heads.STEPS.index(moved["step"]) + 1
    return heads.compute(**(START | moved))


def rows(one: heads.State) -> list[tuple[str, ...]]:
    return list(heads.readout(one).rows)


@cache
def figure() -> Figure:
    return plots.blank((8, 4.74))


def drawn(one: heads.State) -> SimpleNamespace:
    """What the explorer draws, always in the same figure: nothing of the state before may be left."""
    heads.draw(figure(), one)
    return figure().mha_course_parts


def middles(cells: object) -> ndarray:
    return np.array([path.vertices[:4].mean(axis=0) for path in cells.get_paths()])


def entry(H: int, h: int, t: int, d: int, way: str) -> int:
    """Entry (h, t, d) of the heads, by hand."""
    return t * 8 + h * (8 // H) + d if way == "right" else (h * 6 + t) * (8 // H) + d


@EVERY_H
@pytest.mark.parametrize("way", ["right", "wrong"])
def test_every_entry_of_the_heads(H: int, way: str) -> None:
    found = state(heads=H, split=way).steps[2].entries[0]
    assert found.shape == (H, 6, 8 // H)
    for h, t, d in np.ndindex(found.shape):
        assert found[h, t, d] == entry(H, h, t, d, way)


@EVERY_H
@EVERY_WAY
def test_every_entry_at_the_end(H: int, split: str, merge: str) -> None:
    one = state(heads=H, split=split, merge=merge)
    flat = one.steps[2].entries[0]  # (H, T, D)
    back = np.concatenate(list(flat), axis=-1) if merge == "right" else flat.reshape(6, 8)
    np.testing.assert_array_equal(one.steps[4].entries[0], back)
    assert (back == np.arange(48).reshape(6, 8)).all() == (split == merge or H == 1)


@EVERY_H
def test_each_mistake_alone_leaves_only_few_in_place_and_both_cancel(H: int) -> None:
    # block (h, t) lies where block (t, h) belongs only if h (T - 1) = t (H - 1)
    blocks = math.gcd(5, H - 1) + 1
    in_place = blocks * 8 // H
    for moved in ({"split": "wrong"}, {"merge": "wrong"}):
        assert state(heads=H, **moved).steps[4].in_place == in_place
    assert state(heads=H, split="wrong").steps[2].in_place == in_place
    both = state(heads=H, split="wrong", merge="wrong")
    assert [step.in_place for step in both.steps] == [48, in_place, in_place, in_place, 48]
    assert [step.in_place for step in state(heads=H).steps] == [48] * 5


def test_the_share_in_place_that_the_lesson_names() -> None:
    assert [state(heads=H, split="wrong").steps[4].in_place for H in (1, 2, 4, 8)] == [48, 8, 4, 2]


@EVERY_H
@EVERY_WAY
def test_the_code_beside_each_step_gives_its_entries(H: int, split: str, merge: str) -> None:
    one = state(heads=H, split=split, merge=merge)
    names = {"q": torch.arange(48).view(1, 6, 8), "heads": torch.from_numpy(one.steps[2].entries)}
    names |= dict(zip("BTEHD", (1, 6, 8, H, 8 // H), strict=True))
    for step in one.steps:
        np.testing.assert_array_equal(eval(step.code, names).numpy(), step.entries)
        sizes = tuple(names[letter] for letter in step.axes)
        assert step.shape == f"({', '.join(step.axes)}) = {sizes}"
        assert step.entries.shape == sizes


@EVERY_WAY
def test_a_transpose_that_is_left_out_is_named(split: str, merge: str) -> None:
    names = [step.name for step in state(split=split, merge=merge).steps]
    forth = "transpose" if split == "right" else "transpose, left out"
    back = "transpose back" if merge == "right" else "transpose back, left out"
    assert names == ["input", "view", forth, back, "merge"]


@EVERY_H
@pytest.mark.parametrize("way", [0, 1])
def test_weights_and_whose_features_they_come_from(H: int, way: int) -> None:
    weighed, D = state(heads=H).ways[way], 8 // H
    angles = [(t, t + e // 2) for t in range(6) for e in range(8)]  # of q and k, in twelfths of a turn
    coordinate = [math.cos, math.sin]
    q, k = ([5 * coordinate[i % 2](math.pi / 6 * pair[side]) for i, pair in enumerate(angles)] for side in (0, 1))
    for h, t in np.ndindex(H, 6):
        own = [entry(H, h, t, d, ("right", "wrong")[way]) for d in range(D)]
        scores = []
        for s in range(6):
            other = [entry(H, h, s, d, ("right", "wrong")[way]) for d in range(D)]
            scores.append(sum(q[i] * k[j] for i, j in zip(own, other, strict=True)) / math.sqrt(D))
        exponentials = np.exp(scores)
        np.testing.assert_allclose(weighed.weights[h, t], exponentials / exponentials.sum(), atol=1e-12)
        assert {i // 8 for i in own} == {weighed.tokens[h, t]}
        assert {i % 8 // D for i in own} == {weighed.owners[h, t]}


def test_four_right_heads_look_as_far_back_as_their_number_and_wrong_ones_do_not() -> None:
    right, wrong = state().ways
    wanted = np.maximum(np.arange(6) - np.arange(4)[:, None], 0)
    np.testing.assert_array_equal(right.weights.argmax(axis=-1), wanted)
    assert right.weights.max(axis=-1).min() > 0.7
    assert (wrong.weights.argmax(axis=-1) == wanted).mean() < 0.4
    one = state(heads=1).ways[0].weights[0]
    np.testing.assert_allclose(one[3:].max(axis=-1), [one[t, t - 1] for t in (3, 4, 5)])
    np.testing.assert_allclose(one[3:].max(axis=-1), [one[t, t - 2] for t in (3, 4, 5)])


@EVERY_H
def test_with_one_head_both_ways_are_the_same(H: int) -> None:
    right, wrong = state(heads=H).ways
    assert np.array_equal(right.weights, wrong.weights) == (H == 1)


@EVERY_H
def test_scores_grow_with_the_heads_and_parameters_do_not(H: int) -> None:
    found = rows(state(heads=H))
    assert found[4] == ("scores", f"(B, H, T, S) = (1, {H}, 6, 6)", f"{36 * H} scores")
    count = sum(p.numel() for p in torch.nn.MultiheadAttention(8, H).parameters())
    assert found[-1] == ("four projections", "(E, E) = (8, 8)", f"{count} parameters, any H")


def test_readout() -> None:
    assert rows(state(split="wrong")) == [
        ("step", "shape", "measured"),
        ("input", "(B, T, E) = (1, 6, 8)", "48 of 48 in place"),
        ("view", "(B, H, T, D) = (1, 4, 6, 2)", "4 of 48 in place"),
        ("transpose, left out", "(B, H, T, D) = (1, 4, 6, 2)", "4 of 48 in place"),
        ("scores", "(B, H, T, S) = (1, 4, 6, 6)", "144 scores"),
        ("transpose back", "(B, T, H, D) = (1, 6, 4, 2)", "4 of 48 in place"),
        ("merge", "(B, T, E) = (1, 6, 8)", "4 of 48 in place"),
        ("four projections", "(E, E) = (8, 8)", "288 parameters, any H"),
    ]


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ({}, "Round trip: exact. Each head holds its own features of every token."),
        ({"merge": "wrong"}, "Round trip: not exact. The heads are right, the merge scrambles them"),
        (
            {"split": "wrong"},
            "Round trip: not exact. Right shapes, wrong entries: of all tokens, head 0 holds only a, b.",
        ),
        ({"split": "wrong", "heads": 2}, "head 0 holds only a, b, c."),
        ({"split": "wrong", "merge": "wrong", "heads": 8}, "Round trip: exact. The mistakes cancel"),
        ({"split": "wrong", "merge": "wrong", "heads": 8}, "attention saw wrong heads: head 0 held only a."),
        ({"split": "wrong", "heads": 1}, "Round trip: exact. With one head there is nothing to split"),
    ],
)
def test_what_a_state_means(moved: dict[str, object], said: str) -> None:
    assert said in heads.readout(state(**moved)).sentence


@EVERY_H
@EVERY_WAY
@pytest.mark.parametrize("step", heads.STEPS)
def test_cells_labels_and_colours(H: int, split: str, merge: str, step: str) -> None:
    one = state(heads=H, split=split, merge=merge, step=step)
    parts = drawn(one)
    number = heads.STEPS.index(step)
    colours = heads.COLOURS[np.arange(48) % 8 // (8 // H)]
    for grid, shown in zip(parts.grids, (one.steps[number], one.steps[-1]), strict=True):
        at = middles(grid.cells)
        np.testing.assert_allclose(grid.labels.get_offsets(), at)  # a label is in the middle of its cell
        np.testing.assert_allclose(grid.cells.get_facecolor(), [to_rgba(colour) for colour in colours])
        in_order = at[shown.entries.ravel()]
        if shown.axes == "BHTD":  # read head after head, and in each from the top row to the lowest
            blocks = in_order.reshape(H, 6, 8 // H, 2)
            assert (blocks[:-1, ..., 0].max(axis=(1, 2)) + 34 + 12 == blocks[1:, ..., 0].min(axis=(1, 2))).all()
            in_order = np.concatenate(list(blocks), axis=1).reshape(48, 2)
        lines = in_order.reshape(6, 8, 2)
        assert (np.diff(lines[..., 0], axis=1) >= 34).all()
        assert (np.ptp(lines[..., 1], axis=1) == 0).all()
        assert (np.diff(lines[:, 0, 1]) == (26 if shown.axes == "BTHD" else 20)).all()
        assert grid.code.get_paths() == heads.outlines((shown.code,), heads.CODE)
    title = f"{one.steps[number].name}: {one.steps[number].shape}"
    assert parts.grids[0].title.get_paths() == heads.outlines((title,), heads.TITLE)
    assert parts.grids[1].title.get_paths() == heads.outlines(("at the end: (B, T, E) = (1, 6, 8)",), heads.TITLE)
    # the letters stand in the middle of the rows, the names over the blocks
    cells = middles(parts.grids[0].cells)
    np.testing.assert_allclose(parts.rows.get_offsets()[:, 1], np.unique(cells[:, 1]))
    named = parts.heads.get_offsets()[:, 0]
    assert len(named) == len(parts.heads.get_paths()) == (0 if one.steps[number].axes == "BTE" else H)
    if len(named):
        columns = np.unique(cells[:, 0]).reshape(H, 8 // H)
        np.testing.assert_allclose(named, columns.mean(axis=1))


def test_the_labels_are_tokens_and_features() -> None:
    labels = drawn(state()).grids[0].labels
    assert labels.get_paths() == heads.outlines(tuple("abcdef"[i // 8] + str(i % 8) for i in range(48)))


def luminance(colours: ndarray) -> ndarray:
    channels = colours[:, :3]
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4) @ (
        0.2126,
        0.7152,
        0.0722,
    )


@EVERY_H
def test_labels_can_be_read_on_their_colours(H: int) -> None:
    for grid in drawn(state(heads=H, split="wrong")).grids:
        behind, ink = luminance(grid.cells.get_facecolor()), luminance(grid.labels.get_facecolor())
        assert ((np.maximum(behind, ink) + 0.05) / (np.minimum(behind, ink) + 0.05)).min() >= 4.5
        assert len({tuple(colour) for colour in grid.cells.get_facecolor()}) == H


@EVERY_H
def test_weights_in_the_picture(H: int) -> None:
    one = state(heads=H, split="wrong")
    parts = drawn(one)
    for part, way, top in zip(parts.ways, one.ways, heads.WEIGHTS_TOPS, strict=True):
        shown = part.weights.get_facecolor().reshape(H, 6, 6, 4)
        assert (shown == colormaps["viridis"](way.weights)).all()
        at = middles(part.weights).reshape(H, 6, 6, 2)
        np.testing.assert_allclose(at[..., 1], np.broadcast_to(top + 15 * np.arange(6)[:, None] + 7.5, (H, 6, 6)))
        assert (np.diff(at[..., 0], axis=-1) > 0).all()
        assert at[..., 0].max() < 795
        strip = middles(part.owners).reshape(H, 6, 2)
        assert (strip[..., 0] < at[..., 0].min(axis=-1)).all()
        assert (strip[1:, :, 0] > at[:-1].max(axis=2)[..., 0]).all()
        owners = part.owners.get_facecolor()
        np.testing.assert_allclose(owners, [to_rgba(heads.COLOURS[owner]) for owner in way.owners.ravel()])
    assert len(parts.weighed.get_offsets()) == len(parts.weighed.get_paths()) == H


@EVERY_H
@pytest.mark.parametrize("token", "abcdef")
def test_frames_are_around_the_chosen_token(H: int, token: str) -> None:
    one = state(heads=H, token=token, split="wrong")
    parts = drawn(one)
    boxes = [path.get_extents() for path in parts.frames.get_paths()]

    def framed(points: ndarray) -> ndarray:
        return np.array([any(box.contains(*point) for box in boxes) for point in points])

    wanted = np.arange(48) // 8 == "abcdef".index(token)
    for grid in parts.grids:
        np.testing.assert_array_equal(framed(middles(grid.cells)), wanted)
    for part, way in zip(parts.ways, one.ways, strict=True):
        wanted_rows = way.tokens.ravel() == "abcdef".index(token)
        assert wanted_rows.sum() == H
        np.testing.assert_array_equal(framed(middles(part.owners)), wanted_rows)
        np.testing.assert_array_equal(framed(middles(part.weights)), np.repeat(wanted_rows, 6))


@pytest.mark.parametrize("way", ["right", "wrong"])
def test_the_chosen_split_is_named(way: str) -> None:
    (at,) = drawn(state(split=way)).chosen.get_offsets()
    top = heads.WEIGHTS_TOPS[way == "wrong"]
    assert top < at[1] < top + 90


def test_nothing_is_cut() -> None:
    for H, step, way in product((1, 2, 4, 8), heads.STEPS, ("right", "wrong")):
        parts = drawn(state(heads=H, step=step, split=way, merge=way))
        for words in (*(part for grid in parts.grids for part in (grid.title, grid.code)), parts.heads, parts.weighed):
            ends = [100 / 72 * path.get_extents().get_points()[:, 0] for path in words.get_paths()]
            spans = [x + end for (x, _), end in zip(words.get_offsets(), ends, strict=True)]
            assert all(0 <= low < high <= 800 for low, high in spans)
            assert all(before[1] + 3 < after[0] for before, after in pairwise(spans))
        left_title = parts.grids[0].title.get_paths()[0].get_extents().x1 * 100 / 72 + heads.LEFTS[0]
        assert left_title < heads.LEFTS[1] - 10


def test_every_value_of_every_control_changes_the_picture() -> None:
    painter = plots.Painter(figure())
    for control in heads.CONTROLS:
        seen = set()
        for value in control.values():
            drawn(state(**{control.name: value}))
            seen.add(painter.png())
        assert len(seen) == len(control.values()), control.name


def test_a_picture_does_not_depend_on_what_was_drawn_before() -> None:
    start, end = state(heads=1, step="merge", merge="wrong"), state(heads=8, step="view", split="wrong", token="f")
    pictures = []
    for states in ([end], [start, end]):
        own = plots.blank((8, 4.74))
        painter = plots.Painter(own)
        for one in states:
            heads.draw(own, one)
            picture = painter.png()
        pictures.append(picture)
    assert pictures[0] == pictures[1]
