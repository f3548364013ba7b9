"""Masks while a graph is traced, one graph for all sizes; under vmap; and names after broadcasting."""

import pytest
import torch

from mha_course import masks


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "make",
    [
        lambda n, x: masks.padding(n, x.shape[1]),
        lambda n, x: masks.prefix(x.shape[1], n),
        lambda n, x: masks.prefix(x.shape[1], 2),
        lambda n, x: masks.causal(x.shape[1]),
    ],
    ids=["padding", "prefix of each", "prefix", "causal"],
)
def test_one_graph_serves_every_length(make):
    torch._dynamo.reset()
    compiled = torch.compile(make, fullgraph=True, backend="eager")
    lengths = torch.tensor([2, 3])
    for S in range(3, 15):  # more lengths than there may be graphs
        x = torch.zeros(2, S)
        assert torch.equal(compiled(lengths, x), make(lengths, x))


@pytest.mark.unchecked
def test_vmap():
    lengths = torch.tensor([[1, 2], [3, 0]])
    found = torch.vmap(lambda n: masks.padding(n, 4))(lengths)
    assert torch.equal(found, torch.stack([masks.padding(n, 4) for n in lengths]))


def test_explain_names_the_mask_after_broadcasting_with_padding():
    one_column = masks.causal(4, 1, alignment="lower_right")
    found = masks.explain(one_column, padding=masks.padding(torch.tensor([2, 4]), 4))
    assert found.shape == (2, 1, 4, 4)
    assert "causal(4, 1" not in str(found)


def test_a_window_is_not_wider_than_the_keys():
    inverted = ~masks.causal(4, 1, alignment="lower_right")
    assert "sliding_window" not in str(masks.explain(inverted))
