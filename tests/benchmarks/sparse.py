"""`sliding_window` against SDPA: how its time and memory grow with the length, and from where on it is faster.

Run it as: python tests/benchmarks/sparse.py [rounds]
B = 1, H = 8, D = 64, window 128, one thread. Forward is inference (no gradients), forward + backward is
training. A ratio below 1 means that the window is faster; beside it stands the window against
itself. An exponent is the slope of log time (or bytes) over log S.
"""

import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from mha_course import attention, masks  # noqa: E402
from mha_course.measure import paired_ratio, peak_memory, threads, timings  # noqa: E402
from mha_course.sparse import chunked, sliding_window  # noqa: E402

B, H, D, WINDOW = 1, 8, 64, 128
LENGTHS = (1024, 2048, 4096, 8192)
EXPONENT = 1.15
FASTER_FROM = 4096
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Work = Callable[[], object]

windowed = partial(sliding_window, window=WINDOW)
causal = partial(F.scaled_dot_product_attention, is_causal=True)


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """SDPA with the window as a dense mask, made before."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def inputs(S: int, gradients: bool) -> list[Tensor]:
    """Normal q, k, v."""
    generator = torch.Generator().manual_seed(S)
    return [torch.randn(B, H, S, D, generator=generator).requires_grad_(gradients) for _ in range(3)]


def forward(attend: Attend, S: int) -> Work:
    """One call without gradients."""
    q, k, v = inputs(S, False)
    return lambda: attend(q, k, v)


def forward_and_backward(attend: Attend, S: int) -> Work:
    """One call and every gradient."""
    tensors = inputs(S, True)
    return lambda: torch.autograd.grad(attend(*tensors).sum(), tensors)


def exponent(works: list[Work], rounds: int) -> float:
    """The slope of log time over log S: the median over rounds that time every length in turn."""
    slopes = []
    for _ in range(rounds):
        seconds = [timings(work, repeats=1, warmup=0).median for work in works]
        slopes.append(np.polyfit(np.log(LENGTHS), np.log(seconds), 1)[0])
    return statistics.median(slopes)


def compare(way: Callable[[Attend, int], Work], rounds: int) -> bool:
    """Print the ratios at each length; whether every limit is kept."""
    kept = True
    for S in LENGTHS:
        dense = masks.sliding_window(S, WINDOW)[None, None]
        torch.testing.assert_close(windowed(*inputs(S, False)), masked(*inputs(S, False), dense))
        mine = way(windowed, S)
        median = 1000 * timings(mine).median
        others: dict[str, Attend] = {"is_causal": causal}
        if S == FASTER_FROM:  # its cost is S S as well, and larger
            others["window as a dense mask"] = partial(masked, mask=dense)
        for name, other in others.items():
            ratio = paired_ratio(mine, way(other, S), rounds=rounds)
            limit = 1.0 if S >= FASTER_FROM else None
            shown = f"{ratio.median:.3f} | {ratio.low:.3f} to {ratio.high:.3f} | {ratio.control:.3f}"
            name = f"{way.__name__.replace('_', ' ')}, S = {S} | SDPA, {name}"
            print(f"| {name} | {median:.1f} | {shown} | {limit or ''} |", flush=True)
            kept = kept and (limit is None or ratio.median < limit)
    return kept


def grow(rounds: int) -> bool:
    """Print the exponents of time and of memory; whether every limit is kept."""
    kept = True
    print("\n| window 128 | exponent in S | MiB at each S | limit |")
    print("|---|---|---|---|")
    for way in (forward, forward_and_backward):
        works = [way(windowed, S) for S in LENGTHS]
        sizes = [peak_memory(work) for work in works]
        for name, slope, shown in (
            ("time", exponent(works, rounds), ""),
            ("memory", np.polyfit(np.log(LENGTHS), np.log(sizes), 1)[0], mebibytes(sizes)),
        ):
            print(f"| {way.__name__.replace('_', ' ')}, {name} | {slope:.3f} | {shown} | {EXPONENT} |", flush=True)
            kept = kept and slope <= EXPONENT
    return kept


def pieces() -> None:
    """Print what chunks of queries save at S = 2048."""
    print("\n| S = 2048, causal, forward and backward | peak MiB | ms |")
    print("|---|---|---|")
    mask = masks.causal(2048)
    ways = {
        "attention": lambda q, k, v: attention(q, k, v, mask=mask).out,
        "chunked, weights kept": partial(chunked, is_causal=True, recompute=False),
        "chunked, recomputed": partial(chunked, is_causal=True),
        "SDPA": causal,
    }
    for name, attend in ways.items():
        work = forward_and_backward(attend, 2048)
        print(
            f"| {name} | {mebibytes([peak_memory(work)])} | {1000 * timings(work, repeats=5).median:.0f} |", flush=True
        )


def mebibytes(sizes: list[int]) -> str:
    """For example: 3.1, 6.2."""
    return ", ".join(f"{size / 2**20:.1f}" for size in sizes)


def main(rounds: int) -> bool:
    """Print the tables; whether every limit is kept."""
    with threads(1):
        print(f"| {rounds} rounds | against | window ms | ratio | 95 % interval | window against itself | below |")
        print("|---|---|---|---|---|---|---|")
        kept = [compare(way, rounds) for way in (forward, forward_and_backward)]
        kept.append(grow(rounds))
        pieces()
    return all(kept)


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
