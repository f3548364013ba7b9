"""Experiments of notebook 14."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from mha_course import MultiHeadAttention
from mha_course.experiments import eight_bits as lesson
from mha_course.measure import PairedRatio
from mha_course.models import Decoder
from mha_course.quantization import dequantize, find_affine, quantize


def test_relative_error_by_hand():
    assert lesson.relative_error(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 4.0]])) == 0.75


def test_weight_errors_are_those_of_the_codes():
    weight = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    errors = lesson.weight_errors(weight, [8, 3])
    assert list(errors) == ["tensor", "channel", "group of 32"]
    for (name, per), column in [((n, p), c) for n, p in lesson.SCHEMES.items() for c in (0, 1)]:
        affine = find_affine(weight, (8, 3)[column], per=per)
        difference = dequantize(quantize(weight, affine), affine) - weight
        assert_close(errors[name][column], (difference.norm() / weight.norm()).item(), rtol=1e-4, atol=0)
    coarse = lesson.weight_errors(weight, [2])["tensor"]
    assert lesson.weight_errors(weight, [2], calibration="mse")["tensor"] < coarse


@pytest.fixture(scope="module")
def short():
    return lesson.fewer_bits([3], [8, 2], steps=25, more=5)


def test_fewer_bits_has_every_number(short):
    assert [x.shape for x in short] == [(1,), (1, 2), (1,), (1,), (1,)]
    assert all(((x >= 0) & (x <= 1)).all() for x in short)


def test_clipped_is_the_trained_model_with_the_best_ranges_and_fewest_bits(monkeypatch):
    asked = []
    real = lesson.quantize_module

    def quantize_module(model, **given):
        asked.append(given)
        made = real(model, **given)
        made.asked = given
        return made

    def accuracy(model):
        return 0.75 if getattr(model, "asked", {}).get("calibration") == "mse" else 0.25

    monkeypatch.setattr(lesson, "quantize_module", quantize_module)
    monkeypatch.setattr(lesson, "accuracy", accuracy)
    found = lesson.fewer_bits([3], [8, 2], steps=1, more=1)
    assert found.clipped.tolist() == [0.75]
    assert {"bits": 2, "calibration": "mse"} in asked
    assert found.longer.tolist() == found.aware.tolist() == [0.25]


def test_fewer_bits_is_the_same_twice_and_leaves_the_generator(short):
    state = torch.get_rng_state()
    again = lesson.fewer_bits([3], [8, 2], steps=25, more=5)
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(again, short, strict=True):
        np.testing.assert_array_equal(a, b)


def test_accuracy_of_one_who_knows_and_one_who_guesses():
    def knows(tokens):
        return torch.nn.functional.one_hot(tokens.roll(lesson.BACK, 1), lesson.VOCABULARY)

    assert lesson.accuracy(knows) == 1.0
    assert abs(lesson.accuracy(lambda tokens: torch.zeros(*tokens.shape, lesson.VOCABULARY)) - 1 / 16) < 0.01
    model = Decoder(lesson.VOCABULARY, 8, 2, 1, max_length=lesson.LENGTH)
    assert 0 < lesson.accuracy(model) < 0.2


def test_speed_compares_the_layer_with_each_other(monkeypatch):
    layer = MultiHeadAttention(8, 2).eval()
    asked = []

    def compare(a, b, rounds):
        asked.append((a(), b(), rounds))
        return PairedRatio(1.0, 1.0, 1.0, 1.0)

    monkeypatch.setattr(lesson, "paired_ratio", compare)
    ratios = lesson.speed(layer, {"itself": layer, "half": lambda x: layer(x) / 2}, [1, 3], rounds=11)
    assert {name: len(row) for name, row in ratios.items()} == {"itself": 2, "half": 2}
    assert [tuple(a.shape) for a, _, _ in asked] == [(1, 1, 8), (1, 1, 8), (1, 3, 8), (1, 3, 8)]
    for (a, b, rounds), factor in zip(asked, (1, 2, 1, 2), strict=True):
        assert_close(a, b * factor)
        assert (rounds, a.requires_grad) == (11, False)


@pytest.mark.unchecked
def test_bad_input():
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        lesson.fewer_bits([0], [2], steps=0)
    with pytest.raises(TypeError, match="more must be an integer"):
        lesson.fewer_bits([0], [2], more=1.5)
    with pytest.raises(ValueError, match="bits must hold at least one number, got none"):
        lesson.fewer_bits([0], [])
    with pytest.raises(ValueError, match=r"bits must lie in \[2, 16\], got 1"):
        lesson.weight_errors(torch.randn(3, 32), [1])
