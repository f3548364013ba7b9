"""Attention in 8 bits against float32: size, error and time, eager and compiled, and the shape from which it wins.

Run it as: python tests/benchmarks/quantization.py [rounds] [--compiled]
E = 512 and 1024, H = 8, B = 1, T = 1, 64 and 2048 tokens, inference, one thread. Ours is `quantize_module`, weight-only
and dynamic; torchao's is `torchao_int8`, skipped where it is not installed. Each is timed in turn with float32, eager
against eager; with --compiled torchao's and float32 are compiled as well, and compared with float32 eager (a compiler
for C++ is needed, and some minutes). A ratio above 1 means that int8 is faster. Limit: at most 0.27 of the bytes.
"""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from mha_course import MultiHeadAttention  # noqa: E402
from mha_course.measure import paired_ratio, threads  # noqa: E402
from mha_course.quantization import quantize_module, size_in_bytes, torchao_int8  # noqa: E402

WIDTHS, LENGTHS, SIZE = (512, 1024), (1, 64, 2048), 0.27


def candidates(layer: MultiHeadAttention, compiled: bool) -> dict[str, Callable[..., Any]]:
    """Name -> the layer in 8 bits, and float32 compiled."""
    made: dict[str, Callable[..., Any]] = {
        "ours, weight-only": quantize_module(layer),
        "ours, dynamic": quantize_module(layer, activations="dynamic"),
    }
    theirs = {}
    if importlib.util.find_spec("torchao"):
        theirs = {
            f"torchao, {k}": torchao_int8(layer, dynamic=d) for k, d in (("weight-only", False), ("dynamic", True))
        }
    made |= theirs
    if compiled:
        made |= {f"{k}, compiled": torch.compile(m) for k, m in {"float32": layer, **theirs}.items()}
    return made


def main(rounds: int, compiled: bool) -> bool:
    """Print the table; whether every size keeps to its limit."""
    kept = True
    print(f"| {rounds} rounds | E | tokens | size | error | float32 / int8 | 95 % interval | float32 against itself |")
    print("|---|---|---|---|---|---|---|---|")
    for E in WIDTHS:
        torch.manual_seed(0)
        layer = MultiHeadAttention(E, 8).eval().requires_grad_(False)
        for name, other in candidates(layer, compiled).items():
            share = size_in_bytes(getattr(other, "_orig_mod", other)) / size_in_bytes(layer)
            kept &= share <= SIZE or name.startswith("float32")
            wins = []
            torch.compiler.reset()  # else the variants of one forward pass reach dynamo's limit, and run eagerly
            for n in LENGTHS:
                x = torch.randn(1, n, E)
                with threads(1), torch.inference_mode():
                    exact = layer(x)
                    error = ((other(x) - exact).norm() / exact.norm()).item()
                    ratio = paired_ratio(partial(layer, x), partial(other, x), rounds=rounds, warmup=3)
                shown = f"{ratio.median:.2f} | {ratio.low:.2f} to {ratio.high:.2f} | {ratio.control:.2f}"
                print(f"| {name} | {E} | {n} | {share:.4f} | {error:.4f} | {shown} |", flush=True)
                wins += [n] if ratio.low > 1 else []
            print(f"| {name} | {E} | wins at {wins or 'none of these'} | | | | | |", flush=True)
    return kept


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    sys.exit(not main(numbers[0] if numbers else 21, "--compiled" in sys.argv))
