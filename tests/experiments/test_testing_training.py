"""Right and faulty attention overfits one batch, and learns to copy 2 back: small trainings, and what they are."""

import itertools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from mha_course.data import NO_ANSWER
from mha_course.experiments import testing_training as lesson
from mha_course.experiments.testing_modules import FAULTY, NOTHING, RIGHT
from mha_course.training import Fit


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two threads on a busy machine take many times as long for small steps as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_right_attention_overfits_to_the_ceiling_and_no_further():
    found = lesson.overfit(RIGHT)
    assert found.whole == found.stepwise == lesson.ceiling(lesson.one_batch(0)) == 127 / 128


def test_attention_that_sees_later_tokens_overfits_better_and_is_worse_in_use():
    for name in ("mask thrown away", "wrong merge"):
        found = lesson.overfit(name)
        assert found.whole == 1
        assert found.stepwise < 0.7


def test_no_attention_at_all_nearly_overfits_and_cannot_copy():
    found = lesson.overfit(NOTHING)
    assert 0.75 < found.whole == found.stepwise < 0.9
    assert lesson.copy_two_back(NOTHING, steps=60).whole < 0.1


def test_a_wrong_mask_learns_to_copy_and_a_wrong_split_to_its_bound():
    assert lesson.copy_two_back("mask after softmax").whole > 0.99
    split = lesson.copy_two_back("wrong split").whole
    assert 0.6 < split < lesson.most_copied("wrong split") + 0.02


def test_the_bound_is_counted_by_hand():
    reached = 10  # of the 14 places with an answer
    for layout in ("wrong split", "wrong merge"):
        assert_allclose(lesson.most_copied(layout), (reached + 4 / 16) / 14)
    assert lesson.most_copied("right") == 1


def test_the_ceiling_of_sequences_that_begin_alike():
    sequences = torch.tensor([[0, 1, 2], [0, 1, 3], [0, 2, 2], [4, 2, 2]])
    # after 0: 1, 1, 2 -> two of three; after 4: one of one; after 0 1: one of two; 0 2 and 4 2: one each
    assert lesson.ceiling(sequences) == (2 + 1 + 1 + 1 + 1) / 8


def test_all_modules_start_alike_on_the_same_batches(monkeypatch):
    seen = []

    def recorded(model, batches, *, steps, lr, loss, optimizer):
        seen.append((dict(model.state_dict()), list(itertools.islice(batches, 2)), [lr(1), lr(10), lr(steps)]))
        return Fit(np.zeros(steps), stopped=False)

    monkeypatch.setattr(lesson, "fit", recorded)
    found = lesson.train_all(seed=3)
    assert found.names == (RIGHT, *FAULTY, NOTHING)
    assert len(seen) == 24
    for state, batches, rates in seen:
        assert_close(state, seen[0][0], rtol=0, atol=0)
        half = seen[0] if batches[0][0].shape[0] == 8 else seen[12]
        assert_close(batches, half[1], rtol=0, atol=0)
        assert rates[0] == pytest.approx(1e-3)
        assert rates[1] == pytest.approx(1e-2)
        assert rates[2] < 2e-4
    tokens, target = seen[0][1][0]
    assert tokens.shape == (8, 16)
    assert_close(tokens[:, 1:], target[:, :-1])
    assert_close(seen[0][1][1][0], tokens)  # the same batch at every step
    tokens, target = seen[12][1][0]
    assert tokens.shape == (16, 16)
    assert_close(tokens[:, :-2], target[:, 2:])
    assert (target[:, :2] == NO_ANSWER).all()
    assert (seen[12][1][1][0] != tokens).any()
    assert found.ceiling == lesson.ceiling(lesson.one_batch(3))
    for shares in found[1:5]:
        assert shares.shape == (12,)
        assert (shares < 0.3).all()  # nothing was trained
    seen.clear()
    lesson.overfit(RIGHT, seed=4)
    assert (seen[0][0]["place"] != found_place(3)).any()


def found_place(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return lesson.Reader(RIGHT).place.detach()


def test_the_test_is_the_same_for_all_seeds_and_no_training_saw_it(monkeypatch):
    drawn, draw = [], lesson.copy_back

    def recorded(batch, length, *, generator, **options):
        drawn.append((batch, generator.initial_seed()))
        return draw(batch, length, generator=generator, **options)

    monkeypatch.setattr(lesson, "copy_back", recorded)
    for seed in (0, 1):
        lesson.copy_two_back(RIGHT, steps=1, seed=seed)
    assert sorted(drawn) == [(16, 0), (16, 1), (256, lesson.TEST_SEED), (256, lesson.TEST_SEED)]


def test_stepwise_is_the_answer_from_the_tokens_so_far(monkeypatch):
    monkeypatch.setattr(lesson, "fit", lambda *args, **options: Fit(np.zeros(1), stopped=False))
    name, tokens, target = "mask thrown away", lesson.one_batch(0)[:, :-1], lesson.one_batch(0)[:, 1:]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = lesson.Reader(name).eval()
    whole = (model(tokens).argmax(-1) == target).double().mean().item()
    rows = [model(tokens[b : b + 1, : t + 1])[0, t].argmax() == target[b, t] for b in range(8) for t in range(16)]
    assert_allclose(lesson.overfit(name), [whole, np.mean(rows)])


def test_training_depends_on_the_seed_alone_and_leaves_the_random_state():
    before = torch.get_rng_state()
    first = lesson.copy_two_back(RIGHT, steps=15, seed=1)
    assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
    torch.rand(3)
    assert lesson.copy_two_back(RIGHT, steps=15, seed=1) == first
    assert lesson.copy_two_back(RIGHT, steps=15, seed=2) != first
    torch.set_rng_state(before)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda: lesson.overfit("wrong"), ValueError, "name must be one of .*, got 'wrong'"),
        (lambda: lesson.overfit(RIGHT, steps=0), ValueError, "steps must be at least 1, got 0"),
        (lambda: lesson.copy_two_back(RIGHT, steps=1.0), TypeError, "steps must be an integer, got float"),
        (lambda: lesson.ceiling(torch.zeros(2, 1, dtype=torch.int64)), ValueError, "T must be at least 2, got 1"),
        (lambda: lesson.ceiling(torch.zeros(0, 3, dtype=torch.int64)), ValueError, "B must be at least 1, got 0"),
        (lambda: lesson.most_copied("other"), ValueError, "layout must be one of .*, got 'other'"),
    ],
)
def test_bad_arguments_are_refused(call, kind, match):
    with pytest.raises(kind, match=match):
        call()
