"""Explorer `positions`, score against distance: each scheme by loops of its own, what moves and what does not."""

import cmath
import io
import itertools
import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from mha_course import explorers, plots
from mha_course.explorers import _positions_distance as distance
from tests.explorers.panel import expect_every_value_to_change_the_picture
from tests.plots.drawn import overlapping, texts_outside

CONTROLS = {control.name: control for control in distance.CONTROLS}
START = {control.name: control.start for control in distance.CONTROLS}
SCHEMES = CONTROLS["scheme"].values()
RELATIVE = [scheme for scheme in SCHEMES if scheme != "sinusoidal"]
TURNED = ["rotary", distance.INTERLEAVED]
KINDS = CONTROLS["vectors"].values()
SIZE = (8, 3.5)


def state(**moved: object) -> distance.State:
    return distance.compute(**(START | moved))


def drawn(*states: distance.State) -> Figure:
    figure = plots.blank(SIZE)
    for one in states:
        distance.draw(figure, one)
    return figure


def content(vectors: str, head: int) -> tuple[np.ndarray, ...]:
    """Tokens and maps of the queries and of the keys."""
    drawn, other = distance._drawn(), int(vectors == "independent")
    pairs = drawn.tokens[0], drawn.tokens[other], drawn.maps[head - 1, 0], drawn.maps[head - 1, other]
    return tuple(x.numpy() for x in pairs)


def turned(x: np.ndarray, p: int, base: float, scheme: str) -> list[complex]:
    """The pairs of a vector as complex numbers, each turned by its angle at position p."""
    half = len(x) // 2
    pairs = x.reshape(half, 2) if scheme == distance.INTERLEAVED else x.reshape(2, half).T
    return [complex(a, b) * cmath.exp(1j * p * base ** (-i / half)) for i, (a, b) in enumerate(pairs)]


def encoding(p: int, base: float) -> np.ndarray:
    return np.array([(math.cos if j % 2 else math.sin)(p * base ** (-(j - j % 2) / 64)) for j in range(64)])


def bucket(d: int) -> int:
    return d if d < 16 else min(31, 16 + int(16 * math.log(d / 16) / math.log(128 / 16) + 1e-6))


def score(pair: int, t: int, s: int, *, scheme: str, vectors: str, head: int, base: float) -> float:
    """One pair of tokens at two places, by the definition of each scheme."""
    x_q, x_k, W_q, W_k = content(vectors, head)
    x_q, x_k = x_q[pair], x_k[pair]
    if scheme == "sinusoidal":
        return float((x_q + encoding(t, base)) @ W_q @ ((x_k + encoding(s, base)) @ W_k)) / 8
    q, k = x_q @ W_q, x_k @ W_k
    if scheme in TURNED:
        pairs = zip(turned(q, t, base, scheme), turned(k, s, base, scheme), strict=True)
        return sum((a * b.conjugate()).real for a, b in pairs) / 8
    bias = 0.0
    if scheme == "ALiBi":
        bias = -(2.0**-head) * (t - s)
    elif scheme == "T5":
        bias = float(distance._drawn().biases[head - 1, bucket(t - s)])
    return float(q @ k) / 8 + bias


@pytest.mark.parametrize("vectors", KINDS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_are_those_of_the_definitions(scheme: str, vectors: str) -> None:
    for head, base, p in ((1, "10000", 64), (8, "100", 127), (3, "10", 90), (4, "500000", 71)):
        what = {"scheme": scheme, "vectors": vectors, "head": head}
        one = state(**what, base=base, position=p)
        wanted = [score(0, p, p - d, **what, base=float(base)) for d in range(65)]
        np.testing.assert_allclose(one.curve, wanted, atol=1e-9)
        first = [score(0, 64, 64 - d, **what, base=float(base)) for d in range(65)]
        np.testing.assert_allclose(one.first, first, atol=1e-9)
        for t, s in ((0, 0), (127, 0), (90, 13), (127, 127), (5, 4)):
            assert one.scores[t, s] == pytest.approx(score(0, t, s, **what, base=float(base)), abs=1e-9)


@pytest.mark.parametrize("vectors", KINDS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_mean_and_spread_of_all_pairs(scheme: str, vectors: str) -> None:
    one = state(scheme=scheme, vectors=vectors, position=77)
    for d in (0, 13, 64):
        what = {"scheme": scheme, "vectors": vectors, "head": START["head"], "base": 10000.0}
        many = [score(pair, 77, 77 - d, **what) for pair in range(400)]
        assert one.mean[d] == pytest.approx(np.mean(many), abs=1e-4)
        assert one.spread[d] == pytest.approx(np.std(many, ddof=1), abs=1e-4)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_keys_ahead_of_the_query_are_not_shown(scheme: str) -> None:
    np.testing.assert_array_equal(np.isnan(state(scheme=scheme).scores), np.triu(np.ones((128, 128)), 1))


@pytest.mark.parametrize("vectors", KINDS)
@pytest.mark.parametrize("scheme", RELATIVE)
def test_the_curve_of_a_relative_scheme_stays_and_its_map_has_stripes(scheme: str, vectors: str) -> None:
    stripes = state(scheme=scheme, vectors=vectors).scores
    for d in (0, 1, 40, 127):
        assert np.ptp(np.diagonal(stripes, -d)) < 1e-9
    for p in CONTROLS["position"].values()[::9]:
        one = state(scheme=scheme, vectors=vectors, position=p)
        assert np.abs(one.curve - one.first).max() < 1e-9
        said = distance.readout(one).sentence
        counts = "it is level: neither place nor distance counts." if scheme == "none" else "only the distance counts."
        assert said.endswith(counts) == (p != 64), p


@pytest.mark.parametrize("vectors", KINDS)
@pytest.mark.parametrize("head", CONTROLS["head"].values())
def test_the_curve_of_an_absolute_scheme_moves(head: float, vectors: str) -> None:
    for p in (65, 80, 127):
        one = state(scheme="sinusoidal", vectors=vectors, head=head, position=p)
        moved = max(abs(a - b) for a, b in zip(one.curve, one.first, strict=True))
        assert moved > 0.3
        assert distance.readout(one).sentence == (
            f"The query at {p} instead of 64: the curve has moved by up to {moved:.2f}, the place counts."
        )
    assert np.ptp(np.diagonal(one.scores, -1)) > 1


def test_at_its_first_place_there_is_nothing_to_compare() -> None:
    for scheme in SCHEMES:
        one = state(scheme=scheme, position=64)
        np.testing.assert_array_equal(one.curve, one.first)
        assert distance.readout(one).sentence == "The query at 64, where the curves start to be compared."


@pytest.mark.parametrize("base", CONTROLS["base"].values())
@pytest.mark.parametrize("scheme", TURNED)
def test_decay_with_distance_is_that_of_q_equal_k_alone(scheme: str, base: str) -> None:
    cosines = np.array([[math.cos(d * float(base) ** (-i / 32)) for i in range(32)] for d in range(65)])
    for head in (1, 5):
        same = state(scheme=scheme, base=base, head=head)
        # E[q.R q] / 8 = 8 times the mean cosine, were W orthogonal
        np.testing.assert_allclose(same.mean, 8 * cosines.mean(axis=1), atol=0.9)
        apart = state(scheme=scheme, base=base, vectors="independent", head=head)
        # 400 pairs of spread 1: five standard errors
        assert np.abs(apart.mean).max() < 0.25
        np.testing.assert_allclose(apart.spread, 1, atol=0.2)


def test_heads_have_their_own_slopes_and_biases() -> None:
    for head in CONTROLS["head"].values():
        one = state(scheme="ALiBi", head=head)
        np.testing.assert_allclose(np.diff(one.curve), np.full(64, -(2.0**-head)))
    far = [state(scheme="T5", head=head).curve for head in (1, 2)]
    for curve in far:
        np.testing.assert_allclose(curve[59:], curve[59])  # 59 to 65 share a bucket
        assert abs(curve[58] - curve[59]) > 1e-6
    assert np.abs(np.diff(far[0]) - np.diff(far[1])).max() > 1


def test_without_positions_no_distance_counts() -> None:
    for vectors in KINDS:
        one = state(scheme="none", vectors=vectors)
        assert np.ptp(one.curve) < 1e-12
        assert np.ptp(one.mean) < 1e-6


@pytest.mark.parametrize("vectors", KINDS)
def test_before_any_position_acts_the_schemes_agree(vectors: str) -> None:
    plain = state(scheme="none", vectors=vectors).curve[0]
    for scheme in ("rotary", distance.INTERLEAVED, "ALiBi"):
        assert state(scheme=scheme, vectors=vectors).curve[0] == pytest.approx(plain)


def test_the_learners_random_numbers_are_left_alone() -> None:
    before = torch.get_rng_state()
    distance._drawn.cache_clear()
    distance._biases.cache_clear()
    for scheme in SCHEMES:
        state(scheme=scheme)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("moved", [{}, {"scheme": "sinusoidal"}, {"scheme": "T5", "position": 64}], ids=str)
def test_the_picture_shows_the_state(moved: dict) -> None:
    one = state(**moved)
    places, curves, _ = drawn(state(scheme="ALiBi", position=127), one).axes
    (image,), (row,) = places.images, places.lines
    np.testing.assert_array_equal(np.asarray(image.get_array().filled(np.nan)), one.scores)
    low, high = image.get_clim()
    assert (low, high) == pytest.approx((np.nanmin(one.scores), np.nanmax(one.scores)))
    assert image.get_extent()[3] == places.get_ylim()[1] == -0.5  # query 0 at the top
    assert list(row.get_xdata()) == [-0.5, one.position + 0.5]
    assert list(row.get_ydata()) == [one.position] * 2
    mean, first, curve = (line.get_ydata() for line in curves.lines)
    np.testing.assert_array_equal(mean, one.mean)
    np.testing.assert_array_equal(first, one.first)
    np.testing.assert_array_equal(curve, one.curve)
    for line in curves.lines:
        np.testing.assert_array_equal(line.get_xdata(), np.arange(65))
    corners = curves.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(corners[:65, 1], one.mean - one.spread)
    np.testing.assert_allclose(corners[65:130, 1], (one.mean + one.spread)[::-1])
    np.testing.assert_allclose(corners[65:130, 0], np.arange(65)[::-1])


def test_equal_scores_have_one_colour() -> None:
    (image,) = drawn(state(scheme="none")).axes[0].images
    assert np.ptp(image.get_clim()) == pytest.approx(1)


def test_the_legend_has_the_colours_of_the_curves() -> None:
    figure = drawn(state())
    (legend,), (mean, first, curve) = figure.legends, figure.axes[1].lines
    named = dict(zip((text.get_text() for text in legend.get_texts()), legend.legend_handles, strict=True))
    assert list(named) == ["this pair, query at its place", "query at 64", "mean of 400 pairs", "± their spread"]
    for line, handle in zip((curve, first, mean), named.values(), strict=False):
        assert handle.get_color() == line.get_color()
        assert handle.get_linestyle() == line.get_linestyle()
    assert first.get_zorder() < curve.get_zorder()  # both can be seen where they meet
    assert first.get_linewidth() > curve.get_linewidth()


def test_every_curve_but_steep_ones_lies_on_its_axes() -> None:
    for scheme, vectors, head in itertools.product(SCHEMES, KINDS, (1, 3, 5, 7, 8)):
        for base in ("10", "500000") if scheme in ("sinusoidal", *TURNED) else ("10000",):
            one = state(scheme=scheme, vectors=vectors, head=head, base=base)
            assert max(one.curve.max(), one.first.max(), (one.mean + one.spread).max()) < distance.HIGH
            if scheme != "ALiBi":
                assert min(one.curve.min(), one.first.min(), (one.mean - one.spread).min()) > distance.LOW


def test_readout() -> None:
    one = state()
    rows, sentence = distance.readout(one)
    assert rows == [
        ("distance", "this pair", "mean of 400", "their spread"),
        ("0", "+10.05", "+7.93", "2.04"),
        ("1", "+9.79", "+7.67", "1.98"),
        ("10", "+7.92", "+5.28", "1.63"),
        ("50", "+4.11", "+3.91", "1.51"),
    ]
    assert sentence == "The query at 100 instead of 64: the curve has not moved, only the distance counts."
    for scheme, vectors in itertools.product(SCHEMES, KINDS):
        one = state(scheme=scheme, vectors=vectors)
        for d, row in zip((0, 1, 10, 50), distance.readout(one).rows[1:], strict=True):
            assert row == (str(d), f"{one.curve[d]:+z.2f}", f"{one.mean[d]:+z.2f}", f"{one.spread[d]:.2f}")


def test_first_state_is_what_the_alternative_text_says() -> None:
    one = state()
    assert (one.scheme, one.position, START["vectors"]) == ("rotary", 100, "q = k")
    assert (round(one.mean[0]), round(one.mean[50])) == (8, 4)


STATES = {
    "first": {},
    "absolute": {"scheme": "sinusoidal", "position": 127, "head": 8, "base": "500000"},
    "steep": {"scheme": "ALiBi", "head": 1, "position": 64, "vectors": "independent"},
    "buckets": {"scheme": "T5", "head": 2},
}


@pytest.mark.parametrize("moved", STATES.values(), ids=STATES)
def test_texts_lie_inside_the_picture_and_apart(moved: dict) -> None:
    figure = drawn(state(**moved))
    assert texts_outside(figure) == []
    assert overlapping(figure) == []


@pytest.mark.parametrize("moved", STATES.values(), ids=STATES)
def test_a_blitted_redraw_equals_a_fresh_full_draw(moved: dict) -> None:
    figure = drawn(state(base="10", vectors="independent"))
    painter = plots.Painter(figure)
    painter.png()
    for controls in ({"scheme": "T5", "position": 70}, moved):
        distance.draw(figure, state(**controls))
        blitted = painter.png()
    fresh = drawn(state(**moved))
    for artist in fresh.findobj(lambda artist: artist.get_animated()):
        artist.set(animated=False, zorder=artist.get_zorder() + 100)  # over all that stands still
    a, b = (np.asarray(Image.open(io.BytesIO(data))).astype(int) for data in (blitted, plots.png(fresh)))
    assert a.shape == b.shape
    assert (np.abs(a - b).max(-1) > 8).sum() == 0


def test_through_the_panel_every_value_of_every_control_changes_the_picture() -> None:
    expect_every_value_to_change_the_picture(explorers.positions("distance"), (64, 99, 101, 127))


def test_what_is_stored_is_the_same_each_time() -> None:
    bundles = []
    for _ in range(2):
        explorer = explorers.positions("distance")
        bundles.append(explorer._repr_mimebundle_())
        explorer.close()
    (a, meta), (b, _) = bundles
    assert a["image/png"] == b["image/png"]
    assert a["text/plain"] == b["text/plain"]
    assert meta["image/png"]["alt"] in a["text/plain"]
