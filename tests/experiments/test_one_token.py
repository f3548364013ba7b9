"""Experiments of notebook 12."""

import numpy as np
import pytest
import torch

from mha_course.cache import bytes_per_token
from mha_course.experiments import one_token as lesson
from mha_course.models import Decoder


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Decoder(11, 12, 3, 2, positions="rotary", dtype=torch.float64).eval()


def test_with_and_without_a_cache_the_same_is_written(model):
    prompt = torch.randint(11, (2, 3), generator=torch.Generator().manual_seed(1))
    plain, cached = (lesson.generate(model, prompt, 5, cached=c) for c in (False, True))
    assert torch.equal(plain.tokens, cached.tokens)
    assert plain.tokens.shape == (2, 5)
    assert plain.passed == 3 + 4 + 5 + 6 + 7
    assert cached.passed == 3 + 4


def test_the_likeliest_token_is_taken(model):
    prompt = torch.tensor([[1, 2]])
    (first,) = lesson.generate(model, prompt, 1, cached=True).tokens[0].tolist()
    assert first == model(prompt)[0, -1].argmax().item()


def test_speed_up_is_a_ratio_for_each_length():
    ratios = lesson.speed_up([2, 3], embed_dim=8, num_heads=2, num_layers=1, repeats=2)
    assert ratios.shape == (2, 2)
    assert (ratios > 0).all()
    assert np.isfinite(ratios).all()


def test_concatenation_writes_all_again():
    k, v = torch.randn(2, 7, 2, 3, 5)
    token = 4 * 2 * 2 * 3 * 5  # bytes of k and v
    assert lesson.keep_by_concatenation(k, v) == token * 7 * 8 // 2
    assert lesson.keep_preallocated(k, v) == token * 7


def test_published_models():
    found = {name: bytes_per_token(*sizes) for name, sizes in lesson.MODELS.items()}
    assert found == {
        "Falcon 7B": 8_192,
        "Llama-3 8B": 131_072,
        "Llama-2 70B": 327_680,
        "Llama-3.1 405B": 516_096,
        "Llama-2 7B": 524_288,
        "Llama-2 13B": 819_200,
    }


@pytest.mark.unchecked
def test_bad_input(model):
    prompt = torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        lesson.generate(model, prompt, 0, cached=True)
    with pytest.raises(TypeError, match="n must be an integer, got float"):
        lesson.generate(model, prompt, 1.0, cached=True)
    with pytest.raises(ValueError, match="at least one token, got none"):
        lesson.generate(model, prompt[:, :0], 1, cached=False)
