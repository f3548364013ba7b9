"""Which linear maps a module holds, and what their names say they are for."""

import types

import pytest
import torch
from torch import nn

from mha_course.checks.diagnosis.projections import attribute, count, linears, role

NAMES = {
    "q": "q Q q_proj query queries W_q w_q wq Wq WQ q_lin to_q fc_q linear_q query_projection queryProj "
    "attn.q_proj.weight Wq.weight proj_q toQueries q_linear qs queries_proj x_q q_net p_q",
    "k": "k K k_proj key keys W_k wk Wk WK to_k fc_k key_layer keyProj self.key.weight k_lin ks lin_k keys_proj tokeys",
    "v": "v V v_proj value values W_v wv WV to_v fc_v v_lin value_projection vals val attn.value.bias valueProj "
    "tovalues",
    "o": "o O out out_proj output W_o wo WO to_out.0 unify unifyheads unify_heads c_proj dense attention.output.dense "
    "o_proj fc_out final_linear proj projection combine_heads fc merge_heads W_out linear_out",
    "qkv": "qkv Wqkv to_qkv qkv_proj in_proj in_proj_weight c_attn query_key_value QKV in_proj_bias attn.qkv.weight",
    "kv": "kv to_kv kv_proj W_kv key_value kv_linear",
    "kqv": "kqv kqv_proj W_kqv",
    "": "norm layer first embed a b scale layers.0 layers.1.weight pos table 0 1.weight",
}


@pytest.mark.parametrize(
    ("letters", "name"), [(role_, name) for role_, names in NAMES.items() for name in names.split()]
)
def test_a_name_tells_its_role(letters, name):
    assert role(name) == letters


def test_the_last_telling_part_counts():
    assert role("query_tower.k_proj.weight") == "k"
    assert role("k_proj.layers.0.weight") == "k"


class Conv1D(nn.Module):
    """GPT-2's: weight (in, out)."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out))
        self.bias = nn.Parameter(torch.randn(n_out))

    def forward(self, x):
        return x @ self.weight + self.bias


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.q_proj = nn.Linear(4, 6)
        self.c_attn = Conv1D(4, 12)
        self.W_k = nn.Parameter(torch.randn(4, 6))
        self.b_k = nn.Parameter(torch.randn(6))
        self.W_v = nn.Parameter(torch.randn(2, 4, 3))
        self.v_bias = nn.Parameter(torch.randn(2, 1, 3))
        self.out_proj = nn.Linear(6, 4, bias=False)


def test_all_linear_maps_are_found_and_nothing_else():
    module = Mixed()
    found = {f.name: f for f in linears(module)}
    assert list(found) == ["q_proj", "c_attn", "out_proj", "W_k", "W_v"]
    assert [f.role for f in found.values()] == ["q", "qkv", "o", "k", "v"]
    assert [f.bare for f in found.values()] == [False, False, False, True, True]


def test_weights_of_layers_are_in_out():
    module = Mixed()
    found = {f.name: f for f in linears(module)}
    x = torch.randn(3, 4)
    for name in ("q_proj", "c_attn"):
        torch.testing.assert_close(x @ found[name].weight + found[name].bias, getattr(module, name)(x))
    assert found["out_proj"].bias is None
    assert found["W_k"].weight is module.W_k


def test_biases_of_bare_parameters_are_found_by_role():
    module = Mixed()
    found = {f.name: f for f in linears(module)}
    assert torch.equal(found["W_k"].bias, module.b_k)
    assert torch.equal(found["W_v"].bias, module.v_bias.flatten())


def test_torch_multihead_attention_has_a_fused_map_with_its_bias():
    module = nn.MultiheadAttention(6, 2)
    nn.init.normal_(module.in_proj_bias)
    found = {f.role: f for f in linears(module)}
    assert set(found) == {"qkv", "o"}
    assert torch.equal(found["qkv"].bias, module.in_proj_bias)
    assert found["qkv"].weight.shape == (18, 6)


def test_a_module_without_maps_has_none():
    assert linears(nn.LayerNorm(4)) == []


class Counted(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        for name, value in attributes.items():
            setattr(self.inner if name.startswith("inner_") else self, name.removeprefix("inner_"), value)


@pytest.mark.parametrize("name", ["num_heads", "n_heads", "n_head", "nhead", "heads", "h", "H", "inner_num_heads"])
def test_heads_are_counted_by_an_attribute(name):
    assert count(Counted(**{name: 3}), "heads") == 3


@pytest.mark.parametrize("value", [True, 0, -1, 2.0, "3", None])
def test_what_is_no_number_of_heads_is_not_read(value):
    assert count(Counted(num_heads=value), "heads") is None


def test_groups_are_counted_apart():
    module = Counted(num_heads=6, num_kv_heads=2)
    assert (count(module, "heads"), count(module, "groups")) == (6, 2)
    assert count(Counted(num_heads=6), "groups") is None


class Hostile(nn.Module):
    @property
    def num_heads(self):
        raise RuntimeError("no")


def test_a_property_that_raises_counts_as_missing():
    assert attribute(Hostile(), "num_heads") is None
    assert count(Hostile(), "heads") is None


def test_a_config_tells_the_number_of_heads():
    module = torch.nn.Linear(4, 4)
    module.config = types.SimpleNamespace(n_head=3)
    assert count(module, "heads") == 3
    module.n_head = 2
    assert count(module, "heads") == 2
