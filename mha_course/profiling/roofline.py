"""The roofline of a machine: how fast it can compute, and how fast it can move what it computes with."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from mha_course.measure import _no_garbage_collection, _seconds
from mha_course.precision import instruction_set
from mha_course.profiling.counts import Cost


@dataclass(frozen=True)
class Machine:
    """What a machine can do at most.

    Attributes:
        peak: floating point operations a second.
        bandwidth: bytes a second between processor and memory.
        exp_rate: exponentials a second; infinity if they are not to be counted.
        name: of the machine.
        threads: with which this was measured.

    Raises:
        TypeError: a rate is not a number.
        ValueError: a rate is not positive; peak or bandwidth is infinite.
    """

    peak: float
    bandwidth: float
    exp_rate: float = math.inf
    name: str = ""
    threads: int = 1

    def __post_init__(self) -> None:
        """Refuse rates by which nothing can be divided."""
        for rate in ("peak", "bandwidth", "exp_rate"):
            _check_positive(rate, getattr(self, rate), finite=rate != "exp_rate")

    @property
    def ridge(self) -> float:
        """The intensity, in operations a byte, from which on computing takes longer than moving: peak / bandwidth."""
        return self.peak / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """Return the operations a second that a step of this intensity can reach: min(peak, bandwidth * intensity).

        Raises:
            ValueError: intensity is not at least 0.
        """
        if not intensity >= 0:
            raise ValueError(f"intensity must be at least 0, got {intensity}")
        return min(self.peak, self.bandwidth * intensity)

    def parts(self, cost: Cost) -> dict[str, float]:
        """Return the seconds that computing, moving and taking the exponentials would each take alone."""
        return {
            "memory": cost.bytes / self.bandwidth,
            "compute": cost.flops / self.peak,
            "exp": cost.exps / self.exp_rate,
        }

    def bound(self, cost: Cost) -> str:
        """Return what takes longest: "memory", "compute" or "exp"; of equals the first."""
        parts = self.parts(cost)
        return max(parts, key=parts.__getitem__)

    def seconds(self, cost: Cost) -> float:
        """Return the least time for a step, if its parts overlap fully: the longest of `parts`."""
        return max(self.parts(cost).values())


def measure_machine(
    *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", seconds: float = 1.0
) -> Machine:
    """Measure what this machine reaches, with the threads that PyTorch uses now.

    peak: a projection or the products of all heads, of sizes that attention has, whichever is faster
    bandwidth: reading 64 MiB (on CUDA 1 GiB), more than most caches hold, and writing as much where memory already is
    exp_rate: softmax of scores that stay in the cache, each score one exponential, its other operations included

    The three are measured in turn until the time is up, and each is the median of its rounds. Inputs are ordinary
    numbers: a CPU may compute many times slower with subnormal ones, those below 1.2e-38 in float32.

    Args:
        dtype: of the numbers; floating point, of at least 2 bytes.
        device: "cpu", or a CUDA device.
        seconds: about how long to measure; at least three rounds are made.

    Returns:
        Machine; its name is that of `precision.instruction_set`: the instructions that PyTorch uses, or the GPU.

    Raises:
        TypeError: dtype is not a floating point type of at least 2 bytes; seconds is not a number.
        ValueError: device is neither a CPU nor a CUDA device that is there; seconds is not positive and finite.

    Source: Williams, Waterman and Patterson 2009, section 3, which measures bandwidth likewise.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise TypeError(f"dtype must be a floating point type of at least 2 bytes, got {dtype}")
    _check_positive("seconds", seconds)
    device = torch.device(device)
    if device.type not in _SIZES:
        raise ValueError(f"device must be a CPU or a CUDA device, got {device}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device must be one of {torch.cuda.device_count()} CUDA devices, got {device}")
    end = time.perf_counter() + seconds
    work, calls = _work(_SIZES[device.type], dtype, device)
    taken: dict[str, list[float]] = {name: [] for name in work}
    with _no_garbage_collection():
        while len(taken["stream"]) < 3 or time.perf_counter() < end:
            for name, call in calls.items():
                call()  # what should be in the cache has left it for the stream
                taken[name].append(_seconds(call))
    rates = {name: work[name] / statistics.median(times) for name, times in taken.items()}
    peak = max(rates["projection"], rates["heads"])
    return Machine(peak, rates["stream"], rates["softmax"], instruction_set(device), torch.get_num_threads())


def _check_positive(name: str, x: float, finite: bool = True) -> None:
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise TypeError(f"{name} must be a number, got {type(x).__name__}")
    if not x > 0 or (finite and x == math.inf):
        raise ValueError(f"{name} must be positive{' and finite' * finite}, got {x}")


class _Sizes(NamedTuple):
    rows: int  # of a projection
    width: int
    heads: int
    length: int  # of a head's queries and keys
    stream: int  # bytes
    scores: tuple[int, int]


_SIZES = {
    "cpu": _Sizes(2048, 512, 8, 512, 2**26, (64, 1024)),
    "cuda": _Sizes(8192, 4096, 64, 2048, 2**30, (4096, 1024)),
}


def _work(
    sizes: _Sizes, dtype: torch.dtype, device: torch.device
) -> tuple[dict[str, int], dict[str, Callable[[], object]]]:
    """How much each call does, in operations, bytes or exponentials; and the calls."""
    draw = partial(torch.ones, dtype=dtype, device=device)
    x, weight, bias = draw(sizes.rows, sizes.width), draw(sizes.width, sizes.width), draw(sizes.width)
    q, k = draw(2, sizes.heads, sizes.length, 64)
    source, scores = draw(sizes.stream // dtype.itemsize), draw(*sizes.scores)
    y, s = torch.empty_like(x), draw(sizes.heads, sizes.length, sizes.length)
    target, weights = torch.empty_like(source), torch.empty_like(scores)
    work = {
        "projection": 2 * x.numel() * sizes.width,
        "heads": 2 * s.numel() * 64,
        "stream": 2 * source.nbytes,
        "softmax": scores.numel(),
    }
    return work, {
        "projection": lambda: torch.addmm(bias, x, weight, out=y),
        "heads": lambda: torch.bmm(q, k.mT, out=s),
        "stream": lambda: torch.add(source, 1, out=target),
        "softmax": lambda: torch.softmax(scores, -1, out=weights),
    }
