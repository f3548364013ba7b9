"""Biases by distance: published slopes and buckets, loops, parts of the square, every precision, bad input."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from mha_course import attention
from mha_course.masks import causal
from mha_course.positions import T5Bias, alibi, alibi_slopes, t5_buckets
from tests.positions import loops

H, T, S = 3, 5, 7
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

# ALiBi


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (4, [2, 4, 6, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (16, [i / 2 for i in range(1, 17)]),
    ],
)
def test_published_slopes(heads, exponents):
    slopes = alibi_slopes(heads)
    assert slopes.dtype == torch.float32
    assert_close(slopes, torch.tensor([2.0**-e for e in exponents]))


@pytest.mark.parametrize("heads", range(1, 71))
def test_slopes_equal_the_published_code_and_the_papers_sentence(heads):
    assert_close(alibi_slopes(heads), torch.tensor(loops.slopes(heads)))
    paper = torch.tensor([2 ** (-8 * i / heads) for i in range(1, heads + 1)])
    assert_close(alibi_slopes(heads, rule="paper"), paper)
    if heads.bit_count() == 1:
        assert_close(alibi_slopes(heads), paper)


def test_slopes_are_float32_whatever_the_default():
    try:
        torch.set_default_dtype(torch.float64)
        assert (
            alibi_slopes(6).dtype == alibi_slopes(6, rule="paper").dtype == alibi(2, num_heads=6).dtype == torch.float32
        )
    finally:
        torch.set_default_dtype(torch.float32)


def test_alibi_by_hand():
    # two heads: slopes 1/16 and 1/256
    distances = torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]])
    assert_close(alibi(3, num_heads=2), torch.stack([-distances / 16, -distances / 256]))
    assert_close(alibi(1, 4, num_heads=1, offset=3), torch.tensor([[[-3.0, -2, -1, 0]]]) / 256)
    assert not alibi(3, num_heads=2).signbit()[:, range(3), range(3)].any()  # 0, not -0: it is shown in a lesson


@given(
    st.integers(0, 6), st.integers(0, 8), st.integers(1, 13), st.integers(0, 10**5), st.sampled_from(["code", "paper"])
)
def test_alibi_equals_the_loop(T, S, heads, offset, rule):
    slopes = loops.slopes(heads) if rule == "code" else [2 ** (-8 * i / heads) for i in range(1, heads + 1)]
    want = [[[-slope * abs(t + offset - s) for s in range(S)] for t in range(T)] for slope in slopes]
    got = alibi(T, S, num_heads=heads, offset=offset, rule=rule)
    assert_close(got, torch.tensor(want).view(heads, T, S))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_alibi_is_rounded_once(dtype):
    bias = alibi(1, 3, num_heads=12, offset=5001, dtype=dtype)
    assert bias.dtype == dtype
    assert_close(bias, alibi(1, 3, num_heads=12, offset=5001).to(dtype), rtol=0, atol=0)


def test_alibi_with_a_cache_equals_the_last_rows():
    whole = alibi(S, num_heads=H)
    assert_close(alibi(T, S, num_heads=H, offset=S - T), whole[:, S - T :], rtol=0, atol=0)


def test_a_query_that_matches_all_keys_alike_fades_by_its_slope():
    # queries 0, so scores are the bias: neighbouring weights of head h differ by the factor e^-slope_h
    zeros = torch.zeros(2, H, T, 4)
    weights = attention(zeros, zeros, zeros, mask=causal(T), score_bias=alibi(T, num_heads=H)).weights
    for h, slope in enumerate(alibi_slopes(H)):
        for t in range(1, T):
            assert_close(weights[1, h, t, :t] / weights[1, h, t, 1 : t + 1], (-slope).exp().expand(t))


# T5


BEHIND = [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1)]
BEHIND += [(8, 4), (9, 4), (10, 7), (11, 9), (12, 14), (13, 18), (14, 27), (15, 49)]
CAUSAL = [(i, 1) for i in range(16)] + [(16, 3), (17, 2), (18, 3), (19, 3), (20, 4), (21, 4), (22, 5), (23, 6)]
CAUSAL += [(24, 6), (25, 7), (26, 8), (27, 10), (28, 10), (29, 12), (30, 14), (31, 27)]


def test_published_buckets():
    away = torch.arange(140)
    assert loops.runs(t5_buckets(-away).tolist()) == BEHIND
    assert loops.runs(t5_buckets(away[1:]).tolist()) == [(i + 16, n) for i, n in BEHIND[1:]]
    assert loops.runs(t5_buckets(-away, bidirectional=False).tolist()) == CAUSAL
    assert loops.runs(t5_buckets(away, bidirectional=False).tolist()) == [(0, 140)]


@given(st.data(), st.booleans())
def test_buckets_equal_exact_arithmetic(data, bidirectional):
    num_buckets = data.draw(st.integers(2, 20)) * 2 if bidirectional else data.draw(st.integers(2, 40))
    exact = num_buckets // (4 if bidirectional else 2)
    max_distance = data.draw(st.integers(exact + 1, 300))
    distances = data.draw(st.lists(st.integers(-400, 400), max_size=20))
    got = t5_buckets(
        torch.tensor(distances, dtype=torch.int64),
        bidirectional=bidirectional,
        num_buckets=num_buckets,
        max_distance=max_distance,
    )
    assert got.dtype == torch.int64
    for distance, bucket in zip(distances, got.tolist(), strict=True):
        assert bucket in loops.bucket(distance, bidirectional, num_buckets, max_distance)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (6, 7), (4, 2), (32, 20)])
def test_beyond_max_distance_all_are_in_the_last_bucket(bidirectional, num_buckets, max_distance):
    if not bidirectional and max_distance <= num_buckets // 2:
        max_distance = num_buckets
    n = num_buckets // 2 if bidirectional else num_buckets
    far = torch.tensor([max_distance, max_distance + 1, 10 * max_distance, 2**31, 2**63 - 1])
    options = {"bidirectional": bidirectional, "num_buckets": num_buckets, "max_distance": max_distance}
    assert set(t5_buckets(-far, **options).tolist()) == {n - 1}
    assert set(t5_buckets(far, **options).tolist()) == {num_buckets - 1 if bidirectional else 0}
    assert t5_buckets(torch.tensor(-(2**63)), **options).item() == n - 1


def test_the_fewest_buckets_there_can_be():
    distance = torch.tensor([-2, -1, 0, 1, 2])
    assert t5_buckets(distance, num_buckets=4, max_distance=2).tolist() == [1, 1, 0, 3, 3]
    assert t5_buckets(distance, bidirectional=False, num_buckets=2, max_distance=2).tolist() == [1, 1, 0, 0, 0]
    # three in a direction, one of them exact: 2 log(2) / log(3) = 1.26 lies in the second group, 2 log(1) in the first
    assert t5_buckets(distance, num_buckets=6, max_distance=3).tolist() == [2, 1, 0, 4, 5]
    assert t5_buckets(distance, bidirectional=False, num_buckets=3, max_distance=3).tolist() == [2, 1, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)], ids=str)
def test_distances_of_every_shape_and_type(dtype, shape):
    distance = torch.full(shape, 100, dtype=dtype)
    bucket = t5_buckets(distance)
    assert (bucket.dtype, bucket.shape) == (torch.int64, shape)
    assert (bucket == 31).all()
    assert (distance == 100).all()


def numbered(heads, **options):
    """A T5Bias whose value in head h and bucket b is 100 h + b."""
    module = T5Bias(heads, **options)
    buckets = module.weight.shape[0]
    with torch.no_grad():
        module.weight.copy_(100 * torch.arange(heads) + torch.arange(buckets).unsqueeze(-1))
    return module


def test_t5_bias_by_hand():
    # distances 0 to 3 behind: buckets 0 to 3; 1 to 3 ahead: 5 to 7
    bias = numbered(2, num_buckets=8, max_distance=4)(2, 4)
    assert bias[0].tolist() == [[0, 5, 6, 7], [1, 0, 5, 6]]
    assert bias[1].tolist() == [[100, 105, 106, 107], [101, 100, 105, 106]]
    one_way = numbered(1, bidirectional=False, num_buckets=4, max_distance=4)(1, 5, offset=3)
    assert one_way[0].tolist() == [[3, 2, 1, 0, 0]]


@given(st.integers(0, 6), st.integers(0, 8), st.integers(0, 300), st.booleans())
def test_t5_bias_equals_the_loop(T, S, offset, bidirectional):
    got = numbered(H, bidirectional=bidirectional)(T, S, offset=offset)
    assert got.shape == (H, T, S)
    for t in range(T):
        for s in range(S):
            (bucket, *_) = t5_buckets(torch.tensor([s - t - offset]), bidirectional=bidirectional).tolist()
            assert got[:, t, s].tolist() == [100 * h + bucket for h in range(H)]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_bias_with_a_cache_equals_the_last_rows(bidirectional):
    module = T5Bias(H, bidirectional=bidirectional, num_buckets=8, max_distance=5)
    whole = module(S)
    assert whole.shape == (H, S, S)
    assert_close(module(T, S, offset=S - T), whole[:, S - T :], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_t5_bias_has_the_type_of_its_parameter(dtype):
    module = T5Bias(H, dtype=dtype)
    assert module.weight.dtype == module(T, S).dtype == dtype
    assert_close(module(1, 1, offset=5001)[:, 0, 0], module.weight[15], rtol=0, atol=0)


def test_gradients_count_how_often_a_bucket_was_used():
    module = T5Bias(H, bidirectional=False, num_buckets=4, max_distance=4)
    module(3).sum().backward()
    # distances behind: 0 or ahead six times, 1 twice, 2 once
    assert module.weight.grad.tolist() == [[6] * H, [2] * H, [1] * H, [0] * H]


def test_gradcheck():
    module = T5Bias(2, num_buckets=8, max_distance=5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda _: module(3, 4, offset=1), (module.weight,))


def test_biases_start_small_and_can_be_drawn_anew():
    torch.manual_seed(0)
    module = T5Bias(211, num_buckets=102)
    first = module.weight.detach().clone()
    assert abs(first.mean().item()) < 5e-4
    assert first.std().item() == pytest.approx(0.02, rel=0.02)
    module.reset_parameters()
    assert (module.weight != first).any(-1).all()
    assert module.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_what_print_shows():
    assert repr(T5Bias(3)) == "T5Bias(3, bidirectional=True, num_buckets=32, max_distance=128)"
    module = T5Bias(2, bidirectional=False, num_buckets=5, max_distance=9)
    assert repr(module) == "T5Bias(2, bidirectional=False, num_buckets=5, max_distance=9)"


def test_made_where_they_are_told():
    assert alibi_slopes(12, device="meta").device.type == "meta"
    assert alibi_slopes(12, rule="paper", device="meta").device.type == "meta"
    assert alibi(T, num_heads=H, device="meta").device.type == "meta"
    assert T5Bias(H, device="meta")(T, S).device.type == "meta"


@pytest.mark.unchecked
def test_sizes_may_be_numpy_integers():
    n = np.int64(3)
    assert_close(alibi(n, n, num_heads=n, offset=n), alibi(3, num_heads=3, offset=3))
    assert T5Bias(n, num_buckets=np.int64(8))(n, offset=n).shape == (3, 3, 3)


D = torch.tensor([1])
BAD = [
    (lambda: alibi_slopes(2.0), TypeError, "num_heads must be an integer, got float"),
    (lambda: alibi_slopes(0), ValueError, "num_heads must be at least 1, got 0"),
    (lambda: alibi_slopes(3, rule="Paper"), ValueError, "rule must be 'code' or 'paper', got 'Paper'"),
    (lambda: alibi("3", num_heads=2), TypeError, "T must be an integer, got str"),
    (lambda: alibi(-1, num_heads=2), ValueError, "T must be at least 0, got -1"),
    (lambda: alibi(3, 2.0, num_heads=2), TypeError, "S must be an integer, got float"),
    (lambda: alibi(3, -2, num_heads=2), ValueError, "S must be at least 0, got -2"),
    (lambda: alibi(3, num_heads=2, offset=None), TypeError, "offset must be an integer, got NoneType"),
    (lambda: alibi(3, num_heads=2, offset=-4), ValueError, "offset must be at least 0, got -4"),
    (lambda: alibi(3, num_heads=True), TypeError, "num_heads must be an integer, got bool"),
    (lambda: alibi(3, num_heads=0), ValueError, "num_heads must be at least 1, got 0"),
    (lambda: alibi(3, num_heads=2, rule=None), ValueError, "rule must be 'code' or 'paper', got None"),
    (lambda: alibi(3, num_heads=2, dtype=torch.int8), TypeError, "dtype must be a floating point type, got torch.int8"),
    (lambda: t5_buckets([1]), TypeError, "distance must be an integer tensor, got list"),
    (lambda: t5_buckets(D.float()), TypeError, "distance must be an integer tensor, got torch.float32"),
    (lambda: t5_buckets(D.bool()), TypeError, "distance must be an integer tensor, got torch.bool"),
    (lambda: t5_buckets(D.cfloat()), TypeError, "distance must be an integer tensor, got torch.complex64"),
    (lambda: t5_buckets(D, num_buckets=8.0), TypeError, "num_buckets must be an integer, got float"),
    (lambda: t5_buckets(D, num_buckets=3), ValueError, "num_buckets must be at least 4, got 3"),
    (lambda: t5_buckets(D, num_buckets=5), ValueError, "num_buckets must be even if bidirectional, got 5"),
    (lambda: t5_buckets(D, bidirectional=False, num_buckets=1), ValueError, "num_buckets must be at least 2, got 1"),
    (lambda: t5_buckets(D, max_distance=9.0), TypeError, "max_distance must be an integer, got float"),
    (lambda: t5_buckets(D, max_distance=8), ValueError, "max_distance must be at least 9, got 8"),
    (
        lambda: t5_buckets(D, bidirectional=False, max_distance=16),
        ValueError,
        "max_distance must be at least 17, got 16",
    ),
    (lambda: T5Bias(None), TypeError, "num_heads must be an integer, got NoneType"),
    (lambda: T5Bias(0), ValueError, "num_heads must be at least 1, got 0"),
    (lambda: T5Bias(2, num_buckets="8"), TypeError, "num_buckets must be an integer, got str"),
    (lambda: T5Bias(2, num_buckets=7), ValueError, "num_buckets must be even if bidirectional, got 7"),
    (lambda: T5Bias(2, bidirectional=False, num_buckets=1), ValueError, "num_buckets must be at least 2, got 1"),
    (lambda: T5Bias(2, max_distance=True), TypeError, "max_distance must be an integer, got bool"),
    (lambda: T5Bias(2, max_distance=8), ValueError, "max_distance must be at least 9, got 8"),
    (lambda: T5Bias(2)(2.0), TypeError, "T must be an integer, got float"),
    (lambda: T5Bias(2)(-1), ValueError, "T must be at least 0, got -1"),
    (lambda: T5Bias(2)(1, torch.tensor(2)), TypeError, "S must be an integer, got Tensor"),
    (lambda: T5Bias(2)(1, -1), ValueError, "S must be at least 0, got -1"),
    (lambda: T5Bias(2)(1, offset=True), TypeError, "offset must be an integer, got bool"),
    (lambda: T5Bias(2)(1, offset=-1), ValueError, "offset must be at least 0, got -1"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("call", "error", "match"), BAD)
def test_bad_input(call, error, match):
    with pytest.raises(error, match=f"^{match}$"):
        call()
