"""Experiments of notebook 01, on small sizes."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.experiments import why_attention as lesson


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two threads on a busy machine take twenty times as long for an LSTM as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_progress_may_reorder_the_runs(monkeypatch):
    monkeypatch.setattr(lesson, "recall", lambda model, length, seed, steps: length + seed / 10)
    found = lesson.recall_accuracy([2, 5], [1, 3], progress=lambda runs: reversed(runs))
    for name in lesson.MODELS:
        assert_allclose(found[name], [[2.1, 2.3], [5.1, 5.3]])


def test_both_gates_get_their_bias():
    lstm = lesson.reader(lesson.BOTH_SET).lstm
    total = (lstm.bias_ih_l0 + lstm.bias_hh_l0).unflatten(0, (4, lesson.EMBED_DIM))
    assert_close(total[0], torch.full((lesson.EMBED_DIM,), -3.0))
    assert_close(total[1], torch.full((lesson.EMBED_DIM,), 6.0))
    assert (total[2:].abs() < 1).all()


def test_forget_bias_is_6_in_total():
    E = 5
    torch.manual_seed(3)
    plain = lesson.LastState(E).lstm
    torch.manual_seed(3)
    raised = lesson.LastState(E, forget_bias=6.0).lstm
    total = (raised.bias_ih_l0 + raised.bias_hh_l0).unflatten(0, (4, E))  # input, forget, cell, out
    as_drawn = (plain.bias_ih_l0 + plain.bias_hh_l0).unflatten(0, (4, E))
    assert_close(total[1], torch.full((E,), 6.0))
    assert_close(total[[0, 2, 3]], as_drawn[[0, 2, 3]])
    assert_close(raised.weight_hh_l0, plain.weight_hh_l0)


def test_the_raised_gate_is_the_forget_gate():
    # With every weight 0 the cell state starts at 0 and stays: c = sigmoid(6) c. Put in c = 1, get it back.
    lstm = lesson.LastState(2, forget_bias=6.0).lstm
    for name, parameter in lstm.named_parameters():
        if "weight" in name:
            nn.init.zeros_(parameter)
        else:
            parameter.data[parameter != 6] = 0.0
    with torch.no_grad():
        _, (_, c) = lstm(torch.zeros(1, 1, 2), (torch.zeros(1, 1, 2), torch.ones(1, 1, 2)))
    assert_close(c, torch.full((1, 1, 2), 1 / (1 + math.exp(-6))))


def test_reader_returns_the_last_output():
    x = torch.randn(3, 7, lesson.EMBED_DIM, generator=torch.Generator().manual_seed(0))
    lstm, hop = lesson.reader(lesson.LSTM), lesson.reader(lesson.ATTENTION)
    assert_close(lstm(x), lstm.lstm(x)[1][0][0])  # the final hidden state
    q, k, v = hop.q_proj(x[:, -1]), hop.k_proj(x), hop.v_proj(x)
    weights = (torch.einsum("be,bse->bs", q, k) / math.sqrt(lesson.EMBED_DIM)).softmax(-1)
    assert_close(hop(x), torch.einsum("bs,bse->be", weights, v))


@pytest.mark.parametrize("model", lesson.MODELS)
def test_reach_equals_finite_differences(model):
    n, seed, step = 3, 2, 1e-6
    found = lesson.gradient_reach([n], [seed])[model].item()
    torch.manual_seed(seed)
    x = torch.randn(n, lesson.EMBED_DIM).double()
    module = lesson.reader(model).double()
    moved = x.repeat(2, lesson.EMBED_DIM, 1, 1)  # (2, E, T, E): each entry of x_1 up, and down
    moved[0, :, 0] += step * torch.eye(lesson.EMBED_DIM)
    moved[1, :, 0] -= step * torch.eye(lesson.EMBED_DIM)
    with torch.no_grad():
        up, down = (module(part) for part in moved)
    by_hand = ((up - down) / (2 * step)).norm().item() / math.sqrt(lesson.EMBED_DIM)
    assert_close(found, by_hand, rtol=1e-6, atol=0)


def test_reach_of_uniform_attention_is_that_of_v_over_n(monkeypatch):
    # With q = 0 all weights are 1 / n, so that J = W_v / n.
    made = []

    def uniform(model: str):
        module = plain(model)
        if model == lesson.ATTENTION:
            nn.init.zeros_(module.q_proj.weight)
            nn.init.zeros_(module.q_proj.bias)
            made.append(module.v_proj.weight.norm().item() / math.sqrt(lesson.EMBED_DIM))
        return module

    plain = lesson.reader
    monkeypatch.setattr(lesson, "reader", uniform)
    found = lesson.gradient_reach([2, 11], [0])[lesson.ATTENTION][:, 0]
    assert_allclose(found, [made[0] / 2, made[1] / 11], rtol=1e-6)


def test_reach_has_one_row_a_length_and_one_column_a_seed():
    both = lesson.gradient_reach([2, 3, 5], [4, 9])
    assert tuple(both) == lesson.MODELS
    for name, table in both.items():
        assert table.shape == (3, 2)
        assert_allclose(table[1:, 1:], lesson.gradient_reach([3, 5], [9])[name])


def test_vanishing_is_underflow_in_float32():
    exact = lesson.gradient_reach([200], [3])[lesson.LSTM].item()
    single = lesson.gradient_reach([200], [3], dtype=torch.float32)[lesson.LSTM].item()
    assert 1e-60 < exact < 1e-40
    assert single < 1e-40


def test_the_norm_of_a_small_float32_gradient_is_not_lost():
    # about 1e-22 at n = 100, where a square no longer exists in float32
    exact = lesson.gradient_reach([100], [0])[lesson.LSTM]
    assert exact.item() < 1e-20
    assert_allclose(lesson.gradient_reach([100], [0], dtype=torch.float32)[lesson.LSTM], exact, rtol=0.05)


def test_what_the_lesson_says_about_reach():
    found = lesson.gradient_reach([10, 50], range(3))
    assert (found[lesson.LSTM][1] < 1e-9).all()
    assert (found[lesson.FORGET_OPEN][1] > 0.01).all()
    assert (found[lesson.ATTENTION] * [[10], [50]] > 0.1).all()
    assert (found[lesson.ATTENTION] * [[10], [50]] < 1.2).all()


def test_task_hides_the_class_in_the_first_token():
    tokens, target = lesson.first_token_task(300, 7, torch.Generator().manual_seed(0))
    assert tokens.shape == (300, 7)
    assert_close(tokens[:, 0], target)
    assert set(target.tolist()) == set(range(8))
    assert set(tokens[:, 1:].unique().tolist()) == set(range(8, 24))


def test_parameters_of_the_models():
    counts = [sum(p.numel() for p in lesson.recall_model(name).parameters()) for name in lesson.MODELS]
    assert counts == [9480, 9480, 9480, 4200]
    assert "9,480" in lesson.recall_model.__doc__
    assert "4,200" in lesson.recall_model.__doc__


def test_recall_is_learned_and_depends_on_the_seed_alone():
    torch.manual_seed(1)
    first = lesson.recall(lesson.ATTENTION, 4, 7, steps=60)
    torch.manual_seed(2)
    assert lesson.recall(lesson.ATTENTION, 4, 7, steps=60) == first
    assert lesson.recall(lesson.LSTM, 4, 7, steps=1) != lesson.recall(lesson.LSTM, 4, 8, steps=1)
    assert first > 0.8


def test_all_models_see_the_same_batches_and_another_seed_others(monkeypatch):
    seen = []
    monkeypatch.setattr(lesson, "fit", lambda model, batches, **_: seen.append([b[0] for b in batches]))
    for name in lesson.MODELS:
        lesson.recall(name, 5, 1, steps=2)
    for other in seen[1:]:
        assert_close(other, seen[0])
    lesson.recall(lesson.LSTM, 5, 2, steps=2)
    assert not torch.equal(seen[-1][0], seen[0][0])
    assert not torch.equal(seen[0][1], seen[0][0])


def test_the_test_sequences_are_fresh(monkeypatch):
    drawn = []
    draw = lesson.first_token_task
    monkeypatch.setattr(lesson, "first_token_task", lambda *args: drawn.append(draw(*args)) or drawn[-1])
    lesson.recall(lesson.ATTENTION, 5, 1, steps=2)
    assert [len(tokens) for tokens, _ in drawn] == [32, 32, 2000]
    assert not torch.equal(drawn[-1][0][:32, 1:], drawn[0][0][:, 1:])


@pytest.mark.parametrize(
    "call",
    [
        lambda: lesson.gradient_reach([2], [0]),
        lambda: lesson.recall(lesson.LSTM, 3, 0, steps=1),
        lambda: lesson.forward_seconds([2], repeats=1),
        lambda: lesson.swap_two_tokens(),
    ],
)
def test_the_random_state_of_the_caller_is_untouched(call):
    torch.manual_seed(11)
    before = torch.get_rng_state()
    call()
    assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


def test_an_interrupt_leaves_the_random_state_as_it_was():
    def interrupted(runs):
        yield runs[0]
        raise KeyboardInterrupt

    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        lesson.recall_accuracy([2, 3], [0], steps=1, progress=interrupted)
    assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


def test_an_interrupt_while_the_model_is_drawn_leaves_the_random_state_as_it_was(monkeypatch):
    def interrupted(model):
        torch.randn(3)
        raise KeyboardInterrupt

    monkeypatch.setattr(lesson, "reader", interrupted)
    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        lesson.recall(lesson.LSTM, 3, 0)
    assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


def test_accuracy_table_holds_every_run_in_its_place(monkeypatch):
    def coded(model, length, seed, *, steps):
        return 100 * lesson.MODELS.index(model) + length + seed / 10 + steps * 1000

    seen = []
    monkeypatch.setattr(lesson, "recall", coded)
    found = lesson.recall_accuracy(
        [2, 5, 7], [1, 3], steps=4, progress=lambda runs: (seen.append(run) or run for run in runs)
    )
    assert len(seen) == len(lesson.MODELS) * 3 * 2
    for i, name in enumerate(lesson.MODELS):
        assert_allclose(found[name], 4000 + 100 * i + np.array([[2.1, 2.3], [5.1, 5.3], [7.1, 7.3]]))


def test_accuracy_of_real_runs_is_that_of_recall():
    found = lesson.recall_accuracy([3], [5], steps=2)
    assert [found[name].item() for name in lesson.MODELS] == [lesson.recall(m, 3, 5, steps=2) for m in lesson.MODELS]


def test_steps_at_the_powers_of_the_kernel():
    found = lesson.sequential_steps([2, 3, 4, 9, 10, 27, 28, 243, 244])
    assert found[lesson.LSTM].tolist() == [1, 2, 3, 8, 9, 26, 27, 242, 243]
    assert found[lesson.CONVOLUTION].tolist() == [1, 1, 2, 2, 3, 3, 4, 5, 6]
    assert found[lesson.ATTENTION].tolist() == [1] * 9
    assert lesson.sequential_steps([8, 9], kernel=2)[lesson.CONVOLUTION].tolist() == [3, 4]


@pytest.mark.parametrize("n", [3, 4, 9, 10, 26, 28])
def test_steps_of_a_real_stack_of_dilated_convolutions(n):
    kernel = torch.ones(1, 1, 3)

    def first_reaches_last(layers: int) -> bool:
        x = torch.zeros(1, 1, n)
        x[..., 0] = 1.0
        for layer in range(layers):
            x = F.conv1d(F.pad(x, (2 * 3**layer, 0)), kernel, dilation=3**layer)
        return x[0, 0, -1].item() > 0

    layers = lesson.sequential_steps([n])[lesson.CONVOLUTION].item()
    assert first_reaches_last(layers)
    assert not first_reaches_last(layers - 1)


def test_times_are_positive():
    found = lesson.forward_seconds([2, 3], repeats=2)
    assert tuple(found) == (lesson.LSTM, lesson.ATTENTION)
    assert all(row.shape == (2,) and (row > 0).all() for row in found.values())


def test_swapped_tokens_move_attention_and_not_the_convolution():
    found = lesson.swap_two_tokens(0, 3, length=5, seed=1)
    toeplitz = 0.5 * np.eye(5, k=-1) + 0.3 * np.eye(5) + 0.2 * np.eye(5, k=1)
    assert_allclose(found.convolution, [toeplitz, toeplitz], rtol=1e-6)
    order = [3, 1, 2, 0, 4]
    assert_allclose(found.attention[1], found.attention[0][np.ix_(order, order)], rtol=1e-4, atol=1e-6)
    assert_allclose(found.attention.sum(-1), np.ones((2, 5)), rtol=1e-5)
    assert np.abs(found.attention[1] - found.attention[0]).max() > 0.2


def test_scores_of_the_swap_spread_by_about_2():
    weights = lesson.swap_two_tokens(length=200).attention[0].astype(np.float64)
    spread = np.log(weights).std(axis=-1)  # log-softmax shifts a row, so its spread is that of the scores
    assert 1.6 < spread.mean() < 2.4


def test_retrieval_by_hand():
    found = lesson.retrieve_by_hand()
    assert found.words == ("I", "love", "NLP")
    assert_allclose(found.scores, [[0, 2, 0], [0, 1, 2], [1, 1, 1]])
    e = math.e
    assert_allclose(found.weights[0], np.array([1, e**2, 1]) / (2 + e**2))
    assert_allclose(found.weights[1], np.array([1, e, e**2]) / (1 + e + e**2))
    assert_allclose(found.weights[2], [1 / 3] * 3)
    assert_allclose(found.out[1], [10 * (1 + e**2) / (1 + e + e**2), 10 * (e + e**2) / (1 + e + e**2)])
    assert_allclose(found.out[2], [20 / 3, 20 / 3])
    for array in (found.q, found.k, found.v):
        assert_allclose(array, array.round())


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: lesson.reader("GRU"), "model must be one of .*, got 'GRU'"),
        (lambda: lesson.gradient_reach([]), r"lengths must hold integers of at least 2, got \[\]"),
        (lambda: lesson.gradient_reach([5, 1]), r"lengths must hold .* got \[5, 1\]"),
        (lambda: lesson.gradient_reach([5], []), "seeds must hold at least one seed"),
        (lambda: lesson.recall_accuracy([]), "lengths must hold"),
        (lambda: lesson.recall_accuracy([5], []), "seeds must hold at least one seed"),
        (lambda: lesson.recall("GRU", 5, 0), "model must be one of"),
        (lambda: lesson.recall(lesson.LSTM, 1, 0), r"lengths must hold .* got \[1\]"),
        (lambda: lesson.recall(lesson.LSTM, 5, 0, steps=0), "steps must be at least 1, got 0"),
        (lambda: lesson.sequential_steps([1]), "lengths must hold"),
        (lambda: lesson.sequential_steps([5], kernel=1), "kernel must be at least 2, got 1"),
        (lambda: lesson.forward_seconds([]), "lengths must hold"),
        (lambda: lesson.forward_seconds([5], repeats=0), "repeats must be at least 1, got 0"),
        (lambda: lesson.swap_two_tokens(2, 2), "first and second must differ, below 6, got 2, 2"),
        (lambda: lesson.swap_two_tokens(0, 6), "first and second must differ, below 6, got 0, 6"),
        (lambda: lesson.swap_two_tokens(-1, 3), "first and second must differ, below 6, got -1, 3"),
    ],
)
@pytest.mark.unchecked
def test_bad_arguments_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
