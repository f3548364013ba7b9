"""Notebook 04: the table of empty rows, and the three layers with a fault each."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mha_course import masks
from mha_course.checks import probe
from mha_course.experiments import who_may_look as lesson

TABLE = {row.call: row for row in lesson.empty_rows()}


@pytest.mark.parametrize("call", [call for call in TABLE if "scaled_dot" in call or "mha_course" in call])
def test_pytorch_and_ours_return_nothing_for_nothing(call: str) -> None:
    assert TABLE[call][1:] == ("0", "0", "finite")


def test_a_plain_chain_poisons_everything() -> None:
    assert TABLE["softmax(masked_fill(-inf)) v"][1:] == ("NaN", "NaN", "NaN")


def test_a_large_number_gives_the_mean_and_trains_on_padding() -> None:
    assert TABLE["softmax(masked_fill(-1e9)) v"][1:] == ("mean of v", "finite", "finite")


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_module(mode: str) -> None:
    assert TABLE[f"nn.MultiheadAttention, weights on, {mode}"][1:] == ("NaN", "NaN", "NaN")
    assert TABLE[f"nn.MultiheadAttention, weights off, {mode}"][1:] == ("bias of out_proj", "0", "finite")


def test_the_module_without_gradients() -> None:
    for weights in ("on", "off"):
        assert TABLE[f"nn.MultiheadAttention, weights {weights}, eval, no_grad"][1:] == ("NaN", "", "")
    module = nn.MultiheadAttention(4, 2, batch_first=True).eval()  # by hand; an odd number of heads is not fused
    x = torch.ones(1, 3, 4)
    with torch.no_grad():
        out, _ = module(x, x, x, key_padding_mask=torch.ones(1, 3, dtype=torch.bool), need_weights=False)
    assert out.isnan().all()


def test_every_call_stands_once() -> None:
    assert len(TABLE) == len(lesson.empty_rows()) == 11


def test_the_random_state_of_the_caller_is_untouched() -> None:
    before = torch.get_rng_state()
    lesson.empty_rows()
    assert torch.equal(before, torch.get_rng_state())


def test_a_value_that_is_none_of_the_known_is_called_so() -> None:
    known = torch.tensor([1.0, 2.0])
    assert lesson._value(torch.zeros(3, 2), known) == "0"
    assert lesson._value(known.expand(3, 2), known) == "mean of v"
    assert lesson._value(torch.tensor([[1.0, torch.nan]]), known) == "NaN"
    assert lesson._value(torch.tensor([[2.0, 1.0]]), known) == "something else"


X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
REAL = masks.padding(torch.tensor([6, 4]), 6)
CAUSAL = masks.causal(6)


def moves(name: str) -> torch.Tensor:
    return probe.leaks(lesson.broken(name, REAL), X).moves


def test_a_sees_one_token_ahead() -> None:
    own = torch.eye(6, dtype=torch.bool)
    assert torch.equal(moves("A"), (masks.band(6, None, 1) & REAL)[:, 0] | own)


def test_b_leaks_everything_through_the_denominator() -> None:
    assert moves("B").all()


def test_c_shows_the_padding_of_one_sample() -> None:
    assert torch.equal(moves("C"), CAUSAL.expand(2, 6, 6))


def test_without_its_fault_each_is_causal_attention_with_padding() -> None:
    """Where nothing is padded, C is right, and B's weights are those of the softmax over all keys."""
    whole = masks.padding(torch.tensor([6, 6]), 6)
    heads = X.unflatten(-1, (2, -1)).transpose(1, 2)
    right = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=CAUSAL).transpose(1, 2).flatten(2)
    torch.testing.assert_close(lesson.broken("C", whole)(X), right)
    last = lesson.broken("B", whole)(X)[:, -1]
    torch.testing.assert_close(last, right[:, -1])
    torch.testing.assert_close(lesson.broken("A", whole)(X)[:, -1], right[:, -1])


@pytest.mark.unchecked
def test_another_name() -> None:
    with pytest.raises(ValueError, match=r"^name must be 'A', 'B' or 'C', got 'D'$"):
        lesson.broken("D", REAL)
