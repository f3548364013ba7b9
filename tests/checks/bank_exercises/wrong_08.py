"""Wrong solutions of the exercises of notebook 08."""

import torch
from torch.nn.functional import cosine_similarity

from tests.checks.bank_exercises import CHANGED, GRADIENT, wrong

SKIP = r"skip|residual|\badd|stream|x \+|lost"
block = "pre_norm_block"


@wrong(block, "post-norm: normalises after adding", r"post|after")
def post_norm(x, norm_1, attend, norm_2, mlp):
    h = norm_1(x + attend(x))
    return norm_2(h + mlp(h))


@wrong(block, "the skip around attention is lost", r"(skip|residual).*attention|attention.*(skip|residual)")
def first_skip_lost(x, norm_1, attend, norm_2, mlp):
    h = attend(norm_1(x))
    return h + mlp(norm_2(h))


@wrong(block, "the skip around the MLP is lost", r"(skip|residual).*MLP|MLP.*(skip|residual)")
def second_skip_lost(x, norm_1, attend, norm_2, mlp):
    h = x + attend(norm_1(x))
    return mlp(norm_2(h))


@wrong(block, "norm_1 used twice", r"norm_1.*(twice|too|both)|norm_2.*(never|not)")
def same_norm_twice(x, norm_1, attend, norm_2, mlp):
    h = x + attend(norm_1(x))
    return h + mlp(norm_1(h))


@wrong(block, "norms exchanged", r"norm.*(exchang|swap|changed places)")
def norms_exchanged(x, norm_1, attend, norm_2, mlp):
    h = x + attend(norm_2(x))
    return h + mlp(norm_1(h))


@wrong(block, "the MLP reads without a norm", r"MLP.*(norm.*(left out|missing)|without)|without.*norm.*MLP")
def mlp_without_norm(x, norm_1, attend, norm_2, mlp):
    h = x + attend(norm_1(x))
    return h + mlp(h)


@wrong(
    block, "attention reads without a norm", r"attention.*(norm.*(left out|missing)|without)|without.*norm.*attention"
)
def attention_without_norm(x, norm_1, attend, norm_2, mlp):
    h = x + attend(x)
    return h + mlp(norm_2(h))


@wrong(block, "both read x: parallel", r"parallel|side by side|reads x\b|not what attention")
def in_parallel(x, norm_1, attend, norm_2, mlp):
    return x + attend(norm_1(x)) + mlp(norm_2(x))


@wrong(block, "the skip carries the normalised x", r"skip.*norm|norm.*skip")
def skip_after_norm(x, norm_1, attend, norm_2, mlp):
    n = norm_1(x)
    h = n + attend(n)
    m = norm_2(h)
    return m + mlp(m)


@wrong(block, "MLP first, then attention", r"order|first|exchang|swap|before")
def mlp_first(x, norm_1, attend, norm_2, mlp):
    h = x + mlp(norm_2(x))
    return h + attend(norm_1(h))


@wrong(block, "x is changed by +=", CHANGED)
def grows_in_place(x, norm_1, attend, norm_2, mlp):
    x += attend(norm_1(x))
    x += mlp(norm_2(x))
    return x


@wrong(
    block, "the MLP's output is added to x, attention's is lost", r"second skip|attention.*(lost|not in)|starts at x"
)
def added_to_the_old_x(x, norm_1, attend, norm_2, mlp):
    h = x + attend(norm_1(x))
    return x + mlp(norm_2(h))


@wrong(block, "the skip is detached", GRADIENT)
def skip_detached(x, norm_1, attend, norm_2, mlp):
    h = x.detach() + attend(norm_1(x))
    return h + mlp(norm_2(h))


@wrong(block, "attention's result is detached", GRADIENT)
def attention_detached(x, norm_1, attend, norm_2, mlp):
    h = x + attend(norm_1(x)).detach()
    return h + mlp(norm_2(h))


@wrong(block, "both skips lost", r"both skips|two skips|no skip")
def both_skips_lost(x, norm_1, attend, norm_2, mlp):
    return mlp(norm_2(attend(norm_1(x))))


@wrong(block, "norm_1 twice, second skip lost", r"(?is)(?=.*norm)(?=.*(skip|residual|add|stream))")
def one_norm_one_skip(x, norm_1, attend, norm_2, mlp):
    h = x + attend(norm_1(x))
    return mlp(norm_1(h))


def through(blocks, x):
    for each in blocks:
        y = each(x)
        yield x, y
        x = y


def near(x, y):
    return cosine_similarity(x, y, dim=-1).mean()


@wrong("lost_skips", "True for the healthy ones", r"invert|opposite|healthy|revers|negat|has (its|both)|wrong way")
def true_for_healthy(blocks, x):
    return torch.stack([near(a, b) > 0.5 for a, b in through(blocks, x)])


@wrong("lost_skips", "compares every output with the first input", r"first|own input|comes in|goes in|original")
def compared_with_the_start(blocks, x):
    return torch.stack([near(x, b) < 0.5 for _, b in through(blocks, x)])


@wrong(
    "lost_skips",
    "the shapes are compared, nothing is found",
    r"none|no block|False|miss|nothing|never|shape|over ?look",
)
def shapes_agree(blocks, x):
    return torch.tensor([a.shape != b.shape for a, b in through(blocks, x)])


@wrong(
    "lost_skips",
    "a limit of 0.99: healthy blocks are named",
    r"healthy|all|False alarm|too (strict|high|many)|every|limit|threshold",
)
def limit_too_high(blocks, x):
    return torch.stack([near(a, b) < 0.99 for a, b in through(blocks, x)])


@wrong(
    "lost_skips",
    "a limit below zero: none is found",
    r"none|no block|miss|nothing|never|limit|threshold|over ?look|low",
)
def limit_too_low(blocks, x):
    return torch.stack([near(a, b) < -0.5 for a, b in through(blocks, x)])


@wrong("lost_skips", "a list", r"tensor|list|type")
def a_list_of_bools(blocks, x):
    return [bool(near(a, b) < 0.5) for a, b in through(blocks, x)]


@wrong("lost_skips", "cosines, not a judgement", r"bool|float|dtype|type")
def the_cosines(blocks, x):
    return torch.stack([near(a, b) for a, b in through(blocks, x)])


@wrong("lost_skips", "numbers of the blocks", r"bool|dtype|shape|one entry|indices")
def their_numbers(blocks, x):
    return torch.tensor([i for i, (a, b) in enumerate(through(blocks, x)) if near(a, b) < 0.5])


@wrong("lost_skips", "one entry for each token", r"shape|one entry|each block")
def for_each_token(blocks, x):
    return torch.stack([cosine_similarity(a, b, dim=-1) < 0.5 for a, b in through(blocks, x)])


@wrong("lost_skips", "from the first lost skip on, all are named", r"after|all|later|healthy|follow|onward|behind")
def all_from_there(blocks, x):
    found, lost = [], False
    for a, b in through(blocks, x):
        lost = lost or bool(near(a, b) < 0.5)
        found.append(lost)
    return torch.tensor(found)
