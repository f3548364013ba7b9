"""The decoder: by hand from its parts, causal, counted, started as it says, and particular about its input."""

import math
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mha_course import masks
from mha_course.models import Decoder
from mha_course.positions import Learned, Rotary
from tests.multihead.modules import BACKENDS, bools, fill

V, E, H, L, B, T, LONGEST = 17, 12, 3, 2, 2, 5, 7
PLACES = {"learned": {"positions": "learned", "max_length": LONGEST}, "rotary": {"positions": "rotary"}}
PLACES["none"] = {"positions": None}
tokens = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(0))


def decoder(depth: int = L, places: str = "learned", **options) -> Decoder:
    model = Decoder(V, E, H, depth, **PLACES[places], dtype=torch.float64, **options)
    fill(model)
    return model


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "not tied"])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_by_hand(depth: int, places: str, tied: bool, norm: str) -> None:
    model = decoder(depth, places, tied=tied, norm=norm)
    x = torch.stack([model.embedding.weight[i] for i in tokens.flatten()]).unflatten(0, (B, T))
    if places == "learned":
        x = x + model.positions.weight[:T]
    for block in model.blocks:
        x = block(x, mask=masks.causal(T))
    if norm == "pre":
        x = nn.functional.layer_norm(x, (E,), model.norm.weight, model.norm.bias)
    read = model.embedding.weight if tied else model.read_out.weight
    assert (model.read_out.weight is model.embedding.weight) == tied
    logits = model(tokens)
    assert_close(logits, x @ read.T)
    assert logits.shape == (B, T, V)


@pytest.mark.parametrize("places", PLACES)
def test_no_token_sees_a_later_one(places: str) -> None:
    model, changed = decoder(places=places), tokens.clone()
    changed[:, 3] = (changed[:, 3] + 1) % V
    before, after = model(tokens), model(changed)
    assert_close(after[:, :3], before[:, :3], rtol=0, atol=0)
    assert (after[:, 3:] - before[:, 3:]).abs().amax(-1).min() > 1e-3


def test_gradients_reach_every_parameter_and_no_later_token() -> None:
    model = decoder(tied=False)
    model(tokens)[0, 2].sum().backward()
    silent = [name for name, p in model.named_parameters() if not p.grad.abs().max() > 1e-9]
    assert silent == ["blocks.0.attention.k_proj.bias", "blocks.1.attention.k_proj.bias"]  # softmax ignores a constant
    used = model.embedding.weight.grad.abs().amax(-1) > 0
    assert set(used.nonzero().flatten().tolist()) == set(tokens[0, :3].tolist())
    assert (model.positions.weight.grad.abs().amax(-1) > 0).tolist() == [True] * 3 + [False] * 4


def test_depth_0_is_a_bigram_model() -> None:
    model = decoder(0, "none")
    logits = model(torch.arange(V)[None])
    assert_close(model(tokens), logits[0][tokens])


def test_only_positions_tell_order() -> None:
    """Without them the last token sees the earlier ones as a set, in a first layer."""
    swapped = tokens[:, [1, 0, 2, 3, 4]]
    for places, apart in (("none", False), ("learned", True), ("rotary", True)):
        model = decoder(1, places)
        difference = (model(swapped)[:, -1] - model(tokens)[:, -1]).abs().max()
        assert (difference > 1e-6) == apart, places


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_is_anded_with_the_causal_one_in_every_layer(backend: str) -> None:
    model = decoder(backend=BACKENDS[backend])
    mask = bools(B, 1, T, T) | torch.eye(T, dtype=torch.bool)
    want = decoder()(tokens, mask=mask & masks.causal(T))
    assert_close(model(tokens, mask=mask), want)
    assert (model(tokens) - want).abs().max() > 1e-3


def test_padding_changes_nothing_for_the_tokens_before_it() -> None:
    model = decoder()
    short = model(tokens[:, :3])
    assert_close(model(tokens, mask=masks.padding(torch.tensor([3, 3]), T))[:, :3], short)


def test_options_reach_every_part() -> None:
    options = {"norm": "post", "hidden": 5, "activation": "relu", "dropout": 0.25, "num_kv_heads": 1, "bias": False}
    model = Decoder(V, E, H, 3, positions="rotary", backend="explicit", **options)
    assert len(model.blocks) == 3
    for block in model.blocks:
        assert (block.norm, block.mlp.up.out_features, block.mlp.activation, block.dropout) == ("post", 5, "relu", 0.25)
        attention = block.attention
        assert (attention.num_kv_heads, attention.dropout, attention.backend) == (1, 0.25, "explicit")
        assert isinstance(attention.rotary, Rotary)
        assert attention.rotary.head_dim == E // H
    assert model.dropout == 0.25
    assert not [
        name for name, _ in Decoder(V, E, H, 1, positions=None, bias=False).named_parameters() if "bias" in name
    ]
    assert decoder().blocks[0].attention.rotary is None
    assert isinstance(decoder().positions, Learned)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("depth", [0, 3])
def test_parameters_by_hand(depth: int, tied: bool, places: str, norm: str) -> None:
    want = V * E * (1 if tied else 2) + depth * (12 * E**2 + 13 * E)
    want += LONGEST * E if places == "learned" else 0
    want += 2 * E if norm == "pre" else 0
    assert count(decoder(depth, places, tied=tied, norm=norm)) == want


def test_gpt_2_has_124_million_parameters() -> None:
    model = Decoder(50257, 768, 12, 12, max_length=1024, device="meta")
    assert count(model) == 124_439_808


def test_start_is_that_of_gpt_2() -> None:
    torch.manual_seed(0)
    wide, depth = 96, 3
    model = Decoder(101, wide, 4, depth, max_length=89, tied=False)
    std = 0.02 * math.sqrt(768 / wide)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert_close(parameter, torch.zeros_like(parameter), rtol=0, atol=0)
        elif parameter.ndim == 1:
            assert "norm" in name
            assert_close(parameter, torch.ones_like(parameter), rtol=0, atol=0)
        else:
            want = std / math.sqrt(2 * depth) if "out_proj" in name or "down" in name else std
            assert parameter.std().item() == pytest.approx(want, rel=0.05), name
            assert abs(parameter.mean().item()) < 0.1 * want, name
    first = [p.clone() for p in model.parameters()]
    torch.manual_seed(0)
    Decoder(101, wide, 4, depth, max_length=89, tied=False)
    model.reset_parameters()
    assert any(not torch.equal(p, q) for p, q in zip(first, model.parameters(), strict=True))
    assert Decoder(101, 768, 12, 0, positions=None).embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_the_stream_does_not_grow_with_depth_at_the_start() -> None:
    spread = []
    for depth in (2, 16):
        torch.manual_seed(0)
        model, seen = Decoder(V, 48, 4, depth, positions="rotary"), []
        model.norm.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        model(torch.arange(V)[None])
        spread.append(seen[0].std().item())
    assert 0.6 < spread[1] / spread[0] < 1.6


class TestSmallInputs:
    @pytest.mark.parametrize("places", PLACES)
    def test_one_token(self, places: str) -> None:
        model = decoder(places=places)
        assert_close(model(tokens[:, :1]), model(tokens)[:, :1])

    @pytest.mark.parametrize("shape", [(0, T), (B, 0)])
    def test_none(self, shape: tuple[int, int]) -> None:
        assert decoder()(torch.empty(shape, dtype=torch.long)).shape == (*shape, V)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
    def test_other_integers(self, dtype: torch.dtype) -> None:
        model = decoder()
        assert_close(model(tokens.to(dtype)), model(tokens), rtol=0, atol=0)

    def test_the_last_place_of_the_table(self) -> None:
        assert decoder()(torch.zeros(1, LONGEST, dtype=torch.long)).shape == (1, LONGEST, V)

    def test_sizes_of_one(self) -> None:
        assert Decoder(1, 1, 1, 1, max_length=1)(torch.zeros(1, 1, dtype=torch.long)).shape == (1, 1, 1)

    @pytest.mark.unchecked
    def test_sizes_of_numpy(self) -> None:
        assert Decoder(np.int64(3), 2, 1, np.int64(1), positions="rotary").read_out.out_features == 3


class TestDropout:
    def test_of_everything_leaves_nothing(self) -> None:
        model = decoder(dropout=1.0)
        want = model.read_out(model.norm(torch.zeros(B, T, E, dtype=torch.float64)))
        assert_close(model(tokens), want)
        assert_close(model.eval()(tokens), decoder()(tokens), rtol=0, atol=0)

    def test_of_the_embedded_tokens(self) -> None:
        model, seen = decoder(0, dropout=0.5), []
        model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        torch.manual_seed(0)
        model(tokens)
        model.eval()(tokens)
        kept = seen[0] != 0
        assert 0.3 < kept.double().mean() < 0.7
        assert_close(seen[0][kept], 2 * seen[1][kept])


def test_what_print_shows() -> None:
    assert decoder(dropout=0.25).extra_repr() == "dropout=0.25"


def test_device_and_type_reach_every_parameter() -> None:
    model = Decoder(V, E, H, L, max_length=LONGEST, tied=False, device="meta", dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.bfloat16)}


def refuses(error: type[Exception], message: str):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


@pytest.mark.unchecked
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"vocabulary": 0}, ValueError, "vocabulary must be at least 1, got 0"),
        ({"vocabulary": 2.0}, TypeError, "vocabulary must be an integer, got float"),
        ({"embed_dim": 0}, ValueError, "embed_dim must be at least 1, got 0"),
        ({"num_heads": 5}, ValueError, "num_heads must divide embed_dim if head_dim is None, got 5 and 12"),
        ({"num_layers": -1}, ValueError, "num_layers must be at least 0, got -1"),
        ({"num_layers": 1.0}, TypeError, "num_layers must be an integer, got float"),
        ({"max_length": None}, ValueError, 'max_length is needed with positions "learned", got None'),
        ({"positions": None}, ValueError, 'max_length is for positions "learned" alone, got 7 with None'),
        ({"positions": "rotary"}, ValueError, "max_length is for positions \"learned\" alone, got 7 with 'rotary'"),
        ({"max_length": 0}, ValueError, "max_length must be at least 1, got 0"),
        ({"positions": "sinusoidal"}, ValueError, 'positions must be "learned", "rotary" or None, got \'sinusoidal\''),
        (
            {"num_heads": 12, "positions": "rotary", "max_length": None},
            ValueError,
            'embed_dim / num_heads must be even with positions "rotary", got 12 / 12',
        ),
        ({"norm": "no"}, ValueError, 'norm must be "pre" or "post", got \'no\''),
        ({"hidden": 0}, ValueError, "hidden must be at least 1, got 0"),
        ({"dropout": -0.5}, ValueError, "dropout must lie in [0, 1], got -0.5"),
    ],
    ids=str,
)
def test_construction_refuses(depth: int, options: dict, error: type[Exception], message: str) -> None:
    sizes = {"vocabulary": V, "embed_dim": 12, "num_heads": 4, "num_layers": depth, "max_length": LONGEST}
    with refuses(error, message):
        Decoder(**{**sizes, **options})


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([[1]], TypeError, "tokens must be an integer tensor (B, T), got list"),
        (tokens.float(), TypeError, "tokens must be an integer tensor (B, T), got torch.float32"),
        (tokens > 3, TypeError, "tokens must be an integer tensor (B, T), got torch.bool"),
        (tokens[0], ValueError, "tokens must have two axes (B, T), got (5,)"),
        (torch.tensor([[0, V]]), ValueError, f"tokens must lie between 0 and 16 (V = 17), got {V} at index (0, 1)"),
        (torch.tensor([[-1, 0]]), ValueError, "tokens must lie between 0 and 16 (V = 17), got -1 at index (0, 0)"),
        (
            torch.zeros(1, LONGEST + 1, dtype=torch.long),
            ValueError,
            "the table ends at position 6 (max_length 7), got 7",
        ),
    ],
    ids=["list", "float", "bool", "one axis", "above", "below", "too long"],
)
def test_call_refuses(given: object, error: type[Exception], message: str) -> None:
    with refuses(error, message):
        decoder()(given)


@pytest.mark.unchecked
def test_masks_are_refused_as_attention_does() -> None:
    with pytest.raises(TypeError, match="mask must be bool"):
        decoder()(tokens, mask=torch.zeros(T, T))
    with pytest.raises(ValueError, match="mask must broadcast"):
        decoder()(tokens, mask=torch.ones(T, T + 1, dtype=torch.bool))


@pytest.mark.unchecked
def test_options_go_by_name() -> None:
    with pytest.raises(TypeError, match="takes 5 positional arguments but 6 were given"):
        Decoder(V, E, H, L, "rotary")
