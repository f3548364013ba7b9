"""The explorer `cache`: its counts by hand, its small text by plain loops, and that the picture says so."""

from functools import cache as cached
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from mha_course import plots
from mha_course.explorers import _cache as cache

START = {control.name: control.start for control in cache.CONTROLS}
KEEP = ("all tokens", "last 4096", "last 4096 + 4 sinks")
BYTES = {"float32": 4, "bfloat16": 2, "float8": 1}


def state(**moved: object) -> cache.State:
    return cache.compute(**(START | moved))


def rows(one: cache.State) -> dict[str, str]:
    return dict(cache.readout(one).rows)


@cached
def figure() -> Figure:
    return plots.blank((8, 4.1))


def drawn(one: cache.State) -> SimpleNamespace:
    """What the explorer draws, always in the same figure: nothing of the state before may be left."""
    cache.draw(figure(), one)
    return figure().mha_course_parts


@pytest.mark.parametrize(
    ("layers", "heads", "width", "per_token", "name"),
    [
        (32, 32, 128, 524_288, "Llama-2 7B"),
        (40, 40, 128, 819_200, "Llama-2 13B"),
        (80, 8, 128, 327_680, "Llama-2 70B, Llama-3 70B"),
        (32, 8, 128, 131_072, "Llama-3 8B, Mistral 7B"),
        (126, 8, 128, 516_096, "Llama-3.1 405B"),
        (32, 1, 64, 8_192, "Falcon 7B"),
        (16, 2, 256, 32_768, "no known model"),
    ],
)
def test_models(layers: int, heads: int, width: int, per_token: int, name: str) -> None:
    one = state(layers=str(layers), heads=str(heads), width=str(width))
    assert one.per_token == per_token
    assert rows(one)["cache in bfloat16"] == name
    assert rows(one)["bytes of a token"] == f"{per_token:,}"


def test_every_named_model_can_be_set() -> None:
    options = [{int(option) for option in control.options} for control in cache.CONTROLS[:3]]
    assert all(size in sizes for model in cache.MODELS for size, sizes in zip(model, options, strict=True))


@pytest.mark.parametrize(
    ("dtype", "context", "batch", "keep"),
    [
        ("bfloat16", 8192, 16, KEEP[0]),
        ("float32", 2048, 1, KEEP[1]),
        ("float8", 32768, 64, KEEP[1]),
        ("bfloat16", 131072, 7, KEEP[2]),
    ],
)
def test_counts_by_hand(dtype: str, context: int, batch: int, keep: str) -> None:
    one = state(dtype=dtype, context=str(context), batch=batch, keep=keep)
    most = {KEEP[0]: context, KEEP[1]: 4096, KEEP[2]: 4100}[keep]
    token = 2 * 32 * 8 * 128 * BYTES[dtype]
    assert one.per_token == token
    assert one.held == min(context, most)
    assert one.read == token * min(context, most)
    assert one.total == batch * token * min(context, most)


def test_readout_by_hand() -> None:
    found = rows(state())
    assert found == {
        "cache in bfloat16": "Llama-3 8B, Mistral 7B",
        "bytes of a token": "131,072",
        "tokens held": "8,192 of 8,192",
        "held, 16 sequences": "17.2 GB",  # 2^17 2^13 2^4 = 2^34
        "read for a new token": "1.07 GB",
        "for all, at 1 TB/s": "17.2 ms",
        "fits 8 / 24 / 80 GB:": "",
        "batch, this context": "7 / 22 / 74",
        "context, this batch": "3,814 / 11,444 / 38,146",
    }
    found = rows(state(layers="126", heads="64", width="256", dtype="float32", context="131072", batch=64))
    assert found["held, 64 sequences"] == "139 TB"
    assert found["read for a new token"] == "2.16 TB"
    assert found["for all, at 1 TB/s"] == "139 s"
    assert found["batch, this context"] == "0 / 0 / 0"
    found = rows(state(layers="80", keep=KEEP[1], context="32768"))
    assert found["context, this batch"] == "1,525 / any / any"
    assert found["tokens held"] == "4,096 of 32,768"
    assert found["batch, this context"] == "5 / 17 / 59"
    found = rows(state(layers="16", heads="1", width="64", dtype="float8", context="2048", batch=1))
    assert found["held, 1 sequence"] == "4.19 MB"
    assert found["for all, at 1 TB/s"] == "0.00419 ms"
    assert found["context, this batch"] == "3,906,250 / 11,718,750 / 39,062,500"


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ({}, "16 sequences of 8,192 tokens: 17.2 GB, it fits in 24 GB (weights not counted)."),
        ({"batch": 1}, "1 sequence of 8,192 tokens: 1.07 GB, it fits in 8 GB (weights not counted)."),
        ({"batch": 64}, "64 sequences of 8,192 tokens: 68.7 GB, it fits in 80 GB (weights not counted)."),
        ({"context": "131072"}, "16 sequences of 131,072 tokens: 275 GB, more than 80 GB (weights not counted)."),
        ({}, " Twice the context is twice the memory, and 2.15 GB to read for each new token."),
        ({"keep": KEEP[1], "context": "2048"}, " The text is shorter than the window: nothing is dropped yet."),
        (
            {"keep": KEEP[1], "context": "32768"},
            " Only the last 4,096 tokens are held: 8 times less, however long the text; no later token attends",
        ),
        (
            {"keep": KEEP[2], "context": "131072"},
            " Only the last 4,096 tokens and the first 4 are held: 32 times less, however long the text;",
        ),
    ],
)
def test_what_a_state_means(moved: dict[str, object], said: str) -> None:
    assert said in cache.readout(state(**moved)).sentence


@pytest.mark.parametrize("keep", KEEP)
def test_the_frontiers(keep: str) -> None:
    one = state(keep=keep, layers="40")
    token, most = 2 * 40 * 8 * 128 * 2, {KEEP[0]: 10**9, KEEP[1]: 4096, KEEP[2]: 4100}[keep]
    for line, memory in zip(drawn(one).lines, (8, 24, 80), strict=True):
        contexts = line.get_xdata()
        assert (contexts[0], contexts[-1]) == (512, pytest.approx(2**19))
        fits = [memory * 1e9 / (token * min(context, most)) for context in contexts]
        np.testing.assert_allclose(line.get_ydata(), fits, rtol=1e-12)
    texts, lines = figure().axes[0].get_legend().get_texts(), drawn(one).lines
    assert [text.get_text() for text in texts] == ["8 GB", "24 GB", "80 GB"]
    drawn_as = [handle.get_color() for handle in figure().axes[0].get_legend().get_lines()]
    assert drawn_as == [line.get_color() for line in lines]
    assert len(set(drawn_as)) == 3


@pytest.mark.parametrize(
    ("batch", "context", "index"), [(1, "8192", 0), (16, "8192", 1), (64, "8192", 2), (16, "131072", None)]
)
def test_the_point_has_the_colour_of_the_smallest_memory(batch: int, context: str, index: int | None) -> None:
    one = state(batch=batch, context=context)
    parts = drawn(one)
    (x,), (y,) = parts.point.get_data()
    assert (x, y) == (int(context), batch)
    below = [batch <= np.interp(int(context), line.get_xdata(), line.get_ydata()) for line in parts.lines]
    assert below == [index is not None and i >= index for i in range(3)]
    colour = "black" if index is None else parts.lines[index].get_color()
    assert parts.point.get_markerfacecolor() == colour


def test_exactly_full_fits() -> None:
    full = state()._replace(per_token=10**9, held=24, batch=1)
    assert "it fits in 24 GB" in cache.readout(full).sentence
    assert "it fits in 80 GB" in cache.readout(full._replace(per_token=10**9 + 1)).sentence


@pytest.mark.parametrize(("keep", "window", "sinks"), [(KEEP[0], 20, 0), (KEEP[1], 6, 0), (KEEP[2], 6, 2)])
def test_the_small_text(keep: str, window: int, sinks: int) -> None:
    parts = drawn(state(keep=keep))
    handles = figure().axes[1].get_legend().get_patches()
    words = [text.get_text() for text in figure().axes[1].get_legend().get_texts()]
    named = {word: handle.get_facecolor()[:3] for word, handle in zip(words, handles, strict=True)}
    assert len({*named.values(), to_rgb("white")}) == 4
    colours = parts.held.get_facecolor().reshape(20, 20, -1)
    for t, s in product(range(20), repeat=2):
        shade = named["sink"] if s < sinks else named["held"] if t - s < window else named["dropped"]
        assert tuple(colours[t, s][:3]) == (shade if s <= t else to_rgb("white")), (t, s)
    name = {KEEP[0]: "all tokens", KEEP[1]: "last 6", KEEP[2]: "last 6\n+ 2 sinks"}[keep]
    assert parts.name.get_text() == name


def test_every_point_is_inside_the_axes() -> None:
    ax = drawn(state()).point.axes
    for control, (low, high) in zip(
        (cache.CONTROLS[4], cache.CONTROLS[5]), (ax.get_xlim(), ax.get_ylim()), strict=True
    ):
        assert all(low < float(value) < high for value in control.values())
    least = state(layers="16", heads="1", width="64", dtype="float8").frontiers
    most = state(layers="126", heads="64", width="256", dtype="float32").frontiers
    assert least.max() < ax.get_ylim()[1]
    assert most[:, 0].min() > ax.get_ylim()[0], "a piece of every line is there"


def test_every_value_of_every_control_changes_the_picture() -> None:
    painter = plots.Painter(figure())
    for control in cache.CONTROLS:
        seen, values = set(), control.values()
        values = values if len(values) < 20 else values[::9]
        for value in values:
            drawn(state(**{control.name: value}))
            seen.add(painter.png())
        assert len(seen) == len(values), control.name


def test_a_picture_does_not_depend_on_what_was_drawn_before() -> None:
    start = state(keep=KEEP[2], layers="126", batch=64)
    end = state(keep=KEEP[0], heads="1", context="2048")
    pictures = []
    for states in ([end], [start, end]):
        own = plots.blank((8, 4.1))
        painter = plots.Painter(own)
        for one in states:
            cache.draw(own, one)
            picture = painter.png()
        pictures.append(picture)
    assert pictures[0] == pictures[1]
