"""Converters: by hand, there and back, against nn.MultiheadAttention and scaled_dot_product_attention."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course import attention
from mha_course.masks import (
    causal,
    from_additive,
    from_blocked,
    from_integers,
    padding,
    padding_from_tokens,
    to_additive,
    to_blocked,
)
from tests.masks.drawn import INTEGERS, drawn

OFF = -math.inf
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def test_by_hand() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    assert drawn(to_blocked(mask)) == [".x", ".."]
    assert drawn(from_blocked(mask)) == [".x", ".."]
    assert to_additive(mask).tolist() == [[0, OFF], [0, 0]]
    assert drawn(from_additive(torch.tensor([[0.0, OFF], [-0.0, 0.0]]))) == ["x.", "xx"]
    assert drawn(from_integers(torch.tensor([[1, 0], [1, 1]]))) == ["x.", "xx"]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5), (2, 1, 1, 7), (2, 3, 5, 7), (0, 1, 2, 3)], ids=str)
def test_there_and_back(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    kept = mask.clone()
    assert_close(from_blocked(to_blocked(mask)), mask)
    for dtype in FLOATS:
        additive = to_additive(mask, dtype=dtype)
        assert (additive.dtype, additive.shape) == (dtype, mask.shape)
        assert_close(from_additive(additive), mask)
    for dtype in INTEGERS:
        assert_close(from_integers(mask.to(dtype)), mask)
    assert_close(mask, kept)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_people_write_for_minus_infinity_blocks(dtype: torch.dtype) -> None:
    lowest = torch.finfo(dtype).min
    for low in (OFF, lowest, max(lowest, -1e9), max(lowest, -1e10), -10_000.0, -1e4, -1000.0):
        additive = torch.tensor([0.0, low]).to(dtype)
        assert from_additive(additive).tolist() == [True, False], low
    # bfloat16's lowest and float16's lowest in a wider type
    wide = torch.tensor([0.0, torch.finfo(torch.float16).min, torch.finfo(torch.bfloat16).min])
    assert from_additive(wide).tolist() == [True, False, False]


def test_what_counts_as_blocked_leaves_no_weight() -> None:
    assert torch.tensor(-1000.0, dtype=torch.float64).exp() == 0


@pytest.mark.parametrize("bad", [-0.5, 1.0, 1e-30, -999.0, math.nan, math.inf, 5e-324])
def test_a_bias_is_refused(bad: float) -> None:
    additive = torch.tensor([[0.0, OFF], [0.0, bad], [bad, 0.0]], dtype=torch.float64)
    match = (
        rf"^additive must be 0 \(may attend\) or at most -1000 \(blocked\), got {bad} at index \(1, 1\)"
        r": pass a bias as score_bias$"
    )
    with pytest.raises(ValueError, match=match):
        from_additive(additive)


def test_alibi_is_refused_however_steep() -> None:
    far = -5000.0 * (torch.arange(4)[:, None] - torch.arange(4)).clamp(min=0)
    assert from_additive(far).tolist() == torch.eye(4).bool().logical_or(~causal(4)).tolist()
    with pytest.raises(ValueError, match=r"got -0\.5 at index \(1, 0\)"):
        from_additive(far / 10_000)


def test_layouts() -> None:
    mask = causal(4)[:, ::2]
    assert_close(to_blocked(mask), ~mask)
    assert_close(from_additive(to_additive(mask).T), mask.T)
    assert_close(from_additive(to_additive(mask[:1]).expand(3, 2)), mask[:1].expand(3, 2))
    assert_close(from_integers(mask.int().T), mask.T)


def test_new_tensors_are_on_the_device_of_the_mask() -> None:
    mask = causal(3, device="meta")
    assert to_additive(mask).device.type == from_additive(to_additive(mask)).device.type == "meta"
    assert from_integers(mask.int()).device.type == "meta"


def test_multihead_attention_of_torch_reads_what_to_blocked_writes() -> None:
    torch.manual_seed(0)
    B, H, T, E = 2, 2, 5, 8
    module = nn.MultiheadAttention(E, H, batch_first=True, dtype=torch.float64)
    x = torch.randn(B, T, E, dtype=torch.float64)
    real = padding(torch.tensor([3, 5]), T)
    blocked, keys = to_blocked(causal(T)), to_blocked(real)[:, 0, 0]
    want = module(x, x, x, attn_mask=blocked, key_padding_mask=keys, average_attn_weights=False)[1]

    q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in (F.linear(x, module.in_proj_weight)).chunk(3, -1))
    assert_close(attention(q, k, v, mask=causal(T) & real).weights, want)
    # and what the docstring says about the way back
    assert_close(from_blocked(keys)[:, None, None, :], real)
    per_head = (causal(T) & real).expand(B, H, T, T)
    assert_close(from_blocked(~per_head.flatten(0, 1)).unflatten(0, (B, H)), per_head)
    flat = module(x, x, x, attn_mask=~per_head.flatten(0, 1), average_attn_weights=False)[1]
    assert_close(flat, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sdpa_gives_the_same_with_bool_and_additive(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 5, 8, dtype=dtype)
    mask = causal(5) & padding(torch.tensor([3, 0]), 5)
    sdpa = F.scaled_dot_product_attention
    assert_close(sdpa(q, k, v, attn_mask=to_additive(mask, dtype=dtype)), sdpa(q, k, v, attn_mask=mask))


def test_a_tokenizers_attention_mask() -> None:
    ones = torch.tensor([[1, 1, 0], [1, 0, 0]])
    want = padding(torch.tensor([2, 1]), 3)
    assert_close(from_integers(ones)[:, None, None, :], want)
    assert_close(padding_from_tokens(ones, 0), want)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: from_blocked([True]), TypeError, r"^blocked must be a bool \(True = blocked\) tensor, got list$"),
        (
            lambda: from_blocked(torch.ones(2)),
            TypeError,
            r"^blocked must be bool \(True = blocked\), got torch\.float32$",
        ),
        (lambda: from_blocked(torch.ones(2).int()), TypeError, r"^blocked must be bool .* got torch\.int32$"),
        (
            lambda: to_blocked(torch.ones(2)),
            TypeError,
            r"^mask must be bool \(True = may attend\), got torch\.float32$",
        ),
        (lambda: to_blocked(None), TypeError, r"^mask must be a bool \(True = may attend\) tensor, got NoneType$"),
        (lambda: to_additive(torch.ones(2).long()), TypeError, r"^mask must be bool .* got torch\.int64$"),
        (lambda: to_additive(True), TypeError, r"^mask must be a bool .* tensor, got bool$"),
        (lambda: to_additive(causal(2), dtype=torch.int64), TypeError, r"^dtype must be float16, .* got torch\.int64$"),
        (
            lambda: to_additive(causal(2), dtype=torch.float8_e4m3fn),
            TypeError,
            r"^dtype must be .* torch\.float8_e4m3fn$",
        ),
        (lambda: from_additive(0.0), TypeError, r"^additive must be a floating point tensor, got float$"),
        (lambda: from_additive(causal(2)), TypeError, r"^additive must be float16, .* or float64, got torch\.bool$"),
        (lambda: from_additive(torch.zeros(2).long()), TypeError, r"^additive must be float16, .* got torch\.int64$"),
        (lambda: from_integers([1]), TypeError, r"^ones must be an integer tensor, got list$"),
        (lambda: from_integers(causal(2)), TypeError, r"^ones must be an integer tensor, got torch\.bool$"),
        (lambda: from_integers(torch.ones(2)), TypeError, r"^ones must be an integer tensor, got torch\.float32$"),
        (
            lambda: from_integers(torch.ones(2) * 1j),
            TypeError,
            r"^ones must be an integer tensor, got torch\.complex64$",
        ),
        (
            lambda: from_integers(torch.tensor([[1, 0], [2, 3]])),
            ValueError,
            r"^ones must be 1 \(may attend\) or 0 \(blocked\), got 2 at index \(1, 0\)$",
        ),
        (lambda: from_integers(torch.tensor([0, -1])), ValueError, r"got -1 at index 1$"),
        (lambda: from_integers(torch.tensor(7)), ValueError, r"got 7 at index \(\)$"),
    ],
)
def test_bad_input(make: Callable[[], Tensor], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (from_blocked, causal(3)),
        (to_blocked, causal(3)),
        (to_additive, causal(3)),
        (from_additive, to_additive(causal(3))),
        (from_integers, causal(3).int()),
    ],
)
def test_compiles_whole_and_exports(fn: Callable[[Tensor], Tensor], x: Tensor) -> None:
    class Module(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return fn(x)

    assert_close(torch.compile(fn, backend="eager", fullgraph=True)(x), fn(x))
    for strict in (True, False):
        assert_close(torch.export.export(Module(), (x,), strict=strict).module()(x), fn(x))
