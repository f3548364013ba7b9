"""Wrong solutions of the exercises of notebook 06 about ALiBi."""

import torch

from tests.checks.bank_exercises import CHANGED, wrong


def series(n):
    return [2 ** (-8 * h / n) for h in range(1, n + 1)]


def below(n):
    p = 1
    while p * 2 <= n:
        p *= 2
    return p


@wrong(
    "slopes",
    "one series for any number of heads",
    r"power of (two|2)|one series|every number|any number|other every|single|authors",
)
def one_series(num_heads):
    return torch.tensor(series(num_heads), dtype=torch.float64)


@wrong("slopes", "counts heads from 0: first slope is 1", r"from 0|at 0|slope is 1|start")
def heads_from_zero(num_heads):
    p = below(num_heads)
    s = [2 ** (-8 * h / p) for h in range(p)] + [2 ** (-8 * h / (2 * p)) for h in range(2 * p)][0::2]
    return torch.tensor(s[:num_heads], dtype=torch.float64)


@wrong(
    "slopes",
    "the series of the next larger power of two, cut off",
    r"larger|next|above|power of (two|2)|twice|first \d+ of",
)
def next_power(num_heads):
    p = below(num_heads)
    p = p if p == num_heads else 2 * p
    return torch.tensor(series(p)[:num_heads], dtype=torch.float64)


@wrong("slopes", "the extra ones start with the second", r"second|from the first|first on|every other|start|even|odd")
def every_other_from_the_second(num_heads):
    p = below(num_heads)
    return torch.tensor((series(p) + series(2 * p)[1::2])[:num_heads], dtype=torch.float64)


@wrong(
    "slopes",
    "the extra ones are taken without gaps",
    r"every other|skip|gap|consecutive|in a row|first ones|successive|each one",
)
def without_gaps(num_heads):
    p = below(num_heads)
    return torch.tensor((series(p) + series(2 * p))[:num_heads], dtype=torch.float64)


@wrong("slopes", "sorted by size at the end", r"order|sort")
def sorted_at_the_end(num_heads):
    p = below(num_heads)
    s = (series(p) + series(2 * p)[0::2])[:num_heads]
    return torch.tensor(sorted(s, reverse=True), dtype=torch.float64)


@wrong("slopes", "exponent without 8/H: halves from head to head", r"8|number of heads|\bH\b|halv")
def always_halves(num_heads):
    return torch.tensor([2.0**-h for h in range(1, num_heads + 1)], dtype=torch.float64)


@wrong("slopes", "negative already", r"sign|negativ|minus")
def already_negative(num_heads):
    p = below(num_heads)
    return -torch.tensor((series(p) + series(2 * p)[0::2])[:num_heads], dtype=torch.float64)


@wrong("slopes", "float32", r"float64|float32|dtype|type")
def slopes_in_float32(num_heads):
    p = below(num_heads)
    return torch.tensor((series(p) + series(2 * p)[0::2])[:num_heads])


@wrong("slopes", "evenly spaced, not geometric", r"geometric|linear|even|ratio|series|spac|steps")
def evenly_spaced(num_heads):
    return torch.linspace(0.5, 2.0**-8, num_heads, dtype=torch.float64)


@wrong("slopes", "a list", r"tensor|list|type")
def a_list(num_heads):
    p = below(num_heads)
    return (series(p) + series(2 * p)[0::2])[:num_heads]


def distance(T):
    i = torch.arange(T, dtype=torch.float64)
    return (i[:, None] - i).abs()


@wrong("alibi_bias", "plus where minus is meant", r"sign|plus|negativ|minus|positiv")
def a_reward_for_distance(slopes, T):
    return slopes[:, None, None] * distance(T)


@wrong("alibi_bias", "signed distance: keys ahead get a bonus", r"sign|future|after|ahead")
def signed_distance(slopes, T):
    i = torch.arange(T, dtype=torch.float64)
    return -slopes[:, None, None] * (i[:, None] - i)


@wrong("alibi_bias", "hides the future as well", r"future|-inf|causal|after")
def hides_the_future(slopes, T):
    b = -slopes[:, None, None] * distance(T)
    return b.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)


@wrong("alibi_bias", "squared distance", r"squar")
def squared_distance(slopes, T):
    return -slopes[:, None, None] * distance(T) ** 2


@wrong("alibi_bias", "the first head's slope for all", r"each head|first|own slope|every head|same slope|slope of")
def first_slope_for_all(slopes, T):
    return (-slopes[0] * distance(T)).expand(len(slopes), T, T)


@wrong("alibi_bias", "distance counted from 1", r"itself|own|diagonal|from 1|one too|too large")
def distance_from_one(slopes, T):
    return -slopes[:, None, None] * (distance(T) + 1)


@wrong("alibi_bias", "heads on the last axis", r"shape|ax[ei]s|heads come last")
def heads_last(slopes, T):
    return -distance(T)[..., None] * slopes


@wrong(
    "alibi_bias",
    "the same row for every query, counted from the last",
    r"last|same|row|each query|every query|position|from the end",
)
def row_of_the_last_query(slopes, T):
    d = torch.arange(T - 1, -1, -1, dtype=torch.float64)
    return (-slopes[:, None, None] * d).expand(-1, T, T)


@wrong("alibi_bias", "ignores the given slopes", r"given|ignor|own slopes|slopes")
def slopes_of_its_own(slopes, T):
    h = torch.arange(1, len(slopes) + 1, dtype=torch.float64)
    return -(2 ** (-8 * h / len(slopes)))[:, None, None] * distance(T)


@wrong("alibi_bias", "divides by the slope", r"divi|multipl|times")
def divided_by_the_slope(slopes, T):
    return -distance(T) / slopes[:, None, None]


@wrong("alibi_bias", "sign of the caller's slopes changed", CHANGED)
def negates_the_slopes(slopes, T):
    slopes *= -1
    return slopes.view(-1, 1, 1) * distance(T)


@wrong("alibi_bias", "future at zero: counts backwards only", r"both|future|ahead|after|direction|forward")
def past_only(slopes, T):
    return -slopes[:, None, None] * distance(T).tril()


@wrong("alibi_bias", "plus sign and squared", r"(?is)(?=.*(sign|plus|negativ|minus|positiv))(?=.*squar)")
def plus_and_squared(slopes, T):
    return slopes[:, None, None] * distance(T) ** 2
