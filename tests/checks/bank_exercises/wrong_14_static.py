"""Wrong solutions of the second exercise of notebook 14: a static scale, calibrated and used."""

import numpy as np
import torch

from tests.checks.bank_exercises import CHANGED, wrong

static = "static_scale"

LAST = r"last|overwrit|only one batch|single batch"
MEANS = r"mean|average"
CLIP = r"clip|clamp|beyond|outside"
ABSOLUTE = r"abs|magnitude|sign|negative"
ROUND = r"trunc|cut off|towards? (0|zero)|not rounded|round|whole number"
NEW = r"\bx\b|new batch|dynamic"
PERCENT = r"percent"
LEVELS = r"qmax|2\*\*|bits - 1|levels|twice|range|255"


@wrong(static, "only the last batch counts", LAST)
def last_batch(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    for batch in batches:
        scale = torch.quantile(batch.abs().flatten(), percent / 100) / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "only the first batch counts", r"first|only one batch|single batch")
def first_batch(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches[0].abs(), percent / 100) / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "the average of the percentiles of the batches", MEANS)
def mean_of_batches(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    tops = [torch.quantile(batch.abs().flatten(), percent / 100) for batch in batches]
    scale = torch.stack(tops).mean() / qmax
    return scale, (x / scale).round().clamp(-qmax, qmax).to(torch.int8)


@wrong(static, "a running average of the percentiles", MEANS + r"|moving|decay")
def moving_average(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    top = None
    for batch in batches:
        new = torch.quantile(batch.abs().flatten(), percent / 100)
        top = new if top is None else 0.9 * top + 0.1 * new
    scale = top / qmax
    return scale, (x / scale).round().clamp(-qmax, qmax).to(torch.int8)


@wrong(static, "the largest of the percentiles of the batches", r"largest|max|each batch|per batch")
def max_of_batches(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.abs().flatten(1), percent / 100, dim=1).max() / qmax
    return scale, (x / scale).round().clamp(-qmax, qmax)


@wrong(static, "the maximum, whatever percent says", PERCENT + r"|maximum")
def max_always(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = batches.abs().max() / qmax
    return scale, (x / scale).round().clamp(-qmax, qmax)


@wrong(static, "the percentile of the numbers with their signs", ABSOLUTE)
def without_abs(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.flatten(), percent / 100) / qmax
    return scale, (x / scale).round().clamp(-qmax, qmax)


@wrong(static, "the absolute value comes after the percentile", ABSOLUTE)
def abs_late(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.flatten(), percent / 100).abs() / qmax
    return scale, (x / scale).round().clamp(-qmax, qmax)


@wrong(static, "nothing is clipped", CLIP)
def no_clip(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.abs().flatten(), percent / 100) / qmax
    return scale, torch.round(x / scale)


@wrong(static, "nothing is clipped, and int8 wraps round", CLIP + r"|wrap|overflow")
def wraps(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.abs().flatten(), percent / 100) / qmax
    return scale, torch.round(x / scale).to(torch.int8)


@wrong(static, "-qmax - 1 is used", r"-qmax - 1|-128|lowest|one (code )?(too|more|further)|asymmetric")
def to_minus_128(batches, x, bits, percent):
    top = torch.quantile(batches.abs().flatten(), percent / 100)
    scale = top / (2 ** (bits - 1) - 1)
    codes = torch.round(x / scale).clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).to(torch.int8)
    return scale, codes


@wrong(static, "only the upper end is clipped", CLIP + r"|lower|negative")
def one_side(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.abs().flatten(), percent / 100) / qmax
    return scale, torch.round(x / scale).clamp(max=qmax)


@wrong(static, "the scale is taken from x: dynamic, not static", NEW)
def dynamic(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(x.abs().flatten(), percent / 100) / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "x takes part in the calibration", NEW)
def x_too(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    seen = torch.cat([batches, x[None]])
    scale = torch.quantile(seen.abs().flatten(), percent / 100) / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "the scale grows where x is larger", NEW)
def grows_with_x(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    top = torch.quantile(batches.abs().flatten(), percent / 100)
    top = torch.maximum(top, x.abs().max())
    scale = top / qmax
    return scale, torch.round(x / scale)


@wrong(static, "percent is not divided by 100", r"raises.*(quantile|between 0 and 1|range)|percent")
def not_a_fraction(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.abs().flatten(), percent) / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "percent of the maximum, not a percentile", PERCENT + r"|share|of the max")
def share_of_max(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = batches.abs().max() * percent / 100 / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "the percentile from the wrong end", PERCENT + r"|wrong end|smallest|other end")
def wrong_end(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    values = batches.abs().flatten().sort(descending=True).values
    scale = values[round((len(values) - 1) * percent / 100)] / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "a percentile for each feature, and their largest", r"feature|axis|each|dim")
def per_feature(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    top = torch.quantile(batches.abs().flatten(0, 1), percent / 100, dim=0).max()
    scale = top / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "a scale for each feature", r"shape|feature")
def scale_per_feature(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.abs().flatten(0, 1), percent / 100, dim=0) / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "the cast truncates", ROUND)
def casts(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.abs().flatten(), percent / 100) / qmax
    return scale, (x / scale).clamp(-qmax, qmax).to(torch.int8)


@wrong(static, "not rounded", ROUND)
def not_rounded(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.abs().flatten(), percent / 100) / qmax
    return scale, (x / scale).clamp(-qmax, qmax)


@wrong(static, "the codes of all values up to 255", LEVELS)
def two_to_the_bits(batches, x, bits, percent):
    qmax = 2**bits - 1
    scale = torch.quantile(batches.abs().flatten(), percent / 100) / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "the range is divided by 128", LEVELS + r"|128")
def by_128(batches, x, bits, percent):
    top = 2 ** (bits - 1)
    scale = torch.quantile(batches.abs().flatten(), percent / 100) / top
    return scale, torch.round(x / scale).clamp(-top, top - 1)


@wrong(static, "the range itself is returned for the scale", r"range|qmax|not divided|divi")
def returns_the_range(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    top = torch.quantile(batches.abs().flatten(), percent / 100)
    return top, torch.round(x / top * qmax).clamp(-qmax, qmax)


@wrong(static, "quantized and back is returned, not the codes", r"back|dequant|times the scale|not (the )?codes|codes")
def dequantized(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.abs().flatten(), percent / 100) / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax) * scale


@wrong(static, "the scale is a plain number", r"plain|float|not a tensor|expected")
def plain_number(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = np.percentile(np.abs(batches.numpy()), percent) / qmax
    return float(scale), torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "the batches are overwritten by their absolute values", CHANGED + r"|batches")
def in_place(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.abs_().flatten(), percent / 100) / qmax
    return scale, torch.round(x / scale).clamp(-qmax, qmax)


@wrong(static, "a zero point: from the smallest to the largest number", r"asymmetric|zero point|smallest|minimum")
def asymmetric(batches, x, bits, percent):
    low = torch.quantile(batches.flatten(), 1 - percent / 100)
    high = torch.quantile(batches.flatten(), percent / 100)
    scale = (high - low) / (2**bits - 1)
    zero = torch.round(-low / scale)
    return scale, (torch.round(x / scale) + zero).clamp(0, 2**bits - 1)
