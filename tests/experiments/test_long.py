"""Experiments of notebook 11: by hand, in their limits, and what the lesson says."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from mha_course import masks
from mha_course.experiments import long


def test_recall_keeps_everything_that_fits() -> None:
    assert_allclose(long.recall([1]), [[1, 1, 1]])
    assert_allclose(long.recall([1, 2], D=300), np.ones((2, 3)))


def test_recall_of_one_key_width_is_by_the_last_or_the_most_frequent_value() -> None:
    # D = 1: all keys are equal up to their sign; only the delta rule knows the last value of each sign
    found = long.recall([64], D=1, classes=1000, sequences=50)[0]
    assert found.max() < 0.1


def test_what_the_lesson_says_of_recall() -> None:
    found = long.recall([4, 8, 16, 32, 64])
    assert found.shape == (5, len(long.METHODS))
    assert (found[:, 0] == 1).all()
    assert found[0].min() > 0.97
    assert found[-1, 1] < 0.65
    assert (found[1:, 2] < found[1:, 1] - 0.03).all()  # the delta rule recalls less
    assert (np.diff(found[:, 1:], axis=0) < 0).all()


def test_overwriting() -> None:
    for keys in (1, 8, 16):
        found = long.overwriting(keys)
        assert_allclose(found[2], [1, 0])
        assert_allclose(found[:2], np.full((2, 2), 0.5), atol=0.15)
        assert_allclose(found[:2].sum(1), [1, 1])
    random = long.overwriting(16, orthogonal=False)
    assert 0.75 < random[2, 0] < 0.95
    assert random[2, 1] < 0.02


def test_performer_error_and_its_baseline() -> None:
    found = long.performer_error([16, 512], 0.5, repeats=5)
    assert found.shape == (2, 5)
    assert found[0].mean() > 2 * found[1].mean()
    assert_allclose(found[1:], long.performer_error([512], 0.5, repeats=5))
    assert (found != long.performer_error([16, 512], 0.5, repeats=5, seed=1)).all()
    assert (found != long.performer_error([16, 512], 0.5, repeats=5, orthogonal=False)).all()
    assert_allclose(long.uniform_error(0.0, repeats=3), np.zeros(3), atol=1e-6)
    assert_allclose(long.performer_error([7], 0.0, repeats=3), np.zeros((1, 3)), atol=1e-6)
    assert np.mean(long.uniform_error(1.0)) > 2 * np.mean(long.uniform_error(0.5))


def test_reach_by_hand() -> None:
    assert long.reach([masks.sliding_window(5, 2)] * 3).tolist() == [
        [False, False, False, True, True],
        [False, False, True, True, True],
        [False, True, True, True, True],
    ]
    # the last layer asks first: it looks 2 back, and what is there has looked 1 back
    jump, near = masks.dilated(6, 2, 2), masks.sliding_window(6, 2)
    assert long.reach([near, jump])[1].tolist() == [False, False, True, True, True, True]
    assert long.reach([near & ~torch.eye(6).bool(), jump])[0].tolist() == [False] * 4 + [True] * 2


def test_reach_follows_the_order_of_the_layers() -> None:
    first, last = torch.zeros(2, 3, 3, dtype=torch.bool)
    first[1, 0] = last[2, 1] = True  # token 1 hears of 0, then 2 hears of 1
    assert long.reach([first, last])[1].tolist() == [True, True, True]
    assert long.reach([last, first])[1].tolist() == [False, True, True]


@pytest.mark.parametrize("window", [1, 4, 8])
def test_the_receptive_field_of_windows_and_of_dilated_ones(window: int) -> None:
    layers = 4
    plain = long.reach([masks.sliding_window(256, window)] * layers).sum(1)
    assert plain.tolist() == [(n + 1) * (window - 1) + 1 for n in range(layers)]
    dilated = long.reach([masks.dilated(256, window, 4)] * layers)
    assert dilated.sum(1).tolist() == plain.tolist()  # further, but with holes
    assert not dilated[:, [254, 253, 252]].any()
    mixed = long.reach([masks.sliding_window(256, 4), masks.dilated(256, window, 4)])
    assert mixed[-1].sum() == 4 * window


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: long.recall([0]), ValueError, r"^pairs must be at least 1, got 0$"),
        (lambda: long.recall([2.0]), TypeError, r"^pairs must be an integer, got float$"),
        (lambda: long.recall([2], D=0), ValueError, r"^D must be at least 1, got 0$"),
        (lambda: long.recall([2], classes=0), ValueError, r"^classes must be at least 1, got 0$"),
        (lambda: long.recall([2], sequences=0), ValueError, r"^sequences must be at least 1, got 0$"),
        (lambda: long.overwriting(0), ValueError, r"^keys must be at least 1, got 0$"),
        (lambda: long.overwriting(2.0), TypeError, r"^keys must be an integer, got float$"),
        (lambda: long.overwriting(17), ValueError, r"^keys must be at most D = 16 if orthogonal, got 17$"),
        (lambda: long.performer_error([4], 1.0, repeats=0), ValueError, r"^repeats must be at least 1, got 0$"),
        (lambda: long.performer_error([0], 1.0), ValueError, r"^M must be at least 1, got 0$"),
        (lambda: long.performer_error([4], 1.0, S=2.0), TypeError, r"^S must be an integer, got float$"),
        (lambda: long.uniform_error(1.0, D=0), ValueError, r"^D must be at least 1, got 0$"),
        (lambda: long.reach([]), ValueError, r"^masks must hold at least one mask, got none$"),
        (lambda: long.reach([torch.ones(2, 2)]), TypeError, r"^masks must be bool"),
        (lambda: long.reach([masks.causal(2), masks.causal(3)]), ValueError, r"^masks must be \(T, T\) with one T"),
        (lambda: long.reach([masks.causal(0)]), ValueError, r"^masks must be \(T, T\)"),
    ],
)
def test_bad_input(call, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_patterns_are_causal_and_sparse():
    every = long.patterns(24)
    assert every.shape == (len(long.PATTERNS), 24, 24)
    assert torch.equal(every[0], masks.causal(24))
    assert not (every & ~every[0]).any()
    assert every[1:].sum(-1).amax(-1).tolist() == [5, 5, 5]
    assert torch.equal(every, long.patterns(24))


def test_gradients_are_those_of_the_sum():
    q, k, v = torch.randn(3, 2, 3)
    found = long.gradients(lambda q, k, v: 2 * q + k * v, q, k, v)
    for got, want in zip(found, (2 * torch.ones(2, 3), v, k), strict=True):
        torch.testing.assert_close(got, want)
