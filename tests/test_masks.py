"""Masks: by hand, against loops, at lengths 0 and 1, in every integer type."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.testing import assert_close

from mha_course import attention
from mha_course.masks import causal, padding

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]


def drawn(mask: Tensor) -> list[str]:
    """One string a row: x where the query may attend."""
    assert mask.dtype == torch.bool
    return ["".join("x" if may else "." for may in row) for row in mask.tolist()]


# causal


def test_causal_by_hand() -> None:
    assert drawn(causal(3)) == ["x..", "xx.", "xxx"]
    assert drawn(causal(2, 4, alignment="upper_left")) == ["x...", "xx.."]
    assert drawn(causal(2, 4, alignment="lower_right")) == ["xxx.", "xxxx"]
    assert drawn(causal(4, 2, alignment="upper_left")) == ["x.", "xx", "xx", "xx"]
    assert drawn(causal(4, 2, alignment="lower_right")) == ["..", "..", "x.", "xx"]


@pytest.mark.parametrize("alignment", [None, "upper_left", "lower_right"])
def test_causal_with_equal_lengths_needs_no_alignment(alignment: str | None) -> None:
    assert drawn(causal(3, 3, alignment=alignment)) == ["x..", "xx.", "xxx"]


@pytest.mark.parametrize("alignment", ["upper_left", "lower_right"])
@pytest.mark.parametrize(("T", "S"), [(0, 0), (0, 3), (3, 0), (1, 1), (1, 3), (3, 1), (0, 1), (1, 0)])
def test_causal_at_lengths_zero_and_one(T: int, S: int, alignment: str) -> None:
    mask = causal(T, S, alignment=alignment)
    assert (mask.shape, mask.dtype) == ((T, S), torch.bool)
    assert mask.tolist() == [
        [s <= t + (S - T if alignment == "lower_right" else 0) for s in range(S)] for t in range(T)
    ]


@given(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["upper_left", "lower_right"]))
def test_causal_equals_the_loop_and_torch(T: int, S: int, alignment: str) -> None:
    mask = causal(T, S, alignment=alignment)
    offset = {"upper_left": 0, "lower_right": S - T}[alignment]
    assert_close(mask, torch.tensor([[s <= t + offset for s in range(S)] for t in range(T)]).bool().view(T, S))
    if T <= S:  # torch warns about queries that see nothing
        bias = {"upper_left": causal_upper_left, "lower_right": causal_lower_right}[alignment](T, S)
        q, k = torch.ones(1, 1, T, 2), torch.ones(1, 1, S, 2)
        v = torch.eye(S).view(1, 1, S, S)
        assert_close(attention(q, k, v, mask=mask).weights, _torch_weights(q, k, v, bias, mask))


def _torch_weights(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    # The weights, read off with the unit vectors as values.
    if not mask.numel():
        return torch.zeros(*q.shape[:3], k.shape[2])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def test_causal_puts_the_mask_where_it_is_told() -> None:
    assert causal(3, device="meta").device.type == "meta"
    assert causal(3, device=torch.device("meta")).device.type == "meta"
    assert causal(3).device.type == "cpu"


def test_masks_are_new_tensors_that_can_be_changed() -> None:
    for make in (lambda: causal(3), lambda: padding(torch.tensor([2, 3]), 3)):
        first = make()
        first.fill_(False)
        assert make().any()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"T": 2.0}, TypeError, r"^T must be an integer, got float$"),
        ({"T": True}, TypeError, r"^T must be an integer, got bool$"),
        ({"T": torch.tensor(3)}, TypeError, r"^T must be an integer, got Tensor$"),
        ({"T": None}, TypeError, r"^T must be an integer, got NoneType$"),
        ({"T": 2, "S": "2"}, TypeError, r"^S must be an integer, got str$"),
        ({"T": -1}, ValueError, r"^T must be at least 0, got -1$"),
        ({"T": 2, "S": -2, "alignment": "upper_left"}, ValueError, r"^S must be at least 0, got -2$"),
        ({"T": 2, "S": 3}, ValueError, r"^causal with T != S is ambiguous: give alignment=.*, got T=2, S=3$"),
        ({"T": 3, "S": 0}, ValueError, r"^causal with T != S is ambiguous"),
        ({"T": 2, "alignment": "left"}, ValueError, r"^alignment must be .* got 'left'$"),
        ({"T": 2, "S": 3, "alignment": "UPPER_LEFT"}, ValueError, r"^alignment must be .* got 'UPPER_LEFT'$"),
    ],
)
def test_causal_bad_input(arguments: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        causal(**arguments)


# padding


def test_padding_by_hand() -> None:
    mask = padding(torch.tensor([2, 0, 3]), 3)
    assert mask.shape == (3, 1, 1, 3)
    assert drawn(mask[:, 0, 0]) == ["xx.", "...", "xxx"]


def test_padding_hides_the_same_keys_from_every_head_and_query() -> None:
    B, H, T, S = 2, 3, 5, 7
    torch.manual_seed(0)
    q, k, v = torch.randn(B, H, T, 4), torch.randn(B, H, S, 4), torch.randn(B, H, S, 4)
    lengths = torch.tensor([4, 6])
    out = attention(q, k, v, mask=padding(lengths, S)).out
    for b, n in enumerate(lengths.tolist()):
        assert_close(out[b], attention(q[b], k[b, :, :n], v[b, :, :n]).out)


def test_padding_and_causal_combine() -> None:
    mask = causal(3) & padding(torch.tensor([2, 3]), 3)
    assert mask.shape == (2, 1, 3, 3)
    assert drawn(mask[0, 0]) == ["x..", "xx.", "xx."]
    assert drawn(mask[1, 0]) == ["x..", "xx.", "xxx"]
    assert drawn(~causal(2) | causal(2)) == ["xx", "xx"]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("S", [127, 255, 256, 257, 300, 70_000])
def test_padding_takes_every_integer_type_however_long_the_keys(dtype: torch.dtype, S: int) -> None:
    lengths = [0, 1, 7, min(127, S)]
    mask = padding(torch.tensor(lengths, dtype=dtype), S)
    assert (mask.shape, mask.dtype) == ((4, 1, 1, S), torch.bool)
    assert mask.sum(-1).flatten().tolist() == lengths
    assert mask[3, 0, 0, : lengths[3]].all()


@pytest.mark.parametrize("S", [0, 1])
def test_padding_at_lengths_zero_and_one(S: int) -> None:
    assert padding(torch.tensor([0, S]), S).tolist() == [[[[False] * S]], [[[True] * S]]]


@pytest.mark.parametrize("S", [0, 3])
def test_padding_of_an_empty_batch(S: int) -> None:
    mask = padding(torch.zeros(0, dtype=torch.int64), S)
    assert (mask.shape, mask.dtype) == ((0, 1, 1, S), torch.bool)


@given(st.integers(0, 9).flatmap(lambda S: st.tuples(st.just(S), st.lists(st.integers(0, S), max_size=5))))
def test_padding_equals_the_loop(problem: tuple[int, list[int]]) -> None:
    S, lengths = problem
    mask = padding(torch.tensor(lengths, dtype=torch.int64), S)
    assert mask.tolist() == [[[[s < n for s in range(S)]]] for n in lengths]


def test_padding_leaves_the_lengths_alone() -> None:
    lengths = torch.tensor([9, 2, 9, 1])[1::2]  # strided
    assert padding(lengths, 3).sum(-1).flatten().tolist() == [2, 1]
    assert lengths.tolist() == [2, 1]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("lengths", "S", "error", "match"),
    [
        ([1, 2], 3, TypeError, r"^lengths must be an integer tensor \(B,\), got list$"),
        (torch.tensor([1.0]), 3, TypeError, r"^lengths must be an integer tensor \(B,\), got torch\.float32$"),
        (torch.tensor([True]), 3, TypeError, r"^lengths must be an integer tensor \(B,\), got torch\.bool$"),
        (torch.tensor([1j]), 3, TypeError, r"^lengths must be an integer tensor \(B,\), got torch\.complex64$"),
        (torch.tensor(2), 3, ValueError, r"^lengths must have one axis \(B,\), got \(\)$"),
        (torch.tensor([[1], [2]]), 3, ValueError, r"^lengths must have one axis \(B,\), got \(2, 1\)$"),
        (torch.tensor([1]), 3.0, TypeError, r"^S must be an integer, got float$"),
        (torch.tensor([1]), True, TypeError, r"^S must be an integer, got bool$"),
        (torch.tensor([1]), -3, ValueError, r"^S must be at least 0, got -3$"),
        (torch.tensor([1, 4]), 3, ValueError, r"^lengths must lie in \[0, S\] = \[0, 3\], got 4 at index 1$"),
        (torch.tensor([-1, 2]), 3, ValueError, r"^lengths must lie in \[0, S\] = \[0, 3\], got -1 at index 0$"),
        (torch.tensor([200], dtype=torch.uint8), 199, ValueError, r"^lengths must lie in \[0, S\] = \[0, 199\], got"),
    ],
)
def test_padding_bad_input(lengths: object, S: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        padding(lengths, S)


@pytest.mark.unchecked
def test_lengths_may_be_numpy_integers() -> None:
    assert_close(causal(np.int64(3)), causal(3), rtol=0, atol=0)


@pytest.mark.unchecked
def test_causal_exports_with_a_length_that_is_not_known_yet() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(~causal(x.shape[-1]), 0.0)

    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    for strict in (True, False):
        exported = torch.export.export(Module(), (torch.ones(4, 4),), dynamic_shapes=(dynamic,), strict=strict)
        assert_close(exported.module()(torch.ones(6, 6)), torch.ones(6, 6).tril())
