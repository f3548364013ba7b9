"""`tiled.attention` against `attention`: output and gradients, whatever the tiles, the masks and the types."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from mha_course import MultiHeadAttention, masks, tiled
from tests import reference
from tests.tiled.problems import DV, OFF, B, D, H, S, T, bools, explicit, inputs, leaves, numbers, with_gradients

# tiles of one score, ragged last tiles, as large as the whole, larger, and the default
TILES = {
    "1 x 1": {"block_q": 1, "block_k": 1},
    "2 x 3": {"block_q": 2, "block_k": 3},
    "4 x 2": {"block_q": 4, "block_k": 2},
    "T x S": {"block_q": T, "block_k": S},
    "9 x 2": {"block_q": 9, "block_k": 2},
    "3 x 11": {"block_q": 3, "block_k": 11},
    "default": {},
}
SMALL = TILES["2 x 3"]


def assert_same(tensors: list[Tensor], tiles: dict, **options) -> None:
    """Compare output and gradients of tiled attention with those of the explicit one."""
    everything = [*tensors, *(x for x in options.values() if isinstance(x, Tensor) and x.requires_grad)]
    got = with_gradients(tiled.attention(*tensors, **options, **tiles), everything)
    want = with_gradients(explicit(*tensors, **options), everything)
    for name, x in want.items():
        assert_close(got[name], x, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
@pytest.mark.parametrize("Hkv", [1, 2, 3, 6])
@pytest.mark.parametrize("kind", ["plain", "mask", "score_bias", "both", "scale"])
def test_equals_attention(kind: str, Hkv: int, tiles: dict) -> None:
    options: dict = {"scale": -0.7} if kind == "scale" else {}
    if kind in ("mask", "both"):
        options["mask"] = bools(B, 6, T, S)
        options["mask"][:, :, 2] = False
    if kind in ("score_bias", "both"):
        bias = numbers(6, T, S, seed=4)
        bias[:, 1, 2:4] = OFF
        (options["score_bias"],) = leaves(bias)
    assert_same(inputs(H=6, Hkv=Hkv), tiles, **options)


@pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
@pytest.mark.parametrize("Hkv", [2, 6])
@pytest.mark.parametrize("kind", ["plain", "mask", "score_bias", "both"])
def test_is_causal_equals_a_causal_mask_and_both_are_anded(kind: str, Hkv: int, tiles: dict) -> None:
    options: dict = {"is_causal": True}
    if kind in ("mask", "both"):
        options["mask"] = bools(S, S)
        assert not (options["mask"] & masks.causal(S)).any(-1).all(), "a row that sees nothing belongs to it"
    if kind in ("score_bias", "both"):
        (options["score_bias"],) = leaves(numbers(6, 1, S, seed=4))
    assert_same(inputs(H=6, Hkv=Hkv, T=S), tiles, **options)


@pytest.mark.parametrize("shape", sorted(reference.broadcastable((B, H, T, S))), ids=str)
def test_mask_and_bias_of_every_broadcastable_shape(shape: tuple[int, ...]) -> None:
    mask = bools(*shape)
    (bias,) = leaves(numbers(*shape, seed=4))
    assert_same(inputs(), SMALL, mask=mask, score_bias=bias)


@pytest.mark.parametrize("options", [{}, {"mask": bools(T, S)}, {"score_bias": numbers(H, T, S, seed=4)}], ids=str)
def test_equals_the_loops(options: dict) -> None:
    q, k, v = inputs()
    assert_close(tiled.attention(q, k, v, **SMALL, **options).detach(), reference.attention(q, k, v, **options)[2])


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Tensor], dict, dict]:
    size = st.integers(1, 9)
    Hkv, T, S = draw(st.sampled_from([1, 2, 4])), draw(size), draw(size)
    is_causal = draw(st.booleans())
    S = T if is_causal else S
    cells = draw(st.lists(st.booleans(), min_size=T * S, max_size=T * S))
    options = {"mask": torch.tensor(cells).view(T, S), "is_causal": is_causal}
    return inputs(1, 4, Hkv, T, S), options, {"block_q": draw(size), "block_k": draw(size)}


@settings(max_examples=40)
@given(problems())
def test_equals_attention_for_drawn_sizes_tiles_and_masks(problem: tuple) -> None:
    tensors, options, tiles = problem
    assert_same(tensors, tiles, **options)


@settings(max_examples=40)
@given(problems(), st.data())
def test_rows_that_may_not_see_a_key_stay_bit_equal_when_it_changes(problem: tuple, data: st.DataObject) -> None:
    (q, k, v), options, tiles = problem
    j = data.draw(st.integers(0, k.shape[2] - 1), label="j")
    new = data.draw(st.sampled_from([0.0, -3.5, 1e30, 1.7e308]), label="new value")
    may = options["mask"] & (masks.causal(q.shape[2]) if options["is_causal"] else torch.tensor(True))
    blind = ~may[:, j]
    k2, v2 = k.detach().clone(), v.detach().clone()
    k2[:, :, j], v2[:, :, j] = new, new
    outs = [tiled.attention(q.detach(), *kv, **options, **tiles) for kv in ((k.detach(), v.detach()), (k2, v2))]
    assert_close(outs[1][:, :, blind], outs[0][:, :, blind], rtol=0, atol=0)


@pytest.mark.parametrize("big", [1e4, 1e30])
@pytest.mark.parametrize("through", ["mask", "score_bias", "is_causal"])
def test_large_finite_values_that_are_hidden_do_not_leak_into_outputs_or_gradients(through: str, big: float) -> None:
    may = masks.causal(T)
    hidden = {
        "mask": {"mask": may},
        "score_bias": {"score_bias": torch.zeros(T, T).masked_fill(~may, OFF)},
        "is_causal": {"is_causal": True},
    }[through]

    def run(last: float) -> dict[str, Tensor]:
        q, k, v = (x.detach() for x in inputs(S=T, dtype=torch.float32))
        k[:, :, -1], v[:, :, -1] = last, -last
        tensors = leaves(q, k, v)
        return with_gradients(tiled.attention(*tensors, **hidden, **SMALL)[:, :, :-1], tensors)

    assert_close(run(big), run(1.0), rtol=0, atol=0)


def test_a_hidden_score_that_overflows_does_not_leak() -> None:
    q, k, v = (x.detach() for x in inputs(S=T, dtype=torch.float32))
    k2 = k.clone()
    k2[:, :, -1] = 3e38
    bias = torch.zeros(T, T).masked_fill(~masks.causal(T), OFF)
    for options in ({"mask": masks.causal(T)}, {"score_bias": bias}, {"is_causal": True}):
        before, after = (tiled.attention(q, x, v, **options, **SMALL)[:, :, :-1] for x in (k, k2))
        assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_behind_a_mask_go_where_they_go_in_attention(bad: float) -> None:
    q, k, v = (x.detach() for x in inputs(S=T))
    v[:, :, -1] = bad
    assert tiled.attention(q, k, v, mask=masks.causal(T), **SMALL)[:, :, :-1].isnan().all()
    # with is_causal, only from tiles that the diagonal crosses: rows 0 to 3 are whole tiles before the last key
    reached = tiled.attention(q, k, v, is_causal=True, block_q=2, block_k=1)
    assert reached[:, :, :-1].isfinite().all()
    # in a key that is hidden from all it reaches only the gradient of q
    q, k, v = inputs()
    with torch.no_grad():
        k[:, :, -1] = bad
    for attend, tiles in ((explicit, {}), (tiled.attention, SMALL)):
        got = with_gradients(attend(q, k, v, mask=torch.arange(S) < S - 1, **tiles), [q, k, v])
        assert [name for name, x in got.items() if not x.isfinite().all()] == ["q"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["q", "k", "v", "score_bias"])
@pytest.mark.parametrize("through", ["mask", "score_bias", "both", "is_causal"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_gradients_hold_nan_and_infinity_where_those_of_attention_do(
    n: int, through: str, where: str, bad: float
) -> None:
    for seed in range(3):
        hidden = numbers(n, n, seed=4).masked_fill(bools(n, n, seed=seed + (n > 1)), OFF)
        options = {
            "mask": {"mask": bools(n, n, seed=seed)},
            "score_bias": {"score_bias": hidden},
            "both": {"mask": bools(n, n, seed=seed + 9), "score_bias": hidden},
            "is_causal": {"is_causal": True},
        }[through]
        given = [x.detach() for x in inputs(H=2, Hkv=1, T=n, S=n)]
        given.append(options.get("score_bias", torch.zeros(n, n, dtype=torch.float64)))
        {"q": given[0], "k": given[1], "v": given[2], "score_bias": given[3]}[where][..., seed % n, :] = bad
        needed = leaves(*given)
        options["score_bias"] = needed[3]
        want = with_gradients(explicit(*needed[:3], **options), needed)
        for tiles in ({}, {} if through == "is_causal" else SMALL):  # skipped tiles let nothing through
            got = with_gradients(tiled.attention(*needed[:3], **options, **tiles), needed)
            for name, x in want.items():
                finite = x.isfinite()
                assert torch.equal(got[name].isfinite(), finite), name
                assert_close(got[name][finite], x[finite])


def test_nan_behind_a_mask_stays_out_of_the_gradients_of_what_is_hidden() -> None:
    q, k, v = leaves(*torch.ones(3, 1, 1, 1, 1))
    with torch.no_grad():
        v.fill_(math.nan)
    got = with_gradients(tiled.attention(q, k, v, mask=torch.tensor([[False]])), [q, k, v])
    assert (got["q"].item(), got["k"].item()) == (0, 0)
    for bad in (math.nan, math.inf):
        q, k, v = inputs(T=2, S=2)
        with torch.no_grad():
            v[:, :, 1] = bad
        got = with_gradients(tiled.attention(q, k, v, mask=torch.tensor([True, False])), [q, k, v])
        assert not got["k"][:, :, 1].any()


# Rows that see nothing, and sizes of nothing


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("through", ["mask", "score_bias", "both", "is_causal"])
def test_a_row_that_sees_nothing_is_zero_and_so_is_its_gradient(through: str, dtype: torch.dtype) -> None:
    blind = 2
    may, hidden = torch.ones(T, T, dtype=torch.bool), torch.zeros(T, T, dtype=dtype)
    if through == "is_causal":
        may[blind, : blind + 1] = False
    else:  # "both": neither the mask nor the bias hides the row by itself
        may[blind] = torch.arange(T) < 3 if through == "both" else False
        hidden[blind, :3] = OFF
        hidden[blind, 3:] = 0 if through == "both" else OFF
    (bias,) = leaves(hidden)
    options = {"mask": {"mask": may}, "score_bias": {"score_bias": bias}, "both": {"mask": may, "score_bias": bias}}
    tensors = inputs(S=T, dtype=dtype)
    out = tiled.attention(*tensors, **options.get(through, {"mask": may, "is_causal": True}), **SMALL)
    assert not out[:, :, blind].any()
    assert (out[:, :, [0, 1, 3, 4]] != 0).any(-1).all()
    needed = [*tensors, bias] if through in ("score_bias", "both") else tensors
    for x in torch.autograd.grad(out[:, :, blind].sum(), needed, retain_graph=True):
        assert not x.any()
    grads = torch.autograd.grad(out.square().sum(), needed)
    assert all(x.isfinite().all() for x in grads)
    assert not grads[0][:, :, blind].any()
    assert (grads[0][:, :, [1, 3, 4]] != 0).any(-1).all()


@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min])
def test_rows_with_a_large_finite_bias_have_right_gradients(fill: float) -> None:
    bias = torch.zeros(T, S)
    bias[1] = fill  # beside it, float32 loses the scores, and log(total) in a logsumexp
    q, k, v = inputs(dtype=torch.float32)
    assert_same([q, k, v], SMALL, score_bias=bias)


@pytest.mark.parametrize("kind", ["plain", "mask", "score_bias", "is_causal", "dropout"])
@pytest.mark.parametrize(
    ("B", "H", "T", "S"), [(2, 3, 5, 0), (2, 3, 0, 7), (2, 3, 0, 0), (0, 3, 5, 7), (2, 0, 5, 7), (2, 3, 1, 1)]
)
def test_empty_and_smallest_sizes(kind: str, B: int, H: int, T: int, S: int) -> None:
    S = T if kind == "is_causal" else S
    for Hkv in {H, min(H, 1)}:
        tensors = inputs(B, H, Hkv, T, S)
        options = {
            "mask": torch.ones(T, S, dtype=torch.bool) if kind == "mask" else None,
            "score_bias": torch.zeros(T, S, requires_grad=True) if kind == "score_bias" else None,
            "is_causal": kind == "is_causal",
            "dropout_p": 0.5 if kind == "dropout" else 0.0,
        }
        out = tiled.attention(*tensors, **options, **SMALL)
        assert out.shape == (B, H, T, DV)
        if S == 0:
            assert not out.any()
        if S == 1 and kind != "dropout":  # every weight is 1
            assert_close(out, tensors[2].expand(B, H, S, DV))
        out.sum().backward()
        for x in (*tensors, options["score_bias"]):
            assert x is None or (x.grad.shape == x.shape and x.grad.isfinite().all())


# Types and layouts


@pytest.mark.parametrize("kind", ["plain", "mask", "score_bias", "is_causal"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_in_half_precision_the_error_is_at_most_twice_that_of_attention(dtype: torch.dtype, kind: str) -> None:
    many = 20 * B  # the largest error of one small draw says little
    low = inputs(many, 6, 2, S, S, dtype=dtype)
    exact = leaves(*(x.double() for x in low))
    (bias,) = leaves(numbers(6, 1, S, seed=4, dtype=dtype))
    options = {
        "mask": {"mask": masks.band(S, 2, 1)},
        "score_bias": {"score_bias": bias},
        "is_causal": {"is_causal": True},
    }
    options = options.get(kind, {})
    needed = [bias] if kind == "score_bias" else []
    ours = with_gradients(tiled.attention(*low, **options, **SMALL), [*low, *needed])
    theirs = with_gradients(explicit(*low, **options), [*low, *needed])
    truth = with_gradients(explicit(*exact, **options), [*exact, *needed])
    for name, x in ours.items():
        assert x.dtype == dtype
        error, allowed = ((y.double() - truth[name].double()).abs().max() for y in (x, theirs[name]))
        assert error <= 2 * allowed, f"{name}: error {error:.2e}, that of attention {allowed:.2e}"
        assert error > 0 or name == "score_bias"


@pytest.mark.unchecked
def test_sums_over_tiles_are_kept_in_float32_for_half_precision() -> None:
    dtype, n = torch.bfloat16, 512  # counting by ones, bfloat16 stops at 256
    one, many = torch.zeros(1, 1, 1, 1, dtype=dtype), torch.zeros(1, 1, n, 1, dtype=dtype)
    v = (torch.arange(n) >= n // 2).to(dtype).view(1, 1, n, 1)
    assert_close(tiled.attention(one, many, v, block_k=1), torch.full_like(one, 0.5), rtol=0, atol=0)
    q, k, v = leaves(many, one, one + 1)
    tiled.attention(q, k, v, block_q=1).sum().backward()
    assert_close(v.grad, torch.full_like(v, n), rtol=0, atol=0)


def test_large_queries_stay_in_range_in_float16() -> None:
    x = torch.full((1, 1, 1, 64), 40.0, dtype=torch.float16)  # q.k = 102,400 overflows float16
    assert_close(tiled.attention(x, x, x, scale=1.0), x, rtol=0, atol=0)


@pytest.mark.parametrize("bias", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_results_have_the_type_of_q_and_gradients_that_of_their_input(dtype: torch.dtype, bias: torch.dtype) -> None:
    tensors = [*inputs(dtype=dtype), numbers(T, 1, dtype=bias).requires_grad_()]
    out = tiled.attention(*tensors[:3], score_bias=tensors[3], **SMALL)
    assert out.dtype == dtype
    out.sum().backward()
    assert [x.grad.dtype for x in tensors] == [x.dtype for x in tensors]


@pytest.mark.parametrize("Hkv", [2, 6])
def test_layout_in_memory_does_not_matter_and_inputs_are_left_alone(Hkv: int) -> None:
    tensors = [x.detach() for x in inputs(H=6, Hkv=Hkv)]
    mask, bias = bools(T, S), numbers(6, T, S, seed=4)
    want = with_gradients(tiled.attention(*(x := leaves(*tensors, bias))[:3], mask=mask, score_bias=x[3], **SMALL), x)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (*tensors, bias)]  # as split from heads
    strided = [torch.stack([x, x + 1], dim=-1)[..., 0] for x in (*tensors, bias)]
    for other in (turned, strided):
        assert not any(x.is_contiguous() for x in other)
        copies = [x.clone() for x in other]
        needed = [x.requires_grad_() for x in other]
        out = tiled.attention(*needed[:3], mask=mask.T.contiguous().T, score_bias=needed[3], **SMALL)
        assert_close(with_gradients(out, needed), want)
        assert_close([x.detach() for x in other], copies, rtol=0, atol=0)


def test_expanded_inputs_and_their_gradients() -> None:
    one = leaves(numbers(1, 1, T, D), numbers(1, 1, S, D, seed=1), numbers(1, 1, S, DV, seed=2), numbers(1, S, seed=3))
    sizes = (B, H, -1, -1)

    def run(attend, **tiles: int) -> dict[str, Tensor]:
        q, k, v, bias = one
        mask = bools(S).expand(B, H, T, S)
        out = attend(*(x.expand(sizes) for x in (q, k, v)), mask=mask, score_bias=bias.expand(B, H, T, S), **tiles)
        return with_gradients(out, one)

    assert_close(run(tiled.attention, **SMALL), run(explicit))


# In the module


@pytest.mark.parametrize("options", [{}, {"mask": bools(B, 1, S, S)}, {"is_causal": True}], ids=["", "mask", "causal"])
@pytest.mark.parametrize("Hkv", [1, 3])
def test_as_a_backend_of_the_module(Hkv: int, options: dict) -> None:
    module = MultiHeadAttention(12, 3, num_kv_heads=Hkv, backend=tiled.attention, dtype=torch.float64)
    (x,) = leaves(numbers(B, S, 12))
    parameters = [x for name, x in module.named_parameters() if name != "k_proj.bias"]  # its gradient is rounding
    got = torch.autograd.grad(module(x, **options).square().sum(), [x, *parameters])
    module.backend = "explicit"
    assert_close(got, torch.autograd.grad(module(x, **options).square().sum(), [x, *parameters]))


def test_dropout_of_the_module_acts_in_training_alone() -> None:
    module = MultiHeadAttention(12, 3, dropout=0.5, backend=tiled.attention)
    x = numbers(B, S, 12, dtype=torch.float32)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert_close(module(x), module.trace(x).out)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.parametrize("kind", ["plain", "mask", "score_bias", "is_causal", "dropout"])
def test_cuda(kind: str) -> None:
    options: dict = {"is_causal": kind == "is_causal", "mask": bools(S, S).cuda() if kind == "mask" else None}
    tensors = [x.detach().cuda().requires_grad_() for x in inputs(H=6, Hkv=2, T=S)]
    if kind == "score_bias":
        options["score_bias"] = numbers(6, S, S).cuda()
    if kind == "dropout":
        outs = []
        for _ in range(2):
            torch.manual_seed(0)
            outs.append(with_gradients(tiled.attention(*tensors, dropout_p=0.5, **SMALL), tensors))
        assert_close(*outs, rtol=0, atol=0)
        return
    got = with_gradients(tiled.attention(*tensors, **options, **SMALL), tensors)
    there = {name: x.cpu() if isinstance(x, Tensor) else x for name, x in options.items()}
    low = leaves(*(x.cpu() for x in tensors))
    assert_close({name: x.cpu() for name, x in got.items()}, with_gradients(explicit(*low, **there), low))
