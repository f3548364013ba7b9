"""Performer: features by hand, their mean and variance, orthogonality, stability, masks, the error's slope."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from mha_course import MultiHeadAttention, masks
from mha_course.experiments.long import performer_error, uniform_error
from mha_course.linear import performer
from tests.linear.problems import DV, B, D, H, S, T, bools, inputs, leaves, numbers, relative

M = 19
FEATURES = numbers(M, D, seed=11)


def by_features(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """From all weights, as the definition has it and with nothing divided away."""

    def phi(x: Tensor) -> Tensor:
        x = x * scale**0.5
        return torch.stack([(x @ w - (x * x).sum(-1) / 2).exp() / M**0.5 for w in FEATURES], dim=-1)

    weights = torch.einsum("bhtm,bhsm->bhts", phi(q), phi(k)) * mask
    total = weights.sum(-1, keepdim=True)
    return weights / total.where(total > 0, 1.0) @ v


def test_log_features_by_hand() -> None:
    w = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    assert_close(performer.log_features(torch.tensor([3.0, 1.0]), w), torch.tensor([5.0 - 5.0, -1.0 - 5.0]))


@pytest.mark.parametrize("scale", [None, 0.9])
@pytest.mark.parametrize("shape", [None, (S,), (B, 1, 1, S), (B, H, 1, S)])
def test_equals_the_definition(shape: tuple[int, ...] | None, scale: float | None) -> None:
    q, k, v = inputs()
    mask = torch.ones(1, dtype=torch.bool) if shape is None else bools(*shape)
    given = {"mask": None if shape is None else mask, "scale": scale, "features": FEATURES}
    number = 1 / math.sqrt(D) if scale is None else scale
    assert_close(performer.attention(q, k, v, **given), by_features(q, k, v, mask, number))
    q = inputs(S)[0]
    want = by_features(q, k, v, mask & masks.causal(S), number)
    for chunk in (1, 3, 1000):
        assert_close(performer.attention(q, k, v, **given, is_causal=True, chunk=chunk), want)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradcheck(is_causal: bool) -> None:
    tensors = leaves(*(x[:1, :1, :5, :2] for x in inputs(S)))
    features = FEATURES[:3, :2]
    assert torch.autograd.gradcheck(
        lambda *x: performer.attention(*x, features=features, is_causal=is_causal, chunk=2), tensors
    )


def test_mean_and_variance_of_the_estimate() -> None:
    # Choromanski et al. 2021, lemma 2, for independent features
    x, y = 0.6 * numbers(D, seed=1), 0.6 * numbers(D, seed=2)
    exact = (x @ y).exp()
    variance = ((x + y).square().sum().exp() - 1) * exact**2
    for draw, smaller in (
        (lambda g: torch.randn(1000 * D, D, generator=g, dtype=torch.float64), 1.0),
        (orthogonal, 0.9),
    ):
        estimates = []
        for seed in range(40):
            w = draw(torch.Generator().manual_seed(seed))
            single = (performer.log_features(x, w) + performer.log_features(y, w)).exp()
            estimates.append(single.view(-1, D).mean(-1))  # of M = D features each
        estimates = torch.cat(estimates)
        error = (variance / D / len(estimates)).sqrt()
        assert_close(estimates.mean(), exact, rtol=0, atol=5 * error.item())
        ratio = (estimates.var() / (variance / D)).item()
        assert (0.9 < ratio < 1.1) if smaller == 1.0 else ratio < smaller


def orthogonal(generator: torch.Generator) -> Tensor:
    return performer.orthogonal_features(1000 * D, D, generator=generator, dtype=torch.float64)


def test_features_are_orthogonal_in_groups_and_as_long_as_normal_vectors() -> None:
    w = orthogonal(torch.Generator().manual_seed(0)).view(1000, D, D)
    products = w @ w.mT
    squares = products.diagonal(dim1=-2, dim2=-1)
    assert_close(products, torch.diag_embed(squares), rtol=0, atol=1e-12)
    # chi-squared with D degrees of freedom: mean D, variance 2 D
    assert_close(squares.mean().item(), float(D), rtol=0, atol=5 * (2 * D / 5000) ** 0.5)
    assert_close(squares.var().item(), 2.0 * D, rtol=0.15, atol=0)
    # every direction equally likely: each entry is normal, also those on the diagonal, whose sign QR fixes
    assert_close(w.mean(0), torch.zeros(D, D, dtype=torch.float64), rtol=0, atol=5 / 1000**0.5)
    assert_close(w.square().mean(0), torch.ones(D, D, dtype=torch.float64), rtol=0, atol=5 * (2 / 1000) ** 0.5)


def test_any_number_of_features_from_the_generator() -> None:
    for count in (1, D, D + 2):
        one, again, other = (
            performer.orthogonal_features(count, D, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
        )
        assert one.shape == (count, D)
        assert_close(one, again, rtol=0, atol=0)
        assert (one != other).all()
    assert performer.orthogonal_features(2, 3, dtype=torch.float64).dtype == torch.float64


def test_features_start_from_the_generator_of_torch() -> None:
    torch.manual_seed(3)
    one = performer.orthogonal_features(4, 3)
    assert_close(one, performer.orthogonal_features(4, 3, generator=torch.Generator().manual_seed(3)), rtol=0, atol=0)


def test_the_error_falls_with_one_over_the_root_of_the_features_if_q_and_k_are_short() -> None:
    def slope(spread: float, counts: list[int]) -> float:
        errors = performer_error(counts, spread, repeats=40).mean(axis=1)
        return float(np.polyfit(np.log(counts), np.log(errors), 1)[0])

    few, many = [256, 1024, 4096], [1024, 4096, 16384]
    assert abs(slope(0.25, few) + 0.5) < 0.04
    assert abs(slope(0.5, many) + 0.5) < 0.04
    assert abs(slope(0.5, few) + 0.5) < 0.1  # -0.44: still on its way to -0.5
    assert slope(1.0, few) > -0.25


def test_the_directions_are_turned_evenly() -> None:
    M, D = 3 * 5, 5
    features = performer.orthogonal_features(M, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    normal = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[0]
    directions = (features / features.norm(dim=1, keepdim=True)).unflatten(0, (3, 5))
    triangle = directions @ normal  # the one QR whose triangle has a positive diagonal is even (Mezzadri 2007)
    assert_close(triangle, triangle.triu())
    assert (triangle.diagonal(dim1=1, dim2=2) > 0).all()


def test_at_spread_1_thousands_of_features_do_worse_than_looking_at_nothing() -> None:
    assert performer_error([1024], 1.0).mean() > uniform_error(1.0).mean()
    assert performer_error([4096], 1.0, D=64, repeats=10).mean() > 1.5 * uniform_error(1.0, D=64, repeats=10).mean()
    assert performer_error([4096], 0.5).mean() < 0.2 * uniform_error(0.5).mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_large_queries_and_keys_do_not_overflow(dtype: torch.dtype) -> None:
    q, k, v = inputs(dtype=dtype)
    for factor in (10, 1000):
        out = performer.attention(factor * q, factor * k, v, features=FEATURES)
        assert out.dtype == dtype
        assert out.isfinite().all()
        assert (out.abs().amax((2, 3)) > 0).all()
    out = performer.attention(4 * q, 4 * k, v, features=FEATURES)
    exact = performer.attention(4 * q.double(), 4 * k.double(), v.double(), features=FEATURES)
    assert relative(out.double(), exact) < {torch.float32: 1e-5}.get(dtype, 1e-2)


def test_long_queries_and_keys_give_the_exact_numbers_in_float32() -> None:
    q, k, v = inputs(dtype=torch.float32)
    for of_q, of_k in ((100, 100), (1000, 3), (3, 100)):
        out = performer.attention(of_q * q, of_k * k, v, features=FEATURES)
        exact = performer.attention((of_q * q).double(), (of_k * k).double(), v.double(), features=FEATURES)
        assert (exact != 0).any(-1).all()
        assert relative(out.double(), exact) < 2e-4


@pytest.mark.parametrize("is_causal", [False, True])
def test_nan_in_a_hidden_key_reaches_nothing(is_causal: bool) -> None:
    q, k, v = inputs(S)
    options = {"features": FEATURES, "mask": torch.arange(S) != 5, "is_causal": is_causal}
    tensors = leaves(q, k, v)
    want = performer.attention(*tensors, **options)
    k[:, :, 5] = torch.nan
    others = leaves(q, k, v)
    got = performer.attention(*others, **options)
    assert_close(got, want, rtol=0, atol=0)
    assert_close(torch.autograd.grad(got.sum(), others), torch.autograd.grad(want.sum(), tensors), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_autocast_does_not_make_the_sums_coarser(is_causal: bool, dtype: torch.dtype) -> None:
    q, k, v = inputs(S, dtype=torch.float32)
    with torch.autocast("cpu", dtype):
        got = performer.attention(q, k, v, features=FEATURES, is_causal=is_causal)
    assert_close(got, performer.attention(q, k, v, features=FEATURES, is_causal=is_causal), rtol=0, atol=0)


def test_a_query_that_sees_nothing_gets_0() -> None:
    tensors = leaves(*inputs(S))
    out = performer.attention(*tensors, features=FEATURES, mask=torch.tensor(False))
    assert_close(out, torch.zeros(B, H, S, DV, dtype=torch.float64), rtol=0, atol=0)
    for grad in torch.autograd.grad(out.sum(), tensors):
        assert_close(grad, torch.zeros_like(grad), rtol=0, atol=0)
    out = performer.attention(*tensors, features=FEATURES, mask=torch.arange(S) > 1, is_causal=True)
    assert_close(out[:, :, :2], torch.zeros(B, H, 2, DV, dtype=torch.float64), rtol=0, atol=0)


@pytest.mark.parametrize(("T", "S"), [(0, 0), (0, 3), (1, 1), (3, 0)])
def test_lengths_zero_and_one(T: int, S: int) -> None:
    q, k, v = inputs(T, S)
    out = performer.attention(q, k, v, features=FEATURES)
    assert out.shape == (B, H, T, DV)
    if T == S:
        assert_close(out, v)
        assert_close(performer.attention(q, k, v, features=FEATURES, is_causal=True), v)


@settings(max_examples=30)
@given(st.integers(0, S - 1), st.sampled_from([1, 4, 64]), st.sampled_from([0.0, -3.5, 7.0, 1e3]))
def test_rows_before_a_key_stay_bit_equal_when_it_changes(j: int, chunk: int, new: float) -> None:
    q, k, v = inputs(S, dtype=torch.float32)
    options = {"features": FEATURES, "is_causal": True, "chunk": chunk}
    before = performer.attention(q, k, v, **options)
    k[:, :, j], v[:, :, j] = new, 3.0
    after = performer.attention(q, k, v, **options)
    assert_close(after[:, :, :j], before[:, :, :j], rtol=0, atol=0)


def test_as_a_backend() -> None:
    module = MultiHeadAttention(30, 6, dtype=torch.float64)
    x = numbers(B, T, 30)
    heads = performer.attention(*module.trace(x)[:3], features=FEATURES, is_causal=True)
    module.backend = lambda *args, **options: performer.attention(*args, features=FEATURES, **options)
    assert_close(module(x, is_causal=True), module.out_proj(heads.transpose(1, 2).flatten(2)))


q, k, v = inputs(5, 5, dtype=torch.float32)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"q": None}, TypeError, r"^q must be a tensor, got NoneType$"),
        ({"mask": torch.ones(5)}, TypeError, r"^mask must be bool"),
        ({"scale": "1"}, TypeError, r"^scale must be a number, got str$"),
        ({"is_causal": None}, TypeError, r"^is_causal must be True or False, got NoneType$"),
        ({"features": None}, TypeError, r"^features must be a floating point tensor \(M, D\), got NoneType$"),
        ({"features": FEATURES.long()}, TypeError, r"^features must be .* got torch\.int64$"),
        ({"chunk": 2.0}, TypeError, r"^chunk must be an integer, got float$"),
        ({"q": q[0], "k": k[0], "v": v[0]}, ValueError, r"must have four axes"),
        ({"v": v[:, :, 1:]}, ValueError, r"one length S, got"),
        ({"mask": bools(4)}, ValueError, r"^mask must broadcast"),
        ({"mask": masks.causal(5)}, ValueError, r"^mask must be the same for all queries"),
        ({"score_bias": torch.zeros(5)}, ValueError, r"^score_bias must be None: Performer"),
        ({"dropout_p": 0.1}, ValueError, r"^dropout_p must be 0\.0: Performer"),
        ({"q": q[:, :, :3], "is_causal": True}, ValueError, r"^is_causal needs T = S, got T = 3 and S = 5$"),
        ({"scale": 0.0}, ValueError, r"^scale must be above 0 and finite, got 0\.0$"),
        ({"scale": -1.0}, ValueError, r"^scale must be above 0 and finite, got -1\.0$"),
        ({"scale": math.inf}, ValueError, r"^scale must be above 0 and finite, got inf$"),
        ({"scale": math.nan}, ValueError, r"^scale must be above 0 and finite, got nan$"),
        ({"features": FEATURES[:, 1:]}, ValueError, r"^features must be \(M, D\) with D = 5, got \(19, 4\)$"),
        ({"features": FEATURES[0]}, ValueError, r"^features must be \(M, D\) with D = 5, got \(5,\)$"),
        ({"features": FEATURES[:0]}, ValueError, r"^features must be \(M, D\) with D = 5, got \(0, 5\)$"),
        ({"features": FEATURES.to("meta")}, ValueError, r"^features must be on q's device, cpu, got meta$"),
        ({"chunk": 0}, ValueError, r"^chunk must be at least 1, got 0$"),
    ],
)
def test_bad_input(change: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        performer.attention(**{"q": q, "k": k, "v": v, "features": FEATURES, **change})


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("count", "width", "error", "match"),
    [
        (2.0, 3, TypeError, r"^M must be an integer, got float$"),
        (2, None, TypeError, r"^D must be an integer, got NoneType$"),
        (0, 3, ValueError, r"^M must be at least 1, got 0$"),
        (2, 0, ValueError, r"^D must be at least 1, got 0$"),
    ],
)
def test_bad_sizes(count, width, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        performer.orthogonal_features(count, width)
