"""Narrow steps taken in float64: what is only rounding is taken away, and nothing else."""

import math

import pytest
import torch

from mha_course.checks.diagnosis.entry import diagnose
from mha_course.checks.diagnosis.precision import Precise, Precision
from tests.checks.bank.right_third import attend

X = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
GIVEN = ([X], {})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_cast_is_none_inside_and_is_noted(dtype):
    with Precise() as precise:
        y = X.to(dtype)
    assert y.dtype == torch.float64
    assert torch.equal(y, X)
    assert precise.narrowed == {dtype}


def test_other_types_are_left_alone():
    with Precise() as precise:
        assert X.to(torch.int64).dtype == torch.int64
        assert (X > 0).dtype == torch.bool
    assert precise.narrowed == set()


def twice(change):
    """A precision, and what it gives for one call."""
    precision = Precision()
    return precision, precision.result(lambda given: change(given[0][0]), GIVEN, GIVEN, 0)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_rounding_is_taken_away_with_a_remark(name):
    precision, out = twice(lambda x: x.to(getattr(torch, name)) * 1)
    assert torch.equal(out, X)
    assert precision.remark.startswith(f"It computes in {name} inside")


def test_float32_needs_no_remark():
    precision, out = twice(lambda x: x.float() * 1)
    assert torch.equal(out, X)
    assert precision.remark == ""


def test_what_is_more_than_rounding_stays():
    precision, out = twice(lambda x: x + 1 if x.bfloat16().dtype == torch.bfloat16 else x)
    assert torch.equal(out, X + 1)
    assert precision.remark == ""


def test_an_error_in_the_narrow_type_stays():
    def overflows(x):
        return x.half().masked_fill(x > 0, -1e9)

    with pytest.raises(RuntimeError, match="overflow"):
        twice(overflows)


def test_an_error_of_mixed_types_is_none_in_float32():
    _, out = twice(lambda x: x.float().mT @ x)
    torch.testing.assert_close(out, X.mT @ X)
    with pytest.raises(RuntimeError, match="dtype"):
        twice(lambda x: x.half().mT @ x)


def test_an_error_has_nothing_to_do_with_types():
    def fails(x):
        raise IndexError("no")

    with pytest.raises(IndexError, match="no"):
        twice(fails)


def test_one_kind_of_call_is_watched_until_it_shows_no_narrow_step():
    precision, seen = Precision(), []

    def run(given):
        seen.append(len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()))
        return given[0][0] * 2

    for kind in (0, 0, 1, 1):
        precision.result(run, GIVEN, GIVEN, kind)
    assert seen == [1, 0, 1, 0]


def narrow(q, k, v, mask=None):
    return attend(q.bfloat16() * math.sqrt(q.size(-1)), k.bfloat16(), v.bfloat16(), mask).to(q.dtype)


def narrow_overflow(q, k, v, mask=None):
    s = (q.half() @ k.half().mT) / math.sqrt(q.size(-1))
    return ((s if mask is None else s.masked_fill(~mask, -1e9)).softmax(-1) @ v.half()).to(q.dtype)


@pytest.mark.unchecked
def test_a_fault_in_a_narrow_type_is_named():
    assert diagnose(narrow).names == ("no_scale",)


@pytest.mark.unchecked
def test_a_fill_that_its_own_type_cannot_hold_is_no_rounding():
    verdict = diagnose(narrow_overflow)
    assert not verdict.ok
    assert verdict.names == ("raises",)
