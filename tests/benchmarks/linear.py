"""The linear methods: how their time grows with the length, and how Performer's error falls with its features.

Run it as: python tests/benchmarks/linear.py [rounds]
B = 1, H = 8, D = 64, forward without gradients, one thread. A ratio below 1 means faster than SDPA (with
is_causal where the method is causal); beside it stands the method against itself. An exponent is
the slope of log time over log S.
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

from mha_course.experiments.long import performer_error, uniform_error  # noqa: E402
from mha_course.linear import delta, kernel, linformer, performer  # noqa: E402
from mha_course.measure import paired_ratio, threads, timings  # noqa: E402

B, H, D = 1, 8, 64
LENGTHS = (1024, 2048, 4096, 8192)
EXPONENT = 1.15
# M or R = 256 numbers for each token outgrow the caches on the way from S = 1024 to 8192
WIDE_EXPONENT = 1.5
FEATURES = (256, 1024, 4096)
FLATTEST = -0.4  # slope of Performer's error at spread 0.5; -0.5 in the limit
SHORT = -0.46  # at spread 0.25

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def methods(S: int) -> dict[str, tuple[Attend, bool]]:
    """Each method for this length, and whether it is causal."""
    generator = torch.Generator().manual_seed(0)
    features = performer.orthogonal_features(256, D, generator=generator)
    mix = torch.randn(256, S, generator=generator) / S**0.5
    return {
        "kernel, causal": (partial(kernel.attention, is_causal=True), True),
        "kernel": (kernel.attention, False),
        "delta rule": (partial(delta.attention, is_causal=True), True),
        "Performer, M = 256, causal": (
            partial(performer.attention, features=features, is_causal=True, chunk=256),
            True,
        ),
        "Performer, M = 256": (partial(performer.attention, features=features), False),
        "Linformer, R = 256": (partial(linformer.attention, key_mix=mix, value_mix=mix), False),
    }


def call(attend: Attend, S: int) -> Callable[[], Tensor]:
    """One call with normal q, k, v."""
    q, k, v = torch.randn(3, B, H, S, D, generator=torch.Generator().manual_seed(S))
    return lambda: attend(q, k, v)


def speed(rounds: int) -> bool:
    """Print exponents and ratios; whether every exponent keeps to its limit."""
    kept = True
    longest = LENGTHS[-1]
    print(f"| {rounds} rounds | exponent in S | limit | ms at S = {longest} | ratio to SDPA | against itself |")
    print("|---|---|---|---|---|---|")
    for name, (longest_attend, is_causal) in methods(longest).items():
        works = [call(methods(S)[name][0], S) for S in LENGTHS]
        slopes = []
        for _ in range(rounds):
            seconds = [timings(work, repeats=1, warmup=0).median for work in works]
            slopes.append(np.polyfit(np.log(LENGTHS), np.log(seconds), 1)[0])
        limit = WIDE_EXPONENT if "256" in name else EXPONENT
        slope, mine = statistics.median(slopes), call(longest_attend, longest)
        median = 1000 * timings(mine, repeats=3).median
        exact = call(partial(F.scaled_dot_product_attention, is_causal=is_causal), longest)
        ratio = paired_ratio(mine, exact, rounds=6)
        print(
            f"| {name} | {slope:.2f} | {limit} | {median:.0f} | {ratio.median:.3f} | {ratio.control:.3f} |",
            flush=True,
        )
        kept = kept and slope <= limit
    return kept


def error() -> bool:
    """Print Performer's error; whether its slopes keep to their limits."""
    kept = True
    print(f"\n| Performer, S = 64 | M = {', '.join(map(str, FEATURES))} | slope | at most | average of all values |")
    print("|---|---|---|---|---|")
    for width, spread, limit in ((16, 0.25, SHORT), (16, 0.5, FLATTEST), (16, 1.0, None), (64, 1.0, None)):
        errors = np.median(performer_error(FEATURES, spread, D=width, repeats=40), axis=1)
        slope = np.polyfit(np.log(FEATURES), np.log(errors), 1)[0]
        shown = ", ".join(f"{x:.3f}" for x in errors)
        average = np.median(uniform_error(spread, D=width, repeats=40))
        print(f"| D = {width}, spread {spread} | {shown} | {slope:.2f} | {limit or ''} | {average:.2f} |", flush=True)
        kept = kept and (limit is None or slope <= limit)
    return kept


def main(rounds: int) -> bool:
    """Print both tables; whether every limit is kept."""
    with threads(1):
        kept = speed(rounds)
        return error() and kept


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
