"""What is hidden stays hidden: rows that see nothing, empty sizes, leaks, permutations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from mha_course import MultiHeadAttention, masks
from tests import reference
from tests.multihead.modules import BACKENDS, OFF, B, D, E, S, T, bools, leaf, numbers, ours

BLIND = 2


def grouped(backend, dtype: torch.dtype = torch.float64, **options) -> MultiHeadAttention:
    return ours(E, 6, num_kv_heads=2, head_dim=D, backend=backend, dtype=dtype, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("through", ["mask", "score_bias", "both", "is_causal"])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_a_row_that_sees_nothing_gives_the_bias_and_no_gradient(backend, through: str, dtype: torch.dtype) -> None:
    may = torch.ones(T, T, dtype=torch.bool)
    hidden = torch.zeros(T, T, dtype=dtype)
    if through == "is_causal":  # neither of the two hides the row by itself
        may[BLIND, : BLIND + 1] = False
    else:
        may[BLIND] = torch.arange(T) < 3 if through == "both" else False
        hidden[BLIND, :3] = OFF
        hidden[BLIND, 3:] = 0 if through == "both" else OFF
    module = grouped(backend, dtype)
    query, key, bias = leaf(numbers(B, T, E, dtype=dtype)), leaf(numbers(B, T, E, seed=1, dtype=dtype)), leaf(hidden)
    options = {"mask": {"mask": may}, "score_bias": {"score_bias": bias}, "both": {"mask": may, "score_bias": bias}}
    chosen = options.get(through, {"mask": may, "is_causal": True})
    out = module(query, key, **chosen)
    assert_close(out[:, BLIND], module.out_proj.bias.expand(B, E), rtol=0, atol=0)
    trace = module.trace(query, key, **chosen)
    assert not trace.weights[:, :, BLIND].any()
    assert not trace.heads[:, :, BLIND].any()
    assert (trace.heads[:, :, [0, 1, 3, 4]] != 0).any(-1).all()

    alone = torch.autograd.grad(out[:, BLIND].sum(), [query, key, *module.parameters()], retain_graph=True)
    for x, name in zip(alone, ["query", "key", *dict(module.named_parameters())], strict=True):
        assert bool(x.any()) == (name == "out_proj.bias"), name
    grads = torch.autograd.grad(out.square().sum(), [query, key, *module.parameters()])
    assert all(x.isfinite().all() for x in grads)
    assert not grads[0][:, BLIND].any()
    assert (grads[0][:, [1, 3, 4]] != 0).any(-1).all()


@pytest.mark.parametrize(
    ("batch", "T", "S"), [(2, 5, 0), (2, 0, 7), (2, 0, 0), (0, 5, 7), (0, 0, 0), (2, 1, 1), (1, 1, 7)]
)
@pytest.mark.parametrize("kind", ["plain", "mask", "score_bias", "both", "is_causal", "dropout"])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_empty_and_smallest_sizes(backend, kind: str, batch: int, T: int, S: int) -> None:
    S = T if kind == "is_causal" else S
    module = grouped(backend, dropout=0.5 if kind == "dropout" else 0.0)
    query, key = leaf(numbers(batch, T, E)), leaf(numbers(batch, S, E, seed=1))
    options = {
        "mask": torch.ones(batch, 1, T, S, dtype=torch.bool) if kind in ("mask", "both") else None,
        "score_bias": numbers(6, T, S) if kind in ("score_bias", "both") else None,
        "is_causal": kind == "is_causal",
    }
    out = module(query, key, **options)
    assert out.shape == (batch, T, E)
    assert out.isfinite().all()
    if S == 0:
        assert_close(out, module.out_proj.bias.expand(batch, T, E), rtol=0, atol=0)
    if S == 1 and kind != "dropout":  # every weight is 1
        v = module.v_proj(key).unflatten(-1, (2, 1, D)).expand(batch, 1, 2, 3, D).flatten(2)
        assert_close(out, module.out_proj(v))
    trace = module.trace(query, key, **options)
    assert trace.scores.shape == trace.weights.shape == (batch, 6, T, S)
    out.sum().backward()
    for x in (query, key, *module.parameters()):
        assert x.grad.shape == x.shape
        assert x.grad.isfinite().all()


# Leaks


@pytest.mark.parametrize("big", [1e4, 1e30])
@pytest.mark.parametrize("through", ["mask", "score_bias", "is_causal"])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_large_finite_values_that_are_hidden_do_not_leak(backend, through: str, big: float) -> None:
    may = masks.causal(T)
    hidden = {
        "mask": {"mask": may},
        "score_bias": {"score_bias": torch.zeros(T, T, dtype=torch.float64).masked_fill(~may, OFF)},
        "is_causal": {"is_causal": True},
    }[through]
    module = grouped(backend)

    def seen(last: float) -> list[Tensor]:
        x, query = numbers(B, T, E), leaf(numbers(B, T, E, seed=1))
        x[:, -1] = last
        key = leaf(x)
        out = module(query, key, **hidden)[:, :-1]  # what may not see the last
        grads = torch.autograd.grad(out.square().sum(), [query, key, *module.parameters()])
        return [out, *grads]

    assert_close(seen(big), seen(1.0), rtol=0, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("backend", ["sdpa", "explicit"])
def test_nan_and_infinity_behind_a_mask_do_leak_as_documented(backend: str, bad: float) -> None:
    x = numbers(B, T, E)
    x[:, -1] = bad
    module = grouped(backend)
    assert module(numbers(B, T, E), x, mask=masks.causal(T))[:, :-1].isnan().all()


def test_a_hidden_score_that_overflows_leaks_in_sdpa_alone_as_documented() -> None:
    module = MultiHeadAttention(8, 1)
    with torch.no_grad():
        for linear in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
            linear.weight.copy_(torch.eye(8))
    query, key = torch.full((1, 2, 8), 10.0), torch.ones(1, 2, 8)
    key[:, 1] = 3e38  # times 10 it is infinity, and infinity - infinity is not a number
    outs = {}
    for module.backend in ("sdpa", "explicit"):
        outs[module.backend] = module(query, key, torch.ones(1, 2, 8), mask=masks.causal(2))[0, 0]
    assert outs["sdpa"].isnan().all()
    assert_close(outs["explicit"], torch.ones(8))


@st.composite
def problems(draw: st.DrawFn) -> tuple[MultiHeadAttention, Tensor, Tensor, Tensor]:
    heads, kv_heads = draw(st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]))
    batch, T, S = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    module = ours(5, heads, num_kv_heads=kv_heads, head_dim=draw(st.integers(1, 4)), dtype=torch.float32)
    module.backend = draw(st.sampled_from(["sdpa", "explicit"]))
    shape = draw(st.sampled_from(sorted(reference.broadcastable((batch, heads, T, S)))))
    seed = draw(st.integers(0, 999))
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    sizes = (batch, T, 5), (batch, S, 5)
    query, key = (numbers(*size, seed=seed, dtype=torch.float32) for size in sizes)
    return module, query, key, mask


@settings(max_examples=100)
@given(problems(), st.data())
def test_rows_that_may_not_see_a_key_stay_bit_equal_when_it_changes(problem: tuple, data: st.DataObject) -> None:
    module, query, key, mask = problem
    j = data.draw(st.integers(0, key.shape[1] - 1), label="j")
    changed = key.clone()
    changed[:, j] = data.draw(st.sampled_from([0.0, -3.5, 1e10]), label="new value")
    before, after = module(query, key, mask=mask), module(query, changed, mask=mask)
    whole = mask.expand(query.shape[0], module.num_heads, query.shape[1], key.shape[1])
    blind = ~whole[..., j].any(1)  # (B, T): no head sees it
    assert_close(after[blind], before[blind], rtol=0, atol=0)
    assert_close(module.trace(query, key, mask=mask).weights.sum(-1), whole.any(-1).float())


@settings(max_examples=100)
@given(problems(), st.randoms(use_true_random=False))
def test_permutations_of_samples_queries_and_keys(problem: tuple, random: object) -> None:
    module, query, key, mask = problem
    order = [list(range(n)) for n in (query.shape[0], query.shape[1], key.shape[1])]
    for places in order:
        random.shuffle(places)
    samples, rows, columns = order
    whole = mask.expand(query.shape[0], module.num_heads, query.shape[1], key.shape[1])
    moved = module(query[samples][:, rows], key[samples][:, columns], mask=whole[samples][:, :, rows][..., columns])
    assert_close(moved, module(query, key, mask=mask)[samples][:, rows])


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_gradcheck(backend) -> None:
    module = ours(3, 2, num_kv_heads=1, head_dim=2, kdim=4, backend=backend)
    query, key, value = leaf(numbers(1, 2, 3)), leaf(numbers(1, 3, 4, seed=1)), leaf(numbers(1, 3, 3, seed=2))
    bias = leaf(numbers(2, 2, 3, seed=3))
    mask = torch.tensor([[True, False, True], [False, False, False]])

    def out(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return module(query, key, value, mask=mask, score_bias=bias)

    assert torch.autograd.gradcheck(out, (query, key, value, bias))


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_inputs_are_left_alone_and_their_layout_does_not_matter(backend) -> None:
    module = grouped(backend)
    query, key, mask, bias = numbers(B, T, E), numbers(B, S, E, seed=1), bools(T, S), numbers(6, T, S)
    want = module(query, key, mask=mask, score_bias=bias)
    turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (query, key)]
    odd = [torch.stack([x, x + 1], dim=-1)[..., 0] for x in (query, key)]
    for inputs in (turned, odd, [query, key]):
        copies = [x.clone() for x in (*inputs, mask, bias)]
        got = module(*inputs, mask=mask.T.contiguous().T, score_bias=bias.mT.contiguous().mT)
        assert_close(got, want)
        assert_close([*inputs, mask, bias], copies, rtol=0, atol=0)


def test_a_row_of_large_finite_score_bias_has_wrong_gradients_in_sdpa_alone_as_documented() -> None:
    """If PyTorch mends its kernel, this test fails, and the docstring can lose its sentence."""
    torch.manual_seed(0)
    module, x, bias = MultiHeadAttention(12, 3), torch.randn(2, 5, 12), torch.zeros(5, 5)
    bias[2] = -1e9
    outs, grads = [], []
    for backend in ("sdpa", "explicit"):
        module.backend = backend
        module.zero_grad()
        outs.append(module(x, score_bias=bias))
        outs[-1].square().sum().backward()
        grads.append(module.v_proj.weight.grad.clone())
    assert_close(*outs)
    assert (grads[0] - grads[1]).norm() > 0.1 * grads[1].norm()
