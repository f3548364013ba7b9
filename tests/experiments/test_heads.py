"""Notebook 07: layouts, counts, times and calls."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.testing import assert_close

from mha_course.experiments import heads as lesson
from mha_course.experiments import heads_layout
from mha_course.multihead import MultiHeadAttention

RIGHT, SPLIT, MERGE, BOTH = "right", "wrong split", "wrong merge", "both wrong"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two threads on a busy machine take many times as long for small steps as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_wrong_split_and_merge_by_hand():
    x = torch.tensor([[[1.0, 2], [3, 4], [5, 6]]])  # T = 3, H = 2, D = 1
    assert_close(lesson.wrong_split(x, 2), torch.tensor([[[[1.0], [2], [3]], [[4], [5], [6]]]]))
    heads = torch.tensor([[[[1.0], [3], [5]], [[2], [4], [6]]]])  # the right split of x
    assert_close(lesson.wrong_merge(heads), torch.tensor([[[1.0, 3], [5, 2], [4, 6]]]))


@pytest.mark.parametrize("H", [1, 2, 3, 6])
def test_wrong_merge_undoes_wrong_split_and_no_other(H):
    x = drawn(2, 5, 12)
    assert_close(lesson.wrong_merge(lesson.wrong_split(x, H)), x, rtol=0, atol=0)
    split = x.unflatten(-1, (H, -1)).transpose(1, 2)
    assert torch.equal(lesson.wrong_merge(split), x) == (H == 1)


def test_a_wrong_head_holds_a_block_of_tokens_and_tokens_in_pieces():
    T, H, D = 8, 4, 3
    token = torch.arange(T).float().reshape(1, T, 1).expand(1, T, H * D)
    for h, head in enumerate(lesson.wrong_split(token, H)[0]):
        assert head.unique().tolist() == [2 * h, 2 * h + 1]


@pytest.mark.parametrize("T", [1, 2, 3, 5, 8, 9, 13])
@pytest.mark.parametrize("H", [1, 2, 3, 4, 5, 8])
def test_share_in_place_is_that_counted(T, H):
    counted = lesson.in_place(2, T, 3 * H, H)
    formula = lesson.share_in_place(T, H)
    assert_allclose([counted[SPLIT], counted[MERGE], counted[BOTH]], [formula, formula, 1.0], rtol=1e-12)


def test_share_in_place_of_the_lesson():
    assert lesson.in_place(2, 3, 16, 4) == {SPLIT: 1 / 6, MERGE: 1 / 6, BOTH: 1.0}


def test_who_is_reached():
    block = torch.arange(12) // 3
    past = torch.ones(12, 12).tril().bool()
    for layout in lesson.LAYOUTS:
        reached = lesson.can_reach(12, 4, layout)
        expected = block[:, None] == block if layout == BOTH else torch.ones(12, 12).bool()
        assert torch.equal(reached, expected)
        seen = lesson.can_reach(12, 4, layout, causal=True)
        future, lost = (seen & ~past).sum().item(), (past & ~seen).sum().item()
        assert (future, lost) == {RIGHT: (0, 0), SPLIT: (30, 12), MERGE: (30, 12), BOTH: (0, 54)}[layout]


def test_what_is_reached_is_what_a_gradient_says():
    """Row t of `can_reach` against the gradients of a faulty module's output t."""
    for layout in lesson.LAYOUTS:
        torch.manual_seed(0)
        module = heads_layout.Laid(layout, 8, 4)
        nn.init.zeros_(module.q_proj.weight)  # all weights alike
        module.out_proj.weight.data = torch.eye(8)
        x = drawn(1, 6, 8).requires_grad_()
        value = x * 1.0
        out = module(x.detach(), x.detach(), value)
        rows = [torch.autograd.grad(out[0, t].sum(), x, retain_graph=True)[0][0].ne(0).any(-1) for t in range(6)]
        assert torch.equal(torch.stack(rows), lesson.can_reach(6, 4, layout))


def test_a_rightly_laid_module_is_the_module():
    torch.manual_seed(0)
    laid = heads_layout.Laid(RIGHT, 8, 2, kdim=5, vdim=3)
    module = MultiHeadAttention(8, 2, kdim=5, vdim=3)
    module.load_state_dict(laid.state_dict())
    inputs = drawn(2, 4, 8), drawn(2, 6, 5), drawn(2, 6, 3)
    assert_close(laid(*inputs), module(*inputs))
    assert_close(laid.attend(*inputs)[0], module.trace(*inputs).weights)
    for layout in (SPLIT, MERGE, BOTH):
        laid.layout = layout
        assert (laid(*inputs) - module(*inputs)).abs().max() > 0.01


def test_accounts_do_not_depend_on_the_heads_but_for_the_scores():
    found = lesson.accounts([1, 2, 6], embed_dim=12, length=7, batch=3)
    assert found.heads.tolist() == [1, 2, 6]
    assert found.parameters.tolist() == [4 * (12 * 12 + 12)] * 3
    assert found.flops.tolist() == [8 * 3 * 7 * 12 * 12 + 4 * 3 * 7 * 7 * 12] * 3
    assert found.score_bytes.tolist() == [4 * 3 * H * 7 * 7 for H in (1, 2, 6)]


def test_times_are_positive_and_the_parts_are_there():
    before = torch.get_rng_state()
    found = lesson.times([4], embed_dim=8, length=5, repeats=1)
    assert found.heads.tolist() == [4]
    assert all(column.shape == (1,) and (column > 0).all() for column in found)
    assert torch.equal(torch.get_rng_state(), before)


def test_times_are_medians_of_what_they_say(monkeypatch):
    results, backends, traces = [], [], []

    def timings(fn, *, repeats):
        if isinstance(fn.func, nn.Module):
            backends.append(fn.func.backend)
            traces.append(fn.func.trace(*fn.args))
        results.append(fn().clone())
        n = float(len(results))
        return lesson.measure.Timing((0.0, n, 9.0)[:repeats])

    monkeypatch.setattr(lesson.measure, "timings", timings)
    found = lesson.times([2], embed_dim=6, length=5, repeats=3)
    assert [float(column[0]) for column in found] == [2, 1, 2, 3, 4, 5, 6, 7]
    assert backends == ["sdpa", "explicit"]
    run = traces[0]
    assert run.weights.shape == (1, 2, 5, 5)
    expected = (run.out, run.out, run.scores, run.weights, run.scores @ run.v, run.scores, run.weights)
    for result, right in zip(results, expected, strict=True):
        assert_close(result, right)


@pytest.mark.unchecked  # else jaxtyping raises before Python does
def test_calls():
    found = {call.call: call for call in lesson.calls()}
    assert found["tutorial(x, mask)"][1:] == ("nothing", "equal to mask")
    assert found["tutorial(x, x, x)"].raised.startswith("TypeError: Tutorial.forward() takes from 2 to 3")
    assert found["tutorial(x, x)"].raised.startswith("RuntimeError: The size of tensor a")
    assert found["ours(x, x, x)"][1:] == ("nothing", "equal to no mask")
    assert found["ours(x, mask)"].raised == "TypeError: key must be floating point, got torch.bool"
    assert found["ours(x, x, x, mask)"].raised.startswith("TypeError: MultiHeadAttention.forward() takes from")
    assert all((call.result == "none") == (call.raised != "nothing") for call in found.values())


def test_calls_that_fit_by_chance_are_silent():
    for batch in (1, 4):  # broadcast, or as many samples as heads
        found = {call.call: call[1:] for call in lesson.calls(batch=batch, length=16)}
        assert found["tutorial(x, x)"] == ("nothing", "equal to no mask")
        assert found["tutorial(x.relu(), x.relu())"] == ("nothing", "something else")


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda: lesson.wrong_split(drawn(1, 2, 6), 0), ValueError, "num_heads must be at least 1, got 0"),
        (
            lambda: lesson.wrong_split(drawn(1, 2, 6), 4),
            ValueError,
            "num_heads must divide the width of x, got 4 and 6",
        ),
        (lambda: lesson.in_place(1, 0, 4, 2), ValueError, "T must be at least 1, got 0"),
        (lambda: lesson.in_place(1, 2, 4, 3), ValueError, "num_heads must divide the width of x, got 3 and 4"),
        (lambda: lesson.share_in_place(2, 0), ValueError, "H must be at least 1, got 0"),
        (lambda: lesson.share_in_place(2.0, 1), TypeError, "T must be an integer, got float"),
        (lambda: lesson.can_reach(4, 2, "wrong"), ValueError, "layout must be one of .*, got 'wrong'"),
        (lambda: lesson.can_reach(0, 2, RIGHT), ValueError, "T must be at least 1, got 0"),
        (
            lambda: lesson.best_read_out(np.array([0.5, 1.5])),
            ValueError,
            r"shares must lie in \[0, 1\], got 0.5 to 1.5",
        ),
        (lambda: lesson.accounts([]), ValueError, "heads must hold at least one number, got none"),
        (lambda: lesson.accounts([3]), ValueError, "num_heads must divide embed_dim"),
        (lambda: lesson.times([1], length=0), ValueError, "length must be at least 1, got 0"),
        (lambda: lesson.times([1], length=2, repeats=0), ValueError, "repeats must be at least 1, got 0"),
    ],
)
@pytest.mark.unchecked
def test_bad_arguments_are_refused(call, kind, match):
    with pytest.raises(kind, match=match):
        call()
