"""`tiled.attention` against explicit attention and SDPA: memory, with limits, and time, as ratios.

Run it as: python tests/benchmarks/tiled.py [rounds]
Forward + backward, B = 1, H = 1, D = 64, float32, one thread. Memory is the peak above the inputs;
its exponent p is fitted to memory = c S^p. A ratio of times below 1 means that tiled is faster;
beside it stands tiled against itself. Times have no limit: they depend on the machine.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from mha_course import attention, tiled  # noqa: E402
from mha_course.masks import causal  # noqa: E402
from mha_course.measure import paired_ratio, peak_memory, threads, timings  # noqa: E402

D = 64
EXPONENT, AGAINST_SDPA = 1.1, 2.0
LENGTHS = (1024, 2048, 4096, 8192, 16384)
LONGEST = {"tiled": LENGTHS[-1], "SDPA": LENGTHS[-1], "explicit": 4096}


def explicit(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False) -> Tensor:
    """Attention that holds every score."""
    return attention(q, k, v, mask=causal(q.shape[2]) if is_causal else None).out


PATHS = {"tiled": tiled.attention, "SDPA": F.scaled_dot_product_attention, "explicit": explicit}


def work(attend: Callable[..., Tensor], S: int, is_causal: bool = False) -> Callable[[], tuple[Tensor, ...]]:
    """One call and every gradient."""
    torch.manual_seed(0)
    q, k, v, up = torch.randn(4, 1, 1, S, D)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    return lambda: torch.autograd.grad(attend(*inputs, is_causal=is_causal), inputs, up)


def exponent(peaks: dict[int, int]) -> float:
    """The slope of log memory over log S by least squares."""
    x, y = (torch.tensor([math.log(n) for n in ns], dtype=torch.float64) for ns in (peaks, peaks.values()))
    x = x - x.mean()
    return ((x * y).sum() / x.square().sum()).item()


def memory() -> bool:
    """Print the peaks; whether both limits are kept."""
    print(f"| MiB at S = | {' | '.join(map(str, LENGTHS))} | exponent | limit |")
    print(f"|---|{'---|' * (len(LENGTHS) + 2)}")
    peaks: dict[str, dict[int, int]] = {}
    for name, attend in PATHS.items():
        peaks[name] = {S: peak_memory(work(attend, S)) for S in LENGTHS if S <= LONGEST[name]}
        shown = [f"{peaks[name][S] / 2**20:.1f}" if S in peaks[name] else "" for S in LENGTHS]
        limit = EXPONENT if name == "tiled" else ""
        print(f"| {name} | {' | '.join(shown)} | {exponent(peaks[name]):.2f} | {limit} |")
    ratio = peaks["tiled"][8192] / peaks["SDPA"][8192]
    print(f"\nTiled against SDPA at S = 8192: {ratio:.2f} times the memory, limit {AGAINST_SDPA}.\n")
    return exponent(peaks["tiled"]) <= EXPONENT and ratio <= AGAINST_SDPA


def times(rounds: int) -> None:
    """Print the ratios."""
    print(f"| {rounds} rounds | against | tiled ms | ratio | 95 % interval | tiled against itself |")
    print("|---|---|---|---|---|---|")
    for S in (1024, 4096):
        for is_causal in (False, True):
            mine = work(tiled.attention, S, is_causal)
            median = 1000 * timings(mine).median
            for name in ("explicit", "SDPA"):
                other = work(PATHS[name], S, is_causal)
                torch.testing.assert_close(mine(), other(), rtol=1e-3, atol=1e-4)
                ratio = paired_ratio(mine, other, rounds=rounds)
                shown = f"{ratio.median:.3f} | {ratio.low:.3f} to {ratio.high:.3f} | {ratio.control:.3f}"
                print(f"| S = {S}{', causal' * is_causal} | {name} | {median:.0f} | {shown} |", flush=True)


def main(rounds: int) -> bool:
    """Print both tables; whether memory keeps to its limits."""
    with threads(1):
        kept = memory()
        times(rounds)
    return kept


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 11))
