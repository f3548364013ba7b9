"""Hidden keys that hold other, or huge, numbers; solutions that do not end or print too much."""

import math

import pytest
import torch

from mha_course.checks import check, engine
from mha_course.checks.hidden_keys import check_hidden
from tests.checks.heads import RIGHT, multi, textbook


def scores_of(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def softmax_of(fill):
    return lambda q, k, mask: scores_of(q, k).masked_fill(~mask, fill).softmax(-1)


def by_powers(q, k, mask):
    powers = scores_of(q, k).exp() * mask
    return powers / powers.sum(-1, keepdim=True)


def renormalised(q, k, mask):
    weights = scores_of(q, k).softmax(-1) * mask
    return weights / weights.sum(-1, keepdim=True)


def renormalised_without_nan(q, k, mask):
    weights = scores_of(q, k).softmax(-1) * mask
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


def lowered(q, k, mask):
    return (scores_of(q, k) - 50.0 * ~mask).softmax(-1)


@pytest.mark.parametrize("fn", [softmax_of(-math.inf), softmax_of(-1e9), softmax_of(-1e4)])
def test_scores_that_are_replaced_hide(fn):
    assert check("repaired_weights", fn).remarks == ()


@pytest.mark.parametrize("fn", [by_powers, renormalised, renormalised_without_nan])
def test_a_mask_after_the_softmax_is_remarked(fn):
    verdict = check("repaired_weights", fn)
    assert verdict.ok
    (remark,) = verdict.remarks
    why = "it is not minus infinity before the" if "without" in fn.__name__ else "the mask comes after the"
    assert remark.startswith(f"a large hidden score spoils the row: {why} softmax; ")
    assert "case 1" in remark


def test_scores_that_are_lowered_are_remarked():
    (remark,) = check("repaired_weights", lowered).remarks
    assert remark.startswith("a large hidden score spoils the row: it is not minus infinity")


def remembers(q, k, mask):
    """Right for the drawn inputs, and wrong for any other numbers of hidden keys."""
    right = softmax_of(-math.inf)(q, k, mask)
    drawn = engine._TASKS["repaired_weights"].cases()
    return right if any(torch.equal(k, case.inputs[1]) for case in drawn) else right + 0.01 * k.mean()


def test_a_hidden_key_that_shows_through_is_a_fault():
    verdict = check("repaired_weights", remembers)
    assert verdict.fault == "a hidden key shows through"
    assert len(verdict.hints) == 2


@pytest.mark.parametrize("name", ["multi_head", "repaired_weights"])
def test_the_probe_moves_only_what_is_hidden(name):
    task = engine._TASKS[name]
    assert check_hidden(task, task.reference, task.cases()) == (None, "")
    case = task.cases()[0]
    inputs, rows = task.hidden(1000.0, *case.inputs)
    before, after = (task.reference(*x) for x in (case.inputs, inputs))
    rows = rows.expand(before.shape)
    assert rows.any()
    assert not rows.all()
    torch.testing.assert_close(before[rows], after[rows])
    assert not torch.isclose(before[~rows], after[~rows]).all()


def test_multi_head_attention_by_heads():
    remarks = {fn.__name__: check("multi_head", multi(fn)).remarks for fn in RIGHT}
    assert [name for name, said in remarks.items() if said] == ["by_sums"], "exponentials times the mask"
    late = textbook(masked=lambda s, mask: s.masked_fill(~mask, -40.0))
    assert not check("multi_head", multi(late)).remarks, "replaced, and 40 is enough"


def test_a_loop_that_never_ends(monkeypatch):
    monkeypatch.setattr(engine, "SECONDS", 0.2)

    def endless(scores):
        while scores.shape[0] == 5:
            scores = scores + 1
        return scores.softmax(1)

    verdict = check("softmax", endless)
    assert verdict.fault == "it did not finish within 0.2 s"
    assert verdict.evidence == "it was stopped in case 2 (rows, columns = 5, 5)"
    assert "while" in verdict.hints[0]


def test_an_end_is_not_asked_of_further_looks(monkeypatch):
    monkeypatch.setattr(engine, "SECONDS", 0.2)

    def endless_with_gradients(q, k, v):
        while q.requires_grad:
            pass
        return (scores_of(q, k).softmax(-1)) @ v

    assert check("batched_attention", endless_with_gradients)


def test_too_much_print_is_cut(capsys):
    def prints(scores):
        for i in range(1000):
            print("line", i)
        return scores.softmax(1)

    assert check("softmax", prints)
    shown = capsys.readouterr().out
    assert shown.startswith("line 0\nline 1\n")
    assert len(shown.splitlines()) < 40
