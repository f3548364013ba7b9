"""The block equals nn.TransformerEncoderLayer under copied weights, and what it says of itself is so."""

import copy
import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course import masks
from mha_course.block import MLP, Block
from mha_course.multihead import MultiHeadAttention
from mha_course.positions import Rotary
from tests.multihead.modules import BACKENDS, B, E, H, T, bools, fill, leaf, numbers

HIDDEN = 13
NORMS = ("pre", "post")
MASKS = {"none": None, "(T, T)": bools(T, T), "padding": masks.padding(torch.tensor([3, T]), T)}
x = numbers(B, T, E, seed=1)


def ours(norm: str = "pre", **options) -> Block:
    block = Block(E, H, **{"norm": norm, "hidden": HIDDEN, "dtype": torch.float64, **options})
    fill(block)
    return block


def pair(norm: str, activation: str = "gelu", bias: bool = True, dtype: torch.dtype = torch.float64, hidden=HIDDEN):
    """A layer of PyTorch's and a block with the same weights."""
    theirs = nn.TransformerEncoderLayer(
        E, H, hidden, 0.0, activation, norm_first=norm == "pre", bias=bias, batch_first=True, dtype=dtype
    )
    fill(theirs)
    block = Block(E, H, norm=norm, hidden=hidden, activation=activation, bias=bias, dtype=dtype)
    block.attention = MultiHeadAttention.from_torch(theirs.self_attn)
    for own, other in zip(parts(block), parts_of_theirs(theirs), strict=True):
        own.load_state_dict(other.state_dict())
    return theirs, block


def parts(block: Block) -> tuple[nn.Module, ...]:
    return block.attention_norm, block.mlp_norm, block.mlp.up, block.mlp.down


def parts_of_theirs(layer: nn.TransformerEncoderLayer) -> tuple[nn.Module, ...]:
    return layer.norm1, layer.norm2, layer.linear1, layer.linear2


def gradients(out: Tensor, inputs: Tensor, modules: tuple[nn.Module, ...]) -> list[Tensor]:
    leaves = [inputs, *(p for module in modules for p in module.parameters())]
    return list(torch.autograd.grad(out, leaves, numbers(*out.shape, seed=9, dtype=out.dtype)))


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("norm", NORMS)
def test_equals_torch(norm: str, activation: str, bias: bool, dtype: torch.dtype, kind: str) -> None:
    theirs, block = pair(norm, activation, bias, dtype)
    mask, tolerance = MASKS[kind], {"rtol": 1e-9, "atol": 1e-11}
    if dtype == torch.float32:
        tolerance = {"rtol": 1e-4, "atol": 1e-5}
    given = None if mask is None else ~mask.expand(B, H, T, T).flatten(0, 1)  # True = hidden
    a, b = leaf(x.to(dtype)), leaf(x.to(dtype))
    want, got = theirs(a, src_mask=given), block(b, mask=mask)
    assert_close(got, want, **tolerance)
    for g, w in zip(
        gradients(got, b, (*parts(block), block.attention.out_proj)),
        gradients(want, a, (*parts_of_theirs(theirs), theirs.self_attn.out_proj)),
        strict=True,
    ):
        assert_close(g, w, **tolerance)
    attention = block.attention
    rows = [linear.weight for linear in (attention.q_proj, attention.k_proj, attention.v_proj)]
    stacked = torch.cat(torch.autograd.grad(block(x.to(dtype), mask=mask).square().sum(), rows))
    loss = theirs(x.to(dtype), src_mask=given).square().sum()
    assert_close(stacked, *torch.autograd.grad(loss, [theirs.self_attn.in_proj_weight]), **tolerance)


@pytest.mark.parametrize("norm", NORMS)
def test_equals_torch_with_a_causal_mask_and_its_default_width(norm: str) -> None:
    theirs, block = pair(norm, hidden=4 * E)
    assert Block(E, H).mlp.up.weight.shape == (4 * E, E)
    hidden = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    want = theirs(x, src_mask=hidden, is_causal=True)
    assert_close(block(x, is_causal=True), want)
    assert_close(block(x, mask=masks.causal(T)), want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", NORMS)
def test_by_hand(norm: str, backend: str) -> None:
    """The formula of the docstring, with every argument of attention handed on."""
    block = ours(norm, num_kv_heads=1, backend=BACKENDS[backend])
    bias, mask = numbers(H, T, T, seed=3), bools(B, 1, T, T)
    options = {"mask": mask, "score_bias": bias, "is_causal": True}
    reference = copy.deepcopy(block.attention)
    reference.backend = "explicit"

    def normed(x: Tensor, layer: nn.LayerNorm) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias

    def mlp(x: Tensor) -> Tensor:
        h = x @ block.mlp.up.weight.T + block.mlp.up.bias
        h = h * (1 + torch.erf(h / 2**0.5)) / 2
        return h @ block.mlp.down.weight.T + block.mlp.down.bias

    if norm == "pre":
        middle = x + reference(normed(x, block.attention_norm), **options)
        want = middle + mlp(normed(middle, block.mlp_norm))
    else:
        middle = normed(x + reference(x, **options), block.attention_norm)
        want = normed(middle + mlp(middle), block.mlp_norm)
    assert_close(block(x, **options), want)


@pytest.mark.parametrize("norm", NORMS)
def test_gradcheck(norm: str) -> None:
    block = ours(norm)
    assert torch.autograd.gradcheck(lambda x: block(x, is_causal=True), leaf(x[:, :3]))


@pytest.mark.parametrize("norm", NORMS)
def test_a_causal_block_does_not_leak(norm: str) -> None:
    block, changed = ours(norm), x.clone()
    changed[:, 3] = 1e6
    before, after = block(x, is_causal=True), block(changed, is_causal=True)
    assert_close(after[:, :3], before[:, :3], rtol=0, atol=0)
    assert (after[:, 3:] - before[:, 3:]).abs().amin(dim=(0, 2)).min() > 0


@pytest.mark.parametrize("norm", NORMS)
def test_permuted_tokens_give_permuted_outputs_unless_rotary_turns_them(norm: str) -> None:
    order, tokens = torch.tensor([2, 0, 1, 4, 3]), numbers(B, T, 30, seed=1)  # D = 10: rotary needs an even one
    block, turned = (Block(30, H, norm=norm, rotary=r, dtype=torch.float64) for r in (None, Rotary(10)))
    for each in (block, turned):
        fill(each)
    assert_close(block(tokens[:, order]), block(tokens)[:, order])
    assert (turned(tokens[:, order]) - turned(tokens)[:, order]).abs().max() > 0.01


def test_rotary_backend_and_grouped_heads_reach_the_attention() -> None:
    rotary = Rotary(10)
    block = Block(E, H, num_kv_heads=1, rotary=rotary, backend="explicit", dropout=0.25)
    assert (block.attention.rotary, block.attention.backend) == (rotary, "explicit")
    assert (block.attention.num_kv_heads, block.attention.num_heads, block.attention.dropout) == (1, H, 0.25)


@pytest.mark.parametrize("norm", NORMS)
def test_one_token_and_empty_inputs(norm: str) -> None:
    block = ours(norm)
    assert_close(block(x[:, :1], is_causal=True), block(x, is_causal=True)[:, :1])
    assert_close(block(x[:, :1]), block(x, is_causal=True)[:, :1])
    for shape in ((0, T, E), (B, 0, E)):
        assert block(x.new_empty(shape), is_causal=True).shape == shape


class TestDropout:
    def test_nothing_is_added_when_all_is_dropped(self) -> None:
        pre, post = ours("pre", dropout=1.0), ours("post", dropout=1)
        assert_close(pre(x), x, rtol=0, atol=0)
        assert_close(post(x), post.mlp_norm(post.attention_norm(x)))
        for block in (pre, post):
            block.eval()
            without = ours(block.norm)
            assert_close(block(x), without(x), rtol=0, atol=0)

    @pytest.mark.parametrize("dropped", ["attention", "mlp"])
    @pytest.mark.parametrize("norm", NORMS)
    def test_both_halves_are_dropped_and_scaled(self, norm: str, dropped: str) -> None:
        """With the other half silenced and no norm, a block adds 0 or twice what it adds without dropout."""
        block = ours(norm, dropout=0.5)
        block.attention.dropout = 0.0
        block.attention_norm = block.mlp_norm = nn.Identity()
        silent = block.mlp.down if dropped == "attention" else block.attention.out_proj
        with torch.no_grad():
            silent.weight.zero_()
            silent.bias.zero_()
        torch.manual_seed(0)
        added = block(x) - x
        want = block.eval()(x) - x
        kept = added.abs() > 1e-12
        assert 0.3 < kept.double().mean() < 0.7
        assert_close(added[kept], 2 * want[kept])

    def test_weights_are_dropped_as_well(self) -> None:
        block = ours(dropout=0.5)
        block.dropout = 0.0
        assert (block(x) - block(x)).abs().max() > 0.01
        block.eval()
        assert_close(block(x), block(x), rtol=0, atol=0)


class TestParameters:
    @pytest.mark.parametrize(
        ("options", "count"),
        [
            ({}, 12 * E * E + 13 * E),
            ({"bias": False}, 12 * E * E + 2 * E),
            ({"num_kv_heads": 1}, 4 * E * E // 3 * 2 + 8 * E * E + 2 * E + 2 * E // 3 + 5 * E + 4 * E),
            ({"hidden": 7, "norm": "post"}, 4 * E * E + 14 * E + 4 * E + 7 + E + 4 * E),
        ],
        ids=str,
    )
    def test_count_by_hand(self, options: dict, count: int) -> None:
        assert sum(p.numel() for p in Block(E, H, **options).parameters()) == count

    def test_start(self) -> None:
        torch.manual_seed(0)
        block = Block(E, H)
        for norm in (block.attention_norm, block.mlp_norm):
            assert_close(norm.weight, torch.ones(E), rtol=0, atol=0)
            assert_close(norm.bias, torch.zeros(E), rtol=0, atol=0)
        for linear in (block.mlp.up, block.mlp.down):  # nn.Linear draws uniformly up to 1 / sqrt(in)
            bound = linear.in_features**-0.5
            assert 0.9 * bound < linear.weight.abs().max() <= bound

    @pytest.mark.parametrize("bias", [True, False])
    def test_device_and_type_reach_every_parameter(self, bias: bool) -> None:
        block = Block(E, H, device="meta", dtype=torch.bfloat16, bias=bias)
        assert {(p.device.type, p.dtype) for p in block.parameters()} == {("meta", torch.bfloat16)}
        mlp = MLP(E, 7, device="meta", dtype=torch.float64)
        assert {(p.device.type, p.dtype) for p in mlp.parameters()} == {("meta", torch.float64)}

    def test_nothing_is_kept_of_a_call(self) -> None:
        block = ours()
        before = set(vars(block)), set(block.state_dict())
        block(x, is_causal=True)
        assert (set(vars(block)), set(block.state_dict())) == before

    def test_names_and_what_print_shows(self) -> None:
        block = ours("post", dropout=0.25)
        names = {name.partition(".")[0] for name in block.state_dict()}
        assert names == {"attention", "attention_norm", "mlp", "mlp_norm"}
        assert block.extra_repr() == "norm='post', dropout=0.25"
        assert "activation='gelu'" in repr(block)


def test_mlp_acts_on_every_token_by_itself() -> None:
    mlp = MLP(E, HIDDEN, activation="relu", dtype=torch.float64)
    fill(mlp)
    want = F.relu(x @ mlp.up.weight.T + mlp.up.bias) @ mlp.down.weight.T + mlp.down.bias
    assert_close(mlp(x), want)
    assert_close(mlp(x[:, 2:3]), want[:, 2:3])


def refuses(error: type[Exception], message: str):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"embed_dim": 12.0}, TypeError, "embed_dim must be an integer, got float"),
        ({"embed_dim": 0}, ValueError, "embed_dim must be at least 1, got 0"),
        ({"num_heads": 5}, ValueError, "num_heads must divide embed_dim if head_dim is None, got 5 and 12"),
        ({"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads must divide num_heads, got 3 and 4"),
        ({"norm": "both"}, ValueError, 'norm must be "pre" or "post", got \'both\''),
        ({"norm": None}, ValueError, 'norm must be "pre" or "post", got None'),
        ({"hidden": 0}, ValueError, "hidden must be at least 1, got 0"),
        ({"hidden": 2.5}, TypeError, "hidden must be an integer, got float"),
        ({"activation": "swish"}, ValueError, 'activation must be "gelu" or "relu", got \'swish\''),
        ({"activation": []}, ValueError, 'activation must be "gelu" or "relu", got []'),
        ({"dropout": 1.5}, ValueError, "dropout must lie in [0, 1], got 1.5"),
        ({"dropout": None}, TypeError, "dropout must be a number, got NoneType"),
        ({"backend": "flash"}, ValueError, 'backend must be "sdpa", "explicit" or callable, got \'flash\''),
        ({"rotary": 3}, TypeError, "rotary must be callable, got int"),
    ],
    ids=str,
)
def test_construction_refuses(options: dict, error: type[Exception], message: str) -> None:
    with refuses(error, message):
        Block(**{"embed_dim": 12, "num_heads": 4, **options})


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((0, 4), ValueError, "embed_dim must be at least 1, got 0"),
        (("4", 4), TypeError, "embed_dim must be an integer, got str"),
        ((4, 0), ValueError, "hidden must be at least 1, got 0"),
        ((4, True), TypeError, "hidden must be an integer, got bool"),
    ],
)
def test_mlp_refuses(args: tuple, error: type[Exception], message: str) -> None:
    with refuses(error, message):
        MLP(*args)
    assert MLP(1, 1).up.weight.shape == (1, 1)


@pytest.mark.unchecked
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": [1.0]}, TypeError, "x must be a tensor, got list"),
        ({"x": x.long()}, TypeError, "x must be floating point, got torch.int64"),
        ({"x": x.float()}, TypeError, "x must have the parameters' type, torch.float64, got torch.float32"),
        ({"x": x[0]}, ValueError, f"x must be (B, T, E) with E = {E}, got ({T}, {E})"),
        ({"x": x[..., 1:]}, ValueError, f"x must be (B, T, E) with E = {E}, got ({B}, {T}, {E - 1})"),
        ({"is_causal": 1}, TypeError, "is_causal must be True or False, got int"),
    ],
    ids=["list", "int", "float32", "two axes", "width", "is_causal"],
)
def test_call_refuses(norm: str, change: dict, error: type[Exception], message: str) -> None:
    with refuses(error, message):
        ours(norm)(**{"x": x, **change})


@pytest.mark.unchecked
def test_masks_are_refused_as_attention_does() -> None:
    with pytest.raises(TypeError, match="mask must be bool"):
        ours()(x, mask=torch.zeros(T, T))
    with pytest.raises(ValueError, match="mask must broadcast"):
        ours()(x, mask=torch.ones(T, T + 1, dtype=torch.bool))


@pytest.mark.unchecked
def test_options_go_by_name() -> None:
    with pytest.raises(TypeError, match="takes 3 positional arguments but 4 were given"):
        Block(12, 4, "pre")
