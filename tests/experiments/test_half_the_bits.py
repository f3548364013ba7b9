"""Experiments of notebook 13."""

import math

import pytest
import torch
from torch.amp.grad_scaler import GradScaler

from mha_course.experiments import half_the_bits as lesson
from mha_course.precision import FORMATS


@pytest.mark.parametrize("seed", [0, 1])
def test_float16_learns_an_ordinary_loss(seed):
    run = lesson.train(torch.float16, seed=seed)
    assert run.accuracy > 0.9
    assert run.zeros < 0.05
    assert run.skipped == 0


def test_a_small_loss_is_lost_in_float16():
    run = lesson.train(torch.float16, factor=1e-5)
    assert run.accuracy < 0.25
    assert run.zeros == 1


def test_the_scaler_repairs_it():
    run = lesson.train(torch.float16, factor=1e-5, scaler=GradScaler("cpu"))
    assert run.accuracy > 0.9
    assert run.zeros < 0.05


def test_other_types_do_not_mind():
    for dtype in (torch.float32, torch.bfloat16):
        run = lesson.train(dtype, factor=1e-5)
        assert run.accuracy > 0.9
        assert run.zeros < 0.05


def test_skipped_steps_are_counted():
    run = lesson.train(torch.float16, scaler=GradScaler("cpu", init_scale=2.0**40), steps=10)
    assert run.skipped == 10


def test_a_training_is_repeated_and_leaves_the_generator_alone():
    state = torch.get_rng_state()
    first, second = (lesson.train(torch.float32, steps=12, seed=3) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), state)


def test_relative_spacing():
    found = lesson.relative_spacing([-24, -14, 0, 15, 16])
    assert list(found) == list(FORMATS)
    half = found["float16"].tolist()
    assert half[:4] == [1, 2**-10, 2**-10, 2**-10]
    assert math.isnan(half[4])
    assert found["bfloat16"].tolist() == [2**-7] * 5
    assert math.isnan(found["float8 e4m3"][0])


def test_time_is_a_ratio():
    ratio = lesson.against_float32(torch.bfloat16, B=1, S=3, E=8, num_heads=2, rounds=6)
    assert 0 < ratio.low <= ratio.median <= ratio.high


@pytest.mark.unchecked
def test_bad_input():
    with pytest.raises(ValueError, match="steps must be at least 10, got 9"):
        lesson.train(torch.float32, steps=9)
    with pytest.raises(TypeError, match="steps must be an integer, got float"):
        lesson.train(torch.float32, steps=20.0)
