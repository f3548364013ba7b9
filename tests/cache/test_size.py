"""Bytes per token of published models, from their configurations."""

import pytest
import torch

from mha_course.cache import KVCache, bytes_per_token
from tests.cache.test_preallocated import refuses


@pytest.mark.parametrize(
    ("name", "layers", "kv_heads", "head_dim", "count"),
    [
        ("Llama-2-7B", 32, 32, 128, 524_288),
        ("Llama-2-13B", 40, 40, 128, 819_200),
        ("Llama-2-70B", 80, 8, 128, 327_680),
        ("Llama-2-70B with 64 heads", 80, 64, 128, 2_621_440),
        ("Llama-3-8B", 32, 8, 128, 131_072),
        ("Llama-3-70B", 80, 8, 128, 327_680),
        ("Llama-3.1-405B", 126, 8, 128, 516_096),
        ("Mistral-7B", 32, 8, 128, 131_072),
        ("Falcon-7B", 32, 1, 64, 8_192),
    ],
)
def test_published_models_at_16_bits(name: str, layers: int, kv_heads: int, head_dim: int, count: int) -> None:
    assert bytes_per_token(layers, kv_heads, head_dim) == count
    assert bytes_per_token(layers, kv_heads, head_dim, torch.bfloat16) == count
    assert bytes_per_token(layers, kv_heads, head_dim, torch.float32) == 2 * count
    assert bytes_per_token(layers, kv_heads, head_dim, torch.float8_e4m3fn) == count // 2


def test_latent_attention_is_one_vector_and_one_turned_key() -> None:
    """DeepSeek-V2: 60 layers, rank 512, turned key 64; its table 1 counts 9/2 D L numbers with D = 128."""
    got = bytes_per_token(60, 1, 512 + 64, v_head_dim=0)
    assert got == 60 * 576 * 2 == 69_120
    assert got // 2 == 9 * 128 * 60 // 2
    assert 56 < bytes_per_token(60, 128, 128) / got < 57, "against 128 heads of their own"


def test_a_cache_takes_what_the_formula_says() -> None:
    made = KVCache(2, 3, 7, 11, v_head_dim=5, dtype=torch.float64)
    assert made.nbytes == 2 * 7 * bytes_per_token(1, 3, 11, torch.float64, v_head_dim=5)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        ((0, 1, 1), {}, ValueError, "num_layers must be at least 1, got 0"),
        ((1, 0, 1), {}, ValueError, "num_kv_heads must be at least 1, got 0"),
        ((1, 1, 0), {}, ValueError, "head_dim must be at least 1, got 0"),
        ((1.0, 1, 1), {}, TypeError, "num_layers must be an integer, got float"),
        ((1, None, 1), {}, TypeError, "num_kv_heads must be an integer, got NoneType"),
        ((1, 1, "1"), {}, TypeError, "head_dim must be an integer, got str"),
        ((1, 1, 1), {"v_head_dim": -1}, ValueError, "v_head_dim must be at least 0, got -1"),
        ((1, 1, 1), {"v_head_dim": 0.5}, TypeError, "v_head_dim must be an integer, got float"),
        ((1, 1, 1, torch.int8), {}, TypeError, "dtype must be a floating point type, got torch.int8"),
        ((1, 1, 1, 16), {}, TypeError, "dtype must be a floating point type, got 16"),
    ],
)
def test_bad_input(args: tuple, options: dict, error: type[Exception], message: str) -> None:
    with refuses(error, message):
        bytes_per_token(*args, **options)
