"""Right and wrong solutions of notebook 06: the slopes of ALiBi and its bias."""

import math

import pytest
import torch
from torch.nn.functional import pad

from mha_course import positions
from mha_course.checks import check


def slopes(num_heads):
    n = 2 ** math.floor(math.log2(num_heads))
    own = [2 ** (-8 * i / n) for i in range(1, n + 1)]
    more = [2 ** (-4 * i / n) for i in range(1, 2 * n + 1)]
    return torch.tensor(own + more[0::2][: num_heads - n], dtype=torch.float64)


def slopes_as_coded(num_heads):
    def of(n):
        if math.log2(n).is_integer():
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]
        closest = 2 ** math.floor(math.log2(n))
        return of(closest) + of(2 * closest)[0::2][: n - closest]

    return torch.tensor(of(num_heads), dtype=torch.float64)


def slopes_by_odd_powers(num_heads):
    n = 1 << (num_heads.bit_length() - 1)
    i = torch.arange(1, num_heads + 1, dtype=torch.float64)
    return torch.where(i <= n, torch.exp2(-8 * i / n), torch.exp2(-(8 * (i - n) - 4) / n))


def slopes_by_products(num_heads):
    n = max(p for p in (1, 2, 4, 8, 16, 32) if p <= num_heads)
    own = torch.full((n,), 2 ** (-8 / n), dtype=torch.float64).cumprod(0)
    between = own / own[0].sqrt()
    return torch.cat([own, between])[:num_heads]


SLOPES_RIGHT = [
    slopes,
    slopes_as_coded,
    slopes_by_odd_powers,
    slopes_by_products,
    lambda H: positions.alibi_slopes(H).double(),
]


def formula(one, pick=lambda more: more[::2]):
    """one(i, H) for each of the power of two, the rest from twice as many heads."""

    def fn(H):
        n = 1
        while 2 * n <= H:
            n *= 2
        more = [one(i, 2 * n) for i in range(1, 2 * n + 1)]
        return torch.tensor(([one(i, n) for i in range(1, n + 1)] + pick(more))[:H], dtype=torch.float64)

    return fn


def straight(one):
    """one(i, H) whatever H is."""
    return lambda H: torch.tensor([one(i, H) for i in range(1, H + 1)], dtype=torch.float64)


def half(i, H):
    return 2 ** (-8 * i / H)


def lowest(H):
    return 2 ** int(math.log2(H))


SLOPES_FAULTS = [  # each with the authors' extension and with the formula for any number
    (lambda i, H: 2 ** (-8 * (i - 1) / H), "the exponents start at 0"),
    (lambda i, H: 0.5**i, "the slopes are 1/2, 1/4, 1/8"),
    (lambda i, H: 0.5 ** (i - 1), "the slopes are 1, 1/2, 1/4"),
    (lambda i, H: 2 ** (-i * H / 8), "the ratio is upside down"),
    (lambda i, H: 2 ** (-i / H), "the 8 is missing"),
    (lambda i, H: 2 ** -(1 + (i - 1) * 7 / (H - 1 or 1)), "the exponents reach from -1 to -8"),
    (lambda i, H: 2 ** (8 * i / H), "the exponents are positive"),
    (lambda i, H: -half(i, H), "the slopes are negative"),
    (lambda i, H: -8 * i / H, "the exponents are returned"),
    (lambda i, H: math.exp(-8 * i / H), "powers of e"),
    (lambda i, H: 10 ** (-8 * i / H), "powers of 10"),
    (lambda i, H: half(1, H) - (i - 1) * (half(1, H) - 1 / 256) / (H - 1 or 1), "the slopes fall in equal steps"),
    (lambda i, H: half(H + 1 - i, H), "the slopes are in reverse order"),
]
SLOPES_WRONG = [
    *((way(one), fault) for one, fault in SLOPES_FAULTS for way in (formula, straight)),
    (lambda H: positions.alibi_slopes(H, rule="paper").double(), "for 12 heads the paper's sentence is followed"),
    (straight(half), "for 12 heads the paper's sentence is followed"),
    (formula(half, lambda more: more), "the slopes added for 12 heads are the first ones of 16"),
    (formula(half, lambda more: more[1::2]), "the slopes added for 12 heads start with the second one"),
    (lambda H: torch.cat([slopes(lowest(H)), slopes(lowest(H))])[:H], "the slopes added for 12 heads start with the"),
    (
        lambda H: torch.cat([slopes(lowest(H)), slopes(2 * lowest(H)).flip(0)[: H - lowest(H)].flip(0)]),
        "the slopes added for 12 heads are the last ones of 16",
    ),
    (
        lambda H: torch.cat([slopes(lowest(H)), slopes(2 * lowest(H))[::2].flip(0)[: H - lowest(H)].flip(0)]),
        "the slopes added for 12 heads are the last of every other one",
    ),
    (
        lambda H: torch.cat([slopes(lowest(H)), straight(half)(H - lowest(H))]),
        "the slopes added for 12 heads are those",
    ),
    (lambda H: slopes(H).roll(H - lowest(H)), "the added slopes come first"),
    (lambda H: torch.tensor(sorted(slopes(H).tolist(), reverse=True)).double(), "the slopes are sorted"),
    (lambda H: slopes(H).sort().values.flip(0), "the slopes are sorted"),
    (lambda H: slopes(2 ** math.ceil(math.log2(H)))[:H], "the slopes of 12 heads are the first 12 of 16"),
    (lambda H: slopes(lowest(H)), "only 8 slopes come back for 12 heads"),
    (lambda H: slopes(2 ** math.ceil(math.log2(H))), "all slopes of 16 heads come back for 12"),
    # not named
    (lambda H: slopes(H).float(), "slopes has type float32, expected float64"),
    (lambda H: slopes(H)[:, None, None], "slopes has the wrong shape"),
    (lambda H: slopes(H) / 2, "the numbers differ"),
    (lambda H: slopes(H).tolist(), "it returns a list of 8 instead of one tensor"),
]


def bias(slopes, T):
    t = torch.arange(T)
    return -slopes[:, None, None] * (t[:, None] - t).abs()


def bias_by_loops(slopes, T):
    return torch.tensor([[[-m * abs(i - j) for j in range(T)] for i in range(T)] for m in slopes.tolist()]).double()


def bias_by_triangles(slopes, T):
    behind = torch.ones(T, T).tril(-1).double().cumsum(0)
    return torch.einsum("h,ts->hts", slopes, -(behind + behind.T))


def bias_by_cdist(slopes, T):
    t = torch.arange(T, dtype=torch.float64)[:, None]
    return torch.outer(slopes, torch.cdist(t, t).flatten()).neg().reshape(-1, T, T)


BIAS_RIGHT: list = [bias, bias_by_loops, bias_by_triangles, bias_by_cdist, lambda s, T: bias(s, T).sub(0.0)]


def each(value):
    """value(slope, i, j) for every entry."""

    def fn(slopes, T):
        rows = [[[value(m, i, j) for j in range(T)] for i in range(T)] for m in slopes.tolist()]
        return torch.tensor(rows, dtype=torch.float64)

    return fn


HIDDEN = [
    (-math.inf, "-inf"),
    (-1e9, "-1e9"),
    (-1e10, "-1e10"),
    (torch.finfo(torch.float64).min, "the lowest number of float64"),
    (torch.finfo(torch.float32).min, "the lowest number of float32"),
]


def ahead(value):
    return lambda s, T: bias(s, T).masked_fill(torch.ones(T, T).triu(1).bool(), value)


def behind(value):
    return lambda s, T: bias(s, T).masked_fill(torch.ones(T, T).tril(-1).bool(), value)


BIAS_WRONG = [
    (lambda s, T: -bias(s, T), "the bias is positive"),
    (each(lambda m, i, j: m * (j - i)), "keys after the query get a positive bias"),
    (each(lambda m, i, j: -m * (j - i)), "keys before the query get a positive bias"),
    (lambda s, T: bias(s, T).tril(), "keys after the query get 0"),
    (lambda s, T: bias(s, T).triu(), "keys before the query get 0"),
    *((ahead(value), f"keys after the query get {said}: that is a causal mask") for value, said in HIDDEN),
    *((behind(value), f"keys before the query get {said}: that is a mask with the wrong") for value, said in HIDDEN),
    (
        lambda s, T: bias(s, T) + torch.full((T, T), -math.inf).tril(-1),
        "keys before the query get -inf: that is a mask",
    ),
    (lambda s, T: bias(s, T) - 1e9 * torch.ones(T, T).triu(1), "keys after the query get -1e9: that is a causal mask"),
    (each(lambda m, i, j: -m * j), "the distance is counted from the start"),
    (lambda s, T: (s[:, None, None] * torch.arange(T)).repeat(1, T, 1), "the bias grows with the index of the key"),
    (each(lambda m, i, j: -m * i), "the bias depends on the query alone"),
    (lambda s, T: bias(s, T)[:, -1:].repeat(1, T, 1), "the distance is counted from the end"),
    (each(lambda m, i, j: -m * (abs(i - j) + 1)), "the distance is one too large"),
    (each(lambda m, i, j: -m * (i - j) ** 2), "the distance is squared"),
    (each(lambda m, i, j: -m * math.log(1 + abs(i - j))), "the logarithm of the distance"),
    (lambda s, T: bias(s, T) / T, "the distance is divided by T"),
    (each(lambda m, i, j: -abs(i - j) / m), "the distance is divided by the slope"),
    (each(lambda m, i, j: -abs(i - j)), "the slopes are ignored"),
    (lambda s, T: bias(s[0].repeat(len(s)), T), "every head has the slope of the first"),
    (lambda s, T: bias(s, T).flip(0), "the slopes are in reverse order"),
    (lambda s, T: bias(straight(half)(len(s)), T), "the slopes are computed anew"),
    (each(lambda m, i, j: math.exp(-m * abs(i - j))), "the exponential is taken"),
    (lambda s, T: torch.softmax(bias(s, T), dim=-1), "the softmax is taken too"),
    (lambda s, T: -(torch.arange(T)[:, None] - torch.arange(T)).abs()[:, :, None] * s, "the heads come last"),
    # not named
    (lambda s, T: bias(s, T)[None], "bias has the wrong shape"),
    (lambda s, T: bias(s, T)[0], "bias has the wrong shape"),
    (lambda s, T: bias(s, T).float(), "bias has type float32, expected float64, the type of the inputs"),
    (lambda s, T: bias(s, T) - 1e-3, "the numbers differ"),
    (lambda s, T: -s * (torch.arange(T)[:, None] - torch.arange(T)).abs(), "it raises RuntimeError: The size of"),
    (lambda s, T: pad(bias(s, T), (0, 1)), "bias has the wrong shape"),
]

RIGHT = {"slopes": SLOPES_RIGHT, "alibi_bias": BIAS_RIGHT}
WRONG = {"slopes": SLOPES_WRONG, "alibi_bias": BIAS_WRONG}


@pytest.mark.parametrize(("name", "fn"), [(name, fn) for name, fns in RIGHT.items() for fn in fns])
def test_right(name, fn):
    verdict = check(name, fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(("name", "fn", "fault"), [(name, *pair) for name, pairs in WRONG.items() for pair in pairs])
def test_wrong(name, fn, fault):
    verdict = check(name, fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_places_are_heads_queries_and_keys():
    evidence = check("alibi_bias", each(lambda m, i, j: m * (j - i))).evidence
    assert evidence.startswith("largest difference 5.6 in bias, head 0, query 0, key 4 (counted from 0)")
    assert check("slopes", straight(half)).evidence.endswith("case 3 (H = 12)")


def test_infinity_is_told_beside_a_named_fault():
    verdict = check("alibi_bias", ahead(-math.inf))
    assert verdict.evidence.startswith("bias holds infinity, 30 of 75 numbers")


def test_shapes_are_said_in_letters():
    verdict = check("alibi_bias", lambda s, T: bias(s, T).permute(1, 2, 0))
    assert verdict.evidence == "shape (T, T, H) = (5, 5, 3), expected (H, T, T) = (3, 5, 5), case 1 (H, T = 3, 5)"
