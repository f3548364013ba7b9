"""Affine quantization: codes, scales and zero points by hand, and every kind of odd tensor."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from mha_course.quantization import Affine, affine_from_range, dequantize, fake_quantize, find_affine, quantize
from tests.quantization.drawn import drawn

EXACT = {"rtol": 0, "atol": 0}


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


class TestByHand:
    def test_symmetric(self):
        affine = affine_from_range(torch.tensor(-3.5), torch.tensor(2.0), 4, symmetric=True)
        assert (affine.scale.item(), affine.zero_point.item()) == (0.5, 0)
        assert (affine.lowest, affine.highest) == (-7, 7), "-8 is not used"
        codes = quantize(tensor(-3.5, 0.0, 0.3, 1.1, 3.5, 100.0, -100.0), affine)
        assert_close(codes, torch.tensor([-7, 0, 1, 2, 7, 7, -7], dtype=torch.int8), **EXACT)
        assert_close(dequantize(codes, affine), tensor(-3.5, 0, 0.5, 1, 3.5, 3.5, -3.5), **EXACT)

    def test_asymmetric(self):
        affine = affine_from_range(torch.tensor(-1.0), torch.tensor(6.5), 4, symmetric=False)
        assert (affine.scale.item(), affine.zero_point.item()) == (0.5, 2)
        assert (affine.lowest, affine.highest) == (0, 15)
        codes = quantize(tensor(-1.0, 0.0, 0.6, 6.5, 9.0, -9.0), affine)
        assert_close(codes, torch.tensor([0, 2, 3, 15, 15, 0], dtype=torch.uint8), **EXACT)
        assert_close(dequantize(codes, affine), tensor(-1, 0, 0.5, 6.5, 6.5, -1), **EXACT)

    def test_a_range_on_one_side_is_widened_to_hold_zero(self):
        for low, high, zero in ((2.0, 7.5, 0), (-7.5, -2.0, 15)):
            affine = affine_from_range(torch.tensor(low), torch.tensor(high), 4, symmetric=False)
            assert (affine.scale.item(), affine.zero_point.item()) == (0.5, zero)

    def test_halves_go_to_the_even_code(self):
        affine = Affine(torch.tensor(1.0), torch.tensor(0, dtype=torch.int32), 4, True)
        assert quantize(tensor(0.5, 1.5, 2.5, -0.5, -1.5), affine).tolist() == [0, 2, 2, 0, -2]

    @pytest.mark.parametrize(
        ("bits", "symmetric", "dtype"),
        [
            *((2, True, torch.int8), (8, True, torch.int8), (8, False, torch.uint8)),
            *((9, True, torch.int32), (16, False, torch.int32), (9, False, torch.int32)),
        ],
    )
    def test_types_of_codes(self, bits, symmetric, dtype):
        x = drawn(7)
        affine = find_affine(x, bits, per="tensor", symmetric=symmetric)
        codes = quantize(x, affine)
        assert (codes.dtype, affine.zero_point.dtype) == (dtype, torch.int32)
        top = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
        assert codes.long().abs().max() == top, "an end of the range has the last code"


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("per", "shape"), [("tensor", ()), ("channel", (3, 1)), (5, (3, 2, 1)), (2, (3, 5, 1))])
def test_each_part_has_the_scale_of_its_own_numbers(per, shape, symmetric):
    x = drawn(3, 10) * torch.tensor([1.0, 10.0, 0.1])[:, None] + 0.3
    affine = find_affine(x, 8, per=per, symmetric=symmetric)
    assert affine.scale.shape == affine.zero_point.shape == shape
    parts = {"tensor": [x.flatten()], "channel": list(x)}.get(per) or [g for row in x for g in row.split(per)]
    codes, back = [], []
    for i, part in enumerate(parts):
        low, high = min(part.min().item(), 0), max(part.max().item(), 0)
        step = max(-low, high) / 127 if symmetric else (high - low) / 255
        zero = 0 if symmetric else round(-low / step)
        assert_close(affine.scale.flatten()[i].item(), step, rtol=1e-6, atol=0)
        assert affine.zero_point.flatten()[i] == zero
        codes += [round(v / step) + zero for v in part.tolist()]
        back += [step * round(v / step) for v in part.tolist()]
    got = quantize(x, affine)
    assert got.flatten().tolist() == codes
    assert_close(dequantize(got, affine), torch.tensor(back).view(3, 10), rtol=1e-5, atol=1e-6)
    assert_close(fake_quantize(x, affine), dequantize(got, affine), **EXACT)


@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=9),
    st.integers(2, 16),
    st.booleans(),
    st.sampled_from(["min-max", "percentile", "mse"]),
)
def test_properties(values, bits, symmetric, calibration):
    x = torch.tensor(values)
    affine = find_affine(x, bits, per="tensor", symmetric=symmetric, calibration=calibration)
    codes = quantize(x, affine)
    assert affine.scale > 0
    assert codes.min() >= affine.lowest
    assert codes.max() <= affine.highest
    back = dequantize(codes, affine)
    assert torch.isfinite(back).all()
    assert_close(fake_quantize(x, affine), back, **EXACT)
    assert_close(quantize(back, affine), codes, **EXACT)
    assert fake_quantize(torch.zeros(1), affine) == 0, "0.0 has a code"
    if calibration == "min-max":
        half = affine.scale * (0.5 if symmetric else 1) + x.abs().max() * 1e-5
        assert ((back - x).abs() <= half).all()


class TestOddTensors:
    @pytest.mark.parametrize("symmetric", [True, False])
    @pytest.mark.parametrize("value", [3.7, -3.7, 1e-30, 3e38, -3e38])
    def test_a_constant_comes_back(self, value, symmetric):
        x = torch.full((3, 5), value)
        for per in ("tensor", "channel", 5):
            affine = find_affine(x, 8, per=per, symmetric=symmetric)
            assert_close(fake_quantize(x, affine), x, rtol=3e-7, atol=0)

    @pytest.mark.parametrize("symmetric", [True, False])
    def test_zeros_are_exact_and_have_scale_one(self, symmetric):
        x = torch.stack([torch.zeros(5), drawn(5)])
        affine = find_affine(x, 8, per="channel", symmetric=symmetric)
        assert affine.scale[0] == 1
        assert_close(fake_quantize(x, affine)[0], torch.zeros(5), **EXACT)

    def test_both_ends_of_float32_do_not_overflow(self):
        x = tensor(-3e38, 0, 3e38)
        assert_close(fake_quantize(x, find_affine(x, 8, per="tensor", symmetric=False)), x, rtol=1e-2, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    @pytest.mark.parametrize("symmetric", [True, False])
    @pytest.mark.parametrize("bits", [2, 3, 8, 16])
    def test_no_code_stands_for_infinity(self, bits, symmetric, dtype):
        most = torch.finfo(dtype).max
        for low, high in ((-1.0, 1.0), (0.9, 1.0), (-0.7, 0.8), (-0.8, 0.3)):
            x = torch.tensor([low * most, 0, 0.4 * most, high * most], dtype=dtype)
            affine = find_affine(x, bits, per="tensor", symmetric=symmetric)
            back = dequantize(quantize(x, affine), affine)
            for values in (back, fake_quantize(x, affine)):
                assert torch.isfinite(values).all()
            assert_close(quantize(back, affine), quantize(x, affine), **EXACT)
            if bits == 16:
                assert_close(back, x.to(back.dtype), rtol=1e-3, atol=0)

    def test_no_gradient_passes_into_the_scale(self):
        x = drawn(3, 8).requires_grad_()
        for calibration in ("min-max", "percentile", "mse"):
            assert not find_affine(x, 8, per=4, calibration=calibration).scale.requires_grad

    def test_below_the_smallest_normal_number(self):
        x = tensor(1e-40, -2e-42)
        affine = find_affine(x, 8, per="tensor")
        assert affine.scale == torch.finfo(torch.float32).tiny
        assert_close(fake_quantize(x, affine), torch.zeros(2), **EXACT)

    def test_one_outlier_costs_its_group_alone(self):
        x = drawn(2, 12)
        x[0, 0] = 1000.0
        errors = {}
        for per in ("tensor", "channel", 4):
            wrong = (fake_quantize(x, find_affine(x, 8, per=per)) - x).abs()
            errors[per] = [wrong[0, 1:4].max(), wrong[0, 4:].max(), wrong[1].max()]
        coarse = torch.tensor([[e > 0.5 for e in row] for row in errors.values()])
        assert coarse.tolist() == [[True, True, True], [True, True, False], [True, False, False]]

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_types(self, dtype):
        x = drawn(3, 8).to(dtype)
        affine = find_affine(x, 8, per="channel")
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert affine.scale.dtype == wide
        assert_close(quantize(x, affine), quantize(x.to(wide), affine), **EXACT)
        assert fake_quantize(x, affine).dtype == dtype

    def test_no_rows_is_no_scale(self):
        x = torch.zeros(0, 5)
        affine = find_affine(x, 8, per="channel")
        assert affine.scale.shape == (0, 1)
        assert fake_quantize(x, affine).shape == (0, 5)


AFFINE = Affine(torch.ones(()), torch.zeros((), dtype=torch.int32), 8, True)
ONE = torch.ones(())


@pytest.mark.unchecked
class TestBadInput:
    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_not_finite(self, bad):
        x = torch.tensor([1.0, bad, bad])
        message = "^x must be finite, got NaN or infinity at 2 of 3 places"
        for calibration in ("min-max", "percentile", "mse"):
            with pytest.raises(ValueError, match=message):
                find_affine(x, 8, per="tensor", calibration=calibration)
        for function in (quantize, fake_quantize):
            with pytest.raises(ValueError, match=message):
                function(x, AFFINE)
        with pytest.raises(ValueError, match=r"^low must be finite"):
            affine_from_range(torch.tensor(bad), ONE, 8, symmetric=True)
        with pytest.raises(ValueError, match=r"^high must be finite"):
            affine_from_range(-ONE, torch.tensor(bad), 8, symmetric=True)

    def test_one_bit(self):
        with pytest.raises(ValueError, match=r"bits must lie in \[2, 16\], got 1: with a code for 0, one bit leaves"):
            find_affine(ONE, 1, per="tensor")

    @pytest.mark.parametrize("bits", [0, -3, 17])
    def test_bits_outside(self, bits):
        with pytest.raises(ValueError, match=rf"bits must lie in \[2, 16\], got {bits}"):
            affine_from_range(-ONE, ONE, bits, symmetric=True)

    @pytest.mark.parametrize("bits", [8.0, "8", True, None])
    def test_bits_of_another_type(self, bits):
        with pytest.raises(TypeError, match="bits must be an integer, got"):
            affine_from_range(-ONE, ONE, bits, symmetric=True)

    def test_symmetric(self):
        with pytest.raises(TypeError, match="symmetric must be True or False, got int"):
            affine_from_range(-ONE, ONE, 8, symmetric=1)

    def test_ranges(self):
        with pytest.raises(ValueError, match=r"low and high must have one shape, got \(\) and \(2,\)"):
            affine_from_range(ONE, torch.ones(2), 8, symmetric=True)
        with pytest.raises(ValueError, match="low must be at most high"):
            affine_from_range(ONE, -ONE, 8, symmetric=True)
        with pytest.raises(TypeError, match="low must be floating point"):
            affine_from_range(torch.tensor(1), ONE, 8, symmetric=True)

    def test_what_is_quantized(self):
        with pytest.raises(TypeError, match="x must be a tensor, got list"):
            quantize([1.0], AFFINE)
        with pytest.raises(TypeError, match="x must be floating point"):
            quantize(torch.ones(2, dtype=torch.int64), AFFINE)
        for bad, said in ((ONE, "torch.float32"), (ONE.bool(), "torch.bool"), (1, "int")):
            with pytest.raises(TypeError, match=f"codes must be an integer tensor, got {said}"):
                dequantize(bad, AFFINE)

    def test_affine(self):
        for function in (quantize, fake_quantize, dequantize):
            with pytest.raises(TypeError, match="affine must be an Affine, as find_affine returns it, got tuple"):
                function(ONE.to(torch.int8) if function is dequantize else ONE, (1, 2))
        for shape in ((3, 1), (2, 3, 1), (2, 2, 2), (4,)):
            affine = Affine(torch.ones(shape), torch.zeros(shape, dtype=torch.int32), 8, True)
            with pytest.raises(ValueError, match=r"scale must broadcast to x, got \(.*\) for \(2, 5\)"):
                quantize(torch.ones(2, 5), affine)
            with pytest.raises(ValueError, match=r"scale must broadcast to codes, got \(.*\) for \(2, 5\)"):
                dequantize(torch.ones(2, 5, dtype=torch.int8), affine)
