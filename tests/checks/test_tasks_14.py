"""Right and wrong solutions of notebook 14: weights quantized per channel, and a static scale."""

import re

import numpy as np
import pytest
import torch

from mha_course.checks import check, engine
from mha_course.quantization.affine import dequantize, quantize
from mha_course.quantization.calibration import find_affine
from tests.checks.heads import unreached


def qmax(bits):
    return 2 ** (bits - 1) - 1


def clamp(codes, bits):
    return torch.clamp(codes, -qmax(bits), qmax(bits))


def no_clamp(codes, bits):
    return codes


def cast(codes, bits):
    return codes.to(torch.int8)


def lowest(codes, bits):
    return codes.clamp(-qmax(bits) - 1, qmax(bits))


def xor_clamp(codes, bits):
    most = 2 ^ (bits - 1) - 1
    return codes.clamp(-most, most)


def wide(codes, bits):
    return codes.clamp(-(2**bits) + 1, 2**bits - 1)


def rows(fn):
    """What takes each row to one number, (D, 1)."""
    return lambda W: torch.stack([fn(row) for row in W]).unsqueeze(1)


def largest(W):
    return rows(lambda row: row.abs().max())(W)


def channel(
    top=largest,
    divide=lambda top, bits: top / qmax(bits),
    empty=lambda scale: torch.where(scale == 0, 1.0, scale),
    code=lambda W, scale: torch.round(W / scale),
    clip=clamp,
    back=lambda codes, scale, W: codes * scale,
    order=lambda codes, scale, W_hat, bits: (codes, scale, W_hat),
):
    """A solution in steps, some of them changed."""

    def fn(W, bits):
        scale = empty(divide(top(W), bits))
        codes = clip(code(W, scale), bits)
        return order(codes, scale, back(codes, scale, W), bits)

    return fn


def with_zero_point(inside, signed):
    def fn(W, bits):
        out = []
        for row in W:
            low, high = row.min(), row.max()
            if inside:
                low, high = low.clamp(max=0), high.clamp(min=0)
            scale = (high - low) / (2**bits - 1)
            scale = scale if scale > 0 else torch.ones_like(scale)
            first = -(2 ** (bits - 1)) if signed else 0
            zero = torch.round(-low / scale) + first
            codes = (torch.round(row / scale) + zero).clamp(first, first + 2**bits - 1)
            out.append((codes, scale[None], (codes - zero) * scale))
        return tuple(torch.stack(parts) for parts in zip(*out, strict=True))

    return fn


def ways(fault, *clips, **changes):
    return [(channel(**changes, clip=clip), fault) for clip in clips]


ABS, LATE = "abs() is missing: the scale comes from", "abs() comes after the maximum"
MANY, FINE = "the largest weight gets the code 2**(bits - 1), one too many", "the grid is finer than bits allow"
CHANNEL = [
    (channel(top=lambda W: W.abs().max().repeat(len(W), 1)), "one scale for the whole matrix"),
    (channel(top=lambda W: W.abs().max()), "one scale for the whole matrix"),
    (channel(top=lambda W: W.abs().max().view(1, 1)), "one scale for the whole matrix"),
    (channel(top=lambda W: W.abs().max(0, keepdim=True).values), "the scale is taken along the wrong axis"),
    *ways("the axis of the scales is lost", clamp, no_clamp, top=lambda W: W.abs().max(1).values),
    *ways("every row gets the scale of the first", clamp, no_clamp, top=lambda W: W[0].abs().max().repeat(len(W), 1)),
    *ways(ABS, clamp, no_clamp, cast, lowest, top=rows(torch.max)),
    *ways(LATE, clamp, no_clamp, cast, lowest, top=rows(lambda row: row.max().abs())),
    *ways("the scale comes from the smallest weight", clamp, no_clamp, top=rows(lambda row: row.min().abs())),
    *ways("the scale comes from the mean", clamp, no_clamp, top=rows(lambda row: row.abs().mean())),
    *ways("the scale comes from the root", clamp, no_clamp, top=rows(lambda row: (row**2).mean() ** 0.5)),
    (channel(empty=lambda scale: scale), "a row of zeros is divided by 0"),
    (channel(empty=lambda scale: scale, clip=cast), "a row of zeros has the scale 0, or almost 0"),
    (channel(empty=lambda scale: scale.clamp(min=1e-12)), "a row of zeros has the scale 0, or almost 0"),
    *(
        (channel(empty=lambda scale, m=m: scale.clamp(min=m)), f"a row of zeros has the scale {m:g}, not 1")
        for m in (1e-5, 1e-4, 1e-3)
    ),
    *(
        (channel(empty=lambda scale, m=m: scale + m), f"a number, {m:g}, is added to every scale")
        for m in (1e-6, 1e-5, 1e-4, 1e-3)
    ),
    (
        channel(top=rows(lambda row: row.abs().max() if row.any() else torch.ones_like(row[0]))),
        "a row of zeros has the scale 1 / qmax",
    ),
    *ways(MANY, clamp, no_clamp, cast, lowest, divide=lambda top, bits: top / 2 ** (bits - 1)),
    *ways(FINE, clamp, no_clamp, cast, lowest, wide, divide=lambda top, bits: top / (2**bits - 1)),
    *ways(FINE, clamp, no_clamp, divide=lambda top, bits: top / 2**bits),
    *ways("half of 2**bits - 1", clamp, no_clamp, divide=lambda top, bits: 2 * top / (2**bits - 1)),
    (channel(clip=lambda codes, bits: codes.clamp(0, 2**bits - 1)), "codes of negative weights are clipped to 0"),
    *ways("bits is not used", clamp, no_clamp, cast, lowest, divide=lambda top, bits: top / 127),
    *((with_zero_point(inside, signed), "the grid is asymmetric") for inside in (0, 1) for signed in (0, 1)),
    (channel(code=lambda W, scale: W.div(scale, rounding_mode="trunc")), "the fraction is cut off"),
    (channel(code=lambda W, scale: torch.floor(W / scale)), "codes are rounded down"),
    (channel(code=lambda W, scale: torch.ceil(W / scale)), "codes are rounded up"),
    (channel(code=torch.div), "codes are not rounded"),
    (channel(code=lambda W, scale: torch.round(W) / scale), "the weights are rounded before the division"),
    (channel(code=lambda W, scale: torch.round(W * scale)), "the weights are multiplied by the scale"),
    (channel(back=lambda codes, scale, W: codes / scale), "the way back divides"),
    (channel(back=lambda codes, scale, W: W.clone()), "what is returned for W_hat is W itself"),
    (channel(back=lambda codes, scale, W: codes.clone()), "the codes are returned for W_hat"),
    (channel(order=lambda c, s, w, bits: (c, 1 / s, w)), "the inverse of the scale is returned"),
    (channel(order=lambda c, s, w, bits: (c, s * qmax(bits), w)), "the largest |weight| is returned for the scale"),
    (channel(order=lambda c, s, w, bits: (w, s, c)), "codes and W_hat have changed places"),
    (
        channel(empty=lambda scale: scale, divide=lambda top, bits: top / 2 ** (bits - 1)),
        "two faults: a row of zeros is divided by 0",
    ),
    (channel(top=lambda W: W.norm(p=1, dim=1, keepdim=True)), "the scale comes from the sum"),
    *ways(
        *("the scale comes from half the way", clamp, no_clamp),
        top=rows(lambda row: (row.max() - row.min()) / 2),
    ),
    *(
        way
        for n in (1, 2, 3)
        for way in ways(
            *("the scale comes from the standard deviation", clamp, no_clamp),
            top=rows(lambda row, n=n: n * (row - row.mean()).norm() / torch.tensor(len(row) - 1.0).double().sqrt()),
        )
    ),
    (channel(top=rows(lambda row: 2 * row.abs().max())), "the scale is twice as large"),
    *(
        (
            channel(top=rows(lambda row, p=p: torch.tensor(np.percentile(row.abs(), p)))),
            "the scale comes from a percentile",
        )
        for p in (99, 99.9, 95, 90)
    ),
    (channel(empty=lambda scale: scale if scale.all() else scale * 0 + 1), "one row of zeros sets the scale of all"),
    (channel(divide=lambda top, bits: top / 2 ** (bits - 1 - 1)), "the grid is coarser than bits allow"),
    (channel(divide=lambda top, bits: top / max(qmax(bits - 1), 1)), "the grid is coarser than bits allow"),
    (
        channel(divide=lambda top, bits: top / (2 ^ (bits - 1) - 1), clip=no_clamp),
        "the operator ^ is no power",
    ),
    (
        channel(divide=lambda top, bits: top / (2 ^ (bits - 1) - 1), clip=xor_clamp),
        "the operator ^ is no power",
    ),
    (channel(code=lambda W, scale: torch.round(W.abs() / scale)), "the sign of the weights is lost"),
    *(
        (
            channel(empty=lambda scale, to=to: 2 ** to(torch.where(scale == 0, 1.0, scale).log2())),
            "the scale is rounded to a power of two",
        )
        for to in (torch.ceil, torch.round)
    ),
    (
        channel(order=lambda c, s, w, bits: (c, torch.full_like(s, 1 / qmax(bits)), c / qmax(bits))),
        "scale and W_hat are those of weights brought to -1 .. 1",
    ),
    (channel(order=lambda c, s, w, bits: (c + qmax(bits), s, w)), "the codes are moved so that none is negative"),
    (channel(order=lambda c, s, w, bits: (c + 2 ** (bits - 1), s, w)), "the codes are moved so that none is negative"),
    (channel(order=lambda c, s, w, bits: (c + 128, s, w)), "the codes are moved so that none is negative"),
    (channel(divide=lambda top, bits: top / (2 ^ bits - 1), clip=no_clamp), "the operator ^ is no power"),
    (channel(divide=lambda top, bits: top * 0 + 1), "the scale is always 1"),
    # not named
    (
        channel(empty=lambda scale: torch.where(scale == 0, 1.0, scale).half().double()),
        "the numbers differ from the reference",
    ),
    (channel(order=lambda c, s, w, bits: (c, s.squeeze(1), w)), "scale has the wrong shape"),
    (channel(order=lambda c, s, w, bits: (c, s)), "it returns a tuple of 2, expected 3"),
    (channel(order=lambda c, s, w, bits: (c.to(torch.uint8), s, w)), "codes has type uint8"),
    (channel(order=lambda c, s, w, bits: (c, s.float(), w)), "scale has type float32"),
    (channel(order=lambda c, s, w, bits: (c, s.int(), w)), "scale has type int32"),
    (channel(order=lambda c, s, w, bits: (c, s, w * 3)), "the numbers differ from the reference"),
]


def static(
    values=lambda batches, x: batches.abs(),
    top=lambda values, percent: np.percentile(values, percent),
    later=lambda top, x: top,
    divide=lambda top, bits: top / qmax(bits),
    code=lambda x, scale: torch.round(x / scale),
    clip=clamp,
    order=lambda scale, codes, bits: (scale, codes),
):
    """A solution in steps, some of them changed."""

    def fn(batches, x, bits, percent):
        found = torch.as_tensor(later(top(values(batches, x), percent), x), dtype=x.dtype)
        scale = divide(found, bits)
        return order(scale, clip(code(x, scale), bits), bits)

    return fn


def per_batch(join):
    return static(top=lambda values, percent: join([np.percentile(batch, percent) for batch in values]))


def moving(decay):
    def join(tops):
        average = tops[0]
        for top in tops[1:]:
            average = average * decay + top * (1 - decay)
        return average

    return per_batch(join)


def rank(shift):
    def top(values, percent):
        ordered = sorted(values.flatten().tolist())
        index = int(np.rint(percent / 100 * (len(ordered) - 1))) + shift
        return torch.tensor(ordered[max(min(index, len(ordered) - 1), 0)], dtype=torch.float64)

    return static(top=top)


def spread(signed):
    def fn(batches, x, bits, percent):
        low, high = np.percentile(batches, 100 - percent), np.percentile(batches, percent)
        scale, first = torch.tensor((high - low) / (2**bits - 1)), -(2 ** (bits - 1)) if signed else 0
        zero = torch.round(-low / scale) + first
        return scale, (torch.round(x / scale) + zero).clamp(first, first + 2**bits - 1)

    return fn


def both_ends(at):
    return lambda values, percent: np.abs(np.percentile(values, at(percent))).max()


def coded(code):
    """The right scale, and codes from batches, x, the scale and qmax."""

    def fn(batches, x, bits, percent):
        scale = batches.abs().flatten().quantile(percent / 100) / qmax(bits)
        return scale, code(batches, x, scale, qmax(bits))

    return fn


def several(fault, *clips, **changes):
    return [(static(**changes, clip=clip), fault) for clip in clips]


DYNAMIC, GROWS = "the scale is taken from the new batch x", "the range grows where the new batch x"
ONE_MORE = "the range gets the code 2**(bits - 1), one too many"
STATIC = [
    (static(values=lambda batches, x: batches[-1].abs()), "only the last batch counts"),
    (static(values=lambda batches, x: batches[0].abs()), "only the first batch counts"),
    (per_batch(np.mean), "the percentiles of the batches are averaged"),
    (per_batch(np.max), "the largest of the percentiles of the batches"),
    (per_batch(np.min), "the smallest of the percentiles of the batches"),
    (per_batch(lambda tops: sorted(tops)[(len(tops) - 1) // 2]), "the median of the percentiles of the batches"),
    (
        static(top=lambda values, percent: np.mean([batch.max() for batch in values])),
        "the largest numbers of the batches are averaged",
    ),
    *((moving(decay), "a moving average of the batches") for decay in (0.9, 0.1, 0.99, 0.01, 0.5)),
    (static(top=lambda values, percent: values.max()), "percent is not used: the range is the maximum"),
    *(
        (
            static(top=lambda values, percent, p=p: np.percentile(values, p)),
            f"percent is not used: the range is always the percentile {p:g}",
        )
        for p in (99, 99.9, 99.99, 95, 90, 50)
    ),
    (static(top=lambda values, percent: np.percentile(values, percent / 100)), "percent is divided by 100 twice"),
    (static(top=lambda values, percent: np.percentile(values, 100 - percent)), "the percentile is counted from the w"),
    (static(top=lambda values, percent: np.percentile(values, 50 + percent / 2)), "half of what percent leaves out"),
    (rank(1), "the percentile is one number off"),
    (rank(-1), "the percentile is one number off"),
    (static(top=lambda values, percent: torch.quantile(values, percent)), "percent is not divided by 100"),
    (static(top=lambda values, percent: values.max() / 100 * percent), "the range is a share of the maximum"),
    (static(values=lambda batches, x: batches), "abs() is missing: the percentile"),
    (
        static(top=lambda values, percent: np.percentile(values, percent, axis=(0, 1)).max()),
        "the percentile is taken for each feature",
    ),
    (
        static(top=lambda values, percent: np.percentile(values, percent, axis=(0, 1)).mean()),
        "the percentile is taken for each feature",
    ),
    (static(top=lambda values, percent: np.percentile(values, percent, axis=(0, 1))), "each feature has a scale"),
    (
        static(top=lambda values, percent: np.percentile(values, percent, axis=-1).max()),
        "the percentile is taken for each token",
    ),
    *several(DYNAMIC, clamp, no_clamp, values=lambda batches, x: x.abs()),
    (
        static(values=lambda batches, x: x.abs(), top=lambda values, percent: values.max()),
        f"{DYNAMIC}: that is dynamic, not static, and percent is not used",
    ),
    (static(values=lambda batches, x: torch.stack([*batches, x]).abs()), "x takes part in the calibration"),
    *several(GROWS, clamp, no_clamp, later=lambda top, x: max(top, x.abs().max())),
    (static(clip=no_clamp), "numbers of x beyond the range are not clipped: their codes"),
    (static(clip=cast), "numbers of x beyond the range are not clipped: the cast to int8"),
    (static(clip=lowest), "the lower end is -qmax - 1"),
    (static(clip=lambda codes, bits: codes.clamp(max=qmax(bits))), "codes are clipped at one end alone"),
    (static(clip=lambda codes, bits: codes.clamp(min=-qmax(bits))), "codes are clipped at one end alone"),
    (static(clip=lambda codes, bits: codes.clamp(0, qmax(bits))), "codes of negative numbers are clipped to 0"),
    (static(clip=lambda codes, bits: codes.clamp(0, 2**bits - 1)), "codes of negative numbers are clipped to 0"),
    (static(clip=lambda codes, bits: codes.clamp(-127, 127)), "codes are clipped to those of 8 bits"),
    *several(ONE_MORE, clamp, no_clamp, cast, lowest, divide=lambda top, bits: top / 2 ** (bits - 1)),
    *several(FINE, clamp, no_clamp, cast, lowest, wide, divide=lambda top, bits: top / (2**bits - 1)),
    *several(FINE, clamp, no_clamp, divide=lambda top, bits: top / 2**bits),
    *several("half of 2**bits - 1", clamp, no_clamp, divide=lambda top, bits: 2 * top / (2**bits - 1)),
    *several("bits is not used", clamp, lambda codes, bits: codes.clamp(-127, 127), divide=lambda top, bits: top / 127),
    *((spread(signed), "the grid is asymmetric") for signed in (False, True)),
    (static(code=lambda x, scale: torch.fix(x / scale)), "the fraction is cut off"),
    (static(code=lambda x, scale: torch.floor(x / scale)), "codes are rounded down"),
    (static(code=lambda x, scale: torch.ceil(x / scale)), "codes are rounded up"),
    (static(code=torch.div), "codes are not rounded"),
    (static(code=lambda x, scale: torch.round(x) / scale), "x is rounded before the division"),
    (static(code=lambda x, scale: torch.round(x * scale)), "x is multiplied by the scale"),
    (
        static(divide=lambda top, bits: top, order=lambda s, c, bits: (s / qmax(bits), c)),
        "x is divided by the range, not by the scale",
    ),
    (static(order=lambda s, c, bits: (s * qmax(bits), c)), "the range is returned for the scale"),
    (static(order=lambda s, c, bits: (1 / s, c)), "the inverse of the scale is returned"),
    (static(order=lambda s, c, bits: (s, c * s)), "the codes are returned times the scale"),
    (static(order=lambda s, c, bits: (c, s)), "scale and codes have changed places"),
    (static(values=lambda batches, x: batches[-1].abs(), clip=lowest), "two faults: only the last batch counts"),
    (static(values=lambda batches, x: batches, top=both_ends(lambda p: (100 - p, p))), "a percentile is taken at each"),
    (
        static(values=lambda batches, x: batches, top=both_ends(lambda p: (50 - p / 2, 50 + p / 2))),
        "a percentile is taken at each end",
    ),
    (static(values=lambda batches, x: batches * batches), "squares are taken for |number|"),
    (static(values=lambda batches, x: batches[batches > 0]), "the percentile is that of positive numbers alone"),
    (
        static(top=lambda values, percent: np.percentile(values, percent, axis=-1).mean()),
        "the percentile is taken for each token, and then the mean",
    ),
    *(
        (static(values=lambda batches, x, axes=axes: batches.abs().amax(axes)), "the largest numbers along an axis")
        for axes in (-1, (1, 2), 0)
    ),
    (static(values=lambda batches, x: batches.abs().mean(dim=0)), "the batches are averaged first"),
    *(
        (static(values=lambda batches, x, rest=rest: torch.stack(rest([*batches])).abs()), "one batch is left out")
        for rest in (
            lambda all_of: all_of[1:],
            lambda all_of: all_of[:-1],
            lambda all_of: all_of[1:] or all_of,
            lambda all_of: all_of[:-1] or all_of,
        )
    ),
    (static(values=lambda batches, x: batches.mean(dim=0).abs()), "the batches are averaged first"),
    *(
        (
            static(values=lambda batches, x: batches, top=lambda values, percent, n=n: values.var() ** 0.5 * n),
            "the range comes from the standard deviation",
        )
        for n in (1, 2, 3)
    ),
    (static(top=lambda values, percent: values.sum() / values.numel()), "the range is the mean of |number|"),
    (
        static(clip=lambda codes, bits: torch.remainder(codes + 2 ** (bits - 1), 2**bits) - 2 ** (bits - 1)),
        "numbers of x beyond the range are not clipped: the lowest bits",
    ),
    (
        static(clip=lambda codes, bits: codes * (codes.abs() <= qmax(bits))),
        "numbers of x beyond the range get the code 0",
    ),
    (
        coded(lambda batches, x, scale, most: torch.round(x.clip(-most, most) / scale)),
        "x is clipped to -qmax .. qmax before the division",
    ),
    (
        coded(lambda batches, x, scale, most: torch.round(most * torch.clip(x / scale, -1, 1))),
        "x / scale is clipped to -1 .. 1",
    ),
    *(
        (
            coded(lambda batches, x, scale, most, i=i: torch.round(batches[i] / scale).clip(-most, most)),
            "the codes are those of a batch seen before, not of x",
        )
        for i in (0, -1)
    ),
    (
        coded(lambda batches, x, scale, most: (x.clip(-scale * most, scale * most) / scale).int()),
        "the fraction is cut off",
    ),
    *several("the operator ^ is no power", no_clamp, xor_clamp, divide=lambda top, bits: top / (2 ^ (bits - 1) - 1)),
    # not named
    (static(order=lambda s, c, bits: (s.item(), c)), "scale is a float, expected a tensor"),
    (static(order=lambda s, c, bits: (s[None], c)), "scale has the wrong shape"),
    (static(order=lambda s, c, bits: (s, c, c)), "it returns a tuple of 3, expected 2"),
    (static(order=lambda s, c, bits: (s * 1.3, c)), "the numbers differ from the reference"),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("name", "right"), [("quantize_per_channel", channel), ("static_scale", static)], ids=["channel", "static"]
)
def test_right_with_codes_of_any_integer_type(name, right, dtype):
    verdict = check(name, right(clip=lambda codes, bits: clamp(codes, bits).to(dtype)))
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    "halves",
    [torch.round, lambda x: torch.floor(x + 0.5), lambda x: x.sign() * torch.floor(x.abs() + 0.5)],
    ids=["to even", "up", "away from zero"],
)
def test_halves_may_go_either_way(halves):
    assert check("quantize_per_channel", channel(code=lambda W, scale: halves(W / scale)))
    assert check("static_scale", static(code=lambda x, scale: halves(x / scale)))


@pytest.mark.parametrize("kind", ["linear", "lower", "higher", "nearest", "midpoint", "inverted_cdf", "weibull"])
def test_percentiles_of_the_usual_kinds_agree_where_100_percent_is_the_maximum(kind):
    found = check("static_scale", static(top=lambda values, percent: np.percentile(values, percent, method=kind)))
    assert found.ok == (kind != "weibull")


@pytest.mark.parametrize(
    ("name", "fn", "fault"),
    [*(("quantize_per_channel", *one) for one in CHANNEL), *(("static_scale", *one) for one in STATIC)],
)
def test_wrong(name, fn, fault):
    verdict = check(name, fn)
    assert not verdict.ok
    assert verdict.fault.startswith(fault), verdict
    assert len(verdict.hints) >= 2


@pytest.mark.parametrize(("name", "wrong"), [("quantize_per_channel", CHANNEL), ("static_scale", STATIC)])
def test_every_variation_is_what_some_solution_does(name, wrong):
    by_error = "not divided by 100|axis of the scales is lost"  # no numbers to compare: test_wrong has these two
    assert [f for f in unreached(name, [fn for fn, _ in wrong]) if not re.search(by_error, f)] == []


def test_the_first_reference_does_what_the_package_does():
    task = engine._TASKS["quantize_per_channel"]
    for case in task.cases():
        W, bits = case.inputs
        affine = find_affine(W, bits, per="channel")
        codes, scale, W_hat = task.reference(W, bits)
        torch.testing.assert_close(scale, affine.scale)
        torch.testing.assert_close(codes, quantize(W, affine).double(), rtol=0, atol=0)
        torch.testing.assert_close(W_hat, dequantize(quantize(W, affine), affine))


def test_the_cases_hold_what_tells_faults_apart():
    for case in engine._TASKS["quantize_per_channel"].cases():
        W, bits = case.inputs
        empty = ~W.any(1)
        assert empty.any() == ("zeros" in case.note)
        steps = W[~empty] / (W[~empty].abs().amax(1, keepdim=True) / qmax(bits))
        torch.testing.assert_close(
            steps.abs().amax(1), torch.full((len(steps),), float(qmax(bits))).double(), rtol=0, atol=0
        )
        assert ((steps.abs() % 1 - 0.5).abs() > 1e-6).all(), "no halves"
    for case in engine._TASKS["static_scale"].cases():
        batches, x, bits, percent = case.inputs
        at = (batches.numel() - 1) * percent / 100
        assert abs(at - round(at)) < 1e-9
        steps = x / (np.percentile(batches.abs(), percent) / qmax(bits))
        assert ((steps.abs() % 1 - 0.5).abs() > 1e-6).all()
        beyond = steps.min() < -qmax(bits) - 0.5 and steps.max() > qmax(bits) + 0.5
        assert beyond != ("within" in case.note)
