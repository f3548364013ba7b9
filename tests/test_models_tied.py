"""A tied decoder stays tied, whatever gives its names new tensors."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mha_course.models import Decoder

TOKENS = torch.tensor([[3, 1, 4, 1]])


def decoder(**options) -> Decoder:
    torch.manual_seed(0)
    return Decoder(7, 6, 3, 1, max_length=5, **options)


def from_meta(model: Decoder) -> Decoder:
    new = decoder(device="meta", tied=model.tied).to_empty(device="cpu")
    new.reset_parameters()
    return new


def assigned(model: Decoder) -> Decoder:
    new = decoder(device="meta", tied=model.tied)
    new.load_state_dict({name: x.clone() for name, x in model.state_dict().items()}, assign=True)
    return new


def assigned_in_another_module(model: Decoder) -> Decoder:
    outer = nn.Sequential(decoder(device="meta", tied=model.tied))
    outer.load_state_dict({f"0.{name}": x.clone() for name, x in model.state_dict().items()}, assign=True)
    return outer[0]


def pickled(model: Decoder) -> Decoder:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


NEW = [from_meta, assigned, assigned_in_another_module, copy.deepcopy, pickled]
NEW += [lambda model: assigned(copy.deepcopy(model)), lambda model: from_meta(pickled(model))]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("new", NEW)
def test_the_tie_lasts(new: Callable[[Decoder], Decoder], tied: bool) -> None:
    model = decoder(tied=tied)
    made = new(model)
    assert (made.read_out.weight is made.embedding.weight) == tied
    assert len(list(made.parameters())) == len(list(model.parameters()))
    if new is not from_meta and new is not NEW[-1]:
        assert_close(made(TOKENS), model(TOKENS))


def test_a_copy_ties_itself() -> None:
    """The hook of a copy acts on the copy."""
    made = pickled(copy.deepcopy(decoder()))
    made.load_state_dict({name: x.clone() for name, x in decoder().state_dict().items()}, assign=True)
    assert made.read_out.weight is made.embedding.weight


def test_odd_widths_of_a_rotary_head_are_refused() -> None:
    message = r'^embed_dim / num_heads must be even with positions "rotary", got 15 / 5$'
    with pytest.raises(ValueError, match=message):
        Decoder(7, 15, 5, 0, positions="rotary")
