"""What cannot be computed is refused, with the argument's name, what was expected and what came."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from mha_course import MultiHeadAttention, attention, masks
from tests.multihead.modules import BACKENDS, EK, EV, B, D, E, S, T, ours

pytestmark = pytest.mark.unchecked


def refuses(error: type[Exception], message: str):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"embed_dim": 12.0}, TypeError, "embed_dim must be an integer, got float"),
        ({"embed_dim": True}, TypeError, "embed_dim must be an integer, got bool"),
        ({"embed_dim": None}, TypeError, "embed_dim must be an integer, got NoneType"),
        ({"embed_dim": 0}, ValueError, "embed_dim must be at least 1, got 0"),
        ({"num_heads": "4"}, TypeError, "num_heads must be an integer, got str"),
        ({"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        ({"num_heads": -4}, ValueError, "num_heads must be at least 1, got -4"),
        ({"num_heads": 5}, ValueError, "num_heads must divide embed_dim if head_dim is None, got 5 and 12"),
        ({"num_heads": 24}, ValueError, "num_heads must divide embed_dim if head_dim is None, got 24 and 12"),
        ({"num_kv_heads": 2.0}, TypeError, "num_kv_heads must be an integer, got float"),
        ({"num_kv_heads": 0}, ValueError, "num_kv_heads must be at least 1, got 0"),
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads must divide num_heads, got 3 and 4"),
        ({"num_kv_heads": 8}, ValueError, "num_kv_heads must divide num_heads, got 8 and 4"),
        ({"head_dim": 0}, ValueError, "head_dim must be at least 1, got 0"),
        ({"head_dim": 1.5}, TypeError, "head_dim must be an integer, got float"),
        ({"kdim": 0}, ValueError, "kdim must be at least 1, got 0"),
        ({"kdim": [3]}, TypeError, "kdim must be an integer, got list"),
        ({"vdim": -1}, ValueError, "vdim must be at least 1, got -1"),
        ({"vdim": "3"}, TypeError, "vdim must be an integer, got str"),
        ({"dropout": 1.1}, ValueError, "dropout must lie in [0, 1], got 1.1"),
        ({"dropout": -0.1}, ValueError, "dropout must lie in [0, 1], got -0.1"),
        ({"dropout": None}, TypeError, "dropout must be a number, got NoneType"),
        ({"backend": "flash"}, ValueError, 'backend must be "sdpa", "explicit" or callable, got \'flash\''),
        ({"backend": None}, ValueError, 'backend must be "sdpa", "explicit" or callable, got None'),
        ({"rotary": 10_000}, TypeError, "rotary must be callable, got int"),
    ],
    ids=str,
)
def test_construction(options: dict, error: type[Exception], message: str) -> None:
    with refuses(error, message):
        MultiHeadAttention(**{"embed_dim": 12, "num_heads": 4, **options})


def test_options_go_by_name() -> None:
    with pytest.raises(TypeError, match="takes 3 positional arguments but 4 were given"):
        MultiHeadAttention(12, 4, 2)
    x = torch.zeros(B, T, 12)
    with pytest.raises(TypeError, match="takes from 2 to 4 positional arguments but 5 were given"):
        MultiHeadAttention(12, 4)(x, x, x, masks.causal(T))
    with pytest.raises(TypeError, match="unexpected keyword argument 'need_weights'"):
        MultiHeadAttention(12, 4)(x, need_weights=False)


def test_boundaries_that_are_allowed() -> None:
    MultiHeadAttention(1, 1, num_kv_heads=1, head_dim=1, kdim=1, vdim=1, dropout=1)
    MultiHeadAttention(5, 4, head_dim=1, dropout=0)


query, key, value = torch.zeros(B, T, E), torch.zeros(B, S, EK), torch.zeros(B, S, EV)
true = torch.ones(T, S, dtype=torch.bool)
WIDTHS = f"with Ek = {EK}"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": [[1.0]]}, TypeError, "query must be a tensor, got list"),
        ({"query": None}, TypeError, "query must be a tensor, got NoneType"),
        ({"key": np.zeros((2, 2))}, TypeError, "key must be a tensor, got ndarray"),
        ({"value": true}, TypeError, "value must be floating point, got torch.bool"),
        ({"query": query.long()}, TypeError, "query must be floating point, got torch.int64"),
        ({"key": key.to(torch.complex64)}, TypeError, "key must be floating point, got torch.complex64"),
        (
            {"query": query.double()},
            TypeError,
            "query must have the parameters' type, torch.float32, got torch.float64",
        ),
        ({"key": key.half()}, TypeError, "key must have the parameters' type, torch.float32, got torch.float16"),
        (
            {"value": value.bfloat16()},
            TypeError,
            "value must have the parameters' type, torch.float32, got torch.bfloat16",
        ),
        (
            {"query": query.double().to("meta")},
            TypeError,
            "query must have the parameters' type, torch.float32, got torch.float64",
        ),
        ({"query": query[0]}, ValueError, "query must be (B, T, E) with E = 33, got (5, 33)"),
        ({"query": query[None]}, ValueError, "query must be (B, T, E) with E = 33, got (1, 2, 5, 33)"),
        ({"query": query[..., 1:]}, ValueError, "query must be (B, T, E) with E = 33, got (2, 5, 32)"),
        ({"key": key[..., 1:]}, ValueError, "key must be (B, S, Ek) with Ek = 17, got (2, 7, 16)"),
        ({"value": value[:, 0]}, ValueError, "value must be (B, S, Ev) with Ev = 19, got (2, 19)"),
        ({"key": value, "value": key}, ValueError, "key must be (B, S, Ek) with Ek = 17, got (2, 7, 19)"),
        ({"key": None}, ValueError, "value was given without key: give both, or key alone"),
        ({"value": None}, ValueError, "value (key, as none was given) must be (B, S, Ev) with Ev = 19, got (2, 7, 17)"),
        (
            {"key": None, "value": None},
            ValueError,
            "key (query, as none was given) must be (B, S, Ek) with Ek = 17, got (2, 5, 33)",
        ),
        ({"query": query[:1]}, ValueError, "query, key and value must have one batch size B, got 1, 2 and 2"),
        ({"key": key[:1]}, ValueError, "query, key and value must have one batch size B, got 2, 1 and 2"),
        ({"value": value[:0]}, ValueError, "query, key and value must have one batch size B, got 2, 2 and 0"),
        ({"value": value[:, 1:]}, ValueError, "key and value must have one length S, got 7 and 6"),
        ({"key": key[:, :1]}, ValueError, "key and value must have one length S, got 1 and 7"),
        ({"mask": true.float()}, TypeError, "mask must be bool (True = may attend), got torch.float32"),
        ({"mask": true.int()}, TypeError, "mask must be bool (True = may attend), got torch.int32"),
        ({"mask": "causal"}, TypeError, "mask must be a bool (True = may attend) tensor, got str"),
        ({"score_bias": true}, TypeError, "score_bias must be floating point, got torch.bool"),
        ({"score_bias": 1.0}, TypeError, "score_bias must be a floating point tensor, got float"),
        ({"is_causal": true}, TypeError, "is_causal must be True or False, got Tensor"),
        ({"is_causal": 1}, TypeError, "is_causal must be True or False, got int"),
        (
            {"is_causal": True},
            ValueError,
            "is_causal needs T = S, got T = 5 and S = 7: pass mask=causal(T, S, alignment=...)",
        ),
        ({"mask": true.to("meta")}, ValueError, "mask must be on q's device, cpu, got meta"),
        (
            {"score_bias": torch.zeros(T, S, device="meta")},
            ValueError,
            "score_bias must be on q's device, cpu, got meta",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
@pytest.mark.parametrize("method", ["forward", "trace"])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_a_call(backend, method: str, change: dict, error: type[Exception], message: str) -> None:
    module = MultiHeadAttention(E, 3, head_dim=D, kdim=EK, vdim=EV, backend=backend)
    with refuses(error, message):
        getattr(module, method)(**{"query": query, "key": key, "value": value, **change})


SHAPES = [(S, T), (B, S), (T, S + 1), (T - 1, S), (B, T, S), (B, 1, T), (4, 1, 1), (B, 2, T, S), (3, 3, T, S)]


@pytest.mark.parametrize("shape", [*SHAPES, (1, 1, 1, T, S), (T, 0), (0,)], ids=str)
@pytest.mark.parametrize("name", ["mask", "score_bias"])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_masks_of_every_wrong_shape(backend, name: str, shape: tuple[int, ...]) -> None:
    module = MultiHeadAttention(E, 3, kdim=EK, vdim=EV, backend=backend)
    x = torch.ones(shape, dtype=torch.bool if name == "mask" else torch.float32)
    with refuses(ValueError, f"{name} must broadcast to (..., T, S) = (2, 3, 5, 7), got {shape}"):
        module(query, key, value, **{name: x})


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (lambda q, k, v, **_: attention(q, k, v), TypeError, "a tensor (B, H, T, D), got AttentionTrace"),
        (lambda q, k, v, **_: None, TypeError, "a tensor (B, H, T, D), got NoneType"),
        (lambda q, k, v, **_: q.transpose(1, 2), ValueError, "(B, H, T, D) = (2, 3, 5, 11), got (2, 5, 3, 11)"),
        (lambda q, k, v, **_: v, ValueError, "(B, H, T, D) = (2, 3, 5, 11), got (2, 3, 7, 11)"),
    ],
    ids=["a trace", "nothing", "turned", "keys"],
)
def test_what_a_backend_returns(returned, error: type[Exception], message: str) -> None:
    module = MultiHeadAttention(E, 3, kdim=EK, vdim=EV, backend=returned)
    with refuses(error, f"backend must return {message}"):
        module(query, key, value)


def test_a_backend_set_later_and_one_with_other_arguments() -> None:
    module = MultiHeadAttention(E, 3)
    module.backend = "flash"
    with refuses(ValueError, 'backend must be "sdpa", "explicit" or callable, got \'flash\''):
        module(query)
    module.backend = lambda q, k, v, mask: q
    with pytest.raises(TypeError, match="unexpected keyword argument 'score_bias'"):
        module(query)


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (nn.Linear(4, 4), TypeError, "module must be an nn.MultiheadAttention, got Linear"),
        (ours(4, 2), TypeError, "module must be an nn.MultiheadAttention, got MultiHeadAttention"),
        (
            nn.MultiheadAttention(4, 2, add_bias_kv=True),
            ValueError,
            "module must have neither add_bias_kv nor add_zero_attn: they have no counterpart here",
        ),
        (
            nn.MultiheadAttention(4, 2, add_zero_attn=True),
            ValueError,
            "module must have neither add_bias_kv nor add_zero_attn: they have no counterpart here",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_from_torch(module: nn.Module, error: type[Exception], message: str) -> None:
    with refuses(error, message):
        MultiHeadAttention.from_torch(module)


def test_under_autocast_double_is_still_refused() -> None:
    module = MultiHeadAttention(E, 3)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="must have the same dtype"):
        module(query.double())


@pytest.mark.parametrize("backend", ["sdpa", "explicit"])
@pytest.mark.parametrize(
    ("rotary", "error", "message"),
    [
        (lambda x: x[:, :, -1:], ValueError, "rotary must return (B, H, T, D) = (2, 4, 5, 3), got (2, 4, 1, 3)"),
        (lambda x: x[..., :2], ValueError, "rotary must return (B, H, T, D) = (2, 4, 5, 3), got (2, 4, 5, 2)"),
        (lambda x: None, TypeError, "rotary must return a tensor (B, H, T, D), got NoneType"),
        (torch.Tensor.double, TypeError, "rotary must return the type of its input, torch.float32, got torch.float64"),
    ],
)
def test_what_rotary_returns(backend: str, rotary: object, error: type[Exception], message: str) -> None:
    module = MultiHeadAttention(12, 4, rotary=rotary, backend=backend)
    with refuses(error, message):
        module(torch.zeros(2, 5, 12))
