"""Wrong solutions of the exercises of notebook 15: the time that a roofline predicts."""

from tests.checks.bank_exercises import wrong

roofline = "roofline_seconds"

SWAPPED_BOUND = r"bound.*(chang|swap|wrong|invert|exchang|other|opposite|turn)|(chang|swap|invert).*bound"


@wrong(roofline, "both times are added", r"\badd|\bsum|one after|plus")
def added(flops, bytes_moved, peak, bandwidth):
    t_compute = flops / peak
    t_memory = bytes_moved / bandwidth
    return t_compute + t_memory, "compute" if t_compute > t_memory else "memory"


@wrong(roofline, "the shorter of both times is taken", r"short|small|min|longer|fast")
def the_shorter(flops, bytes_moved, peak, bandwidth):
    compute, memory = flops / peak, bytes_moved / bandwidth
    return min(compute, memory), "compute" if compute < memory else "memory"


@wrong(roofline, "the shorter time, with the right bound", r"short|small|min|longer|fast")
def the_shorter_rightly_named(flops, bytes_moved, peak, bandwidth):
    times = {"compute": flops / peak, "memory": bytes_moved / bandwidth}
    return min(times.values()), max(times, key=times.get)


@wrong(roofline, "the names of the bounds are exchanged", SWAPPED_BOUND)
def names_exchanged(flops, bytes_moved, peak, bandwidth):
    seconds = max(flops / peak, bytes_moved / bandwidth)
    if flops / peak < bytes_moved / bandwidth:
        return seconds, "compute"
    return seconds, "memory"


@wrong(roofline, "bound: to the left of the ridge is memory, here it is called compute", SWAPPED_BOUND)
def ridge_the_wrong_way(flops, bytes_moved, peak, bandwidth):
    intensity = flops / bytes_moved
    ridge = peak / bandwidth
    bound = "compute" if intensity < ridge else "memory"
    return max(flops / peak, bytes_moved / bandwidth), bound


@wrong(roofline, "the ridge is upside down", r"ridge|bandwidth / peak|invert|upside|bound")
def ridge_upside_down(flops, bytes_moved, peak, bandwidth):
    intensity = flops / bytes_moved
    ridge = bandwidth / peak
    bound = "compute" if intensity > ridge else "memory"
    seconds = max(flops / peak, bytes_moved / bandwidth)
    return seconds, bound


@wrong(roofline, "the intensity is upside down", r"intensity|bytes (per|/) FLOP|upside|invert|bound")
def intensity_upside_down(flops, bytes_moved, peak, bandwidth):
    intensity = bytes_moved / flops if flops else float("inf")
    ridge = peak / bandwidth
    bound = "memory" if intensity < ridge else "compute"
    return max(flops / peak, bytes_moved / bandwidth), bound


@wrong(roofline, "bytes are counted as bits", r"\bbits?\b|\b8\b")
def bits(flops, bytes_moved, peak, bandwidth):
    t_c = flops / peak
    t_m = 8 * bytes_moved / bandwidth
    return max(t_c, t_m), ("compute" if t_c >= t_m else "memory")


@wrong(roofline, "numbers of 4 bytes are counted, not bytes", r"\b4\b|float32|elements")
def four_bytes(flops, bytes_moved, peak, bandwidth):
    t_c = flops / peak
    t_m = bytes_moved * 4 / bandwidth
    return max(t_c, t_m), ("compute" if t_c >= t_m else "memory")


@wrong(roofline, "the factor 2 is put in once more", r"\b2\b|twice|double")
def two_flops(flops, bytes_moved, peak, bandwidth):
    t_c = 2 * flops / peak
    t_m = bytes_moved / bandwidth
    return max(t_c, t_m), ("compute" if t_c >= t_m else "memory")


@wrong(roofline, "bytes are read and written, counted twice", r"\b2\b|twice|double")
def there_and_back(flops, bytes_moved, peak, bandwidth):
    t_c = flops / peak
    t_m = 2 * bytes_moved / bandwidth
    return max(t_c, t_m), ("compute" if t_c >= t_m else "memory")


@wrong(roofline, "milliseconds are returned", r"millisec|\bms\b|1000|unit")
def milliseconds(flops, bytes_moved, peak, bandwidth):
    t_c, t_m = 1e3 * flops / peak, 1e3 * bytes_moved / bandwidth
    return (t_c, "compute") if t_c > t_m else (t_m, "memory")


@wrong(roofline, "peak in GFLOP/s is assumed", r"1e9|10\^9|GFLOP|giga|unit|billion")
def giga(flops, bytes_moved, peak, bandwidth):
    t_c, t_m = flops / (peak * 1e9), bytes_moved / (bandwidth * 1e9)
    return (t_c, "compute") if t_c > t_m else (t_m, "memory")


@wrong(roofline, "only the arithmetic counts for the time", r"memory|bytes|bandwidth|peak alone|compute alone|never")
def compute_alone(flops, bytes_moved, peak, bandwidth):
    bound = "compute" if flops / peak > bytes_moved / bandwidth else "memory"
    return flops / peak, bound


@wrong(roofline, "only the bytes count for the time", r"FLOP|compute|peak|memory alone|bandwidth alone|never")
def memory_alone(flops, bytes_moved, peak, bandwidth):
    bound = "compute" if flops / peak > bytes_moved / bandwidth else "memory"
    return bytes_moved / bandwidth, bound


@wrong(roofline, "the attainable rate is returned, not the time", r"rate|attainable|FLOP/s|not (the|a) time|divide")
def attainable_rate(flops, bytes_moved, peak, bandwidth):
    intensity = flops / bytes_moved
    attainable = min(peak, intensity * bandwidth)
    return attainable, "compute" if attainable == peak else "memory"


@wrong(roofline, "the intensity is returned", r"intensity|FLOP(s)? (per|/) byte")
def intensity_returned(flops, bytes_moved, peak, bandwidth):
    intensity = flops / bytes_moved
    return intensity, "compute" if intensity > peak / bandwidth else "memory"


@wrong(roofline, "the time is upside down", r"upside|invert|rate|reciprocal|per second|1 / ")
def upside_down(flops, bytes_moved, peak, bandwidth):
    if flops == 0:
        return bandwidth / bytes_moved, "memory"
    t_c, t_m = peak / flops, bandwidth / bytes_moved
    return max(t_c, t_m), "compute" if t_c > t_m else "memory"


@wrong(roofline, "a step without FLOPs divides by 0", r"no FLOP|without|\b0\b|zero|divi")
def zero_division(flops, bytes_moved, peak, bandwidth):
    intensity = flops / bytes_moved
    attainable = min(peak, bandwidth * intensity)
    seconds = flops / attainable
    return seconds, "memory" if intensity < peak / bandwidth else "compute"


@wrong(roofline, "a step without FLOPs takes no time", r"no FLOP|without|\b0\b|zero|no time")
def no_flops_no_time(flops, bytes_moved, peak, bandwidth):
    if flops == 0:
        return 0.0, "memory"
    intensity = flops / bytes_moved
    rate = min(peak, bandwidth * intensity)
    return flops / rate, "compute" if rate == peak else "memory"


@wrong(roofline, "whole seconds are returned", r"whole|integer|round|//|fraction")
def whole_seconds(flops, bytes_moved, peak, bandwidth):
    t_c, t_m = flops // peak, bytes_moved // bandwidth
    return max(t_c, t_m), "compute" if flops / peak > bytes_moved / bandwidth else "memory"


@wrong(
    roofline,
    "bandwidth and peak have changed places",
    r"chang|swap|place|peak and bandwidth|bandwidth and peak|exchang",
)
def exchanged(flops, bytes_moved, peak, bandwidth):
    t_c, t_m = flops / bandwidth, bytes_moved / peak
    return max(t_c, t_m), "compute" if t_c > t_m else "memory"


@wrong(roofline, "only the time is returned", r"one|tuple|results|bound")
def time_alone(flops, bytes_moved, peak, bandwidth):
    return max(flops / peak, bytes_moved / bandwidth)


@wrong(roofline, "the results are in the wrong order", r"order|places|first|seconds")
def wrong_order(flops, bytes_moved, peak, bandwidth):
    t_c, t_m = flops / peak, bytes_moved / bandwidth
    return ("compute", t_c) if t_c > t_m else ("memory", t_m)


@wrong(roofline, "the bound is True or False", r"bound|bool|word|str|name")
def yes_or_no(flops, bytes_moved, peak, bandwidth):
    t_c, t_m = flops / peak, bytes_moved / bandwidth
    return max(t_c, t_m), t_m > t_c


@wrong(roofline, "the bound has another word", r"bound|word|name")
def other_word(flops, bytes_moved, peak, bandwidth):
    t_c, t_m = flops / peak, bytes_moved / bandwidth
    return max(t_c, t_m), "bandwidth" if t_m > t_c else "arithmetic"


@wrong(roofline, "the time is the mean of both", r"mean|average|between|product")
def mean_time(flops, bytes_moved, peak, bandwidth):
    t_c, t_m = flops / peak, bytes_moved / bandwidth
    return (t_c + t_m) / 2, "compute" if t_c > t_m else "memory"


@wrong(roofline, "the bound is always memory", r"always|bound")
def always_memory(flops, bytes_moved, peak, bandwidth):
    return max(flops / peak, bytes_moved / bandwidth), "memory"
