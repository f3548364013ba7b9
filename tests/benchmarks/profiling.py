"""What the roofline predicts for each step of attention, against what the step takes.

Run it as: python tests/benchmarks/profiling.py [rounds]
One thread, float32. Each round measures the machine and then the steps, forward or backward; a ratio is the median over
the rounds of measured / predicted. The acceptance is a factor of 1.5 for each step and for the sum. Below the large
shapes stands a small one, whose tensors stay in the cache: it is shown, and not judged.
"""

import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from mha_course import MultiHeadAttention  # noqa: E402
from mha_course.measure import threads  # noqa: E402
from mha_course.profiling import attention_costs, compare, measure_machine, step_times  # noqa: E402

LARGE = ((4, 512, 512, 8), (1, 2048, 512, 8), (1, 2048, 1024, 8))
SMALL = ((1, 128, 512, 8),)
LIMIT = 1.5


def measure(sizes: tuple[int, int, int, int], backward: bool, rounds: int) -> dict[str, list[float]]:
    """The ratios of each step and of the sum."""
    B, S, E, H = sizes
    layer, x = MultiHeadAttention(E, H), torch.randn(B, S, E)
    costs = attention_costs(B, S, S, E, H, backward=backward)
    ratios: dict[str, list[float]] = {}
    for _ in range(rounds):
        machine = measure_machine(seconds=0.5)
        rows = compare(costs, step_times(layer, x, repeats=5, backward=backward), machine)
        for row in rows:
            ratios.setdefault(row.step, []).append(row.ratio)
        total = sum(row.measured for row in rows) / sum(row.predicted for row in rows)
        ratios.setdefault("sum", []).append(total)
    return ratios


def main(rounds: int) -> bool:
    """Print the table; whether every median of the large shapes keeps to the limit."""
    kept = True
    with threads(1):
        print(measure_machine())
        print("| B, S, E, H | pass | step | measured / predicted | least to largest | within 1.5 |")
        print("|---|---|---|---|---|---|")
        for sizes in (*LARGE, *SMALL):
            for backward in (False, True):
                for step, ratios in measure(sizes, backward, rounds).items():
                    middle = statistics.median(ratios)
                    well = 1 / LIMIT <= middle <= LIMIT
                    kept &= well or sizes in SMALL
                    judged = "not judged" if sizes in SMALL else "yes" if well else "NO"
                    where = f"{', '.join(map(str, sizes))} | {'backward' if backward else 'forward'} | {step}"
                    print(f"| {where} | {middle:.2f} | {min(ratios):.2f} to {max(ratios):.2f} | {judged} |", flush=True)
    return kept


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
