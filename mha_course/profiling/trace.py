"""What PyTorch's profiler saw: a table of operations, and a trace to look at."""

import gzip
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from mha_course.measure import _PROFILER, _check_callable, _check_count, _ran, _without_chatter

_ORDERS = ("self_cpu_time", "self_device_time", "calls", "memory")


class Operation(NamedTuple):
    """All calls of one of PyTorch's operations.

    Attributes:
        name: PyTorch's, without "aten::".
        calls: how often it was called, by others of its operations too.
        self_cpu_time: seconds on the CPU, those of operations that it called left out.
        self_device_time: seconds on a GPU, likewise; 0 without one.
        memory: bytes that it took on the CPU and on the GPU, less those that it gave back.
    """

    name: str
    calls: int
    self_cpu_time: float
    self_device_time: float
    memory: int


class Operations(tuple[Operation, ...]):
    """The rows of `operations`, shown as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        """One line for each operation; the time on a GPU only where there was any."""
        on_device = any(row.self_device_time for row in self)
        width = max([len("operation"), *(len(row.name) for row in self)])
        device = f"{'GPU':>13}" if on_device else ""
        lines = [f"{'operation':{width}}{'calls':>7}{'CPU':>13}{device}{'memory':>14}"]
        for row in self:
            device = f"{1e3 * row.self_device_time:10.3f} ms" if on_device else ""
            times = f"{1e3 * row.self_cpu_time:10.3f} ms{device}"
            lines.append(f"{row.name:{width}}{row.calls:7}{times}{row.memory / 2**20:z10.2f} MiB")
        return "\n".join(lines)


def operations(fn: Callable[[], Any], *, top: int = 8, by: str = "self_cpu_time", warmup: int = 1) -> Operations:
    """Run a function and list PyTorch's operations that cost most.

    The profiler itself takes a few microseconds for each call: small operations look slower than they are.

    Args:
        fn: called without arguments. What runs on a GPU is recorded where the process uses CUDA.
        top: number of rows at most.
        by: "self_cpu_time", "self_device_time", "calls" or "memory": what to sort by, the largest first; equal ones by
            name.
        warmup: number of calls before the one that is recorded, at least 0.

    Returns:
        Operations, a tuple of `Operation(name, calls, self_cpu_time, self_device_time, memory)`; `print` shows a
        table. What fn raises is passed on.

    Raises:
        TypeError: fn cannot be called, or returns a generator or coroutine; top or warmup is not an integer.
        ValueError: top is below 1, warmup below 0; by is unknown.
        RuntimeError: another profiler is recording, or fn runs one.
    """
    _check_count("top", top, 1)
    if not isinstance(by, str) or by not in _ORDERS:
        raise ValueError(f"by must be one of {', '.join(_ORDERS)}, got {by!r}")
    with _recorded(fn, warmup) as recorder:
        found = [
            Operation(
                event.key.removeprefix("aten::"),
                event.count,
                event.self_cpu_time_total / 1e6,
                event.self_device_time_total / 1e6,
                event.self_cpu_memory_usage + event.self_device_memory_usage,
            )
            for event in recorder.key_averages()
            if event.key != "[memory]"
        ]
    found.sort(key=lambda row: (-getattr(row, by), row.name))
    return Operations(found[:top])


def export_trace(fn: Callable[[], Any], path: str | os.PathLike[str], *, warmup: int = 1) -> Path:
    """Run a function and store when each of PyTorch's operations ran, for the trace viewer of a browser.

    The file is JSON in Chrome's trace format, with the shapes of inputs; https://ui.perfetto.dev shows it, and so does
    the page chrome://tracing of Chrome. Nothing stands under the name until the file is whole.

    Args:
        fn: called without arguments. What runs on a GPU is recorded where the process uses CUDA.
        path: of the file, in a folder that exists. A file of this name is replaced. With ".gz" at its end it is
            compressed.
        warmup: number of calls before the one that is recorded, at least 0.

    Returns:
        The path. What fn raises is passed on, and no file is written.

    Raises:
        TypeError: path is not a path; fn cannot be called, or returns a generator or coroutine; warmup is not an
            integer.
        ValueError: path's folder does not exist, or path is a folder or a device itself; warmup is below 0.
        OSError: there is no room for the file, or no right to write it.
        RuntimeError: another profiler is recording, or fn runs one.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a path, got {type(path).__name__}")
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"path must lie in a folder that exists, got {path}")
    if path.exists() and not path.is_file():
        raise ValueError(f"path must name a file, got {'the folder' if path.is_dir() else 'the device'} {path}")
    here = path.absolute()  # wherever fn goes
    unfinished = here.with_name(f".{os.getpid()}-trace")
    with _recorded(fn, warmup) as recorder, tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "trace.json")  # the profiler writes the name into the file, a quotation mark as it is
        recorder.export_chrome_trace(str(whole))
        if not whole.exists():
            raise OSError(f"the profiler could not write its trace in {folder}: is the disk full?")
        try:
            compressed = path.name.endswith(".gz")
            with whole.open("rb") as source, (gzip.open if compressed else open)(unfinished, "wb") as target:
                shutil.copyfileobj(source, target)
            unfinished.replace(here)
        finally:
            unfinished.unlink(missing_ok=True)
    return path


@contextmanager
def _recorded(fn: Callable[[], Any], warmup: int) -> Iterator[profile]:
    """Run fn under the profiler; hold back the profiler's chatter until what was recorded has been read."""
    _check_callable("fn", fn)
    _check_count("warmup", warmup, 0)
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        activities.append(ProfilerActivity.CUDA)
    with _PROFILER:
        if torch.autograd._profiler_enabled():
            raise RuntimeError("the profiler cannot record while another one does")
        for _ in range(warmup):
            _ran(fn())
        recorder = profile(activities=activities, profile_memory=True, record_shapes=True)
        with _without_chatter():
            with recorder:
                _ran(fn())
                if not torch.autograd._profiler_enabled():
                    raise RuntimeError("fn must not run a profiler itself: it ends the one that records")
                if len(activities) > 1:
                    torch.cuda.synchronize()
            yield recorder
