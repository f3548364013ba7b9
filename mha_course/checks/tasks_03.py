"""The exercises of notebook 03: the spread of scores, scaled scores, and how spreads grow with the width."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks import attention_faults as faults
from mha_course.checks.task import Case, Task, Variation, draw

Row = Float[Tensor, " n"]
Pair = tuple[Row, Row]


def _spread_cases() -> tuple[Case, ...]:
    cases = []
    for n, d_model, d_k in [(3, 512, 64), (2, 64, 16), (5, 37, 5), (1, 6, 1)]:
        stds = torch.linspace(0.5, 2, n, dtype=torch.float64) / math.sqrt(d_model)
        cases.append(Case({"n": n}, (d_model, d_k, stds), f"d_model = {d_model}, d_k = {d_k}"))
    return tuple(cases)


def _spreads(
    entry: Callable[[int, Row], Row] = lambda m, w: math.sqrt(m) * w,
    raw: Callable[[int, Row, Row], Row] = lambda d, a, b: math.sqrt(d) * a * b,
    scaled: Callable[[int, int, Row], Row] = lambda m, d, s: s / math.sqrt(d),
) -> Callable[[int, int, Row], Pair]:
    """From the std of an entry of q and of k to that of q.k and of the scaled score."""

    def fn(d_model: int, d_k: int, w_std: Row) -> Pair:
        one = entry(d_model, w_std)
        before = raw(d_k, one, one)
        return before, scaled(d_model, d_k, before)

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
    arguments=("d_model", "d_k", "w_std"),
    results=(("before", ("n",)), ("after", ("n",))),
    reference=_spreads(),
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
            "the two results are in the wrong order",
            lambda *inputs: _spreads()(*inputs)[::-1],
            ("Look at the return line.", "Return the spread before the scale, then the one after it."),
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


scaled_scores = Task(
    name="scaled_scores",
    arguments=("q", "k"),
    results=(("scores", ("B", "T", "S")),),
    reference=_scores,
    cases=_score_cases,
    variations=(
        *(factor.in_scores() for factor in (*faults.FACTORS, faults.SCALE_BY_T)),
        Variation(
            "the scores are transposed, keys against queries: (B, S, T) instead of (B, T, S)",
            lambda q, k: _scores(k, q),
            faults.KEYS_BY_QUERIES.hints,
        ),
        Variation(
            "the keys are reshaped to (B, D, S), which mixes their numbers",
            lambda q, k: q @ k.reshape(k.shape[0], k.shape[2], k.shape[1]) / math.sqrt(q.shape[-1]),
            faults.LAYOUT[0].hints,
        ),
        Variation(
            "the softmax is taken too: these are weights, not scores",
            lambda q, k: _scores(q, k).softmax(-1),
            ("Look at the last step: what is asked for?", "Return the scores before the softmax."),
        ),
        Variation(
            "the scores are cosines, q and k are divided by their lengths",
            lambda q, k: (q / q.norm(dim=-1, keepdim=True)) @ (k / k.norm(dim=-1, keepdim=True)).mT,
            (
                "Double q: a score doubles too, a cosine does not.",
                "Divide by one number for all scores, the square root of D.",
            ),
        ),
        Variation(
            "each row is divided by its own standard deviation, not by one number",
            lambda q, k: (q @ k.mT) / (q @ k.mT).std(-1, keepdim=True),
            (
                "The divisor is known before any score is computed: does yours depend on the scores?",
                "Divide all scores by the square root of D.",
            ),
        ),
    ),
    hints=(
        "Take T = S = 1: the only score is one dot product over the square root of D.",
        "Compare with your function step by step: products over D, then the division.",
    ),
)


def _growth_cases() -> tuple[Case, ...]:
    cases = []
    for n, exponents in [(5, (0.0, 0.5, 0.0)), (7, (0.5, -0.5, 0.0, 1.0)), (2, (0.25,)), (4, (-0.25, 0.5))]:
        widths = 3 * 2.0 ** torch.arange(n, dtype=torch.float64)
        levels = torch.linspace(5, 0.3, len(exponents), dtype=torch.float64)
        powers = torch.stack([level * widths**e for level, e in zip(levels, exponents, strict=True)])
        cases.append(Case({"layers": len(exponents), "n": n}, (widths, powers)))
    return tuple(cases)


def _growth(
    rise: Callable[[Tensor], Tensor] = torch.log, run: Callable[[Tensor], Tensor] = torch.log
) -> Callable[[Tensor, Tensor], Tensor]:
    """The slope of rise(spreads) against run(widths), between the first and the last width."""

    def fn(widths: Tensor, spreads: Tensor) -> Tensor:
        y, x = rise(spreads), run(widths)
        return (y[:, -1] - y[:, 0]) / (x[-1] - x[0])

    return fn


_LOG_HINTS = (
    "A power law is a straight line on log axes: which axes are yours?",
    "Take the logarithm of the widths and of the spreads, then the slope.",
)

growth_exponents = Task(
    name="growth_exponents",
    arguments=("widths", "spreads"),
    results=(("exponents", ("layers",)),),
    reference=_growth(),
    cases=_growth_cases,
    variations=(
        Variation("the slope is taken on linear axes", _growth(lambda y: y, lambda x: x), _LOG_HINTS),
        Variation("the widths are not on a log axis, the spreads are", _growth(run=lambda x: x), _LOG_HINTS),
        Variation("the spreads are not on a log axis, the widths are", _growth(rise=lambda y: y), _LOG_HINTS),
        Variation(
            "the slope is upside down, widths over spreads",
            lambda x, y: 1 / _growth()(x, y),
            ("Which of the two axes is the width?", "Divide the change of log spread by the change of log width."),
        ),
        Variation(
            "the growth of the variance is measured, twice that of the spread",
            lambda x, y: 2 * _growth()(x, y),
            ("Is there a square in your function?", "Use the spreads as they are."),
        ),
        Variation(
            "the change of the width is left out",
            lambda x, y: (y[:, -1] / y[:, 0]).log(),
            ("Try widths further apart: the exponent must stay.", "Divide by the change of log width."),
        ),
        Variation(
            "the ratio of the logarithms is taken, so the level counts as growth",
            lambda x, y: y[:, -1].log() / x[-1].log(),
            ("Multiply all spreads by 10: an exponent must stay.", "Take differences of logarithms before you divide."),
        ),
        Variation(
            "the exponents are for steps from one width to the next, not one for each layer",
            lambda x, y: y.log().diff(dim=1) / x.log().diff(),
            ("How many numbers should come back?", "One for each layer: average the steps, or use the ends."),
        ),
    ),
    hints=(
        "Take one layer by hand: by what factor does its spread grow when the width doubles?",
        "The exponent is the change of log spread divided by the change of log width.",
    ),
    shape_hint="Return one exponent for each row of spreads.",
)

TASKS = (score_std, scaled_scores, growth_exponents)
