"""Wrong solutions of the first exercise of notebook 13: a softmax that works in every format."""

import torch

from tests.checks.bank_exercises import CHANGED, GRADIENT, wrong

task = "stable_softmax"

NO_MAX = r"(no|without|not).*(max|largest)|overflow|max.*(not|never|missing)"
TYPE = r"type (float|bfloat|int)|dtype|type of the (scores|input)"
EMPTY = r"minus infinity|-inf|hidden|masked|NaN"


@wrong(task, "no maximum is subtracted: exp overflows", NO_MAX)
def naive(scores):
    e = torch.exp(scores)
    return e / e.sum(-1, keepdim=True)


@wrong(task, "it computes in float64 and hopes that this is enough", NO_MAX)
def more_bits(scores):
    e = scores.double().exp()
    w = e / e.sum(dim=-1, keepdim=True)
    return torch.nan_to_num(w).to(scores.dtype)


@wrong(task, "it computes in float32 without the maximum; nan becomes 0", NO_MAX)
def float_first(scores):
    x = scores.float()
    x = torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)
    x = torch.where(torch.isnan(x), torch.zeros_like(x), x)
    return x.to(scores.dtype)


@wrong(
    task, "the maximum of the whole tensor is subtracted, not that of each row", r"all|whole|one max|each row|global"
)
def one_maximum(scores):
    shifted = scores - scores.max()
    e = torch.exp(shifted)
    return torch.nan_to_num(e / e.sum(-1, keepdim=True))


@wrong(task, "the maximum is taken along the wrong axis", r"axis|column|queries|dim|along")
def other_axis(scores):
    m = scores.max(dim=-2, keepdim=True).values
    m = torch.where(m.isinf(), 0.0, m)
    e = (scores - m).exp()
    s = e.sum(dim=-1, keepdim=True)
    return torch.where(s > 0, e / s, torch.zeros_like(e))


@wrong(task, "softmax over the queries instead of the keys", r"axis|quer|column|dim|over T")
def over_queries(scores):
    w = torch.softmax(scores, dim=-2)
    return w.nan_to_num(0.0)


@wrong(task, "softmax over the first axis", r"axis|sample|first|dim|batch")
def over_the_batch(scores):
    m = scores.amax(0, keepdim=True)
    m = m.masked_fill(m == -torch.inf, 0)
    e = torch.exp(scores - m)
    total = e.sum(0, keepdim=True)
    return e / total.masked_fill(total == 0, 1)


@wrong(task, "rows of -inf give nan: -inf minus -inf", EMPTY)
def textbook(scores):
    m = scores.max(dim=-1, keepdim=True).values
    e = torch.exp(scores - m)
    return e / e.sum(dim=-1, keepdim=True)


@wrong(task, "rows of -inf give nan, the built-in does not help", EMPTY)
def built_in(scores):
    return torch.nn.functional.softmax(scores, dim=-1)


@wrong(task, "a small number in the sum does not help a row of -inf", EMPTY)
def with_epsilon(scores):
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return e / (e.sum(-1, keepdim=True) + 1e-12)


@wrong(task, "rows of -inf give equal weights", r"(equal|uniform|same).*weight|average|1 ?/ ?S|finite")
def finite_mask(scores):
    low = torch.finfo(scores.dtype).min
    x = scores.masked_fill(scores == float("-inf"), low)
    x = x - x.max(-1, keepdim=True).values
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


@wrong(
    task, "rows of -inf are shifted to zeros and give equal weights", r"(equal|uniform|same).*weight|average|1 ?/ ?S"
)
def nan_too_early(scores):
    shifted = torch.nan_to_num(scores - scores.amax(dim=-1, keepdim=True), nan=0.0)
    e = torch.exp(shifted)
    return e / e.sum(dim=-1, keepdim=True)


@wrong(
    task, "every row with a single -inf becomes 0", r"(any|one|single|some|partly|a) (hidden|masked|-inf|minus inf)|any"
)
def any_instead_of_all(scores):
    w = torch.softmax(scores, -1)
    empty = (scores == -torch.inf).any(-1, keepdim=True)
    return torch.where(empty, torch.zeros_like(w), w)


@wrong(task, "the -inf row is seen only when everything is -inf", EMPTY)
def only_if_all(scores):
    if torch.isinf(scores).all():
        return torch.zeros_like(scores)
    x = scores - scores.max(-1, keepdim=True)[0]
    return x.exp() / x.exp().sum(-1, keepdim=True)


@wrong(task, "the result is float32, whatever came in", TYPE)
def stays_float32(scores):
    x = scores.float()
    m = x.amax(-1, keepdim=True)
    m = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    e = torch.exp(x - m)
    return e / e.sum(-1, keepdim=True).clamp(min=1e-20)


@wrong(task, "the result is float64", TYPE)
def stays_float64(scores):
    return torch.softmax(scores, dim=-1, dtype=torch.float64).nan_to_num()


@wrong(task, "everything comes back as float16", TYPE)
def always_half(scores):
    return torch.nan_to_num(torch.softmax(scores.float(), -1)).half()


@wrong(task, "scores are clamped instead of shifted", r"clamp|clip|cut off|limit")
def clamps(scores):
    e = torch.exp(scores.clamp(-80, 80).float())
    w = e / e.sum(-1, keepdim=True)
    return w.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0).to(scores.dtype)


@wrong(task, "the mean is subtracted, not the maximum", r"mean|average")
def minus_mean(scores):
    x = scores - scores.mean(-1, keepdim=True)
    e = torch.exp(x)
    return torch.nan_to_num(e / e.sum(-1, keepdim=True))


@wrong(task, "the minimum is subtracted", r"minimum|smallest")
def minus_minimum(scores):
    x = scores - scores.min(dim=-1, keepdim=True).values
    x = x.exp()
    return (x / x.sum(dim=-1, keepdim=True)).nan_to_num(0)


@wrong(task, "the maximum of the absolute values is subtracted", r"absolute|abs|magnitude|size|sign")
def minus_absolute(scores):
    m = scores.abs().amax(-1, keepdim=True)
    m = torch.where(torch.isinf(m), torch.zeros_like(m), m)
    e = torch.exp(scores - m)
    total = e.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, e / total).to(scores.dtype)


@wrong(task, "scores are divided by the maximum", r"divid")
def divided(scores):
    m = scores.abs().amax(-1, keepdim=True)
    e = torch.exp(scores / m)
    return torch.nan_to_num(e / e.sum(-1, keepdim=True))


@wrong(task, "not normalised", r"normali|sum|divid")
def no_sum(scores):
    m = scores.amax(-1, keepdim=True)
    m = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    return torch.exp(scores - m)


@wrong(task, "divided by the sum over everything", r"sum.*(all|whole|everything)|normali|all")
def sum_of_all(scores):
    m = scores.amax(-1, keepdim=True)
    m = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    e = torch.exp(scores - m)
    return e / e.sum()


@wrong(task, "keepdim is missing", r"raises|shape|keepdim|broadcast")
def no_keepdim(scores):
    m = scores.max(dim=-1).values
    e = torch.exp(scores - m)
    return e / e.sum(-1, keepdim=True)


@wrong(task, "keepdim is missing in the sum alone", r"raises|shape|keepdim|broadcast")
def no_keepdim_in_the_sum(scores):
    m = scores.max(dim=-1, keepdim=True).values.clamp(min=torch.finfo(scores.dtype).min)
    e = torch.exp(scores - m)
    return e / e.sum(-1)


@wrong(task, "the caller's scores are changed", CHANGED)
def in_place(scores):
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    scores -= scores.amax(-1, keepdim=True)
    scores.exp_()
    scores /= scores.sum(-1, keepdim=True)
    return scores.masked_fill(empty, 0)


@wrong(task, "the logarithm of the weights comes back", r"log")
def log_weights(scores):
    m = scores.amax(-1, keepdim=True)
    x = scores - m
    return x - x.exp().sum(-1, keepdim=True).log()


@wrong(task, "the maximum is at least 0, so that rows far below 0 vanish", r"below 0|negative|0|low")
def at_least_zero(scores):
    m = scores.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(scores - m)
    return e / (e.sum(-1, keepdim=True) + torch.finfo(scores.dtype).tiny)


@wrong(task, "no gradient: it works on .data", GRADIENT)
def without_graph(scores):
    x = scores.data
    m = x.amax(-1, keepdim=True)
    m = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    e = torch.exp(x - m)
    s = e.sum(-1, keepdim=True)
    return torch.where(s == 0, s, e / s)


@wrong(task, "the sum is taken one by one in the small format and stops growing", r"sum|one by one|accumul|long")
def slow_sum(scores):
    m = scores.amax(-1, keepdim=True)
    m = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    e = torch.exp(scores - m)
    total = torch.zeros_like(m)
    for s in range(scores.shape[-1]):
        total = total + e[..., s : s + 1]
    return torch.where(total == 0, torch.zeros_like(e), e / total)


@wrong(task, "the largest gets everything", r"one-hot|largest|argmax|hard|everything|alone")
def winner(scores):
    w = torch.zeros_like(scores)
    w.scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
    return w.masked_fill(scores == -torch.inf, 0)


@wrong(task, "the exponential is shifted after it was taken", NO_MAX)
def shifted_late(scores):
    e = torch.exp(scores)
    e = e - e.amax(-1, keepdim=True)
    return torch.nan_to_num(e / e.sum(-1, keepdim=True))


@wrong(task, "the logarithm of the sum is lost beside a large score", r"logarithm|logsumexp|round")
def by_the_logarithm_of_the_sum(scores):
    total = torch.logsumexp(scores, -1, keepdim=True)
    w = torch.exp(scores.double() - total.double()).to(scores.dtype)
    return torch.where(total.isinf(), torch.zeros_like(w), w)


@wrong(task, "exp of the scores less logsumexp, all in the small format", r"logarithm|logsumexp|round")
def log_then_exp(scores):
    return torch.exp(scores - scores.logsumexp(dim=-1, keepdim=True)).nan_to_num(0.0)


@wrong(task, "1e-9 is 0 in float16", r"float16|tiny|small")
def epsilon_vanishes(scores):
    m = scores.amax(-1, keepdim=True)
    m = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    e = torch.exp(scores - m)
    return e / (e.sum(-1, keepdim=True) + 1e-9)
