"""A decoded token through `MultiHeadAttention` with a `KVCache`, against the same written by hand and Hugging Face's.

Run it as: python tests/benchmarks/cache.py [rounds]
B = 1, E = 512, H = 8, float32, inference, one thread, equal weights. One time is that of 64 tokens, one after the
other, behind those in the cache. By hand: four linear maps, two writes into preallocated memory, SDPA, no checks.
Hugging Face: LlamaAttention with its default cache, which concatenates, and rotary positions, as ours has them then;
cos and sin are made once per token on its side, as for a model of one layer, or were made before ("given"), as for the
later layers of a deep one. It needs `transformers`, and is skipped without. A ratio below 1 means that ours is faster.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from mha_course import MultiHeadAttention  # noqa: E402
from mha_course.cache import KVCache, bytes_per_token  # noqa: E402
from mha_course.measure import paired_ratio, peak_memory, threads, timings  # noqa: E402
from mha_course.positions import Rotary  # noqa: E402

E, H, STEPS = 512, 8, 64
CACHED = (512, 4096)
LIMITS = {"by hand": 1.05, "Hugging Face": 1.0, "Hugging Face, given": 1.0}


class ByHand(nn.Module):
    """What one writes by hand."""

    def __init__(self, ours: MultiHeadAttention, max_len: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = ours.q_proj, ours.k_proj, ours.v_proj, ours.out_proj
        with torch.inference_mode(False):  # as a KVCache: else it could not be written outside of inference mode
            self.k, self.v = torch.zeros(1, H, max_len, E // H), torch.zeros(1, H, max_len, E // H)

    def forward(self, x: Tensor, past: int) -> Tensor:
        """One token behind those before it."""
        q, k, v = (
            linear(x).view(1, 1, H, E // H).transpose(1, 2) for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        self.k[:, :, past : past + 1] = k
        self.v[:, :, past : past + 1] = v
        heads = F.scaled_dot_product_attention(q, self.k[:, :, : past + 1], self.v[:, :, : past + 1])
        return self.out_proj(heads.transpose(1, 2).reshape(1, 1, E))


def with_ours(module: MultiHeadAttention, x: Tensor, cached: int) -> Callable[[], Tensor]:
    """Fill a cache; return a function that decodes behind it."""
    cache = KVCache(1, H, cached + STEPS, E // H)
    module(x[:, :cached], is_causal=True, cache=cache)

    def run() -> Tensor:
        cache.crop(cached)
        return torch.cat([module(token, is_causal=True, cache=cache) for token in x[:, cached:].split(1, 1)], 1)

    return run


def by_hand(module: MultiHeadAttention, x: Tensor, cached: int) -> Callable[[], Tensor]:
    """The same by hand."""
    plain = ByHand(module, cached + STEPS)
    for p, token in enumerate(x[:, :cached].split(1, 1)):
        plain(token, p)
    return lambda: torch.cat([plain(token, cached + i) for i, token in enumerate(x[:, cached:].split(1, 1))], 1)


def hugging_face(module: MultiHeadAttention, x: Tensor, cached: int, given: bool) -> Callable[[], Tensor]:
    """The same with Hugging Face's layer, given the weights of ours."""
    from transformers.cache_utils import DynamicCache
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=E, num_attention_heads=H, num_key_value_heads=H, max_position_embeddings=8192, num_hidden_layers=1
    )
    config._attn_implementation = "sdpa"
    layer, rotary, cache = LlamaAttention(config, 0).eval(), LlamaRotaryEmbedding(config), DynamicCache(config=config)
    names = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "o_proj"}
    for mine, its in names.items():
        getattr(layer, its).load_state_dict(getattr(module, mine).state_dict())
    places = torch.arange(x.shape[1])[None].split(1, 1)
    turns = [rotary(x, place) for place in places]

    def step(token: Tensor, p: int) -> Tensor:
        turn = turns[p] if given else rotary(token, places[p])
        return layer(token, turn, None, cache)[0]

    for p, token in enumerate(x[:, :cached].split(1, 1)):
        step(token, p)

    def run() -> Tensor:
        cache.crop(min(cached - cache.get_seq_length(), 0))  # how many to drop, as a negative number
        return torch.cat([step(token, cached + i) for i, token in enumerate(x[:, cached:].split(1, 1))], 1)

    return run


def compare(name: str, mine: Callable[[], Any], other: Callable[[], Any], cached: int, rounds: int) -> bool:
    """Print one row; whether its limit is kept."""
    torch.testing.assert_close(mine(), other(), rtol=1e-4, atol=1e-5)
    microseconds = 1e6 * timings(mine).median / STEPS
    ratio = paired_ratio(mine, other, rounds=rounds, warmup=3)
    shown = f"{ratio.median:.3f} | {ratio.low:.3f} to {ratio.high:.3f} | {ratio.control:.3f}"
    print(f"| {cached} cached | {name} | {microseconds:.0f} | {shown} | {LIMITS[name]} |", flush=True)
    return ratio.median <= LIMITS[name]


def main(rounds: int) -> bool:
    """Print the tables; whether every ratio keeps to its limit, and the memory is what the formula says."""
    kept, found = True, importlib.util.find_spec("transformers") is not None
    print(f"| {rounds} rounds | against | ours, us a token | ratio | 95 % interval | ours against itself | limit |")
    print("|---|---|---|---|---|---|---|")
    torch.manual_seed(0)
    plain = MultiHeadAttention(E, H, bias=False).eval()
    turned = MultiHeadAttention(E, H, bias=False, rotary=Rotary(E // H)).eval()
    turned.load_state_dict(plain.state_dict())
    for cached in CACHED:
        x = torch.randn(1, cached + STEPS, E)
        with threads(1), torch.inference_mode():
            kept &= compare("by hand", with_ours(plain, x, cached), by_hand(plain, x, cached), cached, rounds)
            mine = with_ours(turned, x, cached)
            for name, given in (("Hugging Face", False), ("Hugging Face, given", True)) if found else ():
                kept &= compare(name, mine, hugging_face(turned, x, cached, given), cached, rounds)
    if not found:
        print("| skipped | Hugging Face: transformers is not installed | | | | | |")
    for cached in CACHED:
        formula = cached * bytes_per_token(1, H, E // H, torch.float32)
        counted = peak_memory(lambda n=cached: KVCache(1, H, n, E // H))
        kept &= counted == formula == KVCache(1, H, cached, E // H).nbytes
        print(f"room for {cached} tokens: {counted:,} bytes allocated, {formula:,} by the formula")
    return kept


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 41))
