"""Rotary frequencies: the paper's, their long-term decay, and the three ways to slow them for longer inputs."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from mha_course.positions import Rotary, rotary_frequencies
from tests.positions import loops

SCALINGS = [
    {"scaling": "interpolation", "factor": 4},
    {"scaling": "ntk", "factor": 4},
    {"scaling": "yarn", "factor": 4, "trained_length": 500},
]


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def frequencies(*args, **options):
    return rotary_frequencies(*args, dtype=torch.float64, **options)


def exact(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@given(st.integers(1, 65), st.floats(1, 1e6) | st.integers(1, 100))
def test_frequencies_equal_the_paper(pairs, base):
    assert_close(frequencies(2 * pairs, base=base), exact(loops.frequencies(2 * pairs, base)))


def test_frequencies_by_hand():
    assert_close(frequencies(8), exact([1, 0.1, 0.01, 0.001]))
    assert_close(frequencies(6, base=8), exact([1, 1 / 2, 1 / 4]))
    assert_close(frequencies(2), exact([1]))


def test_where_and_in_which_type_they_are_made():
    assert rotary_frequencies(8).dtype == torch.float32
    assert frequencies(8).dtype == torch.float64
    assert_close(rotary_frequencies(8), torch.tensor([1, 0.1, 0.01, 0.001]))
    for options in ({}, *SCALINGS):
        assert rotary_frequencies(8, device="meta", **options).device.type == "meta"


@pytest.mark.parametrize(
    ("width", "means"),
    [
        (64, [16.5, 15.9478, 14.4845, 10.4276, 8.8143, 8.0106, 5.7331, 7.4653, 3.8605]),
        (128, [32.5, 31.5382, 28.956, 20.8454, 17.9541, 15.2424, 12.6295, 10.2273, 7.2448]),
    ],
)
def test_long_term_decay(width, means):
    """Section 3.4.3 of the paper: the mean over i of |S_i|, S_i the sum of the first i unit vectors at a distance."""
    for distance, want in zip((0, 1, 2, 5, 10, 20, 50, 100, 200), means, strict=True):
        angle = distance * frequencies(width)
        sums = torch.polar(torch.ones_like(angle), angle).cumsum(0)
        assert sums.abs().mean().item() == pytest.approx(want, abs=6e-5)


# The three scalings


@pytest.mark.parametrize("options", SCALINGS)
@pytest.mark.parametrize("base", [100.0, 10_000])
def test_factor_one_changes_nothing(options, base):
    assert_close(frequencies(14, base=base, **{**options, "factor": 1}), frequencies(14, base=base))
    x = vectors(5, 14)
    assert_close(Rotary(14, base=base, **{**options, "factor": 1})(x), Rotary(14, base=base)(x))


@given(st.integers(1, 33), st.floats(1, 100), st.floats(2, 1e6))
def test_interpolation_divides_every_frequency(pairs, factor, base):
    got = frequencies(2 * pairs, base=base, scaling="interpolation", factor=factor)
    assert_close(got, exact(loops.frequencies(2 * pairs, base)) / factor)


@pytest.mark.parametrize("interleaved", [False, True])
def test_interpolation_squeezes_positions(interleaved):
    options = {"rotary_dim": 10, "interleaved": interleaved, "base": 1000.0}
    slow = Rotary(14, scaling="interpolation", factor=3, **options)
    for p in range(7):
        x = vectors(1, 14, seed=p)
        assert_close(slow(x, offset=3 * p), Rotary(14, **options)(x, offset=p))


@given(st.integers(2, 33), st.floats(1, 100), st.floats(2, 1e6))
def test_ntk_keeps_the_fastest_and_divides_the_slowest(pairs, factor, base):
    old, new = (
        exact(loops.frequencies(2 * pairs, base)),
        frequencies(2 * pairs, base=base, scaling="ntk", factor=factor),
    )
    assert new[0] == 1
    assert_close(new[-1], old[-1] / factor)
    # between, the share grows evenly in the exponent: pair i is divided by factor^(i / (R/2 - 1))
    assert_close(new, old / factor ** (torch.arange(pairs, dtype=torch.float64) / (pairs - 1)))


@given(st.integers(1, 65), st.floats(1, 100), st.floats(5, 1e6), st.integers(220, 10**5))
def test_yarn_equals_the_published_code(pairs, factor, base, trained_length):
    options = {"base": base, "factor": factor, "trained_length": trained_length}
    got = frequencies(2 * pairs, scaling="yarn", **options)
    low = math.floor(2 * pairs * math.log(trained_length / (64 * math.pi)) / (2 * math.log(base)))
    if low < 2 * pairs:  # otherwise the published ramp runs backwards
        assert_close(got, exact(loops.yarn(2 * pairs, base, factor, trained_length)))
    else:
        assert_close(got, frequencies(2 * pairs, base=base))


def test_yarn_of_llama_by_hand():
    # width 128, base 10,000, trained on 4096: pair i makes 4096 / (2 pi 10,000^(i/64)) turns; 32 at i = 20.94, so that
    # the first 20 and pair 20 keep their pace; one turn at i = 45.03, so that pairs from 46 on are divided by factor
    old = frequencies(128)
    new = frequencies(128, scaling="yarn", factor=8, trained_length=4096)
    kept = ((old / new) - 1).abs() < 1e-12
    divided = ((old / new) - 8).abs() < 1e-9
    assert kept.tolist() == [i <= 20 for i in range(64)]
    assert divided.tolist() == [i >= 46 for i in range(64)]
    # halfway between, half of each
    assert_close(new[33], old[33] * (1 + 1 / 8) / 2)


def test_yarn_where_every_clock_is_fast_or_slow():
    # base 2, width 8: the slowest period is 2 pi 2^(3/4) = 10.6 positions
    assert_close(frequencies(8, base=2, scaling="yarn", factor=5, trained_length=10_000), frequencies(8, base=2))
    # trained on one token: none makes a turn
    slow = frequencies(8, scaling="yarn", factor=5, trained_length=1)
    assert_close(slow[1:], frequencies(8)[1:] / 5)


def test_yarn_where_both_bounds_round_to_one_pair():
    # base 1e300: trained on 4096, 32 turns at i = 0.02 and one at 0.04 of width 4; between 0 and 1
    got = frequencies(4, base=1e300, scaling="yarn", factor=2, trained_length=4096)
    assert_close(got, exact([1, 1e-150 / 2]), rtol=1e-9, atol=0)
    # one turn exactly: trained on 6 = less than 2 pi, both bounds are 0
    got = frequencies(4, scaling="yarn", factor=2, trained_length=6)
    assert_close(got, exact([1, 0.005]))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("factor", [1, 4, 16.0])
def test_yarn_sharpens_the_scores(interleaved, factor):
    options = {"base": 1000.0, "scaling": "yarn", "factor": factor, "trained_length": 300}
    module = Rotary(14, rotary_dim=10, interleaved=interleaved, **options)
    x = vectors(5, 14)
    magnitude = 0.1 * math.log(factor) + 1
    slow = loops.yarn(10, 1000.0, factor, 300)
    want = loops.turned(x, slow, interleaved=interleaved, offset=7, magnitude=magnitude)
    assert_close(module(x, offset=7), want)
    assert_close(module(x)[:, :10].norm(dim=-1), magnitude * x[:, :10].norm(dim=-1))
    assert_close(module(x)[:, 10:], x[:, 10:], rtol=0, atol=0)


@pytest.mark.parametrize("options", SCALINGS[:2])
def test_the_others_do_not(options):
    x = vectors(5, 14)
    assert_close(Rotary(14, **options)(x, offset=7).norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("options", SCALINGS)
def test_a_scaled_score_depends_on_the_distance_alone_too(options):
    module, q, k = Rotary(14, base=100.0, **options), vectors(1, 14), vectors(1, 14, seed=1)
    scores = [module(q, offset=9 + shift) @ module(k, offset=shift).T for shift in (0, 1, 50, 5000)]
    for score in scores:
        assert_close(score, scores[0])
    assert (scores[0] - Rotary(14, base=100.0)(q, offset=9) @ k.T).abs() > 1e-3


@pytest.mark.parametrize("options", SCALINGS)
def test_a_module_turns_by_its_frequencies(options):
    module, x = Rotary(14, rotary_dim=10, base=100.0, **options), vectors(3, 14)
    magnitude = 0.1 * math.log(4) + 1 if options["scaling"] == "yarn" else 1
    slow = frequencies(10, base=100.0, **options).tolist()
    want = loops.turned(x, slow, interleaved=False, offset=11, magnitude=magnitude)
    assert_close(module(x, offset=11), want)


LONG = {"scaling": "yarn", "factor": 2.0}
NAMES = "'interpolation', 'ntk'"
BAD = [
    ({"rotary_dim": 4.0}, TypeError, "rotary_dim must be an integer, got float"),
    ({"rotary_dim": 0}, ValueError, "rotary_dim must be at least 2, got 0"),
    ({"rotary_dim": 7}, ValueError, "rotary_dim must be even, each pair is turned as one, got 7"),
    ({"rotary_dim": 2, "scaling": "ntk"}, ValueError, "rotary_dim must be at least 4, got 2"),
    ({"base": "1"}, TypeError, "base must be a number, got str"),
    ({"base": 0.0}, ValueError, "base must be finite and at least 1, got 0.0"),
    ({"base": math.inf}, ValueError, "base must be finite and at least 1, got inf"),
    ({"base": 10**400}, ValueError, f"base must be finite and at least 1, got {10**400}"),
    ({"base": 1, "trained_length": 9, **LONG}, ValueError, "base must be finite and above 1, got 1"),
    ({"scaling": "linear"}, ValueError, f"scaling must be None, {NAMES} or 'yarn', got 'linear'"),
    ({"scaling": "ntk", "factor": 0.5}, ValueError, "factor must be finite and at least 1, got 0.5"),
    ({"scaling": "ntk", "factor": math.inf}, ValueError, "factor must be finite and at least 1, got inf"),
    ({"scaling": "ntk", "factor": math.nan}, ValueError, "factor must be finite and at least 1, got nan"),
    ({"scaling": "ntk", "factor": None}, TypeError, "factor must be a number, got NoneType"),
    ({"factor": 2}, ValueError, f"factor needs a scaling: {NAMES} or 'yarn', got factor 2 without"),
    (LONG, ValueError, "trained_length is for scaling 'yarn' alone, got None with 'yarn'"),
    ({"trained_length": 9}, ValueError, "trained_length is for scaling 'yarn' alone, got 9 with None"),
    ({"trained_length": 9, "scaling": "ntk"}, ValueError, "trained_length is for .* alone, got 9 with 'ntk'"),
    ({"trained_length": 0, **LONG}, ValueError, "trained_length must be at least 1, got 0"),
    ({"trained_length": 9.0, **LONG}, TypeError, "trained_length must be an integer, got float"),
    ({"dtype": torch.bfloat16}, TypeError, "dtype must be torch.float32 or torch.float64, got torch.bfloat16"),
    ({"dtype": torch.int64}, TypeError, "dtype must be torch.float32 or torch.float64, got torch.int64"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "match"), BAD)
def test_bad_input(options, error, match):
    with pytest.raises(error, match=f"^{match}$"):
        rotary_frequencies(**{"rotary_dim": 8, **options})
    if "dtype" not in options:
        with pytest.raises(error, match=f"^{match}$"):
            Rotary(8, **{"rotary_dim": 8, **options})
