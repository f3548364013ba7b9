"""What autograd sees: gradients by finite differences, what is kept, what is refused, and who wraps around it."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from mha_course import MultiHeadAttention, tiled
from mha_course.measure import peak_memory
from mha_course.tiled import backward, forward
from tests.tiled.problems import DV, B, H, S, T, bools, explicit, inputs, leaves, numbers, with_gradients

ROOT = Path(__file__).parents[2]
SMALL = {"block_q": 2, "block_k": 3}
NAMES = ("q", "k", "v", "score_bias")


@pytest.mark.unchecked
@pytest.mark.parametrize("is_causal", [False, True])
def test_gradcheck(is_causal: bool) -> None:
    n, mask = 3, bools(3, 3)
    mask[1] = False
    tensors = leaves(numbers(1, 2, n, 2), numbers(1, 1, n, 2, seed=1), numbers(1, 1, n, 3, seed=2), numbers(2, 1, n))

    def run(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return tiled.attention(q, k, v, mask=mask, score_bias=bias, scale=0.9, is_causal=is_causal, **SMALL)

    assert torch.autograd.gradcheck(run, tensors)


@pytest.mark.parametrize("needed", [[True] * 4, *([i == j for j in range(4)] for i in range(4))], ids=str)
def test_gradients_only_for_inputs_that_need_them(needed: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    found, real = [], backward.backward

    def spy(*args):
        found.append(real(*args))
        return found[-1]

    monkeypatch.setattr("mha_course.tiled.function.backward", spy)
    tensors = [x.detach().requires_grad_(need) for x, need in zip([*inputs(), numbers(T, S)], needed, strict=True)]
    out = tiled.attention(*tensors[:3], score_bias=tensors[3], **SMALL)
    chosen = [x for x, need in zip(tensors, needed, strict=True) if need]
    got = torch.autograd.grad(out, chosen, numbers(*out.shape, seed=9))
    want = torch.autograd.grad(explicit(*tensors[:3], score_bias=tensors[3]), chosen, numbers(*out.shape, seed=9))
    assert_close(got, want)
    assert [[x is not None for x in grads] for grads in found] == [needed]


def test_without_inputs_that_need_gradients_there_is_no_graph() -> None:
    assert not tiled.attention(*(x.detach() for x in inputs())).requires_grad
    with torch.no_grad():
        assert not tiled.attention(*inputs()).requires_grad
    with torch.inference_mode():
        assert not tiled.attention(*inputs()).requires_grad


def kept(run) -> tuple[list[Tensor], Tensor]:
    """The tensors that autograd saves while run computes, and what run returns."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        out = run()
    return saved, out


def test_kept_are_the_inputs_as_given_out_and_two_numbers_a_row() -> None:
    q, k, v = inputs(H=6, Hkv=2)
    mask, bias = bools(T, S), numbers(6, 1, 1).requires_grad_()
    saved, out = kept(lambda: tiled.attention(q, k, v, mask=mask, score_bias=bias, dropout_p=0.5, **SMALL))
    given = {x.untyped_storage().data_ptr() for x in (q, k, v, mask, bias, out)}
    others = [x for x in saved if x.untyped_storage().data_ptr() not in given]
    assert [x.shape for x in others] == [(B, 6, T)] * 2
    assert len(saved) == 8
    with torch.no_grad():
        assert kept(lambda: tiled.attention(q, k, v))[0] == []


@pytest.mark.unchecked
@pytest.mark.parametrize("score_bias", [False, True])
def test_peak_memory_grows_with_the_length_not_with_its_square(score_bias: bool) -> None:
    def peak(n: int) -> int:
        q, k, v = leaves(*torch.zeros(3, 1, 1, n, 2))
        bias = torch.zeros(n, requires_grad=True) if score_bias else None
        needed = [q, k, v] if bias is None else [q, k, v, bias]
        return peak_memory(
            lambda: torch.autograd.grad(tiled.attention(q, k, v, score_bias=bias, block_q=64, block_k=64).sum(), needed)
        )

    assert math.log2(peak(512) / peak(256)) < 1.1


# Tiles that are skipped


def places(monkeypatch: pytest.MonkeyPatch, module) -> list[tuple[int, int]]:
    """Where each tile starts whose mask a pass asks for, filled in as it runs."""
    seen, real = [], module.tile_mask

    def spy(mask, rows, columns, *rest):
        seen.append((rows.start, columns.start))
        return real(mask, rows, columns, *rest)

    monkeypatch.setattr(module, "tile_mask", spy)
    return seen


@pytest.mark.parametrize(("block_q", "block_k"), [(2, 3), (3, 2), (1, 1), (4, 4), (9, 3), (3, 9)])
def test_causal_visits_each_tile_that_holds_a_visible_score_once_and_no_other(
    block_q: int, block_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 7
    forwards, backwards = places(monkeypatch, forward), places(monkeypatch, backward)
    tensors = inputs(T=n, S=n)
    out = tiled.attention(*tensors, is_causal=True, block_q=block_q, block_k=block_k)
    torch.autograd.grad(out.sum(), tensors)
    starts = [(i, j) for i in range(0, n, block_q) for j in range(0, n, block_k)]
    want = [(i, j) for i, j in starts if any(s <= t for t in range(i, min(i + block_q, n)) for s in range(j, n))]
    want = [(i, j) for i, j in want if j <= min(i + block_q, n) - 1]
    assert forwards == backwards == want
    assert len(want) < len(starts) or block_q >= n or block_k >= n


# Refused


def test_a_second_derivative_is_refused_in_clear_words() -> None:
    tensors = inputs()
    first = torch.autograd.grad(tiled.attention(*tensors).square().sum(), tensors, create_graph=True)
    assert_close(first, torch.autograd.grad(explicit(*tensors).square().sum(), tensors))
    with pytest.raises(NotImplementedError, match=r"^tiled\.attention has no second derivatives: use mha_course"):
        torch.autograd.grad(first[0].sum(), tensors)


@pytest.mark.unchecked
def test_a_second_derivative_by_func_is_refused() -> None:
    q, k, v = (x.detach() for x in inputs())

    def first(q: Tensor) -> Tensor:
        return torch.func.grad(lambda q: tiled.attention(q, k, v).sum())(q).sum()

    with pytest.raises(NotImplementedError, match=r"^tiled\.attention has no second derivatives"):
        torch.func.grad(first)(q)


@pytest.mark.unchecked
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # PyTorch's own
def test_forward_mode_is_refused_in_clear_words() -> None:
    q, k, v = (x.detach() for x in inputs())
    with pytest.raises(NotImplementedError, match=r"^tiled\.attention has no forward mode \(jvp\): use mha_course"):
        torch.func.jvp(lambda q: tiled.attention(q, k, v), (q,), (q,))


# Who wraps around it


# run in a process of its own: torch.compile does not get through what checks the annotations
COMPILED = """
import torch
from torch.testing import assert_close
from mha_course import tiled
from tests.tiled.problems import S, bools, inputs, numbers, with_gradients

mask, bias = bools(S, S), numbers(S, seed=4)

def run(q, k, v):
    return tiled.attention(q, k, v, mask=mask, score_bias=bias, is_causal=True, block_q=4, block_k=5)

tensors = inputs(H=6, Hkv=2, T=S)
whole = torch.compile(run, backend="eager", fullgraph=True)
assert_close(with_gradients(whole(*tensors), tensors), with_gradients(run(*tensors), tensors))
"""


def test_compiles_whole() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_around_it_draws_the_same_dropout(use_reentrant: bool) -> None:
    tensors = inputs()

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tiled.attention(q, k, v, dropout_p=0.5, **SMALL)

    def gradients(out: Tensor) -> list[Tensor]:
        out.square().sum().backward()
        found = [out.detach(), *(x.grad for x in tensors)]
        for x in tensors:
            x.grad = None
        return found

    torch.manual_seed(0)
    want = gradients(run(*tensors))
    torch.manual_seed(0)
    assert_close(gradients(checkpoint(run, *tensors, use_reentrant=use_reentrant)), want, rtol=0, atol=0)


@pytest.mark.unchecked
def test_func_grad_and_vmap() -> None:
    n = 4
    q, k, v = (numbers(n, *x.shape, seed=i) for i, x in enumerate(inputs(H=6, Hkv=2)))
    mask, (bias,) = bools(n, T, S), leaves(numbers(6, T, S, seed=4))

    def loss(attend, **tiles: int):
        return lambda q, k, mask: attend(q, k, v[0], mask=mask, score_bias=bias, **tiles).square().sum()

    ours, theirs = loss(tiled.attention, **SMALL), loss(explicit)
    assert_close(torch.func.grad(ours)(q[0], k[0], mask[0]), torch.func.grad(theirs)(q[0], k[0], mask[0]))
    for dims in ((0, 0, 0), (0, None, None), (None, None, 0)):
        args = [x if dim == 0 else x[0] for x, dim in zip((q, k, mask), dims, strict=True)]
        got, want = (torch.vmap(torch.func.grad(x, argnums=(0, 1)), dims)(*args) for x in (ours, theirs))
        assert_close(got, want)
    moved = torch.vmap(lambda q, v: tiled.attention(q, k[0], v, **SMALL), (2, 1))(q.movedim(0, 2), v.movedim(0, 1))
    assert_close(moved, torch.stack([tiled.attention(a, k[0], b, **SMALL) for a, b in zip(q, v, strict=True)]))


@pytest.mark.unchecked
def test_vmap_over_no_samples_gives_none() -> None:
    q, k, v = (x.detach() for x in inputs())
    none = torch.zeros(B, 0, H, T, q.shape[-1], dtype=q.dtype)

    def run(q: Tensor) -> Tensor:
        return tiled.attention(q, k, v, **SMALL)

    assert torch.vmap(run, 1)(none).shape == (0, B, H, T, DV)
    assert torch.vmap(torch.func.grad(lambda q: run(q).sum()), 1, 1)(none).shape == none.shape


@pytest.mark.unchecked
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_computes_in_the_low_type_and_stays_close(dtype: torch.dtype) -> None:
    tensors = inputs(H=6, Hkv=2, dtype=torch.float32)
    (bias,) = leaves(numbers(6, T, S, dtype=torch.float32, seed=4))
    want = with_gradients(explicit(*tensors, score_bias=bias), [*tensors, bias])
    low = leaves(*(x.to(dtype) for x in tensors))
    cast = tiled.attention(*low, score_bias=bias, **SMALL)
    with torch.autocast("cpu", dtype):
        out = tiled.attention(*tensors, score_bias=bias, **SMALL)
        got = with_gradients(out, [*tensors, bias])  # the backward pass too
        wide = tiled.attention(*inputs(), **SMALL)
    assert out.dtype == dtype
    assert_close(out, cast, rtol=0, atol=0)
    assert wide.dtype == torch.float64, "autocast leaves float64 alone"
    for name, x in got.items():
        assert x.dtype == (dtype if name == "out" else torch.float32)
        assert (x.float() - want[name]).norm() <= 1e-2 * want[name].norm(), name
    outside = with_gradients(cast, [*low, bias])
    assert_close(got["q"], outside["q"].float(), rtol=0, atol=0)


@pytest.mark.unchecked
def test_autocast_around_the_module() -> None:
    module = MultiHeadAttention(12, 3, backend=tiled.attention)
    x = numbers(B, S, 12, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        low = module(x, is_causal=True)
    assert low.dtype == torch.bfloat16
    assert_close(low.float(), module(x, is_causal=True), rtol=3e-2, atol=3e-2)


def test_on_the_meta_device_shapes_alone_are_computed() -> None:
    tensors = leaves(*(x.to("meta") for x in inputs(H=6, Hkv=2, T=S)))
    out = tiled.attention(*tensors, mask=bools(S, S).to("meta"), is_causal=True, **SMALL)
    assert out.shape == (B, 6, S, DV)
    assert [x.shape for x in torch.autograd.grad(out.sum(), tensors)] == [x.shape for x in tensors]
