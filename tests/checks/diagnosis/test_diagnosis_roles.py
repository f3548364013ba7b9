"""Maps with several roles, biases for several maps, and numbers of heads that only widths tell."""

import pytest
import torch
from torch import nn

from mha_course.checks.diagnosis.layouts import readings
from mha_course.checks.diagnosis.projections import linears
from tests.checks.bank.right_third import (
    FewKeyHeads,
    FlaxKernels,
    HeadKernels,
    OneKeyHead,
    OneMap,
    PairedBias,
    Pixels,
    SharedQueryKey,
    SplitWeights,
    Stacked,
    Whole,
    tied,
)


def parts(module):
    w = readings(module)[0].weights
    return {"q": w.q, "k": w.k, "v": w.v, "o": w.o}


def test_one_bias_for_three_weights_is_cut():
    module = SplitWeights()
    made = parts(module)
    for letter, bias in zip("qkv", module.in_proj_bias.chunk(3), strict=True):
        assert torch.equal(made[letter].bias, bias)


def test_a_bias_for_keys_and_values_is_cut():
    module = PairedBias()
    made = parts(module)
    assert torch.equal(made["q"].bias, module.q_bias)
    assert torch.equal(made["k"].bias, module.kv_bias[:12])
    assert torch.equal(made["v"].bias, module.kv_bias[12:])


def test_a_bias_belongs_to_the_weight_of_its_name():
    module = OneMap()
    (found,) = linears(module)
    assert found.weight is module.W
    assert torch.equal(found.bias, module.b)


def test_a_stack_of_biases_goes_with_a_stack_of_weights():
    module = Stacked()
    module.b = nn.Parameter(torch.randn(4, 24))
    made = parts(module)
    for i, letter in enumerate("qkvo"):
        assert torch.equal(made[letter].weight, module.W[i])
        assert torch.equal(made[letter].bias, module.b[i])


@pytest.mark.parametrize(
    ("names", "said"),
    [({"k_proj": "q_proj"}, ""), ({"v_proj": "k_proj"}, ""), ({"k_proj": "q_proj", "v_proj": "q_proj"}, "")],
)
def test_a_module_under_two_names_has_both_roles(names, said):
    module = tied(**names)
    made = parts(module)
    for name, other in names.items():
        assert torch.equal(made[name[0]].weight, made[other[0]].weight)
    assert readings(module)[0].remark == said
    assert not readings(module)[0].shared


def test_the_same_module_under_one_role_is_one_map():
    module = Whole()
    module.q_projection = module.q_proj
    assert [found.name for found in linears(module)] == ["q_proj", "k_proj", "v_proj", "out_proj"]


def test_fewer_maps_than_roles_are_shared_and_that_is_said():
    first = readings(SharedQueryKey())[0]
    assert first.shared
    said = [one.remark for one in readings(SharedQueryKey())]
    assert any("to_qk is used for queries and keys" in remark for remark in said)
    (one, *_) = readings(OneMap(), 3)
    assert one.remark == "W is used for queries and keys and values and output"


def test_no_map_is_shared_where_each_role_has_one():
    assert not any(reading.shared for reading in readings(Whole()))


@pytest.mark.parametrize(("make", "heads"), [(OneKeyHead, (4, 1)), (FewKeyHeads, (6, 2)), (Whole, (3, 3))])
def test_widths_tell_the_number_of_key_heads(make, heads):
    w = readings(make())[0].weights
    assert (w.H, w.Hkv) == heads


def test_a_convolution_of_size_one_is_a_linear_map():
    module = Pixels()
    maps = {found.name: found for found in linears(module)}
    x = torch.randn(2, 12, 3, 5)
    flat = x.flatten(2).mT
    torch.testing.assert_close(flat @ maps["to_qkv"].weight, module.to_qkv(x).flatten(2).mT)
    torch.testing.assert_close(flat @ maps["to_out"].weight + maps["to_out"].bias, module.to_out(x).flatten(2).mT)
    assert linears(nn.ModuleList([nn.Conv1d(4, 4, 3), nn.Conv1d(4, 4, 1, groups=2)])) == []


@pytest.mark.parametrize(("make", "heads", "width"), [(FlaxKernels, 5, 20), (HeadKernels, 5, 20)])
def test_kernels_of_three_axes_are_read_both_ways(make, heads, width):
    found = {(one.weights.H, one.widths[0]) for one in readings(make())}
    assert (heads, width) in found


def test_one_map_without_a_role_may_be_fused():
    module = nn.Module()
    module.num_heads, module.inp, module.out = 3, nn.Linear(12, 36), nn.Linear(12, 12)
    made = parts(module)
    for i, letter in enumerate("qkv"):
        assert torch.equal(made[letter].weight, module.inp.weight.mT[:, 12 * i : 12 * i + 12])
