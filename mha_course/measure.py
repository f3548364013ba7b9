"""Measure time and memory so that the number can be believed.

A time is one of several, with its spread. A comparison is paired, with a control beside it.
Memory is counted from PyTorch's own allocations, not guessed from the process.
"""

import gc
import os
import re
import statistics
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

_PROFILER = threading.RLock()  # PyTorch has one profiler for the whole process
# what the profiler writes about its start, its stop, and a release of memory held before
_CHATTER = re.compile(
    rb"(?:(?:VERBOSE|INFO|WARNING|ERROR|STAGE|USDT):[\d: -]+ SyncActivityProfilerHandler\.cpp"
    rb"|\[?[IWE]\d{4} [\d:. ]+ CPUAllocator\.cpp):\d+\][^\n]*\n?"
)


class Timing(NamedTuple):
    """How long a function took.

    Attributes:
        seconds: one time in seconds for each repeat, in the order in which they were taken.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median in seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The lower and the upper quartile in seconds."""
        if len(self.seconds) == 1:
            return self.seconds * 2
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    def __repr__(self) -> str:
        """For example: 1.23 ms (quartiles 1.2 and 1.31 ms, repeats: 7)."""
        units = ((1, "s"), (1e3, "ms"), (1e6, "us"))
        factor, unit = next((u for u in units if float(_digits(u[0] * self.median)) >= 1), (1e9, "ns"))
        middle, low, high = (_digits(factor * x) for x in (self.median, *self.spread))
        return f"{middle} {unit} (quartiles {low} and {high} {unit}, repeats: {len(self.seconds)})"


class PairedRatio(NamedTuple):
    """How many times as long as b a function a takes: below 1, a is faster.

    Attributes:
        median: the median over the rounds of (time of a) / (time of b).
        low, high: the ends of an interval that holds the true median with at least 95 %.
        control: the same median for a against itself; its distance from 1 shows what a ratio is worth.
    """

    median: float
    low: float
    high: float
    control: float

    def __repr__(self) -> str:
        """For example: 0.52 (95 % interval 0.50 to 0.55; a against itself 1.00)."""
        middle, low, high, control = map(_digits, self)
        return f"{middle} (95 % interval {low} to {high}; a against itself {control})"


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Compute with n threads inside the `with`, and with as many as before after it.

    Args:
        n: number of threads of PyTorch's operations on the CPU, at least 1.

    Raises:
        TypeError: n is not an integer.
        ValueError: n is below 1.
    """
    _check_count("n", n, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def timings(fn: Callable[[], Any], *, repeats: int = 7, warmup: int = 1) -> Timing:
    """Time a function several times.

    Each time is wall time from the call until its work is done: after each call CUDA, if the
    process uses it, and MPS, if there is one, are waited for. Python's garbage collector is
    paused, and the result is freed outside of the time.

    Args:
        fn: called without arguments.
        repeats: number of times taken, at least 1.
        warmup: number of calls before them that are not timed, at least 0.

    Returns:
        Timing(seconds); what fn raises is passed on.

    Raises:
        TypeError: fn cannot be called, or returns a generator or coroutine; repeats or warmup is not an integer.
        ValueError: repeats is below 1, warmup below 0.
    """
    _check_callable("fn", fn)
    _check_count("repeats", repeats, 1)
    _check_count("warmup", warmup, 0)
    with _no_garbage_collection():
        taken = [_seconds(fn) for _ in range(warmup + repeats)]
    return Timing(tuple(taken[warmup:]))


def paired_ratio(fn_a: Callable[[], Any], fn_b: Callable[[], Any], *, rounds: int = 21, warmup: int = 1) -> PairedRatio:
    """Compare two functions in turn, so that a machine that slows down slows both.

    Each round times a, b, a.
    ratio of a round = (mean of both times of a) / (time of b)
    control of a round = (first time of a) / (second time of a)
    A ratio of two medians may be 3 % off where the median of paired ratios is 0.3 % off.

    Args:
        fn_a: a, called without arguments, timed as by `timings`.
        fn_b: b, likewise.
        rounds: at least 6; fewer do not give an interval.
        warmup: number of calls of each before the first round, at least 0.

    Returns:
        PairedRatio(median, low, high, control); what a function raises is passed on.

    Raises:
        TypeError: as in `timings`; rounds or warmup is not an integer.
        ValueError: rounds is below 6, warmup below 0; fn_a or fn_b is too short for the clock.

    Source: Conover, Practical Nonparametric Statistics, 3rd edition 1999, section 3.2: the
        interval for a median runs between two order statistics.
    """
    _check_callable("fn_a", fn_a)
    _check_callable("fn_b", fn_b)
    _check_count("rounds", rounds, 6)
    _check_count("warmup", warmup, 0)
    outer = _outer_order_statistic(rounds)
    ratios, controls = [], []
    with _no_garbage_collection():
        for _ in range(warmup):
            _seconds(fn_a)
            _seconds(fn_b)
        for _ in range(rounds):
            first, b, second = _seconds(fn_a), _seconds(fn_b), _seconds(fn_a)
            if not min(first, b, second):
                raise ValueError("fn_a and fn_b must last longer than the clock's step, got 0 s: let a call do more")
            ratios.append((first + second) / 2 / b)
            controls.append(first / second)
    ratios.sort()
    return PairedRatio(statistics.median(ratios), ratios[outer], ratios[-1 - outer], statistics.median(controls))


def peak_memory(fn: Callable[[], Any], *, device: torch.device | str = "cpu") -> int:
    """Count the bytes that PyTorch holds at the peak while fn runs, above what it held before.

    On the CPU every allocation and release of the calling thread and of PyTorch's own threads is
    recorded by PyTorch's profiler: exact, and the same in each run. Not seen are threads that
    fn starts in Python, the release of memory that was held before, and what other libraries
    allocate, NumPy for one. What fn writes to standard error comes out at the end.
    On CUDA it is `torch.cuda.max_memory_allocated`, whose peak statistics are reset.

    Args:
        fn: called once without arguments; its result lives until the end of the measurement.
        device: "cpu", or the CUDA device on which fn works.

    Returns:
        Bytes, at least 0; what fn raises is passed on.

    Raises:
        TypeError: fn cannot be called, or returns a generator or coroutine.
        ValueError: device is neither a CPU nor a CUDA device.
        RuntimeError: called inside another `peak_memory`, while another profiler records, or fn runs one.
    """
    _check_callable("fn", fn)
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be a CPU or a CUDA device, got {device}")
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = _ran(fn())
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _PROFILER:
        if torch.autograd._profiler_enabled():
            raise RuntimeError("peak_memory cannot run while another profiler is recording")
        recorder = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        with _without_chatter(), recorder:
            result = _ran(fn())  # noqa: F841
            if not torch.autograd._profiler_enabled():
                raise RuntimeError("fn must not run a profiler itself: it ends the one that records")
    kineto: Any = recorder.profiler
    events = sorted(kineto.kineto_results.events(), key=lambda e: e.start_ns())
    on_cpu = (e for e in events if e.device_type() == torch.autograd.DeviceType.CPU)
    return max(accumulate((e.nbytes() for e in on_cpu if e.name() == "[memory]"), initial=0))


def _seconds(fn: Callable[[], Any]) -> float:
    start = time.perf_counter()
    result = fn()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if torch.backends.mps.is_available():
        torch.mps.synchronize()
    end = time.perf_counter()
    _ran(result)
    return end - start


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Hold back what is written to file descriptor 2 inside; pass it on without `_CHATTER`.

    PyTorch's profiler writes from C++, past sys.stderr, and no setting made after
    `import torch` stops it. In a notebook sys.stderr is not file descriptor 2 and is not delayed.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        original = os.dup(2)
    except OSError:  # a process without standard error
        yield
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(original, 2)
            os.close(original)
            file.seek(0)
            os.write(2, _CHATTER.sub(b"", file.read()))


def _outer_order_statistic(n: int) -> int:
    """How many of n sorted values lie outside each end of a 95 % interval for the median."""
    outer, binomial, misses, most = -1, 1, 1, 2**n // 40  # the median lies outside in 2 * misses of 2**n cases
    while misses <= most:
        outer += 1
        binomial = binomial * (n - outer) // (outer + 1)
        misses += binomial
    return outer


def _digits(x: float) -> str:  # three significant ones, without an exponent below a million
    return f"{float(f'{x:.3g}'):g}"


def _ran(result: Any) -> Any:
    """Refuse the result of a function whose body has not run."""
    if isinstance(result, types.CoroutineType):
        result.close()  # else Python warns that nobody waited for it
    if isinstance(result, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        raise TypeError(f"a measured function must run its body, got a {type(result).__name__}: use it up inside")
    return result


def _check_callable(name: str, fn: Any) -> None:
    if not callable(fn):
        raise TypeError(f"{name} must be a function without arguments, got {type(fn).__name__}")


def _check_count(name: str, n: Any, least: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"{name} must be an integer, got {type(n).__name__}")
    if n < least:
        raise ValueError(f"{name} must be at least {least}, got {n}")
