"""Further faults of the exercises of notebook 15: rarer ones, and those in some of the steps alone."""

import math
from functools import partial
from typing import Any

from mha_course.checks.task import Variation, stepped
from mha_course.checks.tasks_15_steps import (
    BOTH,
    INPUTS,
    PROJECTIONS,
    STEPS,
    Steps,
    addition_less,
    counted,
    factor_of,
    meeting,
    more_in,
    only_in,
    projecting,
)
from mha_course.checks.tasks_15_times import no_flops, timed

_KEYS_AND_VALUES = ("k_proj", "v_proj")
_MEETING_HINTS = (
    "Let B = 2 and S = 3: which token meets which?",
    "Tokens of two sequences never meet: B times S S pairs, not (B S) squared.",
)
_SAME_HINTS = (
    "Compare the shapes of W_q, W_k, W_v and W_o.",
    "All four projections read B S rows of E features and make as many: 2 B S E E each.",
)
_BIAS_HINTS = (
    "Compare with torch's own counter: FlopCounterMode counts matrix products, and nothing else.",
    "Leave the bias out: E products and E additions for each number of the result, 2 B S E E.",
)
_EXACT_HINTS = (
    "Count by hand the multiplications and the additions of one score with D = 2.",
    "Let a sum of n products be 2 n FLOPs in every step, as torch's counter does.",
)
_WIDTH_HINTS = (
    "Print D for E = 12 and H = 3: how many features has each head?",
    "D is E / H: H heads of that width are E features in all.",
)
_ALL_HINTS = (
    "Which sizes does each of your formulas hold? B and S belong to every step.",
    "Count the whole batch: all B sequences, all S tokens of each.",
)
_FLOP_HINTS = (
    "Take B = S = E = H = 1: each step then has one multiply-add, 2 FLOPs. What does your function say?",
    "Return the number of FLOPs itself, neither scaled nor divided.",
)


def _shares(B: int, S: int, E: int, H: int) -> Steps:
    steps = counted()(B, S, E, H)
    return {step: count / sum(steps.values()) for step, count in steps.items()}


def _each_pair(each: int, B: int, S: int, E: int, H: int) -> float:
    return each * B * S * S


def _alone(fault: str, hints: tuple[str, ...], **changes: Any) -> Variation:
    """A variation that does not say its steps, so that it takes no place among the pairs that are tried."""
    solution = counted(**changes)
    return Variation(fault, lambda *sizes: solution(*sizes), hints)


MORE_FLOPS = (
    stepped(
        counted,
        "the tokens of all sequences meet each other, (B S) squared: B is there twice, in scores and weighted sum",
        _MEETING_HINTS,
        batch=only_in(BOTH, lambda B, S, E, H: B * B, lambda step, B, S, E, H: B),
    ),
    stepped(
        counted,
        "the keys and values of one head alone are projected, E x D in place of E x E: that is multi-query attention",
        _SAME_HINTS,
        project=projecting(lambda B, S, E, H: S * E * E // H, *_KEYS_AND_VALUES),
    ),
    *(
        stepped(
            counted,
            f"the whole matrix is counted once for each head: the heads are counted twice, in {where}",
            _SAME_HINTS,
            project=projecting(lambda B, S, E, H: S * E * E * H, *steps),
        )
        for steps, where in ((("out_proj",), "the output projection"), (INPUTS, "the projections of q, k and v"))
    ),
    *(
        stepped(
            counted,
            f"the factor 2 is {'missing' if factor == 1 else 'there twice'} in {' and '.join(steps)}",
            (_EXACT_HINTS[0], "A multiply-add is two FLOPs, in every step alike."),
            factor=factor_of(factor, *steps),
        )
        for factor, groups in (
            (1, (_KEYS_AND_VALUES, ("q_proj",))),
            (4, (_KEYS_AND_VALUES, PROJECTIONS, ("scores",), ("weighted sum",), ("out_proj",))),
        )
        for steps in groups
    ),
    *(
        stepped(
            counted,
            f"the batch is forgotten in {where}: one sequence is counted there",
            _ALL_HINTS,
            batch=only_in(steps, lambda B, S, E, H: 1, lambda step, B, S, E, H: B),
        )
        for steps, where in ((("out_proj",), "the output projection"), (INPUTS, "the projections of q, k and v"))
    ),
    stepped(
        counted,
        "the bias is counted as one more multiply-add: a row of E + 1 numbers",
        _BIAS_HINTS,
        more=more_in(lambda B, S, E, H: 2 * B * S * E, *PROJECTIONS),
    ),
    *(
        stepped(
            counted,
            f"in each sum one addition less is counted than products, {where}",
            _EXACT_HINTS,
            more=lambda step, *sizes, steps=steps: addition_less(step, *sizes) if step in steps else 0,
        )
        for steps, where in (
            (PROJECTIONS, "in the projections"),
            (BOTH, "in scores and weighted sum"),
            (("scores",), "in the scores"),
            (("weighted sum",), "in the weighted sum"),
        )
    ),
    *(
        _alone(
            f"scaling or softmax is counted with the {step}, for one head alone: more than the product",
            (_BIAS_HINTS[0], "Leave out scaling and softmax: the product is all that is asked for."),
            more=more_in(partial(_each_pair, each), step),
        )
        for step in BOTH
        for each in range(1, 9)
    ),
    *(
        _alone(
            "the width of a head is upside down, H / E in place of D = E / H",
            _WIDTH_HINTS,
            meet=meeting(width, *BOTH),
        )
        for width in (lambda B, S, E, H: H * S * S * H / E, lambda B, S, E, H: H * S * S * (H // E))
    ),
    *(
        stepped(
            counted,
            f"a product of two matrices (S, S) is counted for each head, S cubed, in the {step}",
            (
                "What are the shapes of the two operands? Print them beside S and D.",
                "(S, D) by (D, S) for the scores, (S, S) by (S, D) for the weighted sum: 2 S S D each, for each head.",
            ),
            meet=meeting(lambda B, S, E, H: H * S**3, step),
        )
        for step in BOTH
    ),
    stepped(
        counted,
        "one token alone is counted, not the B S tokens of all sequences",
        _ALL_HINTS,
        batch=lambda step, *sizes: 1,
        project=projecting(lambda B, S, E, H: E * E, *PROJECTIONS),
        meet=meeting(lambda B, S, E, H: S * E, *BOTH),
    ),
    *(
        stepped(counted, f"the counts are given in {unit}, not in FLOPs", _FLOP_HINTS, factor=factor_of(2 / by, *STEPS))
        for unit, by in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3))
    ),
    stepped(
        counted,
        "every count is 0, or next to it: cut off by a division, or given in TFLOP",
        _FLOP_HINTS,
        factor=factor_of(0, *STEPS),
    ),
    *(
        Variation(f"the share of each step is given, {of}, not its FLOPs", fn, _FLOP_HINTS)
        for of, fn in (
            ("of 1", _shares),
            ("in percent", lambda *sizes: {step: 100 * share for step, share in _shares(*sizes).items()}),
        )
    ),
)

_RIDGE_HINTS = (
    "In which unit is an intensity, in which the ridge? Both are FLOP per byte.",
    "Compare flops / bytes_moved with peak / bandwidth; or the two times with each other.",
)
_RATE_HINTS = (
    "Work out 12 FLOPs, 10 bytes, 3 FLOP/s and 5 bytes/s by hand: 4 s and 2 s.",
    "Return max(flops / peak, bytes_moved / bandwidth): the longer time alone.",
)
_COPY_HINTS = (
    "Take flops = 0, a copy: what takes its time?",
    "Without FLOPs only the bytes take time: the bound is memory.",
)


def _in_giga(step: str) -> dict[str, Any]:
    return {step: lambda work, rate: work / (rate * 1e9)}


MORE_TIMES = (
    stepped(
        timed,
        "the bound is wrong: the FLOPs are compared with the ridge, not the intensity, FLOP per byte",
        _RIDGE_HINTS,
        is_compute=lambda t_c, t_m, flops, moved, peak, bandwidth: flops > peak / bandwidth,
    ),
    stepped(
        timed,
        "the bound is wrong: peak and bandwidth are compared with each other, without FLOPs and bytes",
        _RIDGE_HINTS,
        is_compute=lambda t_c, t_m, flops, moved, peak, bandwidth: peak > bandwidth,
    ),
    stepped(
        timed,
        "the bound is wrong: the ridge is taken as peak * bandwidth, not peak / bandwidth",
        _RIDGE_HINTS,
        is_compute=lambda t_c, t_m, flops, moved, peak, bandwidth: flops / moved > peak * bandwidth,
    ),
    stepped(
        timed,
        "the bound is wrong: the intensity is taken as flops * bytes, not FLOP per byte",
        _RIDGE_HINTS,
        is_compute=lambda t_c, t_m, flops, moved, peak, bandwidth: flops * moved > peak / bandwidth,
    ),
    stepped(
        timed,
        "the bound of a step without FLOPs is given as compute: its bytes alone take time",
        _COPY_HINTS,
        is_compute=lambda t_c, t_m, flops, **given: t_c > t_m or not flops,
    ),
    stepped(
        timed,
        "the attainable rate is the smaller of peak and bandwidth: the intensity is missing in bandwidth * intensity",
        _RATE_HINTS,
        show=lambda seconds, flops, moved, peak, bandwidth: flops / min(peak, bandwidth) if flops else 0.0,
    ),
    stepped(timed, "the two times are multiplied, not compared", _RATE_HINTS, choose=lambda t_c, t_m: t_c * t_m),
    stepped(
        timed,
        "the difference of the two times is returned, not the longer",
        _RATE_HINTS,
        choose=lambda t_c, t_m: abs(t_c - t_m),
    ),
    stepped(
        timed,
        "the FLOPs and bytes are added, and so are peak and bandwidth: each rate has its own work",
        _RATE_HINTS,
        show=lambda seconds, flops, moved, peak, bandwidth: (flops + moved) / (peak + bandwidth),
    ),
    stepped(
        timed,
        "the time is in nanoseconds (times 1e9), not in seconds",
        _RATE_HINTS,
        show=lambda seconds, **given: seconds * 1e9,
    ),
    *(
        stepped(
            timed,
            f"{name} is taken as if in {unit}, times 1e9, the other is not: they are FLOP/s and bytes/s",
            _RATE_HINTS,
            **changes,
        )
        for name, unit, changes in (
            ("peak", "GFLOP/s", _in_giga("compute")),
            ("bandwidth", "GB/s", _in_giga("memory")),
        )
    ),
    stepped(
        timed,
        "the time is rounded up to whole seconds",
        ("Print your time before it is rounded.", "Return the time as it is, without ceil."),
        show=lambda seconds, **given: math.ceil(seconds),
    ),
    *(
        stepped(
            timed,
            "the time is rounded: digits behind the point are lost",
            ("Print your time before it is rounded.", "Return the time as it is, without round."),
            show=lambda seconds, digits=digits, **given: round(seconds, digits),
        )
        for digits in (4, 5)
    ),
    stepped(
        timed,
        "the time is bytes_moved / bandwidth in every case, by way of the intensity: the peak never counts",
        ("Put your intensity into flops / (bandwidth * intensity): what is left?", _RATE_HINTS[1]),
        no_flops,
        show=lambda seconds, flops, moved, peak, bandwidth: moved / bandwidth if flops else math.nan,
    ),
)
