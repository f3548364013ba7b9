"""Absolute positions: the paper's values, loops, lengths and widths at their ends, every precision, bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from mha_course.positions import Learned, Sinusoidal, sinusoidal
from tests.positions import loops

B, T, E = 2, 5, 11
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
HALVES = TYPES[:2]


def embeddings(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# sinusoidal


def test_sinusoids_of_the_paper():
    table = sinusoidal(5, 8, dtype=torch.float64)
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    for p in range(5):
        want = [f(p / 10**i) for i in range(4) for f in (math.sin, math.cos)]
        assert_close(table[p], torch.tensor(want, dtype=torch.float64))


def test_an_odd_width_ends_with_a_sine_without_its_cosine():
    assert_close(sinusoidal(3, 1), torch.tensor([[0.0], [math.sin(1)], [math.sin(2)]]))
    # base 8, width 3: pair 1 turns by 8^(-2/3) = 1/4
    want = [[math.sin(p), math.cos(p), math.sin(p / 4)] for p in range(4)]
    assert_close(sinusoidal(4, 3, base=8), torch.tensor(want))


@given(
    length=st.integers(0, 7),
    embed_dim=st.integers(1, 13),
    base=st.floats(1, 1e6) | st.integers(1, 1000),
    offset=st.integers(0, 10**6),
)
def test_sinusoids_equal_the_loop(length, embed_dim, base, offset):
    table = sinusoidal(length, embed_dim, base=base, offset=offset, dtype=torch.float64)
    assert table.shape == (length, embed_dim)
    assert_close(table, loops.table(length, embed_dim, base, offset), rtol=0, atol=1e-8)


@given(pairs=st.integers(1, 9), p=st.integers(0, 10**5), step=st.integers(0, 10**4))
def test_the_product_of_two_positions_depends_on_their_distance_alone(pairs, p, step):
    first = sinusoidal(1, 2 * pairs, offset=p, dtype=torch.float64)
    second = sinusoidal(1, 2 * pairs, offset=p + step, dtype=torch.float64)
    want = sum(math.cos(step / 10_000 ** (i / pairs)) for i in range(pairs))
    assert (first @ second.T).item() == pytest.approx(want, abs=1e-8)


def test_there_is_no_last_position():
    # the period of the slowest clock of width 8 is 2 pi 1000 positions; here it has gone round 15 times
    far = sinusoidal(2, 8, offset=100_000, dtype=torch.float64)
    assert_close(far, loops.table(2, 8, offset=100_000), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_type_is_only_where_the_table_ends_up(dtype):
    table = sinusoidal(T, E, offset=5001, dtype=dtype)
    assert table.dtype == dtype
    wide = sinusoidal(T, E, offset=5001, dtype=torch.promote_types(dtype, torch.float32))
    assert_close(table, wide.to(dtype), rtol=0, atol=0)
    assert_close(wide.double(), loops.table(T, E, offset=5001), rtol=0, atol=1e-3 if dtype != torch.float64 else 1e-9)


def test_the_type_is_pytorchs_default():
    assert sinusoidal(T, E).dtype == torch.float32
    try:
        torch.set_default_dtype(torch.float64)
        assert_close(sinusoidal(T, E), loops.table(T, E))
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_table_is_made_where_it_is_told_and_is_new():
    assert sinusoidal(T, E, device="meta").device.type == "meta"
    sinusoidal(T, E).zero_()
    assert sinusoidal(T, E)[0, 1] == 1


# Sinusoidal


@pytest.mark.parametrize("shape", [(T, E), (B, T, E), (B, 3, T, E), (0, E), (B, 0, E), (0, T, E), (1, E)], ids=str)
@pytest.mark.parametrize("offset", [0, 7])
def test_the_module_adds_the_table_to_every_sample(shape, offset):
    x = embeddings(*shape)
    before = x.clone()
    got = Sinusoidal(E, base=100)(x, offset=offset)
    assert_close(got, x + loops.table(shape[-2], E, base=100, offset=offset))
    assert_close(x, before, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("offset", [0, 5001])
def test_sinusoids_in_half_precision(dtype, offset):
    x = embeddings(64, 61, 110, dtype=dtype)
    module = Sinusoidal(110).to(dtype)
    truth = x.double() + loops.table(61, 110, offset=offset)
    got = module(x, offset=offset)
    assert got.dtype == dtype
    allowed = 2 * (x + loops.table(61, 110, offset=offset).to(dtype) - truth).abs().max()
    assert (got - truth).abs().max() <= allowed


def test_the_module_starts_at_position_0_with_the_papers_base():
    assert_close(Sinusoidal(E)(torch.zeros(T, E, dtype=torch.float64)), loops.table(T, E))


# Learned


def test_the_table_is_made_where_it_is_told():
    assert Learned(3, 5, device="meta").weight.device.type == "meta"
    assert Learned(3, 5).weight.device.type == "cpu"


def test_learned_by_hand():
    module = Learned(3, 2, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    x = torch.tensor([[[10.0, 20.0], [30.0, 40.0]], [[0.0, 0.0], [0.5, 0.5]]], dtype=torch.float64)
    assert module(x).tolist() == [[[11, 22], [33, 44]], [[1, 2], [3.5, 4.5]]]
    assert module(x, offset=1).tolist() == [[[13, 24], [35, 46]], [[3, 4], [5.5, 6.5]]]


def test_gradients_reach_the_rows_that_were_used_once_for_each_sample():
    module = Learned(7, E)
    module(torch.zeros(B, 3, E), offset=2).sum().backward()
    assert module.weight.grad.tolist() == [[B * (2 <= p < 5)] * E for p in range(7)]


def test_the_table_starts_small_and_can_be_drawn_anew():
    torch.manual_seed(0)
    module = Learned(211, 101)
    first = module.weight.detach().clone()
    assert abs(first.mean().item()) < 5e-4
    assert first.std().item() == pytest.approx(0.02, rel=0.02)
    module.reset_parameters()
    assert (module.weight != first).any(-1).all()
    assert module.weight.std().item() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("table", TYPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_result_has_the_type_of_the_embeddings(table, dtype):
    x, module = embeddings(B, T, E, dtype=dtype), Learned(T, E, dtype=table)
    assert module.weight.dtype == table
    assert_close(module(x), x + module.weight.to(dtype), rtol=0, atol=0)
    assert module(x).dtype == dtype


@pytest.mark.parametrize("offset", [0, 3, 7])
def test_no_tokens_need_no_positions(offset):
    assert Learned(7, E)(torch.zeros(B, 0, E), offset=offset).shape == (B, 0, E)


@pytest.mark.parametrize(("T", "offset"), [(7, 0), (1, 6), (3, 4)])
def test_the_last_position_of_a_table(T, offset):
    module = Learned(7, E)
    assert_close(module(torch.zeros(T, E), offset=offset), module.weight[offset:])


@pytest.mark.parametrize("module", [Sinusoidal(4), Learned(5, 4, dtype=torch.float64)], ids=str)
def test_gradcheck(module):
    x = embeddings(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: module(x, offset=2), (x, *module.parameters()))


@pytest.mark.parametrize("module", [Sinusoidal(E), Learned(13, E)], ids=str)
def test_one_token_at_a_time_equals_all_at_once(module):
    x = embeddings(B, T, E, dtype=torch.float32)
    steps = [module(x[:, t : t + 1], offset=t + 3) for t in range(T)]
    assert_close(torch.cat(steps, dim=1), module(x, offset=3), rtol=0, atol=0)


def test_what_print_shows():
    assert repr(Sinusoidal(6)) == "Sinusoidal(6, base=10000)"
    assert repr(Sinusoidal(6, base=1.5)) == "Sinusoidal(6, base=1.5)"
    assert repr(Learned(3, 5)) == "Learned(3, 5)"


@pytest.mark.unchecked
def test_sizes_may_be_numpy_integers():
    n = np.int64(3)
    assert_close(sinusoidal(n, n, offset=n), sinusoidal(3, 3, offset=3))
    assert Learned(n, n)(torch.zeros(1, 3), offset=np.int64(2)).shape == (1, 3)


X = torch.zeros(3, 4)
BAD = [
    (lambda: sinusoidal(2.0, 4), TypeError, "length must be an integer, got float"),
    (lambda: sinusoidal(True, 4), TypeError, "length must be an integer, got bool"),
    (lambda: sinusoidal(torch.tensor(2), 4), TypeError, "length must be an integer, got Tensor"),
    (lambda: sinusoidal(-1, 4), ValueError, "length must be at least 0, got -1"),
    (lambda: sinusoidal(2, None), TypeError, "embed_dim must be an integer, got NoneType"),
    (lambda: sinusoidal(2, 0), ValueError, "embed_dim must be at least 1, got 0"),
    (lambda: sinusoidal(2, 4, base="10"), TypeError, "base must be a number, got str"),
    (lambda: sinusoidal(2, 4, base=True), TypeError, "base must be a number, got bool"),
    (lambda: sinusoidal(2, 4, base=0), ValueError, "base must be finite and at least 1, got 0"),
    (lambda: sinusoidal(2, 4, base=1e-300), ValueError, "base must be finite and at least 1, got 1e-300"),
    (lambda: sinusoidal(2, 4, base=-2.5), ValueError, "base must be finite and at least 1, got -2.5"),
    (lambda: sinusoidal(2, 4, base=math.inf), ValueError, "base must be finite and at least 1, got inf"),
    (lambda: sinusoidal(2, 4, base=math.nan), ValueError, "base must be finite and at least 1, got nan"),
    (lambda: sinusoidal(2, 4, offset=1.5), TypeError, "offset must be an integer, got float"),
    (lambda: sinusoidal(2, 4, offset=-1), ValueError, "offset must be at least 0, got -1"),
    (lambda: sinusoidal(2, 4, dtype=torch.int64), TypeError, "dtype must be a floating point type, got torch.int64"),
    (lambda: sinusoidal(2, 4, dtype=torch.cfloat), TypeError, "dtype must be a floating point type, got torch.comp.*"),
    (lambda: sinusoidal(2, 4, dtype="float32"), TypeError, "dtype must be a floating point type, got float32"),
    (lambda: Sinusoidal(4.0), TypeError, "embed_dim must be an integer, got float"),
    (lambda: Sinusoidal(0), ValueError, "embed_dim must be at least 1, got 0"),
    (lambda: sinusoidal(np.array([3]), 4), TypeError, "length must be an integer, got ndarray"),
    (lambda: Learned(2, 4, dtype=torch.int64), TypeError, "dtype must be a floating point type, got torch.int64"),
    (lambda: Sinusoidal(4, base=None), TypeError, "base must be a number, got NoneType"),
    (lambda: Sinusoidal(4, base=-1), ValueError, "base must be finite and at least 1, got -1"),
    (lambda: Learned(2.0, 4), TypeError, "max_length must be an integer, got float"),
    (lambda: Learned(0, 4), ValueError, "max_length must be at least 1, got 0"),
    (lambda: Learned(2, "4"), TypeError, "embed_dim must be an integer, got str"),
    (lambda: Learned(2, 0), ValueError, "embed_dim must be at least 1, got 0"),
    (lambda: Learned(2, 4)(X), ValueError, r"the table ends at position 1 \(max_length 2\), got 2"),
    (lambda: Learned(3, 4)(X, offset=2), ValueError, r"the table ends at position 2 \(max_length 3\), got 4"),
]
# what both modules ask of their input
for make in (lambda: Sinusoidal(4), lambda: Learned(9, 4)):
    BAD += [
        (lambda m=make: m()([[1.0]]), TypeError, "x must be a tensor, got list"),
        (lambda m=make: m()(X.long()), TypeError, "x must be floating point, got torch.int64"),
        (lambda m=make: m()(X.cfloat()), TypeError, "x must be floating point, got torch.complex64"),
        (lambda m=make: m()(X.T), ValueError, r"x must have shape \(..., T, E\) with E = 4, got \(4, 3\)"),
        (lambda m=make: m()(X[0]), ValueError, r"x must have shape \(..., T, E\) with E = 4, got \(4,\)"),
        (lambda m=make: m()(X, offset=True), TypeError, "offset must be an integer, got bool"),
        (lambda m=make: m()(X, offset=-1), ValueError, "offset must be at least 0, got -1"),
    ]


@pytest.mark.unchecked
@pytest.mark.parametrize(("call", "error", "match"), BAD)
def test_bad_input(call, error, match):
    with pytest.raises(error, match=f"^{match}$"):
        call()
