"""Wrong solutions of the exercises of notebook 02."""

import math

import torch

from tests.checks.bank_exercises import CHANGED, GRADIENT, wrong

RAD = math.pi / 180


@wrong("angles", "takes degrees for radians", r"degree|radian")
def degrees_as_radians(q_length, q_angle, key_lengths, key_angles):
    s = q_length * key_lengths * torch.cos(key_angles - q_angle)
    return s, s.softmax(dim=0)


@wrong("angles", "sine instead of cosine", r"\bsin")
def sine_of_the_angle(q_length, q_angle, key_lengths, key_angles):
    s = q_length * key_lengths * torch.sin((key_angles - q_angle) * RAD)
    return s, s.softmax(dim=0)


@wrong("angles", "cosines only, all lengths left out", r"lengths are|both lengths|cosines")
def cosine_only(q_length, q_angle, key_lengths, key_angles):
    s = torch.cos((key_angles - q_angle) * RAD)
    return s, s.softmax(dim=0)


@wrong("angles", "the length of the query is left out", r"query.*length|length of the query|q_length|query's length")
def without_query_length(q_length, q_angle, key_lengths, key_angles):
    s = key_lengths * torch.cos((key_angles - q_angle) * RAD)
    return s, s.softmax(dim=0)


@wrong("angles", "the lengths of the keys are left out", r"key.*length|lengths? of the keys|key_lengths")
def without_key_lengths(q_length, q_angle, key_lengths, key_angles):
    s = q_length * torch.cos((key_angles - q_angle) * RAD)
    return s, s.softmax(dim=0)


@wrong("angles", "adds the angles instead of subtracting", r"add|sum|plus|difference|subtract")
def adds_the_angles(q_length, q_angle, key_lengths, key_angles):
    s = q_length * key_lengths * torch.cos(torch.deg2rad(key_angles + q_angle))
    return s, s.softmax(dim=0)


@wrong("angles", "angle from the first axis, not from the query", r"quer.*angle|angle.*quer|q_angle|first axis")
def angle_of_the_key_alone(q_length, q_angle, key_lengths, key_angles):
    s = q_length * key_lengths * torch.cos(torch.deg2rad(key_angles))
    return s, s.softmax(dim=0)


@wrong("angles", "divides by the root of 2, the width", r"scale|root|sqrt|divid")
def scaled_by_root_two(q_length, q_angle, key_lengths, key_angles):
    s = q_length * key_lengths * torch.cos(torch.deg2rad(key_angles - q_angle)) / math.sqrt(2)
    return s, s.softmax(dim=0)


@wrong("angles", "weights first, then scores", r"order|swap|exchang|first")
def weights_then_scores(q_length, q_angle, key_lengths, key_angles):
    s = q_length * key_lengths * torch.cos(torch.deg2rad(key_angles - q_angle))
    return s.softmax(dim=0), s


@wrong("angles", "weights are shares of the scores, no exponential", r"softmax|exp")
def shares_of_the_scores(q_length, q_angle, key_lengths, key_angles):
    s = q_length * key_lengths * torch.cos(torch.deg2rad(key_angles - q_angle))
    return s, s / s.sum()


@wrong("angles", "turns the caller's angles into radians in place", CHANGED + r"|key_angles")
def angles_in_place(q_length, q_angle, key_lengths, key_angles):
    key_angles *= RAD
    s = q_length * key_lengths * torch.cos(key_angles - q_angle * RAD)
    return s, s.softmax(dim=0)


@wrong("angles", "only the keys' angles become radians", r"(query|keys).*(degree|radian)")
def half_converted(q_length, q_angle, key_lengths, key_angles):
    s = q_length * key_lengths * torch.cos(torch.deg2rad(key_angles) - q_angle)
    return s, s.softmax(dim=0)


@wrong("angles", "sine, and no length of the query", r"(?is)(?=.*\bsin)(?=.*length)")
def sine_without_query_length(q_length, q_angle, key_lengths, key_angles):
    s = key_lengths * torch.sin(torch.deg2rad(key_angles - q_angle))
    return s, s.softmax(dim=0)


@wrong(
    "weights_and_output", "keys times queries: scores transposed", r"transpos|exchang|swap|keys? (times|against) quer"
)
def keys_times_queries(q, k, v):
    w = torch.softmax(torch.bmm(k, q.transpose(1, 2)) / q.shape[-1] ** 0.5, dim=-1)
    return w, w @ v


@wrong(
    "weights_and_output", "softmax over the queries", r"over the (queries|rows)|query axis|axis of the queries|columns"
)
def both_softmax_dim_one(q, k, v):
    w = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-2)
    return w, w @ v


@wrong("weights_and_output", "output first, then weights", r"order|swap|exchang|first")
def output_then_weights(q, k, v):
    w = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
    return w @ v, w


@wrong(
    "weights_and_output",
    "scores returned in place of the weights",
    r"scores.*(returned|place)|softmax.*missing|no softmax",
)
def scores_for_weights(q, k, v):
    s = q @ k.mT / q.shape[-1] ** 0.5
    return s, s.softmax(dim=-1) @ v


@wrong("weights_and_output", "divides by D, not by its root", r"by D\b|D itself")
def both_divides_by_width(q, k, v):
    w = torch.softmax(torch.einsum("btd,bsd->bts", q, k) / q.shape[-1], dim=-1)
    return w, w @ v


@wrong("weights_and_output", "scale from the width of the values", r"value|Dv")
def both_scale_from_values(q, k, v):
    w = torch.softmax(torch.einsum("btd,bsd->bts", q, k) / v.shape[-1] ** 0.5, dim=-1)
    return w, w @ v


@wrong(
    "weights_and_output",
    "the output is a sum over scores, not weights",
    r"output.*(scores|softmax)|scores.*(output|values)|softmax",
)
def output_from_scores(q, k, v):
    s = q @ k.mT / q.shape[-1] ** 0.5
    return s.softmax(dim=-1), s @ v


@wrong("weights_and_output", "the returned weights carry no gradient", GRADIENT)
def weights_for_plotting(q, k, v):
    w = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
    return w.detach(), w @ v


@wrong(
    "weights_and_output", "returns the output only", r"one tensor|output (alone|only)|instead of (2|two)|two results"
)
def output_alone(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


@wrong("weights_and_output", "averages the weights over the samples", r"average|mean|samples|batch")
def weights_of_the_mean_sample(q, k, v):
    w = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1).mean(dim=0, keepdim=True).expand(len(q), -1, -1)
    return w, w @ v


@wrong(
    "weights_and_output", "no scale, weights not normalised", r"(?is)(?=.*(scale|root|sqrt|divid))(?=.*(normal|sum))"
)
def exp_without_scale(q, k, v):
    w = (q @ k.mT).exp()
    return w, w @ v
