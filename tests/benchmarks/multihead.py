"""`MultiHeadAttention` against SDPA written out plainly and against nn.MultiheadAttention.

Run it as: python tests/benchmarks/multihead.py [rounds]
B = 4, T = S = 512, E = 512, H = 8, causal, one thread, equal weights. Forward is inference (eval, no
gradients: nn.MultiheadAttention may take its fast path), forward + backward is training. A ratio
below 1 means that ours is faster; beside it stands ours against itself.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from mha_course import MultiHeadAttention  # noqa: E402
from mha_course.measure import paired_ratio, threads, timings  # noqa: E402

B, T, E, H = 4, 512, 512, 8
LIMITS = {"plain SDPA": 1.03, "nn.MultiheadAttention": 1.0}


class Plain(nn.Module):
    """What one writes by hand: four linear maps and SDPA, no checks."""

    def __init__(self, ours: MultiHeadAttention) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = ours.q_proj, ours.k_proj, ours.v_proj, ours.out_proj

    def forward(self, x: Tensor) -> Tensor:
        """Causal self-attention."""
        q, k, v = (
            linear(x).view(B, T, H, E // H).transpose(1, 2) for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(heads.transpose(1, 2).reshape(B, T, E))


def torch_causal(module: nn.MultiheadAttention, blocked: Tensor, x: Tensor) -> Tensor:
    """The same with PyTorch's module, which asks for a mask although it is told is_causal."""
    return module(x, x, x, attn_mask=blocked, is_causal=True, need_weights=False)[0]


def inference(module: nn.Module, fn: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    """One call without gradients."""
    module.eval()

    def run() -> Tensor:
        with torch.no_grad():
            return fn(x)

    return run


def training(module: nn.Module, fn: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """One call and every gradient."""
    module.train()
    return lambda: torch.autograd.grad(fn(x).sum(), [x, *module.parameters()])


def main(rounds: int) -> bool:
    """Print the table; whether every ratio keeps to its limit."""
    kept = True
    print(f"| {rounds} rounds | against | ours ms | ratio | 95 % interval | ours against itself | limit |")
    print("|---|---|---|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        theirs = nn.MultiheadAttention(E, H, batch_first=True, dtype=dtype)
        ours = MultiHeadAttention.from_torch(theirs)
        plain = Plain(ours)
        own = partial(ours, is_causal=True)
        blocked = torch.ones(T, T, dtype=torch.bool).triu(1)
        others: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {
            "plain SDPA": (plain, plain),
            "nn.MultiheadAttention": (theirs, partial(torch_causal, theirs, blocked)),
        }
        x = torch.randn(B, T, E, dtype=dtype).requires_grad_()
        for way in (inference, training):
            mine = way(ours, own, x)
            for name, (module, fn) in others.items():
                other = way(module, fn, x)
                torch.testing.assert_close(fn(x), own(x), rtol=2e-2, atol=2e-2)
                with threads(1):
                    median = 1000 * timings(mine).median
                    ratio = paired_ratio(mine, other, rounds=rounds, warmup=2)
                shown = f"{ratio.median:.3f} | {ratio.low:.3f} to {ratio.high:.3f} | {ratio.control:.3f}"
                print(f"| {way.__name__}, {str(dtype)[6:]} | {name} | {median:.1f} | {shown} | {LIMITS[name]} |")
                kept = kept and ratio.median <= LIMITS[name]
    return kept


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 41))
