"""Where the numbers of a module part from those of the reference, for modules that are wrong at each step."""

import math
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mha_course.checks import check
from mha_course.checks.parting import LARGEST, MOST, Parting, Step, first_missing, record
from mha_course.checks.tasks_07_faults import merge, numbers, split
from tests.checks.heads import RIGHT, by_einsum, by_loops, by_sdpa, multi, textbook

B, T, H, D = 2, 5, 3, 7
E = H * D


def _inputs():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(B, T, E, generator=generator, dtype=torch.float64)
    W = [torch.randn(E, E, generator=generator, dtype=torch.float64) / math.sqrt(E) for _ in range(4)]
    mask = torch.ones(T, T, dtype=torch.bool).tril().expand(B, 1, T, T)
    return x, W, mask


X, W, MASK = _inputs()
STEPS = numbers(X, X, *W, H, MASK)


def part(**changes):
    fn = textbook(**changes)
    return first_missing(record(fn, X, X, *W, H, MASK), STEPS)


WRONG = [
    ({"q_of": lambda query, context, W_q, W_k, W_v: query @ (W_q + 0.1)}, "queries", None),
    ({"scores": lambda q, k: q @ k.mT * 0.3}, "products of queries and keys", "scaled scores"),
    ({"scores": lambda q, k: (q * k.mean()) @ k.sin().mT}, "heads of the values", "products of queries and keys"),
    ({"masked": lambda s, mask: s.masked_fill(mask, -1e9)}, "scaled scores", "masked scores"),
    ({"weights": lambda s: s.softmax(-2).nan_to_num()}, "masked scores", "weights"),
    ({"out": lambda w, v: w @ v.flip(-2)}, "weights", "heads' outputs"),
    ({"merge": lambda x: x.reshape(len(x), x.shape[2], -1)}, "heads' outputs", "merged heads"),
    ({"last": lambda merged, W_o, query: merged @ W_o.T}, "merged heads", "output"),
    ({"split": lambda x, H: x.view(len(x), H, x.shape[1], -1)}, "values", "heads of the queries"),
]


@pytest.mark.parametrize(("change", "agrees", "differs"), WRONG[1:])
def test_the_first_step_that_differs_is_named(change, agrees, differs):
    parting = part(**change)
    assert (parting.agrees, parting.differs) == (agrees, differs)
    assert parting.said() == f"the numbers agree up to the {agrees}, those of the {differs} are the first that differ"


def test_a_branch_that_was_not_there_is_unseen():
    parting = part(**WRONG[0][0])
    assert "queries" in parting.unseen
    assert parting.agrees == "heads of the values"
    assert parting.differs == "products of queries and keys"


@pytest.mark.parametrize("fn", RIGHT)
def test_right_solutions_agree_to_the_end(fn):
    parting = first_missing(record(fn, X, X, *W, H, MASK), STEPS)
    assert (parting.agrees, parting.differs) == ("output", None)
    assert parting.said() == "the numbers agree up to the output"


def test_sdpa_counts_as_one_and_heads_may_be_apart():
    assert "weights" in first_missing(record(by_sdpa, X, X, *W, H, MASK), STEPS).unseen
    loops = first_missing(record(by_loops, X, X, *W, H, MASK), STEPS)
    assert not {"weights", "scaled scores", "heads' outputs"} & set(loops.unseen)
    assert "weights" not in first_missing(record(by_einsum, X, X, *W, H, MASK), STEPS).unseen


class Fused(nn.Module):
    """One matrix for q, k and v; the parts are used without being cut by a function that is seen."""

    def __init__(self, order):
        super().__init__()
        self.weight = nn.Parameter(torch.cat([W[i] for i in order], 1))

    def forward(self, x):
        return (x @ self.weight).sin()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (0, 1), (1, 2)])
def test_a_fused_projection_holds_its_parts(order):
    steps = [STEPS[i] for i in order]
    recorded = record(Fused(order), X)
    assert [first_missing(recorded, [step]).agrees for step in steps] == [step.name for step in steps]
    missing = [STEPS[i] for i in range(3) if i not in order]
    assert all(first_missing(recorded, [step]).agrees is None for step in missing)


def test_any_order_of_axes_and_a_factor_count():
    scores = STEPS[6]
    assert scores.factor
    other = (scores.numbers * 3.7).permute(2, 0, 3, 1).reshape(-1, 5)
    assert first_missing([other], [scores]).agrees == scores.name
    assert first_missing([other], [scores._replace(factor=False)]).agrees is None
    assert first_missing([-other], [scores]).agrees is None
    near = scores.numbers.clone()
    near[0, 0, 0, 0] += 0.01
    assert first_missing([near], [scores]).agrees is None


@pytest.mark.parametrize("fill", [-math.inf, -1e9, -2e4, torch.finfo(torch.float64).min])
def test_very_negative_is_minus_infinity(fill):
    step = next(step for step in STEPS if step.name == "masked scores")
    other = step.numbers.masked_fill(~MASK, fill)
    assert first_missing([other], [step]).agrees == step.name
    assert first_missing([step.numbers.masked_fill(~MASK, -10.0)], [step]).agrees is None


def test_groups_tell_a_wrong_merge():
    heads = STEPS[-3].numbers
    assert STEPS[-3].name == "heads' outputs"
    merged = STEPS[-2]
    assert first_missing([merge(heads)], [merged]).agrees == "merged heads"
    assert first_missing([merge(heads).transpose(0, 1)], [merged]).agrees == "merged heads", "tokens first"
    assert first_missing([heads.reshape(B, T, E)], [merged]).agrees is None
    split_right = Step("heads", split(X, H), 2)
    assert first_missing([X.view(B, H, T, D)], [split_right]).agrees is None
    assert first_missing([split(X, H).flatten(0, 1)], [split_right]).agrees == "heads"


def test_plain_pairs_do_and_nothing_is_raised():
    assert first_missing([X], [("x", X), ("y", X + 1)]) == Parting("x", "y")
    assert first_missing([], [("x", X)]) == Parting(None, "x")
    assert first_missing([], []) == Parting(None, None)
    assert Parting(None, "x").said() == ""
    odd = [torch.zeros(3), torch.full((4,), torch.nan), torch.full((4,), math.inf), torch.zeros(2, 0)]
    for step in (torch.zeros(3), torch.full((4,), torch.nan), torch.tensor(1.0), torch.full((4,), -math.inf)):
        for factor in (False, True):
            for group in (0, 1, 5):
                assert isinstance(first_missing(odd, [Step("odd", step, group, factor)]), Parting)
    assert first_missing(odd, [("nan", torch.full((4,), torch.nan))]).agrees is None


def test_a_record_ends_with_what_is_raised_and_is_capped():
    def raises(x):
        y = x * 2
        raise SystemExit(str(y.shape))

    assert len(record(raises, X)) == 1

    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(interrupted, X)

    def many(x):
        for _ in range(MOST + 50):
            x = x + 1
        return x

    assert len(record(many, X)) == MOST
    assert not record(lambda x: x + 1, torch.zeros(LARGEST + 1))
    assert not record(lambda x: x > 0, X), "no numbers"


def test_a_record_keeps_what_is_later_overwritten():
    def in_place(x):
        y = x * 2
        y.zero_()
        return y

    first, second = record(in_place, X)
    torch.testing.assert_close(first, X * 2)
    assert not second.any()
    (kept,) = record(lambda x: x * 2, X.clone().requires_grad_())
    assert not kept.requires_grad


def test_tuples_and_modules_are_recorded():
    recorded = record(lambda x: x.chunk(3, -1), X)
    assert [x.shape for x in recorded] == [(B, T, D)] * 3
    recorded = record(nn.Sequential(nn.Linear(E, 4), nn.ReLU()).double(), X)
    assert [tuple(x.shape) for x in recorded] == [(B, T, 4)] * 2
    assert record(lambda x: F.softmax(x.float(), -1), X)[-1].dtype == torch.float64


def test_it_is_fast():
    start = time.perf_counter()
    recorded = record(textbook(), X, X, *W, H, MASK)
    first_missing(recorded, STEPS)
    assert time.perf_counter() - start < 0.5  # about 0.01 on a free machine


def test_the_engine_uses_it_where_no_fault_fits():
    fn = multi(textbook(weights=lambda s: (0.8 * s).softmax(-1)))
    verdict = check("multi_head", fn)
    assert verdict.fault == "the numbers differ from the reference"
    said = "the numbers agree up to the masked scores, those of the weights are the first that differ"
    assert verdict.evidence.endswith(f"; no known fault fits: {said}")
