"""Operations against PyTorch's counter, bytes against a count by hand and against the tensors themselves."""

import math
import re

import pytest
import torch
from torch.nn import functional as F

from mha_course import MultiHeadAttention
from mha_course.profiling import Cost, attention_costs, counted

B, T, S, H, D = 2, 5, 7, 6, 11
E = 13


def products(costs: dict[str, Cost]) -> int:
    """All operations but those of a softmax, which PyTorch's counter leaves out."""
    return sum(cost.flops for name, cost in costs.items() if name != "softmax")


def module(Hkv: int, backend: str) -> MultiHeadAttention:
    return MultiHeadAttention(E, H, num_kv_heads=Hkv, head_dim=D, backend=backend)


def test_two_by_two_by_hand() -> None:
    """One sample, two tokens, width 2, one head: every matrix is 2 x 2, 16 bytes; a product takes 16 operations."""
    project = Cost(16, 16 + 16 + 8, 16)
    assert attention_costs(1, 2, 2, 2, 1) == {
        "q_proj": project,
        "k_proj": project,
        "v_proj": project,
        "scores": Cost(16, 32, 16),
        "softmax": Cost(20, 16, 16, exps=4),
        "weighted sum": Cost(16, 32, 16),
        "out_proj": project,
    }
    back = Cost(32, 48, 16 + 16 + 8)
    assert attention_costs(1, 2, 2, 2, 1, backward=True) == {
        "q_proj": back,
        "k_proj": back,
        "v_proj": back,
        "scores": Cost(32, 48, 32),
        "softmax": Cost(16, 32, 16),
        "weighted sum": Cost(32, 48, 32),
        "out_proj": back,
    }


def test_the_fused_kernel_by_hand() -> None:
    """It reads q, k and v and writes heads and a row sum for each query; backward scores are computed again."""
    assert attention_costs(1, 2, 2, 2, 1, explicit=False)["attention"] == Cost(32, 48, 16 + 8, exps=4)
    back = attention_costs(1, 2, 2, 2, 1, explicit=False, backward=True)
    assert back["attention"] == Cost(80, 16 * 5 + 8, 48, exps=4)
    assert [*back] == ["q_proj", "k_proj", "v_proj", "attention", "out_proj"]


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("Hkv", [6, 3, 1])
@pytest.mark.parametrize("cross", [True, False])
def test_operations_equal_the_counter(explicit: bool, Hkv: int, cross: bool) -> None:
    layer = module(Hkv, "explicit" if explicit else "sdpa")
    query = torch.randn(B, T, E, requires_grad=True)
    key = torch.randn(B, S, E, requires_grad=True) if cross else query
    costs = [
        attention_costs(B, T, S if cross else T, E, H, Hkv=Hkv, D=D, explicit=explicit, backward=backward)
        for backward in (False, True)
    ]
    out = []
    assert counted(lambda: out.append(layer(query, key))).total == products(costs[0])
    assert counted(lambda: out[0].sum().backward()).total == products(costs[1])


def test_self_attention_is_8_and_4() -> None:
    for S, E, H in ((7, 30, 5), (60, 30, 2)):
        costs = attention_costs(3, S, S, E, H)
        assert products(costs) == 8 * 3 * S * E**2 + 4 * 3 * S**2 * E
        projections = sum(cost.flops for name, cost in costs.items() if name.endswith("proj"))
        assert (projections == costs["scores"].flops + costs["weighted sum"].flops) == (S == 2 * E)


def test_bytes_are_those_of_the_tensors() -> None:
    layer = module(3, "explicit").double()
    query, key = torch.randn(B, T, E).double(), torch.randn(B, S, E).double()
    run = layer.trace(query, key)
    costs = attention_costs(B, T, S, E, H, Hkv=3, D=D, itemsize=8)
    read = {
        "q_proj": (query, *layer.q_proj.parameters()),
        "k_proj": (key, *layer.k_proj.parameters()),
        "v_proj": (key, *layer.v_proj.parameters()),
        "scores": (run.q, run.k),
        "softmax": (run.scores,),
        "weighted sum": (run.weights, run.v),
        "out_proj": (run.heads, *layer.out_proj.parameters()),
    }
    written = dict(zip(read, (run.q, run.k, run.v, run.scores, run.weights, run.heads, run.out), strict=True))
    for name, cost in costs.items():
        assert (cost.read, cost.written) == (sum(x.nbytes for x in read[name]), written[name].nbytes), name
    assert costs["softmax"].exps == run.scores.numel()
    fused = attention_costs(B, T, S, E, H, Hkv=3, D=D, itemsize=8, explicit=False)["attention"]
    assert fused.read == sum(x.nbytes for x in (run.q, run.k, run.v))


def test_a_mask_is_read_and_scores_are_copied() -> None:
    plain, masked = (attention_costs(B, T, S, E, H, D=D, mask=mask) for mask in (False, True))
    matrix = 4 * B * H * T * S
    assert masked["scores"] == plain["scores"] + Cost(0, matrix + T * S, matrix)
    assert all(masked[name] == plain[name] for name in plain if name != "scores")
    plain, masked = (attention_costs(B, T, S, E, H, D=D, mask=mask, explicit=False) for mask in (False, True))
    assert masked["attention"] == plain["attention"] + Cost(0, T * S, 0)


def test_costs_add() -> None:
    costs = attention_costs(B, T, S, E, H, D=D)
    total = sum(costs.values(), Cost())
    assert total.flops == sum(cost.flops for cost in costs.values())
    assert total.bytes == sum(cost.read + cost.written for cost in costs.values())
    assert total.exps == B * H * T * S
    assert sum(costs.values()) == total
    for other in (1, 0.0):
        with pytest.raises(TypeError, match="unsupported operand"):
            total + other
        with pytest.raises(TypeError, match="unsupported operand"):
            other + total


def test_intensity() -> None:
    assert Cost(30, 4, 6).intensity == 3
    assert Cost(1).intensity == math.inf


def test_counter_names_operations_largest_first() -> None:
    q = torch.randn(1, 2, 3, 4)
    found = counted(lambda: (F.scaled_dot_product_attention(q, q, q), q[0, 0] @ torch.ones(4, 9)))
    assert found.by_operation == {"_scaled_dot_product_flash_attention_for_cpu": 4 * 2 * 9 * 4, "mm": 2 * 3 * 4 * 9}
    assert [*found.by_operation.values()] == sorted(found.by_operation.values(), reverse=True)
    assert counted(lambda: q + q) == (0, {})


def test_counter_passes_on_what_is_raised() -> None:
    with pytest.raises(RuntimeError, match="own"):
        counted(lambda: (_ for _ in ()).throw(RuntimeError("own")))


@pytest.mark.unchecked
def test_counter_refuses_what_does_not_run() -> None:
    with pytest.raises(TypeError, match="fn must be a function without arguments, got Tensor"):
        counted(torch.ones(1))
    with pytest.raises(TypeError, match="must run its body, got a generator"):
        counted(lambda: (x for x in ()))


@pytest.mark.unchecked
@pytest.mark.parametrize("place", range(5))
def test_each_size_is_checked(place: int) -> None:
    name = "BTSEH"[place]
    sizes = [2, 2, 2, 2, 2]
    sizes[place] = 0
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        attention_costs(*sizes)
    sizes[place] = 2.0
    with pytest.raises(TypeError, match=f"{name} must be an integer, got float"):
        attention_costs(*sizes)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"Hkv": 4}, ValueError, "Hkv must divide H, got 4 and 6"),
        ({"Hkv": 0}, ValueError, "Hkv must be at least 1, got 0"),
        ({"D": None}, ValueError, "H must divide E if D is None, got 6 and 13"),
        ({"D": 0}, ValueError, "D must be at least 1, got 0"),
        ({"itemsize": 0}, ValueError, "itemsize must be at least 1, got 0"),
        ({"itemsize": 2.0}, TypeError, "itemsize must be an integer, got float"),
        ({"explicit": None}, TypeError, "explicit must be True or False, got NoneType"),
        ({"backward": "no"}, TypeError, "backward must be True or False, got str"),
        ({"mask": torch.ones(T, S) > 0}, TypeError, "mask must be True or False, got Tensor"),
    ],
)
def test_bad_options(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        attention_costs(B, T, S, E, H, **({"D": D} | options))
