"""The module by hand: sizes, initialisation, trace, rotary, dropout."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from mha_course import MultiHeadAttention, attention
from mha_course.multihead import merge_heads, split_heads
from tests.multihead.modules import BACKENDS, EK, EV, MASKS, B, D, E, H, S, T, bools, leaf, numbers, ours, plain


def eye(module: MultiHeadAttention) -> MultiHeadAttention:
    """Every projection becomes the identity."""
    with torch.no_grad():
        for linear in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
            linear.weight.copy_(torch.eye(*linear.weight.shape))
    return module


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_two_heads_by_hand(backend) -> None:
    module = eye(MultiHeadAttention(2, 2, backend=backend))
    query = torch.tensor([[[1.0, 0]]])
    key = torch.tensor([[[math.log(3), 5], [0, 7]]])
    value = torch.tensor([[[4.0, 8], [0, 0]]])
    # head 0 sees features 0: scores ln 3 and 0, weights 3 : 1; head 1 sees features 1: scores 0 and 0
    assert_close(module(query, key, value), torch.tensor([[[3.0, 4]]]))
    assert_close(module.trace(query, key, value).weights, torch.tensor([[[[0.75, 0.25]], [[0.5, 0.5]]]]))


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_the_scale_is_that_of_one_head(backend) -> None:
    module = eye(MultiHeadAttention(8, 2, backend=backend))
    query = torch.tensor([[[2 * math.log(3), 0, 0, 0, 0, 0, 0, 0]]])  # D = 4: divided by 2
    key = torch.eye(2, 8)[None]
    value = torch.zeros(1, 2, 8)
    value[0, 0, 1], value[0, 1, 6] = 1, 1
    assert_close(module(query, key, value)[0, 0], torch.tensor([0, 0.75, 0, 0, 0, 0, 0.5, 0]))


def test_split_and_merge_by_hand() -> None:
    x = torch.arange(1.0, 13).view(1, 2, 6)  # rows 1 to 6 and 7 to 12
    heads = torch.tensor([[[[1.0, 2], [7, 8]], [[3, 4], [9, 10]], [[5, 6], [11, 12]]]])
    assert_close(split_heads(x, 2), heads, rtol=0, atol=0)
    assert_close(merge_heads(heads), x, rtol=0, atol=0)
    x = numbers(B, T, H * D)
    assert_close(split_heads(x, D), torch.stack(x.split(D, dim=-1), dim=1), rtol=0, atol=0)
    assert_close(merge_heads(split_heads(x, D)), x, rtol=0, atol=0)


def test_key_and_value_default_to_what_came_before() -> None:
    module = ours()
    x, y, z = numbers(B, T, E), numbers(B, S, E, seed=1), numbers(B, S, E, seed=2)
    for name, backend in BACKENDS.items():
        module.backend = backend
        assert_close(module(x), module(x, x, x), msg=name)
        assert_close(module(x, y), module(x, y, y), msg=name)
        assert not torch.allclose(module(x, y), module(x, y, z)), name
        assert not torch.allclose(module(x), module(x, y)[:, :T]), name


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"embed_dim": 512, "num_heads": 8}, 1_050_624),
        ({"embed_dim": 512, "num_heads": 8, "bias": False}, 1_048_576),
        ({"embed_dim": 512, "num_heads": 64}, 1_050_624),
        ({"embed_dim": 768, "num_heads": 12}, 2_362_368),
        ({"embed_dim": 1024, "num_heads": 16}, 4_198_400),
        ({"embed_dim": 1024, "num_heads": 16, "bias": False}, 4_194_304),
        ({"embed_dim": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "bias": False}, 41_943_040),
        ({"embed_dim": 4096, "num_heads": 32, "head_dim": 128, "bias": False}, 67_108_864),
        ({"embed_dim": 4096, "num_heads": 32, "num_kv_heads": 1, "bias": False}, 34_603_008),
        ({"embed_dim": 13, "num_heads": 6, "num_kv_heads": 2, "head_dim": 11, "kdim": 17, "vdim": 19}, 2631),
    ],
    ids=str,
)
def test_parameters(options: dict, count: int) -> None:
    module = MultiHeadAttention(**options, device="meta")
    assert sum(x.numel() for x in module.parameters()) == count
    assert [name for name, _ in module.named_children()] == ["q_proj", "k_proj", "v_proj", "out_proj"]
    assert list(module.buffers()) == []


def test_sizes_are_kept() -> None:
    module = MultiHeadAttention(13, 6, num_kv_heads=2, head_dim=11, kdim=17, vdim=19, dropout=0.25)
    assert (module.embed_dim, module.num_heads, module.num_kv_heads, module.head_dim) == (13, 6, 2, 11)
    assert (module.kdim, module.vdim, module.dropout, module.backend, module.rotary) == (17, 19, 0.25, "sdpa", None)
    assert module.q_proj.weight.shape == (66, 13)
    assert module.k_proj.weight.shape == (22, 17)
    assert module.v_proj.weight.shape == (22, 19)
    assert module.out_proj.weight.shape == (13, 66)
    module = MultiHeadAttention(12, 4)
    assert (module.num_kv_heads, module.head_dim, module.kdim, module.vdim, module.dropout) == (4, 3, 12, 12, 0)
    assert module.training
    assert repr(MultiHeadAttention(12, 4, dropout=0.5)).splitlines()[1] == (
        "  num_heads=4, num_kv_heads=4, head_dim=3, dropout=0.5, backend='sdpa'"
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_dtype_of_parameters_and_of_the_result(dtype: torch.dtype) -> None:
    module = MultiHeadAttention(E, H, dtype=dtype)
    assert {x.dtype for x in module.parameters()} == {dtype}
    for backend in BACKENDS.values():
        module.backend = backend
        assert module(numbers(B, T, E, dtype=dtype)).dtype == dtype
        # a bias in another type is taken in that of q
        bias = numbers(H, T, T, dtype=torch.float64 if dtype == torch.float32 else torch.float32)
        if backend is not plain:
            assert module(numbers(B, T, E, dtype=dtype), score_bias=bias).dtype == dtype


# Initialisation


@pytest.mark.parametrize("options", [{}, {"kdim": 96, "vdim": 320}, {"num_kv_heads": 2}], ids=str)
def test_weights_start_xavier_uniform_in_each_matrix_and_biases_at_0(options: dict) -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(256, 8, **options)
    for linear in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
        bound = math.sqrt(6 / (linear.in_features + linear.out_features))
        largest = linear.weight.abs().max().item()
        assert 0.999 * bound < largest <= bound
        assert abs(linear.weight.std().item() * math.sqrt(3) / bound - 1) < 0.01
        assert abs(linear.weight.mean().item()) < 0.01 * bound
        assert not linear.bias.any()


def test_relation_to_the_initialisation_of_torch_and_of_the_scores() -> None:
    torch.manual_seed(0)
    mine, theirs = MultiHeadAttention(256, 8), nn.MultiheadAttention(256, 8)
    apart = nn.MultiheadAttention(256, 8, kdim=128)
    largest = {name: x.abs().max().item() for name, x in mine.named_parameters()}
    assert math.isclose(largest["q_proj.weight"] / theirs.in_proj_weight.abs().max().item(), 2**0.5, rel_tol=1e-3)
    assert math.isclose(largest["q_proj.weight"], apart.q_proj_weight.abs().max().item(), rel_tol=1e-3)
    assert math.isclose(largest["out_proj.weight"] / theirs.out_proj.weight.abs().max().item(), 3**0.5, rel_tol=1e-3)
    trace = mine.trace(torch.randn(32, 64, 256))
    for x in (trace.q, trace.k, trace.v, trace.scores):
        assert abs(x.var().item() - 1) < 0.1


def test_reset_parameters_draws_anew_and_a_seed_repeats() -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(12, 4)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    with torch.no_grad():
        module.q_proj.bias.fill_(1)
    module.reset_parameters()
    assert not any(torch.equal(x, before[name]) for name, x in module.state_dict().items() if "weight" in name)
    assert not module.q_proj.bias.any()
    torch.manual_seed(0)
    assert_close(dict(MultiHeadAttention(12, 4).state_dict()), before, rtol=0, atol=0)
    MultiHeadAttention(12, 4, bias=False).reset_parameters()


# from_torch


def test_from_torch_copies_and_takes_over() -> None:
    theirs = nn.MultiheadAttention(E, H, dropout=0.3, dtype=torch.float64).eval()
    theirs.out_proj.weight.requires_grad_(False)
    theirs.in_proj_bias.requires_grad_(False)
    state = torch.get_rng_state()
    module = MultiHeadAttention.from_torch(theirs)
    assert torch.equal(torch.get_rng_state(), state), "draws no random numbers"
    assert type(module) is MultiHeadAttention
    assert (module.dropout, module.training, module.backend) == (0.3, False, "sdpa")
    frozen = {name for name, x in module.named_parameters() if not x.requires_grad}
    assert frozen == {"out_proj.weight", "q_proj.bias", "k_proj.bias", "v_proj.bias"}
    assert all(type(x) is nn.Parameter and x.is_leaf and x.is_contiguous() for x in module.parameters())
    assert_close(torch.cat([module.q_proj.weight, module.k_proj.weight, module.v_proj.weight]), theirs.in_proj_weight)
    with torch.no_grad():
        theirs.in_proj_weight.zero_()
    assert module.k_proj.weight.any()
    assert MultiHeadAttention.from_torch(nn.MultiheadAttention(E, H).train()).training
    assert MultiHeadAttention.from_torch(nn.MultiheadAttention(E, H, device="meta")).q_proj.weight.is_meta


# The trace


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("kv_heads", [6, 2])
def test_the_trace_is_consistent_whatever_the_backend(kv_heads: int, backend) -> None:
    module = ours(13, 6, num_kv_heads=kv_heads, head_dim=D, kdim=EK, vdim=EV, backend=backend)
    query, key, value = numbers(B, T, 13), numbers(B, S, EK), numbers(B, S, EV)
    mask, bias = MASKS["padding"], numbers(6, T, S)
    trace = module.trace(query, key, value, mask=mask, score_bias=bias)
    assert trace._fields == ("q", "k", "v", "scores", "weights", "heads", "out")
    assert_close(trace.out, module(query, key, value, mask=mask, score_bias=bias))
    assert_close(trace.out, module.out_proj(torch.cat(trace.heads.unbind(1), dim=-1)))
    for h in range(6):
        of_head = slice(h * D, (h + 1) * D)
        assert_close(trace.q[:, h], module.q_proj(query)[..., of_head])
        shared = h // (6 // kv_heads)
        k, v = trace.k[:, shared], trace.v[:, shared]
        want = attention(trace.q[:, h], k, v, mask=mask[:, 0], score_bias=bias[h])
        assert_close((trace.scores[:, h], trace.weights[:, h], trace.heads[:, h]), tuple(want))
    assert trace.k.shape == trace.v.shape == (B, kv_heads, S, D)
    assert_close(trace.k, module.k_proj(key).view(B, S, kv_heads, D).transpose(1, 2))
    assert_close(trace.v, module.v_proj(value).view(B, S, kv_heads, D).transpose(1, 2))


# Rotary


def turn(x: Tensor, *, offset: int = 0) -> Tensor:
    """Rotary embedding of adjacent pairs, in the complex plane."""
    position = torch.arange(offset, offset + x.shape[2], dtype=torch.float64)
    angle = torch.outer(position, 10_000.0 ** -torch.arange(0, 1, 2 / x.shape[3], dtype=torch.float64))
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("kv_heads", [6, 2])
def test_rotary_turns_queries_and_keys_and_nothing_else(kv_heads: int, backend) -> None:
    module = ours(E, 6, num_kv_heads=kv_heads, head_dim=10, rotary=turn, backend=backend)
    still = ours(E, 6, num_kv_heads=kv_heads, head_dim=10)
    query, key, value = numbers(B, T, E), numbers(B, S, E, seed=1), numbers(B, S, E, seed=2)
    trace, before = module.trace(query, key, value), still.trace(query, key, value)
    assert_close(trace.q, turn(before.q))
    assert_close(trace.k, turn(before.k))
    assert_close(trace.v, before.v, rtol=0, atol=0)
    assert_close(module(query, key, value), trace.out)
    assert not torch.allclose(trace.out, before.out)
    assert_close(trace.q[:, :, 0], before.q[:, :, 0])


def test_a_rotary_module_is_a_part_of_the_module() -> None:
    class Turn(nn.Module):
        def forward(self, x: Tensor, *, offset: int = 0) -> Tensor:
            return turn(x, offset=offset)

    module = MultiHeadAttention(12, 3, rotary=Turn())
    assert [name for name, _ in module.named_children()] == ["rotary", "q_proj", "k_proj", "v_proj", "out_proj"]
    x = numbers(B, T, 12, dtype=torch.float32)
    # only distances count: a first token that nobody sees shifts the others by one place
    later = torch.cat([x[:, :1], x], dim=1)
    mask = torch.tensor([False] + [True] * T)
    assert_close(module(later, mask=mask)[:, 1:], module(x))


# Dropout


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_dropout_acts_on_the_weights_after_the_softmax_in_training_only(backend, kv_heads: int) -> None:
    p, keys = 0.4, 32
    module = MultiHeadAttention(
        4 * keys, 4, num_kv_heads=kv_heads, dropout=p, backend=backend, bias=False, dtype=torch.float64
    )
    with torch.no_grad():
        module.q_proj.weight.zero_()  # every weight is 1 / S before dropout
        module.v_proj.weight.copy_(torch.eye(kv_heads * keys, 4 * keys))
        module.out_proj.weight.copy_(torch.eye(4 * keys))
    x = torch.zeros(50, keys, 4 * keys, dtype=torch.float64)
    value = torch.eye(keys, dtype=torch.float64).repeat(1, 4).expand(50, keys, 4 * keys)  # so out lists the weights
    torch.manual_seed(0)
    weights = module(x, x, value)
    n = weights.numel()
    share = (weights == 0).double().mean().item()
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / n)
    assert_close(weights[weights != 0], torch.full_like(weights[weights != 0], 1 / keys / (1 - p)))
    assert not torch.equal(module(x, x, value), weights)
    torch.manual_seed(0)
    assert_close(module(x, x, value), weights, rtol=0, atol=0)
    module.eval()
    assert_close(module(x, x, value), torch.full_like(weights, 1 / keys))
    assert_close(module.trace(x, x, value).out, torch.full_like(weights, 1 / keys))
    module.train()
    trace = module.trace(x, x, value)
    assert (trace.weights == 0).any()
    assert_close(trace.weights.transpose(1, 2).flatten(2), trace.out)


@pytest.mark.parametrize("options", [{}, {"mask": MASKS["(T, S)"]}, {"score_bias": numbers(H, T, S)}], ids=list)
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_dropout_of_1_drops_everything_and_of_0_nothing(backend, options: dict) -> None:
    module = ours(dropout=1.0, backend=backend)
    query, key = leaf(numbers(B, T, E)), numbers(B, S, E)
    out = module(query, key, **options)
    assert_close(out, module.out_proj.bias.expand(B, T, E))
    out.sum().backward()
    assert not query.grad.any()
    module.dropout = 0
    assert_close(module(query, key, **options), module.eval()(query, key, **options))


# The fused kernel


@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("kind", MASKS)
def test_the_fused_kernel_takes_every_mask(kind: str, kv_heads: int) -> None:
    mask = MASKS[kind]
    if mask is not None and mask.ndim > 2 and mask.shape[-3] == H:
        mask = mask.repeat_interleave(2, -3)
    module = ours(E, 6, num_kv_heads=kv_heads, head_dim=D)
    query, key = numbers(B, T, E), numbers(B, S, E, seed=1)
    want = module.trace(query, key, mask=mask).out
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # an error where it cannot
        assert_close(module(query, key, mask=mask), want)
        assert_close(module(query, key, mask=mask, score_bias=torch.zeros(6, 1, 1)), want)
        module(query, is_causal=True)
        module(query, mask=bools(T, T), is_causal=True)


def test_which_path_a_backend_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", lambda q, *_, **__: calls.append("sdpa") or q)
    x = numbers(B, T, E)
    ours(backend="explicit")(x)
    ours(backend=plain)(x)
    ours().trace(x)
    assert calls == []
    ours()(x)
    assert calls == ["sdpa"]


@pytest.mark.parametrize("extra", [{}, {"mask": bools(T, T)}, {"score_bias": numbers(H, T, T)}], ids=list)
def test_sdpa_gets_a_mask_or_is_causal_never_both(monkeypatch: pytest.MonkeyPatch, extra: dict) -> None:
    """With both, the fused kernel of the CPU does as one hopes; the others raise."""
    got = {}
    monkeypatch.setattr(
        nn.functional, "scaled_dot_product_attention", lambda q, *_, **options: got.update(options) or q
    )
    ours()(numbers(B, T, E), is_causal=True, **extra)
    assert got["is_causal"] == (not extra)
    assert (got["attn_mask"] is None) == (not extra)
