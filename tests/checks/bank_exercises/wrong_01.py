"""Wrong solutions of the exercises of notebook 01."""

import math

import numpy as np
import torch

from tests.checks.bank_exercises import CHANGED, GRADIENT, wrong

SCALE = r"scale|divid|square root|sqrt"
BY_D = r"by D\b|D itself"


def soft(s):
    e = np.exp(s - s.max())
    return e / e.sum()


@wrong(
    "one_query",
    "no scale",
    r"(no|not|without|missing|lacks|never).*(scale|divid|root|sqrt)|(scale|root).*missing|unscaled",
)
def forgot_the_root(q, keys, values):
    return soft(keys @ q) @ values


@wrong("one_query", "divides by D, not by its root", BY_D)
def divides_by_the_width(q, keys, values):
    return soft(keys @ q / q.shape[0]) @ values


@wrong("one_query", "scale from the number of keys", r"number of keys|how many keys|\bS\b")
def root_of_the_number_of_keys(q, keys, values):
    return soft(keys @ q / np.sqrt(len(keys))) @ values


@wrong("one_query", "weights are not divided by their sum", r"normali|sum|divid")
def weights_not_normalised(q, keys, values):
    e = np.exp(keys @ q / np.sqrt(len(q)))
    return e @ values


@wrong("one_query", "takes the value of the best key alone", r"best|largest|arg ?max|hard|single key|one key")
def winner_takes_all(q, keys, values):
    return values[np.argmax(keys @ q)]


@wrong("one_query", "averages the keys instead of the values", r"keys")
def averages_the_keys(q, keys, values):
    return soft(keys @ q / np.sqrt(len(q))) @ keys


@wrong("one_query", "scores used as weights, no softmax", r"softmax|exponential")
def scores_as_weights(q, keys, values):
    s = keys @ q / np.sqrt(len(q))
    return s @ values


@wrong("one_query", "scores divided by their sum, no exponential", r"exp|softmax")
def divides_by_the_sum_of_scores(q, keys, values):
    s = keys @ q / np.sqrt(len(q))
    return (s / s.sum()) @ values


@wrong("one_query", "cosines instead of dot products", r"cosine|length|norm")
def uses_cosines(q, keys, values):
    s = keys @ q / (np.linalg.norm(keys, axis=1) * np.linalg.norm(q))
    return soft(s) @ values


@wrong("one_query", "scales the weights after the softmax", r"after (the )?softmax|weights|output")
def scale_too_late(q, keys, values):
    return soft(keys @ q) / np.sqrt(len(q)) @ values


@wrong("one_query", "divides the caller's q in place", CHANGED)
def divides_the_callers_query(q, keys, values):
    q /= math.sqrt(len(q))
    return soft(keys @ q) @ values


@wrong("one_query", "result has an extra axis", r"shape|ax[ei]s")
def keeps_an_axis(q, keys, values):
    return soft(keys @ q / np.sqrt(len(q)))[None] @ values


@wrong(
    "one_query", "multiplies by the root and does not normalise", r"(?is)(?=.*(multipl|root|scale))(?=.*(sum|normal))"
)
def multiplies_and_forgets_the_sum(q, keys, values):
    s = keys @ q * np.sqrt(len(q))
    return np.exp(s - s.max()) @ values


@wrong(
    "batched_attention", "softmax over the queries", r"over the (queries|rows)|query axis|axis of the queries|columns"
)
def batch_softmax_dim_one(q, k, v):
    s = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    return s.softmax(dim=1) @ v


@wrong("batched_attention", "softmax over the samples", r"batch|samples")
def batch_softmax_dim_zero(q, k, v):
    s = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
    return torch.bmm(torch.softmax(s, 0), v)


@wrong(
    "batched_attention",
    "no scale",
    r"(no|not|without|missing|lacks|never).*(scale|divid|root|sqrt)|(scale|root).*missing|unscaled",
)
def batch_without_scale(q, k, v):
    return torch.softmax(q @ k.mT, dim=-1) @ v


@wrong("batched_attention", "scale from the width of the values", r"value|Dv")
def scale_from_the_values(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(v.shape[-1]), dim=-1) @ v


@wrong("batched_attention", "scale from the number of keys", r"number of keys|how many keys|\bS\b")
def scale_from_the_length(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(k.shape[1]), dim=-1) @ v


@wrong("batched_attention", "reshapes the keys where they should be transposed", r"transpos|reshape|view")
def reshapes_the_keys(q, k, v):
    b, s, d = k.shape
    return torch.softmax(q @ k.reshape(b, d, s) / d**0.5, dim=-1) @ v


@wrong(
    "batched_attention",
    "every sample uses the keys of the first",
    r"first sample|sample 0|other sample|(keys|samples?).*first",
)
def keys_of_the_first_sample(q, k, v):
    return torch.softmax(q @ k[0].T / q.shape[-1] ** 0.5, dim=-1) @ v


@wrong("batched_attention", "returns a pair", r"tuple|pair|two|type")
def hands_back_a_pair(q, k, v):
    w = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
    return w @ v, w


@wrong("batched_attention", "multiplies by the root", r"multipl|times")
def batch_times_the_root(q, k, v):
    return torch.softmax(q @ k.mT * q.shape[-1] ** 0.5, dim=-1) @ v


@wrong("batched_attention", "the weights are detached: queries get no gradient", GRADIENT)
def weights_detached(q, k, v):
    w = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
    return w.detach() @ v


@wrong("batched_attention", "computed under no_grad", GRADIENT)
def under_no_grad(q, k, v):
    with torch.no_grad():
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


@wrong("batched_attention", "divides the caller's q in place", CHANGED)
def batch_divides_in_place(q, k, v):
    q.div_(q.shape[-1] ** 0.5)
    return torch.softmax(q @ k.mT, dim=-1) @ v


@wrong("batched_attention", "no scale, and softmax over the queries", rf"(?is)(?=.*({SCALE}))(?=.*(quer|rows|column))")
def no_scale_and_wrong_axis(q, k, v):
    return torch.softmax(q @ k.mT, dim=1) @ v


@wrong("batched_attention", "softmax twice", r"softmax.*twice|twice|second softmax|two softmax")
def softmax_on_softmax(q, k, v):
    w = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
    return w.softmax(dim=-1) @ v
