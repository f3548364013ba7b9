"""Attention on one kernel: the numbers and gradients of `attention`, or a refusal with its reason."""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from mha_course import MultiHeadAttention, backends, masks
from mha_course import attention as explicit
from mha_course.backends import attend, which
from tests import reference

B, H, T, S, D = 2, 6, 5, 7, 11
BACKENDS = ("math", "flash")
F64 = torch.float64


def numbers(*shape, seed=0, dtype=F64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def qkv(T=T, S=S, Hkv=H, D=D, Dv=None, dtype=F64):
    shapes = (B, H, T, D), (B, Hkv, S, D), (B, Hkv, S, Dv or D)
    return [numbers(*shape, seed=i, dtype=dtype).requires_grad_() for i, shape in enumerate(shapes)]


def exact(q, k, v, *, is_causal=False, **options):
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    if is_causal:
        past = masks.causal(q.shape[2])
        options["mask"] = past if options.get("mask") is None else options["mask"] & past
    return explicit(q, k, v, **options).out


def with_gradients(fn, leaves, **options):
    out = fn(*leaves[:3], **options)
    return out, torch.autograd.grad(out, leaves, numbers(*out.shape, seed=9).to(out))


EMPTY = torch.arange(T)[:, None] + torch.zeros(S) != 2  # row 2 sees nothing
PADDING = masks.padding(torch.tensor([4, 0]), S)  # the second sample sees nothing
BIAS = numbers(H, T, S, seed=5)
OPTIONS = {
    "plain": {},
    "scale": {"scale": -0.3},
    "mask of one axis": {"mask": torch.arange(S) > 2},
    "empty row": {"mask": EMPTY},
    "padding": {"mask": PADDING},
    "mask (H, 1, S)": {"mask": numbers(H, 1, S) > -0.5},
    "bias": {"score_bias": BIAS},
    "bias (1,)": {"score_bias": BIAS[0, 0, :1]},
    "bias of -inf": {"score_bias": BIAS.masked_fill(~EMPTY, -math.inf)},
    "bias and mask": {"score_bias": BIAS, "mask": PADDING & EMPTY, "scale": 0.7},
}


@pytest.mark.parametrize("known_zero", [("cpu",), ()], ids=["as on a CPU", "as elsewhere"])
@pytest.mark.parametrize("Hkv", [H, 2, 1])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_and_gradients_are_those_of_attention(backend, options, Hkv, known_zero, monkeypatch):
    monkeypatch.setattr(attend, "KNOWN_ZERO", known_zero)
    leaves = qkv(Hkv=Hkv)
    want = with_gradients(exact, leaves, **options)
    assert_close(with_gradients(backends.attention, leaves, backend=backend, **options), want)
    assert which(backends.attention, *leaves, backend=backend, **options) == {backend: 1}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("extra", ["none", "mask", "score_bias", "both"])
def test_is_causal_is_anded_with_a_mask(extra, backend):
    options = {}
    if extra in ("mask", "both"):
        options["mask"] = masks.padding(torch.tensor([T, 2]), T) & (torch.arange(T)[:, None] != 3)
    if extra in ("score_bias", "both"):
        options["score_bias"] = numbers(H, T, T, seed=5)
    leaves = qkv(S=T, Hkv=2)
    want = with_gradients(exact, leaves, is_causal=True, **options)
    assert_close(with_gradients(backends.attention, leaves, is_causal=True, backend=backend, **options), want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [0.0, -0.3, 1e-3])
def test_is_causal_with_a_scale_that_is_not_positive(scale, backend):
    leaves = qkv(S=T)  # PyTorch's own flash kernel gives NaN here
    want = with_gradients(exact, leaves, scale=scale, is_causal=True)
    assert_close(with_gradients(backends.attention, leaves, scale=scale, is_causal=True, backend=backend), want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_the_loops(backend):
    q, k, v = (x.detach() for x in qkv())
    options = {"mask": EMPTY & PADDING, "score_bias": BIAS, "scale": 0.4}
    want = reference.attention(q, k, v, **options)[2]
    assert_close(backends.attention(q, k, v, backend=backend, **options), want)


@pytest.mark.parametrize("known_zero", [("cpu",), ()], ids=["as on a CPU", "as elsewhere"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["mask", "score_bias"])
def test_a_row_that_sees_nothing_is_exactly_0_with_gradient_0(kind, backend, known_zero, monkeypatch):
    monkeypatch.setattr(attend, "KNOWN_ZERO", known_zero)
    leaves = qkv()
    hides = {"mask": EMPTY} if kind == "mask" else {"score_bias": BIAS.masked_fill(~EMPTY, -math.inf)}
    out, (grad, _, _) = with_gradients(backends.attention, leaves, backend=backend, **hides)
    assert (out[:, :, 2] == 0).all()
    assert (grad[:, :, 2] == 0).all()
    assert (out[:, :, [0, 1, 3, 4]] != 0).any(-1).all()


def test_elsewhere_no_kernel_meets_an_empty_row(monkeypatch):
    monkeypatch.setattr(attend, "KNOWN_ZERO", ())
    seen = []

    def sdpa(q, k, v, *, attn_mask, **options):
        seen.append(attn_mask)
        return torch.full_like(q, math.nan)

    monkeypatch.setattr(attend.F, "scaled_dot_product_attention", sdpa)
    q, k, v = qkv()
    bias = BIAS.masked_fill(~EMPTY, -math.inf)
    for hides in ({"mask": EMPTY}, {"score_bias": bias}, {"score_bias": BIAS, "mask": EMPTY}):
        out = backends.attention(q, k, v, backend="math", **hides)
        assert (out[:, :, 2] == 0).all()
        assert out[:, :, [0, 1, 3, 4]].isnan().all()
    for added in seen:
        may = added if added.dtype == torch.bool else added > -math.inf
        assert may.any(-1).all()


def test_on_a_cpu_a_mask_is_passed_on_without_a_copy(monkeypatch):
    seen = []

    def sdpa(q, k, v, *, attn_mask, **options):
        seen.append(attn_mask)
        return q

    monkeypatch.setattr(attend.F, "scaled_dot_product_attention", sdpa)
    for added in ({"mask": EMPTY}, {"score_bias": BIAS}):
        backends.attention(*qkv(), backend="math", **added)
    assert [x.data_ptr() for x in seen] == [EMPTY.data_ptr(), BIAS.data_ptr()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_may_have_another_type(backend):
    q, k, v = (x.detach().float() for x in qkv())
    want = exact(q, k, v, score_bias=BIAS.float())
    assert_close(backends.attention(q, k, v, score_bias=BIAS, backend=backend), want)
    assert_close(
        backends.attention(q, k, v, score_bias=BIAS.to(torch.bfloat16), backend=backend), want, atol=0.05, rtol=0
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [{"D": 1}, {"T": 1}, {"S": 1}, {"S": 0}, {"T": 0}, {"Hkv": 1, "T": 1}], ids=str)
def test_small_sizes(sizes, backend):
    leaves = qkv(**sizes)
    want = with_gradients(exact, leaves)
    assert_close(with_gradients(backends.attention, leaves, backend=backend), want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_in_low_precision_the_error_is_at_most_twice_that_of_attention(dtype, backend):
    rounded = [x.detach().to(dtype) for x in qkv()]
    options = {"mask": EMPTY, "score_bias": BIAS.float()}
    truth = exact(*(x.double() for x in rounded), **{**options, "score_bias": BIAS.float().to(dtype).double()})
    got = backends.attention(*rounded, backend=backend, **options)
    assert got.dtype == dtype
    error, allowed = ((x.double() - truth).norm() for x in (got, exact(*rounded, **options)))
    assert error <= 2 * allowed


def test_widths_that_differ_are_for_math():
    leaves = qkv(Dv=13, Hkv=2)
    want = with_gradients(exact, leaves)
    assert_close(with_gradients(backends.attention, leaves, backend="math"), want)
    with pytest.raises(backends.Refused, match=r"wide as the keys \(Dv = D\)\. Of the others, math would$"):
        backends.attention(*leaves, backend="flash")


def test_axes_in_another_order_are_taken_and_a_stride_is_refused():
    q, k, v = qkv()
    turned = numbers(B, T, H, D).transpose(1, 2)
    strided = numbers(B, H, D, S).transpose(2, 3)
    for backend in BACKENDS:
        assert_close(backends.attention(turned, k, v, backend=backend), exact(turned, k, v))
    assert_close(backends.attention(q, strided, v, backend="math"), exact(q, strided, v))
    with pytest.raises(
        backends.Refused, match=r"last axis of q, k and v to have stride 1\. Of the others, math would$"
    ):
        backends.attention(q, strided, v, backend="flash")


def test_a_learned_bias_is_for_math():
    bias = BIAS.clone().requires_grad_()
    leaves = [*qkv(), bias]
    want = with_gradients(lambda q, k, v: exact(q, k, v, score_bias=bias), leaves)
    assert_close(with_gradients(lambda *x: backends.attention(*x, score_bias=bias, backend="math"), leaves), want)
    with pytest.raises(backends.Refused, match=r"a mask that needs a gradient\. Of the others, math would$"):
        backends.attention(*leaves[:3], score_bias=bias, backend="flash")
    with pytest.raises(backends.Refused, match=r"flash.* does not support dropout"):  # PyTorch's own reason goes first
        backends.attention(*leaves[:3], score_bias=bias, dropout_p=0.5, backend="flash")
    with torch.no_grad():
        assert_close(backends.attention(*leaves[:3], score_bias=bias.detach(), backend="flash"), want[0])


def test_dropout_keeps_the_mean_and_is_for_math():
    q, k, v = (x.detach() for x in qkv())
    torch.manual_seed(0)
    drawn = torch.stack([backends.attention(q, k, v, dropout_p=0.5, backend="math") for _ in range(500)])
    assert_close(drawn.mean(0), exact(q, k, v), atol=0.3, rtol=0)
    assert (drawn.std(0) > 0.05).all()
    with pytest.raises(backends.Refused, match=r"does not support dropout\. Of the others, math would$"):
        backends.attention(q, k, v, dropout_p=0.5, backend="flash")


def test_a_kernel_that_the_device_lacks_names_those_it_has():
    with pytest.raises(
        backends.Refused, match=r"not exist for this device\. Of the others, math, flash would$"
    ) as caught:
        backends.attention(*qkv(Hkv=2), mask=PADDING, score_bias=BIAS, backend="cudnn")
    assert (caught.value.backend, caught.value.reason) == ("cudnn", "does not exist for this device")


def test_after_a_refusal_only_a_corner_is_tried(monkeypatch):
    shapes = []

    def tried(q, k, v, *, attn_mask, **options):
        shapes.append([tuple(x.shape) for x in (q, k, v, attn_mask)])
        return backends.Support({"math": "no", "flash": None, "efficient": None}, None)

    monkeypatch.setattr(attend, "supported_for", tried)
    q, k, v = numbers(B, H, 19, D), numbers(B, 2, 23, D), numbers(B, 2, 23, D)
    with pytest.raises(backends.Refused, match=r"Of the others, flash would$"):
        backends.attention(q, k, v, mask=torch.ones(B, 1, 19, 23).bool(), backend="efficient")
    assert shapes == [[(1, H, 16, D), (1, 2, 16, D), (1, 2, 16, D), (1, 1, 16, 16)]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_as_backend_of_the_module(backend):
    torch.manual_seed(0)
    module = MultiHeadAttention(12, 6, num_kv_heads=2, dropout=0.5, backend="explicit").double().eval()
    x, mask = numbers(B, T, 12), masks.padding(torch.tensor([T, 0]), T)
    want = module(x, mask=mask, is_causal=True)
    module.backend = partial(backends.attention, backend=backend)
    assert_close(module(x, mask=mask, is_causal=True), want)
    assert which(module, x) == {backend: 1}
    module.train()
    if backend == "flash":
        with pytest.raises(backends.Refused, match="dropout"):
            module(x)
    else:
        first = module(x)
        assert (first != module(x)).any()


@pytest.mark.unchecked
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_as_one_graph_it_gives_the_same_on_the_same_kernel(backend):
    module = MultiHeadAttention(12, 6, backend=partial(backends.attention, backend=backend)).double()
    x = numbers(B, T, 12)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x, is_causal=True), module(x, is_causal=True))
    assert which(compiled, x, is_causal=True) == {backend: 1}
    torch._dynamo.reset()


BAD = [
    ({"q": [1.0]}, TypeError, "q must be a tensor, got list"),
    ({"k": torch.ones(B, H, S, D).int()}, TypeError, r"k must be floating point, got torch\.int32"),
    ({"v": torch.ones(B, H, S, D).half()}, TypeError, r"v must have the type of q, torch\.float64, got torch\.float16"),
    ({"mask": torch.ones(T, S)}, TypeError, r"mask must be bool \(True = may attend\), got torch\.float32"),
    ({"score_bias": torch.ones(T, S).bool()}, TypeError, r"score_bias must be floating point, got torch\.bool"),
    ({"scale": "1"}, TypeError, "scale must be a number, got str"),
    ({"dropout_p": True}, TypeError, "dropout_p must be a number, got bool"),
    ({"is_causal": 1}, TypeError, "is_causal must be True or False, got int"),
    ({"q": torch.ones(H, T, D, dtype=F64)}, ValueError, r"q must have four axes .*, got \(6, 5, 11\)"),
    (
        {"q": torch.ones(B, H, T, 0, dtype=F64), "k": torch.ones(B, H, S, 0, dtype=F64)},
        ValueError,
        "width D of at least 1",
    ),
    ({"q": torch.ones(1, H, T, D, dtype=F64)}, ValueError, r"one batch size B, got q \(1, 6, 5, 11\)"),
    ({"k": torch.ones(B, H, S, 2, dtype=F64)}, ValueError, r"one width D, got .*k \(2, 6, 7, 2\)"),
    ({"v": torch.ones(B, H, 3, D, dtype=F64)}, ValueError, r"one length S, got .*v \(2, 6, 3, 11\)"),
    ({"k": torch.ones(B, 2, S, D, dtype=F64)}, ValueError, r"one number of heads Hkv, got .*k \(2, 2,"),
    (dict.fromkeys("kv", torch.ones(B, 4, S, D, dtype=F64)), ValueError, "Hkv, must divide those of q, H"),
    (dict.fromkeys("kv", torch.ones(B, 0, S, D, dtype=F64)), ValueError, "Hkv, must divide those of q, H"),
    ({"v": torch.ones(B, H, S, D, dtype=F64, device="meta")}, ValueError, "v must be on q's device, cpu, got meta"),
    ({"mask": torch.ones(T, S, device="meta").bool()}, ValueError, "mask must be on q's device, cpu, got meta"),
    ({"mask": torch.ones(B, S).bool()}, ValueError, r"mask must broadcast to \(\.\.\., T, S\) = \(2, 6, 5, 7\)"),
    ({"score_bias": torch.ones(S, T)}, ValueError, r"score_bias must broadcast to \(\.\.\., T, S\)"),
    ({"is_causal": True}, ValueError, "is_causal needs T = S, got T = 5 and S = 7"),
    ({"scale": math.nan}, ValueError, "scale must be finite, got nan"),
    ({"dropout_p": -0.1}, ValueError, r"dropout_p must lie in \[0, 1\], got -0\.1"),
    ({"backend": "sdpa"}, ValueError, "backend must be one of math, flash, efficient, cudnn, overrideable, got 'sdpa'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("wrong", "error", "match"), BAD, ids=[f"{'-'.join(w)} {i}" for i, (w, *_) in enumerate(BAD)])
def test_bad_input(wrong, error, match):
    given = dict(zip("qkv", qkv(), strict=True)) | {"backend": "math"} | wrong
    with pytest.raises(error, match=match):
        backends.attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)
