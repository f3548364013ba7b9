"""The shape tracer: the table of a real call, the same sizes as the call's tensors, nothing left behind."""

import inspect

import pytest
import torch
from torch import nn

from mha_course import MultiHeadAttention
from mha_course.multihead import Shape, ShapeTrace, trace_shapes
from tests.multihead.modules import EK, EV, MASKS, B, D, S, T, numbers, ours

TABLE = """
    step                 tensor              axes        shape
    input                query               B, T, E     (2, 3, 16)
                         key                 B, S, E     (2, 3, 16)
                         value               B, S, E     (2, 3, 16)
    1 project            q_proj(query)       B, T, HD    (2, 3, 16)
                         k_proj(key)         B, S, HD    (2, 3, 16)
                         v_proj(value)       B, S, HD    (2, 3, 16)
    2 split              q                   B, H, T, D  (2, 4, 3, 4)
                         k                   B, H, S, D  (2, 4, 3, 4)
                         v                   B, H, S, D  (2, 4, 3, 4)
    3 scores             q k^T / sqrt(D)     B, H, T, S  (2, 4, 3, 3)
    4 softmax            weights             B, H, T, S  (2, 4, 3, 3)
    5 weighted sum       weights v           B, H, T, D  (2, 4, 3, 4)
    6 merge              heads side by side  B, T, HD    (2, 3, 16)
    7 output projection  out                 B, T, E     (2, 3, 16)

    B = 2: samples
    T = 3: queries
    E = 16: width of the model
    S = 3: keys, and as many values
    HD = 16: the heads side by side, H times D
    H = 4: heads
    D = 4: width of a head
"""


def test_the_table_of_the_lesson() -> None:
    found = trace_shapes(MultiHeadAttention(16, 4), torch.randn(2, 3, 16))
    assert str(found) == repr(found) == inspect.cleandoc(TABLE)
    assert found[7] == Shape("2 split", "k", ("B", "H", "S", "D"), (2, 4, 3, 4))


def test_every_size_of_grouped_cross_attention() -> None:
    module = ours(13, 6, num_kv_heads=2, head_dim=D, kdim=EK, vdim=EV)
    inputs = numbers(B, T, 13), numbers(B, S, EK), numbers(B, S, EV)
    found = trace_shapes(module, *inputs, mask=MASKS["padding"])
    assert isinstance(found, ShapeTrace)
    size = {"B": B, "T": T, "S": S, "E": 13, "Ek": EK, "Ev": EV, "H": 6, "Hkv": 2, "D": D, "HD": 66, "HkvD": 22}
    assert [x.sizes for x in found] == [tuple(size[letter] for letter in x.axes) for x in found]
    assert [(x.step, "".join(x.axes)) for x in found] == [
        ("input", "BTE"),
        ("input", "BSEk"),
        ("input", "BSEv"),
        ("1 project", "BTHD"),
        ("1 project", "BSHkvD"),
        ("1 project", "BSHkvD"),
        ("2 split", "BHTD"),
        ("2 split", "BHkvSD"),
        ("2 split", "BHkvSD"),
        ("3 scores", "BHTS"),
        ("4 softmax", "BHTS"),
        ("5 weighted sum", "BHTD"),
        ("6 merge", "BTHD"),
        ("7 output projection", "BTE"),
    ]
    legend = str(found).split("\n\n")[1]
    assert "Ek = 17: width of key\nEv = 19: width of value\n" in legend
    assert "Hkv = 2: heads of k and v, each read by H / Hkv heads of q" in legend


def test_the_sizes_come_from_the_run() -> None:
    """A projection of another width shows in the table: it is not computed from the arguments."""
    module = MultiHeadAttention(16, 4)
    module.v_proj, module.out_proj = nn.Linear(16, 16), nn.Linear(16, 10)
    found = trace_shapes(module, torch.randn(2, 3, 16))
    assert found[-1].sizes == (2, 3, 10)
    module.q_proj, module.k_proj, module.v_proj = nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(16, 8)
    module.out_proj = nn.Linear(8, 16)
    assert {x.sizes for x in trace_shapes(module, torch.randn(2, 3, 16)) if x.step == "2 split"} == {(2, 2, 3, 4)}


def test_it_runs_once_and_leaves_the_module_as_it_was() -> None:
    module = MultiHeadAttention(16, 4, dropout=0.5)
    calls = []
    module.out_proj.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    trace_shapes(module, torch.randn(2, 3, 16))
    assert calls == [False]
    with pytest.raises(ValueError, match="mask must broadcast"):
        trace_shapes(module, torch.randn(2, 3, 16), mask=torch.ones(2, 2, dtype=torch.bool))
    assert [len(x._forward_hooks) for x in module.children()] == [0, 0, 0, 1]
    assert module.training


@pytest.mark.unchecked
def test_another_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^module must be a MultiHeadAttention, got MultiheadAttention$"):
        trace_shapes(nn.MultiheadAttention(16, 4), torch.randn(2, 3, 16))


def test_a_projection_that_is_used_twice() -> None:
    module = MultiHeadAttention(12, 3)
    module.k_proj = module.q_proj  # shared queries and keys
    found = {shape.tensor: shape.sizes for shape in trace_shapes(module, torch.randn(2, 5, 12), torch.randn(2, 7, 12))}
    assert (found["query"], found["key"]) == ((2, 5, 12), (2, 7, 12))
    assert (found["q_proj(query)"], found["k_proj(key)"]) == ((2, 5, 12), (2, 7, 12))
    assert all(not linear._forward_hooks for linear in module.children())
