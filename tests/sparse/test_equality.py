"""The table "every path gives the same numbers" for chunks, windows and blocks: output and every gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from mha_course import MultiHeadAttention, masks
from mha_course.sparse import block_sparse, chunked
from tests import reference
from tests.sparse.problems import (
    ANY_LENGTH,
    DV,
    PATHS,
    WINDOWS,
    B,
    D,
    H,
    Path,
    T,
    bools,
    explicit,
    inputs,
    leaves,
    numbers,
    with_gradients,
)

OFF = -torch.inf


def options_of(kind: str, T: int, S: int, H: int = H) -> dict:
    options: dict = {"scale": -0.7} if kind == "scale" else {}
    if kind in ("(T, S) mask", "both"):
        options["mask"] = bools(B, H, T, S)
        options["mask"][:, :, 2] = False  # a row that sees nothing
    if kind == "padding":
        options["mask"] = masks.padding(torch.tensor([S // 2, S]), S)
    if kind in ("score_bias", "both"):
        bias = numbers(H, T, S, seed=4)
        bias[:, 1, 2:4] = OFF
        (options["score_bias"],) = leaves(bias)
    if kind == "bias of keys":
        (options["score_bias"],) = leaves(numbers(1, 1, S, seed=4))
    return options


def assert_same(path: Path, tensors: list[Tensor], **options: Tensor | float | None) -> None:
    run, allowed = path
    sizes = tensors[0].shape[2], tensors[1].shape[2]
    every = [*tensors, *(x for x in options.values() if isinstance(x, Tensor) and x.requires_grad)]
    got = with_gradients(run(*tensors, **options), every)
    want = with_gradients(explicit(*tensors, allowed(*sizes), **options), every)
    for name, x, y in zip(("out", "q", "k", "v", "score_bias"), got, want, strict=False):
        assert_close(x, y, msg=lambda text, name=name: f"{name}: {text}")


KINDS = ("plain", "(T, S) mask", "padding", "score_bias", "bias of keys", "both", "scale")


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_attention_with_grouped_heads(kind: str, path: Path) -> None:
    assert_same(path, inputs(H=6, Hkv=2), **options_of(kind, T, T, 6))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_attention_through_the_fused_kernel(kind: str, path: Path) -> None:
    # on the CPU it takes only values as wide as keys, and no bias that learns
    options = {name: x.detach() if isinstance(x, Tensor) else x for name, x in options_of(kind, T, T, 6).items()}
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # an error if another one would have to do
        assert_same(path, inputs(H=6, Hkv=2, Dv=D), **options)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("scale", [0.0, -1.3, 3])
def test_every_scale(scale: float, path: Path) -> None:
    for Dv in (D, DV):
        assert_same(path, inputs(37, Dv=Dv), scale=scale, is_causal=True)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("kind", ["plain", "(T, S) mask", "both"])
def test_is_causal(kind: str, path: Path) -> None:
    assert_same(path, inputs(), **options_of(kind, T, T), is_causal=True)


@pytest.mark.parametrize("path", ANY_LENGTH.values(), ids=ANY_LENGTH)
@pytest.mark.parametrize(("T", "S"), [(37, 53), (53, 37), (1, 43), (43, 1)])
@pytest.mark.parametrize("kind", ["plain", "both"])
def test_other_lengths_of_keys(kind: str, T: int, S: int, path: Path) -> None:
    options = options_of(kind, T, S) if T > 2 and S > 2 else {}
    assert_same(path, inputs(T, S), **options)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("T", [0, 1, 2, 31, 32, 33, 64, 65])
def test_short_and_even_lengths(T: int, path: Path) -> None:
    assert_same(path, inputs(T))
    assert_same(path, inputs(T), is_causal=True, score_bias=numbers(T, T), mask=bools(T, T))


@pytest.mark.parametrize("path", ANY_LENGTH.values(), ids=ANY_LENGTH)
def test_no_keys_at_all(path: Path) -> None:
    out, *grads = with_gradients(path[0](*(tensors := inputs(5, 0))), tensors)
    assert_close(out, torch.zeros(B, H, 5, DV, dtype=torch.float64))
    assert_close(grads[0], torch.zeros(B, H, 5, D, dtype=torch.float64))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_an_empty_batch(path: Path) -> None:
    q, k, v = (x[:0] for x in inputs())
    assert path[0](q, k, v).shape == (0, H, T, DV)


@pytest.mark.parametrize("shape", sorted(set(reference.broadcastable((B, H, T, T)))))
@pytest.mark.parametrize("name", ["chunks of 29", "blocks of 13", "window 33"])
def test_every_shape_that_broadcasts(name: str, shape: tuple[int, ...]) -> None:
    assert_same(PATHS[name], inputs(), mask=bools(*shape), score_bias=numbers(*shape, seed=4))


@pytest.mark.parametrize("name", ["chunks of 29", "blocks of 13", "window 33"])
def test_equals_the_loops(name: str) -> None:
    q, k, v = (x.detach()[:1, :2, :41] for x in inputs())
    run, allowed = PATHS[name]
    bias = numbers(2, 41, 41, seed=4)
    _, _, want = reference.attention(q, k, v, mask=allowed(41, 41), score_bias=bias)
    assert_close(run(q, k, v, score_bias=bias), want)


def test_a_window_of_two_by_hand() -> None:
    # equal scores: a row averages what it sees
    zeros, v = torch.zeros(1, 1, 4, 1), torch.tensor([2.0, 4.0, 8.0, 16.0]).view(1, 1, 4, 1)
    out = WINDOWS["window 2"][0](zeros, zeros, v)
    assert_close(out.flatten(), torch.tensor([2.0, 3.0, 6.0, 12.0]))


@pytest.mark.parametrize("name", ["chunks of 29", "blocks of 13", "window 2"])
def test_gradcheck(name: str) -> None:
    tensors = leaves(*(x.detach()[:1, :1, :, :2] for x in inputs(5)))
    assert torch.autograd.gradcheck(PATHS[name][0], tensors)


@pytest.mark.parametrize("Dv", [D, DV])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("path", [PATHS[name] for name in PATHS if name != "chunks of 1"])  # see its docstring
def test_in_half_precision_the_error_is_at_most_twice_that_of_attention(
    path: Path, dtype: torch.dtype, Dv: int
) -> None:
    tensors = inputs(dtype=dtype, Dv=Dv)
    run, allowed = path
    exact = [x.detach().double().requires_grad_() for x in tensors]
    truth = with_gradients(explicit(*exact, allowed(T, T)), exact)
    other = with_gradients(explicit(*tensors, allowed(T, T)), tensors)
    for x, y, z in zip(with_gradients(run(*tensors), tensors), other, truth, strict=True):
        assert x.dtype == dtype
        error, least = ((a.double() - z).norm().item() for a in (x, y))
        assert error <= 2 * least + 1e-3


@settings(max_examples=30)
@given(st.sampled_from(sorted(PATHS)), st.integers(1, T), st.data())
def test_rows_that_may_not_see_a_key_stay_bit_equal_when_it_changes(name: str, T: int, data: st.DataObject) -> None:
    run, allowed = PATHS[name]
    is_causal = data.draw(st.booleans())
    j, new = data.draw(st.integers(0, T - 1)), data.draw(st.sampled_from([0.0, -3.5, 1e30]))
    q, k, v = (x.detach() for x in inputs(T, dtype=torch.float32))
    before = run(q, k, v, is_causal=is_causal)
    k[:, :, j], v[:, :, j] = new, new + 1
    after = run(q, k, v, is_causal=is_causal)
    sees = allowed(T, T)[:, j] & (masks.causal(T)[:, j] if is_causal else True)
    assert_close(after[:, :, ~sees], before[:, :, ~sees], rtol=0, atol=0)
    assert (after != before)[:, :, sees].any(-1).all()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own, at the first forward mode
@pytest.mark.parametrize("name", ["blocks of 13", "window 33"])
def test_what_the_fused_kernel_cannot_as_documented(name: str) -> None:
    run, allowed = PATHS[name]
    tensors = inputs(dtype=torch.float32, Dv=D)
    q, k, v = (x.detach() for x in tensors)
    (grad,) = torch.autograd.grad(run(*tensors).square().sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        grad.sum().backward()
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward AD"):
        run(forward_ad.make_dual(q, q), k, v)

    hidden = torch.arange(T) != 5
    clean = run(q, k, v, mask=hidden)
    for x, value in ((k, 1e30), (v, 1e30), (k, 1e38), (k, torch.nan), (v, torch.nan)):
        before = x[:, :, 5].clone()
        x[:, :, 5] = value
        reached = (run(q * 100, k, v, mask=hidden) if value == 1e38 else run(q, k, v, mask=hidden)).isnan().any()
        assert reached == (value != 1e30)
        if not reached:
            assert_close(run(q, k, v, mask=hidden), clean, rtol=0, atol=0)
        x[:, :, 5] = before

    bias = torch.zeros(T, T)
    bias[40] = -1e9
    got = with_gradients(run(*tensors, score_bias=bias), tensors)
    want = with_gradients(explicit(*tensors, allowed(T, T), score_bias=bias), tensors)
    assert_close(got[0], want[0])
    assert (got[3] - want[3]).abs().max() > 1


def test_chunks_under_torch_func_as_documented() -> None:
    q, k, v = (x.detach() for x in inputs(37))

    def total(q: Tensor, recompute: bool) -> Tensor:
        return chunked(q, k, v, chunk=13, recompute=recompute).square().sum()

    (leaf,) = leaves(q)
    assert_close(torch.func.grad(total)(q, False), torch.autograd.grad(total(leaf, True), leaf)[0])
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(total)(q, True)


@pytest.mark.parametrize("name", ["chunks of 1", "chunks of 29", "chunks kept"])
def test_chunks_have_second_derivatives(name: str) -> None:
    tensors = leaves(*(x.detach()[:1, :1, :, :2] for x in inputs(5)))
    assert torch.autograd.gradgradcheck(PATHS[name][0], tensors)


def test_a_block_larger_than_everything_takes_no_more_than_it() -> None:
    q, k, v = inputs(5, 7)
    whole = torch.ones(1, 1, dtype=torch.bool)
    assert_close(block_sparse(q, k, v, layout=whole, block=10**12), explicit(q, k, v, torch.ones(5, 7).bool()))
    assert block_sparse(q[:, :, :0], k, v, layout=whole[:0], block=10**12).shape == (B, H, 0, DV)


def test_nan_in_a_hidden_value_stays_near_as_documented() -> None:
    q, k, v = (x.detach() for x in inputs())
    v[:, :, 3] = torch.nan
    out = WINDOWS["window 2"][0](q, k, v)
    assert out[:, :, 64:].isfinite().all()
    assert out[:, :, 3:5].isnan().all()


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_as_a_backend(path: Path) -> None:
    run, allowed = path
    module = MultiHeadAttention(12, 6, num_kv_heads=2, backend=run, dtype=torch.float64)
    x = numbers(B, T, 12)
    options = {"mask": masks.padding(torch.tensor([T // 2, T]), T), "score_bias": numbers(6, T, T), "is_causal": True}
    got = module(x, **options)
    module.backend = "explicit"
    assert_close(got, module(x, **{**options, "mask": options["mask"] & allowed(T, T)}))


@pytest.mark.parametrize("name", ["chunks of 29", "blocks of 13", "window 33"])
def test_dropout(name: str) -> None:
    run, _ = PATHS[name]
    tensors = inputs()
    assert_close(run(*tensors, dropout_p=1.0), torch.zeros(B, H, T, DV, dtype=torch.float64))
    torch.manual_seed(0)
    out = run(*tensors, dropout_p=0.3)
    assert (out != run(*tensors)).any()
    # out is linear in v: the backward pass must have dropped the same weights
    (grad,) = torch.autograd.grad(out.sum(), tensors[2])
    assert_close((grad * tensors[2]).sum(), out.sum())
    many = run(torch.zeros(1, 40, 71, 5), torch.zeros(1, 40, 71, 5), torch.ones(1, 40, 71, 1), dropout_p=0.3)
    plain = run(torch.zeros(1, 1, 71, 5), torch.zeros(1, 1, 71, 5), torch.ones(1, 1, 71, 1))
    assert_close(many.mean(), plain.mean(), rtol=0.05, atol=0)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_layout_in_memory_does_not_matter_and_inputs_are_left_alone(path: Path) -> None:
    q, k, v = (x.detach() for x in inputs())
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert_close(path[0](*turned), path[0](q, k, v))
    assert_close(turned, [q, k, v], rtol=0, atol=0)


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ["chunks of 29", "chunks kept", "window 33"])
def test_compiles_whole(name: str) -> None:
    run, _ = PATHS[name]
    q, k, v = (x.detach() for x in inputs())
    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert_close(compiled(q, k, v, score_bias=numbers(T, T)), run(q, k, v, score_bias=numbers(T, T)))
