"""Masks from lengths, tokens and documents: by hand, against loops, in every integer type."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from mha_course import attention
from mha_course.masks import block_diagonal, block_diagonal_from_ids, causal, padding, padding_from_tokens
from tests.masks.drawn import INTEGERS, drawn

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


# padding_from_tokens


def test_padding_from_tokens_by_hand() -> None:
    mask = padding_from_tokens(torch.tensor([[5, 3, 0], [0, 7, 0]]), 0)
    assert mask.shape == (2, 1, 1, 3)
    assert drawn(mask[:, 0, 0]) == ["xx.", ".x."]
    assert drawn(padding_from_tokens(torch.tensor([[5, 3, -1]]), -1)[:, 0, 0]) == ["xx."]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_padding_from_tokens_of_every_integer_type(dtype: torch.dtype) -> None:
    tokens = torch.tensor([[1, 100, 0, 7]], dtype=dtype)
    assert padding_from_tokens(tokens, 100).tolist() == [[[[True, False, True, True]]]]
    for pad in (256, 65_536, -156, 2**40):  # equal to no token, though 256 wraps around to 0 in uint8
        assert padding_from_tokens(tokens, pad).all()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1)])
def test_padding_from_tokens_of_empty_and_single(shape: tuple[int, int]) -> None:
    mask = padding_from_tokens(torch.ones(shape, dtype=torch.int64), 0)
    assert (mask.shape, mask.dtype) == ((shape[0], 1, 1, shape[1]), torch.bool)
    assert mask.all()


def test_padding_from_tokens_equals_padding_from_lengths() -> None:
    lengths = torch.tensor([3, 0, 5])
    tokens = torch.where(torch.arange(5) < lengths[:, None], 9, 2)
    assert_close(padding_from_tokens(tokens, 2), padding(lengths, 5))
    assert_close(padding_from_tokens(tokens.T.contiguous().T, 2), padding(lengths, 5))
    assert_close(padding_from_tokens(tokens[:1].expand(4, 5), 2), padding(lengths[:1].expand(4), 5))
    attention_mask = (tokens != 2).int()  # as tokenizers return it
    assert_close(padding_from_tokens(attention_mask, 0), padding(lengths, 5))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("tokens", "pad", "error", "match"),
    [
        ([[1, 2]], 0, TypeError, r"^tokens must be an integer tensor \(B, S\), got list$"),
        (torch.ones(2, 3), 0, TypeError, r"^tokens must be an integer tensor \(B, S\), got torch\.float32$"),
        (torch.ones(2, 3).bool(), 0, TypeError, r"^tokens must be an integer tensor \(B, S\), got torch\.bool$"),
        (torch.ones(3).long(), 0, ValueError, r"^tokens must have two axes \(B, S\), got \(3,\)$"),
        (torch.ones(2, 3, 4).long(), 0, ValueError, r"^tokens must have two axes \(B, S\), got \(2, 3, 4\)$"),
        (torch.ones(2, 3).long(), None, TypeError, r"^pad must be an integer, got NoneType$"),
        (torch.ones(2, 3).long(), 0.0, TypeError, r"^pad must be an integer, got float$"),
        (torch.ones(2, 3).long(), False, TypeError, r"^pad must be an integer, got bool$"),
        (torch.ones(2, 3).long(), torch.tensor(0), TypeError, r"^pad must be an integer, got Tensor$"),
    ],
)
def test_padding_from_tokens_bad_input(tokens: object, pad: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        padding_from_tokens(tokens, pad)


# block_diagonal


def test_block_diagonal_by_hand() -> None:
    two = ["xx...", "xx...", "..xxx", "..xxx", "..xxx"]
    assert drawn(block_diagonal(torch.tensor([2, 3]))) == two
    assert drawn(block_diagonal(torch.tensor([2, 0, 3]))) == two
    assert drawn(block_diagonal(torch.tensor([0, 2, 3, 0]))) == two
    assert drawn(block_diagonal(torch.tensor([1, 1]), 4)) == ["x...", ".x..", "....", "...."]
    assert drawn(block_diagonal(torch.tensor([2, 1])) & causal(3)) == ["x..", "xx.", "..x"]


def test_block_diagonal_of_nothing() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert block_diagonal(none).shape == (0, 0)
    assert block_diagonal(torch.zeros(3, dtype=torch.int64)).shape == (0, 0)
    assert drawn(block_diagonal(none, 2)) == ["..", ".."]
    assert drawn(block_diagonal(torch.tensor([1]))) == ["x"]
    assert block_diagonal_from_ids(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 1, 3, 3)
    assert block_diagonal_from_ids(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 1, 0, 0)


@given(st.lists(st.integers(0, 4), max_size=4), st.integers(0, 3))
def test_block_diagonal_equals_the_loop(lengths: list[int], more: int) -> None:
    documents = [d for d, n in enumerate(lengths) for _ in range(n)] + [None] * more
    want = [[a is not None and a == b for b in documents] for a in documents]
    assert block_diagonal(torch.tensor(lengths, dtype=torch.int64), len(documents)).tolist() == want


def test_block_diagonal_from_ids_by_hand() -> None:
    mask = block_diagonal_from_ids(torch.tensor([[4, 4, 7], [1, 2, 1]]))
    assert mask.shape == (2, 1, 3, 3)
    assert drawn(mask[0, 0]) == ["xx.", "xx.", "..x"]
    assert drawn(mask[1, 0]) == ["x.x", ".x.", "x.x"]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_lengths_and_ids_of_every_integer_type_agree(dtype: torch.dtype) -> None:
    lengths = torch.tensor([100, 0, 120, 110], dtype=dtype)  # their sum is beyond int8 and uint8
    ids = torch.arange(4).repeat_interleave(lengths.long()).to(dtype)
    assert_close(block_diagonal(lengths), block_diagonal_from_ids(ids[None])[0, 0])
    pairs = torch.tensor([[0, 7], [0, 7]], dtype=dtype)
    assert_close(block_diagonal_from_ids(pairs.T), torch.ones(2, 1, 2, 2).bool())
    assert_close(block_diagonal_from_ids(pairs[:, :1].expand(2, 3)), torch.ones(2, 1, 3, 3).bool())


def test_packed_documents_are_attended_to_as_if_each_were_alone() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
    packed = attention(q, k, v, mask=block_diagonal(torch.tensor([2, 3])) & causal(5)).out
    for document in (slice(0, 2), slice(2, 5)):
        parts = (x[:, :, document] for x in (q, k, v))
        assert_close(packed[:, :, document], attention(*parts, mask=causal(document.stop - document.start)).out)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: block_diagonal([2, 3]), TypeError, r"^lengths must be an integer tensor \(N,\), got list$"),
        (lambda: block_diagonal(torch.ones(2)), TypeError, r"^lengths must be an integer tensor .* torch\.float32$"),
        (
            lambda: block_diagonal(torch.ones(2).bool()),
            TypeError,
            r"^lengths must be an integer tensor .* torch\.bool$",
        ),
        (
            lambda: block_diagonal(torch.ones(2, 2).long()),
            ValueError,
            r"^lengths must have one axis \(N,\), got \(2, 2",
        ),
        (lambda: block_diagonal(torch.tensor([2, -1, -2])), ValueError, r"^lengths must be .* 0, got -1 at index 1$"),
        (lambda: block_diagonal(torch.tensor([2, 3]), 4), ValueError, r"^S must be .* sum of the lengths, 5, got 4$"),
        (lambda: block_diagonal(torch.tensor([2, 3]), -1), ValueError, r"^S must be at least 0, got -1$"),
        (lambda: block_diagonal(torch.tensor([2, 3]), 5.0), TypeError, r"^S must be an integer, got float$"),
        (lambda: block_diagonal_from_ids([[1]]), TypeError, r"^ids must be an integer tensor \(B, S\), got list$"),
        (lambda: block_diagonal_from_ids(torch.ones(2, 2)), TypeError, r"^ids must be an integer tensor .*float32$"),
        (lambda: block_diagonal_from_ids(torch.ones(2).long()), ValueError, r"^ids must have two axes .* got \(2,\)$"),
    ],
)
def test_block_diagonal_bad_input(make: Callable[[], Tensor], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


# All of them


def test_masks_are_where_their_tensors_are_and_no_value_is_read_there() -> None:
    lengths = torch.zeros(2, dtype=torch.int64, device="meta")
    assert padding(lengths, 3).shape == (2, 1, 1, 3)
    masks = (padding(lengths, 3), block_diagonal(lengths, 3), padding_from_tokens(lengths[None], 0))
    assert {mask.device.type for mask in (*masks, block_diagonal_from_ids(lengths[None]))} == {"meta"}


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "make",
    [
        lambda x: padding(x, 5) & causal(5),
        lambda x: padding_from_tokens(x[None], 2),
        lambda x: block_diagonal(x, 6),
        lambda x: block_diagonal_from_ids(x[None]),
    ],
)
def test_compiles_whole_and_exports(make: Callable[[Tensor], Tensor]) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return make(x)

    first, second = torch.tensor([1, 4]), torch.tensor([2, 3])
    compiled = torch.compile(make, backend="eager", fullgraph=True)
    for strict in (True, False):
        exported = torch.export.export(Module(), (first,), strict=strict).module()
        for x in (first, second):
            assert_close(compiled(x), make(x))
            assert_close(exported(x), make(x))


def test_a_long_batch_is_not_printed_whole() -> None:
    lengths = torch.arange(1000)
    with pytest.raises(ValueError, match=r"^lengths must lie in \[0, S\] = \[0, 900\], got 901 at index 901$"):
        padding(lengths, 900)
