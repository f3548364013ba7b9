"""QuantizedLinear equals integer arithmetic, bit for bit, and can be saved and loaded."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mha_course.quantization import Affine, Observer, QuantizedLinear, dequantize, find_affine, quantize
from mha_course.quantization.linear import _of_each_token
from mha_course.quantization.packing import codes_per_byte, pack, unpack
from tests.quantization.drawn import drawn, relative

EXACT = {"rtol": 0, "atol": 0}


def linear(K: int = 35, N: int = 7, bias: bool = True, seed: int = 0) -> nn.Linear:
    made = nn.Linear(K, N, bias=bias)
    made.weight.data = drawn(N, K, seed=seed) * torch.linspace(0.1, 3, N)[:, None]
    if bias:
        made.bias.data = drawn(N, seed=seed + 1)
    return made


def static(x: torch.Tensor, bits: int = 8, symmetric: bool = True) -> Affine:
    observer = Observer()
    observer.see(x)
    return observer.affine(bits, symmetric=symmetric, calibration="percentile", percent=95)


def whole(x_codes: torch.Tensor, x_zero: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """The product of codes in Python's own whole numbers, which never overflow."""
    x, w = (x_codes.long() - x_zero).flatten(0, -2).tolist(), codes.long().tolist()
    sums = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in w] for row in x]
    return torch.tensor(sums).view(*x_codes.shape[:-1], len(w))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("per", ["tensor", "channel"])
@pytest.mark.parametrize(
    ("bits", "inputs"),
    [(8, "dynamic"), (4, "dynamic"), (2, "dynamic"), (16, "dynamic"), (8, (8, True)), (8, (8, False)), (3, (5, False))],
    ids=str,
)
@pytest.mark.parametrize("K", [35, 1601])
def test_it_is_the_product_of_whole_numbers_and_one_scale(bits, inputs, per, bias, K):
    source, x = linear(K=K, bias=bias), 2 * drawn(2, 3, K, seed=5)
    activations = inputs if inputs == "dynamic" else static(x, *inputs)
    layer = QuantizedLinear.from_float(source, bits=bits, per=per, activations=activations)
    w_affine = find_affine(source.weight.detach(), bits, per=per)
    x_affine = find_affine(x, 8, per="channel") if inputs == "dynamic" else activations
    total = whole(quantize(x, x_affine), x_affine.zero_point, quantize(source.weight.detach(), w_affine))
    out = total.float() * (x_affine.scale * w_affine.scale.flatten())
    assert_close(layer(x), out + source.bias.detach() if bias else out, **EXACT)


def test_sums_at_the_edge_of_float32_are_exact():
    # 1041 * 127 * 127 is above 2^24, 1040 * 127 * 127 below it
    for K in (1040, 1041, 5000):
        source = nn.Linear(K, 1, bias=False)
        source.weight.data.fill_(1.0)
        source.weight.data[0, 0] = 1 / 127
        layer = QuantizedLinear.from_float(source, activations="dynamic")
        layer.scale = torch.ones(1, 1)
        total = layer._product(torch.full((1, K), 127.0), 127)
        assert total.item() == 127 * 127 * (K - 1) + 127
        assert total.dtype == (torch.float32 if K == 1040 else torch.float64)
    wide = QuantizedLinear.from_float(linear(K=3), bits=16)
    assert wide._product(torch.ones(1, 3), 127).dtype == torch.float64, "TF32 would round codes of 16 bits"


def test_dynamic_scales_are_those_of_find_affine():
    x = drawn(2, 3, 35)
    x[0, 1] = 0
    assert_close(_of_each_token(x), find_affine(x, 8, per="channel"), **EXACT)


@pytest.mark.parametrize("per", ["tensor", "channel", 5])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8, 9, 16])
def test_weights_alone(bits, per):
    source, x = linear(), drawn(2, 3, 35, seed=5)
    layer = QuantizedLinear.from_float(source, bits=bits, per=per)
    affine = find_affine(source.weight.detach(), bits, per=per)
    codes = quantize(source.weight.detach(), affine)
    assert_close(layer.weight_codes.to(torch.int32), codes.to(torch.int32), **EXACT)
    assert_close(layer.weight, dequantize(codes, affine), **EXACT)
    assert_close(layer(x), nn.functional.linear(x, dequantize(codes, affine), source.bias.detach()), **EXACT)
    assert layer.codes.shape == (7, {2: 9, 3: 18, 4: 18}.get(bits, 35))
    assert layer.codes.element_size() == (2 if bits > 8 else 1)


def test_calibration_is_passed_on():
    source = linear()
    layer = QuantizedLinear.from_float(source, bits=2, calibration="mse")
    assert_close(layer.scale, find_affine(source.weight.detach(), 2, per="channel", calibration="mse").scale, **EXACT)


def test_eight_bits_are_near_the_float_layer():
    source, x = linear(), drawn(2, 3, 35, seed=5)
    for activations in (None, "dynamic", static(3 * x)):
        assert relative(QuantizedLinear.from_float(source, activations=activations)(x), source(x)) < 0.05


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
def test_packing_is_undone(bits):
    top = 2 ** (bits - 1) - 1
    for K in (1, 2, 5, 8):
        codes = torch.randint(-top, top + 1, (3, K), generator=torch.Generator().manual_seed(K)).to(torch.int8)
        codes[0] = top
        codes[1] = -top
        packed = pack(codes, bits)
        assert packed.shape == (3, -(-K // codes_per_byte(bits)))
        assert_close(unpack(packed, bits, K), codes, **EXACT)
    assert [codes_per_byte(b) for b in (2, 3, 4, 5, 8)] == [4, 2, 2, 1, 1]
    assert pack(torch.tensor([[1, -1]], dtype=torch.int8), 4).item() == 9 + 16 * 7, "the first stands lowest"


@pytest.mark.parametrize("kind", ["weights", "four bits", "groups", "dynamic", "static"])
class TestState:
    x = drawn(2, 35, seed=5)

    def options(self, kind):
        return {
            "weights": {"bits": 8},
            "four bits": {"bits": 4},
            "groups": {"bits": 3, "per": 7},
            "dynamic": {"activations": "dynamic", "per": "tensor"},
            "static": {"activations": static(self.x, symmetric=False)},
        }[kind]

    def test_saved_and_loaded_into_a_fresh_one(self, kind):
        layer = QuantizedLinear.from_float(linear(), **self.options(kind))
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        options = self.options(kind)
        if kind == "static":  # another range: that of the file counts
            options["activations"] = static(9 * self.x, symmetric=False)
        fresh = QuantizedLinear(35, 7, **options)
        assert not torch.equal(fresh(self.x), layer(self.x))
        fresh.load_state_dict(torch.load(file, weights_only=True))
        assert_close(fresh(self.x), layer(self.x), **EXACT)

    def test_copied(self, kind):
        layer = QuantizedLinear.from_float(linear(), **self.options(kind))
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert_close(other(self.x), layer(self.x), **EXACT)

    def test_codes_of_another_width_are_refused(self, kind):
        options = self.options(kind)
        layer = QuantizedLinear.from_float(linear(), **options)
        others = [options | {"bits": 3 if options.get("bits") == 4 else 4}, options | {"bits": 16}]
        if kind == "static":
            others += [options | {"activations": static(self.x, *other)} for other in ((8, True), (7, False))]
        for other in others:
            fresh = nn.ModuleList([QuantizedLinear(35, 7, **other)])
            with pytest.raises(ValueError, match=r"state_dict must hold codes of \[.*\] \(bits; .*\), got \["):
                fresh.load_state_dict(nn.ModuleList([layer]).state_dict(), strict=False)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_in_half_precision_scales_stay_and_sums_fit(self, kind, dtype):
        wide = linear(K=2002)
        wide.weight.data.abs_()
        options = self.options(kind)
        if kind == "groups":
            options["per"] = 11
        layer, x = QuantizedLinear.from_float(wide, **options), drawn(2, 2002, seed=5).abs()
        small = copy.deepcopy(layer).to(dtype)
        assert small.scale.dtype == torch.float32
        assert small.bias.dtype == dtype
        assert_close(small.weight, layer.weight, **EXACT)
        assert small(x.to(dtype)).dtype == dtype
        assert relative(small(x.to(dtype)).float(), layer(x)) < 0.02
        assert copy.deepcopy(layer).double().scale.dtype == torch.float64
        assert copy.deepcopy(layer).to("meta").scale.is_meta

    def test_nothing_is_trained(self, kind):
        layer = QuantizedLinear.from_float(linear().eval(), **self.options(kind))
        assert list(layer.parameters()) == []
        assert not layer.training
        assert not layer(self.x).requires_grad


def test_the_source_and_its_bias_stay_apart():
    source = linear()
    layer = QuantizedLinear.from_float(source)
    source.bias.data.zero_()
    assert layer.bias.abs().min() > 0


def test_gradients_pass_to_the_input_with_float_activations():
    layer = QuantizedLinear.from_float(linear())
    x = drawn(2, 35).requires_grad_()
    layer(x).sum().backward()
    assert_close(x.grad, layer.weight.sum(0).expand(2, 35))


def test_where_inputs_are_rounded_their_gradient_is_zero():
    x = drawn(2, 35).requires_grad_()
    for activations in ("dynamic", static(drawn(5))):
        (grad,) = torch.autograd.grad(QuantizedLinear.from_float(linear(), activations=activations)(x).sum(), x)
        assert_close(grad, torch.zeros(2, 35), **EXACT)


@pytest.mark.parametrize("activations", [None, "dynamic", "static"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types(dtype, activations):
    source, x = linear(), drawn(2, 35, seed=5)
    given = static(x) if activations == "static" else activations
    layer = QuantizedLinear.from_float(source, activations=given)
    out = layer(x.to(dtype))
    assert out.dtype == dtype
    assert relative(out.double(), layer(x).double()) < 0.02
    half = QuantizedLinear.from_float(source.to(dtype), activations=given)
    assert half(x.to(dtype)).dtype == dtype


def test_autocast_does_not_round_the_sums():
    layer, x = QuantizedLinear.from_float(linear(K=400), activations="dynamic"), drawn(3, 400)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(layer(x), layer(x.clone()), **EXACT)
        inside = layer(x)
    assert_close(inside, layer(x), **EXACT)
    weights = QuantizedLinear.from_float(linear(K=400))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert weights(x).dtype == torch.bfloat16


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(bad):
    x = drawn(3, 35)
    x[1, 4] = bad
    x[0] = 0
    clean = x.clone()
    clean[1] = 1
    for activations in ("dynamic", static(clean)):
        layer = QuantizedLinear.from_float(linear(), activations=activations)
        out = layer(x)
        assert_close(out[[0, 2]], layer(clean)[[0, 2]], **EXACT)
        clipped = activations != "dynamic" and bad == float("inf")
        assert torch.isfinite(out[1]).all() if clipped else torch.isnan(out[1]).all()


def test_odd_sizes():
    layer = QuantizedLinear.from_float(linear(), activations="dynamic")
    assert layer(torch.zeros(0, 35)).shape == (0, 7)
    assert layer(torch.zeros(35)).shape == (7,)
    assert_close(layer(torch.zeros(2, 35)), layer.bias.expand(2, 7), **EXACT)
    zero = nn.Linear(3, 2)
    nn.init.zeros_(zero.weight)
    for bits in (2, 8):
        assert_close(QuantizedLinear.from_float(zero, bits=bits)(torch.ones(1, 3))[0], zero.bias.detach(), **EXACT)


def test_repr():
    made = QuantizedLinear.from_float(linear(), bits=4, activations=static(drawn(5)))
    said = "in_features=35, out_features=7, bias=True, bits=4, per='channel', activations='static'"
    assert repr(made) == f"QuantizedLinear({said})"
    assert "activations=None" in repr(QuantizedLinear(3, 2))


@pytest.mark.unchecked
class TestBadInput:
    def test_not_a_linear(self):
        for bad in (nn.Conv1d(3, 2, 1), QuantizedLinear(3, 2)):
            with pytest.raises(TypeError, match=f"linear must be an nn.Linear, got {type(bad).__name__}"):
                QuantizedLinear.from_float(bad)

    def test_weights_that_are_not_finite(self):
        source = linear()
        source.weight.data[2, 3] = float("nan")
        with pytest.raises(ValueError, match=r"^linear.weight must be finite, got NaN or infinity at 1 of 245 places"):
            QuantizedLinear.from_float(source)

    @pytest.mark.parametrize(
        ("options", "error", "says"),
        [
            ({"bits": 1}, ValueError, r"bits must lie in \[2, 16\], got 1: with a code for 0"),
            ({"per": "row"}, ValueError, "per must be 'tensor', 'channel' or the size of a group"),
            ({"per": 4}, ValueError, "per, the size of a group, must divide in_features, got 4 and 35"),
            ({"bias": 1}, TypeError, "bias must be True or False"),
            ({"activations": "static"}, TypeError, "activations must be None, \"dynamic\" or an Affine, got 'static'"),
            ({"activations": "dynamic", "per": 5}, ValueError, "activations must be None with groups"),
            ({"activations": find_affine(torch.ones(3), 9, per="tensor")}, ValueError, "at most 8 bits, got 9"),
            (
                {"activations": find_affine(torch.ones(3), 8, per="channel")},
                ValueError,
                r"without axes, got a scale \(1",
            ),
        ],
    )
    def test_options(self, options, error, says):
        with pytest.raises(error, match=says):
            QuantizedLinear(35, 7, **options)

    def test_calibration(self):
        with pytest.raises(ValueError, match=r"calibration must be"):
            QuantizedLinear.from_float(linear(), calibration="best")

    def test_sizes(self):
        with pytest.raises(ValueError, match=r"in_features must be at least 1, got 0"):
            QuantizedLinear(0, 7)
        with pytest.raises(TypeError, match=r"out_features must be an integer, got float"):
            QuantizedLinear(7, 2.0)

    def test_x(self):
        layer = QuantizedLinear(5, 3)
        with pytest.raises(ValueError, match=r"x must be \(..., K\) with K = in_features = 5, got \(2, 4\)"):
            layer(torch.ones(2, 4))
        with pytest.raises(ValueError, match=r"got \(\)"):
            layer(torch.tensor(1.0))
        with pytest.raises(TypeError, match=r"x must be floating point"):
            layer(torch.ones(2, 5, dtype=torch.int64))
