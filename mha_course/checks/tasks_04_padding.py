"""Of the exercises of notebook 04 those with padding: alone, and joined with a causal mask."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from mha_course import masks
from mha_course.checks.mask_hints import DIAGONAL, INVERTED, LATE, SHAPE, TRIU
from mha_course.checks.task import Case, Task, Variation, by_steps

Mask = Bool[Tensor, "..."]
Lengths = Integer[Tensor, " B"]


def _padding_cases() -> tuple[Case, ...]:
    drawn = [((5, 7, 2), 7), ((1, 3), 5), ((2, 0, 3, 1, 1), 3), ((1,), 1)]
    return tuple(Case({"B": len(n), "S": S}, (torch.tensor(n), S)) for n, S in drawn)


@by_steps
def _compared(
    compare: Callable[[Tensor, Tensor, int], Mask] = lambda key, n, S: key < n,
    of: Callable[[Tensor], Tensor] = lambda n: n,
    place: Callable[[Mask], Mask] = lambda mask: mask,
) -> Callable[[Lengths, int], Mask]:
    """A padding mask from compare(key (S,), of(lengths (B, 1)), S), (B, 1, 1, S) made into another shape by place."""
    return lambda lengths, S: place(compare(torch.arange(S), of(lengths[:, None]), S)[:, None, None, :])


padding = Task(
    name="padding",
    arguments=("lengths", "S"),
    results=(("mask", ("B", "1", "1", "S")),),
    reference=lambda lengths, S: masks.padding(lengths, S),
    build=_compared,
    cases=_padding_cases,
    variations=(
        Variation(
            "the mask is inverted, only padding is seen",
            _compared(lambda key, n, S: key >= n),
            INVERTED,
        ),
        Variation("one key too many: the first padding token is seen", _compared(lambda key, n, S: key <= n), LATE),
        Variation(
            "the mask is inverted, and misses the first padding token", _compared(lambda key, n, S: key > n), INVERTED
        ),
        Variation(
            "every key is hidden",
            _compared(lambda key, n, S: key < n - n),
            (
                "Count the True in each row: there should be one for each real token.",
                "Key s is real if s < lengths[b].",
            ),
        ),
        Variation("one key too few: the last real token is hidden", _compared(lambda key, n, S: key < n - 1), LATE),
        Variation(
            "the padding is taken to stand on the left, it stands on the right",
            _compared(lambda key, n, S: key >= S - n),
            (
                "Take a sequence of length 2: which columns of its row are True?",
                "The real tokens come first: those whose index is smaller than the length.",
            ),
        ),
        Variation(
            "nothing is hidden",
            _compared(lambda key, n, S: key < n + S),
            ("Does your mask change with lengths?", "Compare the index of each key with the length of its sample."),
        ),
        Variation(
            "every sample has the length of the first",
            _compared(of=lambda n: n[:1].expand_as(n)),
            ("Look at the second sample: whose length does it follow?", "Let the lengths run along the batch axis."),
        ),
        Variation(
            "every sample has the length of the longest",
            _compared(of=lambda n: n.amax(0, keepdim=True).expand_as(n)),
            ("Look at the shortest sample: whose length does it follow?", "Compare with each length, not the largest."),
        ),
        Variation(
            "the mask has the shape (B, S): two axes are read as queries and keys, (T, S)",
            _compared(place=lambda mask: mask[:, 0, 0]),
            SHAPE,
        ),
        Variation(
            "the mask has the shape (B, 1, S): three axes are read as (H, T, S), the batch meets the heads",
            _compared(place=lambda mask: mask[:, 0]),
            SHAPE,
        ),
        Variation(
            "the mask lies along the queries, (B, 1, S, 1): it hides rows, and every row still sees the padding",
            _compared(place=lambda mask: mask.mT),
            SHAPE,
        ),
        Variation(
            "a mask (S, B) is reshaped, not transposed: the samples are mixed",
            lambda lengths, S: (torch.arange(S)[:, None] < lengths).reshape(-1, 1, 1, S),
            ("Print the mask for lengths 1 and 3.", "Swap two axes, which reshape and view do not."),
        ),
        Variation(
            "the mask has the shape (B, S, 1, 1): the tokens meet the heads",
            _compared(place=lambda mask: mask[:, 0, 0, :, None, None]),
            SHAPE,
        ),
    ),
    hints=(
        "Print your mask for lengths 1 and 3 with S = 3, and count the True in each row.",
        "Key s of sample b is real if s is smaller than lengths[b].",
    ),
    shape_hint="The batch comes first, the keys come last, and two axes of size 1 stand between them.",
    dtype="bool",
)


def _combined_cases() -> tuple[Case, ...]:
    drawn = [((5, 7, 2), 7), ((1, 3), 5), ((2, 0, 3, 1, 1), 3), ((1,), 1)]
    return tuple(Case({"B": len(n), "T": T}, (torch.tensor(n), T)) for n, T in drawn)


@by_steps
def _joined(
    join: Callable[[Mask, Mask], Mask] = lambda order, real: order & real,
    order: Callable[[Mask], Mask] = lambda order: order,
    shift: Callable[[Lengths, int], Lengths] = lambda lengths, T: lengths,
    real: Callable[[Mask], Mask] = lambda real: real,
    place: Callable[[Mask], Mask] = lambda mask: mask,
) -> Callable[[Lengths, int], Mask]:
    """A mask (B, 1, T, T) joined from a causal one (T, T) and one of padding (B, 1, 1, T), some steps changed.

    Args:
        join: joins the two.
        order: what becomes of the causal one.
        shift: what becomes of the lengths.
        real: what becomes of the one of padding.
        place: the last step.
    """

    def fn(lengths: Lengths, T: int) -> Mask:
        both = join(order(masks.causal(T)), real(masks.padding(shift(lengths, T), T)))
        return place(both.expand(len(lengths), 1, T, T))

    return fn


_JOIN_HINTS = (
    "Which pairs should be True: those that both masks allow, or those that one of them allows?",
    "A pair is allowed if both allow it, so &. Where True means blocked it is the other way round, |.",
)
_HALF_HINTS = (
    "Print the two masks apart before you join them: what does True mean in each?",
    "In both, True means may attend. Then join them by &.",
)

combined = Task(
    name="combined",
    arguments=("lengths", "T"),
    results=(("mask", ("B", "1", "T", "T")),),
    reference=_joined(),
    build=_joined,
    cases=_combined_cases,
    variations=(
        Variation(
            "the two masks are joined by | (or +), not by &", _joined(lambda order, real: order | real), _JOIN_HINTS
        ),
        Variation(
            "every sample gets the padding of the first",
            _joined(real=lambda real: real[:1]),
            ("Change the length of sample 1: what changes?", "Look for an index 0 or a slice :1."),
        ),
        Variation(
            "the padding is not hidden, the mask is causal alone",
            _joined(lambda order, real: order),
            ("Does your mask change with lengths?", "Join the causal mask and the padding mask by &."),
        ),
        Variation(
            "the future is not hidden, the mask is padding alone",
            _joined(lambda order, real: real),
            ("Look at row 0: which keys does it see?", "Join the causal mask and the padding mask by &."),
        ),
        Variation("the mask is inverted, True where it is blocked", _joined(place=torch.logical_not), INVERTED),
        Variation(
            "both masks are inverted and joined by &: True is what both of them block",
            _joined(lambda order, real: ~order & ~real),
            _HALF_HINTS,
        ),
        Variation(
            "the causal mask is inverted, the padding mask is not: real tokens of the future are seen",
            _joined(lambda order, real: ~order & real),
            _HALF_HINTS,
        ),
        Variation(
            "the padding mask is inverted, the causal mask is not: padding of the past is seen",
            _joined(lambda order, real: order & ~real),
            _HALF_HINTS,
        ),
        Variation("the causal part is the wrong triangle", _joined(order=lambda order: order.T), TRIU),
        Variation(
            "the diagonal is left out of the causal part",
            _joined(order=lambda order: order.tril(-1)),
            DIAGONAL,
        ),
        Variation(
            "the diagonal of the causal part is off by one: each query sees the next token too",
            _joined(order=lambda order: masks.band(len(order), None, 1)),
            TRIU,
        ),
        Variation(
            "every query sees its own position, padding or not",
            _joined(lambda order, real: (order & real) | torch.eye(len(order), dtype=torch.bool)),
            (
                "Look at the rows of padding queries: do they see a padding key, themselves?",
                "A padding token is never a key that counts, not even for itself.",
            ),
        ),
        Variation(
            "the padding is taken to stand on the left, it stands on the right",
            _joined(real=lambda real: real.flip(-1)),
            (
                "Take a sequence of length 2: which columns may be True?",
                "The real tokens come first: those whose index is smaller than the length.",
            ),
        ),
        Variation(
            "one key too many: the first padding token is seen",
            _joined(shift=lambda lengths, T: (lengths + 1).clamp(max=T)),
            LATE,
        ),
        Variation(
            "one key too few: the last real token is hidden",
            _joined(shift=lambda lengths, T: (lengths - 1).clamp(min=0)),
            LATE,
        ),
        Variation(
            "the padding hides rows (queries): those rows see nothing",
            _joined(real=lambda real: real.mT),
            (
                "Look at the rows of the padding: what would their softmax be?",
                "Hide padding as a key alone, along the last axis. What padded queries give is left out of the loss.",
            ),
        ),
        Variation(
            "the mask has the shape (B, T, T): three axes are read as (H, T, S), the batch meets the heads",
            _joined(place=lambda mask: mask[:, 0]),
            SHAPE,
        ),
    ),
    hints=(
        "Print your mask for lengths 1 and 3 with T = 3, one sample at a time.",
        "A pair is allowed if the key does not come after the query, and is a real token.",
    ),
    shape_hint="The batch, one axis of size 1 for the heads, the queries, the keys.",
    dtype="bool",
)
