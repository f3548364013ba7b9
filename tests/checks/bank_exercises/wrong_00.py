"""Wrong solutions of the exercise of notebook 00."""

import torch

from tests.checks.bank_exercises import CHANGED, wrong


@wrong("softmax", "normalises the columns: over the queries", r"over the (queries|rows)|columns?|query axis|first axis")
def down_the_columns(scores):
    e = torch.exp(scores - scores.max(dim=0, keepdim=True).values)
    return e / e.sum(dim=0, keepdim=True)


@wrong("softmax", "exp of large scores overflows", r"overflow|maximum|largest|infinit|NaN|1000")
def bare_formula(scores):
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


@wrong(
    "softmax",
    "subtracts the largest score of the whole matrix, rows far below it become 0/0",
    r"whole matrix|each row|own row|its row|all rows|underflow|row by row|row's (own )?(max|largest)",
)
def one_maximum_for_all(scores):
    e = torch.exp(scores - scores.max())
    return e / e.sum(dim=-1, keepdim=True)


@wrong("softmax", "divides by the sum of the whole matrix", r"whole|all (the )?(scores|entries|rows)|over everything")
def one_sum_for_all(scores):
    e = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return e / e.sum()


@wrong("softmax", "never divides by the sum", r"normali|divi|sum to")
def only_the_exponential(scores):
    return torch.exp(scores - scores.max(dim=-1, keepdim=True).values)


@wrong("softmax", "returns the logarithm of softmax", r"log")
def stays_in_logs(scores):
    return scores - torch.logsumexp(scores, dim=-1, keepdim=True)


@wrong("softmax", "squashes every score by itself with a sigmoid", r"sigmoid|by itself|on its own")
def each_by_itself(scores):
    return torch.sigmoid(scores)


@wrong("softmax", "powers of 2 instead of e", r"base|power of (2|two)|powers of (2|two)|2\^|exp2")
def powers_of_two(scores):
    p = torch.pow(2.0, scores - scores.max(dim=-1, keepdim=True).values)
    return p / p.sum(dim=-1, keepdim=True)


@wrong("softmax", "cuts off large scores, so large ones become equal", r"clamp|clip|cut|cap|limit|large|overflow|1000")
def clamped(scores):
    e = scores.clamp(-50, 50).exp()
    return e / e.sum(dim=-1, keepdim=True)


@wrong("softmax", "divides by the largest entry of the row, not by the sum", r"sum to 1|by (the|its) sum|largest")
def largest_becomes_one(scores):
    e = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return e / e.max(dim=-1, keepdim=True).values


@wrong("softmax", "shifts the rows of the caller's scores", CHANGED)
def shifts_the_callers_scores(scores):
    scores -= scores.max(dim=-1, keepdim=True).values
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


@wrong("softmax", "the scores change sign, the lowest gets most", r"sign|negat|minus|smallest|lowest|revers")
def coldest_wins(scores):
    low = scores.min(dim=-1, keepdim=True).values
    e = torch.exp(low - scores)
    return e / e.sum(dim=-1, keepdim=True)


@wrong(
    "softmax",
    "over the columns, and exp overflows",
    r"(?is)(?=.*(quer|rows|column))(?=.*(overflow|maximum|largest|1000|NaN))",
)
def columns_and_overflow(scores):
    e = scores.exp()
    return e / e.sum(dim=0)
