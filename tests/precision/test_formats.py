"""Number formats: bit for bit what PyTorch's conversion gives, and what the standards say."""

import math
import struct
from fractions import Fraction

import pytest
import torch

from mha_course.precision import FORMATS, Bits, Format

OF_TORCH = [form for form in FORMATS.values() if form.dtype is not None]
SMALL = [form for form in OF_TORCH if form.bits <= 16]
INTEGERS = {8: torch.uint8, 16: torch.uint16, 32: torch.int32}
every_format = pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
every_torch_format = pytest.mark.parametrize("form", OF_TORCH, ids=lambda form: form.name)
every_small_format = pytest.mark.parametrize("form", SMALL, ids=lambda form: form.name)


def same(a, b):
    """Equal with the sign of zero, NaN equal to NaN."""
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    number = ~a.isnan()
    assert torch.equal(torch.signbit(a)[number], torch.signbit(b)[number])


def patterns(form):
    """Every bit pattern of a format of at most 16 bits, as PyTorch reads it, in float64."""
    return torch.arange(2**form.bits).to(INTEGERS[form.bits]).view(form.dtype).double()


def float32s(n=200_003):
    """float32 of every kind: all exponents, by drawing the bits."""
    bits = torch.randint(-(2**31), 2**31, (n,), generator=torch.Generator().manual_seed(0))
    return bits.to(torch.int32).view(torch.float32)


def edges(form):
    """Values of the format, the middles between them, and the float32 beside these."""
    values = patterns(form) if form.bits <= 16 else form.round(float32s(10_007))
    values = values[values.isfinite()].unique()
    middles = ((values[1:] + values[:-1]) / 2).float()
    ends = torch.tensor([form.largest, form.largest + form.spacing(torch.tensor([form.largest])).item() / 2])
    exact = torch.cat([values.float(), middles, ends.float(), -ends.float(), torch.tensor([0.0, -0.0])])
    beside = [torch.nextafter(exact, torch.full_like(exact, to)) for to in (math.inf, -math.inf)]
    return torch.cat([exact, *beside, torch.tensor([math.inf, -math.inf, math.nan])])


class TestAgainstTorch:
    @every_torch_format
    def test_numbers_are_those_of_finfo(self, form):
        info = torch.finfo(form.dtype)
        assert form.largest == info.max
        assert form.smallest_normal == info.tiny
        assert form.epsilon == info.eps
        assert form.bits == info.bits

    @every_small_format
    def test_every_pattern_is_a_value_that_stays(self, form):
        values = patterns(form)
        want = values if form.infinities else values.clamp(-form.largest, form.largest)
        same(form.round(values), want)
        assert values[values > 0].min() == form.smallest_subnormal

    @every_torch_format
    @pytest.mark.parametrize("make", [float32s, edges], ids=["drawn", "edges"])
    def test_rounding_is_the_conversion(self, form, make):
        x = make(form) if make is edges else make()
        same(form.round(x), x.to(form.dtype).double())

    @every_small_format
    def test_bits_are_the_pattern(self, form):
        step = 1 if form.bits == 8 else 7
        for pattern, value in list(enumerate(patterns(form).tolist()))[::step]:
            if math.isnan(value) or math.isinf(value):
                continue
            assert int("".join(form.bits_of(value)), 2) == pattern

    @pytest.mark.parametrize("x", [1.0, -0.0, 0.1, -3e38, 1e-40, 1.4e-45, math.inf, -math.inf])
    def test_bits_of_float32(self, x):
        (pattern,) = struct.unpack(">I", struct.pack(">f", x))
        bits = FORMATS["float32"].bits_of(x)
        assert "".join(bits) == f"{pattern:032b}"
        assert [len(part) for part in bits] == [1, 8, 23]

    @every_torch_format
    @pytest.mark.parametrize("x", [math.inf, -math.inf, math.nan])
    def test_bits_of_what_is_no_number(self, form, x):
        pattern = int("".join(form.bits_of(x)), 2)
        signed = pattern - 2**form.bits if form.bits == 32 and pattern >= 2**31 else pattern
        read = torch.tensor([signed], dtype=INTEGERS[form.bits]).view(form.dtype).double()
        same(read, form.round(torch.tensor([x])))

    def test_float64_is_rounded_once(self):
        x = torch.tensor([1 + 2**-11 + 2**-40], dtype=torch.float64)  # PyTorch: float32 first, then a tie
        assert FORMATS["float16"].round(x).item() == 1 + 2**-10
        assert x.half().item() == 1


def nearest(x, form):
    """The nearest value by exact fractions, ties to even, no overflow."""
    exponent = max(math.frexp(x)[1] - 1, 1 - form.bias)
    unit = Fraction(2) ** (exponent - form.fraction_bits)
    return math.copysign(float(round(Fraction(x) / unit) * unit), x)  # Python rounds ties to even


@every_format
def test_float64_against_exact_fractions(form):
    generator = torch.Generator().manual_seed(1)
    low, high = 1 - form.bias - form.fraction_bits - 2, math.frexp(form.largest)[1] - 1
    scale = torch.randint(low, high, (2003,), generator=generator).double()
    x = (1 + torch.rand(2003, generator=generator, dtype=torch.float64)) * 2**scale
    x = torch.cat([x, -x, 2**scale + 2.0 ** (scale - form.fraction_bits - 1)])  # and ties
    same(form.round(x), torch.tensor([nearest(v, form) for v in x.tolist()], dtype=torch.float64))


def tf32_by_integers(pattern):
    """The 13 last of float32's 23 digits rounded away, on the bits."""
    if pattern & 0x7F800000 == 0x7F800000:
        return pattern
    return (pattern + 0xFFF + (pattern >> 13 & 1)) & ~0x1FFF & 0xFFFFFFFF


def test_tf32_against_integers():
    x = torch.cat([float32s(20_011), edges(FORMATS["tf32"])[:9001]])
    x = x[~x.isnan()]
    words = [p & 0xFFFFFFFF for p in x.view(torch.int32).tolist()]
    want = struct.unpack(f">{len(words)}f", struct.pack(f">{len(words)}I", *map(tf32_by_integers, words)))
    same(FORMATS["tf32"].round(x), torch.tensor(want, dtype=torch.float32).double())


class TestStandard:
    @pytest.mark.parametrize(
        ("name", "largest", "normal", "subnormal"),
        [
            ("float32", (2 - 2**-23) * 2**127, 2**-126, 2**-149),
            ("tf32", (2 - 2**-10) * 2**127, 2**-126, 2**-136),
            ("bfloat16", (2 - 2**-7) * 2**127, 2**-126, 2**-133),
            ("float16", 65504, 2**-14, 2**-24),
            ("float8 e4m3", 448, 2**-6, 2**-9),
            ("float8 e5m2", 57344, 2**-14, 2**-16),
        ],
    )
    def test_ranges(self, name, largest, normal, subnormal):
        form = FORMATS[name]
        assert (form.largest, form.smallest_normal, form.smallest_subnormal) == (largest, normal, subnormal)

    def test_order_and_widths(self):
        assert list(FORMATS) == ["float32", "tf32", "bfloat16", "float16", "float8 e4m3", "float8 e5m2"]
        for name, form in FORMATS.items():
            assert form.name == name
            assert form.bits == 1 + form.exponent_bits + form.fraction_bits

    @pytest.mark.parametrize(("name", "digits"), [("float32", 7.2), ("bfloat16", 2.4), ("float16", 3.3)])
    def test_decimal_digits(self, name, digits):
        assert round(FORMATS[name].decimal_digits, 1) == digits

    def test_known_bits(self):
        assert FORMATS["float16"].bits_of(-1.5) == Bits("1", "01111", "1000000000")
        assert FORMATS["float8 e4m3"].bits_of(448) == Bits("0", "1111", "110")
        assert FORMATS["tf32"].bits_of(math.nan) == Bits("0", "1" * 8, "1" + "0" * 9)
        assert FORMATS["tf32"].bits_of(2**-136) == Bits("0", "0" * 8, "0" * 9 + "1")


@every_small_format
def test_neighbours_of_every_value(form):
    values = patterns(form)
    values = values[values.isfinite()].unique().tolist()
    step = 1 if form.bits == 8 else 13
    ends = {values[0]: 1, values[-1]: 1}
    for i in range(1, len(values) - 1, step):
        assert form.neighbours(values[i]) == (values[i - 1], values[i], values[i + 1])
    for value in ends:
        below, at, above = form.neighbours(value)
        assert at == value
        outer, inner = (above, below) if value > 0 else (below, above)
        assert inner == (values[-2] if value > 0 else values[1])
        assert outer == math.copysign(math.inf, value) if form.infinities else math.isnan(outer)


@every_format
class TestNeighbours:
    def test_of_zero(self, form):
        for zero in (0.0, -0.0):
            assert form.neighbours(zero) == (-form.smallest_subnormal, 0, form.smallest_subnormal)
        assert math.copysign(1, form.neighbours(form.smallest_subnormal).below) == 1
        assert math.copysign(1, form.neighbours(-form.smallest_subnormal).above) == 1

    def test_around_a_power_of_two(self, form):
        assert form.neighbours(2) == (2 - form.epsilon, 2, 2 + 2 * form.epsilon)
        assert form.neighbours(-2.0) == (-2 - 2 * form.epsilon, -2, -2 + form.epsilon)

    def test_a_number_lies_between(self, form):
        below, at, above = form.neighbours(0.3)
        assert below < 0.3 < above
        assert abs(at - 0.3) <= min(0.3 - below, above - 0.3)

    def test_of_nan(self, form):
        assert all(math.isnan(x) for x in form.neighbours(math.nan))

    def test_of_infinity(self, form):
        below, at, above = form.neighbours(math.inf)
        assert math.isnan(above)
        if form.infinities:
            assert (below, at) == (form.largest, math.inf)
            assert form.neighbours(-math.inf).above == -form.largest
        else:
            assert at == form.largest


@every_format
class TestSpacing:
    def test_is_the_distance_to_the_next_magnitude(self, form):
        for x in (1.0, -1.0, 1.5, 2.0, 0.75, form.smallest_normal, form.smallest_subnormal, -3.0):
            x = form.neighbours(x).nearest
            next_one = form.neighbours(x).above if x > 0 else form.neighbours(x).below
            assert form.spacing(torch.tensor(x)).item() == abs(next_one - x)

    def test_at_the_ends(self, form):
        x = torch.tensor([0.0, form.largest, form.largest * 1.5, math.inf, math.nan], dtype=torch.float64)
        zero, top, *beyond = form.spacing(x).tolist()
        assert zero == form.smallest_subnormal
        assert top == form.largest - form.neighbours(form.largest).below
        assert all(math.isnan(v) for v in beyond)


def test_rounding_keeps_sizes_and_input():
    x = torch.randn(2, 3, 5, requires_grad=True)
    before = x.detach().clone()
    got = FORMATS["bfloat16"].round(x)
    assert got.shape == x.shape
    assert got.dtype == torch.float64
    assert not got.requires_grad
    assert torch.equal(x, before)
    y = x.detach().double()
    before = y.clone()
    FORMATS["bfloat16"].round(y)
    assert torch.equal(y, before)
    assert FORMATS["float16"].round(torch.empty(0, 3)).shape == (0, 3)


def test_every_layout():
    form, x = FORMATS["float16"], torch.randn(6, 8, dtype=torch.float64)
    negative = torch.complex(x, x).conj().imag  # PyTorch notes its sign, and keeps the numbers of x
    for view in (x.T, x[::2, 1::3], x[:1].expand(5, 8), x[0, 0], negative, x.half()):
        plain = torch.tensor(view.tolist(), dtype=torch.float64)
        same(form.round(view), form.round(plain))
        same(form.spacing(view), form.spacing(plain))


@every_format
def test_integers_beyond_every_float(form):
    for x, infinity in ((10**400, math.inf), (-(10**400), -math.inf)):
        assert form.bits_of(x) == form.bits_of(infinity)
        assert form.neighbours(x).nearest == form.neighbours(infinity).nearest


@pytest.mark.unchecked
class TestBadInput:
    @pytest.mark.parametrize("method", ["round", "spacing"])
    @pytest.mark.parametrize("x", [torch.arange(3), [1.0], 1.0])
    def test_no_floating_tensor(self, method, x):
        with pytest.raises(TypeError, match="x must be a floating point tensor, got"):
            getattr(FORMATS["float16"], method)(x)

    @pytest.mark.parametrize("method", ["bits_of", "neighbours"])
    @pytest.mark.parametrize("x", ["1", None, True, torch.ones(1)])
    def test_no_number(self, method, x):
        with pytest.raises(TypeError, match="x must be a number, got"):
            getattr(FORMATS["float16"], method)(x)


def test_a_format_cannot_be_changed():
    with pytest.raises(AttributeError):
        FORMATS["float16"].bias = 3
    assert isinstance(FORMATS["float16"], Format)
