"""Wrong solutions of the exercises of notebook 05."""

import math

import torch

from tests.checks.bank_exercises import CHANGED, wrong

FREQ = r"frequen|exponent|rate|wavelength|pair|2i|speed|period|angle"


def table(length, width, base=10000.0, start=0, exponent=None, dtype=torch.float64, first=torch.sin, second=torch.cos):
    p = torch.arange(start, start + length, dtype=dtype)[:, None]
    i = torch.arange(0, width, 2, dtype=dtype)
    angle = p / base ** (i / width if exponent is None else exponent(i))
    out = torch.zeros(length, width, dtype=dtype)
    out[:, 0::2] = first(angle)
    out[:, 1::2] = second(angle)[:, : width // 2]
    return out


@wrong("sinusoidal", "every column its own frequency, pairs do not share one", FREQ)
def a_frequency_for_each_column(length, width):
    p = torch.arange(length, dtype=torch.float64)[:, None]
    angle = p / 10000 ** (torch.arange(width, dtype=torch.float64) / width)
    out = angle.sin()
    out[:, 1::2] = angle.cos()[:, 1::2]
    return out


@wrong("sinusoidal", "all sines first, then all cosines", r"half|halves|side by side|interleav|first|concat|block")
def sines_then_cosines(length, width):
    p = torch.arange(length, dtype=torch.float64)[:, None]
    angle = p / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :width]


@wrong(
    "sinusoidal",
    "cosine in even columns, sine in odd ones",
    r"swap|exchang|changed places|cos\w* (first|in even)|even|order",
)
def cosine_first(length, width):
    return table(length, width, first=torch.cos, second=torch.sin)


@wrong("sinusoidal", "positions begin at 1", r"position|row|start|begin|from 1|shift")
def from_one(length, width):
    return table(length, width, start=1)


@wrong("sinusoidal", "base 1000", r"\bbase\b")
def a_zero_short(length, width):
    return table(length, width, base=1000.0)


@wrong("sinusoidal", "fails for odd widths", r"odd")
def even_widths_only(length, width):
    p = torch.arange(length, dtype=torch.float64)[:, None]
    angle = p / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    out = torch.zeros(length, width, dtype=torch.float64)
    out[:, 0::2] = torch.sin(angle)
    out[:, 1::2] = torch.cos(angle)
    return out


@wrong("sinusoidal", "the last column of an odd width stays zero", r"odd|last column")
def last_column_empty(length, width):
    out = table(length, width)
    if width % 2:
        out[:, -1] = 0
    return out


@wrong("sinusoidal", "float32", r"float64|float32|dtype|precision|type")
def in_single_precision(length, width):
    return table(length, width, dtype=torch.float32)


@wrong("sinusoidal", "multiplies by the power, does not divide", r"multipl|invert|reciproc")
def multiplies_by_the_power(length, width):
    return table(length, width, exponent=lambda i: -i / width)


@wrong("sinusoidal", "the factor 2 in 2i is missing", FREQ)
def without_the_two(length, width):
    return table(length, width, exponent=lambda i: i / 2 / width)


@wrong("sinusoidal", "spread over E/2 - 1, so that the last is exactly 1/10000", FREQ)
def as_tensor2tensor(length, width):
    return table(length, width, exponent=lambda i: i / 2 / max((width + 1) // 2 - 1, 1))


@wrong("sinusoidal", "sines only", r"no cosine|cosines? (is|are) missing|only sines|every column is a sine")
def sines_everywhere(length, width):
    return table(length, width, second=torch.sin)


@wrong("sinusoidal", "a table of 16 rows, longer sequences do not fit", r"row|long|length|shape|short|position")
def table_of_sixteen(length, width):
    return table(16, width)[:length]


@wrong("sinusoidal", "log of 10000 in base 10", r"log")
def wrong_logarithm(length, width):
    p = torch.arange(length, dtype=torch.float64)[:, None]
    angle = p * torch.exp(-torch.arange(0, width, 2, dtype=torch.float64) / width * math.log10(10000))
    out = torch.zeros(length, width, dtype=torch.float64)
    out[:, 0::2] = angle.sin()
    out[:, 1::2] = angle.cos()[:, : width // 2]
    return out


@wrong(
    "sinusoidal", "cosines first, positions from 1", r"(?is)(?=.*(swap|exchang|cos))(?=.*(position|start|begin|from 1))"
)
def cosines_from_one(length, width):
    return table(length, width, start=1, first=torch.cos, second=torch.sin)


@wrong("equivariance_error", "the output is never reordered", r"output|reorder|shuffl|order")
def output_not_reordered(layer, x, order):
    return (layer(x) - layer(x[:, order])).abs().max()


@wrong("equivariance_error", "shuffles features, not tokens", r"feature|ax[ei]s|width|entries")
def shuffles_features(layer, x, order):
    o = order % x.shape[-1]
    return (layer(x)[..., o] - layer(x[..., o])).abs().max()


@wrong(
    "equivariance_error",
    "the output is put back by the inverse order",
    r"inverse|argsort|back|undo|same order|twice|other way",
)
def inverse_on_one_side(layer, x, order):
    return (layer(x)[:, order.argsort()] - layer(x[:, order])).abs().max()


@wrong("equivariance_error", "mean, not largest", r"mean|averag")
def mean_difference(layer, x, order):
    return (layer(x)[:, order] - layer(x[:, order])).abs().mean()


@wrong("equivariance_error", "no absolute value", r"abs|sign|negative")
def signed_difference(layer, x, order):
    return (layer(x)[:, order] - layer(x[:, order])).max()


@wrong("equivariance_error", "a number of Python, not a tensor", r"tensor|float|type|item")
def a_python_number(layer, x, order):
    return (layer(x)[:, order] - layer(x[:, order])).abs().max().item()


@wrong("equivariance_error", "one number for each token", r"shape|ax[ei]s|one number|token")
def one_for_each_token(layer, x, order):
    return (layer(x)[:, order] - layer(x[:, order])).abs().amax(dim=(0, 2))


@wrong("equivariance_error", "draws an order of its own", r"\border\b|permutation|random|given|each call|second call")
def draws_its_own_order(layer, x, order):
    o = torch.randperm(x.shape[1])
    return (layer(x)[:, o] - layer(x[:, o])).abs().max()


@wrong("equivariance_error", "squared differences", r"squar")
def squared(layer, x, order):
    return ((layer(x)[:, order] - layer(x[:, order])) ** 2).max()


@wrong("equivariance_error", "looks at the first sample only", r"sample|batch")
def first_sample_only(layer, x, order):
    return (layer(x)[0, order] - layer(x[:, order])[0]).abs().max()


@wrong("equivariance_error", "compares the layer with itself: always zero", r"zero|0\b|same|never|always|both|nothing")
def reordered_back(layer, x, order):
    y = layer(x)
    return (y[:, order] - y[:, order]).abs().max()


@wrong("equivariance_error", "shuffles the caller's tokens", CHANGED)
def shuffles_in_place(layer, x, order):
    y = layer(x)[:, order]
    x[:] = x[:, order]
    return (y - layer(x)).abs().max()


@wrong("equivariance_error", "sum of the differences", r"sum|largest|add")
def sum_of_differences(layer, x, order):
    return (layer(x)[:, order] - layer(x[:, order])).abs().sum()


@wrong("equivariance_error", "mean of signed differences", r"(?is)(?=.*(mean|average))(?=.*(abs|sign))")
def mean_of_signed(layer, x, order):
    return (layer(x)[:, order] - layer(x[:, order])).mean()
