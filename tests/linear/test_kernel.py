"""Linear attention with a running state: by hand, against loops, chunks and steps, hidden keys, half types."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from mha_course import MultiHeadAttention, masks
from mha_course.linear import kernel
from mha_course.measure import peak_memory
from tests.linear.problems import DV, B, D, H, S, T, bools, inputs, leaves, numbers


def by_loops(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, mask: Tensor | None = None) -> Tensor:
    """Every weight on its own, as the definition has it."""

    def phi(x: Tensor) -> list[float]:
        return [n + 1 if n > 0 else math.exp(n) for n in x.tolist()]

    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                total = 0.0
                for s in range(k.shape[2]):
                    if (is_causal and s > t) or (mask is not None and not mask.expand(B, H, 1, S)[b, h, 0, s]):
                        continue
                    weight = sum(x * y for x, y in zip(phi(q[b, h, t]), phi(k[b, h, s]), strict=True))
                    total += weight
                    out[b, h, t] += weight * v[b, h, s]
                if total:
                    out[b, h, t] /= total
    return out


def test_by_hand() -> None:
    # phi(0) = 1, phi(1) = 2: weights 1 and 2
    q, k, v = (torch.tensor(x).view(1, 1, 2, 1) for x in ([0.0, 0.0], [0.0, 1.0], [3.0, 9.0]))
    assert_close(kernel.attention(q, k, v).flatten(), torch.tensor([7.0, 7.0]))
    assert_close(kernel.attention(q, k, v, is_causal=True).flatten(), torch.tensor([3.0, 7.0]))


def test_elu_plus_one() -> None:
    x = torch.tensor([-60.0, -17.5, -1.0, 0.0, 2.0], requires_grad=True)
    y = kernel.elu_plus_one(x)
    assert_close(y.detach(), torch.tensor([8.756511e-27, 2.5109991e-08, 0.36787944, 1.0, 3.0]), rtol=1e-6, atol=0)
    y.sum().backward()
    assert_close(x.grad, torch.tensor([8.756511e-27, 2.5109991e-08, 0.36787944, 1.0, 1.0]), rtol=1e-6, atol=0)
    inside = x.detach()[1:]
    assert_close(kernel.elu_plus_one(inside), torch.nn.functional.elu(inside) + 1)


@pytest.mark.parametrize("shape", [None, (S,), (1, S), (B, 1, 1, S), (B, H, 1, S), (1, 1)])
def test_equals_the_loops(shape: tuple[int, ...] | None) -> None:
    q, k, v = inputs()
    mask = None if shape is None else bools(*shape)
    assert_close(kernel.attention(q, k, v, mask=mask), by_loops(q, k, v, False, mask))
    q = inputs(S)[0]
    want = by_loops(q, k, v, True, mask)
    for chunk in (1, 3, S, 1000):
        assert_close(kernel.attention(q, k, v, mask=mask, is_causal=True, chunk=chunk), want)


def test_steps_equal_the_whole() -> None:
    q, k, v = inputs(S)
    want = kernel.attention(q, k, v, is_causal=True)
    state = None
    for t in range(S):
        before = state
        copy = None if before is None else kernel.State(*(x.clone() for x in before))
        state, out = kernel.step(state, q[:, :, t], k[:, :, t], v[:, :, t])
        assert_close(out, want[:, :, t])
        if before is not None:
            assert_close(before, copy, rtol=0, atol=0)
    assert (state.kv.shape, state.k_sum.shape) == ((B, H, D, DV), (B, H, D))


def test_another_feature_map() -> None:
    q, k, v = inputs(S)

    def phi(x: Tensor) -> Tensor:
        return torch.cat([x.exp(), (-x).exp()], -1)

    weights = (phi(q) @ phi(k).mT).tril()
    want = weights / weights.sum(-1, keepdim=True) @ v
    assert_close(kernel.attention(q, k, v, is_causal=True, feature_map=phi, chunk=5), want)
    state = None
    for t in range(S):
        state, out = kernel.step(state, q[:, :, t], k[:, :, t], v[:, :, t], feature_map=phi)
    assert_close(out, want[:, :, -1])


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradcheck(is_causal: bool) -> None:
    tensors = leaves(*(x[:1, :1, :7, :2] for x in inputs(S)))
    assert torch.autograd.gradcheck(lambda *x: kernel.attention(*x, is_causal=is_causal, chunk=3), tensors)
    assert torch.autograd.gradgradcheck(lambda *x: kernel.attention(*x, is_causal=is_causal, chunk=3), tensors)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_query_that_sees_nothing_gets_0(is_causal: bool) -> None:
    tensors = leaves(*inputs(S))
    mask = torch.arange(S) >= 2
    out = kernel.attention(*tensors, mask=mask if is_causal else mask & False, is_causal=is_causal)
    blind = out[:, :, :2] if is_causal else out
    assert_close(blind, torch.zeros_like(blind), rtol=0, atol=0)
    for grad in torch.autograd.grad(blind.sum(), tensors):
        assert_close(grad, torch.zeros_like(grad), rtol=0, atol=0)


def test_weights_too_small_for_the_type_give_0_as_documented() -> None:
    q, k, v = inputs(S)
    for dtype, low, gone in ((torch.float32, -100.0, -105.0), (torch.float64, -740.0, -746.0)):
        for number in (low, gone):
            out = kernel.attention(torch.full_like(q, number, dtype=dtype), k.to(dtype), v.to(dtype))
            assert (out == 0).all() == (number == gone)


@pytest.mark.parametrize(("T", "S"), [(0, 0), (0, 3), (1, 1), (3, 0)])
def test_lengths_zero_and_one(T: int, S: int) -> None:
    q, k, v = inputs(T, S)
    want = v.mean(2, keepdim=True).expand(B, H, T, DV) if S == 1 else torch.zeros(B, H, T, DV, dtype=torch.float64)
    assert_close(kernel.attention(q, k, v), want)
    if T == S:
        assert_close(kernel.attention(q, k, v, is_causal=True), v)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype: torch.dtype, is_causal: bool) -> None:
    q, k, v = inputs(S, dtype=dtype)
    exact = kernel.attention(q.double(), k.double(), v.double(), is_causal=is_causal)
    out = kernel.attention(q, k, v, is_causal=is_causal)
    assert out.dtype == dtype
    assert_close(out, exact.to(dtype))  # as good as rounding the exact output
    state, last = kernel.step(None, q[:, :, 0], k[:, :, 0], v[:, :, 0])
    assert (state.kv.dtype, state.k_sum.dtype, last.dtype) == (torch.float32, torch.float32, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_over_many_keys_neither_overflow_nor_stall_in_half_types(dtype: torch.dtype) -> None:
    q = torch.full((1, 1, 4096, 8), 3.0, dtype=dtype)
    v = torch.ones(1, 1, 4096, 1, dtype=dtype)
    for is_causal in (False, True):
        assert_close(kernel.attention(q, q, v, is_causal=is_causal), v)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_does_not_make_the_sums_coarser(dtype: torch.dtype) -> None:
    q, k, v = inputs(S, dtype=torch.float32)
    one = [x[:, :, 0] for x in (q, k, v)]
    state, _ = kernel.step(None, *one)
    with torch.autocast("cpu", dtype):
        for is_causal in (False, True):
            got = kernel.attention(q, k, v, is_causal=is_causal)
            with torch.autocast("cpu", enabled=False):
                assert_close(got, kernel.attention(q, k, v, is_causal=is_causal), rtol=0, atol=0)
        got = kernel.step(state, *one)
    assert_close(got, kernel.step(state, *one), rtol=0, atol=0)


@pytest.mark.parametrize("is_causal", [False, True])
def test_memory_grows_with_the_length(is_causal: bool) -> None:
    def peak(T: int) -> int:
        q, k, v = (torch.zeros(1, 1, T, 8, requires_grad=True) for _ in range(3))
        return peak_memory(lambda: torch.autograd.grad(kernel.attention(q, k, v, is_causal=is_causal).sum(), (q, k, v)))

    short, twice, four = (peak(T) for T in (512, 1024, 2048))
    assert 1.8 < twice / short < 2.1
    assert 1.8 < four / twice < 2.1


@settings(max_examples=30)
@given(st.integers(0, S - 1), st.sampled_from([1, 4, 64]), st.sampled_from([0.0, -3.5, 1e30]))
def test_rows_before_a_key_stay_bit_equal_when_it_changes(j: int, chunk: int, new: float) -> None:
    q, k, v = inputs(S, dtype=torch.float32)
    before = kernel.attention(q, k, v, is_causal=True, chunk=chunk)
    k[:, :, j], v[:, :, j] = 0.7, new
    after = kernel.attention(q, k, v, is_causal=True, chunk=chunk)
    assert_close(after[:, :, :j], before[:, :, :j], rtol=0, atol=0)
    assert (after != before)[:, :, j:].any(-1).all()


def test_nan_in_a_value_reaches_its_chunk_and_what_follows_as_documented() -> None:
    q, k, v = inputs(S)
    v[:, :, 5] = math.nan
    for mask in (None, torch.arange(S) != 5):
        out = kernel.attention(q, k, v, mask=mask, is_causal=True, chunk=4)
        assert out[:, :, :4].isfinite().all()
        assert out[:, :, 4:].isnan().all()
    assert kernel.attention(q, k, v, mask=torch.arange(S) != 5).isnan().all()


def test_as_a_backend() -> None:
    module = MultiHeadAttention(12, 6, num_kv_heads=2, backend=kernel.attention, dtype=torch.float64)
    x = numbers(B, T, 12)
    keep = masks.padding(torch.tensor([4, T]), T)
    q, k, v = (x.repeat_interleave(6 // x.shape[1], dim=1) for x in module.trace(x)[:3])
    heads = kernel.attention(q, k, v, mask=keep, is_causal=True)
    assert_close(module(x, mask=keep, is_causal=True), module.out_proj(heads.transpose(1, 2).flatten(2)))


@pytest.mark.unchecked
def test_compiles_whole() -> None:
    q, k, v = inputs(S)
    compiled = torch.compile(kernel.attention, backend="eager", fullgraph=True)
    assert_close(compiled(q, k, v, is_causal=True), kernel.attention(q, k, v, is_causal=True))


q, k, v = inputs(5, 5, dtype=torch.float32)
one = [x[:, :, 0] for x in (q, k, v)]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"q": None}, TypeError, r"^q must be a tensor, got NoneType$"),
        ({"q": q.long()}, TypeError, r"^q must be floating point, got torch\.int64$"),
        ({"k": k.half()}, TypeError, r"^k must have the type of q, torch\.float32, got torch\.float16$"),
        ({"mask": torch.ones(5)}, TypeError, r"^mask must be bool .* got torch\.float32$"),
        ({"is_causal": None}, TypeError, r"^is_causal must be True or False, got NoneType$"),
        ({"is_causal": True, "chunk": 2.0}, TypeError, r"^chunk must be an integer, got float$"),
        ({"q": q[0], "k": k[0], "v": v[0]}, ValueError, r"^q must have four axes .* got \(3, 5, 5\)$"),
        ({"k": k[..., 1:]}, ValueError, r"one width D, got"),
        ({"v": v[:, :, 1:]}, ValueError, r"one length S, got"),
        ({"q": q[:, :1]}, ValueError, "Hkv, must divide those of q, H, got q"),
        ({"k": k[:, :1], "v": v[:, :1]}, ValueError, "one number of heads H, got 3 and 1"),
        ({"mask": bools(4)}, ValueError, r"^mask must broadcast"),
        ({"mask": masks.causal(5)}, ValueError, r"^mask must be the same for all queries, .* got \(1, 1, 5, 5\)$"),
        ({"score_bias": torch.zeros(5)}, ValueError, r"^score_bias must be None: linear attention .* got Tensor$"),
        ({"scale": 0.5}, ValueError, r"^scale must be None: linear attention .* got 0\.5$"),
        ({"dropout_p": 0.1}, ValueError, r"^dropout_p must be 0\.0: linear attention .* got 0\.1$"),
        ({"q": q[:, :, :3], "is_causal": True}, ValueError, r"^is_causal needs T = S, got T = 3 and S = 5$"),
        ({"is_causal": True, "chunk": 0}, ValueError, r"^chunk must be at least 1, got 0$"),
        ({"chunk": 0}, ValueError, r"^chunk must be at least 1, got 0$"),
        ({"dropout_p": torch.zeros(2)}, ValueError, r"^dropout_p must be 0\.0: linear attention .* got Tensor$"),
        ({"feature_map": None}, TypeError, r"^feature_map must be a function, got NoneType$"),
        (
            {"feature_map": lambda x: x > 0},
            TypeError,
            r"^feature_map must return a tensor of the type given, torch\.float32, got torch\.bool$",
        ),
        ({"feature_map": lambda x: x.tolist()}, TypeError, r"^feature_map must return a tensor .* got list$"),
        (
            {"feature_map": lambda x: x.sum(-1)},
            ValueError,
            r"^feature_map must return \(\.\.\., M\) for \(2, 3, 5, 5\), got \(2, 3, 5\)$",
        ),
        ({"feature_map": lambda x: x[:, :1]}, ValueError, r"^feature_map must return .* got \(2, 1, 5, 5\)$"),
    ],
)
def test_bad_input(change: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        kernel.attention(**{"q": q, "k": k, "v": v, **change})


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("state", "tokens", "error", "match"),
    [
        (None, [q, *one[1:]], ValueError, r"^q must be one token's, \(B, H, width\), got \(2, 3, 5, 5\)$"),
        (None, [one[0], 1.0, one[2]], TypeError, r"^k must be a tensor, got float$"),
        (None, [one[0], one[1].double(), one[2]], TypeError, r"^k must have the type of q"),
        (None, [one[0][..., 1:], *one[1:]], ValueError, r"one width D"),
        (
            kernel.State(torch.zeros(2, 3, 5, 5), torch.zeros(2, 3, 5)),
            one,
            ValueError,
            r"^state\.kv must be \(B, H, M, Dv\) = \(2, 3, 5, 7\), got \(2, 3, 5, 5\)$",
        ),
        (
            kernel.State(torch.zeros(2, 3, 5, 7), torch.zeros(2, 3, 4)),
            one,
            ValueError,
            r"^state\.k_sum must be \(B, H, M\) = \(2, 3, 5\), got \(2, 3, 4\)$",
        ),
        (
            (torch.zeros(2, 3, 5, 7), torch.zeros(2, 3, 5)),
            one,
            TypeError,
            r"^state must be a State or None, got tuple$",
        ),
        (kernel.State(None, torch.zeros(2, 3, 5)), one, TypeError, r"^state\.kv must be a tensor, got NoneType$"),
        (
            kernel.State(torch.zeros(2, 3, 5, 7), torch.zeros(2, 3, 5).double()),
            one,
            TypeError,
            r"^state\.k_sum must have the type of these tokens' sums, torch\.float32, got torch\.float64$",
        ),
        (
            kernel.State(torch.zeros(2, 3, 5, 7, device="meta"), torch.zeros(2, 3, 5)),
            one,
            ValueError,
            r"^state\.kv must be on q's device, cpu, got meta$",
        ),
    ],
)
def test_bad_input_of_a_step(state, tokens: list, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        kernel.step(state, *tokens)
