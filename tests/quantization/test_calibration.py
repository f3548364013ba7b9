"""Calibration: which range, of a tensor and of batches."""

import pytest
import torch
from torch.testing import assert_close

from mha_course.quantization import (
    Observer,
    affine_from_range,
    fake_quantize,
    find_affine,
    min_max,
    mse,
    percentile,
    quantize,
)
from tests.quantization.drawn import drawn

EXACT = {"rtol": 0, "atol": 0}


def test_min_max():
    x = torch.tensor([[3.0, -1.0, 2.0], [-5.0, -4.0, -6.0]])
    assert [end.item() for end in min_max(x)] == [-6, 3]
    low, high = min_max(x, rows=True)
    assert (low.tolist(), high.tolist()) == ([[-1], [-6]], [[3], [-4]])


@pytest.mark.parametrize("p", [100, 99.9, 90, 50.0, 1])
@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_percentile_is_the_quantile_at_either_end(p, n):
    x = drawn(3, n, dtype=torch.float64)
    at = torch.tensor([(100 - p) / 200, (100 + p) / 200], dtype=torch.float64)
    assert_close(torch.stack(percentile(x, p)), torch.quantile(x, at))
    assert_close(torch.stack(percentile(x, p, rows=True)), torch.quantile(x, at, dim=-1, keepdim=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_percentile_between_the_two_largest_numbers_there_are(dtype):
    most = torch.finfo(dtype).max
    x = torch.tensor([-most, most], dtype=dtype)
    assert_close(percentile(x, 100), (x[0], x[1]), **EXACT)
    assert_close(torch.stack(percentile(x, 50)), x / 2, rtol=1e-2, atol=0)
    assert percentile(x, 50)[0].dtype == dtype


def test_no_gradient_passes_into_a_range():
    x = drawn(3, 8).requires_grad_()
    for low, high in (min_max(x), percentile(x, 90), mse(x, 3, rows=True)):
        assert not low.requires_grad
        assert not high.requires_grad


def test_percentile_takes_more_numbers_than_torch_quantile():
    low, high = percentile(torch.arange(2**24 + 3, dtype=torch.float32), 50)
    assert_close((low / 2**24).item(), 0.25, rtol=1e-5, atol=0)
    assert_close((high / 2**24).item(), 0.75, rtol=1e-5, atol=0)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("bits", [2, 5])
def test_mse_is_the_best_of_the_candidates(bits, rows, symmetric):
    x = drawn(3, 50)
    got = affine_from_range(*mse(x, bits, symmetric=symmetric, rows=rows, candidates=10), bits, symmetric=symmetric)
    wrong = (fake_quantize(x, got) - x).square()
    for i in range(1, 11):
        low, high = (end * (i / 10) for end in min_max(x, rows=rows))
        other = (fake_quantize(x, affine_from_range(low, high, bits, symmetric=symmetric)) - x).square()
        if rows:
            assert (wrong.mean(-1) <= other.mean(-1) + 1e-9).all()
        else:
            assert wrong.mean() <= other.mean() + 1e-9
    low, high = mse(x, bits, symmetric=symmetric, rows=rows, candidates=10)
    shares = torch.stack([low, high]) / torch.stack(min_max(x, rows=rows))
    assert_close(shares[0], shares[1])
    assert_close(shares * 10, (shares * 10).round(), rtol=0, atol=1e-5)
    assert (shares < 0.75).any() == (bits == 2), "few bits gain by clipping"


def test_mse_of_what_is_exact_clips_nothing():
    x = torch.tensor([-7.0, 3.0, 0.0, 7.0])
    assert [end.item() for end in mse(x, 4)] == [-7, 7]
    assert [end.item() for end in mse(torch.zeros(3), 4)] == [0, 0]


def test_find_affine_uses_the_calibration_it_is_told():
    x = drawn(3, 40)
    for per, cut in (("tensor", x.flatten()), ("channel", x), (8, x.unflatten(-1, (5, 8)))):
        rows = per != "tensor"
        ranges = {
            "min-max": min_max(cut, rows=rows),
            "percentile": percentile(cut, 80, rows=rows),
            "mse": mse(cut, 3, symmetric=False, rows=rows),
        }
        for name, ends in ranges.items():
            got = find_affine(x, 3, per=per, symmetric=False, calibration=name, percent=80)
            assert_close(got, affine_from_range(*ends, 3, symmetric=False), **EXACT)
        assert_close(find_affine(x, 3, per=per), find_affine(x, 3, per=per, calibration="min-max"), **EXACT)


class TestObserver:
    def test_all_batches_count_and_in_any_order(self):
        batches = [drawn(2, 5, seed=1), 10 * drawn(3, 5, seed=2), drawn(4, seed=3)]
        everything = torch.cat([b.flatten() for b in batches])
        for order in (batches, batches[::-1]):
            observer = Observer()
            for batch in order:
                observer.see(batch)
            assert observer.batches == 3
            for options in ({}, {"symmetric": False}, {"calibration": "percentile", "percent": 90}):
                expected = find_affine(everything, 8, per="tensor", **options)
                assert_close(observer.affine(8, **options), expected, **EXACT)

    def test_a_new_batch_is_clipped_and_changes_nothing(self):
        observer = Observer()
        seen = torch.tensor([1.0, -12.7])
        observer.see(seen)
        seen.fill_(1000.0)
        affine = observer.affine(8)
        assert_close(affine.scale.item(), 0.1, rtol=1e-6, atol=0)
        assert quantize(torch.tensor([50.0]), affine) == 127

    def test_it_holds_no_graph(self):
        observer = Observer()
        observer.see(torch.ones(3, requires_grad=True) * 2)
        assert not observer.affine(8).scale.requires_grad


@pytest.mark.unchecked
class TestBadInput:
    def test_nothing_to_see(self):
        observer = Observer()
        with pytest.raises(ValueError, match=r"the observer must see at least one number before it gives a range"):
            observer.affine(8)
        observer.see(torch.zeros(0, 3))
        with pytest.raises(ValueError, match=r"at least one number"):
            observer.affine(8)
        with pytest.raises(ValueError, match=r"x must be finite, got NaN or infinity at 1 of 2"):
            observer.see(torch.tensor([1.0, float("nan")]))
        with pytest.raises(TypeError, match=r"x must be floating point"):
            observer.see(torch.ones(2, dtype=torch.int64))

    @pytest.mark.parametrize(
        "function", [min_max, lambda x, **o: percentile(x, 90, **o), lambda x, **o: mse(x, 8, **o)]
    )
    def test_no_numbers(self, function):
        with pytest.raises(ValueError, match=r"x must hold at least one number, got \(0, 3\)"):
            function(torch.zeros(0, 3))
        with pytest.raises(ValueError, match=r"x must hold at least one number in a row, got \(3, 0\)"):
            function(torch.zeros(3, 0), rows=True)
        with pytest.raises(ValueError, match=r"x must have at least one axis for a range per row"):
            function(torch.tensor(1.0), rows=True)

    @pytest.mark.parametrize("p", [0, -1, 100.1, float("nan")])
    def test_percent(self, p):
        with pytest.raises(ValueError, match=r"p must be above 0 and at most 100, got"):
            percentile(torch.ones(3), p)
        with pytest.raises(TypeError, match=r"p must be a number, got bool"):
            percentile(torch.ones(3), True)

    def test_candidates(self):
        with pytest.raises(ValueError, match=r"candidates must be at least 1, got 0"):
            mse(torch.ones(3), 4, candidates=0)

    @pytest.mark.parametrize("per", ["row", "", "a group size"])
    def test_per(self, per):
        with pytest.raises(ValueError, match=r"per must be 'tensor', 'channel' or the size of a group, got"):
            find_affine(torch.ones(3), 8, per=per)

    def test_groups(self):
        with pytest.raises(
            ValueError, match=r"per, the size of a group, must divide the last axis of x, got 4 for \(3, 6\)"
        ):
            find_affine(torch.ones(3, 6), 8, per=4)
        with pytest.raises(ValueError, match=r"must divide the last axis"):
            find_affine(torch.ones(3, 0), 8, per=4)
        with pytest.raises(ValueError, match=r"must divide the last axis"):
            find_affine(torch.tensor(1.0), 8, per=4)
        with pytest.raises(ValueError, match=r"per must be at least 1, got 0"):
            find_affine(torch.ones(3), 8, per=0)
        with pytest.raises(TypeError, match=r"per must be an integer, got float"):
            find_affine(torch.ones(3), 8, per=2.0)

    def test_calibration(self):
        with pytest.raises(ValueError, match=r"calibration must be 'min-max', 'percentile' or 'mse', got 'kl'"):
            find_affine(torch.ones(3), 8, per="tensor", calibration="kl")
