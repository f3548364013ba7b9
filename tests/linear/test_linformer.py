"""Linformer: against loops, as a module, and what it refuses."""

import pytest
import torch
from torch.testing import assert_close

from mha_course import MultiHeadAttention, attention, masks
from mha_course.linear import linformer
from tests import reference
from tests.linear.problems import DV, B, H, S, T, inputs, leaves, numbers, relative

R = 11


def test_equals_the_loops() -> None:
    q, k, v = inputs()
    key_mix, value_mix = numbers(R, S, seed=7), numbers(R, S, seed=8)
    few_k = torch.stack([sum(key_mix[r, s] * k[:, :, s] for s in range(S)) for r in range(R)], dim=2)
    few_v = torch.stack([sum(value_mix[r, s] * v[:, :, s] for s in range(S)) for r in range(R)], dim=2)
    for scale in (None, 0.7):
        _, _, want = reference.attention(q, few_k, few_v, **({} if scale is None else {"scale": scale}))
        assert_close(linformer.attention(q, k, v, key_mix=key_mix, value_mix=value_mix, scale=scale), want)


def test_mixtures_that_mix_nothing_are_exact() -> None:
    q, k, v = inputs()
    order = torch.eye(S, dtype=torch.float64)[torch.randperm(S, generator=torch.Generator().manual_seed(0))]
    assert_close(linformer.attention(q, k, v, key_mix=order, value_mix=order), attention(q, k, v).out)


def test_gradcheck() -> None:
    mixes = numbers(3, S, seed=7), numbers(3, S, seed=8)
    tensors = leaves(*(x[:1, :1, :, :2] for x in inputs(5)), *mixes)
    assert torch.autograd.gradcheck(lambda q, k, v, a, b: linformer.attention(q, k, v, key_mix=a, value_mix=b), tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype: torch.dtype) -> None:
    q, k, v = inputs(dtype=dtype)
    mix = numbers(R, S, seed=7, dtype=dtype) / 4
    exact = linformer.attention(*(x.double() for x in (q, k, v)), key_mix=mix.double(), value_mix=mix.double())
    plain = attention(q, mix @ k, mix @ v).out
    out = linformer.attention(q, k, v, key_mix=mix, value_mix=mix)
    assert out.dtype == dtype
    assert (out - exact).norm() <= 2 * (plain - exact).norm() + 1e-3


def test_dropout() -> None:
    q, k, v = inputs()
    mix = numbers(R, S)
    out = linformer.attention(q, k, v, key_mix=mix, value_mix=mix, dropout_p=1.0)
    assert_close(out, torch.zeros(B, H, T, DV, dtype=torch.float64))


def test_the_module_is_a_backend_and_learns() -> None:
    torch.manual_seed(0)
    mixer = linformer.Linformer(S, R, dtype=torch.float64)
    module = MultiHeadAttention(12, 6, num_kv_heads=2, backend=mixer, dtype=torch.float64)
    assert dict(module.named_parameters())["backend.key_mix"] is mixer.key_mix
    x = numbers(B, S, 12)
    q, k, v = (x.repeat_interleave(6 // x.shape[1], dim=1) for x in module.trace(x)[:3])
    heads = linformer.attention(q, k, v, key_mix=mixer.key_mix, value_mix=mixer.value_mix)
    assert_close(module(x), module.out_proj(heads.transpose(1, 2).flatten(2)))
    module(x).square().sum().backward()
    assert mixer.key_mix.grad.abs().min() > 0
    assert mixer.value_mix.grad.abs().min() > 0
    assert str(mixer) == "Linformer(length=17, rank=11)"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_module_is_a_backend_under_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(12, 6, backend=linformer.Linformer(S, R))
    x = numbers(B, S, 12, dtype=torch.float32)
    q, k, v = inputs(dtype=torch.float32)
    mix = numbers(R, S, dtype=torch.float32) / 4
    exact = module(x), linformer.attention(q, k, v, key_mix=mix, value_mix=mix)
    with torch.autocast("cpu", dtype):
        got = module(x), linformer.attention(q, k, v, key_mix=mix, value_mix=mix)
    for near, far in zip(got, exact, strict=True):
        assert near.dtype == dtype
        assert relative(near.float(), far) < 0.03


def test_under_autocast_float64_stays_beside_float32_mixtures() -> None:
    q, k, v = inputs()
    mix = numbers(R, S)
    rounded = mix.float()
    with torch.autocast("cpu", torch.bfloat16):
        got = linformer.attention(q, k, v, key_mix=rounded, value_mix=rounded)
    assert_close(got, linformer.attention(q, k, v, key_mix=rounded.double(), value_mix=rounded.double()))


@pytest.mark.unchecked
def test_under_autocast_integers_are_still_refused() -> None:
    mix = torch.ones(R, S)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(TypeError, match=r"^key_mix must be a tensor of q's type, torch\.float32, got torch\.int64$"),
    ):
        linformer.attention(*inputs(dtype=torch.float32), key_mix=mix.long(), value_mix=mix)


def test_how_the_module_starts() -> None:
    torch.manual_seed(0)
    mixer = linformer.Linformer(400, 100)
    for mix in (mixer.key_mix, mixer.value_mix):
        assert mix.shape == (100, 400)
        assert_close(mix.std().item(), 0.05, rtol=0.03, atol=0)
    assert (mixer.key_mix != mixer.value_mix).any()


q, k, v = inputs(dtype=torch.float32)
mix = torch.zeros(R, S)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"q": None}, TypeError, r"^q must be a tensor, got NoneType$"),
        ({"v": v.half()}, TypeError, r"^v must have the type of q"),
        ({"key_mix": None}, TypeError, r"^key_mix must be a tensor of q's type, torch\.float32, got NoneType$"),
        ({"value_mix": mix.double()}, TypeError, r"^value_mix must be a tensor of q's type, .* got torch\.float64$"),
        ({"scale": "1"}, TypeError, r"^scale must be a number, got str$"),
        ({"dropout_p": None}, TypeError, r"^dropout_p must be a number, got NoneType$"),
        ({"is_causal": 0}, TypeError, r"^is_causal must be True or False, got int$"),
        ({"is_causal": True}, ValueError, r"^is_causal must be False: a mixture holds later keys too, got True$"),
        ({"mask": masks.causal(S)}, ValueError, r"^mask must be None: Linformer .* got Tensor$"),
        ({"score_bias": torch.zeros(S)}, ValueError, r"^score_bias must be None: Linformer"),
        ({"q": q[0], "k": k[0], "v": v[0]}, ValueError, r"must have four axes"),
        ({"v": v[:, :, 1:]}, ValueError, r"one length S, got"),
        ({"key_mix": mix[:, 1:]}, ValueError, r"^key_mix must be \(R, S\) with S = 17, got \(11, 16\)$"),
        ({"value_mix": mix[0]}, ValueError, r"^value_mix must be \(R, S\) with S = 17, got \(17,\)$"),
        ({"value_mix": mix[1:]}, ValueError, r"^key_mix and value_mix must have one R, got \(11, 17\) and \(10, 17\)$"),
        ({"key_mix": mix.to("meta")}, ValueError, r"^key_mix must be on q's device, cpu, got meta$"),
        ({"value_mix": mix.to("meta")}, ValueError, r"^value_mix must be on q's device, cpu, got meta$"),
        ({"scale": float("inf")}, ValueError, r"^scale must be finite, got inf$"),
        ({"dropout_p": 2.0}, ValueError, r"^dropout_p must lie in \[0, 1\], got 2\.0$"),
    ],
)
def test_bad_input(change: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        linformer.attention(**{"q": q, "k": k, "v": v, "key_mix": mix, "value_mix": mix, **change})


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("length", "rank", "error", "match"),
    [
        (4.0, 2, TypeError, r"^length must be an integer, got float$"),
        (4, None, TypeError, r"^rank must be an integer, got NoneType$"),
        (0, 2, ValueError, r"^length must be at least 1, got 0$"),
        (4, 0, ValueError, r"^rank must be at least 1, got 0$"),
    ],
)
def test_bad_sizes_of_the_module(length, rank, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        linformer.Linformer(length, rank)


def test_the_module_passes_everything_on() -> None:
    mixer = linformer.Linformer(S, R)
    with pytest.raises(ValueError, match=r"^is_causal must be False"):
        mixer(q, k, v, is_causal=True)
    with pytest.raises(ValueError, match=r"^mask must be None"):
        mixer(q, k, v, mask=torch.ones(S, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^score_bias must be None"):
        mixer(q, k, v, score_bias=torch.zeros(S))
    assert_close(mixer(q, k, v, dropout_p=1.0), torch.zeros(B, H, T, DV))
    assert (mixer(q, k, v, scale=2.0) != mixer(q, k, v)).any()
