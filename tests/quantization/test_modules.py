"""quantize_module: what is replaced, what stays, what is refused; and the size of it."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

from mha_course import MultiHeadAttention
from mha_course.models import Decoder
from mha_course.quantization import QuantizedLinear, observe, quantize_module, size_in_bytes
from tests.quantization.drawn import drawn, relative

EXACT = {"rtol": 0, "atol": 0}
NAMES = ["q_proj", "k_proj", "v_proj", "out_proj"]


def layer(**options) -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(66, 6, num_kv_heads=2, **options).eval()


def test_the_four_projections_are_replaced_and_the_source_is_not():
    source, x = layer(), drawn(2, 5, 66)
    before = source(x)
    made = quantize_module(source, bits=5, per=11, calibration="mse")
    for name in NAMES:
        linear, quantized = getattr(source, name), getattr(made, name)
        expected = QuantizedLinear.from_float(linear, bits=5, per=11, calibration="mse")
        assert type(linear) is nn.Linear
        assert_close(quantized.state_dict(), expected.state_dict(), **EXACT)
        assert not quantized.training
    assert_close(source(x), before, **EXACT)


@pytest.mark.parametrize("activations", [None, "dynamic", "static"])
def test_near_the_float_module_with_masks_and_all(activations):
    source, x = layer(), drawn(2, 5, 66)
    given = activations
    if activations == "static":
        with observe(source) as seen:
            source(drawn(70, 5, 66, seed=1), is_causal=True)
        given = {name: observer.affine(8) for name, observer in seen.items()}
    made = quantize_module(source, activations=given)
    assert 0 < relative(made(x, is_causal=True), source(x, is_causal=True)) < 0.04
    assert made.q_proj.static == (given["q_proj"] if activations == "static" else None)


def test_observe_sees_the_inputs_of_each_map_and_then_no_more():
    source, batches = layer(), [drawn(2, 5, 66, seed=s) for s in (1, 2)]
    with observe(source, skip=["v_proj"]) as seen:
        heads = [source.trace(x, is_causal=True).heads for x in batches]
    source(batches[0])
    assert list(seen) == ["q_proj", "k_proj", "out_proj"]
    assert all(observer.batches == 2 for observer in seen.values())
    for name, what in (("k_proj", batches), ("out_proj", heads)):
        largest = max(x.abs().max().item() for x in what)
        assert_close(seen[name].affine(8).scale.item(), largest / 127, rtol=1e-5, atol=0)
    with pytest.raises(KeyError), observe(source):
        raise KeyError
    assert all(not linear._forward_pre_hooks for linear in source.children())


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = self.other = nn.Linear(5, 5)
        self.rest = nn.ModuleDict({"deep": nn.Linear(5, 3), "norm": nn.LayerNorm(5), "table": nn.Embedding(7, 5)})


def test_one_map_under_two_names_stays_one_and_all_else_stays():
    source = Both()
    made = quantize_module(source)
    assert made.one is made.other
    assert isinstance(made.one, QuantizedLinear)
    assert isinstance(made.rest["deep"], QuantizedLinear)
    assert sorted(made.state_dict().keys() & source.state_dict().keys()) == [
        *("one.bias", "other.bias", "rest.deep.bias"),
        *("rest.norm.bias", "rest.norm.weight", "rest.table.weight"),
    ]
    assert isinstance(quantize_module(nn.Linear(3, 2)), QuantizedLinear)


@pytest.mark.parametrize("skip", ["rest", ["rest.deep"], ("rest.norm", "rest.deep")])
def test_skip(skip):
    made = quantize_module(Both(), skip=skip)
    assert type(made.rest["deep"]) is nn.Linear
    assert isinstance(made.one, QuantizedLinear)


def test_a_subclass_stays_and_a_skipped_attention_is_no_matter():
    class Own(nn.Linear):
        pass

    module = nn.ModuleList([Own(3, 2), nn.Linear(3, 2), nn.MultiheadAttention(6, 2)])
    made = quantize_module(module, skip=["2"])
    assert [type(part) for part in made] == [Own, QuantizedLinear, nn.MultiheadAttention]


def test_saved_and_loaded_into_a_fresh_one():
    made, x = quantize_module(layer(), bits=4), drawn(2, 5, 66)
    torch.manual_seed(5)
    fresh = quantize_module(MultiHeadAttention(66, 6, num_kv_heads=2).eval(), bits=4)
    assert relative(fresh(x), made(x)) > 0.5
    fresh.load_state_dict(made.state_dict())
    assert_close(fresh(x), made(x), **EXACT)


def test_size_by_hand():
    source = nn.Linear(40, 7)
    assert size_in_bytes(source) == 4 * (7 * 40 + 7)
    assert size_in_bytes(quantize_module(source)) == 7 * 40 + 4 * (7 + 7) + 1, "a byte says how wide a code is"
    assert size_in_bytes(quantize_module(source, per="tensor")) == 7 * 40 + 4 * (1 + 7) + 1
    assert size_in_bytes(quantize_module(source, bits=4)) == 7 * 20 + 4 * (7 + 7) + 1
    assert size_in_bytes(quantize_module(source, bits=2, per=10)) == 7 * 10 + 4 * (7 * 4 + 7) + 1
    assert size_in_bytes(quantize_module(source, bits=16)) == 7 * 80 + 4 * (7 + 7) + 1
    tied = Decoder(11, 6, 2, 0, positions=None)
    assert size_in_bytes(tied) == 4 * (11 * 6 + 2 * 6), "one matrix under two names"
    assert size_in_bytes(nn.ModuleList()) == 0
    for same in (
        Decoder(11, 6, 2, 0, positions=None, device="meta"),
        nn.ModuleList([nn.Linear(5, 3, device="meta")] * 2),
    ):
        assert size_in_bytes(same) == sum(4 * p.numel() for p in same.parameters()), "no address to tell them by"


def test_eight_bits_take_at_most_27_percent():
    for E in (512, 1024):
        source = MultiHeadAttention(E, 8)
        assert size_in_bytes(quantize_module(source)) <= 0.27 * size_in_bytes(source)


def test_size_of_what_torch_ao_made():
    source = nn.Linear(40, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.ao.quantization.quantize_dynamic(nn.Sequential(source), {nn.Linear}, dtype=torch.qint8)
        size = size_in_bytes(made)
    assert 7 * 40 + 4 * 7 <= size <= 7 * 40 + 4 * 7 + 32


@pytest.mark.unchecked
class TestBadInput:
    def test_nothing_to_quantize(self):
        for module, name in ((nn.LayerNorm(3), "LayerNorm"), (nn.ModuleList(), "ModuleList")):
            with pytest.raises(ValueError, match=f"nothing would be quantized: module, a {name}, has no nn.Linear"):
                quantize_module(module)
        with pytest.raises(ValueError, match=r"nothing would be quantized"):
            quantize_module(layer(), skip=NAMES)
        with pytest.raises(TypeError, match=r"module must be an nn.Module, got int"):
            quantize_module(3)
        with pytest.raises(TypeError, match=r"module must be an nn.Module, got int"):
            size_in_bytes(3)

    def test_pytorchs_attention(self):
        says = "nothing would be quantized in {}, an nn.MultiheadAttention: .* take MultiHeadAttention.from_torch"
        theirs = nn.MultiheadAttention(6, 2, batch_first=True)
        with pytest.raises(ValueError, match=says.format("module")):
            quantize_module(theirs)
        with pytest.raises(ValueError, match=says.format("module.self_attn")):
            quantize_module(nn.TransformerEncoderLayer(6, 2))
        assert isinstance(quantize_module(MultiHeadAttention.from_torch(theirs)).q_proj, QuantizedLinear)

    def test_twice(self):
        with pytest.raises(ValueError, match=r"module.q_proj is quantized already: start from the module in floating"):
            quantize_module(quantize_module(layer()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            old = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 2)), {nn.Linear}, dtype=torch.qint8)
            with pytest.raises(ValueError, match=r"module.0 is quantized already"):
                quantize_module(old)

    def test_parametrized(self):
        module = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 2)))
        with pytest.raises(ValueError, match=r"the weights of module.0 are parametrized: convert or remove that first"):
            quantize_module(module)

    def test_hooks(self):
        for register in ("register_forward_hook", "register_forward_pre_hook"):
            module = nn.Sequential(nn.Linear(3, 2))
            getattr(module[0], register)(lambda *given: None)
            with pytest.raises(ValueError, match=r"linear must have no hooks, which would be lost: remove them first"):
                quantize_module(module)

    def test_names(self):
        with pytest.raises(ValueError, match=r"skip must name submodules, got 'rest.dip', which is not there"):
            quantize_module(Both(), skip=["rest.dip"])
        with pytest.raises(
            ValueError, match=r"activations must have an Affine for every nn.Linear, got none for 'q_proj'"
        ):
            quantize_module(layer(), activations={})
        with pytest.raises(ValueError, match=r"skip must name"), observe(layer(), skip=["a"]):
            pass
