"""Right and wrong solutions of notebook 15: FLOPs of each step, the time of a roofline, and how both are read."""

import itertools
import math
import operator
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from mha_course.checks import check, engine, pairs
from mha_course.checks.plain import Plain
from mha_course.multihead import MultiHeadAttention
from mha_course.profiling import Cost, Machine, attention_costs, counted
from tests.checks.heads import unreached

STEPS = ("q_proj", "k_proj", "v_proj", "scores", "weighted sum", "out_proj")


def flops(
    qkv=lambda B, S, E, H: 2 * B * S * E * E,
    scores=lambda B, S, E, H: 2 * B * S * S * E,
    mixed=lambda B, S, E, H: 2 * B * S * S * E,
    out=lambda B, S, E, H: 2 * B * S * E * E,
    times=1,
):
    """A solution, some of its lines changed."""

    def fn(*sizes):
        counts = (*[qkv(*sizes)] * 3, scores(*sizes), mixed(*sizes), out(*sizes))
        return {step: times * count for step, count in zip(STEPS, counts, strict=True)}

    return fn


def proj(fn):
    return {"qkv": fn, "out": fn}


def both(fn):
    return {"scores": fn, "mixed": fn}


def linear(B, S, E, H):
    return 2 * B * S * E


def one_sequence(B, S, E, H):
    return 2 * S * E * E


def one_sequence_of_pairs(B, S, E, H):
    return 2 * S * S * E


def narrow(B, S, E, H):
    return 2 * B * S * E * (E // H)


def of_one_head(B, S, E, H):
    return 2 * B * S * S * (E // H)


def of_wide_heads(B, S, E, H):
    return 2 * B * H * S * S * E


def no_sum(B, S, E, H):
    return 2 * B * H * S * S


def biased(B, S, E, H):
    return B * S * E * (2 * E + 1)


def of_matrices(B, S, E, H):
    return 2 * B * S * H * (E // H) ** 2


def past(more):
    return lambda B, S, E, H: B * S * (S + more) * E


def per_score(each):
    return lambda B, S, E, H: 2 * B * S * S * E + each * B * H * S * S


def per_pair(each):
    return lambda B, S, E, H: 2 * B * S * S * E + each * B * S * S


def less_scores(B, S, E, H):
    return B * H * S * S * (2 * E // H - 1)


def less_sum(B, S, E, H):
    return B * S * E * (2 * S - 1)


def parted(**changed):
    """A solution, some of its steps changed one by one."""
    return lambda *sizes: flops()(*sizes) | {step: fn(*sizes) for step, fn in changed.items()}


def shares(of):
    def fn(*sizes):
        counts = flops()(*sizes)
        return {step: of * count / sum(counts.values()) for step, count in counts.items()}

    return fn


LESS = "in each sum one addition less is counted than products"
FACTOR = "a multiply-add is counted as one FLOP, the factor 2 is missing"
TWICE = "the heads are counted twice: H heads of width E, not of width E / H"
ONE_HEAD = "one head alone is counted, of width E / H"
BATCH = "the batch is forgotten: one sequence is counted"
PAIRS = "each query meets one key alone: S is there once, not squared"
NARROW = "a projection is counted for one head alone, E x D in place of E x E"
PAST = "half of the pairs are counted, as if each query met past keys alone"
MORE = "scaling or softmax is counted with the"
IN_PRODUCTS = {
    ", in scores and weighted sum": ("scores", "mixed"),
    ", in the scores": ("scores",),
    ", in the weighted sum": ("mixed",),
}
FLOPS = [
    (flops(times=0.5), FACTOR),
    (flops(**proj(lambda B, S, E, H: B * S * E * E)), f"{FACTOR}, in the projections"),
    (flops(out=lambda B, S, E, H: B * S * E * E), f"{FACTOR}, in the output projection"),
    (flops(qkv=lambda B, S, E, H: B * S * E * E), f"{FACTOR}, in the projections of queries, keys and values"),
    *(
        (flops(**dict.fromkeys(steps, fn)), fault + where)
        for where, steps in IN_PRODUCTS.items()
        for fn, fault in (
            (lambda B, S, E, H: B * S * S * E, FACTOR),
            (of_wide_heads, TWICE),
            (of_one_head, ONE_HEAD),
            (one_sequence_of_pairs, BATCH),
            (linear, PAIRS),
            (of_matrices, "a product with a matrix (D, D) is counted, not one of S queries with S keys"),
            (no_sum, "the sum over D is not counted, only its result, one number for each pair"),
            *((past(more), f"{PAST}: no mask is asked for") for more in (1, -1)),
        )
    ),
    (flops(**proj(one_sequence), **both(one_sequence_of_pairs)), BATCH),
    (flops(**proj(one_sequence)), f"{BATCH}, in the projections"),
    (
        flops(**proj(lambda B, S, E, H: 2 * B * S * S * E), **both(lambda B, S, E, H: 2 * B * S * E * E)),
        "projections and products of tokens have changed places",
    ),
    (flops(**proj(lambda B, S, E, H: 2 * B * S * S * E)), "the projections are counted for all pairs of tokens"),
    (flops(**both(lambda B, S, E, H: 2 * B * S * E * E)), "scores and weighted sum are counted like projections"),
    (flops(**proj(narrow)), f"{NARROW}, in the projections"),
    (flops(out=narrow), f"{NARROW}, in the output projection"),
    (flops(qkv=narrow), f"{NARROW}, in the projections of queries"),
    (flops(**proj(lambda B, S, E, H: 2 * B * S * E * E * H)), "a projection is counted once for each head"),
    (flops(**proj(lambda B, S, E, H: 2 * B * S * (E // H) ** 2)), "a projection is taken as D x D"),
    (flops(**proj(linear)), "the projections grow linearly with E"),
    (flops(**both(lambda B, S, E, H: 2 * B * S * S * H * H)), "the width of a head is taken as H"),
    (
        flops(
            **proj(lambda B, S, E, H: B * S * E * (2 * E - 1)),
            scores=lambda B, S, E, H: B * H * S * S * (2 * E // H - 1),
            mixed=lambda B, S, E, H: B * S * E * (2 * S - 1),
        ),
        "in each sum one addition less is counted than products",
    ),
    (flops(**proj(biased)), "the addition of a bias is counted too, in the projections"),
    (flops(qkv=biased), "the addition of a bias is counted too, in the projections of queries"),
    *((flops(scores=per_score(each)), f"{MORE} scores") for each in range(1, 9)),
    *((flops(mixed=per_score(each)), f"{MORE} weighted sum") for each in range(1, 9)),
    (flops(qkv=lambda B, S, E, H: 6 * B * S * E * E), "each of q_proj, k_proj and v_proj holds the count of all"),
    (flops(**proj(lambda B, S, E, H: 8 * B * S * E * E)), "each projection holds the count of all four"),
    (flops(**both(lambda B, S, E, H: 4 * B * S * S * E)), "scores and weighted sum each hold the count of both"),
    (flops(qkv=lambda B, S, E, H: 2 * B * S * E * E / 3), "q_proj, k_proj and v_proj hold the count of one"),
    *((lambda *sizes, step=step: flops()(*sizes) | {step: 0}, f"{step} is not counted: 0") for step in STEPS),
    (flops(**both(lambda B, S, E, H: 2 * B * S**3 * E)), "the count grows with S cubed, not squared"),
    (flops(times=2), "the factor 2 is there twice"),
    (flops(times=3), "forward and backward are counted"),
    (flops(times=1e-9), "the counts are given in GFLOP"),
    (flops(times=1e-6), "the counts are given in MFLOP"),
    (flops(times=4), "each count is multiplied by 4"),
    (flops(times=8), "each count is multiplied by 8"),
    # rarer, or in some of the steps alone
    (flops(**both(lambda B, S, E, H: 2 * (B * S) ** 2 * E)), "the tokens of all sequences meet each other"),
    (parted(k_proj=narrow, v_proj=narrow), "the keys and values of one head alone are projected"),
    (flops(out=lambda B, S, E, H: 2 * B * S * E * E * H), "the whole matrix is counted once for each head"),
    (flops(qkv=lambda B, S, E, H: 2 * B * S * E * E * H), "the whole matrix is counted once for each head"),
    *(
        (parted(**{step: lambda B, S, E, H, by=by: by * B * S * E * E for step in steps}), f"the factor 2 is {fault}")
        for by, steps, fault in (
            (1, ("q_proj",), "missing in q_proj"),
            (1, ("k_proj", "v_proj"), "missing in k_proj and v_proj"),
            (4, ("out_proj",), "there twice in out_proj"),
            (4, ("k_proj", "v_proj"), "there twice in k_proj and v_proj"),
            (4, ("q_proj", "k_proj", "v_proj", "out_proj"), "there twice in q_proj and k_proj and v_proj and out_proj"),
        )
    ),
    (flops(scores=lambda B, S, E, H: 4 * B * S * S * E), "the factor 2 is there twice in scores"),
    (flops(mixed=lambda B, S, E, H: 4 * B * S * S * E), "the factor 2 is there twice in weighted sum"),
    (flops(out=one_sequence), "the batch is forgotten in the output projection"),
    (flops(qkv=one_sequence), "the batch is forgotten in the projections of q, k and v"),
    (flops(**proj(lambda B, S, E, H: 2 * B * S * E * (E + 1))), "the bias is counted as one more multiply-add"),
    (flops(**proj(lambda B, S, E, H: B * S * E * (2 * E - 1))), f"{LESS}, in the projections"),
    (flops(scores=less_scores, mixed=less_sum), f"{LESS}, in scores and weighted sum"),
    (flops(scores=less_scores), f"{LESS}, in the scores"),
    (flops(mixed=less_sum), f"{LESS}, in the weighted sum"),
    *((flops(scores=per_pair(each)), f"{MORE} scores, for one head alone") for each in range(1, 9)),
    *((flops(mixed=per_pair(each)), f"{MORE} weighted sum, for one head alone") for each in range(1, 9)),
    *(
        (flops(**both(lambda B, S, E, H, D=D: 2 * B * H * S * S * D(H, E))), "the width of a head is upside down")
        for D in (operator.truediv, operator.floordiv)
    ),
    (flops(scores=lambda B, S, E, H: 2 * B * H * S**3), "a product of two matrices (S, S) is counted for each head"),
    (flops(mixed=lambda B, S, E, H: 2 * B * H * S**3), "a product of two matrices (S, S) is counted for each head"),
    (flops(**proj(lambda B, S, E, H: 2 * E * E), **both(lambda B, S, E, H: 2 * S * E)), "one token alone is counted"),
    (flops(times=1e-3), "the counts are given in kFLOP"),
    (flops(times=1e-12), "every count is 0, or next to it"),
    (flops(times=0), "every count is 0, or next to it"),
    *((shares(of), "the share of each step is given") for of in (1, 100)),
    # two at once
    (flops(**proj(narrow), **both(of_one_head)), f"two faults: {ONE_HEAD}, in scores and weighted sum; and {NARROW}"),
    # not named
    (flops(times=7), "the numbers differ from the reference"),
    (flops(times=math.inf), "q_proj holds infinity"),
    (flops(times=math.nan), "q_proj holds NaN"),
    (lambda x: x, "it cannot be called as fn(B, S, E, H)"),
    (lambda B, S, E, H: None, "it returns None, perhaps the return is missing"),
    (lambda B, S, E, H: [B, S, E, H], "it returns a list, not a dict"),
    (lambda B, S, E, H: torch.zeros(6), "it returns a Tensor, not a dict"),
    (lambda B, S, E, H: {}, "the key 'q_proj' is missing in the dict"),
    (lambda *sizes: flops()(*sizes) | {"softmax": 0}, "the dict has a key too many, 'softmax'"),
    (lambda *sizes: flops()(*sizes) | {"scores": "many"}, "scores is 'many', not a number"),
    (lambda *sizes: flops()(*sizes) | {"scores": True}, "scores is True, not a number"),
    (lambda *sizes: flops()(*sizes) | {"scores": np.True_}, "scores is a bool, not a number"),
    (lambda *sizes: flops()(*sizes) | {"scores": torch.zeros(2)}, "scores is a Tensor, not a number"),
    (lambda *sizes: flops()(*sizes) | {"scores": 1j}, "scores is a complex, not a number"),
    (lambda *sizes: flops()(*sizes) | {"scores": None}, "scores is a NoneType, not a number"),
]


def seconds(
    of=lambda t_c, t_m, F, M, P, W: max(t_c, t_m),
    is_compute=lambda t_c, t_m, F, M, P, W: t_c > t_m,
    compute=lambda F, P: F / P,
    memory=lambda M, W: M / W,
):
    """A solution, some of its lines changed."""

    def fn(F, M, P, W):
        given = (compute(F, P), memory(M, W), F, M, P, W)
        return of(*given), "compute" if is_compute(*given) else "memory"

    return fn


def shorter(t_c, t_m, *_):
    return min(t_c, t_m)


def whole(x, y):
    return x // y


def first_zero(fn):
    """With an answer of its own to a step without FLOPs."""
    return lambda F, M, P, W: fn(F, M, P, W) if F else (M / W, "memory")


BOUND = "the bound is wrong:"
UP = "the times are upside down"
INVERTED = "the bound is wrong, as the"
UPSIDE_DOWN = {"compute": lambda F, P: P / F, "memory": lambda M, W: W / M}
SECONDS = [
    (seconds(of=lambda t_c, t_m, *_: t_c + t_m), "both times are added"),
    (seconds(of=shorter), "the shorter of the two times is returned, not the longer"),
    (
        seconds(of=shorter, is_compute=lambda t_c, t_m, *_: t_c < t_m),
        "the shorter of the two times is returned, with its own bound",
    ),
    (seconds(of=lambda t_c, t_m, *_: (t_c + t_m) / 2), "the mean of the two times"),
    (seconds(is_compute=lambda t_c, t_m, *_: t_c < t_m), "the bounds have changed places"),
    (seconds(is_compute=lambda *_: False), "the bound is always memory"),
    (seconds(is_compute=lambda *_: True), "the bound is always compute"),
    (seconds(is_compute=lambda t_c, t_m, F, M, P, W: F / M > W / P), f"{INVERTED} ridge is inverted"),
    (seconds(is_compute=lambda t_c, t_m, F, M, P, W: M / F > P / W), f"{INVERTED} intensity is inverted"),
    (
        seconds(is_compute=lambda t_c, t_m, F, M, P, W: not F or M / F > P / W),
        f"{INVERTED} intensity is inverted",
    ),
    (first_zero(seconds(is_compute=lambda t_c, t_m, F, M, P, W: M / F > P / W)), f"{INVERTED} intensity is inverted"),
    (seconds(is_compute=lambda t_c, t_m, F, M, P, W: F > M), "the bound is wrong: the FLOPs are compared with"),
    (
        seconds(is_compute=lambda t_c, t_m, F, M, P, W: F / M > P),
        "the bound is wrong: the intensity is compared with the",
    ),
    (
        seconds(is_compute=lambda t_c, t_m, F, M, P, W: F / M > W),
        "the bound is wrong: the intensity is compared with the",
    ),
    (seconds(of=lambda t_c, t_m, *_: (t_c**2 + t_m**2) ** 0.5), "the root of the sum of squares"),
    (first_zero(seconds(of=lambda t_c, t_m, F, M, P, W: F / min(P, W * M / F))), "the attainable rate is wrong"),
    (seconds(compute=lambda F, P: F * P, memory=lambda M, W: M * W), "the FLOPs and bytes are multiplied by the rates"),
    (seconds(of=lambda t_c, t_m, F, M, P, W: max(F, M) / P), "the FLOPs and bytes are both divided by the peak"),
    (seconds(of=lambda t_c, t_m, F, M, P, W: max(F, M) / W), "the FLOPs and bytes are both divided by the bandwidth"),
    *(
        (seconds(of=lambda t_c, t_m, *_, digits=digits: round(max(t_c, t_m), digits)), "the time is rounded")
        for digits in range(4)
    ),
    (lambda F, M, P, W: (min(P, W * F / M) / F if F else 0, "compute" if F / M > P / W else "memory"), UP),
    (lambda F, M, P, W: (max(P / F if F else 0, W / M), "compute" if F / M > P / W else "memory"), UP),
    *((seconds(memory=lambda M, W, by=by: by * M / W), f"bytes are multiplied by {by}") for by in (2, 4, 8)),
    (seconds(memory=lambda M, W: M / 8 / W), "bytes are divided by 8"),
    (seconds(compute=lambda F, P: 2 * F / P), "the FLOPs are multiplied by 2"),
    (seconds(compute=lambda F, P: F / P / 2), "the FLOPs are divided by 2"),
    (seconds(of=lambda t_c, t_m, *_: 1e3 * max(t_c, t_m)), "the time is in milliseconds"),
    (seconds(of=lambda t_c, t_m, *_: 1e6 * max(t_c, t_m)), "the time is in microseconds"),
    (seconds(of=lambda t_c, t_m, *_: max(t_c, t_m) / 1e9), "peak and bandwidth are taken as if in GFLOP/s"),
    (seconds(of=lambda t_c, t_m, *_: t_c), "the time is flops / peak in every case"),
    (seconds(of=lambda t_c, t_m, *_: t_m), "the time is bytes_moved / bandwidth in every case"),
    (seconds(of=lambda t_c, t_m, F, M, P, W: min(P, W * F / M)), "the attainable rate in FLOP/s is returned"),
    (seconds(of=lambda t_c, t_m, F, M, P, W: F / M), "the intensity in FLOP per byte is returned"),
    (seconds(**UPSIDE_DOWN), UP),
    (seconds(**UPSIDE_DOWN, of=shorter), UP),
    *(
        (
            lambda F, M, P, W, of=of, at_0=at_0: (
                seconds(**UPSIDE_DOWN, of=of)(F, M, P, W) if F else (at_0(W / M), "memory")
            ),
            UP,
        )
        for of, at_0 in ((lambda t_c, t_m, *_: max(t_c, t_m), abs), (shorter, lambda x: 0.0))
    ),
    (lambda F, M, P, W: seconds()(F, M, W, P), "peak and bandwidth have changed places"),
    (
        seconds(compute=whole, memory=whole),
        "the times are cut to whole seconds: // is a division that rounds down, and",
    ),
    (
        seconds(compute=whole, memory=whole, is_compute=lambda t_c, t_m, F, M, P, W: F / P > M / W),
        "the times are cut to whole seconds",
    ),
    (lambda F, M, P, W: seconds()(F, M, P, W) if F else (0.0, "memory"), "a step without FLOPs takes no time"),
    (seconds(of=lambda t_c, t_m, F, M, P, W: F / min(P, W * F / M)), "a step without FLOPs divides by 0"),
    (
        seconds(of=lambda t_c, t_m, F, M, P, W: F / min(P, W * F / M) if F else math.nan),
        "a step without FLOPs divides by 0",
    ),
    # rarer
    (seconds(is_compute=lambda t_c, t_m, F, M, P, W: F > P / W), f"{BOUND} the FLOPs are compared with the ridge"),
    (seconds(is_compute=lambda t_c, t_m, F, M, P, W: P > W), f"{BOUND} peak and bandwidth are compared with each"),
    (seconds(is_compute=lambda t_c, t_m, F, M, P, W: F / M > P * W), f"{BOUND} the ridge is taken as peak * bandwidth"),
    (
        seconds(is_compute=lambda t_c, t_m, F, M, P, W: F * M > P / W),
        f"{BOUND} the intensity is taken as flops * bytes",
    ),
    (seconds(is_compute=lambda t_c, t_m, F, M, P, W: not F or t_c > t_m), "the bound of a step without FLOPs is"),
    (
        seconds(of=lambda t_c, t_m, F, M, P, W: F / min(P, W)),
        "the attainable rate is the smaller of peak and bandwidth",
    ),
    (seconds(of=lambda t_c, t_m, *_: t_c * t_m), "the two times are multiplied"),
    (seconds(of=lambda t_c, t_m, *_: abs(t_c - t_m)), "the difference of the two times"),
    (seconds(of=lambda t_c, t_m, F, M, P, W: (F + M) / (P + W)), "the FLOPs and bytes are added, and so are peak and"),
    (seconds(of=lambda t_c, t_m, *_: 1e9 * max(t_c, t_m)), "the time is in nanoseconds"),
    (seconds(compute=lambda F, P: F / (P * 1e9)), "peak is taken as if in GFLOP/s"),
    (seconds(memory=lambda M, W: M / (W * 1e9)), "bandwidth is taken as if in GB/s"),
    (seconds(of=lambda t_c, t_m, *_: math.ceil(max(t_c, t_m))), "the time is rounded up"),
    *(
        (seconds(of=lambda t_c, t_m, *_, digits=digits: round(max(t_c, t_m), digits)), "the time is rounded: digits")
        for digits in (4, 5)
    ),
    *(
        (seconds(of=of), "the time is bytes_moved / bandwidth in every case, by way of the intensity")
        for of in (
            lambda t_c, t_m, F, M, P, W: F / (W * (F / M)),
            lambda t_c, t_m, F, M, P, W: F / (W * (F / M)) if F else math.nan,
        )
    ),
    (
        seconds(memory=lambda M, W: M / W, of=lambda t_c, t_m, F, M, P, W: F / max(P, W * F / M)),
        "the shorter of the two",
    ),
    (seconds(of=lambda t_c, t_m, *_: int(max(t_c, t_m))), "the times are cut to whole seconds"),
    # two at once
    (
        seconds(memory=lambda M, W: 8 * M / W, is_compute=lambda t_c, t_m, *_: t_c < t_m),
        "two faults: the bounds have changed places",
    ),
    # not named
    (seconds(of=lambda t_c, t_m, *_: 7 * max(t_c, t_m)), "the numbers differ from the reference"),
    (lambda F, M: (F, M), "it cannot be called as fn(flops, bytes_moved, peak, bandwidth)"),
    (lambda F, M, P, W: {"seconds": 1}, "it returns a dict, not a tuple"),
    (lambda F, M, P, W: "compute", "it returns 'compute', not a tuple"),
    (lambda F, M, P, W: (1.0,), "it returns a tuple of 1, expected 2"),
    (lambda F, M, P, W: [1.0, "memory", 2], "it returns a list of 3, expected 2"),
    (lambda F, M, P, W: (1.0, "ridge"), "bound is 'ridge', not 'memory' or 'compute'"),
    (lambda F, M, P, W: (1.0, 0), "bound is an int, not 'memory' or 'compute'"),
    (lambda F, M, P, W: (1.0, "memory-bound"), "bound is 'memory-bound', not 'memory' or 'compute'"),
    (lambda F, M, P, W: ("1.000 s", "memory"), "seconds is '1.000 s', not a number"),
]


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        ("attention_flops", flops()),
        ("attention_flops", lambda *sizes: {step.replace("_", " "): x for step, x in flops()(*sizes).items()}),
        ("attention_flops", lambda *sizes: {step: torch.tensor([x]) for step, x in flops()(*sizes).items()}),
        ("attention_flops", lambda *sizes: {step: np.float32(x) for step, x in flops()(*sizes).items()}),
        ("attention_flops", lambda *sizes: {step: Decimal(x) for step, x in flops()(*sizes).items()}),
        ("attention_flops", lambda *sizes: {step: Fraction(x) for step, x in flops()(*sizes).items()}),
        ("roofline_seconds", lambda *given: (np.float32(seconds()(*given)[0]), np.array(seconds()(*given)[1]))),
        ("roofline_seconds", lambda F, M, P, W: (Machine(P, W).seconds(Cost(F, M)), Machine(P, W).bound(Cost(F, M)))),
        ("roofline_seconds", seconds()),
        ("roofline_seconds", lambda *given: list(seconds()(*given))),
        ("roofline_seconds", lambda *given: (torch.tensor(seconds()(*given)[0]).double(), seconds()(*given)[1])),
    ],
)
def test_right(name, fn):
    verdict = check(name, fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    ("name", "fn", "fault"),
    [*(("attention_flops", *one) for one in FLOPS), *(("roofline_seconds", *one) for one in SECONDS)],
)
def test_wrong(name, fn, fault):
    verdict = check(name, fn)
    assert not verdict.ok
    assert verdict.fault.startswith(fault), verdict
    assert len(verdict.hints) >= 2


@pytest.mark.parametrize(("name", "wrong"), [("attention_flops", FLOPS), ("roofline_seconds", SECONDS)])
def test_every_variation_is_what_some_solution_does(name, wrong):
    assert unreached(name, [fn for fn, _ in wrong]) == []


@pytest.mark.parametrize(
    ("name", "fn", "evidence"),
    [
        (
            "attention_flops",
            flops(times=7),
            "q_proj is 102,900, expected 14,700, case 1 (B, S, E, H, D = 2, 3, 35, 5, 7)",
        ),
        (
            "roofline_seconds",
            seconds(of=lambda t_c, t_m, *_: t_c + t_m),
            "seconds is 92.36, expected 85.86, case 1 (flops, bytes_moved, peak, bandwidth = 601, 13, 7, 2)",
        ),
        (
            "roofline_seconds",
            seconds(is_compute=lambda *_: True),
            "bound is 'compute', expected 'memory', case 2 (flops, bytes_moved, peak, bandwidth = 11, 601, 5, 3)",
        ),
        (
            "roofline_seconds",
            lambda F, M, P, W: seconds()(F, M, P, W) if F else (0.0, "memory"),
            "seconds is 0, expected 4.333, case 8 (flops, bytes_moved, peak, bandwidth = 0, 13, 7, 3; "
            "a copy: no FLOPs)",
        ),
        (
            "attention_flops",
            lambda B, S, E, H: {},
            "expected a dict with q_proj, k_proj, v_proj, scores, weighted sum, out_proj, "
            "case 1 (B, S, E, H, D = 2, 3, 35, 5, 7)",
        ),
    ],
)
def test_evidence(name, fn, evidence):
    assert check(name, fn).evidence == evidence


def test_the_exercise_counts_what_the_package_and_torch_count():
    B, S, E, H = 2, 5, 12, 3
    costs = attention_costs(B, S, S, E, H)
    assert flops()(B, S, E, H) == {step: costs[step].flops for step in STEPS}
    x = torch.zeros(B, S, E)
    module = MultiHeadAttention(E, H, backend="explicit")
    assert sum(flops()(B, S, E, H).values()) == counted(lambda: module(x)).total


def test_the_exercise_predicts_what_the_package_predicts():
    for given in ((601, 13, 7, 2), (11, 601, 5, 3), (0, 13, 7, 3)):
        cost, machine = Cost(given[0], given[1]), Machine(given[2], given[3])
        assert seconds()(*given) == (machine.seconds(cost), machine.bound(cost))


def test_numbers_that_differ_look_different():
    plain = Plain("tuple", {"word": ("no", "yes")})
    assert plain.said("x", 1.8571, 13 / 7) == "x is 1.8571, expected 1.85714"
    assert plain.said("x", 2.5, 2.75) == "x is 2.5, expected 2.75"
    assert plain.said("x", 1234.0, 4.0) == "x is 1,234, expected 4"
    assert plain.said("x", 1.0, 1.0) == "x is 1, expected 1"
    assert plain.said("word", 0, 1) == "word is 'no', expected 'yes'"


def test_a_dict_is_read_by_its_keys_and_a_tuple_by_its_places():
    results, wrong = Plain("dict").read({"b_c": 2, "a": 1}, ("a", "b c"))
    assert wrong is None
    assert [x.item() for x in results] == [1, 2]
    assert all(x.dtype == torch.float64 and not x.ndim for x in results)
    results, wrong = Plain("tuple", {"word": ("no", "yes")}).read((0.5, " Yes"), ("x", "word"))
    assert wrong is None
    assert [x.item() for x in results] == [0.5, 1]


def test_all_pairs_of_faults_are_tried():
    for name in ("attention_flops", "roofline_seconds"):
        stepped = [variation.changes.keys() for variation in engine._TASKS[name].variations if variation.changes]
        apart = [one for one in itertools.combinations(stepped, 2) if not one[0] & one[1]]
        assert len(apart) <= pairs.MOST
