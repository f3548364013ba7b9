"""Positions while a graph is traced, one graph for all lengths; under vmap; on the meta device; copied and loaded."""

import copy

import pytest
import torch
from torch.testing import assert_close

from mha_course.positions import Learned, Rotary, Sinusoidal, T5Bias, alibi

YARN = {"scaling": "yarn", "factor": 4.0, "trained_length": 128}


class Biased(torch.nn.Module):
    """Adds a score_bias to scores (B, H, T, S), so that lengths are read from a tensor."""

    def __init__(self, make, **options):
        super().__init__()
        self.bias, self.options = make, options

    def forward(self, x, *, offset=0):
        return x + self.bias(*x.shape[-2:], offset=offset, **self.options)


MODULES = {
    "sinusoidal": lambda: Sinusoidal(4),
    "learned": lambda: Learned(40, 4),
    "rotary": lambda: Rotary(4),
    "interleaved": lambda: Rotary(4, rotary_dim=2, interleaved=True, **YARN),
    "ntk": lambda: Rotary(4, scaling="ntk", factor=2.0),
    "alibi": lambda: Biased(alibi, num_heads=3),
    "T5": lambda: Biased(T5Bias(3)),
    "causal T5": lambda: Biased(T5Bias(3, bidirectional=False)),
}
EACH = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)


def x(T, dtype=torch.float32):
    return torch.randn(2, 3, T, 4, generator=torch.Generator().manual_seed(T), dtype=dtype)


@EACH
@pytest.mark.unchecked
def test_one_graph_serves_every_length_and_offset(make):
    torch._dynamo.reset()
    module = make()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for T in range(3, 15):  # more than there may be graphs
        assert_close(compiled(x(T)), module(x(T)))
    for offset in range(3, 15):
        assert_close(compiled(x(1), offset=offset), module(x(1), offset=offset))


@EACH
@pytest.mark.unchecked
@pytest.mark.parametrize("strict", [True, False])
def test_exports_with_a_length_that_is_not_known_yet(make, strict):
    module = make()
    length = {2: torch.export.Dim("T", min=2, max=40)}
    exported = torch.export.export(module, (x(5),), dynamic_shapes=(length,), strict=strict).module()
    for T in (2, 7, 40):
        assert_close(exported(x(T)), module(x(T)))


@EACH
@pytest.mark.unchecked
def test_vmap(make):
    module = make()
    assert_close(torch.vmap(module)(x(5)), module(x(5)))
    second = torch.vmap(lambda x: module(x.unsqueeze(0), offset=7)[0], in_dims=0)(x(5))
    assert_close(second, module(x(5), offset=7))


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"alibi"}))
def test_meta_device(name):
    got = MODULES[name]().to("meta")(x(5).to("meta"))
    assert (got.device.type, got.shape) == ("meta", (2, 3, 5, 4))


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"alibi"}))
def test_the_default_device_does_not_matter(name):
    module = MODULES[name]()
    here = x(5)
    before = module(here, offset=2)
    with torch.device("meta"):
        assert_close(module(here, offset=2), before)


@EACH
def test_copied_and_loaded(make):
    module, other = make(), make()
    before = module(x(5), offset=2)
    twin = copy.deepcopy(module)
    other.load_state_dict(module.state_dict())
    assert_close(other(x(5), offset=2), before, rtol=0, atol=0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert_close(twin(x(5), offset=2), before, rtol=0, atol=0)


def test_what_is_stored():
    stored = {name: {n: tuple(p.shape) for n, p in make().state_dict().items()} for name, make in MODULES.items()}
    assert stored == {
        **{name: {} for name in MODULES},
        "learned": {"weight": (40, 4)},
        "T5": {"bias.weight": (32, 3)},
        "causal T5": {"bias.weight": (32, 3)},
    }
