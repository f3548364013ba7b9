"""Two faults at once: pairs of variations that change different steps."""

import math

import pytest
import torch

from mha_course.checks import check, engine
from mha_course.checks.pairs import may_fit, pairs, telling_case
from mha_course.checks.task import Case, Task, Variation, by_steps, stepped
from tests.checks.heads import cross, multi, textbook

STEPPED = [task for task in engine._TASKS.values() if task.build is not None]


def two_of_batched(q, k, v):
    return (q @ k.mT).softmax(-2) @ v


PAIRS = [
    ("softmax", lambda x: (2**x).log() / (2**x).sum(0), None),
    ("batched_attention", two_of_batched, ("the scores are not scaled", "the softmax runs over the queries")),
    (
        "weights_and_output",
        lambda q, k, v: ((w := (q @ k.mT).softmax(-1)), w.mean(1, keepdim=True).expand_as(w) * 0 + v.mean()),
        None,
    ),
    (
        "scaled_scores",
        lambda q, k: (k @ q.mT / 8).contiguous(),
        ("the scores are divided by 8", "the scores are transposed"),
    ),
    (
        "window",
        lambda T, window: ~(torch.ones(T, T).bool().tril() & torch.ones(T, T).bool().triu(-window)),
        ("the mask is inverted", "one key too many"),
    ),
    (
        "combined",
        lambda lengths, T: torch.ones(T, T).tril(1).bool() | (torch.arange(T) < lengths[:, None, None, None]),
        ("the two masks are joined by |", "the diagonal of the causal part is off by one"),
    ),
    (
        "repaired_weights",
        lambda q, k, mask: (q @ k.mT).masked_fill(mask, -math.inf).softmax(-1),
        ("the scores are not scaled", "the mask is inverted"),
    ),
    (
        "pre_norm_block",
        lambda x, norm_1, attend, norm_2, mlp: (lambda y: norm_2(y + mlp(y)))(attend(norm_1(x))),
        ("half of the block is post-norm: the sum with the MLP", "the skip around attention is missing"),
    ),
    (
        "multi_head",
        multi(textbook(scores=lambda q, k: q @ k.mT, merge=lambda x: x.reshape(len(x), x.shape[2], -1))),
        ("the merge is wrong", "the scores are not scaled"),
    ),
    (
        "multi_head",
        multi(
            textbook(
                masked=lambda scores, mask: scores.masked_fill(mask, -math.inf),
                weights=lambda s: s.softmax(1).nan_to_num(),
            )
        ),
        ("the softmax runs over the heads", "the mask is inverted"),
    ),
    (
        "cross_attention",
        cross(textbook(scores=lambda q, k: q @ k.mT, last=lambda merged, W_o, query: merged)),
        ("the scores are not scaled", "the matrix W_o is missing"),
    ),
]


@pytest.mark.parametrize(("name", "fn", "both"), [pair for pair in PAIRS if pair[2]])
def test_two_faults_are_both_named(name, fn, both):
    verdict = check(name, fn)
    assert verdict.fault.startswith("two faults: "), verdict
    assert all(one in verdict.fault for one in both), verdict
    first, second = verdict.fault.removeprefix("two faults: ").split("; and ")
    by_fault = {variation.fault: variation for variation in engine._TASKS[name].variations}
    assert {first, second} <= by_fault.keys()
    assert verdict.hints[:2] == tuple(f"First fault: {hint}" for hint in by_fault[first].hints)
    assert all(hint.removeprefix("Second fault: ") in by_fault[second].hints for hint in verdict.hints[2:])
    assert 3 <= len(verdict.hints) <= 4 or by_fault[first].hints == by_fault[second].hints


@pytest.mark.parametrize(("name", "fn", "both"), [pair for pair in PAIRS if not pair[2]])
def test_what_no_two_faults_explain_is_not_named(name, fn, both):
    verdict = check(name, fn)
    assert not verdict.ok
    assert not verdict.fault.startswith("two faults")


@pytest.mark.parametrize("task", STEPPED, ids=[task.name for task in STEPPED])
def test_changed_steps_show_the_fault(task):
    """What `build` makes of a variation's steps is what its function does."""
    for variation in task.variations:
        if not variation.changes:
            continue
        for case in task.cases():
            one, other = (engine.call(task, fn, case) for fn in (variation.fn, task.build(**variation.changes)))
            if "logarithm" in variation.fault and other.results and other.results[0].isinf().any():
                continue  # the logarithm of a weight of 0
            assert engine._same(one, other, False, case.tolerance), variation.fault
    right = task.build()
    assert all(
        engine._same(*(engine.call(task, fn, case) for fn in (right, task.reference)), False, case.tolerance)
        for case in task.cases()
    )


@pytest.mark.parametrize("task", STEPPED, ids=[task.name for task in STEPPED])
def test_pairs_differ_from_the_reference_and_are_few(task):
    found = list(pairs(task))
    assert 10 < len(found) < 4000
    for pair in found[:: max(1, len(found) // 10)]:
        assert pair.fault.startswith("two faults: ")
        assert pair.fault.count("; and ") == 1
        assert 2 <= len(pair.hints) <= 4


def test_most_variations_are_given_by_their_steps():
    variations = [variation for task in STEPPED for variation in task.variations]
    assert sum(bool(variation.changes) for variation in variations) > 0.85 * len(variations)


def _doubled(steps):
    @by_steps
    def build(add=lambda x: x, times=lambda x: x):
        steps.append((add, times))
        return lambda x: times(add(x))

    return build


def _task(build, *variations):
    case = Case({"n": 3}, (torch.arange(3.0).double(),))
    return Task("double", ("x",), (("y", ("n",)),), build(), lambda: (case,), variations, ("a.", "b."), build=build)


def test_pairs_are_made_lazily_and_only_of_different_steps():
    made: list = []
    build = _doubled(made)
    plus = Variation("plus", build(add=lambda x: x + 1), ("p.", "q."))
    more = stepped(build, "more", ("r.", "s."), add=lambda x: x + 2)
    twice = stepped(build, "twice", ("p.", "t."), times=lambda x: 2 * x)
    other = Variation("other", lambda x: -x, ("u.", "v."))
    task = _task(build, plus, more, twice, other)
    made.clear()
    lazily = pairs(task)
    first = next(lazily)
    assert len(made) == 1
    assert first.fault == "two faults: plus; and twice"
    assert first.hints == ("First fault: p.", "First fault: q.", "Second fault: t.")
    assert [pair.fault for pair in lazily] == ["two faults: more; and twice"]
    assert torch.equal(first.fn(torch.zeros(1)), torch.full((1,), 2.0))
    assert not list(pairs(_task(build, other)))


def test_the_telling_case_is_small_and_holds_numbers():
    task = engine._TASKS["batched_attention"]
    cases = task.cases()
    outcomes = [engine.call(task, task.reference, case) for case in cases]
    assert telling_case(cases, outcomes) == 1, "case 4 is smaller, but has axes of size 1"
    raises = engine.Outcome(error=RuntimeError())
    assert telling_case(cases, [outcomes[0], raises, *outcomes[2:]]) == 0
    assert telling_case(cases, [raises] * 4) is None
    nan = engine.Outcome(results=(torch.full((2,), torch.nan),))
    assert telling_case(cases, [*outcomes[:3], nan]) is None, "NaN throughout fits too much"


def test_a_pair_that_raises_fits_only_where_it_may():
    task = engine._TASKS["batched_attention"]
    case = task.cases()[0]
    got = engine.call(task, task.reference, case)

    def raises(*_):
        raise RuntimeError

    assert not may_fit(task, Variation("x", raises, ("a.", "b.")), case, got)
    assert may_fit(task, Variation("x", raises, ("a.", "b."), lambda sizes: True), case, got)
    assert may_fit(task, Variation("x", task.reference, ("a.", "b.")), case, got)
    assert not may_fit(task, Variation("x", lambda q, k, v: v, ("a.", "b.")), case, got)
    assert not may_fit(task, Variation("x", lambda q, k, v: (v, v), ("a.", "b.")), case, got)


def test_two_faults_do_not_contradict_each_other():
    for task in STEPPED:
        for pair in pairs(task):
            assert "is right" not in pair.fault
            assert "are right" not in pair.fault
    assert not check("softmax", lambda x: x.clone()).fault.startswith("two faults"), "divided, and not divided"


def test_a_step_left_as_it_is_is_no_change():
    def wave(x):
        return x

    @by_steps
    def build(first=wave, second=wave, **changes):
        return lambda x: second(first(x))

    assert build(wave, torch.sin, third=1).changes == {"second": torch.sin, "third": 1}
