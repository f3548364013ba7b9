"""Dropout in tiles: drawn from a seed, the same in both passes, equal to explicit attention with the same weights."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mha_course import attention, tiled
from mha_course.tiled import function
from mha_course.tiled.tiles import Plan, blocks, dropout_factors
from tests.tiled.problems import B, H, S, T, bools, inputs, numbers, with_gradients

SMALL = {"block_q": 2, "block_k": 3}
P = 0.4


def drawn(plan: Plan, q: Tensor, S: int) -> Tensor:
    """The factors of all tiles side by side, (B, H, T, S)."""
    rows = blocks(q.shape[2], plan.block_q)
    return torch.cat(
        [torch.cat([dropout_factors(plan, q, S, r, c) for c in blocks(S, plan.block_k)], -1) for r in rows], -2
    )


def plan(seed: int = 0, dropout_p: float = P, block_q: int = 2, block_k: int = 3) -> Plan:
    return Plan(1.0, False, dropout_p, seed, block_q, block_k)


def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plan of each call, filled in as they run."""
    made, real = [], function.Plan

    def spy(*args):
        made.append(real(*args))
        return made[-1]

    monkeypatch.setattr(function, "Plan", spy)
    return made


@pytest.mark.parametrize("Hkv", [2, 6])
@pytest.mark.parametrize("is_causal", [False, True])
def test_equals_explicit_attention_with_the_same_weights_dropped(
    is_causal: bool, Hkv: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plans(monkeypatch)
    q, k, v = tensors = inputs(H=6, Hkv=Hkv, T=S)
    bias, mask = numbers(S, S, seed=4).requires_grad_(), bools(S, S)
    out = tiled.attention(*tensors, mask=mask, score_bias=bias, is_causal=is_causal, dropout_p=P, **SMALL)
    got = with_gradients(out, [*tensors, bias])
    factors = drawn(made[0], q, S)
    whole = [x.repeat_interleave(6 // Hkv, 1) for x in (k, v)]
    may = mask.tril() if is_causal else mask
    weights = attention(q, *whole, mask=may, score_bias=bias).weights
    want = with_gradients((weights * factors) @ whole[1], [*tensors, bias])
    for name, x in want.items():
        assert_close(got[name], x, msg=lambda text, name=name: f"{name}: {text}")
    assert 0 < (factors == 0).sum() < factors.numel()


def test_the_seed_of_torch_decides_and_each_call_draws_anew() -> None:
    tensors = inputs()
    torch.manual_seed(0)
    first, second = (tiled.attention(*tensors, dropout_p=P, **SMALL) for _ in range(2))
    torch.manual_seed(0)
    assert_close(tiled.attention(*tensors, dropout_p=P, **SMALL), first, rtol=0, atol=0)
    assert not torch.equal(first, second)


def test_the_backward_pass_draws_nothing_and_may_come_later() -> None:
    tensors = inputs()
    torch.manual_seed(0)
    out = tiled.attention(*tensors, dropout_p=P, **SMALL)
    want = torch.autograd.grad(out.sum(), tensors, retain_graph=True)
    tiled.attention(*tensors, dropout_p=P)
    state = torch.get_rng_state()
    assert_close(torch.autograd.grad(out.sum(), tensors), want, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_default_device_does_not_matter() -> None:
    torch.manual_seed(0)
    with torch.device("meta"):
        found = function.draw_seed()
    torch.manual_seed(0)
    assert found == function.draw_seed()


@pytest.mark.unchecked
def test_under_vmap_each_sample_drops_the_same_and_different_ones_are_refused() -> None:
    q = torch.stack([inputs(T=S)[0].detach()] * 2)

    def run(q: Tensor) -> Tensor:
        return tiled.attention(q, q, q, dropout_p=P, **SMALL)

    same = torch.vmap(run, randomness="same")(q)
    assert_close(same[0], same[1], rtol=0, atol=0)
    assert not torch.allclose(same[0], tiled.attention(q[0], q[0], q[0]))
    with pytest.raises(NotImplementedError, match=r'^tiled\.attention draws one .*: pass randomness="same" to vmap$'):
        torch.vmap(run, randomness="different")(q)


def test_zero_and_one() -> None:
    tensors = inputs()
    state = torch.get_rng_state()
    want = with_gradients(tiled.attention(*tensors, **SMALL), tensors)
    assert_close(with_gradients(tiled.attention(*tensors, dropout_p=0, **SMALL), tensors), want, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state), "dropout_p = 0 draws no random numbers"
    got = with_gradients(tiled.attention(*tensors, dropout_p=1, **SMALL), tensors)
    assert not any(x.any() for x in got.values())


def test_factors_are_zero_or_one_over_the_share_that_is_kept() -> None:
    q = torch.zeros(2, 3, 64, 1, dtype=torch.float64)
    factors = drawn(plan(block_q=16, block_k=16), q, 64)
    assert factors.shape == (2, 3, 64, 64)
    assert_close(factors.unique(), torch.tensor([0, 1 / (1 - P)], dtype=torch.float64))
    share = (factors == 0).double().mean().item()
    assert abs(share - P) < 5 * math.sqrt(P * (1 - P) / factors.numel())


def test_tiles_heads_samples_and_seeds_are_independent() -> None:
    n, p = 32, 0.5
    q = torch.zeros(2, 3, n * 4, 1)
    found = [drawn(plan(seed, p, n, n), q, n * 4) - 1 for seed in (0, 1000, 2**31)]  # each entry is -1 or 1
    tiles = [x.reshape(6, 4, n, 4, n).transpose(2, 3).reshape(6 * 16, n * n) for x in found]
    flat = torch.cat(tiles)
    products = (flat @ flat.T / n**2).fill_diagonal_(0)
    assert products.abs().max() < 6 / n  # standard deviation 1 / n


def test_depends_on_seed_place_and_block_size() -> None:
    q = inputs()[0]
    base = drawn(plan(), q, S)
    assert_close(drawn(plan(), q, S), base, rtol=0, atol=0)
    assert not torch.equal(drawn(plan(seed=5), q, S), base)
    assert not torch.equal(drawn(plan(block_k=4), q, S), base)
    assert base.shape == (B, H, T, S)
    assert dropout_factors(plan(dropout_p=0.0), q, S, slice(0, 2), slice(0, 3)) is None
