"""One table: explicit, SDPA, tiled, a callable and nn.MultiheadAttention give the same numbers and gradients."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from mha_course import MultiHeadAttention, masks, tiled
from tests.multihead.modules import BACKENDS, EK, EV, MASKS, B, D, E, H, S, T, by_loops, fill, leaf, numbers, ours

PATHS = {**BACKENDS, "tiled": partial(tiled.attention, block_q=2, block_k=3)}
WIDTHS = {"one width": {}, "kdim, vdim": {"kdim": EK, "vdim": EV}}
KINDS = (*MASKS, "score_bias", "score_bias and mask")
LETTERS = ("query", "key", "value", "score_bias")


def problem(kind: str, widths: dict, dtype: torch.dtype, batch: int = B) -> tuple[list[Tensor], Tensor | None]:
    """Query, key, value and score_bias, whose gradients are compared, and a mask."""
    ek, ev = widths.get("kdim", E), widths.get("vdim", E)
    tensors = [numbers(batch, T, E, seed=1), numbers(batch, S, ek, seed=2), numbers(batch, S, ev, seed=3)]
    tensors += [numbers(H, T, S, seed=4)] if "score_bias" in kind else []
    mask = MASKS["(B, 1, T, S)"] if kind == "score_bias and mask" else MASKS.get(kind)
    return [leaf(x.to(dtype)) for x in tensors], mask


def run(module: MultiHeadAttention, tensors: list[Tensor], mask: Tensor | None) -> dict[str, Tensor]:
    """Out and every gradient by name."""
    query, key, value, *bias = tensors
    out = module(query, key, value, mask=mask, score_bias=bias[0] if bias else None)
    parameters = dict(module.named_parameters())
    grads = torch.autograd.grad(out, [*tensors, *parameters.values()], numbers(*out.shape, seed=9, dtype=out.dtype))
    return {"out": out.detach(), **dict(zip([*LETTERS[: len(tensors)], *parameters], grads, strict=True))}


def run_theirs(
    module: nn.MultiheadAttention, tensors: list[Tensor], mask: Tensor | None, need_weights: bool
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The same of nn.MultiheadAttention, under our names, and its weights (B, H, T, S)."""
    query, key, value, *bias = tensors
    shape = (query.shape[0], H, T, S)
    added = None
    if bias:
        added = bias[0].expand(shape)
        added = added if mask is None else added.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        added = masks.to_blocked(mask.expand(shape))
    if added is not None:
        added = added.flatten(0, 1)
    inputs = (query, key, value) if module.batch_first else (x.transpose(0, 1) for x in (query, key, value))
    out, weights = module(*inputs, attn_mask=added, need_weights=need_weights, average_attn_weights=False)
    out = out if module.batch_first else out.transpose(0, 1)
    parameters = dict(module.named_parameters())
    grads = torch.autograd.grad(out, [*tensors, *parameters.values()], numbers(*out.shape, seed=9, dtype=out.dtype))
    return {
        "out": out.detach(),
        **dict(zip([*LETTERS[: len(tensors)]], grads, strict=False)),
        **renamed(dict(zip(parameters, grads[len(tensors) :], strict=True))),
    }, weights


def renamed(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of nn.MultiheadAttention under our names."""
    found = {}
    for name, x in theirs.items():
        if name.startswith("in_proj"):
            kind = name.removeprefix("in_proj_")
            found |= {f"{letter}_proj.{kind}": part for letter, part in zip("qkv", x.chunk(3), strict=True)}
        else:
            found[name.replace("_proj_weight", "_proj.weight")] = x
    return found


def pair(
    dtype: torch.dtype, *, batch_first: bool = True, **options
) -> tuple[nn.MultiheadAttention, MultiHeadAttention]:
    theirs = nn.MultiheadAttention(E, H, batch_first=batch_first, dtype=dtype, **options)
    fill(theirs)
    return theirs, MultiHeadAttention.from_torch(theirs)


def each(module: MultiHeadAttention) -> Iterator[str]:
    for name, backend in PATHS.items():
        module.backend = backend
        yield name


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor], who: str, **tolerance: float) -> None:
    assert got.keys() == want.keys()
    for name, x in want.items():
        assert_close(got[name], x, **tolerance, msg=lambda text, name=name: f"{who}, {name}: {text}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "length first"])
@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_equals_torch(dtype: torch.dtype, bias: bool, widths: dict, batch_first: bool, kind: str) -> None:
    theirs, module = pair(dtype, bias=bias, batch_first=batch_first, **widths)
    tensors, mask = problem(kind, widths, dtype)
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    trace = module.trace(*tensors[:3], mask=mask, score_bias=(*tensors[3:], None)[0])
    for training in (True, False):
        theirs.train(training)
        module.train(training)
        for need_weights in (True, False):
            want, weights = run_theirs(theirs, tensors, mask, need_weights)
            if weights is not None:
                assert_close(trace.weights, weights, rtol=tolerance["rtol"], atol=1e-6)
            for name in each(module):
                assert_same(run(module, tensors, mask), want, name, **tolerance)
    with torch.no_grad():  # theirs: the fast path
        inputs = tensors[:3] if batch_first else [x.transpose(0, 1) for x in tensors[:3]]
        if kind in ("none", "padding"):
            hidden = None if mask is None else masks.to_blocked(mask[:, 0, 0])
            out = theirs(*inputs, key_padding_mask=hidden, need_weights=False)[0]
            out = out if batch_first else out.transpose(0, 1)
            for name in each(module):
                assert_close(module(*tensors[:3], mask=mask), out, **tolerance, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("kind", ["none", "(T, S)", "padding", "score_bias and mask"])
@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_half_precision_the_error_is_at_most_twice_torchs(dtype: torch.dtype, widths: dict, kind: str) -> None:
    theirs, module = pair(dtype, **widths)
    exact = MultiHeadAttention.from_torch(theirs).double()
    many = B if "mask" in kind or kind == "padding" else 20 * B  # the error of one small draw says little
    tensors, mask = problem(kind, widths, dtype, many)
    truth = run(exact, [leaf(x.double()) for x in tensors], mask)
    other, _ = run_theirs(theirs, tensors, mask, need_weights=True)
    for name in each(module):
        for letter, x in run(module, tensors, mask).items():
            assert x.dtype == dtype
            error, allowed = ((y.double() - truth[letter]).norm().item() for y in (x, other[letter]))
            assert error <= 2 * allowed + 1e-3, f"{name}, {letter}: error {error:.2e}, theirs {allowed:.2e}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_grouped_heads_equal_repeated_weights(kv_heads: int, kind: str) -> None:
    """Grouped heads are full heads some of which have equal weights; gradients add up."""
    if kind in ("(H, T, S)", "(B, H, T, S)"):
        kind = "(B, 1, T, S)"
    grouped = ours(E, 6, num_kv_heads=kv_heads, head_dim=D)
    full = ours(E, 6, head_dim=D)
    tensors, mask = problem(kind.replace("score_bias", "(T, S)"), {}, torch.float64)
    with torch.no_grad():
        for name, x in grouped.state_dict().items():
            whole = full.get_parameter(name)
            if name[0] in "kv":
                x = x.unflatten(0, (kv_heads, D)).repeat_interleave(6 // kv_heads, dim=0).flatten(0, 1)
            whole.copy_(x)
    want = run(full, tensors, mask)
    for name, x in want.items():
        if name[:6] in ("k_proj", "v_proj"):
            want[name] = x.unflatten(0, (kv_heads, 6 // kv_heads, D)).sum(1).flatten(0, 1)
    for name in each(grouped):
        assert_same(run(grouped, tensors, mask), want, name)


@pytest.mark.parametrize("kind", ["none", "(S,)", "causal & padding", "(H, T, S)"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_equals_the_loops(bias: bool, kind: str) -> None:
    heads, kv_heads = (3, 3) if "H" in kind else (6, 2)
    module = ours(13, heads, num_kv_heads=kv_heads, head_dim=D, kdim=EK, vdim=EV, bias=bias)
    query, key, value = numbers(B, T, 13), numbers(B, S, EK, seed=1), numbers(B, S, EV, seed=2)
    added = numbers(heads, 1, S, seed=3)
    weights, out = by_loops(module, query, key, value, MASKS[kind], added)
    for name in each(module):
        got = module(query, key, value, mask=MASKS[kind], score_bias=added)
        assert_close(got, out, msg=lambda text, name=name: f"{name}: {text}")
    assert_close(module.trace(query, key, value, mask=MASKS[kind], score_bias=added).weights, weights)


@pytest.mark.parametrize("extra", ["none", "mask", "score_bias", "both"])
@pytest.mark.parametrize("kv_heads", [6, 2])
def test_is_causal_is_a_causal_mask_and_both_are_anded(kv_heads: int, extra: str) -> None:
    module = ours(E, 6, num_kv_heads=kv_heads, head_dim=D)
    x = leaf(numbers(B, T, E))
    hidden = masks.padding(torch.tensor([T, 2]), T)
    mask = hidden if extra in ("mask", "both") else None
    bias = numbers(6, T, T) if extra in ("score_bias", "both") else None
    module.backend = "explicit"
    both = masks.causal(T) if mask is None else masks.causal(T) & mask
    want = module(x, mask=both, score_bias=bias)
    up = numbers(*want.shape, seed=5)
    (want_grad,) = torch.autograd.grad(want, x, up)
    for name in each(module):
        got = module(x, mask=mask, score_bias=bias, is_causal=True)
        assert_close(got, want, msg=lambda text, name=name: f"{name}: {text}")
        assert_close(torch.autograd.grad(got, x, up)[0], want_grad)
    assert_close(module.trace(x, mask=mask, score_bias=bias, is_causal=True).out, want)
