"""Softmax step by step in a format."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_course.precision import FORMATS, softmax_in, stable_softmax

HALF, BRAIN, SINGLE = FORMATS["float16"], FORMATS["bfloat16"], FORMATS["float32"]


class TestInAFormat:
    def test_by_hand(self):
        # bfloat16: e = 2.71875, 1 / e = 0.3671875 (0.367879 rounded to 8 digits), sum 1.3671875 -> 1.3671875
        steps = softmax_in(torch.tensor([[1.0, 2.0]]), BRAIN)
        assert steps.shifted.tolist() == [[-1, 0]]
        assert steps.exponentials.tolist() == [[0.3671875, 1]]
        assert steps.total.tolist() == [[1.3671875]]
        assert steps.weights.tolist() == [[0.26953125, 0.73046875]]

    @pytest.mark.parametrize("subtract_max", [True, False])
    @pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
    def test_every_step_is_rounded(self, form, subtract_max):
        scores = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
        for step in softmax_in(scores, form, subtract_max=subtract_max):
            torch.testing.assert_close(form.round(step), step, rtol=0, atol=0)

    def test_float32_is_near_the_exact_one(self):
        scores = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(0))
        for subtract_max in (True, False):
            weights = softmax_in(scores, SINGLE, subtract_max=subtract_max).weights
            torch.testing.assert_close(weights, scores.double().softmax(-1), rtol=1e-6, atol=0)

    def test_scores_are_rounded_first(self):
        steps = softmax_in(torch.tensor([1.004, 0.0]), BRAIN, subtract_max=False)
        assert steps.shifted.tolist() == [1.0078125, 0.0]

    def test_overflow_of_float16(self):
        # the largest is 65504, half a step above it is 65520: exp(11.0898) = 65500
        fits, too_large = softmax_in(
            torch.tensor([[11.0859375, 0.0], [11.09375, 0.0]]), HALF, subtract_max=False
        ).weights
        assert fits.isfinite().all()
        assert too_large.isnan().tolist() == [True, False]
        assert softmax_in(torch.tensor([11.09375, 0.0]), HALF).weights.isfinite().all()

    def test_all_vanish(self):
        steps = softmax_in(torch.tensor([-20.0, -21.0]), HALF, subtract_max=False)
        assert steps.total.item() == 0
        assert steps.weights.isnan().all()

    def test_the_sum_stops(self):
        steps = softmax_in(torch.zeros(3000), HALF)
        assert steps.total.item() == 2048  # 2049 is a tie, and 2048 is even
        assert softmax_in(torch.zeros(3000), HALF, sum_in=SINGLE).total.item() == 3000

    def test_nothing_is_repaired(self):
        inf = math.inf
        rows = softmax_in(torch.tensor([[-inf, -inf], [0.0, -inf], [inf, 0.0], [math.nan, 0.0]]), HALF).weights
        assert rows[1].tolist() == [1, 0]
        assert rows[0].isnan().all()
        assert rows[2, 0].isnan()
        assert rows[3].isnan().all()

    @pytest.mark.unchecked
    @pytest.mark.parametrize(
        ("arguments", "error", "says"),
        [
            ((torch.arange(3), HALF), TypeError, "scores must be a floating point tensor, got torch.int64"),
            ((torch.ones(3), "float16"), TypeError, "format must be a Format, got str"),
            ((torch.tensor(1.0), HALF), ValueError, r"scores must be \(\.\.\., S\) with at least one key, got \(\)"),
            ((torch.ones(2, 0), HALF), ValueError, r"at least one key, got \(2, 0\)"),
        ],
    )
    def test_bad_input(self, arguments, error, says):
        with pytest.raises(error, match=says):
            softmax_in(*arguments)

    @pytest.mark.unchecked
    def test_bad_sum(self):
        with pytest.raises(TypeError, match="sum_in must be a Format, got dtype"):
            softmax_in(torch.ones(3), HALF, sum_in=torch.float32)


class TestStable:
    @settings(deadline=None)
    @given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=7))
    def test_equals_torch(self, scores):
        x = torch.tensor(scores, dtype=torch.float64)
        torch.testing.assert_close(stable_softmax(x), x.softmax(-1))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_stays_in_its_type(self, dtype):
        scores = torch.tensor([[60.0, 59.0, -60.0], [-100.0, -101.0, -100.0]], dtype=dtype)
        got = stable_softmax(scores)
        assert got.dtype == dtype
        tolerance = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(got.double(), scores.double().softmax(-1), rtol=tolerance, atol=1e-7)

    @pytest.mark.parametrize("dim", [0, 1, -1])
    def test_axis(self, dim):
        x = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(stable_softmax(x, dim), x.softmax(dim))

    def test_row_that_sees_nothing(self):
        scores = torch.tensor([[-math.inf] * 3, [0.0, -math.inf, 1.0]], dtype=torch.float64, requires_grad=True)
        weights = stable_softmax(scores)
        (weights * torch.tensor([1.0, 2.0, 5.0])).sum().backward()
        assert weights[0].tolist() == [0, 0, 0]
        assert scores.grad[0].tolist() == [0, 0, 0]
        assert scores.grad.isfinite().all()

    def test_gradient(self):
        x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(stable_softmax, x)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_nan_and_infinity_stay_visible(self, bad):
        assert stable_softmax(torch.tensor([bad, 0.0])).isnan().any()

    def test_more_keys_than_float16_counts(self):
        weights = stable_softmax(torch.zeros(70_001, dtype=torch.float16))
        assert weights.dtype == torch.float16
        torch.testing.assert_close(weights.double(), torch.full((70_001,), 1 / 70_001).double(), rtol=5e-3, atol=0)

    @pytest.mark.parametrize("sizes", [(0,), (2, 0), (0, 3)])
    def test_empty(self, sizes):
        assert stable_softmax(torch.empty(sizes)).shape == sizes

    @pytest.mark.unchecked
    def test_bad_input(self):
        with pytest.raises(TypeError, match=r"scores must be a floating point tensor, got torch\.int64"):
            stable_softmax(torch.arange(3))
