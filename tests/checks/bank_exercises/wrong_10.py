"""Wrong solutions of the exercises of notebook 10: two blocks merged."""

import math

import torch

from tests.checks.bank_exercises import CHANGED, wrong

merge = "merge_blocks"

NOT_RESCALED = (
    r"(not|no|never|without|missing|left out|lacks).*(rescal|factor|exp)|(rescal|factor).*(missing|forgot|left)"
)
EMPTY = r"empty|sees? (nothing|no)|neither|NaN|no key|hidden"


@wrong(merge, "nothing is rescaled to the new maximum", NOT_RESCALED)
def just_added(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    den = l1 + l2
    o = (l1[:, None] * o1 + l2[:, None] * o2) / den.clamp(min=1)[:, None]
    return m, den, o


@wrong(merge, "the second block is not rescaled", r"second|one (of the )?block|block 2|only")
def only_the_old_one_rescaled(m1, l1, o1, m2, l2, o2):
    m = torch.max(m1, m2)
    c = torch.exp(m1 - m)
    den = c * l1 + l2
    o = ((c * l1).unsqueeze(-1) * o1 + l2.unsqueeze(-1) * o2) / den.unsqueeze(-1)
    return m, den, o


@wrong(merge, "the first block is not rescaled", r"first|one (of the )?block|block 1|only")
def only_the_new_one_rescaled(m1, l1, o1, m2, l2, o2):
    m = torch.max(m1, m2)
    p = l2 * (m2 - m).exp()
    den = l1 + p
    return m, den, (l1[:, None] * o1 + p[:, None] * o2) / den[:, None]


@wrong(merge, "the sign of the exponent", r"sign|e\^\(m - m|upside|revers|wrong way|inverse|grow")
def grows_instead(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    a = torch.exp(m - m1) * l1
    b = torch.exp(m - m2) * l2
    den = a + b
    o = (a[:, None] * o1 + b[:, None] * o2) / den[:, None]
    return m, den, o


@wrong(merge, "outputs weighted by the sums, without the exponentials", r"output.*(exp|rescal|factor|maxim)|o .*exp")
def outputs_by_sums_alone(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    a, b = torch.exp(m1 - m), torch.exp(m2 - m)
    den = torch.nan_to_num(a * l1 + b * l2)
    o = (l1[:, None] * o1 + l2[:, None] * o2) / (l1 + l2)[:, None]
    return m, den, o.nan_to_num(0)


@wrong(merge, "outputs weighted by the exponentials, without the sums", r"\bl\b|l1|sum")
def outputs_by_exponentials_alone(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    a, b = torch.exp(m1 - m), torch.exp(m2 - m)
    den = a * l1 + b * l2
    o = (a[:, None] * o1 + b[:, None] * o2) / (a + b)[:, None]
    return m, den, o


@wrong(
    merge, "outputs taken as not yet divided: l1 and l2 are missing above the line", r"\bl1\b|sums?\b|unnormali|divid"
)
def as_in_flash_two(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    a, b = torch.exp(m1 - m), torch.exp(m2 - m)
    den = a * l1 + b * l2
    o = (a[:, None] * o1 + b[:, None] * o2) / den[:, None]
    return m, den, o


@wrong(merge, "the mean of the two outputs", r"mean|average|half|alike")
def averaged_outputs(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    den = torch.exp(m1 - m) * l1 + torch.exp(m2 - m) * l2
    return m, den, (o1 + o2) / 2


@wrong(merge, "divides each output by its own sum first", r"own sum|before|each|its own|divid|l1")
def own_denominators(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    den = torch.exp(m1 - m) * l1 + torch.exp(m2 - m) * l2
    o = torch.exp(m1 - m)[:, None] * o1 / l1[:, None] + torch.exp(m2 - m)[:, None] * o2 / l2[:, None]
    return m, den, o


@wrong(merge, "one maximum for all rows", r"(one|single|largest|whole|all).*(maxim|row)|maxim.*(all|whole|every|per) ")
def one_maximum(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2).max().expand(len(m1)).clone()
    a, b = l1 * torch.exp(m1 - m), l2 * torch.exp(m2 - m)
    den = a + b
    return m, den, (a[:, None] * o1 + b[:, None] * o2) / den[:, None]


@wrong(merge, "m stays what it was", r"m1|first|old|updat|not the larger|stays")
def maximum_not_updated(m1, l1, o1, m2, l2, o2):
    b = torch.exp(m2 - m1) * l2
    den = l1 + b
    o = (l1[:, None] * o1 + b[:, None] * o2) / den[:, None]
    return m1.clone(), den, o


@wrong(merge, "the old maximum is returned, the rest is right", r"m1|first|old|updat|not the larger|stays")
def returns_the_old_maximum(m1, l1, o1, m2, l2, o2):
    new = torch.maximum(m1, m2)
    a = torch.where(l1 > 0, torch.exp(m1 - new), 0) * l1
    b = torch.where(l2 > 0, torch.exp(m2 - new), 0) * l2
    den = a + b
    return m1.clone(), den, (a[:, None] * o1 + b[:, None] * o2) / den.clamp(min=1)[:, None]


@wrong(merge, "the maxima are added", r"(maxima|m1 and m2|m).*(add|sum)|add|sum of")
def sum_of_maxima(m1, l1, o1, m2, l2, o2):
    m = m1 + m2
    a, b = torch.exp(m1 - m), torch.exp(m2 - m)
    den = a * l1 + b * l2
    o = (a[:, None] * l1[:, None] * o1 + b[:, None] * l2[:, None] * o2) / den[:, None]
    return m, den, o


@wrong(merge, "the smaller maximum", r"minim|small")
def smaller_of_the_two(m1, l1, o1, m2, l2, o2):
    m = torch.minimum(m1, m2)
    a, b = torch.exp(m1 - m), torch.exp(m2 - m)
    den = a * l1 + b * l2
    o = (a[:, None] * l1[:, None] * o1 + b[:, None] * l2[:, None] * o2) / den[:, None]
    return m, den, o


@wrong(merge, "NaN where neither block sees a key", EMPTY)
def the_formula_as_printed(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    den = torch.exp(m1 - m) * l1 + torch.exp(m2 - m) * l2
    o = (torch.exp(m1 - m)[:, None] * l1[:, None] * o1 + torch.exp(m2 - m)[:, None] * l2[:, None] * o2) / den[:, None]
    return m, den, o


@wrong(merge, "0 / 0 where neither block sees a key", EMPTY + r"|0 / 0|divi")
def zero_by_zero(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    safe = m.masked_fill(m == -math.inf, 0)
    a, b = torch.exp(m1 - safe) * l1, torch.exp(m2 - safe) * l2
    den = a + b
    o = (a[:, None] * o1 + b[:, None] * o2) / den[:, None]
    return m, den, o


@wrong(merge, "the maximum of an empty row becomes 0", r"\b0\b|-inf|minus infinity|empty|neither")
def empty_maximum_zero(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    m = torch.where(torch.isinf(m), torch.zeros_like(m), m)
    a, b = torch.exp(m1 - m) * l1, torch.exp(m2 - m) * l2
    den = a + b
    o = (a[:, None] * o1 + b[:, None] * o2) / torch.where(den == 0, 1, den)[:, None]
    return m, den, o


@wrong(merge, "never divided by the new sum", r"divi|denominator|normali")
def not_divided(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    a = torch.exp(m1 - m).nan_to_num() * l1
    b = torch.exp(m2 - m).nan_to_num() * l2
    return m, a + b, a[:, None] * o1 + b[:, None] * o2


@wrong(merge, "divided twice", r"twice|two|again")
def divided_twice(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    a = torch.exp(m1 - m) * l1
    b = torch.exp(m2 - m) * l2
    den = a + b
    a, b = a / den, b / den
    o = (a[:, None] * o1 + b[:, None] * o2) / den[:, None]
    return m, den, o


@wrong(
    merge,
    "the factors of the two blocks have changed places",
    r"swap|changed places|exchang|other block|mixed up|confus",
)
def factors_swapped(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    a, b = torch.exp(m2 - m), torch.exp(m1 - m)
    den = a * l1 + b * l2
    o = ((a * l1)[:, None] * o1 + (b * l2)[:, None] * o2) / den[:, None]
    return m, den, o


@wrong(merge, "exp of the maxima themselves: too large", r"overflow|subtract|themselves|large|infinit")
def plain_exponentials(m1, l1, o1, m2, l2, o2):
    a, b = l1 * m1.exp(), l2 * m2.exp()
    m = torch.maximum(m1, m2)
    o = (a[:, None] * o1 + b[:, None] * o2) / (a + b)[:, None]
    return m, (a + b) / m.exp(), o


@wrong(merge, "the sum is not rescaled, the output is", r"\bl\b|sum.*(rescal|factor|add|exp|maxim)")
def sums_just_added(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    a = torch.exp(m1 - m)
    b = torch.exp(m2 - m)
    num = a[:, None] * l1[:, None] * o1 + b[:, None] * l2[:, None] * o2
    return m, l1 + l2, num / (a * l1 + b * l2)[:, None]


@wrong(merge, "the sum is not rescaled, and the output divided by it", r"\bl\b|sum.*(rescal|factor|add|exp|maxim)")
def divided_by_the_plain_sum(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    a, b = torch.exp(m1 - m), torch.exp(m2 - m)
    den = l1 + l2
    o = (a[:, None] * l1[:, None] * o1 + b[:, None] * l2[:, None] * o2) / den[:, None]
    return m, den, o


@wrong(merge, "the block with the larger maximum takes all", r"larger|winner|takes all|one block|other is lost|chosen")
def winner_takes_all(m1, l1, o1, m2, l2, o2):
    first = m1 >= m2
    return torch.where(first, m1, m2), torch.where(first, l1, l2), torch.where(first[:, None], o1, o2)


@wrong(merge, "sum and output in the wrong order", r"order|shape|place")
def wrong_order(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    a, b = torch.exp(m1 - m) * l1, torch.exp(m2 - m) * l2
    return m, (a[:, None] * o1 + b[:, None] * o2) / (a + b)[:, None], a + b


@wrong(merge, "powers of 2, not of e", r"\b2\b|base")
def powers_of_two(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    safe = torch.where(m > -torch.inf, m, 0)
    a, b = torch.exp2(m1 - safe) * l1, torch.exp2(m2 - safe) * l2
    den = a + b
    return m, den, (a[:, None] * o1 + b[:, None] * o2) / den.clamp(min=1e-30)[:, None]


@wrong(merge, "an empty block found by one row decides for all", EMPTY + r"|all rows|every row|row")
def any_row_empty(m1, l1, o1, m2, l2, o2):
    if torch.isinf(m1).any():
        return m2, l2, o2
    if torch.isinf(m2).any():
        return m1, l1, o1
    m = torch.maximum(m1, m2)
    a, b = torch.exp(m1 - m) * l1, torch.exp(m2 - m) * l2
    den = a + b
    return m, den, (a[:, None] * o1 + b[:, None] * o2) / den[:, None]


@wrong(merge, "writes into l1 and o1", CHANGED)
def merged_in_place(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    safe = torch.where(m > -torch.inf, m, 0)
    o1 *= (l1 * torch.exp(m1 - safe))[:, None]
    l1 *= torch.exp(m1 - safe)
    b = l2 * torch.exp(m2 - safe)
    l1 += b
    o1 += b[:, None] * o2
    return m, l1, o1 / l1.clamp(min=1)[:, None]


@wrong(merge, "no rescaling of the first block, and no division", r"(?is)(?=.*(first|rescal))(?=.*(divi|normali))")
def two_at_once(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    b = torch.where(l2 > 0, torch.exp(m2 - m), 0) * l2
    return m, l1 + b, l1[:, None] * o1 + b[:, None] * o2


@wrong(merge, "m is a single number", r"shape|single number")
def maximum_of_all(m1, l1, o1, m2, l2, o2):
    m = torch.cat([m1, m2]).max()
    a, b = torch.exp(m1 - m) * l1, torch.exp(m2 - m) * l2
    den = a + b
    return m, den, (a[:, None] * o1 + b[:, None] * o2) / den[:, None]
