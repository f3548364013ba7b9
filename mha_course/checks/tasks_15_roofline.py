"""The second exercise of notebook 15: the time that a roofline predicts, and what bounds it."""

import math

from mha_course.checks.plain import Plain
from mha_course.checks.task import Task, stepped
from mha_course.checks.tasks_15_more import MORE_TIMES
from mha_course.checks.tasks_15_times import no_flops, roofline_cases, timed

_LONGER_HINTS = (
    "Let the FLOPs take 3 s and the bytes 5 s, both at once: when is the step done?",
    "Arithmetic and transfers overlap: the longer of flops / peak and bytes_moved / bandwidth is the time.",
)
_BOUND_HINTS = (
    "Which of your two times is longer in this case? That one bounds the step.",
    'The bound is "compute" where flops / peak is the longer time, else "memory".',
)
_RIDGE_HINTS = (
    "In which unit is an intensity? The ridge has the same: FLOP per byte.",
    "The ridge is peak / bandwidth; below it memory bounds a step, above it the arithmetic does.",
)
_UNIT_HINTS = (
    "Take 10 bytes, 5 bytes/s and no FLOPs: how many seconds is that?",
    "The arguments are FLOPs, bytes, FLOP/s and bytes/s: divide them as they are, for seconds.",
)
_TIME_HINTS = (
    "In which unit is what you return? A time is FLOPs divided by FLOP/s.",
    "Return max(flops / peak, bytes_moved / bandwidth), a time.",
)
_COPY_HINTS = (
    "Take flops = 0, a copy: how long do its bytes take, and what is your attainable rate?",
    "Divide by peak and by bandwidth alone: max(flops / peak, bytes_moved / bandwidth) divides by no 0.",
)
_BOTH_HINTS = (
    "Change peak alone, then bandwidth alone: when does your time change?",
    _LONGER_HINTS[1],
)

roofline_seconds = Task(
    name="roofline_seconds",
    gradients=False,
    arguments=("flops", "bytes_moved", "peak", "bandwidth"),
    results=(("seconds", ()), ("bound", ())),
    plain=Plain("tuple", {"bound": ("memory", "compute")}),
    reference=timed(),
    build=timed,
    cases=roofline_cases,
    variations=(
        stepped(
            timed,
            "both times are added: arithmetic and transfers overlap, the longer one counts",
            _LONGER_HINTS,
            choose=lambda t_c, t_m: t_c + t_m,
        ),
        stepped(
            timed,
            "the shorter of the two times is returned, not the longer",
            _LONGER_HINTS,
            choose=min,
        ),
        stepped(
            timed,
            "the shorter of the two times is returned, with its own bound, not the longer",
            _LONGER_HINTS,
            choose=min,
            is_compute=lambda t_c, t_m, **given: t_c < t_m,
        ),
        stepped(
            timed,
            "the mean of the two times is returned, not the longer",
            _LONGER_HINTS,
            choose=lambda t_c, t_m: (t_c + t_m) / 2,
        ),
        stepped(
            timed,
            "the root of the sum of squares is returned, not the longer time",
            _LONGER_HINTS,
            choose=math.hypot,
        ),
        stepped(
            timed,
            "the bounds have changed places: compute is said where memory takes longer",
            _BOUND_HINTS,
            is_compute=lambda t_c, t_m, **given: t_c < t_m,
        ),
        *(
            stepped(
                timed,
                f"the bound is {word}, whatever takes longer",
                _BOUND_HINTS,
                is_compute=lambda t_c, t_m, always=always, **given: always,
            )
            for word, always in (("always memory", False), ("always compute", True))
        ),
        stepped(
            timed,
            "the bound is wrong, as the ridge is inverted: bandwidth / peak, not peak / bandwidth",
            _RIDGE_HINTS,
            is_compute=lambda t_c, t_m, flops, moved, peak, bandwidth: flops / moved > bandwidth / peak,
        ),
        *(
            stepped(
                timed,
                "the bound is wrong, as the intensity is inverted: bytes per FLOP, not FLOP per byte",
                _RIDGE_HINTS,
                no_flops,
                is_compute=lambda t_c, t_m, flops, moved, peak, bandwidth, copy=copy: (
                    moved / flops > peak / bandwidth if flops else copy
                ),
            )
            for copy in (True, False)
        ),
        stepped(
            timed,
            "the bound is wrong: the FLOPs are compared with the bytes, without peak and bandwidth",
            _BOUND_HINTS,
            is_compute=lambda t_c, t_m, flops, moved, peak, bandwidth: flops > moved,
        ),
        stepped(
            timed,
            "the bound is wrong: the intensity is compared with the peak, not with the ridge",
            _RIDGE_HINTS,
            is_compute=lambda t_c, t_m, flops, moved, peak, bandwidth: flops / moved > peak,
        ),
        stepped(
            timed,
            "the bound is wrong: the intensity is compared with the bandwidth, not with the ridge",
            _RIDGE_HINTS,
            is_compute=lambda t_c, t_m, flops, moved, peak, bandwidth: flops / moved > bandwidth,
        ),
        *(
            stepped(
                timed,
                f"bytes are multiplied by {by}: {why}",
                _UNIT_HINTS,
                memory=lambda moved, bandwidth, by=by: moved * by / bandwidth,
            )
            for by, why in (
                (8, "bits are counted, or numbers of 8 bytes"),
                (4, "they are taken as numbers of 4 bytes"),
                (2, "read and written are in them already"),
            )
        ),
        stepped(
            timed,
            "bytes are divided by 8: they are taken as bits",
            _UNIT_HINTS,
            memory=lambda moved, bandwidth: moved / 8 / bandwidth,
        ),
        stepped(
            timed,
            "the FLOPs are multiplied by 2: the factor of multiply-adds is in them already",
            _UNIT_HINTS,
            compute=lambda flops, peak: 2 * flops / peak,
        ),
        stepped(
            timed,
            "the FLOPs are divided by 2: they are taken as multiply-adds",
            _UNIT_HINTS,
            compute=lambda flops, peak: flops / 2 / peak,
        ),
        *(
            stepped(
                timed,
                f"the time is in {unit}, not in seconds",
                _UNIT_HINTS,
                show=lambda seconds, by=by, **given: seconds * by,
            )
            for unit, by in (("milliseconds (times 1000)", 1e3), ("microseconds (times 1e6)", 1e6))
        ),
        stepped(
            timed,
            "peak and bandwidth are taken as if in GFLOP/s and GB/s, times 1e9: they are FLOP/s and bytes/s",
            _UNIT_HINTS,
            show=lambda seconds, **given: seconds / 1e9,
        ),
        stepped(
            timed,
            "the time is flops / peak in every case: the bytes, and the bandwidth of the memory, never count",
            _BOTH_HINTS,
            show=lambda seconds, flops, moved, peak, bandwidth: flops / peak,
        ),
        stepped(
            timed,
            "the time is bytes_moved / bandwidth in every case: the FLOPs, and the peak, never count",
            _BOTH_HINTS,
            show=lambda seconds, flops, moved, peak, bandwidth: moved / bandwidth,
        ),
        stepped(
            timed,
            "the attainable rate is wrong, as the intensity is inverted: bytes per FLOP, not FLOP per byte",
            _RIDGE_HINTS,
            no_flops,
            show=lambda seconds, flops, moved, peak, bandwidth: (
                flops / min(peak, bandwidth * moved / flops) if flops else seconds
            ),
        ),
        stepped(
            timed,
            "the attainable rate in FLOP/s is returned, not the time",
            ("In which unit is what you return? A rate is no time.", _TIME_HINTS[1]),
            show=lambda seconds, flops, moved, peak, bandwidth: min(peak, bandwidth * flops / moved),
        ),
        stepped(
            timed,
            "the intensity in FLOP per byte is returned, not the time",
            _TIME_HINTS,
            show=lambda seconds, flops, moved, peak, bandwidth: flops / moved,
        ),
        *(
            stepped(
                timed,
                "the times are upside down, a rate per second: peak / flops in place of flops / peak",
                _TIME_HINTS,
                no_flops,
                compute=lambda flops, peak: peak / flops if flops else 0.0,
                memory=lambda moved, bandwidth: bandwidth / moved,
                choose=choose,
                is_compute=is_compute,
            )
            for choose in (max, min)
            for is_compute in (
                lambda t_c, t_m, **given: t_c > t_m,
                lambda t_c, t_m, flops, moved, peak, bandwidth: flops / peak > moved / bandwidth,
            )
        ),
        stepped(
            timed,
            "the FLOPs and bytes are multiplied by the rates, not divided by them",
            _TIME_HINTS,
            compute=lambda flops, peak: flops * peak,
            memory=lambda moved, bandwidth: moved * bandwidth,
        ),
        *(
            stepped(
                timed,
                f"{name}: peak is for FLOPs, bandwidth for bytes",
                _UNIT_HINTS,
                show=lambda seconds, flops, moved, peak, bandwidth, place=place: (
                    max(flops, moved) / (peak, bandwidth)[place]
                ),
            )
            for name, place in (
                ("the FLOPs and bytes are both divided by the peak", 0),
                ("the FLOPs and bytes are both divided by the bandwidth", 1),
            )
        ),
        *(
            stepped(
                timed,
                "the time is rounded: digits behind the point are lost",
                ("Print your time before it is rounded.", "Return the time as it is, without round."),
                show=lambda seconds, digits=digits, **given: round(seconds, digits),
            )
            for digits in range(4)
        ),
        stepped(
            timed,
            "peak and bandwidth have changed places: FLOPs are divided by bandwidth, bytes by peak",
            _UNIT_HINTS,
            show=lambda seconds, flops, moved, peak, bandwidth: max(flops / bandwidth, moved / peak),
            is_compute=lambda t_c, t_m, flops, moved, peak, bandwidth: flops / bandwidth > moved / peak,
        ),
        stepped(
            timed,
            "the times are cut to whole seconds: // is a division that rounds down",
            ("Print 7 // 3 and 7 / 3.", "Divide by /, which keeps the fraction of a second."),
            compute=lambda flops, peak: flops // peak,
            memory=lambda moved, bandwidth: moved // bandwidth,
            is_compute=lambda t_c, t_m, flops, moved, peak, bandwidth: flops / peak > moved / bandwidth,
        ),
        stepped(
            timed,
            "the times are cut to whole seconds: // is a division that rounds down, and the bound compares these",
            ("Print 7 // 3 and 7 / 3.", "Divide by /, which keeps the fraction of a second."),
            compute=lambda flops, peak: flops // peak,
            memory=lambda moved, bandwidth: moved // bandwidth,
        ),
        stepped(
            timed,
            "a step without FLOPs takes no time: its bytes are not counted",
            _COPY_HINTS,
            show=lambda seconds, flops, moved, peak, bandwidth: seconds if flops else 0.0,
        ),
        stepped(
            timed,
            "a step without FLOPs divides by 0: the attainable rate is 0 there",
            _COPY_HINTS,
            no_flops,
            show=lambda seconds, flops, moved, peak, bandwidth: seconds if flops else math.nan,
        ),
        *MORE_TIMES,
    ),
    hints=(
        "Take 12 FLOPs, 10 bytes, 3 FLOP/s and 5 bytes/s: how long do the FLOPs take, how long the bytes?",
        "Two times, flops / peak and bytes_moved / bandwidth: return the longer one and its name.",
    ),
)
