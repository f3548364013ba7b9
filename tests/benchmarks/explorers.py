"""Slider to new picture, in the kernel: python tests/benchmarks/explorers.py

Every value of every control of every explorer is set once, the other controls at their start.
A redraw is the assignment of a value: compute, draw, PNG, readout, until the widgets hold it.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from mha_course import explorers  # noqa: E402

CALLS = [*(f"explorers.{name}()" for name in explorers.__all__), 'explorers.positions("distance")']
MEDIAN_LIMIT_MS, P95_LIMIT_MS = 80, 200


def values(control: Any) -> list[Any]:
    """Every value that a control can take."""
    if hasattr(control, "options"):
        return list(control.options)
    if not hasattr(control, "step"):
        return [False, True]
    steps = round((control.max - control.min) / control.step)
    return [control.min + i * control.step for i in range(steps + 1)]


def redraws(explorer: Any) -> Iterator[float]:
    """Milliseconds of each redraw; an error in the panel ends the benchmark."""
    for name, control in explorer.controls.items():
        start_value = control.value
        for value in [*values(control), start_value]:
            if value == control.value:
                continue  # no change, no redraw
            begin = time.perf_counter()
            control.value = value
            yield 1000 * (time.perf_counter() - begin)
            if explorer.error.value:
                raise SystemExit(f"{name} = {value}: {explorer.error.value}")


def main() -> bool:
    """Print the table; whether every explorer keeps to the limits."""
    torch.set_num_threads(1)
    kept = True
    print("| explorer | redraws | median ms | p95 ms | largest ms | limit (median, p95) |")
    print("|---|---|---|---|---|---|")
    for call in CALLS:
        times = list(redraws(eval(call)))
        median, p95 = statistics.median(times), statistics.quantiles(times, n=20)[-1]
        limit = f"{MEDIAN_LIMIT_MS}, {P95_LIMIT_MS}"
        shown = f"{median:.1f} | {p95:.1f} | {max(times):.1f}"
        print(f"| {call} | {len(times)} | {shown} | {limit} |")
        kept = kept and median <= MEDIAN_LIMIT_MS and p95 <= P95_LIMIT_MS
    return kept


if __name__ == "__main__":
    sys.exit(not main())
