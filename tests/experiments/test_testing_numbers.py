"""Dropout before and after the softmax, matmul and bmm, and what rounding looks like."""

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch.testing import assert_close

from mha_course.experiments import testing_numbers as lesson

SCORES = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])


def expected(kind, p):
    """The mean weights, exactly: over all 32 ways to drop."""
    mean = torch.zeros(5, dtype=torch.float64)
    for gone in itertools.product([False, True], repeat=5):
        chance = math.prod(p if g else 1 - p for g in gone)
        lost = torch.tensor(gone)
        if kind == lesson.WEIGHTS:
            weights = torch.where(lost, 0, SCORES.double().softmax(-1) / (1 - p))
        elif kind == lesson.SCORES:
            weights = torch.where(lost, 0, SCORES.double() / (1 - p)).softmax(-1)
        elif all(gone):
            continue  # NaN
        else:
            weights = SCORES.double().masked_fill(lost, -math.inf).softmax(-1)
        mean += chance * weights
    return mean / (1 - p**5 if kind == lesson.KEYS else 1)


@pytest.mark.parametrize("kind", lesson.KINDS)
@pytest.mark.parametrize("p", [0.1, 0.4])
def test_mean_weights_are_those_over_all_ways_to_drop(kind, p):
    found = lesson.drop(SCORES, kind, p=p)
    off = (found.mean - expected(kind, p).numpy()) / found.error
    assert np.abs(off).max() < 3.5
    assert_allclose(found.without, SCORES.double().softmax(-1))
    share = p**5 if kind == lesson.KEYS else 0
    assert abs(found.nan - share) <= 4 * math.sqrt(share / 20_000)


def test_only_dropout_on_weights_is_right_on_average_and_only_its_sums_vary():
    weights, scores, keys = (lesson.drop(SCORES, kind) for kind in lesson.KINDS)
    bias = [(x.mean / x.without - 1) for x in (weights, scores, keys)]
    assert np.abs(bias[0]).max() < 0.01
    assert bias[1][-1] > 0.3
    assert bias[2][0] < -0.04
    assert (bias[2][1:] > 0.05).all()
    assert weights.sums.std() > 0.1
    assert_allclose(scores.sums, 1)
    assert_allclose(keys.sums[~np.isnan(keys.sums)], 1)


def test_error_is_the_standard_error_of_the_mean():
    means = np.array([lesson.drop(SCORES, lesson.WEIGHTS, draws=2000, seed=s).mean for s in range(200)])
    error = lesson.drop(SCORES, lesson.WEIGHTS, draws=2000).error
    assert_allclose(means.std(0), error, rtol=0.25)


def test_dropped_scores_behind_a_mask_are_nan():
    masked = torch.tensor([2.0, 1.0, -math.inf])
    assert abs(lesson.drop(masked, lesson.SCORES).nan - 0.1) < 0.01
    assert lesson.drop(masked, lesson.WEIGHTS).nan == 0
    found = lesson.drop(masked, lesson.SCORES)
    assert_array_equal(found.mean[2], 0)
    assert np.isnan(found.sums).mean() == found.nan


def test_draws_are_those_of_the_seed():
    a, b, c = (lesson.drop(SCORES, lesson.WEIGHTS, seed=s).sums for s in (0, 0, 1))
    assert_array_equal(a, b)
    assert (a != c).any()


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
def test_two_right_modules_differ_by_rounding(backend):
    found = lesson.rounding(seeds=3, backend=backend)
    for sizes in found:
        assert sizes.shape == (3,)
        assert sizes.max() < 2e-5
    assert min(found.ours.min(), found.theirs.min()) > 1e-7
    assert (found.between <= found.ours + found.theirs).all()


def test_theirs_does_not_depend_on_our_backend():
    explicit, sdpa = (lesson.rounding(seeds=2, backend=backend) for backend in ("explicit", "sdpa"))
    assert_allclose(explicit.theirs, sdpa.theirs, rtol=1e-6)  # the truth is off by 1e-16
    assert (explicit.ours != sdpa.ours).any()


def test_bmm_of_folded_heads_is_matmul():
    found = lesson.matmul_and_bmm()
    assert found["bmm"] == 0
    assert max(found.values()) < 1e-4


def test_bmm_refuses_what_matmul_broadcasts():
    found = lesson.refused()
    taken = {name for name, (_, said) in found.items() if not said}
    assert taken == {"(B, T, D) (B, D, S)"}
    assert all(matmul for matmul, _ in found.values())
    assert sum("must be a 3D tensor" in said for _, said in found.values()) == 3


def test_the_random_state_is_left_alone():
    before = torch.get_rng_state()
    lesson.drop(SCORES, lesson.KEYS)
    lesson.rounding(seeds=1)
    lesson.matmul_and_bmm()
    assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda: lesson.drop(SCORES, "values"), ValueError, "kind must be one of .*, got 'values'"),
        (lambda: lesson.drop(SCORES, lesson.KEYS, p=1.0), ValueError, r"p must lie in \[0, 1\), got 1.0"),
        (lambda: lesson.drop(SCORES, lesson.KEYS, p=-0.1), ValueError, r"p must lie in \[0, 1\), got -0.1"),
        (lambda: lesson.drop(SCORES, lesson.KEYS, draws=1), ValueError, "draws must be at least 2, got 1"),
        (lambda: lesson.drop(SCORES, lesson.KEYS, draws=2.0), TypeError, "draws must be an integer, got float"),
        (lambda: lesson.rounding(embed_dim=6), ValueError, "embed_dim must be a multiple of 4, got 6"),
        (lambda: lesson.rounding(tokens=0), ValueError, "tokens must be at least 1, got 0"),
        (lambda: lesson.rounding(seeds=0), ValueError, "seeds must be at least 1, got 0"),
        (lambda: lesson.rounding(backend="fast"), ValueError, "backend must be .*'fast'"),
    ],
)
def test_bad_arguments_are_refused(call, kind, match):
    with pytest.raises(kind, match=match):
        call()
