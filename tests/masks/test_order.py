"""Masks of order: by hand, against loops, at lengths 0 and 1, with every alignment, compiled and exported."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.testing import assert_close

from mha_course import attention
from mha_course.masks import band, causal, prefix, sliding_window
from tests.masks.drawn import INTEGERS, drawn

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
    causal(3).fill_(False)
    assert causal(3).any()


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


# sliding_window, band


def test_sliding_window_by_hand() -> None:
    assert drawn(sliding_window(4, 1)) == ["x...", ".x..", "..x.", "...x"]
    assert drawn(sliding_window(4, 2)) == ["x...", "xx..", ".xx.", "..xx"]
    assert drawn(sliding_window(4, 3)) == ["x...", "xx..", "xxx.", ".xxx"]
    assert drawn(sliding_window(2, 3, 5, alignment="lower_right")) == [".xxx.", "..xxx"]
    assert drawn(sliding_window(4, 2, 3, alignment="upper_left")) == ["x..", "xx.", ".xx", "..x"]


def test_band_by_hand() -> None:
    assert drawn(band(4, 0, 0)) == ["x...", ".x..", "..x.", "...x"]
    assert drawn(band(4, 1, 0)) == ["x...", "xx..", ".xx.", "..xx"]
    assert drawn(band(4, 0, 2)) == ["xxx.", ".xxx", "..xx", "...x"]
    assert drawn(band(4, 1, None)) == ["xxxx", "xxxx", ".xxx", "..xx"]
    assert drawn(band(4, None, 1)) == ["xx..", "xxx.", "xxxx", "xxxx"]
    assert drawn(band(2, None, None)) == ["xx", "xx"]
    assert drawn(band(2, 1, 1, 4, alignment="lower_right")) == [".xxx", "..xx"]


@given(
    st.integers(0, 7),
    st.integers(0, 7),
    st.sampled_from(["upper_left", "lower_right"]),
    st.none() | st.integers(0, 8),
    st.none() | st.integers(0, 8),
)
def test_band_and_window_equal_the_loop(T: int, S: int, alignment: str, left: int | None, right: int | None) -> None:
    offset = {"upper_left": 0, "lower_right": S - T}[alignment]

    def sees(t: int, s: int) -> bool:
        own = t + offset
        return (left is None or s >= own - left) and (right is None or s <= own + right)

    def loop(sees: Callable[[int, int], bool]) -> Tensor:
        return torch.tensor([[sees(t, s) for s in range(S)] for t in range(T)]).bool().view(T, S)

    assert_close(band(T, left, right, S, alignment=alignment), loop(sees))
    window = 1 if left is None else left + 1
    in_window = loop(lambda t, s: s in range(t + offset - window + 1, t + offset + 1))
    assert_close(sliding_window(T, window, S, alignment=alignment), in_window)


@pytest.mark.parametrize("T", [0, 1, 5])
def test_kin(T: int) -> None:
    assert_close(band(T, None, 0), causal(T))
    assert_close(sliding_window(T, T + 1), causal(T))
    assert_close(sliding_window(T, 3), band(T, 2, 0))
    assert_close(band(T, None, None), torch.ones(T, T).bool())
    assert_close(prefix(T, 0), causal(T))
    assert_close(prefix(T, T), torch.ones(T, T).bool())


def test_a_window_or_band_of_more_than_an_int64_sees_all_there_is() -> None:
    for T, S in ((5, 5), (2, 7), (7, 2), (1, 1)):
        past = causal(T, S, alignment="lower_right")
        assert_close(sliding_window(T, 2**70, S, alignment="lower_right"), past)
        assert_close(band(T, 2**70, 0, S, alignment="lower_right"), past)
        assert band(T, 2**70, 2**70, S, alignment="lower_right").all()


def test_every_row_of_a_window_sees_so_many_keys() -> None:
    assert sliding_window(11, 5).sum(-1).tolist() == [1, 2, 3, 4, *[5] * 7]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: sliding_window(3, 0), ValueError, r"^window must be at least 1, got 0$"),
        (lambda: sliding_window(3, -1), ValueError, r"^window must be at least 1, got -1$"),
        (lambda: sliding_window(3, 2.0), TypeError, r"^window must be an integer, got float$"),
        (lambda: sliding_window(3, None), TypeError, r"^window must be an integer, got NoneType$"),
        (lambda: sliding_window(-3, 2), ValueError, r"^T must be at least 0, got -3$"),
        (lambda: sliding_window(3, 2, 4), ValueError, r"^sliding_window with T != S is ambiguous: .* T=3, S=4$"),
        (lambda: sliding_window(3, 2, alignment="left"), ValueError, r"^alignment must be .* got 'left'$"),
        (lambda: band(3, -1, 0), ValueError, r"^left must be at least 0, got -1$"),
        (lambda: band(3, 0, -1), ValueError, r"^right must be at least 0, got -1$"),
        (lambda: band(3, 0, True), TypeError, r"^right must be an integer, got bool$"),
        (lambda: band(3, "1", 0), TypeError, r"^left must be an integer, got str$"),
        (lambda: band(3.0, 1, 0), TypeError, r"^T must be an integer, got float$"),
        (lambda: band(3, 1, 0, -1, alignment="upper_left"), ValueError, r"^S must be at least 0, got -1$"),
        (lambda: band(3, 1, 0, 2), ValueError, r"^band with T != S is ambiguous"),
        (lambda: band(3, 1, 0, alignment="right"), ValueError, r"^alignment must be .* got 'right'$"),
        (lambda: prefix(3, -1), ValueError, r"^lengths must be at least 0, got -1$"),
        (lambda: prefix(3, 4), ValueError, r"^lengths must lie in \[0, S\] = \[0, 3\], got 4$"),
        (lambda: prefix(3, 1.0), TypeError, r"^lengths must be an integer, got float$"),
        (lambda: prefix(3, True), TypeError, r"^lengths must be an integer, got bool$"),
        (lambda: prefix(3, [1, 2]), TypeError, r"^lengths must be an integer, got list$"),
        (lambda: prefix("3", 1), TypeError, r"^T must be an integer, got str$"),
        (lambda: prefix(3, torch.tensor([1.0])), TypeError, r"^lengths must be an integer tensor .* torch\.float32$"),
        (lambda: prefix(3, torch.tensor([True])), TypeError, r"^lengths must be an integer tensor .* torch\.bool$"),
        (lambda: prefix(3, torch.tensor(2)), ValueError, r"^lengths must have one axis \(B,\), got \(\)$"),
        (lambda: prefix(3, torch.tensor([2, 4, 5])), ValueError, r"\[0, S\] = \[0, 3\], got 4 at index 1$"),
        (lambda: prefix(3, torch.tensor([2, -4])), ValueError, r"\[0, S\] = \[0, 3\], got -4 at index 1$"),
        (lambda: prefix(3, 1, 4), ValueError, r"^prefix with T != S is ambiguous"),
        (lambda: prefix(3, 1, alignment=0), ValueError, r"^alignment must be .* got 0$"),
    ],
)
def test_bad_input(make: Callable[[], Tensor], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


# prefix


def test_prefix_by_hand() -> None:
    assert drawn(prefix(4, 2)) == ["xx..", "xx..", "xxx.", "xxxx"]
    assert drawn(prefix(2, 1, 4, alignment="lower_right")) == ["xxx.", "xxxx"]
    assert drawn(prefix(2, 3, 4, alignment="upper_left")) == ["xxx.", "xxx."]
    many = prefix(3, torch.tensor([0, 3]))
    assert many.shape == (2, 1, 3, 3)
    assert drawn(many[0, 0]) == ["x..", "xx.", "xxx"]
    assert drawn(many[1, 0]) == ["xxx", "xxx", "xxx"]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_prefix_of_each_sample_equals_that_of_one(dtype: torch.dtype) -> None:
    T, S = 270, 300
    for lengths in ([0, 1, 100, 127], [7]):
        tensor = torch.tensor(lengths, dtype=dtype)
        many = prefix(T, tensor, S, alignment="lower_right")
        assert many.shape == (len(lengths), 1, T, S)
        for b, n in enumerate(lengths):
            assert_close(many[b, 0], prefix(T, n, S, alignment="lower_right"))
        assert tensor.tolist() == lengths


@given(st.integers(0, 6), st.integers(0, 6), st.sampled_from(["upper_left", "lower_right"]), st.data())
def test_prefix_equals_the_loop(T: int, S: int, alignment: str, data: st.DataObject) -> None:
    n = data.draw(st.integers(0, S))
    offset = {"upper_left": 0, "lower_right": S - T}[alignment]
    got = prefix(T, n, S, alignment=alignment)
    assert got.shape == (T, S)
    assert got.tolist() == [[s < n or s <= t + offset for s in range(S)] for t in range(T)]


def test_prefix_of_an_empty_batch_and_of_strided_lengths() -> None:
    assert prefix(3, torch.zeros(0, dtype=torch.int64)).shape == (0, 1, 3, 3)
    assert_close(prefix(3, torch.tensor([1, 9, 2])[::2]), prefix(3, torch.tensor([1, 2])))
    assert_close(prefix(3, torch.tensor([2]).expand(4)), prefix(3, 2).expand(4, 1, 3, 3))


# Where masks are made, and compiled


@pytest.mark.parametrize(
    "make",
    [
        lambda device: sliding_window(3, 2, device=device),
        lambda device: band(3, 1, 1, device=device),
        lambda device: prefix(3, 1, device=device),
        lambda device: prefix(3, torch.tensor([1]), device=device),
    ],
)
def test_masks_are_made_where_they_are_told(make: Callable[..., Tensor]) -> None:
    assert make("meta").device.type == make(torch.device("meta")).device.type == "meta"
    assert make(None).device.type == "cpu"


def test_prefix_is_made_where_its_lengths_are() -> None:
    # their values cannot be read there
    assert prefix(3, torch.zeros(2, dtype=torch.int64, device="meta")).shape == (2, 1, 3, 3)
    assert prefix(3, torch.zeros(2, dtype=torch.int64, device="meta")).device.type == "meta"


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "make",
    [
        lambda T, n: causal(T),
        lambda T, n: causal(T, T + 2, alignment="lower_right"),
        lambda T, n: sliding_window(T, 2),
        lambda T, n: band(T, 1, None),
        lambda T, n: prefix(T, 2),
        lambda T, n: prefix(T, n),
    ],
)
def test_compiles_whole(make: Callable[[int, Tensor], Tensor]) -> None:
    n = torch.tensor([1, 3])
    compiled = torch.compile(make, backend="eager", fullgraph=True, dynamic=True)
    for T in (4, 5):
        assert_close(compiled(T, n), make(T, n))


@pytest.mark.unchecked
def test_values_are_not_checked_while_compiling() -> None:
    compiled = torch.compile(prefix, backend="eager", fullgraph=True)
    assert drawn(compiled(2, torch.tensor([9]))[0, 0]) == ["xx", "xx"]
