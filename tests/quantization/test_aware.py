"""Quantization-aware training: rounded forward, straight gradient, and the same numbers after conversion."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.testing import assert_close

from mha_course import MultiHeadAttention
from mha_course.quantization import (
    QuantizedLinear,
    convert,
    fake_quantize,
    find_affine,
    prepare_qat,
    quantize_module,
    straight_through,
)
from tests.quantization.drawn import drawn, relative

EXACT = {"rtol": 0, "atol": 0}


def test_straight_through():
    x = drawn(3, 50).requires_grad_()
    affine = find_affine(x.detach(), 3, per="channel", calibration="percentile", percent=10)  # most are clipped, far
    out = straight_through(x, affine)
    assert_close(out, fake_quantize(x.detach(), affine), **EXACT)
    factor = drawn(3, 50, seed=1)
    (out * factor).sum().backward()
    assert_close(x.grad, factor, **EXACT)


@pytest.mark.parametrize("options", [{"bits": 2}, {"bits": 4, "per": 11}, {"bits": 3, "calibration": "mse"}], ids=str)
def test_prepared_computes_as_quantized_and_stays_so_when_converted(options):
    torch.manual_seed(0)
    source, x = MultiHeadAttention(66, 6).eval(), drawn(2, 5, 66)
    prepared = prepare_qat(source, **options)
    assert_close(prepared(x), quantize_module(source, **options)(x), **EXACT)
    assert not any(parametrize.is_parametrized(part) for part in source.modules()), "a copy"
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        prepared(x).square().sum().backward()
        optimizer.step()
    made = convert(prepared)
    assert relative(prepared(x), source(x)) > 0.1, "training moved it"
    assert_close(made(x), prepared(x), **EXACT)
    assert all(isinstance(part, QuantizedLinear) for part in made.children())
    assert list(made.parameters()) == []
    assert (made.q_proj.bits, made.q_proj.per) == (options["bits"], options.get("per", "channel"))
    assert parametrize.is_parametrized(prepared.q_proj), "convert made a copy"


def test_the_weight_behind_gets_the_gradient_of_the_rounded_one():
    source, x = nn.Linear(10, 3), drawn(7, 10)
    prepared = prepare_qat(source, bits=2)
    prepared(x).square().sum().backward()
    rounded = nn.Linear(10, 3)
    rounded.weight.data = prepared.weight.detach().clone()
    rounded.bias.data = source.bias.detach().clone()
    rounded(x).square().sum().backward()
    assert_close(prepared.parametrizations.weight.original.grad, rounded.weight.grad)
    assert_close(prepared.bias.grad, rounded.bias.grad)
    assert prepared.weight.unique().numel() <= 3 * 3, "three values to a row"


def test_skip_shared_maps_and_copies():
    first = nn.Linear(4, 4)
    module = nn.ModuleDict({"one": first, "same": first, "two": nn.Linear(4, 2), "norm": nn.LayerNorm(4)}).eval()
    prepared = copy.deepcopy(prepare_qat(module, bits=4, skip=["two"]))
    assert type(prepared["two"]) is nn.Linear
    assert len(prepared["one"].parametrizations.weight) == 1, "prepared once"
    made = convert(prepared)
    assert made["one"] is made["same"]
    assert isinstance(made["one"], QuantizedLinear)
    assert not made["one"].training
    assert type(made["two"]) is nn.Linear
    assert isinstance(convert(prepare_qat(nn.Linear(3, 2, bias=False), bits=4)), QuantizedLinear)


@pytest.mark.unchecked
class TestBadInput:
    def test_prepare(self):
        with pytest.raises(ValueError, match=r"bits must lie in \[2, 16\], got 1"):
            prepare_qat(nn.Linear(3, 2), bits=1)
        with pytest.raises(ValueError, match=r"nothing would be quantized in module, an nn.MultiheadAttention"):
            prepare_qat(nn.MultiheadAttention(6, 2), bits=2)
        with pytest.raises(ValueError, match=r"the weights of module are parametrized"):
            prepare_qat(prepare_qat(nn.Linear(3, 2), bits=2), bits=2)

    def test_convert(self):
        with pytest.raises(
            ValueError, match=r"module must come from prepare_qat, got one in which nothing was prepared"
        ):
            convert(nn.Linear(3, 2))
        with pytest.raises(ValueError, match=r"module must come from prepare_qat"):
            convert(parametrizations.weight_norm(nn.Linear(3, 2)))
        with pytest.raises(TypeError, match=r"module must be an nn.Module, got int"):
            convert(3)

    def test_a_prepared_module_is_not_quantized_by_another_way(self):
        with pytest.raises(ValueError, match=r"the weights of module are parametrized: convert or remove that first"):
            quantize_module(prepare_qat(nn.Linear(3, 2), bits=2))
