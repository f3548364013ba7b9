"""Experiments of notebook 10: what is counted is what was held, and an exponent is a slope."""

import numpy as np
import pytest
import torch

from mha_course.dot_product import attention
from mha_course.experiments.same_numbers import WIDTH, explicit, exponent, peaks, seconds


def hold(count):
    """A way that holds `count` extra tensors of T x S and returns one of (T, D)."""

    def way(q, k, v):
        held = [torch.ones(q.shape[-2], k.shape[-2]) for _ in range(count)]
        return q * len(held)

    return way


def test_explicit_is_attention():
    q, k, v = torch.randn(3, 2, 3, 5, 7)
    torch.testing.assert_close(explicit(q, k, v), attention(q, k, v).out, rtol=0, atol=0)


def test_peaks_count_what_is_held():
    lengths = (64, 128)
    found = peaks({"two": hold(2), "three": hold(3)}, lengths)
    for name, count in (("two", 2), ("three", 3)):
        want = [4 * (count * S * S + S * WIDTH) for S in lengths]
        np.testing.assert_allclose(found[name], want, rtol=0.01)


def test_peaks_of_a_training_step_hold_the_gradients():
    S = 64

    def way(q, k, v):
        assert q.requires_grad
        return q + k + v

    assert peaks({"sum": way}, [S], backward=True)["sum"][0] >= 4 * 2 * S * WIDTH
    forward = peaks({"sum": lambda q, k, v: q.add_(0)}, [S])["sum"]  # in place: an error if gradients were wanted
    assert forward[0] < 64  # a scalar or two


def test_seconds_are_taken_in_turn():
    calls = []
    ways = {name: lambda q, k, v, name=name: (calls.append((name, q.shape[-2])), q)[1] for name in "ab"}
    taken = seconds(ways, (3, 5), repeats=2)
    assert {name: times.shape for name, times in taken.items()} == {"a": (2, 2), "b": (2, 2)}
    assert all((times > 0).all() for times in taken.values())
    # each has one call that is not timed
    one = [("a", 3), ("a", 3), ("b", 3), ("b", 3), ("a", 3), ("b", 3)]
    assert calls == one + [(name, 5) for name, _ in one]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_exponent_is_the_slope(power):
    lengths = (128, 256, 1024)
    values = 3.0 * np.array(lengths) ** power
    assert exponent(lengths, values) == pytest.approx(power)
    outlier = np.stack([values, values, 100 * values])  # the median of the repeats counts
    assert exponent(lengths, outlier) == pytest.approx(power)


@pytest.mark.unchecked
class TestBadInput:
    def test_lengths(self):
        with pytest.raises(ValueError, match="lengths must be at least 1, got 0"):
            peaks({"explicit": explicit}, [0])
        with pytest.raises(TypeError, match="lengths must be an integer, got float"):
            seconds({"explicit": explicit}, [2.0])

    def test_repeats(self):
        with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
            seconds({"explicit": explicit}, [2], repeats=0)
        with pytest.raises(TypeError, match="repeats must be an integer, got float"):
            seconds({"explicit": explicit}, [2], repeats=1.0)

    def test_exponent(self):
        with pytest.raises(ValueError, match=r"two or more lengths, got \(1,\)"):
            exponent([2], np.ones(1))
        with pytest.raises(ValueError, match=r"two or more lengths, got \(3,\)"):
            exponent([2, 4], np.ones(3))
        with pytest.raises(ValueError, match="values must be positive"):
            exponent([2, 4], np.array([1.0, 0.0]))
