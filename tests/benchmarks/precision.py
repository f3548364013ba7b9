"""bfloat16 and float16 autocast against float32: time of forward and backward, and error against float64.

Run it as: python tests/benchmarks/precision.py [rounds]
B = 4, S = 512, E = 512, H = 8, `MultiHeadAttention` with SDPA, parameters in float32, one thread on a CPU, on a GPU if
there is one. A ratio is time under autocast over time in float32, in turn: below 1, autocast is faster. The error is
the norm of the difference over the norm; it is the same in every run. No ratio has a limit, since it is the
processor's; an error of the output above 2 units in the last place of the type fails.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from mha_course import MultiHeadAttention  # noqa: E402
from mha_course.measure import paired_ratio, threads, timings  # noqa: E402
from mha_course.precision import FORMATS, errors_against_float64, instruction_set  # noqa: E402

B, S, E, H = 4, 512, 512, 8
FORMS = ("float32", "bfloat16", "float16")


def main(rounds: int) -> bool:
    """Print the table; whether every error keeps to its limit."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(E, H).to(device), torch.randn(B, S, E).to(device)
    parameters, kept = list(layer.parameters()), True

    def run(dtype: torch.dtype) -> None:
        with torch.autocast(
            device, dtype=torch.bfloat16 if dtype == torch.float32 else dtype, enabled=dtype != torch.float32
        ):
            out = layer(x)
        torch.autograd.grad(out.float().sum(), parameters)

    errors = errors_against_float64(layer, x)
    print(f"{instruction_set(device)}, PyTorch {torch.__version__}, {rounds} rounds, B {B} S {S} E {E} H {H}")
    print("| type | ms | ratio to float32 | 95 % interval | against itself | error of out | of gradients |")
    print("|---|---|---|---|---|---|---|")
    with threads(1):
        for name in FORMS:
            dtype = FORMATS[name].dtype
            assert dtype is not None
            ms = 1e3 * timings(lambda d=dtype: run(d), repeats=3).median
            ratio = paired_ratio(lambda d=dtype: run(d), lambda: run(torch.float32), rounds=rounds)
            shown = f"{ratio.median:.3f} | {ratio.low:.3f} to {ratio.high:.3f} | {ratio.control:.3f}"
            out, gradients = errors[dtype]
            print(f"| {name} | {ms:.1f} | {shown} | {out:.1e} | {gradients:.1e} |", flush=True)
            kept &= out < 2 * FORMATS[name].epsilon or name == "float32"
    return kept and errors[torch.float32].out < 1e-5


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 11))
