"""Trainings of notebook 03, small ones."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.data import random_rotation, retrieval
from mha_course.experiments import scaling_training as lesson
from mha_course.training import Fit

RULES = ("none", "1/sqrt(d_k)", "1/10", "1/d_k", "cosine", "cosine, factor", "none, small W_q")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two threads on a busy machine take many times as long for small steps as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def retriever(rule: str, d_k: int = 5, init: str = "unit", seed: int = 0) -> lesson.Retriever:
    return lesson.Retriever(rule, d_k, init, torch.Generator().manual_seed(seed))


def test_rules_by_name():
    assert lesson.RULES == RULES


@pytest.mark.parametrize("rule", RULES)
def test_logits_by_hand(rule):
    d_k = 5
    query, key, value, _ = retrieval(3, 7, generator=torch.Generator().manual_seed(1))
    model = retriever(rule, d_k)
    q, k = (query @ model.W_q).double(), (key @ model.W_k).double()  # (B, 1, D), (B, S, D)
    dots = torch.einsum("btd,bsd->bs", q, k)
    cosines = dots / (q.norm(dim=-1) * k.norm(dim=-1))
    scaled = (dots, dots / math.sqrt(d_k), dots / 10, dots / d_k, cosines, 10 * cosines, dots)
    scores = dict(zip(RULES, scaled, strict=True))[rule]
    expected = 8 * torch.einsum("bs,bsc->bc", scores.softmax(-1), value.double())
    assert_close(model(query, key, value), expected.float(), rtol=1e-4, atol=1e-5)


def test_the_two_maps_learn_and_the_temperature():
    sizes = {rule: {name: tuple(p.shape) for name, p in retriever(rule).named_parameters()} for rule in RULES}
    maps = {"W_q": (32, 5), "W_k": (32, 5)}
    for rule in RULES:
        assert sizes[rule] == (maps | {"log_factor": ()} if rule == "cosine, factor" else maps)
    model = retriever("cosine, factor")
    query, key, value, target = retrieval(3, 7, generator=torch.Generator().manual_seed(1))
    F.cross_entropy(model(query, key, value), target).backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.parametrize("d_k", [4, 64, 256])
def test_an_unscaled_model_equals_a_scaled_one_with_larger_w_q(d_k):
    # a factor that is a power of two commutes with every rounding, so that not a bit differs
    batch = retrieval(11, 7, generator=torch.Generator().manual_seed(1))
    scaled, free = retriever("1/sqrt(d_k)", d_k), retriever("none, small W_q", d_k)
    with torch.no_grad():
        assert_close(free(*batch[:3]), scaled(*batch[:3]), rtol=0, atol=0)
        scaled.W_q *= 2
        assert (free(*batch[:3]) - scaled(*batch[:3])).abs().max() > 0.1


def test_maps_are_drawn_one_after_the_other_by_the_init():
    generator = torch.Generator().manual_seed(3)
    W_q, W_k = (lesson.draw_map("xavier", 32, 5, generator) for _ in range(2))
    model = retriever("none", init="xavier", seed=3)
    assert_close(model.W_q.detach(), W_q, rtol=0, atol=0)
    assert_close(model.W_k.detach(), W_k, rtol=0, atol=0)


def test_every_rule_starts_alike_and_sees_the_same_new_batches(monkeypatch):
    seen = []

    def recorded(model, batches, *, steps, lr, loss, callback):
        supply = iter(batches)
        seen.append((model.W_q.detach(), [next(supply) for _ in range(steps)], lr))
        return Fit(np.zeros(steps), stopped=False)

    monkeypatch.setattr(lesson, "fit", recorded)
    for rule in RULES:
        lesson.train(rule, d_k=3, keys=7, batch=5, steps=2, lr=0.1, seed=1)
    assert all(lr == 0.1 for _, _, lr in seen)
    for rule, (W_q, batches, _) in zip(RULES, seen, strict=True):
        if rule == "none, small W_q":
            W_q = W_q * math.sqrt(3)
        assert_close(W_q, seen[0][0], rtol=1e-6, atol=0)
        for batch, first in zip(batches, seen[0][1], strict=True):
            for one, other in zip(batch, first, strict=True):
                assert_close(one, other, rtol=0, atol=0)
    one, two = seen[0][1]
    assert [tuple(x.shape) for x in one] == [(5, 1, 32), (5, 7, 32), (5, 7, 16), (5,)]
    assert not torch.equal(one.key, two.key)
    lesson.train("none", d_k=3, keys=7, batch=5, steps=2, seed=2)
    assert not torch.equal(seen[-1][0], seen[0][0])
    assert not torch.equal(seen[-1][1][0].key, one.key)
    lesson.train("none", d_k=3, keys=7, batch=5, steps=2, seed=1, init="randn")
    assert_close(seen[-1][0], seen[0][0] * math.sqrt(32), rtol=1e-6, atol=0)


def test_the_rotation_is_the_same_for_all_seeds(monkeypatch):
    rotations = []

    def recorded(*sizes, rotation, **options):
        rotations.append(rotation)
        return retrieval(*sizes, rotation=rotation, **options)

    monkeypatch.setattr(lesson, "retrieval", recorded)
    for seed in range(2):
        lesson.train("none", d_k=3, keys=3, batch=2, steps=2, seed=seed)
    for rotation in rotations:
        assert_close(rotation, random_rotation(32), rtol=0, atol=0)


def test_accuracy_and_loss_are_those_of_the_batch_before_the_update(monkeypatch):
    # the first model is untrained, so that both can be computed from the first batch
    drawn = []

    def recorded(*sizes, **options):
        drawn.append(retrieval(*sizes, **options))
        return drawn[-1]

    monkeypatch.setattr(lesson, "retrieval", recorded)
    run = lesson.train("none", d_k=3, keys=7, batch=50, steps=2, seed=4)
    model = retriever("none", 3, seed=4)
    with torch.no_grad():
        logits = model(*drawn[0][:3])
    assert_allclose(run.loss[0], F.cross_entropy(logits, drawn[0].target).item(), rtol=1e-6)
    assert_allclose(run.accuracy[0], (logits.argmax(-1) == drawn[0].target).double().mean().item())
    assert 0 < run.accuracy[0] < 1
    assert len(run.accuracy) == len(run.loss) == len(drawn) == 2


def test_default_sizes(monkeypatch):
    seen = []

    def recorded(model, batches, *, steps, lr, loss, callback):
        seen.append((tuple(model.W_q.shape), tuple(next(iter(batches)).key.shape), steps, lr))
        return Fit(np.zeros(steps), stopped=False)

    monkeypatch.setattr(lesson, "fit", recorded)
    lesson.train("none")
    assert seen == [((32, 256), (32, 16, 32), 250, 3e-3)]


def test_training_depends_on_the_seed_alone():
    torch.manual_seed(1)
    first = lesson.train("1/10", d_k=5, keys=3, steps=7, seed=3)
    torch.manual_seed(2)
    again = lesson.train("1/10", d_k=5, keys=3, steps=7, seed=3)
    assert_allclose(first.accuracy, again.accuracy, rtol=0)
    assert_allclose(first.loss, again.loss, rtol=0)
    assert (lesson.train("1/10", d_k=5, keys=3, steps=7, seed=4).loss != first.loss).all()


def test_the_random_state_of_the_caller_is_untouched():
    before = torch.get_rng_state()
    for rule in RULES:
        lesson.train(rule, d_k=3, keys=3, steps=1)
    assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


def test_what_the_lesson_says_about_training():
    steps = 50
    runs = {rule: lesson.train(rule, steps=steps, seed=1) for rule in ("none", "1/sqrt(d_k)", "cosine, factor")}
    assert lesson.steps_to(runs["1/sqrt(d_k)"].accuracy) < 35
    assert lesson.steps_to(runs["cosine, factor"].accuracy) < 35
    assert math.isnan(lesson.steps_to(runs["none"].accuracy))
    assert runs["none"].accuracy[-10:].mean() > 0.3  # slow, not stuck
    stuck = lesson.train("1/sqrt(d_k)", init="randn", steps=steps, lr=1e-3, seed=1)
    assert stuck.accuracy.mean() < 0.25


@pytest.mark.parametrize(("keys", "percent"), [(16, 19), (32, 15)])
def test_accuracy_without_the_query(keys, percent):
    value = retrieval(20_000, keys, width=1, generator=torch.Generator().manual_seed(0)).value
    share = value.mean(1).amax(-1).mean().item()  # of the most frequent class among the keys
    assert round(100 * share) == percent
    assert f"{percent} %" in lesson.train.__doc__


def test_steps_to_a_level_by_hand():
    rising = np.array([0.0] * 5 + [1.0] * 20)  # nine ones of ten at step 14
    assert lesson.steps_to(rising) == 14
    assert lesson.steps_to(rising, 1.0) == 15
    assert lesson.steps_to(rising, 0.9, window=1) == 6
    assert lesson.steps_to(rising, 0.5, window=4) == 7
    assert lesson.steps_to(np.ones(10)) == 10
    assert lesson.steps_to(np.full(30, 0.9)) == 10
    assert lesson.steps_to(np.array([0.1] * 10 + [0.95] * 10 + [0.1] * 10), 0.9) == 20


def test_a_level_that_is_never_reached_is_nan():
    assert math.isnan(lesson.steps_to(np.full(30, 0.89)))
    assert math.isnan(lesson.steps_to(np.ones(9)))


@pytest.mark.parametrize(
    ("init", "std", "bound"),
    [
        ("unit", 1 / math.sqrt(200), None),
        ("randn", 1.0, None),
        ("1/sqrt(d_k)", 1 / math.sqrt(300), None),
        ("default", 1 / math.sqrt(3 * 200), 1 / math.sqrt(200)),
        ("xavier", math.sqrt(2 / 500), math.sqrt(6 / 500)),
    ],
)
def test_maps_have_the_spread_of_their_init(init, std, bound):
    # 60,000 entries: the std is good to 1 / sqrt(2 * 60000) = .3 %, the mean to std / 245
    W = lesson.draw_map(init, 200, 300, torch.Generator().manual_seed(0))
    assert W.shape == (200, 300)
    assert_close(W.std().item(), std, rtol=0.015, atol=0)
    assert_close(W.mean().item(), 0.0, rtol=0, atol=5 * std / 245)
    if bound is None:
        assert W.abs().max() > 3.5 * std
    else:
        assert 0.999 * bound < W.abs().max() <= bound


@pytest.mark.parametrize("init", ["default", "xavier"])
def test_inits_are_those_of_torch(init):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        layer = nn.Linear(200, 300)
        if init == "xavier":
            nn.init.xavier_uniform_(layer.weight)
    mine = lesson.draw_map(init, 200, 300, torch.Generator().manual_seed(0))
    assert_close(mine.abs().max().item(), layer.weight.abs().max().item(), rtol=1e-3, atol=0)
    assert_close(mine.std().item(), layer.weight.std().item(), rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda: lesson.train("sqrt"), ValueError, "rule must be one of .*, got 'sqrt'"),
        (lambda: lesson.train("none", init="kaiming"), ValueError, "init must be one of .*, got 'kaiming'"),
        (lambda: lesson.train("none", d_k=0), ValueError, "d_k must be at least 1, got 0"),
        (lambda: lesson.train("none", keys=0), ValueError, "keys must be at least 1, got 0"),
        (lambda: lesson.train("none", batch=0), ValueError, "batch must be at least 1, got 0"),
        (lambda: lesson.train("none", steps=0), ValueError, "steps must be at least 1, got 0"),
        (lambda: lesson.train("none", lr=-1.0), ValueError, "lr must be finite and at least 0, got -1"),
        (lambda: lesson.train("none", lr=math.inf), ValueError, "lr must be finite and at least 0, got inf"),
        (lambda: lesson.train("none", keys=2.0), TypeError, "keys must be an integer, got float"),
        (lambda: lesson.train("none", batch=2.0), TypeError, "batch must be an integer, got float"),
        (lambda: lesson.train("none", steps=2.0), TypeError, "steps must be an integer, got float"),
        (lambda: lesson.train("none", lr=1e30, steps=3), FloatingPointError, "at step 2"),
        (lambda: lesson.steps_to(np.ones(3), window=0), ValueError, "window must be at least 1, got 0"),
        (lambda: lesson.draw_map("kaiming", 2, 3, torch.Generator()), ValueError, "init must be one of"),
    ],
)
@pytest.mark.unchecked
def test_bad_arguments_are_refused(call, kind, match):
    with pytest.raises(kind, match=match):
        call()


def test_a_training_can_stop_at_the_level_that_steps_to_finds():
    whole = lesson.train("1/sqrt(d_k)", steps=60)
    short = lesson.train("1/sqrt(d_k)", steps=60, until=0.8)
    found = lesson.steps_to(whole.accuracy, 0.8)
    assert len(short.accuracy) == len(short.loss) == found == lesson.steps_to(short.accuracy, 0.8)
    np.testing.assert_array_equal(short.accuracy, whole.accuracy[: len(short.accuracy)])
    assert len(lesson.train("cosine", steps=12, until=0.99).accuracy) == 12
