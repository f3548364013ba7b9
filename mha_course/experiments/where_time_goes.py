"""Experiments of notebook 15: operations and time of the steps of attention, and what neither shows."""

import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule

from mha_course.measure import PairedRatio, _without_chatter, paired_ratio, threads, timings
from mha_course.multihead import MultiHeadAttention
from mha_course.profiling import attention_costs, export_trace, operations


def written_out(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S D"]
) -> Float[Tensor, "B H T D"]:
    """Return softmax(q k^T / sqrt(D)) v, as one writes it by hand."""
    return ((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1) @ v


def growth(lengths: Sequence[int], E: int, H: int) -> dict[str, Int[np.ndarray, " lengths"]]:
    """Count the operations of self-attention with B = 1, for each length.

    Returns:
        "projections", "scores and weighted sum", "softmax" -> operations, one for each length.

    Raises:
        TypeError, ValueError: as `attention_costs`.
    """
    counts = [{name: cost.flops for name, cost in attention_costs(1, S, S, E, H).items()} for S in lengths]
    groups = {
        "projections": ("q_proj", "k_proj", "v_proj", "out_proj"),
        "scores and weighted sum": ("scores", "weighted sum"),
        "softmax": ("softmax",),
    }
    return {name: np.array([sum(count[step] for step in steps) for count in counts]) for name, steps in groups.items()}


def shares(S: int, E: int, H: int) -> dict[str, dict[str, float]]:
    """Return which part of all counted operations, and of the time of a call, each kind of step takes, in percent.

    The call is that of a module whose steps are written out, with B = 1; its time is what the profiler finds in nine.

    Returns:
        "of operations", "of time" -> "projections", "scores and weighted sum", "softmax", "not counted" -> percent.

    Raises:
        TypeError, ValueError: as `attention_costs`.
    """
    counts = {name: float(n[0]) for name, n in growth([S], E, H).items()} | {"not counted": 0.0}
    layer, x = MultiHeadAttention(E, H, backend="explicit"), torch.randn(1, S, E)
    times = dict.fromkeys(counts, 0.0)
    kinds = dict(zip(("addmm", "bmm", "_softmax"), counts, strict=False))
    for row in operations(torch.no_grad()(lambda: [layer(x) for _ in range(9)]), top=1000):
        times[kinds.get(row.name, "not counted")] += row.self_cpu_time
    found = {"of operations": counts, "of time": times}
    return {kind: {name: 100 * x / sum(of.values()) for name, x in of.items()} for kind, of in found.items()}


def recorded(calls: int, *, wait: int, warmup: int, active: int, repeat: int) -> list[int]:
    """Call a function under a profiler with a schedule; return which calls it recorded, from 0 on.

    In each round the profiler sleeps for `wait` calls, then runs without keeping anything for `warmup`, then records
    `active`. After `repeat` rounds it stops.

    Raises:
        ValueError, AssertionError: as `torch.profiler.schedule`.
    """
    found: list[int] = []

    def keep(recorder: profile) -> None:
        marks = [event.key for event in recorder.key_averages() if event.key.startswith("call ")]
        found[:] = sorted(int(mark.removeprefix("call ")) for mark in marks)

    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    options: dict[str, Any] = {"activities": [ProfilerActivity.CPU], "schedule": plan, "acc_events": True}
    with _without_chatter(), profile(on_trace_ready=keep, **options) as recorder:
        for call in range(calls):
            with torch.profiler.record_function(f"call {call}"):
                torch.ones(2).exp()
            recorder.step()
    return found


def in_trace(fn: Callable[[], Any], name: str) -> list[list[list[int]]]:
    """Return the shapes of the inputs of each call of an operation, in time, as `export_trace` wrote them to a file."""
    with tempfile.TemporaryDirectory() as folder:
        events = json.loads(export_trace(fn, Path(folder, "trace.json")).read_text(encoding="utf-8"))["traceEvents"]
    found = sorted((event for event in events if event.get("name") == name), key=lambda event: event["ts"])
    return [event["args"]["Input Dims"] for event in found]


def totals(fn: Callable[[], Any]) -> tuple[float, float]:
    """Return the sums of two columns of the profiler's table, in seconds: CPU total and Self CPU.

    CPU total of an operation holds the time of those that it called, which have rows of their own.
    """
    fn()
    with _without_chatter(), profile(activities=[ProfilerActivity.CPU]) as recorder:
        fn()
    rows = recorder.key_averages()
    return sum(row.cpu_time_total for row in rows) / 1e6, sum(row.self_cpu_time_total for row in rows) / 1e6


def new_against_used(mebibytes: int, *, rounds: int = 9) -> PairedRatio:
    """Compare filling memory just asked for with filling memory that is already there.

    Raises:
        TypeError: mebibytes is not an integer.
        ValueError: mebibytes is below 1; rounds is below 6.
    """
    if isinstance(mebibytes, bool) or not isinstance(mebibytes, int):
        raise TypeError(f"mebibytes must be an integer, got {type(mebibytes).__name__}")
    if mebibytes < 1:
        raise ValueError(f"mebibytes must be at least 1, got {mebibytes}")
    n = mebibytes * 2**18  # of four bytes
    used = torch.zeros(n)
    return paired_ratio(lambda: torch.empty(n).fill_(1.0), lambda: used.fill_(1.0), rounds=rounds)


def uneven_scores(low: float) -> Float[Tensor, "rows S"]:
    """Return scores that are 0 in the first column and `low` in all others."""
    scores = torch.full((256, 512), low)
    scores[:, 0] = 0.0
    return scores


def against_ordinary(low: float, *, flush: bool = False, rounds: int = 9) -> PairedRatio:
    """Compare the time of softmax for `uneven_scores(low)` with that for -20 in the place of low.

    exp(-20) = 2e-9 is an ordinary number. exp(-95) = 5.5e-42 is subnormal: below the smallest normal number of float32,
    1.2e-38, but above 0.

    Args:
        low: also NaN or infinity.
        flush: whether the processor is told to take subnormal numbers for 0, which is undone afterwards.
        rounds: as in `paired_ratio`.

    Raises:
        ValueError: rounds is below 6.
    """
    special, ordinary = uneven_scores(low), uneven_scores(-20.0)
    torch.set_flush_denormal(flush)
    try:
        return paired_ratio(lambda: special.softmax(-1), lambda: ordinary.softmax(-1), rounds=rounds)
    finally:
        torch.set_flush_denormal(False)


class Compiled(NamedTuple):
    """What came of compiling a function.

    Attributes:
        call: what to call: the compiled function, or the function itself where it could not be compiled.
        first: seconds of the first call, which compiles.
        said: one sentence.
    """

    call: Callable[..., Any]
    first: float
    said: str


def try_compile(fn: Callable[..., Any], *args: Any) -> Compiled:
    """Compile a function for these arguments; where that needs a C++ compiler and there is none, say so.

    Returns:
        Compiled(call, first, said); any other error is passed on.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's compiler uses what PyTorch gives up
        from torch._inductor.exc import InductorError  # half a second to import, and only needed here

        compiled = torch.compile(fn, dynamic=False)
        try:
            first = timings(lambda: compiled(*args), repeats=1, warmup=0).median
        except InductorError as error:
            if "No working C++ compiler" not in str(error):
                raise
            return Compiled(fn, 0.0, "Not compiled: this needs a C++ compiler, and none was found.")
    return Compiled(compiled, first, f"Compiled, in {first:.1f} s.")


def threads_against_one(fn: Callable[[], Any], n: int, *, rounds: int = 9) -> PairedRatio:
    """Compare a function on n threads with itself on one: below 1, n threads are faster.

    Raises:
        TypeError, ValueError: as `threads` and `paired_ratio`.
    """

    def on(count: int) -> Any:
        with threads(count):
            return fn()

    return paired_ratio(lambda: on(n), lambda: on(1), rounds=rounds)
