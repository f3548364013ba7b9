"""`explain`: numbers against loops, names of right and inverted masks, what it says word by word."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mha_course import attention
from mha_course.masks import (
    Explanation,
    band,
    block_diagonal,
    causal,
    explain,
    from_blocked,
    padding,
    prefix,
    sliding_window,
    to_blocked,
)

REAL = padding(torch.tensor([2, 0, 5]), 5)
INVERTED = "Did you mean ~mask? In nn.MultiheadAttention True means blocked, here it means may attend."


def test_causal_and_its_inverse_word_by_word() -> None:
    assert str(explain(causal(5))) == (
        "Mask (T, S) = (5, 5): 15 of 25 pairs may attend (60.0%).\n"
        "It equals causal(5): each query sees itself and what came before it.\n"
        "Every row sees something.\n"
        "No query sees its future. Rows that see their own position: 5 of 5."
    )
    assert str(explain(~causal(5))) == (
        "Mask (T, S) = (5, 5): 10 of 25 pairs may attend (40.0%).\n"
        "It equals ~causal(5): each query sees only what comes after it.\n"
        "1 of 5 rows sees nothing: row 4.\n"
        "1 key is seen by no query: key 0.\n"
        "Pairs that look into the future: 10. Rows that see their own position: 0 of 5.\n"
        f"{INVERTED}"
    )


def test_a_batch_with_padding_word_by_word() -> None:
    mask = causal(3) & padding(torch.tensor([1, 3, 0]), 3)
    assert repr(explain(mask, padding=padding(torch.tensor([1, 2, 0]), 3))) == (
        "Mask (B, H, T, S) = (3, 1, 3, 3): 9 of 27 pairs may attend (33.3%).\n"
        "It equals causal(3) & padding: each query sees itself and what came before it; "
        "keys after the end of a sequence are hidden.\n"
        "3 of 9 rows see nothing: sample 2, row 0; sample 2, row 1; sample 2, row 2.\n"
        "5 keys are seen by no query: sample 0, key 1; sample 0, key 2; sample 2, key 0; sample 2, key 1 and 1 more.\n"
        "No query sees its future. Rows that see their own position: 4 of 9.\n"
        "Allowed pairs whose key is padding: 1.\n"
        "Hide the padding: mask & padding."
    )


def test_padding_word_by_word() -> None:
    assert str(explain(padding(torch.tensor([2, 3]), 3))) == (
        "Mask (B, H, T, S) = (2, 1, 1, 3): 5 of 6 pairs may attend (83.3%).\n"
        "It equals padding: the keys after the end of each sequence are hidden.\n"
        "Every row sees something.\n"
        "1 key is seen by no query: sample 0, key 2."
    )
    assert str(explain(torch.ones(2, 2).bool())).startswith("Mask (T, S) = (2, 2): 4 of 4 pairs may attend (100%).")


def test_all_of_few_places_are_named() -> None:
    assert "4 of 4 rows see nothing: row 0; row 1; row 2; row 3.\n" in str(explain(torch.zeros(4, 4).bool()))
    assert "5 of 5 rows see nothing: row 0; row 1; row 2; row 3 and 1 more.\n" in str(explain(torch.zeros(5, 5).bool()))


def test_numbers_by_hand() -> None:
    found = explain(~causal(3))
    assert (found.shape, found.pairs, found.allowed, found.share) == ((3, 3), 9, 3, 1 / 3)
    assert (found.blind, found.unseen) == (((2,),), ((0,),))
    assert (found.future, found.own, found.padding_seen) == (3, 0, None)
    found = explain(causal(3) & padding(torch.tensor([2, 0]), 3))
    assert found.blind == ((1, 0, 0), (1, 0, 1), (1, 0, 2))
    assert found.unseen == ((0, 0, 2), (1, 0, 0), (1, 0, 1), (1, 0, 2))
    assert (found.future, found.own) == (0, 2)


@given(
    st.sampled_from([(), (2,), (2, 1), (2, 3), (1, 2)]),
    st.integers(1, 4),
    st.integers(0, 4),
    st.sampled_from(["upper_left", "lower_right"]),
    st.integers(0, 2**20),
)
def test_numbers_equal_the_loop(batch: tuple[int, ...], T: int, S: int, alignment: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand((), generator=generator)
    mask = torch.rand(*batch, T, S, generator=generator) < share
    real = torch.rand(*batch, 1, S, generator=generator) < 0.5
    found = explain(mask, padding=real, alignment=alignment)
    offset = S - T if alignment == "lower_right" else 0
    seen = [tuple(index) for index in mask.nonzero().tolist()]
    assert (found.shape, found.pairs, found.allowed) == (tuple(mask.shape), mask.numel(), len(seen))
    rows = [tuple(index) for index in torch.ones(*batch, T).nonzero().tolist()]
    keys = [tuple(index) for index in torch.ones(*batch, S).nonzero().tolist()]
    assert found.blind == tuple(row for row in rows if row not in {index[:-1] for index in seen})
    assert found.unseen == tuple(key for key in keys if key not in {(*i[:-2], i[-1]) for i in seen})
    assert found.padding_seen == sum(not real[(*index[:-2], 0, index[-1])] for index in seen)
    if T == S or T > 1:
        assert found.future == sum(s > t + offset for *_, t, s in seen)
        assert found.own == sum(s == t + offset for *_, t, s in seen)
    else:
        assert found.future is found.own is None


NAMED = {
    "causal(5)": causal(5),
    "~causal(5)": ~causal(5),
    "causal(5) without its diagonal": causal(5).tril(-1),
    "band(5, 0, None)": ~causal(5).tril(-1),
    "band(5, 0, 0)": band(5, 0, 0),
    "~band(5, 0, 0)": ~band(5, 0, 0),
    "sliding_window(5, 2)": sliding_window(5, 2),
    "~sliding_window(5, 2)": ~sliding_window(5, 2),
    "band(5, 1, 2)": band(5, 1, 2),
    "band(5, None, 1)": band(5, None, 1),
    "band(5, 2, None)": band(5, 2, None),
    "all True": torch.ones(5, 5).bool(),
    "all False": torch.zeros(5, 5).bool(),
    "causal(2, 4, alignment='upper_left')": causal(2, 4, alignment="upper_left"),
    "causal(2, 4, alignment='lower_right')": causal(2, 4, alignment="lower_right"),
    "causal(4, 2, alignment='upper_left')": causal(4, 2, alignment="upper_left"),
    "causal(4, 2, alignment='lower_right')": causal(4, 2, alignment="lower_right"),
    "~causal(2, 4, alignment='upper_left')": ~causal(2, 4, alignment="upper_left"),
    "~causal(2, 4, alignment='lower_right')": ~causal(2, 4, alignment="lower_right"),
    "~causal(4, 2, alignment='lower_right')": ~causal(4, 2, alignment="lower_right"),
    "sliding_window(3, 2, 5, alignment='lower_right')": sliding_window(3, 2, 5, alignment="lower_right"),
    "sliding_window(3, 2, 5, alignment='upper_left')": sliding_window(3, 2, 5, alignment="upper_left"),
    "padding": REAL,
    "~padding": ~REAL,
    "causal(5) & padding": causal(5) & REAL,
    "~(causal(5) & padding)": ~(causal(5) & REAL),
    "sliding_window(5, 2) & padding": sliding_window(5, 2) & REAL,
    "~(sliding_window(5, 2) & padding)": ~sliding_window(5, 2) | ~REAL,
    "~causal(5) & padding": ~causal(5) & REAL,
    "~(~causal(5) & padding)": causal(5) | ~REAL,
    "~(causal(2, 4, alignment='upper_left') without its diagonal)": ~causal(2, 4, alignment="upper_left").tril(-1),
    "band(5, 1, 3)": band(5, 1, 3),
    "band(5, 0, 2)": band(5, 0, 2),
    "band(5, 1, 2) & padding": band(5, 1, 2) & padding(torch.tensor([2, 4, 3]), 5),
    None: prefix(5, 2),
}
MEANINGS = {
    "causal(5)": "each query sees itself and what came before it",
    "~causal(5)": "each query sees only what comes after it",
    "~causal(2, 4, alignment='lower_right')": "each query sees only what comes after it",
    "causal(5) without its diagonal": "each query sees what came before it, not itself",
    "band(5, 0, None)": "each query sees itself and what comes after it",
    "band(5, 0, 0)": "each query sees itself alone",
    "~band(5, 0, 0)": "hidden is what band(5, 0, 0) shows",
    "sliding_window(5, 2)": "each query sees 2 keys, its own the last",
    "band(5, 1, 2)": "each query sees the keys from 1 before it to 2 after it",
    "band(5, None, 1)": "each query sees the keys from the first key to 1 after it",
    "band(5, 2, None)": "each query sees the keys from 2 before it to the last",
    "all True": "every query sees every key",
    "all False": "no query sees anything",
    "padding": "the keys after the end of each sequence are hidden",
    "~padding": "of each sequence only a run of keys at the end is seen",
    "causal(5) & padding": (
        "each query sees itself and what came before it; keys after the end of a sequence are hidden"
    ),
    "~(causal(5) & padding)": "hidden is what causal(5) & padding shows",
    "~(~causal(5) & padding)": (
        "all but this: each query sees only what comes after it; keys after the end of a sequence are hidden"
    ),
    None: "",
}


@pytest.mark.parametrize("name", NAMED, ids=str)
def test_names(name: str | None) -> None:
    mask = NAMED[name]
    assert explain(mask).name == name
    more = mask.expand(3, 2, *mask.shape[-2:])
    assert explain(more).name == name
    assert explain(more.contiguous()).name == name
    assert explain(mask.mT.contiguous().mT).name == name


@pytest.mark.parametrize("name", MEANINGS, ids=str)
def test_meanings(name: str | None) -> None:
    assert explain(NAMED[name]).meaning == MEANINGS[name]


def test_names_where_no_sequence_is_full_or_the_mask_is_small() -> None:
    short = padding(torch.tensor([2, 3]), 5)
    assert explain(~causal(5) & short).name == "~causal(5) & padding"
    assert explain(causal(2) & padding(torch.tensor([1, 2]), 2)).name == "causal(2) & padding"
    assert explain(padding(torch.tensor([1, 1]), 5)).name == "padding"
    assert explain(padding(torch.tensor([1, 0]), 1)).name == "padding"
    assert explain(torch.tensor([[False, True, False, False]])).name is None


def test_another_default_device_does_not_matter() -> None:
    for mask in (*NAMED.values(), REAL[:, 0, 0]):
        with torch.device("meta"):
            found = explain(mask, padding=REAL if mask.shape[-2:] == (5, 5) else None)
        assert found.name == explain(mask).name


STRIP = band(5, 0, 2) & ~band(5, 0, 0)  # off the diagonal


@pytest.mark.parametrize(
    "mask", [block_diagonal(torch.tensor([2, 3])), causal(5) | REAL, causal(5) & ~REAL, STRIP, STRIP.T], ids=str
)
def test_what_has_no_name_gets_none_and_is_not_suspected(mask: Tensor) -> None:
    found = explain(mask)
    assert found.name is None
    assert "equals" not in str(found)
    assert "~mask" not in found.advice


def padded(T: int) -> Tensor:
    return causal(T) & padding(torch.tensor([T - 1, T]), T)


@given(st.integers(3, 6), st.data())
def test_one_wrong_entry_is_not_overlooked(T: int, data: st.DataObject) -> None:
    mask = data.draw(st.sampled_from([causal, lambda T: sliding_window(T, 2), padded]))(T)
    before = explain(mask)
    mask = mask.clone()
    t, s = data.draw(st.integers(0, T - 1)), data.draw(st.integers(0, T - 1))
    if mask.ndim == 4:  # another length would be right
        t, s = min(t, T - 2), 0
    mask[..., t, s] ^= True
    assert explain(mask).name != before.name
    assert explain(mask).allowed != before.allowed


@pytest.mark.parametrize(
    ("mask", "advice"),
    [
        (causal(5), ""),
        (sliding_window(5, 2), ""),
        (padding(torch.tensor([2, 5]), 5), ""),
        (prefix(5, 2), ""),
        (~causal(5), INVERTED),
        (to_blocked(causal(5) & REAL), INVERTED),
        (~sliding_window(5, 2), INVERTED),
        (~REAL, f"Right where padding stands on the left. Otherwise: d{INVERTED[1:]}"),
        (~causal(5) & REAL, INVERTED),
        (causal(5) & padding(torch.tensor([2, 5]), 5), ""),
        (causal(5).T.contiguous(), "Did you mean tril instead of triu?"),
        (causal(5).tril(-1), "The first row sees nothing: include the diagonal, unless the keys are shifted."),
        (torch.zeros(2, 2).bool(), "Did you mean ~mask?"),
        (REAL, "A row that sees nothing gets output 0 here, NaN from a plain softmax."),
        (
            causal(4, 2, alignment="lower_right"),
            "A row that sees nothing gets output 0 here, NaN from a plain softmax.",
        ),
        (
            REAL[:, 0],
            "Three axes are lined up with (H, T, S): sample b's mask would go to head b. "
            "If the first, 3, is the batch, use mask[:, None].",
        ),
        (REAL[:1, 0], ""),
        (
            REAL[::2, 0],
            "Three axes are lined up with (H, T, S): sample b's mask would go to head b. "
            "If the first, 2, is the batch, use mask[:, None].",
        ),
        (
            REAL[:, 0, 0],
            "Two axes mean (T, S), but each row is a run of keys from the left that does not grow row by row, "
            "as padding (B, S) looks: is it mask[:, None, None, :]?",
        ),
        (
            torch.tensor([[True], [False], [True]]),
            "A row that sees nothing gets output 0 here, NaN from a plain softmax.",
        ),
        (REAL[:1, 0, 0].expand(5, 5), ""),
    ],
)
def test_advice(mask: Tensor, advice: str) -> None:
    found = explain(mask)
    assert found.advice == advice
    assert str(found).endswith(advice or ".")


@pytest.mark.parametrize("lengths", [[3, 1, 2, 4, 0], [2, 1], [5, 5, 4], [1, 0, 1]])
def test_padding_with_two_axes_is_suspected_even_where_it_is_square(lengths: list[int]) -> None:
    S = max(lengths)
    found = explain(padding(torch.tensor(lengths), S)[:, 0, 0])
    assert found.shape == (len(lengths), S)
    if S > 1:
        assert found.advice.endswith("as padding (B, S) looks: is it mask[:, None, None, :]?")


@pytest.mark.parametrize("B", [2, 3, 4, 6])
def test_padding_with_two_axes_is_refused_unless_there_are_as_many_samples_as_queries(B: int) -> None:
    T = S = 4
    lengths = torch.tensor([3, 1, 4, 2, 1, 3])[:B]
    q = torch.randn(B, 2, T, 5, generator=torch.Generator().manual_seed(0))
    wrong = padding(lengths, S)[:, 0, 0]  # (B, S)
    if B != T:
        with pytest.raises(ValueError, match=rf"^mask must broadcast to .* got \({B}, 4\)$"):
            attention(q, q, q, mask=wrong)
        return
    silent = attention(q, q, q, mask=wrong).weights
    assert (silent * ~padding(lengths, S)).sum() > 1, "weight on padding"
    assert explain(wrong).advice.endswith("as padding (B, S) looks: is it mask[:, None, None, :]?")
    assert explain(wrong, padding=padding(lengths, S)).advice == explain(wrong).advice
    assert explain(wrong, padding=padding(lengths, S)).padding_seen == 10


@pytest.mark.parametrize(
    "mask", [causal(4), prefix(4, 2), causal(3, 5, alignment="lower_right"), causal(1), band(2, 0, 0)]
)
def test_causal_masks_are_not_suspected_to_be_padding(mask: Tensor) -> None:
    assert "(B, S)" not in explain(mask).advice


def test_padding_seen() -> None:
    assert explain(causal(5), padding=REAL).padding_seen == 15 - 9 + 15
    assert explain(causal(5), padding=REAL).shape == (3, 1, 5, 5)
    assert explain(causal(5), padding=REAL).name == "causal(5)"
    assert explain(causal(5), padding=REAL).advice == "Hide the padding: mask & padding."
    assert explain(causal(5) & REAL, padding=REAL).padding_seen == 0
    assert explain(REAL, padding=REAL).padding_seen == 0
    assert explain(~REAL, padding=REAL).padding_seen == (~REAL).sum()


def test_a_mask_that_padding_makes_wider_has_the_order_of_the_wider() -> None:
    one = torch.ones(1, 1).bool()
    assert (explain(one).future, explain(one).own) == (0, 1)
    assert explain(one, padding=REAL).shape == (3, 1, 1, 5)
    assert explain(one, padding=REAL).future is explain(one, padding=REAL).own is None


def test_one_row_for_all_queries_has_no_order() -> None:
    assert explain(REAL).future is None
    assert explain(REAL, alignment="lower_right").future is None
    assert "future" not in str(explain(REAL))
    assert explain(causal(2, 4, alignment="lower_right")).future is None
    assert explain(causal(2, 4, alignment="lower_right"), alignment="lower_right").future == 0
    assert explain(causal(2, 4, alignment="lower_right"), alignment="upper_left").future == 4


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((0, 0), "Mask (T, S) = (0, 0): 0 of 0 pairs may attend (0%).\nThere are no rows."),
        ((3, 0), "Mask (T, S) = (3, 0): 0 of 0 pairs may attend (0%).\n3 of 3 rows see nothing: row 0; row 1; row 2."),
        ((0, 1, 1, 3), "Mask (B, H, T, S) = (0, 1, 1, 3): 0 of 0 pairs may attend (0%).\nThere are no rows."),
    ],
)
def test_empty_masks(shape: tuple[int, ...], says: str) -> None:
    found = explain(torch.ones(shape).bool())
    assert str(found).startswith(says)
    assert found.share == 0.0
    assert found.name is None


def test_size_one() -> None:
    assert explain(causal(1)).name == "all True"
    assert (explain(causal(1)).future, explain(causal(1)).own) == (0, 1)
    assert str(explain(~causal(1))) == (
        "Mask (T, S) = (1, 1): 0 of 1 pairs may attend (0%).\n"
        "It equals all False: no query sees anything.\n"
        "1 of 1 row sees nothing: row 0.\n"
        "1 key is seen by no query: key 0.\n"
        "No query sees its future. Rows that see their own position: 0 of 1.\n"
        "Did you mean ~mask?"
    )
    assert explain(torch.tensor([[True], [False]])).name is not None


def test_more_than_four_axes() -> None:
    found = explain(causal(2).tril(-1).expand(2, 3, 1, 2, 2))
    assert str(found).startswith("Mask (..., T, S) = (2, 3, 1, 2, 2): 6 of 24 pairs may attend (25.0%).")
    assert "6 of 12 rows see nothing: row (0, 0, 0, 0); row (0, 1, 0, 0)" in str(found)


def test_heads_are_named() -> None:
    mask = torch.ones(2, 3, 2, 2).bool()
    mask[1, 2, 0] = False
    assert "1 of 12 rows sees nothing: sample 1, head 2, row 0." in str(explain(mask))


def test_an_explanation_cannot_be_changed() -> None:
    found = explain(causal(3))
    assert isinstance(found, Explanation)
    with pytest.raises(AttributeError):
        found.name = "mine"
    assert found == explain(from_blocked(to_blocked(causal(3))))
    assert hash(found) == hash(explain(causal(3)))


def test_text_is_ascii() -> None:
    for mask in NAMED.values():
        assert str(explain(mask)).isascii()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"mask": torch.ones(2, 2)}, TypeError, r"^mask must be bool \(True = may attend\), got torch\.float32$"),
        ({"mask": torch.ones(2, 2).int()}, TypeError, r"^mask must be bool .* got torch\.int32$"),
        ({"mask": [[True]]}, TypeError, r"^mask must be a bool .* tensor, got list$"),
        ({"mask": torch.ones(2).bool()}, ValueError, r"^mask must have at least two axes \(T, S\), got \(2,\)$"),
        ({"mask": torch.tensor(True)}, ValueError, r"^mask must have at least two axes \(T, S\), got \(\)$"),
        ({"padding": torch.ones(3, 1, 1, 3)}, TypeError, r"^padding must be bool .* got torch\.float32$"),
        ({"padding": torch.tensor([2])}, TypeError, r"^padding must be bool .* got torch\.int64$"),
        ({"padding": torch.ones(3).bool()}, ValueError, r"^padding must have at least two axes .* got \(3,\)$"),
        (
            {"padding": torch.ones(2, 1, 1, 4).bool()},
            ValueError,
            r"^padding must broadcast with mask, \(3, 3\), got \(2",
        ),
        (
            {"padding": torch.ones(2, 3).bool()},
            ValueError,
            r"^padding must have one row .* \(B, 1, 1, S\), got \(2, 3\)$",
        ),
        ({"alignment": "left"}, ValueError, r"^alignment must be 'upper_left' or 'lower_right', got 'left'$"),
    ],
)
def test_bad_input(arguments: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        explain(**{"mask": causal(3), **arguments})


def test_share_of_a_third() -> None:
    assert math.isclose(explain(~causal(3)).share, 1 / 3)
