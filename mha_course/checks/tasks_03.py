"""The exercises of notebook 03: the spread of scores, scaled scores, and growth with the width."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks import attention_faults as faults
from mha_course.checks.task import Case, Task, Variation, by_steps, draw, stepped
from mha_course.checks.tasks_03_growth import growth_exponents

Row = Float[Tensor, " n"]
Pair = tuple[Row, Row]


def _spread_cases() -> tuple[Case, ...]:
    cases = []
    for n, d_model, d_k in [(3, 512, 64), (2, 64, 16), (5, 37, 5), (1, 6, 1)]:
        stds = torch.linspace(0.5, 2, n, dtype=torch.float64) / math.sqrt(d_model)
        cases.append(Case({"n": n}, (d_model, d_k, stds), f"d_model = {d_model}, d_k = {d_k}"))
    return tuple(cases)


@by_steps
def _spreads(
    entry: Callable[[int, Row], Row] = lambda m, w: math.sqrt(m) * w,
    raw: Callable[[int, Row, Row], Row] = lambda d, a, b: math.sqrt(d) * a * b,
    scaled: Callable[[int, int, Row], Row] = lambda m, d, s: s / math.sqrt(d),
    order: Callable[[Row, Row], Pair] = lambda before, after: (before, after),
) -> Callable[[int, int, Row], Pair]:
    """From the std of an entry of q and of k to that of q.k and of the scaled score."""

    def fn(d_model: int, d_k: int, w_std: Row) -> Pair:
        one = entry(d_model, w_std)
        before = raw(d_k, one, one)
        return order(before, scaled(d_model, d_k, before))

    return fn


def _squared(fn: Callable[[int, int, Row], Pair]) -> Callable[[int, int, Row], Pair]:
    return lambda *inputs: tuple(x**2 for x in fn(*inputs))  # type: ignore[return-value]


_ENTRY_HINTS = (
    "Take one entry of q first: it is a sum of d_model products. What is its standard deviation?",
    "An entry of q has standard deviation sqrt(d_model) * w_std, and so has an entry of k.",
)
_SUM_HINTS = (
    "q.k is a sum of d_k products: what adds up, the standard deviations or the variances?",
    "Variances add: the sum of d_k products has sqrt(d_k) times the standard deviation of one.",
)
_BOTH_HINTS = (
    "A score has two factors, an entry of q and one of k: does your result feel both projections?",
    "The product of two independent entries has the product of their standard deviations.",
)
_ROOT_HINTS = ("Look at what the scaled score is divided by.", "The scale divides by the square root of d_k.")

score_std = Task(
    name="score_std",
    gradients=False,
    arguments=("d_model", "d_k", "w_std"),
    results=(("before", ("n",)), ("after", ("n",))),
    reference=_spreads(),
    build=_spreads,
    cases=_spread_cases,
    variations=(
        Variation(
            "the results are variances, not standard deviations",
            _squared(_spreads()),
            ("Look at the unit of your results: what is asked for?", "Take the square root of both."),
        ),
        Variation("d_model is left out: an entry of q is a sum too", _spreads(lambda m, w: w), _ENTRY_HINTS),
        Variation(
            "an entry of q is given d_model times the spread of a weight, not sqrt(d_model) times",
            _spreads(lambda m, w: m * w),
            _ENTRY_HINTS,
        ),
        Variation(
            "w_std is used as a variance, it is a standard deviation",
            _spreads(lambda m, w: (m * w) ** 0.5),
            _ENTRY_HINTS,
        ),
        Variation(
            "only one of the two projections is counted", _spreads(raw=lambda d, a, b: math.sqrt(d) * a), _BOTH_HINTS
        ),
        Variation(
            "the standard deviations of d_k products are added, not their variances",
            _spreads(raw=lambda d, a, b: d * a * b),
            _SUM_HINTS,
        ),
        Variation("q.k is not summed over d_k", _spreads(raw=lambda d, a, b: a * b), _SUM_HINTS),
        Variation(
            "the scores are divided by d_k, not by its square root", _spreads(scaled=lambda m, d, s: s / d), _ROOT_HINTS
        ),
        Variation(
            "the scores are divided by the square root of d_model, not of d_k",
            _spreads(scaled=lambda m, d, s: s / math.sqrt(m)),
            _ROOT_HINTS,
        ),
        Variation(
            "the scaled spread is 1 whatever the weights are",
            _spreads(scaled=lambda m, d, s: torch.ones_like(s)),
            (
                "Double w_std: do the scaled scores stay as they are?",
                "Divide the spread of q.k by sqrt(d_k). It is 1 for one w_std only.",
            ),
        ),
        Variation(
            "the second result is not divided by the square root of d_k",
            _spreads(scaled=lambda m, d, s: s),
            _ROOT_HINTS,
        ),
        Variation(
            "the scaled score is multiplied by the square root of d_k, not divided by it",
            _spreads(scaled=lambda m, d, s: s * math.sqrt(d)),
            _ROOT_HINTS,
        ),
        Variation(
            "q.k is given its variance, not its standard deviation",
            lambda m, d, w: (d * (m * w**2) ** 2, m * w**2),
            ("Look at the unit of the first result.", "Take its square root."),
        ),
        Variation(
            "the scaled score is given its variance, not its standard deviation",
            lambda m, d, w: (math.sqrt(d) * m * w**2, (m * w**2) ** 2),
            ("Look at the unit of the second result.", "Take its square root."),
        ),
        Variation(
            "half of d_k is taken: ** binds before /, so d_k ** 1/2 is d_k / 2",
            _spreads(raw=lambda d, a, b: d / 2 * a * b),
            ("Try d_k = 16: what is your root?", "Write d_k ** 0.5, or math.sqrt."),
        ),
        Variation(
            "w_std is left out: q and k are taken to have variance 1",
            lambda m, d, w: (torch.full_like(w, math.sqrt(d)), torch.ones_like(w)),
            (
                "Double w_std: what happens to an entry of q, and to a score?",
                "sqrt(d_k) holds for entries of variance 1. Here an entry has variance d_model * w_std^2.",
            ),
        ),
        Variation(
            "d_model counts once, but it spreads both q and k",
            lambda m, d, w: _spreads(lambda m, w: m**0.25 * w)(m, d, w),
            _BOTH_HINTS,
        ),
        Variation(
            "d_model and d_k have changed places",
            lambda m, d, w: _spreads()(d, m, w),
            (
                "Which of the two widths is summed over in an entry of q, which in a score?",
                "An entry of q sums over d_model, a score over d_k.",
            ),
        ),
        Variation(
            "the scores are divided by 8, the square root of 64, whatever d_k is",
            _spreads(scaled=lambda m, d, s: s / 8),
            _ROOT_HINTS,
        ),
        stepped(
            _spreads,
            "the two results are in the wrong order",
            ("Look at the return line.", "Return the spread before the scale, then the one after it."),
            order=lambda before, after: (after, before),
        ),
    ),
    hints=(
        "Go step by step: one entry of q, one product of an entry of q with one of k, the sum of d_k of them.",
        "sqrt(d_model) * w_std for an entry; the product of two of them; sqrt(d_k) times that for the sum.",
    ),
    shape_hint="Return one number before and one after the scale for each entry of w_std.",
)


def _score_cases() -> tuple[Case, ...]:
    cases = []
    for seed, sizes in enumerate([(2, 3, 5, 7), (3, 5, 5, 11), (5, 7, 2, 3), (1, 1, 5, 13)]):
        B, T, S, D = sizes
        inputs = draw(seed, (B, T, D), (B, S, D))
        cases.append(Case(dict(zip(("B", "T", "S", "D"), sizes, strict=True)), inputs))
    return tuple(cases)


def _scores(q: faults.Array, k: faults.Array) -> faults.Array:
    return faults.attention(q, k, k).scores


_SOFTMAX = "the softmax is taken too: these are weights, not scores"
_LAST_HINTS = ("Look at the last step: what is asked for?", "Return the scores before the softmax, divided.")
_KNOWN_HINTS = (
    "The divisor is known before any score is computed: does yours depend on the scores?",
    "Divide all scores by the square root of D.",
)

scaled_scores = Task(
    name="scaled_scores",
    arguments=("q", "k"),
    results=(("scores", ("B", "T", "S")),),
    reference=_scores,
    cases=_score_cases,
    variations=(
        *(factor.in_scores() for factor in (*faults.FACTORS, faults.SCALE_BY_T, faults.FOURTH_ROOT)),
        stepped(
            faults.built_scores,
            "the scores are transposed, keys against queries: (B, S, T) instead of (B, T, S)",
            faults.KEYS_BY_QUERIES.hints,
            score=lambda q, k: k @ q.mT,
        ),
        stepped(
            faults.built_scores,
            "the keys are reshaped to (B, D, S), which mixes their numbers",
            faults.LAYOUT[0].hints,
            score=lambda q, k: q @ k.reshape(k.shape[0], k.shape[2], k.shape[1]),
        ),
        *(
            stepped(faults.built_scores, _SOFTMAX, _LAST_HINTS, end=lambda scores, axis=axis: scores.softmax(axis))
            for axis in (-1, -2, 0)
        ),
        Variation(
            "the softmax is taken before the division",
            lambda q, k: faults.attention(q, k, k, scale=1.0).weights / math.sqrt(q.shape[-1]),
            _LAST_HINTS,
        ),
        Variation(
            "the softmax is taken, and the scale is missing",
            lambda q, k: faults.attention(q, k, k, scale=1.0).weights,
            _LAST_HINTS,
        ),
        stepped(
            faults.built_scores,
            "the scores are divided by D / 2: ** binds before /, so D ** 1/2 is half of D",
            ("Try D = 16: what is your divisor?", "Put the exponent in brackets, D ** (1/2), or take math.sqrt."),
            scale=lambda q, k, v: 2 / q.shape[-1],
        ),
        stepped(
            faults.built_scores,
            "the scores are divided by the square root of B, the number of samples, not of D",
            ("Which axis of q do you count?", "D is the last axis, q.shape[-1]."),
            scale=lambda q, k, v: 1 / math.sqrt(len(q)),
        ),
        stepped(
            faults.built_scores,
            "all scores are divided by their standard deviation, not by a known number",
            _KNOWN_HINTS,
            score=lambda q, k: (q @ k.mT) / (q @ k.mT).std(),
            scale=faults.one,
        ),
        stepped(
            faults.built_scores,
            "the scores are cosines, q and k are divided by their lengths",
            (
                "Double q: a score doubles too, a cosine does not.",
                "Divide by one number for all scores, the square root of D.",
            ),
            use=lambda q, k, v: (q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True), v),
            scale=faults.one,
        ),
        stepped(
            faults.built_scores,
            "each row is divided by its own standard deviation, not by one number",
            _KNOWN_HINTS,
            score=lambda q, k: (q @ k.mT) / (q @ k.mT).std(-1, keepdim=True),
            scale=faults.one,
        ),
    ),
    build=faults.built_scores,
    steps=lambda q, k: faults.steps(q, k, k)[:2],
    hints=(
        "Take T = S = 1: the only score is one dot product over the square root of D.",
        "Compare with your function step by step: products over D, then the division.",
    ),
)

TASKS = (score_std, scaled_scores, growth_exponents)
