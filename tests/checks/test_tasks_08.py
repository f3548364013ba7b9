"""Right and wrong solutions of notebook 08: a pre-norm block."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mha_course.checks import check
from tests.checks.heads import unreached


def block(x, norm_1, attend, norm_2, mlp):
    x = x + attend(norm_1(x))
    return x + mlp(norm_2(x))


def named(x, norm_1, attend, norm_2, mlp):
    normed = norm_1(x)
    attended = attend(normed)
    middle = torch.add(x, attended)
    return torch.add(middle, mlp(norm_2(middle)))


def with_a_helper(x, norm_1, attend, norm_2, mlp):
    def residual(x, norm, part):
        return part(norm(x)).add(x)

    return residual(residual(x, norm_1, attend), norm_2, mlp)


def by_a_loop(x, norm_1, attend, norm_2, mlp):
    stream = x.clone()
    for norm, part in ((norm_1, attend), (norm_2, mlp)):
        stream += part(norm(stream))
    return stream


def as_a_module(x, norm_1, attend, norm_2, mlp):
    class Residual(nn.Module):
        def __init__(self, *parts):
            super().__init__()
            self.inner = nn.Sequential(*parts)

        def forward(self, x):
            return self.inner(x) + x

    return nn.Sequential(Residual(norm_1, attend), Residual(norm_2, mlp))(x)


def sum_of_three(x, norm_1, attend, norm_2, mlp):
    a = attend(norm_1(x))
    return torch.stack([x, a, mlp(norm_2(x + a))]).sum(0)


def norms_by_formula(x, norm_1, attend, norm_2, mlp):
    def normed(x, norm):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.var(-1, keepdim=True, unbiased=False) + norm.eps).sqrt() * norm.weight + norm.bias

    y = x + attend(normed(x, norm_1))
    return y + mlp(normed(y, norm_2))


RIGHT = [block, named, with_a_helper, by_a_loop, as_a_module, sum_of_three, norms_by_formula]


def halves(first=lambda x, n, f: x + f(n(x)), second=lambda x, n, f: x + f(n(x))):
    def fn(x, norm_1, attend, norm_2, mlp):
        x = first(x, norm_1, attend)
        return second(x, norm_2, mlp)

    return fn


def both_and_each(half, both, one):
    yield halves(half, half), both
    yield halves(first=half), one.format("attention")
    yield halves(second=half), one.format("the MLP")


def normed_stream(x, norm, part):
    x = norm(x)
    return x + part(x)


def swapped(*order):
    return lambda x, *four: block(x, *(four[i] for i in order))


def parallel(x, norm_1, attend, norm_2, mlp):
    return x + attend(norm_1(x)) + mlp(norm_2(x))


def parallel_in_two_lines(x, norm_1, attend, norm_2, mlp):
    out = x + attend(norm_1(x))
    out = out + mlp(norm_2(x))
    return out


def one_norm(x, norm_1, attend, norm_2, mlp):
    normed = norm_1(x)
    return x + attend(normed) + mlp(normed)


def skip_from_the_start(x, norm_1, attend, norm_2, mlp):
    y = x + attend(norm_1(x))
    return x + mlp(norm_2(y))


def skip_from_attention(x, norm_1, attend, norm_2, mlp):
    a = attend(norm_1(x))
    return a + mlp(norm_2(x + a))


def around_both(x, norm_1, attend, norm_2, mlp):
    return x + mlp(norm_2(attend(norm_1(x))))


def mlp_of_attention(x, norm_1, attend, norm_2, mlp):
    a = attend(norm_1(x))
    m = mlp(norm_2(a))
    return x + a + m


def x_twice(x, norm_1, attend, norm_2, mlp):
    y = x + attend(norm_1(x))
    return x + y + mlp(norm_2(y))


def forgotten(x, norm_1, attend, norm_2, mlp):
    y = x + attend(norm_1(x))
    mlp(norm_2(y)) + y
    return y


def not_assigned(x, norm_1, attend, norm_2, mlp):
    x.add(attend(norm_1(x)))
    return x + mlp(norm_2(x))


WRONG = [
    *both_and_each(
        lambda x, n, f: n(x + f(x)), "this is a post-norm block", "half of the block is post-norm: the sum with {}"
    ),
    *both_and_each(lambda x, n, f: f(n(x)), "both skips are missing", "the skip around {} is missing"),
    *both_and_each(normed_stream, "the skips start behind the norms", "the skip around {} starts behind the norm"),
    *both_and_each(lambda x, n, f: x + n(f(x)), "the norms stand behind", "the norm stands behind {}"),
    *both_and_each(lambda x, n, f: x + f(x), "no norm is used", "{} reads the stream as it is"),
    *both_and_each(lambda x, n, f: n(x + f(n(x))), "each norm is used twice", "the sum with {} is normalised too"),
    *both_and_each(lambda x, n, f: x - f(n(x)), "attention and the MLP are subtracted", "{} is subtracted"),
    (swapped(0, 1, 0, 3), "norm_1 is used before the MLP too"),
    (swapped(2, 1, 2, 3), "norm_2 is used before attention too"),
    (swapped(2, 1, 0, 3), "norm_1 and norm_2 have changed places"),
    (swapped(2, 3, 0, 1), "the MLP comes first, each part with its own norm"),
    (swapped(0, 3, 2, 1), "the MLP comes first, with the norm of attention"),
    (parallel, "the MLP reads x, not what attention has added"),
    (parallel_in_two_lines, "the MLP reads x, not what attention has added"),
    (one_norm, "both parts read norm_1 of x"),
    (skip_from_the_start, "the second skip starts at x"),
    (skip_from_attention, "the second skip starts at what attention gives"),
    (around_both, "one skip leads around both parts"),
    (mlp_of_attention, "the MLP reads what attention gives"),
    (x_twice, "x is added twice"),
    (forgotten, "the second half is missing"),
    (not_assigned, "the first half is missing"),
    (lambda x, *parts: x, "x comes back as it was"),
    # not named
    (halves(lambda x, n, f: x * f(n(x))), "the numbers differ"),
    (halves(second=lambda x, n, f: torch.cat([x, f(n(x))], -1)), "out has the wrong shape"),
    (halves(second=lambda x, n, f: (x + f(n(x))).mean(1)), "out has the wrong shape"),
    (halves(lambda x, n, f: x + f(n(x), n(x), n(x))), "it raises TypeError"),
    (lambda x, norm_1, attend, norm_2, mlp: block(x, norm_1, attend, norm_2, mlp).float(), "out has type float32"),
    (lambda x, norm, attend, mlp: x, "it cannot be called as fn(x, norm_1, attend, norm_2, mlp)"),
    (lambda *inputs: (block(*inputs), None), "it returns a tuple of 2 instead of one tensor"),
]


@pytest.mark.parametrize("fn", RIGHT)
def test_right(fn):
    verdict = check("pre_norm_block", fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(("fn", "fault"), WRONG)
def test_wrong(fn, fault):
    verdict = check("pre_norm_block", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_every_variation_is_what_some_solution_does():
    assert unreached("pre_norm_block", [fn for fn, _ in WRONG]) == []


def test_the_stream_is_not_written_into():
    def in_place(x, norm_1, attend, norm_2, mlp):
        x += attend(norm_1(x))
        return x + mlp(norm_2(x))

    verdict = check("pre_norm_block", in_place)
    assert verdict.fault == "it changes its input x in place"
    assert "+=" in verdict.hints[0]

    def both(x, norm_1, attend, norm_2, mlp):
        x += attend(norm_1(x))
        return mlp(norm_2(x))

    verdict = check("pre_norm_block", both)
    assert verdict.fault == "the skip around the MLP is missing"
    assert verdict.evidence.endswith("; also, it changes its input x in place")


def test_a_part_may_not_be_changed():
    def resets(x, norm_1, attend, norm_2, mlp):
        out = block(x, norm_1, attend, norm_2, mlp)
        nn.init.ones_(norm_1.weight)
        return out

    assert check("pre_norm_block", resets).fault == "it changes its input norm_1 in place"


def test_evidence_names_the_token():
    verdict = check("pre_norm_block", lambda x, *four: F.pad(block(x, *four)[:, 1:], (0, 0, 0, 1)))
    assert verdict.evidence.startswith("largest difference ")
    assert " in out, sample " in verdict.evidence
    assert ", token " in verdict.evidence
    assert verdict.evidence.endswith("case 1 (B, T, E = 2, 5, 7)")
