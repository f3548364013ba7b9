"""The time of a roofline in steps, each of which a wrong solution may do wrongly."""

from collections.abc import Callable, Mapping

from mha_course.checks.task import Case, by_steps

Time = Callable[[float, float], float]
Result = tuple[float, str]


def roofline_cases() -> tuple[Case, ...]:
    """FLOPs, bytes, FLOPs and bytes of a second: small enough to be worked out by hand."""
    names = ("flops", "bytes_moved", "peak", "bandwidth")
    of = (
        ((601, 13, 7, 2), ""),
        ((11, 601, 5, 3), ""),
        ((13, 3, 7, 2), ""),
        ((7, 5, 3, 2), ""),
        ((11, 7, 2, 5), ""),
        ((5, 13, 7, 11), ""),
        ((3, 2, 601, 13), ""),
        ((0, 13, 7, 3), "a copy: no FLOPs"),
        ((101, 7, 3, 13), ""),
        ((5, 17, 71, 3), ""),
    )
    return tuple(Case(dict(zip(names, values, strict=True)), values, note) for values, note in of)


def no_flops(sizes: Mapping[str, int]) -> bool:
    """Whether a case is a copy, where a division by FLOPs or by an attainable rate raises."""
    return sizes["flops"] == 0


@by_steps
def timed(
    compute: Time = lambda flops, peak: flops / peak,
    memory: Time = lambda moved, bandwidth: moved / bandwidth,
    choose: Callable[[float, float], float] = max,
    is_compute: Callable[..., bool] = lambda t_c, t_m, **given: t_c > t_m,
    show: Callable[..., float] = lambda seconds, **given: seconds,
) -> Callable[..., Result]:
    """A solution, some of its steps changed: two times, the longer one, and its name."""

    def roofline_seconds(flops: float, bytes_moved: float, peak: float, bandwidth: float) -> Result:
        t_c, t_m = compute(flops, peak), memory(bytes_moved, bandwidth)
        given = {"flops": flops, "moved": bytes_moved, "peak": peak, "bandwidth": bandwidth}
        seconds = show(choose(t_c, t_m), **given)
        return seconds, "compute" if is_compute(t_c, t_m, **given) else "memory"

    return roofline_seconds
