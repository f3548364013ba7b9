"""The faults of the catalogue: each shows somewhere, each has numbers of its own, and each is said alike."""

import itertools
import re

import pytest
import torch
from torch import nn

from mha_course import MultiHeadAttention
from mha_course.checks.diagnosis import conduct, dropout, edges, report, stress
from mha_course.checks.diagnosis.bases import PLAIN
from mha_course.checks.diagnosis.calling import AXES, Form
from mha_course.checks.diagnosis.catalogue import (
    CAUSAL_INSIDE,
    CAUSAL_LATE,
    CAUSAL_MISSING,
    FAULTS,
    TOP_LEFT,
    of_functions,
    pairs,
)
from mha_course.checks.diagnosis.entry import faults
from mha_course.checks.diagnosis.search import Case, Match
from mha_course.checks.diagnosis.steps import DEFAULT, run
from mha_course.checks.diagnosis.subject import Outcome, Sizes, Subject

STATED = (TOP_LEFT, CAUSAL_MISSING, *CAUSAL_INSIDE)
SEEN = (*conduct.FAULTS, *dropout.FAULTS, *report.FAULTS, *stress.FAULTS, edges.FILL)
EVERY = (*FAULTS, *STATED, *SEEN)


def situations(subject, layout):
    """What `diagnose` draws: the ordinary cases with each mask, 131 keys, finite biases, large hidden tokens."""
    sizes = subject.sizes()
    for name in sizes:
        yield from (subject.inputs(sizes[name], layout, axes=axes) for axes in ("", *AXES))
    yield subject.inputs(sizes["uneven"], layout, axes="B 1 T S", seed=17, bias=True)
    yield subject.inputs(Sizes(1, 5, stress.LONG), layout, seed=3)
    yield stress.alone(subject, layout, "B 1 T S")
    x = subject.inputs(sizes["even"], layout)
    yield x._replace(mask=subject.neutral_mask(Form(layout), x))
    x = subject.inputs(sizes["uneven"], layout, axes="B S", seed=5)
    yield stress._replaced(x, (x.key.shape[-2] - 1,), stress.LARGE, -2)


def outcome(x, weights, changes):
    try:
        return run(x, weights, changes).out
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
        return None


def alike(one, two):
    if one is None or two is None:
        return one is two
    return one.shape == two.shape and torch.allclose(one, two, 1e-8, 1e-8, equal_nan=True)


def all_alike(one, two):
    return all(alike(a, b) for a, b in zip(one, two, strict=True))


def plain(q, k, v, mask=None):
    return v


def gathered(found, *subjects):
    drawn = [(subject, list(situations(subject, layout))) for subject, layout in subjects]

    def numbers(changes):
        return [outcome(x, s.first.weights if s.first else None, changes) for s, xs in drawn for x in xs]

    return numbers({}), [numbers(fault.changes) for fault in found]


@pytest.fixture(scope="module")
def modules():
    two = MultiHeadAttention(18, 3), MultiHeadAttention(36, 6, num_kv_heads=3)
    return gathered(FAULTS, *((Subject(module), "B T E") for module in two))


def test_every_fault_of_a_module_shows(modules):
    right, wrong = modules
    assert all(out is not None and out.isfinite().all() for out in right)
    assert [f.said for f, outs in zip(FAULTS, wrong, strict=True) if all_alike(outs, right)] == []


def test_every_fault_of_a_module_gives_numbers_somewhere(modules):
    _, wrong = modules
    assert [f.said for f, outs in zip(FAULTS, wrong, strict=True) if not any(o is not None for o in outs)] == []


class NoOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(18, 18) for _ in range(3))

    def forward(self, query, key, value):
        return query


def test_every_fault_is_tried_on_a_module_without_output_projection():
    subject = Subject(NoOutput(), 3)
    match = Match(Form("B T E"), subject.first, PLAIN)
    case = Case(subject.inputs(subject.sizes()["uneven"], "B T E", axes="B S"), Outcome(None))
    unfit = {fault.name for fault in FAULTS if case.trace(match._replace(faults=(fault,))) is None}
    assert {"output_projection_twice", "output_projection_before_merge", "batch_first_confusion"} <= unfit
    assert not {"no_scale", "mask_inverted", "split_interleaved"} & unfit


def test_every_fault_of_a_function_shows():
    class Grouped(Subject):
        def inputs(self, *args, **options):
            x = super().inputs(*args, **options)
            return x._replace(query=x.query.repeat(1, 2, 1, 1)) if x.mask is None else x

    some = of_functions()
    right, wrong = gathered(some, (Subject(plain), "B H T D"), (Grouped(plain), "B H T D"))
    assert [f.said for f, outs in zip(some, wrong, strict=True) if all_alike(outs, right)] == []
    assert {"no_scale", "mask_inverted", "query_added", "gqa_tiled_heads", "batch_mixed"} <= {f.name for f in some}
    assert not {"no_output_projection", "split_interleaved", "keys_from_query"} & {f.name for f in some}


SAME_NUMBERS = {
    # all three give NaN throughout; the first is tried with an additive mask alone, and before the others
    frozenset(("mask_additive_sign", "mask_after_softmax")),
    frozenset(("mask_additive_sign", "mask_fill_positive")),
    frozenset(("mask_after_softmax", "mask_fill_positive")),
    # a fill of 1e-30 is a fill of 0 in all but its sentence
    frozenset(("mask_fill_zero", "mask_fill_positive")),
    # 1 more for what is seen is 1 less for what is hidden: a softmax does not see the difference
    frozenset(("bool_mask_added", "mask_fill_weak")),
    # the first is tried with the mask of a padding alone
    frozenset(("padding_on_query_axis", "mask_transposed")),
}


def test_faults_with_different_names_give_different_numbers(modules):
    _, wrong = modules
    same = set()
    for (one, a), (two, b) in itertools.combinations(zip(FAULTS, wrong, strict=True), 2):
        if one.name != two.name and all_alike(a, b):
            same.add(frozenset((one.name, two.name)))
    assert same == SAME_NUMBERS


def test_what_gives_the_same_numbers_is_tried_with_other_masks():
    by_name = {fault.name: fault for fault in FAULTS}
    assert by_name["padding_on_query_axis"].axes == "B S"
    assert by_name["mask_additive_sign"].convention == "additive"


def test_hiding_the_future_is_told_apart():
    subject = Subject(MultiHeadAttention(18, 3))
    x = subject.inputs(subject.sizes()["uneven"], "B T E")
    some = [outcome(x, subject.first.weights, fault.changes) for fault in (TOP_LEFT, CAUSAL_LATE, CAUSAL_MISSING)]
    assert not any(alike(a, b) for a, b in itertools.combinations(some, 2))


@pytest.mark.parametrize("fault", EVERY, ids=[f"{i}-{fault.name}" for i, fault in enumerate(EVERY)])
def test_a_fault_is_said_like_the_others(fault):
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", fault.name)
    assert re.match(r"[a-z0-9-]", fault.said)
    assert not fault.said.endswith((".", "?", "!", " "))
    assert "  " not in fault.said
    assert len(fault.hints) == 2
    for hint in fault.hints:
        assert re.match(r"[A-Z1]|masked_fill|nn\.|repeat|scaled_dot|view|exp\(|num_heads", hint), hint
        assert hint.endswith((".", "?"))
    assert fault.axes in ("", *AXES)
    assert set(fault.changes) <= {*DEFAULT, "attend"}


def test_sentences_tell_apart_what_shares_a_name():
    for name in ("scale_fixed", "bool_mask_added", "bias_ignored", "first_head_only", "no_exp", "num_heads_ignored"):
        said = [fault.said for fault in FAULTS if fault.name == name]
        assert len(said) == len(set(said)) > 1


def test_there_are_many_names_and_each_has_a_sentence():
    said = faults()
    assert set(said) == {fault.name for fault in EVERY if fault not in CAUSAL_INSIDE}
    assert len(said) >= 45
    assert all(said.values())
    assert said["no_scale"] == "the scores are not scaled"


def test_pairs_are_of_different_steps():
    both = list(pairs(FAULTS))
    assert len(both) > 1000
    tiled = [(one, two) for one, two in both if "attend" in one.changes or "attend" in two.changes]
    assert tiled
    assert all("attend" in one.changes and set(two.changes) <= {"scale", "mix"} for one, two in tiled)
    assert not any(one.touches & two.touches for one, two in both if "attend" not in one.changes)


def test_a_tiled_fault_touches_all_that_it_replaces():
    tiled = next(fault for fault in FAULTS if fault.name == "tiles_averaged")
    assert {"score", "hide", "normalize", "mix", "attend"} <= tiled.touches
    assert "scale" not in tiled.touches
