"""Experiments of notebook 06; the trainings themselves are tested in test_extrapolation.py."""

import math

import numpy as np
import pytest
import torch

from mha_course.experiments import distance, extrapolation


def test_three_schemes_by_loops() -> None:
    T = 7
    ALiBi, buckets, rotary = distance.three_schemes(T)
    for t in range(T):
        for s in range(T):
            away = abs(t - s)
            assert ALiBi[t, s] == pytest.approx(-away / 8 / 3)  # slope 1/8, over 3
            assert buckets[t, s] == (away + (16 if s > t else 0)) / 32
            waves = [math.cos(away / 10_000 ** (i / 16)) for i in range(16)]
            assert rotary[t, s] == pytest.approx(sum(waves) / 16, abs=1e-6)


def test_rotary_scores_of_equal_vectors_by_loops() -> None:
    scores = distance.rotary_scores([0, 3, 50], equal=True, head_dim=6, pairs=5, seed=2)
    q = torch.randn(2, 5, 1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))[0, :, 0]
    for row, vector in enumerate(q.tolist()):
        for column, d in enumerate((0, 3, 50)):
            pairs = [math.cos(d / 10_000 ** (2 * i / 6)) * (vector[i] ** 2 + vector[i + 3] ** 2) for i in range(3)]
            assert scores[row, column] == pytest.approx(sum(pairs) / 6**0.5)


def test_independent_scores_have_mean_0_and_variance_1_at_every_distance() -> None:
    scores = distance.rotary_scores([0, 1, 10, 1000], equal=False, pairs=20_000)
    assert abs(scores.mean(0)).max() < 5 / 20_000**0.5
    assert abs(scores.var(0) - 1).max() < 5 * (2 / 20_000) ** 0.5 * 1.05  # a sum of 64 products: kurtosis 3 + 6 / 64


def test_the_same_pairs_at_every_distance_and_by_seed() -> None:
    one, again = (distance.rotary_scores([5, 5], equal=False, pairs=3) for _ in range(2))
    np.testing.assert_array_equal(one[:, 0], one[:, 1])
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, distance.rotary_scores([5, 5], equal=False, pairs=3, seed=1))


def test_recipes_stretch_by_four() -> None:
    assert list(distance.RECIPES) == ["none", "interpolation", "NTK-aware", "YaRN"]
    assert all(recipe["factor"] == 4 for name, recipe in distance.RECIPES.items() if name != "none")
    assert distance.RECIPES["YaRN"]["trained_length"] == extrapolation.TRAINED


@pytest.fixture(scope="module")
def untrained() -> dict[str, list[extrapolation.Reader]]:
    models = {}
    for scheme in distance.SCHEMES:
        torch.manual_seed(0)
        models[scheme] = [extrapolation.Reader(scheme).eval() for _ in range(2)]
    return models


def test_train_all_trains_every_scheme_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def train(scheme: str, task: str, *, seed: int) -> extrapolation.Reader:
        calls.append((scheme, task, seed))
        return extrapolation.Reader(scheme)

    monkeypatch.setattr(distance, "train", train)
    models = distance.train_all(distance.LATEST, seeds=2)
    assert calls == [(scheme, distance.LATEST, seed) for scheme in distance.SCHEMES for seed in (0, 1)]
    assert [[model.scheme for model in row] for row in models.values()] == [[s, s] for s in distance.SCHEMES]
    assert tuple(models) == distance.SCHEMES


@pytest.mark.parametrize("window", [None, 32])
def test_accuracies_are_those_of_every_model(
    untrained: dict[str, list[extrapolation.Reader]], window: int | None
) -> None:
    found = distance.accuracies(untrained, distance.COPY, window=window)
    assert found.shape == (2, 6, 2)
    for i, scheme in enumerate(distance.SCHEMES):
        for j, model in enumerate(untrained[scheme]):
            curve = extrapolation.accuracy(model, distance.COPY, window=window)
            np.testing.assert_allclose(found[:, i, j], [np.nanmean(curve[:32]), np.nanmean(curve[32:])])


def test_stretched_turns_the_clocks_of_each_model(untrained: dict[str, list[extrapolation.Reader]]) -> None:
    models = untrained[distance.ROTARY]
    found = distance.stretched(models, distance.LATEST)
    assert found.shape == (2, 4, 2)
    for i, recipe in enumerate(distance.RECIPES.values()):
        turned = extrapolation.Rotary(8, **recipe)
        for j, model in enumerate(models):
            curve = extrapolation.accuracy(model, distance.LATEST, rotary=turned)
            np.testing.assert_allclose(found[:, i, j], [np.nanmean(curve[:32]), np.nanmean(curve[32:])])
    np.testing.assert_allclose(found[:, 0], distance.accuracies({"rotary": models}, distance.LATEST)[:, 0])
