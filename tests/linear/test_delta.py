"""The delta rule: overwriting by hand, against a loop, chunks and steps, rates, hidden tokens, half types."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from mha_course import MultiHeadAttention, masks
from mha_course.linear import delta
from tests.linear.problems import DV, B, D, H, S, bools, inputs, leaves, numbers


def by_loops(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """One token after another, with outer products."""
    out = torch.zeros_like(v)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            state = torch.zeros(v.shape[-1], k.shape[-1], dtype=torch.float64)
            for t in range(q.shape[2]):
                key, query = (x[b, h, t] / x[b, h, t].square().sum().sqrt() for x in (k, q))
                old = state @ key
                new = rate[b, h, t] * v[b, h, t] + (1 - rate[b, h, t]) * old
                state = state - torch.outer(old, key) + torch.outer(new, key)
                out[b, h, t] = state @ query
    return out


def column(*rows: list[float]) -> Tensor:
    return torch.tensor(rows).view(1, 1, len(rows), -1)


def test_overwriting_by_hand() -> None:
    east, north = [2.0, 0.0], [0.0, 3.0]  # the length of a key does not matter
    k = column(east, north, east, north)
    v = column([1.0], [10.0], [5.0], [20.0])
    q = column(east, east, east, [-1.0, 1.0])
    out = delta.attention(q, k, v, is_causal=True).flatten()
    assert_close(out, torch.tensor([1.0, 1.0, 5.0, (20 - 5) / 2**0.5]))


def test_half_a_rate_by_hand() -> None:
    k, v = column([1.0], [1.0], [1.0]), column([8.0], [4.0], [0.0])
    assert_close(delta.attention(k, k, v, is_causal=True, beta=0.5).flatten(), torch.tensor([4.0, 4.0, 2.0]))
    beta = torch.tensor([1.0, 0.0, 0.25])
    assert_close(delta.attention(k, k, v, is_causal=True, beta=beta).flatten(), torch.tensor([8.0, 8.0, 6.0]))


@pytest.mark.parametrize("shape", [(), (S,), (H, 1), (B, 1, 1), (B, H, S)])
@pytest.mark.parametrize("chunk", [1, 3, S, 1000])
def test_equals_the_loops(chunk: int, shape: tuple[int, ...]) -> None:
    q, k, v = inputs(S)
    beta = torch.sigmoid(numbers(*shape, seed=5))
    want = by_loops(q, k, v, beta.expand(B, H, S))
    assert_close(delta.attention(q, k, v, is_causal=True, beta=beta, chunk=chunk), want)
    mask = bools(B, 1, 1, S)
    want = by_loops(q, k, v, beta.expand(B, H, S) * mask[:, :, 0])
    assert_close(delta.attention(q, k, v, is_causal=True, beta=beta, chunk=chunk, mask=mask), want)


def test_a_number_as_rate() -> None:
    q, k, v = inputs(S)
    for beta in (0, 0.3, 1):
        want = by_loops(q, k, v, torch.full((B, H, S), float(beta)))
        assert_close(delta.attention(q, k, v, is_causal=True, beta=beta), want)


def test_steps_equal_the_whole() -> None:
    q, k, v = inputs(S)
    beta = torch.sigmoid(numbers(B, H, S, seed=5))
    want = delta.attention(q, k, v, is_causal=True, beta=beta)
    state = None
    for t in range(S):
        before = state if state is None else state.clone()
        new, out = delta.step(state, q[:, :, t], k[:, :, t], v[:, :, t], beta=beta[:, :, t])
        assert_close(out, want[:, :, t])
        if state is not None:
            assert_close(state, before, rtol=0, atol=0)
        state = new
    assert state.shape == (B, H, D, DV)
    _, whole = delta.step(None, q[:, :, 0], k[:, :, 0], v[:, :, 0])
    _, half = delta.step(None, q[:, :, 0], k[:, :, 0], v[:, :, 0], beta=0.5)
    assert_close(half, whole / 2)


def test_gradcheck() -> None:
    tensors = leaves(*(x[:1, :1, :7, :2] for x in inputs(S)), torch.sigmoid(numbers(1, 1, 7, seed=5)))
    assert torch.autograd.gradcheck(
        lambda q, k, v, beta: delta.attention(q, k, v, beta=beta, is_causal=True, chunk=3), tensors
    )


@pytest.mark.parametrize("T", [0, 1])
def test_lengths_zero_and_one(T: int) -> None:
    _, k, v = inputs(T, T)
    assert_close(delta.attention(k, k, v, is_causal=True), v)


def test_a_key_of_length_0_stores_nothing() -> None:
    q, k, v = inputs(S)
    k[:, :, 3] = 0
    want = by_loops(q, k.where(k != 0, 1.0), v, (torch.arange(S) != 3).double().expand(B, H, S))
    assert_close(delta.attention(q, k, v, is_causal=True), want)


@pytest.mark.parametrize("length", [1e-30, 1e30])
def test_the_length_of_q_and_k_does_not_matter_however_far_from_1(length: float) -> None:
    q, k, v = inputs(S, dtype=torch.float32)
    want = delta.attention(q, k, v, is_causal=True)
    tensors = leaves(length * q, length * k)
    out = delta.attention(*tensors, v, is_causal=True)
    assert_close(out, want)
    assert_close(delta.step(None, *(x[:, :, 0] for x in (*tensors, v)))[1], want[:, :, 0])
    grads = torch.autograd.grad(out.sin().sum(), tensors)
    near = leaves(q, k)
    wanted = torch.autograd.grad(delta.attention(*near, v, is_causal=True).sin().sum(), near)
    assert_close([length * x for x in grads], list(wanted))


def test_the_rate_of_a_hidden_token_does_not_matter() -> None:
    q, k, v = inputs(S)
    seen = torch.arange(S) != 5
    beta = torch.sigmoid(numbers(S, seed=5))
    want = delta.attention(q, k, v, is_causal=True, mask=seen, beta=beta)
    got = delta.attention(q, k, v, is_causal=True, mask=seen, beta=beta.where(seen, torch.nan))
    assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_does_not_make_the_state_coarser(dtype: torch.dtype) -> None:
    q, k, v = inputs(S, dtype=torch.float32)
    one = [x[:, :, 0] for x in (q, k, v)]
    state, _ = delta.step(None, *one)
    with torch.autocast("cpu", dtype):
        got = delta.attention(q, k, v, is_causal=True), *delta.step(state, one[1], *one[1:])
    want = delta.attention(q, k, v, is_causal=True), *delta.step(state, one[1], *one[1:])
    assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype: torch.dtype) -> None:
    q, k, v = inputs(S, dtype=dtype)
    beta = torch.sigmoid(numbers(B, H, S, seed=5)).to(dtype)
    out = delta.attention(q, k, v, is_causal=True, beta=beta)
    assert out.dtype == dtype
    assert_close(out, delta.attention(q.double(), k.double(), v.double(), is_causal=True, beta=beta).to(dtype))
    state, last = delta.step(None, q[:, :, 0], k[:, :, 0], v[:, :, 0])
    assert (state.dtype, last.dtype) == (torch.float32, dtype)


@settings(max_examples=30)
@given(st.integers(0, S - 1), st.sampled_from([1, 4, 64]), st.sampled_from([0.0, -3.5, 1e30]))
def test_rows_before_a_token_stay_bit_equal_when_it_changes(j: int, chunk: int, new: float) -> None:
    q, k, v = inputs(S, dtype=torch.float32)
    before = delta.attention(q, k, v, is_causal=True, chunk=chunk)
    k[:, :, j], v[:, :, j] = 0.7, new
    after = delta.attention(q, k, v, is_causal=True, chunk=chunk)
    assert_close(after[:, :, :j], before[:, :, :j], rtol=0, atol=0)
    assert (after != before)[:, :, j].any(-1).all()


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("hidden", [False, True])
def test_nan_reaches_its_chunk_and_what_follows_as_documented(name: str, hidden: bool) -> None:
    q, k, v = inputs(S)
    {"k": k, "v": v}[name][:, :, 5] = torch.nan
    out = delta.attention(q, k, v, is_causal=True, chunk=4, mask=torch.arange(S) != 5 if hidden else None)
    assert out[:, :, :4].isfinite().all()
    assert out[:, :, 4:].isnan().all()


def test_as_a_backend() -> None:
    module = MultiHeadAttention(12, 6, backend=delta.attention, dtype=torch.float64)
    x = numbers(B, S, 12)
    heads = delta.attention(*module.trace(x)[:3], is_causal=True)
    assert_close(module(x, is_causal=True), module.out_proj(heads.transpose(1, 2).flatten(2)))
    with pytest.raises(ValueError, match=r"^is_causal must be True"):
        module(x)


q, k, v = inputs(5, 5, dtype=torch.float32)
one = [x[:, :, 0] for x in (q, k, v)]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"v": None}, TypeError, r"^v must be a tensor, got NoneType$"),
        ({"k": k.half()}, TypeError, r"^k must have the type of q"),
        ({"mask": torch.ones(5)}, TypeError, r"^mask must be bool"),
        ({"is_causal": 1}, TypeError, r"^is_causal must be True or False, got int$"),
        ({"beta": None}, TypeError, r"^beta must be a number, got NoneType$"),
        ({"beta": torch.tensor(1)}, TypeError, r"^beta must be floating point, got torch\.int64$"),
        ({"chunk": 2.0}, TypeError, r"^chunk must be an integer, got float$"),
        ({"is_causal": False}, ValueError, r"^is_causal must be True: the delta rule .* got False$"),
        ({"q": q[0], "k": k[0], "v": v[0]}, ValueError, r"must have four axes"),
        ({"v": v[:, :, 1:]}, ValueError, r"one length S, got"),
        ({"q": q[:, :, 1:]}, ValueError, r"^is_causal needs T = S, got T = 4 and S = 5$"),
        ({"mask": bools(4)}, ValueError, r"^mask must broadcast"),
        ({"mask": masks.causal(5)}, ValueError, r"^mask must be the same for all queries"),
        ({"score_bias": torch.zeros(5)}, ValueError, r"^score_bias must be None: the delta rule"),
        ({"scale": 1.0}, ValueError, r"^scale must be None"),
        ({"dropout_p": 0.1}, ValueError, r"^dropout_p must be 0\.0"),
        ({"beta": 1.1}, ValueError, r"^beta must lie in \[0, 1\], got 1\.1$"),
        ({"beta": float("nan")}, ValueError, r"^beta must lie in \[0, 1\], got nan$"),
        ({"beta": torch.zeros(3)}, ValueError, r"^beta must broadcast to \(B, H, T\) = \(2, 3, 5\), got \(3,\)$"),
        ({"beta": torch.zeros(1, 2, 3, 5)}, ValueError, r"^beta must broadcast"),
        ({"beta": torch.zeros(5, device="meta")}, ValueError, r"^beta must be on q's device, cpu, got meta$"),
        ({"chunk": 0}, ValueError, r"^chunk must be at least 1, got 0$"),
    ],
)
def test_bad_input(change: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        delta.attention(**{"q": q, "k": k, "v": v, "is_causal": True, **change})


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("state", "tokens", "beta", "error", "match"),
    [
        (None, [q, *one[1:]], 1.0, ValueError, r"^q must be one token's"),
        (None, [*one[:2], None], 1.0, TypeError, r"^v must be a tensor, got NoneType$"),
        (None, one, 2.0, ValueError, r"^beta must lie in \[0, 1\], got 2\.0$"),
        (None, one, torch.zeros(4), ValueError, r"^beta must broadcast to \(B, H\) = \(2, 3\), got \(4,\)$"),
        (torch.zeros(2, 3, 7, 5), one, 1.0, ValueError, r"^state must be \(B, H, D, Dv\) = \(2, 3, 5, 7\), got"),
        ([0.0], one, 1.0, TypeError, r"^state must be a tensor, got list$"),
        (
            torch.zeros(2, 3, 5, 7).double(),
            one,
            1.0,
            TypeError,
            r"^state must have the type of these tokens' sums, torch\.float32, got torch\.float64$",
        ),
        (torch.zeros(2, 3, 5, 7, device="meta"), one, 1.0, ValueError, r"^state must be on q's device, cpu, got meta$"),
    ],
)
def test_bad_input_of_a_step(state, tokens: list, beta, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        delta.step(state, *tokens, beta=beta)
