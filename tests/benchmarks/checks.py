"""How long a check of an exercise takes, for a right solution and for one that no variation reproduces.

Run it as: python tests/benchmarks/checks.py [repeats]
A wrong solution takes longest: every variation is tried.
"""

import sys
from functools import partial

from mha_course.checks import check, engine, tasks
from mha_course.measure import threads, timings

LIMIT_MS = 100


def wrong(reference, *inputs):
    """The reference, with an error that has no name."""
    results = reference(*inputs)
    return tuple(x + 1e-5 for x in results) if isinstance(results, tuple) else results + 1e-5


def main(repeats: int) -> bool:
    """Print the table; whether every median keeps to the limit."""
    print(f"| {repeats} checks each | right, median ms | wrong, median ms | largest | limit |")
    print("|---|---|---|---|---|")
    medians = []
    for name in tasks():
        reference = engine._TASKS[name].reference
        with threads(1):
            both = [timings(partial(check, name, fn), repeats=repeats) for fn in (reference, partial(wrong, reference))]
        right, bad = (1000 * timing.median for timing in both)
        largest = 1000 * max(max(timing.seconds) for timing in both)
        print(f"| {name} | {right:.1f} | {bad:.1f} | {largest:.1f} | {LIMIT_MS} |")
        medians += [right, bad]
    return max(medians) <= LIMIT_MS


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 21))
