"""Right and wrong solutions of notebook 10: the softmax of two blocks, merged."""

import math

import pytest
import torch

from mha_course.checks import check, engine
from tests.checks.heads import unreached


def factor(m_i, m):
    return torch.where(m_i > -math.inf, torch.exp(m_i - m), 0)


def merge(
    top=torch.maximum,
    factors=lambda m1, m2, m: (factor(m1, m), factor(m2, m)),
    total=lambda a, l1, b, l2: a * l1 + b * l2,
    weights=lambda a, l1, b, l2: (a * l1, b * l2),
    mix=lambda x, o1, y, o2: x[:, None] * o1 + y[:, None] * o2,
    out=lambda o, total, own: o / total.clamp(min=1e-9)[:, None],
    order=lambda m, total, o: (m, total, o),
):
    """A solution in steps, some of them changed."""

    def fn(m1, l1, o1, m2, l2, o2):
        m = top(m1, m2)
        a, b = factors(m1, m2, m)
        x, y = weights(a, l1, b, l2)
        den = total(a, l1, b, l2)
        return order(m, den, out(mix(x, o1, y, o2), den, x + y))

    return fn


def plain(m1, m2, m):
    """Factors by the printed formula, NaN for -inf - (-inf)."""
    return torch.exp(m1 - m), torch.exp(m2 - m)


def as_printed(**steps):
    """The printed formula, without a thought of empty rows."""
    return merge(**{"factors": plain, "out": lambda o, den, own: o / den[:, None], **steps})


def own_sum(o, total, own):
    return o / torch.where(own == 0, 1, own)[:, None]


def alone(o, total, own):
    return o


def stays_first(m1, l1, o1, m2, l2, o2):
    b = torch.exp(m2 - m1) * l2
    return m1.clone(), l1 + b, (l1[:, None] * o1 + b[:, None] * o2) / (l1 + b)[:, None]


def stays_second(m1, l1, o1, m2, l2, o2):
    return stays_first(m2, l2, o2, m1, l1, o1)


def winner(m1, l1, o1, m2, l2, o2):
    rows = [(m1[t], l1[t], o1[t]) if m1[t] >= m2[t] else (m2[t], l2[t], o2[t]) for t in range(len(m1))]
    return tuple(torch.stack(x) for x in zip(*rows, strict=True))


def leaves_a_block_out(m1, l1, o1, m2, l2, o2):
    if (l1 == 0).any():
        return m2, l2, o2
    if (l2 == 0).any():
        return m1, l1, o1
    return merge()(m1, l1, o1, m2, l2, o2)


def exponentials(total):
    def fn(m1, l1, o1, m2, l2, o2):
        a, b = l1 * m1.exp(), l2 * m2.exp()
        o = (a[:, None] * o1 + b[:, None] * o2) / torch.where(a + b == 0, 1, a + b)[:, None]
        return torch.maximum(m1, m2), total(a + b, torch.maximum(m1, m2)), o

    return fn


def smaller(m1, l1, o1, m2, l2, o2):
    m = torch.minimum(m1, m2)
    some = torch.where(m.isinf(), 0, m)
    a, b = l1 * torch.exp(m1 - some), l2 * torch.exp(m2 - some)
    return m, a + b, (a[:, None] * o1 + b[:, None] * o2) / torch.where(a + b == 0, 1, a + b)[:, None]


def maximum(replaced):
    """What is returned as m."""

    def fn(m1, l1, o1, m2, l2, o2):
        _, den, o = merge()(m1, l1, o1, m2, l2, o2)
        return replaced(torch.maximum(m1, m2), m1, m2), den, o

    return fn


EMPTY = "a row in which neither block sees a key holds NaN"
WRONG = [
    (merge(factors=lambda m1, m2, m: (m * 0 + 1).nan_to_num(1).repeat(2, 1)), "no block is rescaled"),
    (merge(factors=lambda m1, m2, m: (torch.ones_like(m), factor(m2, m))), "the first block is not rescaled"),
    (merge(factors=lambda m1, m2, m: (factor(m1, m), torch.ones_like(m))), "the second block is not rescaled"),
    (merge(factors=lambda m1, m2, m: (factor(m2, m), factor(m1, m))), "the two factors have changed places"),
    (as_printed(factors=lambda m1, m2, m: plain(m2, m1, m)), "two faults: the two factors have changed places"),
    (merge(factors=lambda m1, m2, m: (factor(m1, m),) * 2), "both blocks are rescaled with the factor of the first"),
    (merge(factors=lambda m1, m2, m: (factor(m2, m),) * 2), "both blocks are rescaled with the factor of the second"),
    (as_printed(factors=lambda m1, m2, m: ((m - m1).exp(), (m - m2).exp())), "the factors have the wrong sign"),
    (
        merge(factors=lambda m1, m2, m: tuple(factor(x * math.log(2), m * math.log(2)) for x in (m1, m2))),
        "the factors are p",
    ),
    (merge(weights=lambda a, l1, b, l2: (l1, l2), out=own_sum), "the outputs are weighted by the sums alone"),
    (merge(weights=lambda a, l1, b, l2: (l1, l2)), "the outputs are weighted by the sums alone"),
    (merge(weights=lambda a, l1, b, l2: (a, b), out=own_sum), "the outputs are weighted by the exponentials"),
    (merge(weights=lambda a, l1, b, l2: (a, b)), "the outputs are taken as not yet divided"),
    (merge(mix=lambda x, o1, y, o2: torch.stack([o1, o2]).mean(0), out=alone), "the output is the mean"),
    (merge(mix=lambda x, o1, y, o2: o1 + o2, out=alone), "the two outputs are added"),
    (merge(weights=lambda a, l1, b, l2: (a / l1, b / l2), out=alone), "each output is divided by its own sum"),
    (merge(top=lambda m1, m2: torch.max(m1.max(), m2.max()).repeat(len(m1))), "one maximum is used for all rows"),
    (merge(top=lambda m1, m2: m1 + 0), "the new maximum is m1"),
    (merge(top=lambda m1, m2: m2 + 0), "the new maximum is m2"),
    (stays_first, "the new maximum is m1"),
    (stays_second, "the new maximum is m2"),
    (maximum(lambda m, m1, m2: m1), "m1 is returned"),
    (maximum(lambda m, m1, m2: m2), "m2 is returned"),
    (merge(top=torch.add), "the maxima are added"),
    (as_printed(top=torch.add), "two faults: the maxima are added"),
    (merge(top=lambda m1, m2: (m1 + m2) * 0.5), "the new maximum is the mean"),
    (merge(top=torch.min), "the new maximum is the smaller"),
    (smaller, "the new maximum is the smaller"),
    (merge(out=alone), "the sum of the two outputs is not divided"),
    (
        merge(out=lambda o, den, own: o / den.clamp(min=1).square()[:, None]),
        "the output is divided by the new sum twice",
    ),
    (merge(total=lambda a, l1, b, l2: l1 + l2, out=own_sum), "the two sums l1 and l2 are added as they are"),
    (merge(total=lambda a, l1, b, l2: l1 + l2), "the two sums l1 and l2 are added as they are"),
    (exponentials(lambda den, m: den / m.exp()), "exponentials are taken of the maxima themselves: at 800"),
    (
        exponentials(lambda den, m: den * (-m.nan_to_num(neginf=0)).exp()),
        "exponentials are taken of the maxima themselves: at 800",
    ),
    (exponentials(lambda den, m: den), "exponentials are taken of the maxima themselves, none"),
    (winner, "the block with the larger maximum takes all"),
    (leaves_a_block_out, "one row that sees no key decides"),
    (
        maximum(lambda m, m1, m2: torch.where(m.isinf(), 0, m)),
        "the maximum of a row that sees no key should stay -inf: it is 0",
    ),
    *(
        (
            maximum(lambda m, m1, m2, low=low: m.clamp(min=low)),
            "the maximum of a row that sees no key should stay -inf: it is a",
        )
        for low in (-1e9, torch.finfo(torch.float64).min)
    ),
    (as_printed(), EMPTY),
    (merge(factors=plain), EMPTY),
    (merge(out=lambda o, den, own: o / den[:, None]), EMPTY),
    (as_printed(total=lambda a, l1, b, l2: l1 + l2), "two faults: the two sums l1 and l2 are added as they are"),
    # not named
    (merge(order=lambda m, den, o: (m, o, den)), "l has the wrong shape"),
    (merge(order=lambda m, den, o: o), "it returns one Tensor instead of 3 results"),
    (merge(order=lambda m, den, o: (m, den, o * 1.1)), "the numbers differ from the reference"),
    (merge(mix=lambda x, o1, y, o2: x * o1 + y * o2), "it raises RuntimeError"),
    (maximum(lambda m, m1, m2: m.masked_fill(m.isinf(), math.inf)), "m holds infinity"),
    (lambda first, second: first, "it cannot be called as fn(m1, l1, o1, m2, l2, o2)"),
]


def test_right():
    verdict = check("merge_blocks", merge())
    assert verdict.ok, verdict


@pytest.mark.parametrize(("fn", "fault"), WRONG)
def test_wrong(fn, fault):
    verdict = check("merge_blocks", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) >= 2


def test_every_variation_is_what_some_solution_does():
    assert unreached("merge_blocks", [fn for fn, _ in WRONG]) == []


def test_the_reference_merges_to_attention_over_both_blocks():
    generator = torch.Generator().manual_seed(0)
    scores, v = (torch.randn(*n, generator=generator, dtype=torch.float64) for n in ((3, 7), (7, 5)))
    blocks = []
    for s, x in ((scores[:, :2], v[:2]), (scores[:, 2:], v[2:])):
        blocks += [s.amax(-1), (s - s.amax(-1, keepdim=True)).exp().sum(-1), s.softmax(-1) @ x]
    m, den, o = engine._TASKS["merge_blocks"].reference(*blocks)
    torch.testing.assert_close(o, scores.softmax(-1) @ v)
    torch.testing.assert_close(m + den.log(), scores.logsumexp(-1))
    torch.testing.assert_close(m, scores.amax(-1))


def test_every_case_has_a_row_that_sees_keys_and_one_case_rows_that_do_not():
    empty = []
    for case in engine._TASKS["merge_blocks"].cases():
        m1, l1, o1, m2, l2, o2 = case.inputs
        for m, den, o in ((m1, l1, o1), (m2, l2, o2)):
            assert ((den == 0) == (m == -math.inf)).all()
            assert (o[den == 0] == 0).all()
            assert (den > 0).any()
        empty += [set(zip((l1 == 0).tolist(), (l2 == 0).tolist(), strict=True))]
    both = {(False, True), (True, False), (True, True), (False, False)}
    assert [x for x in empty if x != {(False, False)}] == [both]


def test_a_maximum_of_minus_infinity_is_no_fault_and_evidence_is_of_the_other_rows():
    def off(m1, l1, o1, m2, l2, o2):
        m, den, o = merge()(m1, l1, o1, m2, l2, o2)
        return torch.where((l1 == 0) | (l2 == 0), m + 0.5, m), den, o

    verdict = check("merge_blocks", off)
    assert verdict.fault == "the numbers differ from the reference"
    assert verdict.evidence.startswith("largest difference 0.50 in m, query 0 (counted from 0), case 3 ")
    assert check("merge_blocks", maximum(lambda m, m1, m2: m.nan_to_num(neginf=0.0))).evidence.startswith(
        "largest difference more than 1000 in m, query 2 (counted from 0), case 3 "
    )


def test_a_block_may_not_be_written_into():
    def in_place(m1, l1, o1, m2, l2, o2):
        results = merge()(m1, l1, o1, m2, l2, o2)
        o1 *= 0
        return results

    assert check("merge_blocks", in_place).fault == "it changes its input o1 in place"
