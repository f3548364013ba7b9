"""Experiments of notebook 05."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mha_course.experiments import order
from mha_course.experiments.order import Reader, explained_by_distance, name_first


def by_hand(reader: Reader, tokens: list[int]) -> torch.Tensor:
    """The logits of one sequence, token by token, in loops."""
    x = [reader.embedding.weight[token] for token in tokens]
    if hasattr(reader.positions, "weight"):
        x = [vector + reader.positions.weight[place] for place, vector in enumerate(x)]
    for layer in reader.layers:
        q, k, v = (torch.stack([layer.weight[i * 32 : (i + 1) * 32] @ vector for vector in x]) for i in range(3))
        after = []
        for t, vector in enumerate(x):
            seen = range(t + 1) if reader.mask is not None else range(len(x))
            scores = torch.stack([q[t] @ k[s] / 32**0.5 for s in seen])
            weights = (scores - scores.max()).exp()
            after.append(vector + sum(w * v[s] for w, s in zip(weights / weights.sum(), seen, strict=True)))
        x = after
    return reader.read.weight @ x[-1] + reader.read.bias


@pytest.mark.parametrize(("scheme", "layers", "causal"), [("none", 1, False), ("none", 2, True), ("learned", 1, False)])
def test_reader_equals_loops(scheme: str, layers: int, causal: bool) -> None:
    torch.manual_seed(0)
    reader = Reader(scheme, layers, causal)
    tokens = torch.tensor([[3, 14, 1, 5, 9, 2, 6, 8], [7, 0, 15, 4, 13, 11, 10, 12]])
    expected = torch.stack([by_hand(reader, row) for row in tokens.tolist()])
    torch.testing.assert_close(reader(tokens), expected)


def test_schemes_differ_in_the_positions_alone() -> None:
    readers = []
    for scheme in order.SCHEMES:
        torch.manual_seed(0)
        readers.append(Reader(scheme, 1, False))
    tokens = torch.randperm(16)[None, :8]
    none, sinusoidal, learned = (reader.positions(reader.embedding(tokens)) for reader in readers)
    places = torch.arange(8)[:, None] / 10_000 ** (torch.arange(0, 32, 2) / 32)
    torch.testing.assert_close((sinusoidal - none)[0, :, 0::2], places.sin(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close((sinusoidal - none)[0, :, 1::2], places.cos(), atol=1e-5, rtol=1e-5)
    assert learned.shape == none.shape


def test_sequences_hold_different_tokens_in_random_order() -> None:
    tokens, first = order._draw(4000, torch.Generator().manual_seed(0))
    assert tokens.shape == (4000, 8)
    assert all(len(set(row)) == 8 for row in tokens.tolist())
    torch.testing.assert_close(first, tokens[:, 0])
    counts = torch.stack([F.one_hot(tokens[:, t], 16).sum(0) for t in range(8)])  # 4000 / 16 = 250 each
    assert counts.min() > 250 - 5 * 250**0.5
    assert counts.max() < 250 + 5 * 250**0.5


def test_without_order_the_reader_guesses_among_seven() -> None:
    assert name_first("none", steps=150) == pytest.approx(1 / 7, abs=0.04)


def test_two_causal_layers_read_the_order_and_one_does_not() -> None:
    assert name_first("none", layers=2, causal=True) > 0.95
    assert name_first("none", causal=True, steps=150) == pytest.approx(1 / 7, abs=0.04)


@pytest.mark.parametrize("scheme", ["sinusoidal", "learned"])
def test_with_positions_one_layer_names_the_first(scheme: str) -> None:
    assert name_first(scheme) > 0.95


def test_a_seed_decides_and_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    once, again, other = (name_first("none", steps=2, seed=seed) for seed in (3, 3, 4))
    assert once == again != other
    assert torch.equal(state, torch.get_rng_state())


def test_all_seeds_are_tested_on_the_same_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = []
    draw = order._draw

    def record(batch: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, first = draw(batch, generator)
        if batch == order.TESTED:
            tested.append(tokens)
        return tokens, first

    monkeypatch.setattr(order, "_draw", record)
    for seed in (0, 1):
        name_first("none", steps=1, seed=seed)
    assert torch.equal(*tested)


def test_distance_explains_all_of_a_matrix_of_diagonals() -> None:
    distance = torch.arange(7)[:, None] - torch.arange(7)
    assert explained_by_distance((distance.double() * 1.7).sin()) == pytest.approx(1, abs=1e-12)


def test_share_by_hand() -> None:
    # mean 1, squares around it 1 + 1 + 9 + 1; the diagonals are (0, 4), (0) and (0): 8 of 12 are left
    assert explained_by_distance(torch.tensor([[0.0, 0.0], [0.0, 4.0]])) == pytest.approx(1 - 8 / 12)


def test_independent_scores_give_the_share_of_the_diagonals() -> None:
    generator = torch.Generator().manual_seed(0)
    shares = [explained_by_distance(torch.randn(32, 32, generator=generator)) for _ in range(200)]
    assert np.mean(shares) == pytest.approx(63 / 1024, abs=0.003)


def test_readers_without_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(scheme: str, *, layers: int, causal: bool, seed: int) -> float:
        assert scheme == "none"
        return float(layers + 10 * causal + 100 * seed)

    monkeypatch.setattr(order, "name_first", name)
    found = order.without_positions(seeds=2)
    expected = {"1 layer": 1, "2 layers": 2, "1 layer, causal": 11, "2 layers, causal": 12}
    assert dict(zip(order.READERS, found[:, 0], strict=True)) == expected
    np.testing.assert_array_equal(found[:, 1], found[:, 0] + 100)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scheme": "rotary"}, ValueError, r"scheme must be one of .*, got 'rotary'"),
        ({"scheme": "none", "layers": 0}, ValueError, "layers must be at least 1, got 0"),
        ({"scheme": "none", "layers": 1.0}, TypeError, "layers must be an integer, got float"),
        ({"scheme": "none", "steps": 0}, ValueError, "steps must be at least 1, got 0"),
    ],
)
def test_bad_arguments_of_name_first(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        name_first(**arguments)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (torch.zeros(3, 5), r"scores must have shape \(T, T\), got \(3, 5\)"),
        (torch.zeros(3), r"scores must have shape \(T, T\), got \(3,\)"),
        (torch.ones(3, 3), "scores must not all be equal"),
        (torch.ones(0, 0), "scores must not all be equal"),
        (torch.full((3, 3), 0.1) + 1e-9 * torch.eye(3), "scores must not all be equal"),
        (torch.zeros(3, 3).masked_fill(torch.eye(3) == 1, -torch.inf), "scores must be finite, got NaN or infinity"),
    ],
)
def test_bad_scores(scores: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explained_by_distance(scores)
