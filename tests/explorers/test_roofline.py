"""The explorer `roofline`: its point by hand, what stays hidden until it is asked for, and that the picture says so."""

import math
from functools import cache as cached
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from mha_course import plots
from mha_course.explorers import _roofline as roofline

START = {control.name: control.start for control in roofline.CONTROLS}
GUESS, POINT = "my guess", "my guess and the point"
GPU, SERVER, LAPTOP = "GPU H200", "this course's machine", "laptop core"


def state(**moved: object) -> roofline.State:
    return roofline.compute(**(START | moved))


def shown(**moved: object) -> roofline.State:
    return state(show=POINT, **moved)


def rows(one: roofline.State) -> dict[str, str]:
    return dict(roofline.readout(one).rows)


@cached
def figure() -> Figure:
    own = plots.blank((8, 4.1))
    roofline.draw(own, state())
    plots.Painter(own).png()  # lays it out
    return own


def drawn(one: roofline.State) -> SimpleNamespace:
    """What the explorer draws, always in the same figure: nothing of the state before may be left."""
    roofline.draw(figure(), one)
    return figure().mha_course_parts


@pytest.mark.parametrize(
    ("moved", "flops", "moves"),
    [
        ({}, 2**30, 4 * (2 * 2**20 + 2**23)),  # q, k, then 4 x 8 x 512 x 512 scores
        ({"dtype": "bfloat16"}, 2**30, 2 * (2 * 2**20 + 2**23)),
        ({"step": "q_proj"}, 2**30, 4 * (2 * 2**20 + 2**18 + 512)),
        ({"step": "softmax"}, 5 * 2**23, 8 * 2**23),
        ({"step": "weighted sum"}, 2**30, 4 * (2 * 2**20 + 2**23)),
        ({"kernel": "fused"}, 2**31, 4 * (4 * 2**20 + 4 * 8 * 512)),  # one number for each query is kept
        ({"kernel": "fused", "step": "softmax"}, 2**31, 4 * (4 * 2**20 + 4 * 8 * 512)),
        ({"kernel": "fused", "step": "q_proj"}, 2**30, 4 * (2 * 2**20 + 2**18 + 512)),
        ({"heads": "32", "length": "128", "batch": "1", "width": "1024"}, 2**25, 4 * (2 * 2**17 + 2**19)),
    ],
)
def test_counts_by_hand(moved: dict[str, object], flops: int, moves: int) -> None:
    one = shown(**moved)
    assert (one.cost.flops, one.cost.bytes) == (flops, moves)
    (x,), (y,) = drawn(one).point.get_data()
    assert x == pytest.approx(flops / moves)
    roof = one.roof
    assert y == pytest.approx(min(roof.peak, roof.bandwidth * flops / moves))
    assert one.seconds == pytest.approx(max(flops / roof.peak, moves / roof.bandwidth))


@pytest.mark.parametrize("machine", [LAPTOP, SERVER, GPU])
@pytest.mark.parametrize("kernel", ["explicit", "fused"])
def test_all_steps_take_the_sum_of_their_times(machine: str, kernel: str) -> None:
    one = shown(step="all steps", machine=machine, kernel=kernel, dtype="bfloat16")
    times = {step: max(c.flops / one.roof.peak, c.bytes / one.roof.bandwidth) for step, c in one.costs.items()}
    flops, moves = (sum(getattr(cost, name) for cost in one.costs.values()) for name in ("flops", "bytes"))
    assert one.seconds == pytest.approx(sum(times.values()))
    (x,), (y,) = drawn(one).point.get_data()
    assert x == pytest.approx(flops / moves)
    assert y == pytest.approx(flops / sum(times.values()))
    assert y <= one.roof.attainable(x) * (1 + 1e-9)
    memory = sum(t for step, t in times.items() if one.costs[step].bytes / one.roof.bandwidth >= t)
    assert rows(one)["bound"] == f"memory for {memory / sum(times.values()):.0%} of the time"


def test_readout_by_hand() -> None:
    expected = {
        "scores": "float32",
        "reads": "q, k",
        "writes": "scores (B, H, S, S)",
        "machine": "AVX2 at 3 GHz",
        "peak": "96 GFLOP/s",
        "bandwidth": "25.6 GB/s",
        "ridge": "3.75 FLOP per byte",
        "your guess": "10 FLOP per byte",
    }
    found = {
        "FLOPs": "1.07 GFLOP",
        "bytes": "41.9 MB",
        "FLOP per byte": "25.6",
        "bound": "compute",
        "predicted time": "11.2 ms",
        "speed": "96 GFLOP/s",
    }
    assert rows(state()) == expected | dict.fromkeys(found, "?")
    assert rows(shown()) == expected | found
    found = rows(shown(machine=GPU, step="softmax", batch="1", length="128", dtype="bfloat16", guess=-1))
    assert found["softmax"] == "bfloat16"
    assert found["peak"] == "989 TFLOP/s"
    assert found["bandwidth"] == "4.8 TB/s"
    assert found["ridge"] == "206 FLOP per byte"
    assert found["your guess"] == "0.1 FLOP per byte"
    assert found["FLOPs"] == "655 kFLOP"  # 5 x 8 x 128 x 128
    assert found["bytes"] == "524 kB"
    assert found["bound"] == "memory"
    assert found["predicted time"] == "0.109 us"
    assert found["speed"] == "6 TFLOP/s"
    found = rows(shown(machine=SERVER, kernel="fused", length="8192", batch="32", width="4096"))
    assert found["attention"] == "in one kernel"
    assert found["predicted time"] == "352 s"  # 4 x 32 x 8192 x 8192 x 4096 / 100e9


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ({}, "Your guess says that compute bounds this step. Move it where you think it is, then show the point."),
        ({"guess": 0.5}, "Your guess says that memory bounds this step."),
        ({"show": POINT}, "Your guess was 2.56 times too low. Compute bounds this step: its bytes arrive in time."),
        ({"show": POINT, "guess": 3}, "Your guess was 39.1 times too high."),
        ({"show": POINT, "guess": 1.4}, "Your guess was close."),
        ({"show": POINT, "guess": 1.2}, "Your guess was 1.62 times too low."),
        ({"show": POINT, "guess": 1.6}, "Your guess was 1.56 times too high."),
        (
            {"show": POINT, "step": "softmax"},
            "Your guess was 16 times too high. Memory bounds this step: its arithmetic could go 6 times as fast. "
            "Its exponentials are not counted.",
        ),
        (
            {"show": POINT, "machine": GPU, "heads": "32", "dtype": "bfloat16"},
            "Memory bounds this step: its arithmetic could go 13.7 times as fast.",
        ),
        ({"show": POINT, "step": "all steps"}, " The steps run one after the other, each at its own speed: the mean"),
    ],
)
def test_what_a_state_means(moved: dict[str, object], said: str) -> None:
    assert said in roofline.readout(state(**moved)).sentence


def test_nothing_of_the_point_is_said_before_it_is_shown() -> None:
    pictures, sentences = set(), set()
    painter = plots.Painter(figure())
    for control in roofline.CONTROLS[:5]:
        for value in control.values():
            one = state(**{control.name: value})
            parts = drawn(one)
            assert not parts.point.get_visible()
            assert not parts.others.get_visible()
            parts.title.set_text("")
            pictures.add(painter.png())
            sentences.add(roofline.readout(one).sentence)
            assert list(rows(one).values())[8:] == ["?"] * 6
    assert len(pictures) == len(sentences) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("machine", [LAPTOP, SERVER, GPU])
def test_the_roof(machine: str, dtype: str) -> None:
    one = state(machine=machine, dtype=dtype, guess=0.25)
    parts, roof = drawn(one), roofline.ROOFS[machine, dtype]
    low, high = parts.roof.axes.get_xlim()
    np.testing.assert_allclose(parts.roof.get_xdata(), [low, roof.peak / roof.bandwidth, high])
    np.testing.assert_allclose(parts.roof.get_ydata(), [low * roof.bandwidth, roof.peak, roof.peak])
    others = sorted(other.peak for (name, of), other in roofline.ROOFS.items() if of == dtype and name != machine)
    assert sorted(line.get_ydata()[-1] for line in parts.other_roofs) == others
    assert parts.memory_side.get_x() + parts.memory_side.get_width() == pytest.approx(roof.peak / roof.bandwidth)
    assert parts.memory.get_position()[0] < roof.ridge < parts.compute.get_position()[0]
    (x,), (y,) = parts.guess.get_data()
    assert x == pytest.approx(10**0.25)
    assert y == pytest.approx(min(roof.peak, roof.bandwidth * x))


def test_the_other_steps_lie_on_the_roof() -> None:
    one = shown(step="softmax", machine=GPU)
    parts = drawn(one)
    assert parts.point.get_visible()
    assert parts.others.get_visible()
    others = [one.costs[step] for step in ("q_proj", "k_proj", "v_proj", "scores", "weighted sum", "out_proj")]
    x, y = parts.others.get_data()
    np.testing.assert_allclose(x, [cost.flops / cost.bytes for cost in others])
    np.testing.assert_allclose(y, [min(67e12, 4.8e12 * at) for at in x])
    assert len(drawn(shown(step="all steps")).others.get_xdata()) == 7
    assert len(drawn(shown(kernel="fused")).others.get_xdata()) == 4
    assert parts.title.get_text() == "attention in float32, B = 4, S = 512, E = 512, H = 8"


def test_every_point_is_inside_the_axes() -> None:
    ax = drawn(state()).point.axes
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    ends = [shown(kernel="fused", length="8192", dtype="bfloat16"), shown(step="softmax")]
    ends += [shown(step="q_proj", width="4096", length="8192", batch="32", dtype="bfloat16"), shown(heads="32")]
    for one in ends:
        assert all(left < cost.intensity < right for cost in one.costs.values())
    for guess in (-1, 4):
        assert math.log10(left) + 0.1 < guess < math.log10(right) - 0.1, "a marker has a width"
    assert all(bottom < roof.attainable(left) and roof.peak < top for roof in roofline.ROOFS.values())


def test_every_value_of_every_control_changes_the_picture() -> None:
    painter = plots.Painter(figure())
    for control in roofline.CONTROLS:
        seen, values = set(), control.values()
        values = values if len(values) < 20 else values[::9]
        for value in values:
            drawn(state(**{"show": POINT, control.name: value}))
            seen.add(painter.png())
        assert len(seen) == len(values), control.name


def test_a_picture_does_not_depend_on_what_was_drawn_before() -> None:
    start = shown(machine=GPU, step="all steps", dtype="bfloat16", guess=3)
    end = state(kernel="fused", guess=-1)
    pictures = []
    for states in ([end], [start, end]):
        own = plots.blank((8, 4.1))
        painter = plots.Painter(own)
        for one in states:
            roofline.draw(own, one)
            picture = painter.png()
        pictures.append(picture)
    assert pictures[0] == pictures[1]


def test_no_word_leaves_the_picture() -> None:
    for moved in ({"machine": SERVER}, {"machine": GPU, "dtype": "bfloat16"}):
        longest = state(step="weighted sum", batch="32", length="8192", width="4096", heads="32", **moved)
        parts = drawn(longest)
        words = [parts.title, parts.memory, parts.compute]
        boxes = [text.get_window_extent() for text in words]
        assert all(box.x0 > 0 and box.x1 < figure().bbox.x1 for box in boxes)
        assert boxes[1].x1 < boxes[2].x0
        assert boxes[1].x0 > parts.roof.axes.bbox.x0
