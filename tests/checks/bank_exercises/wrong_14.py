"""Wrong solutions of the first exercise of notebook 14: a weight matrix quantized per channel."""

import torch

from tests.checks.bank_exercises import CHANGED, wrong

channel = "quantize_per_channel"

COLUMNS = r"column|input|wrong axis|axis|not the row|each row"
TENSOR = r"(one|single) scale|whole (matrix|tensor)|per tensor|all rows"
ROUND = r"trunc|cut off|towards? (0|zero)|not rounded|round"
ABSOLUTE = r"abs|magnitude|sign|negative"
ZEROS = r"zeros?\b"
LEVELS = r"qmax|2\*\*|bits - 1|2 \*\* |levels|twice|half|range|grid"


@wrong(channel, "one scale for the whole matrix", TENSOR)
def per_tensor(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().max() / qmax
    codes = torch.round(W / scale).clamp(-qmax, qmax).to(torch.int8)
    return codes, scale.expand(W.shape[0], 1), codes * scale


@wrong(channel, "one scale for the whole matrix, as a single number", TENSOR + r"|shape")
def per_tensor_single(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().max() / qmax
    codes = torch.round(W / scale).to(torch.int8)
    return codes, scale, codes * scale


@wrong(channel, "a scale for each column", COLUMNS + r"|shape")
def per_column(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=0, keepdim=True) / qmax
    scale[scale == 0] = 1
    codes = torch.round(W / scale)
    return codes, scale, codes * scale


@wrong(channel, "the scale has shape (D,), and meets the columns", r"shape|broadcast|columns")
def no_keepdim(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1) / qmax
    codes = torch.round(W / scale)
    return codes, scale, codes * scale


@wrong(channel, "right, but the scale is returned as (D,)", r"shape")
def scale_flat(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    codes = torch.round(W / scale)
    return codes, scale[:, 0], codes * scale


@wrong(channel, "the cast to int8 truncates", ROUND)
def casts(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    scale = torch.where(scale == 0, 1.0, scale)
    codes = (W / scale).to(torch.int8)
    return codes, scale, codes * scale


@wrong(channel, "floor instead of rounding", ROUND + r"|floor|down")
def floors(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    scale = torch.where(scale == 0, 1.0, scale)
    codes = W // scale
    return codes, scale, codes * scale


@wrong(channel, "not rounded at all", ROUND + r"|whole number")
def not_rounded(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    scale = torch.where(scale == 0, 1.0, scale)
    codes = (W / scale).clamp(-qmax, qmax)
    return codes, scale, codes * scale


@wrong(channel, "max without abs", ABSOLUTE)
def max_without_abs(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.max(dim=1, keepdim=True).values / qmax
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    codes = torch.round(W / scale).clamp(-qmax, qmax)
    return codes, scale, codes * scale


@wrong(channel, "max without abs, and no clamp", ABSOLUTE)
def max_without_abs_unclamped(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.amax(1, keepdim=True) / qmax
    scale[scale == 0] = 1.0
    codes = torch.round(W / scale)
    return codes, scale, codes * scale


@wrong(channel, "abs after max", ABSOLUTE)
def abs_after_max(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.max(dim=1, keepdim=True)[0].abs() / qmax
    scale = scale.masked_fill(scale == 0, 1)
    codes = (W / scale).round().clamp(-qmax, qmax).to(torch.int8)
    return codes, scale, codes * scale


@wrong(channel, "a row of zeros is divided by zero", ZEROS)
def zero_row(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    codes = torch.round(W / scale).clamp(-qmax, qmax)
    return codes, scale, codes * scale


@wrong(channel, "a row of zeros: NaN cast to int8, scale 0", ZEROS)
def zero_row_int8(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    codes = torch.round(W / scale).to(torch.int8)
    return codes, scale, codes * scale


@wrong(channel, "a row of zeros gets a tiny scale, not 1", ZEROS)
def tiny_scale(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = (W.abs().amax(dim=1, keepdim=True) / qmax).clamp(min=1e-8)
    codes = torch.round(W / scale).clamp(-qmax, qmax).to(torch.int8)
    return codes, scale, codes * scale


@wrong(channel, "a small number is added to every scale", ZEROS + r"|small|added|1e")
def epsilon(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax + 1e-5
    codes = torch.round(W / scale).clamp(-qmax, qmax)
    return codes, scale, codes * scale


@wrong(channel, "128 levels on each side: the largest weight is clipped", LEVELS + r"|128|one too many|clip")
def divides_by_128(W, bits):
    n = 2 ** (bits - 1)
    scale = W.abs().amax(dim=1, keepdim=True) / n
    scale = torch.where(scale == 0, 1.0, scale)
    codes = torch.round(W / scale).clamp(-n, n - 1)
    return codes, scale, codes * scale


@wrong(channel, "128 does not fit into int8 and becomes -128", LEVELS + r"|128|wrap|overflow|one too many")
def wraps(W, bits):
    n = 2 ** (bits - 1)
    scale = W.abs().amax(dim=1, keepdim=True) / n
    scale = torch.where(scale == 0, 1.0, scale)
    codes = torch.round(W / scale).to(torch.int8)
    return codes, scale, codes * scale


@wrong(channel, "the sign bit is forgotten: codes up to 255", LEVELS + r"|255|sign")
def all_bits_on_one_side(W, bits):
    qmax = 2**bits - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    scale = torch.where(scale == 0, 1.0, scale)
    codes = torch.round(W / scale)
    return codes, scale, codes * scale


@wrong(
    channel,
    "from the smallest to the largest weight, with a zero point",
    r"asymmetric|zero point|smallest|minimum",
)
def asymmetric(W, bits):
    low, high = W.amin(1, keepdim=True), W.amax(1, keepdim=True)
    scale = (high - low) / (2**bits - 1)
    scale = torch.where(scale == 0, 1.0, scale)
    zero_point = torch.round(-low / scale)
    codes = torch.round(W / scale + zero_point).clamp(0, 2**bits - 1)
    return codes, scale, (codes - zero_point) * scale


@wrong(channel, "always 8 bits", r"bits|127|8")
def always_eight(W, bits):
    scale = W.abs().amax(dim=1, keepdim=True) / 127
    scale = torch.where(scale == 0, 1.0, scale)
    codes = torch.round(W / scale).clamp(-127, 127).to(torch.int8)
    return codes, scale, codes * scale


@wrong(channel, "the way back divides by the scale", r"divid|W_hat|way back|multipl")
def back_divides(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    scale = torch.where(scale == 0, 1.0, scale)
    codes = torch.round(W / scale)
    return codes, scale, codes / scale


@wrong(channel, "the inverse of the scale is returned", r"inverse|reciprocal|upside|qmax /|1 /|multipl|divid")
def inverse_scale(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = qmax / W.abs().amax(dim=1, keepdim=True)
    scale = torch.where(torch.isinf(scale), 1.0, scale)
    codes = torch.round(W * scale)
    return codes, scale, codes / scale


@wrong(channel, "only the codes and the scale", r"tuple of 2|expected 3|W_hat")
def two_results(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    scale = torch.where(scale == 0, 1.0, scale)
    return torch.round(W / scale).to(torch.int8), scale


@wrong(channel, "W itself is overwritten", CHANGED)
def in_place(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    scale[scale == 0] = 1
    codes = W.div_(scale).round_().clamp_(-qmax, qmax)
    return codes, scale, codes * scale


@wrong(channel, "the mean of the weights instead of the largest", r"mean|average|largest|too small|clip")
def mean_for_max(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().mean(dim=1, keepdim=True) / qmax
    scale = torch.where(scale == 0, 1.0, scale)
    codes = torch.round(W / scale).clamp(-qmax, qmax)
    return codes, scale, codes * scale


@wrong(channel, "W_hat is float32", r"float32|type")
def float32_back(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    scale = torch.where(scale == 0, 1.0, scale)
    codes = torch.round(W / scale).to(torch.int8)
    return codes, scale, (codes * scale.float()).float()


@wrong(channel, "W itself is returned for W_hat", r"W itself|original|not quantized|W is returned")
def returns_w(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    scale = torch.where(scale == 0, 1.0, scale)
    codes = torch.round(W / scale)
    return codes, scale, W
