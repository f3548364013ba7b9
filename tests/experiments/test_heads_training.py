"""Trainings of notebook 07, small ones."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.experiments import heads_training as lesson
from mha_course.training import Fit

RIGHT, BOTH = "right", "both wrong"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two threads on a busy machine take many times as long for small steps as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_neighbours_are_those_of_the_ring():
    tokens, target = lesson._ring(7, torch.Generator().manual_seed(0))
    assert tokens.shape == (7, 8)
    assert tokens.unique().tolist() == list(range(16))
    for b in range(7):
        for t in range(8):
            assert target[b, t].tolist() == [tokens[b, t - 1], tokens[b, (t + 1) % 8]]


def test_two_heads_fetch_two_things_and_one_does_not():
    one, two = (lesson.fetch_two(heads) for heads in (1, 2))
    assert two.both > 0.99
    assert two.loss < 0.05
    assert one.both <= 0.5
    assert max(one.left, one.right) > 0.9
    assert one.weights.shape == (1, 8, 8)
    assert_allclose(one.weights.sum(-1), 1, rtol=1e-5)
    first, second = two.on_left.argmax(), two.on_right.argmax()
    assert first != second
    assert min(two.on_left[first], two.on_right[second]) > 0.9


@pytest.mark.parametrize("hidden", [0, 5])
def test_the_number_of_parameters_does_not_depend_on_the_heads(hidden):
    counts = {sum(p.numel() for p in lesson.Neighbours(H, 32, hidden, RIGHT).parameters()) for H in (1, 2, 4)}
    read = 32 * 32 + 32 if not hidden else 32 * hidden + hidden + hidden * 32 + 32
    assert counts == {16 * 32 + 8 * 32 + 4 * (32 * 32 + 32) + read}


def test_weights_shown_are_those_of_the_places(monkeypatch):
    monkeypatch.setattr(lesson, "fit", lambda *args, **options: Fit(np.zeros(20), stopped=False))
    found = lesson.fetch_two(2, seed=3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = lesson.Neighbours(2, 32, 0, RIGHT)
    places = model.place.detach()
    for h in range(2):
        rows = slice(16 * h, 16 * (h + 1))
        q, k = (places @ linear.weight[rows].detach().T for linear in (model.attention.q_proj, model.attention.k_proj))
        weights = (q @ k.T / 4).softmax(-1)
        assert_allclose(found.weights[h], weights, rtol=1e-3, atol=1e-6)
        assert_allclose(found.on_left[h], np.mean([weights[t, t - 1] for t in range(8)]), rtol=1e-3)
        assert_allclose(found.on_right[h], np.mean([weights[t, (t + 1) % 8] for t in range(8)]), rtol=1e-3)


def test_accuracy_is_counted_where_the_neighbours_differ(monkeypatch):
    monkeypatch.setattr(lesson, "fit", lambda *args, **options: Fit(np.zeros(20), stopped=False))
    found = lesson.fetch_two(2, seed=3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = lesson.Neighbours(2, 32, 0, RIGHT)
    tokens, target = lesson._ring(1000, torch.Generator().manual_seed(1_000_000))
    named = model(tokens).argmax(-1)
    rows = [(n == t).tolist() for n, t in zip(named.reshape(-1, 2), target.reshape(-1, 2), strict=True) if t[0] != t[1]]
    assert_allclose(found[:3], [*np.mean(rows, 0), np.mean([left and right for left, right in rows])])


def test_every_seed_trains_on_its_own_new_batches(monkeypatch):
    seen = []

    def recorded(model, batches, *, steps, lr, loss):
        seen.append([next(batches)[0] for _ in range(2)])
        return Fit(np.zeros(20), stopped=False)

    monkeypatch.setattr(lesson, "fit", recorded)
    for train in (lambda seed: lesson.fetch_two(1, seed=seed), lambda seed: lesson.reverse(seed=seed)):
        seen.clear()
        for seed in (0, 1, 0):
            train(seed)
        first, other, again = seen
        assert_close(first, again, rtol=0, atol=0)
        assert not torch.equal(first[0], first[1])
        assert not torch.equal(first[0], other[0])
        assert first[0].shape[0] == 64


def test_swapped_neighbours_are_never_both_named_by_one_linear_read_out():
    """The argument of the docstring, on random affine read-outs that name equal neighbours rightly."""
    z = 4 * torch.eye(16) + 0.8 * torch.randn(
        200, 16, 16, generator=torch.Generator().manual_seed(0)
    )  # logits of a class for each pure token
    a, b = torch.combinations(torch.arange(16)).T
    at = torch.arange(16)
    fine = (z.argmax(-1) == at).all(-1)
    assert fine.sum() > 50
    for w in (0.5, 0.55, 0.7, 0.9):
        ab, ba = (w * z[fine][:, x] + (1 - w) * z[fine][:, y] for x, y in ((a, b), (b, a)))
        right = (ab.argmax(-1) == b) & (ba.argmax(-1) == a)  # of the neighbour with the smaller share
        assert not right.any()


def test_the_best_read_out_is_that_of_gradient_descent():
    share = 0.45
    one_hot = torch.eye(16, dtype=torch.float64)
    x = (share * one_hot[:, None] + (1 - share) * one_hot).flatten(0, 1)
    target = torch.arange(16).repeat_interleave(16)
    W = torch.zeros(16, 16, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([W], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = F.cross_entropy(x @ W.T, target)
        value.backward()
        return value

    optimizer.step(closure)
    found = lesson.best_read_out(np.array([share]))
    assert_allclose(found.loss[0], closure().item(), rtol=1e-4)
    differ = torch.arange(16).repeat(16) != target
    assert_allclose(found.accuracy[0], ((x @ W.T).argmax(-1) == target)[differ].double().mean().item())


def test_the_best_read_out_at_the_ends_and_in_the_middle():
    found = lesson.best_read_out(np.array([0, 0.49, 0.5, 0.51, 1]))
    assert_allclose(found.accuracy, [1 / 16, 0, 0.5, 1, 1])
    assert_allclose(found.loss, [math.log(16), 0.784, math.log(2) * 15 / 16, 0, 0], atol=1e-3)


def test_cross_attention_reverses_a_sequence_and_pooling_does_not():
    found, pooled = lesson.reverse(), lesson.reverse(pooled=True, steps=20)
    assert found.exact > 0.97
    assert found.tokens > 0.99
    assert found.weights.shape == (4, 12, 12)
    assert found.on_target.shape == (4, 12)
    assert_allclose(found.on_target, found.weights[:, np.arange(12), 11 - np.arange(12)])
    assert found.on_target.max(0).min() > 0.8  # one head or more at every place
    assert pooled.exact == 0
    assert pooled.tokens < 0.3
    assert_allclose(pooled.on_target, 1 / 12, rtol=1e-6)


def test_a_wrong_round_trip_cannot_reverse():
    assert lesson.reverse(steps=60, layout=BOTH).tokens < 0.1
    assert lesson.reverse(steps=60).tokens > 0.3


def test_training_depends_on_the_seed_alone_and_leaves_the_random_state():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for train in (
        lambda seed: lesson.fetch_two(2, steps=3, seed=seed),
        lambda seed: lesson.reverse(steps=3, seed=seed),
    ):
        first = train(3)
        assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
        torch.rand(3)
        assert_allclose(train(3).weights, first.weights, rtol=0)
        assert np.abs(train(4).weights - first.weights).max() > 0.01
        torch.set_rng_state(before)


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda: lesson.fetch_two(0), ValueError, "num_heads must be an integer of at least 1|at least 1, got 0"),
        (lambda: lesson.fetch_two(3), ValueError, "num_heads must divide embed_dim"),
        (lambda: lesson.fetch_two(1, hidden=-1), ValueError, "hidden must be at least 0, got -1"),
        (lambda: lesson.fetch_two(1, hidden=1.0), TypeError, "hidden must be an integer, got float"),
        (lambda: lesson.fetch_two(1, steps=0), ValueError, "steps must be at least 1, got 0"),
        (lambda: lesson.fetch_two(1, lr=-1), ValueError, "lr must be finite and at least 0, got -1"),
        (lambda: lesson.fetch_two(1, layout="wrong"), ValueError, "layout must be one of .*, got 'wrong'"),
        (lambda: lesson.reverse(layout="wrong"), ValueError, "layout must be one of .*, got 'wrong'"),
        (lambda: lesson.reverse(steps=1.0), TypeError, "steps must be an integer, got float"),
    ],
)
@pytest.mark.unchecked
def test_bad_arguments_are_refused(call, kind, match):
    with pytest.raises(kind, match=match):
        call()
