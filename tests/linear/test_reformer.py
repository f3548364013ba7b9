"""Reformer's buckets: by hand, what shares one, attention within them against loops."""

import pytest
import torch
from torch.testing import assert_close

from mha_course import MultiHeadAttention, attention, masks
from mha_course.linear import reformer
from tests import reference
from tests.linear.problems import DV, B, D, H, S, T, bools, inputs, leaves, numbers, relative

ROTATIONS = numbers(2, D, 3, seed=12)


def test_buckets_by_hand() -> None:
    plane = torch.eye(2)[None]
    x = torch.tensor([[1.0, 0.2], [0.2, 5.0], [-1.0, 0.9], [0.1, -0.2]])
    assert reformer.buckets(x, plane).tolist() == [[0, 1, 2, 3]]
    two = torch.stack([torch.eye(2), torch.tensor([[0.0, 1.0], [1.0, 0.0]])])
    assert reformer.buckets(x, two).tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert_close(reformer.buckets(1000 * x, two), reformer.buckets(x, two))


def test_share_bucket_equals_the_loop() -> None:
    q, k, _ = inputs()
    got = reformer.share_bucket(q, k, ROTATIONS)
    assert got.shape == (B, H, T, S)

    def bucket(x: torch.Tensor, r: int) -> int:
        turned = [sum(x[d] * ROTATIONS[r, d, i] for d in range(D)).item() for i in range(3)]
        both = turned + [-n for n in turned]
        return both.index(max(both))

    for t in range(T):
        for s in range(S):
            share = any(bucket(q[1, 2, t], r) == bucket(k[1, 2, s], r) for r in range(2))
            assert got[1, 2, t, s].item() == share
    assert reformer.share_bucket(k, k, ROTATIONS).diagonal(dim1=-2, dim2=-1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_buckets_are_those_of_the_numbers_given_in_every_type(dtype: torch.dtype) -> None:
    x = numbers(2000, D, dtype=dtype)
    x = x * (60_000 / x.abs().max())  # a product in float16 would overflow
    want = reformer.buckets(x.double(), ROTATIONS)
    assert_close(reformer.buckets(x, ROTATIONS), want)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(reformer.buckets(x, ROTATIONS), want)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"q": [[1.0]]}, TypeError, r"^q must be a floating point tensor, got list$"),
        ({"k": torch.ones(3, D).long()}, TypeError, r"^k must be a floating point tensor, got torch\.int64$"),
        ({"q": torch.ones(D)}, ValueError, r"^q must have at least two axes \(length, width\), got \(5,\)$"),
        ({"k": torch.ones(1, 3, D)}, ValueError, r"^q and k must have the same leading sizes, got .* and \(1, 3, 5\)$"),
        ({"rotations": ROTATIONS[0]}, ValueError, r"^rotations must be"),
    ],
)
def test_bad_input_of_share_bucket(change: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        reformer.share_bucket(**{"q": torch.ones(2, D), "k": torch.ones(3, D), "rotations": ROTATIONS, **change})


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("x", "rotations", "error", "match"),
    [
        (None, ROTATIONS, TypeError, r"^x must be a floating point tensor, got NoneType$"),
        (torch.ones(D), ROTATIONS, ValueError, r"^x must have at least two axes"),
        (torch.ones(2, D), None, TypeError, r"^rotations must be a floating point tensor .* got NoneType$"),
        (torch.ones(2, D), ROTATIONS[0], ValueError, r"^rotations must be"),
    ],
)
def test_bad_input_of_buckets(x, rotations, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        reformer.buckets(x, rotations)


def test_near_vectors_share_a_bucket_more_often() -> None:
    rotations = reformer.random_rotations(1000, D, 8, generator=torch.Generator().manual_seed(0))
    x = torch.zeros(1, D)
    x[0, 0] = 1
    shares = []
    for angle in (0.0, 0.3, 0.8, 1.6, 3.1):
        y = torch.zeros(1, D)
        y[0, 0], y[0, 1] = torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))
        same = reformer.buckets(x, rotations) == reformer.buckets(y, rotations)
        shares.append(same.float().mean().item())
    assert shares[0] == 1
    assert shares == sorted(shares, reverse=True)
    assert shares[1] > 0.6
    assert shares[-1] < 0.01


@pytest.mark.parametrize("kind", ["plain", "mask", "score_bias", "causal", "all"])
def test_equals_the_loops(kind: str) -> None:
    q, k, v = inputs(S)
    options: dict = {"scale": 0.7} if kind == "all" else {}
    share = reformer.share_bucket(q, k, ROTATIONS)
    may = share
    if kind in ("mask", "all"):
        options["mask"] = bools(B, 1, S, S)
        may = may & options["mask"]
    if kind in ("score_bias", "all"):
        options["score_bias"] = numbers(H, S, S, seed=4)
    want = reference.attention(
        q,
        k,
        v,
        mask=may & masks.causal(S) if kind in ("causal", "all") else may,
        **{name: x for name, x in options.items() if name != "mask"},
    )[2]
    if kind in ("causal", "all"):
        options["is_causal"] = True
    assert_close(reformer.attention(q, k, v, rotations=ROTATIONS, **options), want)


def test_gradients_are_those_of_attention_with_the_mask() -> None:
    tensors = leaves(*inputs())
    got = torch.autograd.grad(reformer.attention(*tensors, rotations=ROTATIONS).square().sum(), tensors)
    may = reformer.share_bucket(*tensors[:2], ROTATIONS)
    want = torch.autograd.grad(attention(*tensors, mask=may).out.square().sum(), tensors)
    assert_close(got, want)


def test_more_rounds_come_closer_and_many_are_exact() -> None:
    q, k, v = inputs()
    exact = attention(q, k, v).out
    generator = torch.Generator().manual_seed(0)
    errors = []
    for rounds in (1, 4, 16):
        rotations = reformer.random_rotations(rounds, D, 8, generator=generator, dtype=torch.float64)
        errors.append(relative(reformer.attention(q, k, v, rotations=rotations), exact))
    assert errors[0] > 2 * errors[1] > 4 * errors[2] > 0
    rotations = reformer.random_rotations(20_000, D, 2, generator=generator, dtype=torch.float64)
    assert_close(reformer.attention(q, k, v, rotations=rotations), exact)


def test_a_query_alone_in_its_bucket_gets_0() -> None:
    q, k, v = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0, 1.0]]]]), torch.ones(1, 1, 1, 3)
    assert_close(reformer.attention(q, k, v, rotations=torch.eye(2)[None]), torch.zeros(1, 1, 1, 3))


def test_dropout_and_half_types() -> None:
    q, k, v = inputs(dtype=torch.float16)
    out = reformer.attention(q, k, v, rotations=ROTATIONS)
    assert_close(out, attention(q, k, v, mask=reformer.share_bucket(q, k, ROTATIONS)).out, rtol=0, atol=0)
    out = reformer.attention(*inputs(), rotations=ROTATIONS, dropout_p=1.0)
    assert_close(out, torch.zeros(B, H, T, DV, dtype=torch.float64))


def test_rotations_are_normal_and_from_the_generator() -> None:
    one, again, other = (
        reformer.random_rotations(3, 50, 100, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert one.shape == (3, 50, 50)
    assert_close(one, again, rtol=0, atol=0)
    assert (one != other).all()
    assert abs(one.mean().item()) < 5 / 7500**0.5
    assert_close(one.std().item(), 1.0, rtol=0.05, atol=0)


def test_as_a_backend() -> None:
    module = MultiHeadAttention(30, 6, dtype=torch.float64)
    x = numbers(B, T, 30)
    trace = module.trace(x)
    want = module(x, mask=reformer.share_bucket(trace.q, trace.k, ROTATIONS), is_causal=True)
    module.backend = lambda *args, **options: reformer.attention(*args, rotations=ROTATIONS, **options)
    assert_close(module(x, is_causal=True), want)


q, k, v = inputs(5, 5, dtype=torch.float32)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"q": None}, TypeError, r"^q must be a tensor, got NoneType$"),
        ({"mask": torch.ones(5)}, TypeError, r"^mask must be bool"),
        ({"score_bias": bools(5)}, TypeError, r"^score_bias must be floating point"),
        ({"scale": "1"}, TypeError, r"^scale must be a number, got str$"),
        ({"is_causal": 1}, TypeError, r"^is_causal must be True or False, got int$"),
        ({"rotations": None}, TypeError, r"^rotations must be a floating point tensor .* got NoneType$"),
        ({"rotations": ROTATIONS.long()}, TypeError, r"^rotations must be a floating .* got torch\.int64$"),
        ({"q": q[0], "k": k[0], "v": v[0]}, ValueError, r"must have four axes"),
        ({"v": v[:, :, 1:]}, ValueError, r"one length S, got"),
        ({"mask": bools(4)}, ValueError, r"^mask must broadcast"),
        ({"q": q[:, :, :3], "is_causal": True}, ValueError, r"^is_causal needs T = S, got T = 3 and S = 5$"),
        ({"dropout_p": 2.0}, ValueError, r"^dropout_p must lie in \[0, 1\], got 2\.0$"),
        ({"rotations": ROTATIONS[0]}, ValueError, r"^rotations must be .* with D = 5, got \(5, 3\)$"),
        ({"rotations": ROTATIONS[:, 1:]}, ValueError, r"^rotations must be .* with D = 5, got \(2, 4, 3\)$"),
        ({"rotations": ROTATIONS.to("meta")}, ValueError, r"^rotations must be on q's device, cpu, got meta$"),
        ({"rotations": ROTATIONS[:0]}, ValueError, r"^rotations must be .* with D = 5, got \(0, 5, 3\)$"),
    ],
)
def test_bad_input(change: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        reformer.attention(**{"q": q, "k": k, "v": v, "rotations": ROTATIONS, **change})


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("sizes", "error", "match"),
    [
        ((1.0, 3, 4), TypeError, r"^rounds must be an integer, got float$"),
        ((1, None, 4), TypeError, r"^D must be an integer, got NoneType$"),
        ((1, 3, "4"), TypeError, r"^count must be an integer, got str$"),
        ((0, 3, 4), ValueError, r"^rounds must be at least 1, got 0$"),
        ((1, 0, 4), ValueError, r"^D must be at least 1, got 0$"),
        ((1, 3, 0), ValueError, r"^count must be at least 2, got 0$"),
        ((1, 3, 5), ValueError, r"^count must be even, got 5$"),
    ],
)
def test_bad_sizes(sizes: tuple, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        reformer.random_rotations(*sizes)
