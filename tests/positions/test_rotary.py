"""Rotary positions: the paper's values, loops, what a turn must keep, both pairings, every precision, bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from mha_course.positions import Rotary
from tests.positions import loops

B, H, T, D = 2, 3, 5, 14
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
HALVES = TYPES[:2]
PAIRINGS = pytest.mark.parametrize("interleaved", [False, True], ids=["half split", "interleaved"])


def vectors(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# Values


def test_values_of_the_paper():
    a, b, e, h = math.cos(1), math.sin(1), math.cos(0.01), math.sin(0.01)
    x = torch.tensor([[1.0, 2, 3, 4], [1, 2, 3, 4]], dtype=torch.float64)
    neighbours = torch.tensor([a - 2 * b, b + 2 * a, 3 * e - 4 * h, 3 * h + 4 * e], dtype=torch.float64)
    halves = torch.tensor([a - 3 * b, 2 * e - 4 * h, b + 3 * a, 2 * h + 4 * e], dtype=torch.float64)
    for got, want in ((Rotary(4, interleaved=True)(x), neighbours), (Rotary(4)(x), halves)):
        assert_close(got[0], x[0], rtol=0, atol=0)  # position 0 changes nothing
        assert_close(got[1], want)


def test_a_quarter_turn_by_hand():
    # position 3 of one pair turns by 3 radians; base 1 makes every pair as fast as the first
    x = torch.tensor([[1.0, 0, 0, 1]], dtype=torch.float64)
    c, s = math.cos(3), math.sin(3)
    assert_close(Rotary(4, base=1)(x, offset=3), torch.tensor([[c, -s, s, c]], dtype=torch.float64))
    assert_close(Rotary(2)(x[:, :2], offset=3), torch.tensor([[c, s]], dtype=torch.float64))


@given(
    length=st.integers(0, 5),
    pairs=st.integers(1, 7),
    rest=st.integers(0, 3),
    base=st.floats(1, 1e6) | st.integers(1, 1000),
    offset=st.integers(0, 10**5),
    interleaved=st.booleans(),
)
def test_equals_the_loop(length, pairs, rest, base, offset, interleaved):
    module = Rotary(2 * pairs + rest, rotary_dim=2 * pairs, base=base, interleaved=interleaved)
    x = vectors(length, 2 * pairs + rest)
    want = loops.turned(x, loops.frequencies(2 * pairs, base), interleaved=interleaved, offset=offset)
    assert_close(module(x, offset=offset), want, rtol=0, atol=1e-8)


@PAIRINGS
@pytest.mark.parametrize("shape", [(T, D), (B, T, D), (B, H, T, D), (B, H, 0, D), (0, H, T, D), (1, D)], ids=str)
def test_every_batch_and_head_is_turned_alike(shape, interleaved):
    x = vectors(*shape)
    before = x.clone()
    got = Rotary(D, interleaved=interleaved)(x, offset=3)
    assert got.shape == shape
    one_each = (math.prod(shape[:-2]), *shape[-2:])
    for out, one in zip(got.reshape(one_each), x.reshape(one_each), strict=True):
        assert_close(out, loops.turned(one, loops.frequencies(D), interleaved=interleaved, offset=3))
    assert_close(x, before, rtol=0, atol=0)


def test_a_view_with_strange_strides_is_turned_like_its_copy():
    x = vectors(B, T, H, D).transpose(1, 2)
    assert_close(Rotary(D)(x), Rotary(D)(x.contiguous()), rtol=0, atol=0)
    assert_close(Rotary(D)(x[:, :1].expand(B, H, T, D)), Rotary(D)(x)[:, :1].expand(B, H, T, D), rtol=0, atol=0)


# What a turn keeps


@PAIRINGS
@given(m=st.integers(0, 3000), n=st.integers(0, 3000), shift=st.integers(0, 10**4))
def test_a_score_depends_on_the_distance_alone(interleaved, m, n, shift):
    module = Rotary(D, interleaved=interleaved)
    q, k = vectors(1, D, seed=1), vectors(1, D, seed=2)
    here = module(q, offset=m) @ module(k, offset=n).T
    there = module(q, offset=m + shift) @ module(k, offset=n + shift).T
    assert_close(here, there, rtol=0, atol=1e-9)
    # as a sum over pairs, equation 12 of the paper: Re[q conj(k) e^(i (m - n) theta)]
    pairs = (lambda x: x.unflatten(-1, (-1, 2))) if interleaved else (lambda x: x.unflatten(-1, (2, -1)).mT)
    a, b = (torch.view_as_complex(pairs(x[0]).contiguous()).tolist() for x in (q, k))
    turns = [complex(math.cos((m - n) * f), math.sin((m - n) * f)) for f in loops.frequencies(D)]
    want = sum((x * y.conjugate() * z).real for x, y, z in zip(a, b, turns, strict=True))
    assert here.item() == pytest.approx(want, abs=1e-9)


@PAIRINGS
@pytest.mark.parametrize("rotary_dim", [2, 6, D])
def test_lengths_are_kept(interleaved, rotary_dim):
    x = vectors(B, H, T, D)
    got = Rotary(D, rotary_dim=rotary_dim, interleaved=interleaved)(x, offset=101)
    assert_close(got.norm(dim=-1), x.norm(dim=-1))


@PAIRINGS
def test_one_token_at_a_time_equals_all_at_once(interleaved):
    module, x = Rotary(D, rotary_dim=6, interleaved=interleaved), vectors(B, H, T, D)
    whole = module(x, offset=2)
    for t in range(T):
        assert_close(module(x[:, :, t : t + 1], offset=t + 2), whole[:, :, t : t + 1], rtol=0, atol=0)
    assert_close(module(x[:, :, 3:], offset=5), whole[:, :, 3:], rtol=0, atol=0)


@pytest.mark.parametrize("rotary_dim", [2, 6, D])
def test_the_pairings_differ_by_a_permutation(rotary_dim):
    # entry 2i of neighbours is entry i of the halves, entry 2i + 1 is entry i + R/2
    order = [i + half * rotary_dim // 2 for i in range(rotary_dim // 2) for half in (0, 1)]
    order += range(rotary_dim, D)
    x = vectors(B, T, D)
    split = Rotary(D, rotary_dim=rotary_dim)(x)
    assert_close(Rotary(D, rotary_dim=rotary_dim, interleaved=True)(x[..., order]), split[..., order])
    if rotary_dim > 2:
        assert (split - Rotary(D, rotary_dim=rotary_dim, interleaved=True)(x)).abs().max() > 0.1


@PAIRINGS
def test_a_partial_width_turns_the_first_entries_as_a_head_of_that_width(interleaved):
    x = vectors(B, T, D)
    got = Rotary(D, rotary_dim=6, interleaved=interleaved)(x)
    assert_close(got[..., 6:], x[..., 6:], rtol=0, atol=0)
    assert_close(got[..., :6], Rotary(6, interleaved=interleaved)(x[..., :6]), rtol=0, atol=0)
    odd = Rotary(7, rotary_dim=6, interleaved=interleaved)(x[..., :7])
    assert_close(odd, got[..., :7], rtol=0, atol=0)


# Precision and gradients


@PAIRINGS
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("offset", [0, 5001])
def test_half_precision(interleaved, dtype, offset):
    x = vectors(64, 61, D, dtype=dtype)
    module = Rotary(D, interleaved=interleaved).to(dtype)
    got, truth = module(x, offset=offset), Rotary(D, interleaved=interleaved)(x.double(), offset=offset)
    assert got.dtype == dtype
    assert_close(got, module(x.float(), offset=offset).to(dtype), rtol=0, atol=0)
    # in this precision alone, given cos and sin that were right before they were rounded
    angle = torch.arange(offset, offset + 61).double()[:, None] * torch.tensor(loops.frequencies(D)).double()
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    parts = a * cos - b * sin, b * cos + a * sin
    other = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)
    error, allowed = (got - truth).abs().max().item(), 2 * (other - truth).abs().max().item()
    assert 0 < error <= allowed


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_cast_of_the_module_changes_nothing(dtype):
    x = vectors(T, D, dtype=torch.float32)
    assert_close(Rotary(D).to(dtype)(x, offset=5001), Rotary(D)(x, offset=5001), rtol=0, atol=0)
    assert Rotary(D)(x.to(dtype)).dtype == dtype


def test_float64_is_turned_in_float64():
    x = vectors(2, D)
    far = loops.turned(x, loops.frequencies(D), interleaved=False, offset=100_000)
    assert_close(Rotary(D)(x, offset=100_000), far, rtol=0, atol=1e-9)


@PAIRINGS
@pytest.mark.parametrize("options", [{}, {"rotary_dim": 4}, {"scaling": "yarn", "factor": 4, "trained_length": 50}])
def test_gradcheck(interleaved, options):
    module = Rotary(6, interleaved=interleaved, **options)
    x = vectors(2, 3, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: module(x, offset=2), (x,))
    assert torch.autograd.gradgradcheck(lambda x: module(x, offset=2), (x,))


def test_nothing_is_learned_and_nothing_is_stored():
    module = Rotary(D)
    assert (list(module.parameters()), list(module.buffers()), dict(module.state_dict())) == ([], [], {})


@pytest.mark.parametrize("options", [{}, {"rotary_dim": 6, "base": 500_000.0, "interleaved": True}])
def test_what_print_shows(options):
    want = {"rotary_dim": 8, "base": 10_000, "interleaved": False} | options
    said = f"Rotary(8, rotary_dim={want['rotary_dim']}, base={want['base']:g}, interleaved={want['interleaved']}"
    assert repr(Rotary(8, **options)) == f"{said})"
    ntk = Rotary(8, scaling="ntk", factor=2.5, **options)
    assert repr(ntk) == f"{said}, scaling='ntk', factor=2.5)"
    yarn = Rotary(8, scaling="yarn", factor=4, trained_length=128, **options)
    assert repr(yarn) == f"{said}, scaling='yarn', factor=4, trained_length=128)"


@pytest.mark.unchecked
def test_sizes_may_be_numpy_integers():
    module = Rotary(np.int64(6), rotary_dim=np.int64(4))
    x = vectors(T, 6)
    assert_close(module(x, offset=np.int64(3)), Rotary(6, rotary_dim=4)(x, offset=3))


X = torch.zeros(3, 4)
BAD = [
    (lambda: Rotary(4.0), TypeError, "head_dim must be an integer, got float"),
    (lambda: Rotary(0), ValueError, "head_dim must be at least 1, got 0"),
    (lambda: Rotary(1), ValueError, "rotary_dim must be at least 2, got 1"),
    (lambda: Rotary(5), ValueError, "rotary_dim must be even, each pair is turned as one, got 5"),
    (lambda: Rotary(5, rotary_dim=3), ValueError, "rotary_dim must be even, each pair is turned as one, got 3"),
    (lambda: Rotary(4, rotary_dim="2"), TypeError, "rotary_dim must be an integer, got str"),
    (lambda: Rotary(4, rotary_dim=True), TypeError, "rotary_dim must be an integer, got bool"),
    (lambda: Rotary(4, rotary_dim=0), ValueError, "rotary_dim must be at least 2, got 0"),
    (lambda: Rotary(4, rotary_dim=6), ValueError, "rotary_dim must be at most head_dim = 4, got 6"),
    (lambda: Rotary(4, base=None), TypeError, "base must be a number, got NoneType"),
    (lambda: Rotary(4, base=0), ValueError, "base must be finite and at least 1, got 0"),
    (lambda: Rotary(4, scaling="dynamic"), ValueError, "scaling must be None, .* got 'dynamic'"),
    (lambda: Rotary(4, factor=2.0), ValueError, "factor needs a scaling: .* got factor 2 without"),
    (lambda: Rotary(4, trained_length=8), ValueError, "trained_length is for scaling 'yarn' alone, got 8 with None"),
    (lambda: Rotary(4)([[1.0]]), TypeError, "x must be a tensor, got list"),
    (lambda: Rotary(4)(X.long()), TypeError, "x must be floating point, got torch.int64"),
    (lambda: Rotary(4)(X.cfloat()), TypeError, "x must be floating point, got torch.complex64"),
    (lambda: Rotary(4)(X[:, :2]), ValueError, r"x must have shape \(..., T, D\) with D = 4, got \(3, 2\)"),
    (lambda: Rotary(4)(X[0]), ValueError, r"x must have shape \(..., T, D\) with D = 4, got \(4,\)"),
    (lambda: Rotary(4)(X, offset=1.0), TypeError, "offset must be an integer, got float"),
    (lambda: Rotary(4)(X, offset=-1), ValueError, "offset must be at least 0, got -1"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("call", "error", "match"), BAD)
def test_bad_input(call, error, match):
    with pytest.raises(error, match=f"^{match}$"):
        call()
