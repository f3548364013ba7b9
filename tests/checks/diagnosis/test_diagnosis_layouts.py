"""The ways to read a module's weights as four projections."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mha_course.checks.diagnosis.layouts import MOST, Unreadable, readings
from mha_course.checks.diagnosis.steps import Inputs, run

E, H, D = 18, 3, 6


def core(q, k, v):
    """Attention of heads (B, H, T, D), merged."""
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def heads(x, count=H):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Module(nn.Module):
    """Parameters (name=shape) and linear layers (name=(in, out)); its forward is given."""

    def __init__(self, forward, layers=(), num_heads=H, **shapes):
        super().__init__()
        self.run = forward
        if num_heads:
            self.num_heads = num_heads
        for name, sizes in dict(layers).items():
            setattr(self, name, nn.Linear(*sizes))
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))

    def forward(self, x):
        return self.run(self, x)


def fits(reading, module, x):
    return torch.allclose(run(Inputs(x, x, x), reading.weights, {}).out, module(x), 1e-4, 1e-5)


def fitting(module, num_heads=None, width=E):
    """The reading that gives the module's numbers, and all readings; the first that fits."""
    torch.manual_seed(0)
    for p in module.parameters():
        nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    x = torch.randn(2, 5, width)
    found = readings(module, num_heads)
    return next((reading for reading in found if fits(reading, module, x)), None), found


SQUARE = (E, E)


def separate(names="q_proj k_proj v_proj out_proj", **options):
    q, k, v, o = names.split()

    def forward(self, x):
        return getattr(self, o)(core(*(heads(getattr(self, name)(x)) for name in (q, k, v))))

    return Module(forward, dict.fromkeys((q, k, v, o), SQUARE), **options)


@pytest.mark.parametrize(
    "names", ["q_proj k_proj v_proj out_proj", "Wq Wk Wv Wo", "query key value dense", "to_q to_k to_v proj"]
)
def test_separate_layers(names):
    reading, found = fitting(separate(names))
    assert reading is found[0]
    assert reading.remark == reading.fault == ""
    assert reading.used == set(names.split())
    assert (reading.weights.H, reading.weights.Hkv) == (H, H)


def test_layers_without_output_projection():
    module = Module(
        lambda self, x: core(*(heads(m(x)) for m in (self.q, self.k, self.v))), dict.fromkeys("qkv", SQUARE)
    )
    reading, _ = fitting(module)
    assert reading.weights.o is None


@pytest.mark.parametrize("order", list(itertools.permutations("qkv")))
def test_a_fused_layer_in_every_order(order):
    def forward(self, x):
        parts = dict(zip(order, self.qkv(x).chunk(3, -1), strict=True))
        return self.proj(core(*(heads(parts[letter]) for letter in "qkv")))

    reading, _ = fitting(Module(forward, {"qkv": (E, 3 * E), "proj": SQUARE}))
    assert reading is not None
    usual = "".join(order) == "qkv"
    assert (reading.remark == "") == usual
    assert usual or f"{', '.join(order)} in this order" in reading.remark


@pytest.mark.parametrize("order", ["kqv", "qvk", "vqk"])
def test_the_name_of_a_fused_layer_tells_its_order(order):
    def forward(self, x):
        parts = dict(zip(order, getattr(self, order)(x).chunk(3, -1), strict=True))
        return self.proj(core(*(heads(parts[letter]) for letter in "qkv")))

    reading, found = fitting(Module(forward, {order: (E, 3 * E), "proj": SQUARE}))
    assert reading is found[0]
    assert found[0].remark.startswith("as its name says, ")


@pytest.mark.parametrize("axes", [axes for axes in itertools.permutations("phd") if axes != ("p", "h", "d")])
def test_a_fused_layer_with_axes_in_every_order(axes):
    sizes = {"p": 3, "h": H, "d": D}

    def forward(self, x):
        y = self.qkv(x).unflatten(-1, [sizes[axis] for axis in axes])  # (B, T, *axes)
        q, k, v = y.permute(2 + axes.index("p"), 0, 2 + axes.index("h"), 1, 2 + axes.index("d"))
        return self.proj(core(q, k, v))

    reading, _ = fitting(Module(forward, {"qkv": (E, 3 * E), "proj": SQUARE}))
    assert reading is not None
    assert "another layout" in reading.remark
    assert reading.fault == ""


def test_keys_and_values_fused():
    def forward(self, x):
        k, v = self.to_kv(x).chunk(2, -1)
        return self.to_out(core(heads(self.to_q(x)), heads(k), heads(v)))

    reading, found = fitting(Module(forward, {"to_q": SQUARE, "to_kv": (E, 2 * E), "to_out": SQUARE}))
    assert reading is found[0]
    assert reading.remark == ""


def test_grouped_keys_and_values():
    def forward(self, x):
        k, v = (heads(m(x), 2).repeat_interleave(3, 1) for m in (self.k_proj, self.v_proj))
        return self.o_proj(core(heads(self.q_proj(x), 6), k, v))

    layers = {"q_proj": SQUARE, "k_proj": (E, 6), "v_proj": (E, 6), "o_proj": SQUARE}
    module = Module(forward, layers, num_heads=6)
    module.num_kv_heads = 2
    reading, found = fitting(module)
    assert reading is found[0]
    assert (reading.weights.H, reading.weights.Hkv) == (6, 2)


def test_grouped_and_fused():
    def forward(self, x):
        q, k, v = self.qkv(x).split([E, 6, 6], -1)
        k, v = (heads(y, 2).repeat_interleave(3, 1) for y in (k, v))
        return self.proj(core(heads(q, 6), k, v))

    module = Module(forward, {"qkv": (E, E + 12), "proj": SQUARE}, num_heads=6)
    module.num_kv_heads = 2
    reading, _ = fitting(module)
    assert reading.remark == ""
    assert reading.weights.Hkv == 2


class Conv1D(nn.Module):
    """GPT-2's: weight (in, out)."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out))
        self.bias = nn.Parameter(torch.randn(n_out))

    def forward(self, x):
        return x @ self.weight + self.bias


def test_layers_of_gpt2():
    module = Module(lambda self, x: self.c_proj(core(*(heads(y) for y in self.c_attn(x).chunk(3, -1)))))
    module.c_attn, module.c_proj = Conv1D(E, 3 * E), Conv1D(E, E)
    reading, found = fitting(module)
    assert reading is found[0]
    assert reading.remark == ""


BARE = dict.fromkeys(("W_q", "W_k", "W_v", "W_o"), SQUARE)


@pytest.mark.parametrize("inner", [True, False], ids=["x @ W", "F.linear"])
@pytest.mark.parametrize("outer", [True, False], ids=["x @ W", "F.linear"])
def test_bare_parameters_from_either_side(inner, outer):
    def times(x, W, right):
        return x @ W if right else F.linear(x, W)

    def forward(self, x):
        return times(core(*(heads(times(x, W, inner)) for W in (self.W_q, self.W_k, self.W_v))), self.W_o, outer)

    reading, _ = fitting(Module(forward, **BARE))
    assert reading is not None
    assert reading.remark == ""


def test_bare_parameters_with_biases():
    def forward(self, x):
        q, k, v = (heads(x @ W + b) for W, b in ((self.W_q, self.b_q), (self.W_k, self.b_k), (self.W_v, self.b_v)))
        return core(q, k, v) @ self.W_o + self.b_o

    module = Module(forward, **BARE, **dict.fromkeys(("b_q", "b_k", "b_v", "b_o"), (E,)))
    reading, _ = fitting(module)
    assert reading is not None
    assert all(m.bias is not None for m in reading.weights[:4])


@pytest.mark.parametrize("shape", ["HED", "EHD"])
@pytest.mark.parametrize("num_heads", [H, None])
def test_maps_with_an_axis_of_heads(shape, num_heads):
    sizes, letters = {"H": H, "E": E, "D": D}, {"HED": "hed", "EHD": "ehd"}[shape]

    def forward(self, x):
        q, k, v = (torch.einsum(f"bte,{letters}->bhtd", x, W) for W in (self.W_q, self.W_k, self.W_v))
        return core(q, k, v) @ self.W_o

    three = dict.fromkeys(("W_q", "W_k", "W_v"), tuple(sizes[letter] for letter in shape))
    reading, _ = fitting(Module(forward, num_heads=num_heads, **three, W_o=SQUARE))
    assert reading is not None
    assert reading.weights.H == H


@pytest.mark.parametrize(("letters", "shape"), [("hde", (H, D, E)), ("ehd", (E, H, D))])
def test_an_output_map_with_an_axis_of_heads(letters, shape):
    def forward(self, x):
        out = core(*(heads(x @ W) for W in (self.W_q, self.W_k, self.W_v))).unflatten(-1, (H, D))
        return torch.einsum(f"bthd,{letters}->bte", out, self.W_o)

    reading, _ = fitting(Module(forward, **(BARE | {"W_o": shape})))
    assert reading is not None


def test_one_layer_a_head():
    def forward(self, x):
        parts = zip(self.queries, self.keys, self.values, strict=True)
        return self.proj(torch.cat([core(*(m(x)[:, None] for m in three)) for three in parts], -1))

    module = Module(forward, {"proj": SQUARE}, num_heads=None)
    for name in ("queries", "keys", "values"):
        setattr(module, name, nn.ModuleList([nn.Linear(E, D) for _ in range(H)]))
    reading, found = fitting(module)
    assert reading is found[0]
    assert reading.weights.H == H
    assert reading.weights.q.weight.shape == (E, E)


def test_a_head_as_a_module_with_an_output_of_its_own():
    def forward(self, x):
        return sum(m.o(core(*(getattr(m, r)(x)[:, None] for r in "qkv"))) for m in self.heads_list)

    module = Module(forward, num_heads=None)
    module.heads_list = nn.ModuleList(
        [nn.ModuleDict({"q": nn.Linear(E, D), "k": nn.Linear(E, D), "v": nn.Linear(E, D), "o": nn.Linear(D, E)})
         for _ in range(H)])  # fmt: skip
    module.run = lambda self, x: sum(m["o"](core(*(m[r](x)[:, None] for r in "qkv"))) for m in self.heads_list)
    reading, _ = fitting(module)
    assert reading is not None
    assert reading.weights.o.weight.shape == (E, E)


def test_a_list_of_parameters_a_head():
    def forward(self, x):
        parts = zip(self.W_q, self.W_k, self.W_v, strict=True)
        return torch.cat([core(*((x @ W)[:, None] for W in three)) for three in parts], -1) @ self.W_o

    module = Module(forward, num_heads=None, W_o=SQUARE)
    for name in ("W_q", "W_k", "W_v"):
        setattr(module, name, nn.ParameterList([nn.Parameter(torch.randn(E, D)) for _ in range(H)]))
    reading, _ = fitting(module)
    assert reading is not None
    assert reading.weights.H == H


@pytest.mark.parametrize("n", [3, 4])
def test_one_stacked_parameter(n):
    def forward(self, x):
        merged = core(*(heads(x @ W) for W in self.weight[:3]))
        return merged @ self.weight[3] if n == 4 else merged

    reading, _ = fitting(Module(forward, weight=(n, E, E)))
    assert reading is not None
    assert (reading.weights.o is not None) == (n == 4)


@pytest.mark.parametrize("order", ["0123", "2103", "3120"])
def test_unnamed_layers_are_tried_in_every_order(order):
    def forward(self, x):
        q, k, v, o = (self.layers[int(i)] for i in order)
        return o(core(heads(q(x)), heads(k(x)), heads(v(x))))

    module = Module(forward)
    module.layers = nn.ModuleList([nn.Linear(E, E) for _ in range(4)])
    reading, found = fitting(module)
    assert reading is not None
    assert (reading is found[0]) == (order == "0123")
    assert ("found by trying" in reading.remark) == (order != "0123")


def test_heads_are_tried_from_the_divisors_of_the_width():
    reading, found = fitting(separate(num_heads=None))
    assert reading.weights.H == H
    assert "3 heads were assumed" in reading.remark
    assert {r.weights.H for r in found} == {1, 2, 3, 6, 9, 18}


@pytest.mark.parametrize("told", [None, 6])
def test_a_stated_number_of_heads_counts_more_than_an_attribute(told):
    found = readings(separate(num_heads=told), 3)
    assert {r.weights.H for r in found} == {3}
    assert found[0].remark == ""


@pytest.mark.parametrize("merged", [True, False])
def test_features_that_belong_to_head_i_mod_h(merged):
    def cut(x):
        return x.unflatten(-1, (D, H)).permute(0, 3, 1, 2)

    def forward(self, x):
        out = core(cut(self.q(x)), cut(self.k(x)), cut(self.v(x)))
        return self.o(out.unflatten(-1, (H, D)).transpose(-1, -2).flatten(2) if merged else out)

    reading, found = fitting(Module(forward, dict.fromkeys("qkvo", SQUARE)))
    assert reading is not found[0]
    assert "feature i belongs to head i % H" in reading.remark
    assert ("where they are merged" in reading.remark) == (not merged)


def test_one_small_projection_for_all_heads_is_a_fault():
    def forward(self, x):
        x = heads(x)
        return self.out(core(self.q(x), self.k(x), self.v(x)))

    reading, _ = fitting(Module(forward, {"q": (D, D), "k": (D, D), "v": (D, D), "out": SQUARE}))
    assert reading is not None
    assert reading.fault == "heads_share_small_projection"


def test_several_outputs_the_last_counts_first():
    module = separate()
    module.out_second = nn.Linear(E, E)
    module.run = lambda self, x: self.out_second(
        core(heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x)))
    )
    reading, found = fitting(module)
    assert reading is found[0]
    assert reading.used == {"q_proj", "k_proj", "v_proj", "out_second"}


def test_other_sizes_of_keys_and_values():
    module = nn.MultiheadAttention(E, H, kdim=5, vdim=7, batch_first=True)
    w = readings(module)[0].weights
    assert [m.weight.shape[0] for m in (w.q, w.k, w.v)] == [E, 5, 7]
    x, key, value = torch.randn(2, 4, E), torch.randn(2, 3, 5), torch.randn(2, 3, 7)
    torch.testing.assert_close(run(Inputs(x, key, value), w, {}).out, module(x, key, value)[0])


def test_unusual_layouts_come_last_and_their_number_is_bounded():
    module = Module(lambda self, x: x, {"qkv": (E, 3 * E), "proj": SQUARE}, num_heads=None)
    found = readings(module)
    assert len(found) <= MOST
    remarks = [r.remark != "" for r in found]
    assert remarks == sorted(remarks)


def layers(**sizes):
    return Module(lambda self, x: x, sizes)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.LayerNorm(4), "holds no linear maps"),
        (nn.Sequential(nn.Embedding(3, 4)), "holds no linear maps"),
        (layers(q=(E, 7)), r"maps \(q\) cannot be read"),
        (layers(q=SQUARE, k=(E, 7), out=SQUARE), r"\(q, k, out\)"),
        (layers(q=SQUARE, k=(E, 7), v=(E, 7)), "cannot be read"),
        (layers(q=(E, 7), k=(E, 7), v=(E, 7)), "cannot be read"),
        (layers(q=SQUARE, k=SQUARE, v=SQUARE, out=(E + 1, E)), "cannot be read"),
        (layers(qkv=(E, 55)), "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_said(module, said):
    with pytest.raises(Unreadable, match=said):
        readings(module)
