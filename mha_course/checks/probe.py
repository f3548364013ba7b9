"""Probe any attention, also other people's: which output rows move when one token changes.

    leaks(fn, x)            which rows move when token j changes, which samples when sample c changes
    assert_causal(fn, x)    raises if a row sees its future or another sample
    assert_masked(fn, x, mask=...)    the same for any mask
    nan_origins(fn, x)      which token the NaN in a result come from
    row_sums(weights)       which rows of weights do not sum to 1
    gradients(fn, x)        which parameters get no gradient, which inputs get one they should not

fn is a function or module that takes tensors and returns one: (B, T, E) or (B, H, T, D), (T, E)
without a batch, or token ids (B, T); (T, B, E) with batch_first=False. Of a tuple, list or mapping
that fn returns, the first tensor is probed, and the report says so. Modules are called as they are:
with dropout they must be in .eval(); what they store during a call stays stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from mha_course.checks.probe_calls import Probed
from mha_course.checks.probe_gradients import Gradients, gradients
from mha_course.checks.probe_nan import NanOrigins, nan_origins
from mha_course.checks.probe_rows import RowSums, row_sums
from mha_course.masks import causal

__all__ = [
    "Gradients",
    "Leaks",
    "NanOrigins",
    "RowSums",
    "assert_causal",
    "assert_masked",
    "gradients",
    "leaks",
    "nan_origins",
    "row_sums",
]

LARGEST_DRAWN = 40  # rows and tokens that are still drawn as text


@dataclass(frozen=True, repr=False, eq=False)
class Leaks:
    """What moved; print it to read it.

    Attributes:
        moves: (B, T_out, T_in), whether row t of sample b moved when token j changed in all samples.
        samples: (B, B), whether sample b moved when sample c changed.
        nan_rows: (B, T_out), rows that hold NaN before anything changes: they cannot be seen to move.
        note: which tensor was probed, where fn returns several; "" otherwise.
    """

    moves: Bool[Tensor, "B T_out T_in"]
    samples: Bool[Tensor, "B B"]
    nan_rows: Bool[Tensor, "B T_out"]
    note: str

    @property
    def tokens(self) -> Bool[Tensor, "T_out T_in"]:
        """Whether row t moved in some sample when token j changed."""
        return self.moves.any(0)

    @property
    def between_samples(self) -> tuple[tuple[int, int], ...]:
        """The pairs (b, c) in which sample b moved though only sample c changed."""
        apart = self.samples & ~torch.eye(len(self.samples), dtype=torch.bool)
        return tuple((b, c) for b, c in apart.nonzero().tolist())

    def __str__(self) -> str:
        """A drawing, x where a row moves, and sentences."""
        rows, tokens = self.tokens.shape
        lines = [f"Rows down, changed tokens across, x = the row moves: {int(self.tokens.sum())} of {rows * tokens}."]
        if max(rows, tokens) <= LARGEST_DRAWN:
            lines += ["".join("x" if moved else "." for moved in row) for row in self.tokens.tolist()]
        if self.nan_rows.any():
            named = ", ".join(map(str, self.nan_rows.any(0).nonzero().flatten().tolist()[:5]))
            lines.append(f"NaN whatever changes, so that no move is seen: row {named}.")
        between = [f"sample {b} moves when sample {c} changes" for b, c in self.between_samples[:3]]
        lines.append(f"Across the batch: {'; '.join(between) or 'no sample moves when another changes'}.")
        return "\n".join([*lines, *([self.note] if self.note else [])])

    __repr__ = __str__


def leaks(
    fn: Callable[..., Any],
    *inputs: Tensor,
    change: int | Sequence[int] | None = None,
    value: float | None = None,
    draws: int = 3,
    batch_first: bool = True,
    seed: int = 0,
) -> Leaks:
    """Find out which output rows move when one token changes, and which samples when one changes.

    A row moves if any of its numbers is another one, to the last bit. Each token is replaced several
    times, by numbers as large as those of the input, a hundred times smaller, and a thousand times
    larger (30 in float16): a coincidence or a saturated softmax does not hide a leak.

    Args:
        fn: a function or module, see the top of this file.
        *inputs: what fn takes. Tensors of the caller are never changed.
        change: which inputs change at token j, by their place: (1, 2) for the key and value of
            fn(query, key, value). All together if None, which needs equal lengths.
        value: if given, what a token is filled with instead of drawn numbers. With NaN the matrix shows
            what a mask does not hold back in PyTorch: 0 times NaN is NaN.
        draws: how often each token is replaced, at least 1.
        batch_first: False for (T, B, E), as in nn.MultiheadAttention by default.
        seed: of the drawn numbers; the global generator is not touched.

    Returns:
        Leaks(moves, samples, nan_rows, note). `leaks(fn, x).tokens` of attention without residual or
        depth is the mask it really applies, apart from the diagonal: query t is made from token t.

    Raises:
        TypeError: an input is not a tensor; fn returns no tensor; change, value, draws or seed is of another type.
        ValueError: no input, or sizes without room for tokens; an input holds NaN or infinity (see
            `nan_origins`); change is needed or unknown; token ids that are all equal; draws below 1, seed below 0;
            value that an input cannot hold;
            fn gives two results for one input (dropout, a cache), or a result without rows.
    """
    probed = Probed(fn, inputs, change=change, batch_first=batch_first)
    probed.check_finite()
    probed.check_value(value)
    for name, number, least in (("draws", draws, 1), ("seed", seed, 0)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name} must be an integer, got {type(number).__name__}")
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
    before = probed.base()
    B, T_out = probed.rows(before).shape[:2]
    generator = torch.Generator().manual_seed(seed)
    moves = torch.zeros(B, T_out, probed.T, dtype=torch.bool)
    samples = torch.zeros(B, B, dtype=torch.bool)
    for draw in range(draws if value is None else 1):
        for j in range(probed.T):
            moves[:, :, j] |= probed.moved(before, probed.replaced(draw, generator, value, token=j))
        for c in range(B if B > 1 else 0):
            samples[:, c] |= probed.moved(before, probed.replaced(draw, generator, value, sample=c)).any(-1)
    if B == 1:
        samples[:] = moves.any()
    probed.check_still(before)
    nan_rows = probed.rows(before).isnan().any(-1)
    return Leaks(moves, samples, nan_rows, probed.note)


def assert_causal(
    fn: Callable[..., Any], *inputs: Tensor, draws: int = 3, batch_first: bool = True, seed: int = 0
) -> None:
    """Raise unless each row moves only with its own token and earlier ones, of its own sample.

    Args:
        fn, *inputs, draws, batch_first, seed: as in `leaks`; fn must return as many rows as x has
            tokens. Of several inputs, all are changed together. Whether samples are mixed needs two.

    Raises:
        AssertionError: a row sees the future or another sample, is NaN, or no row moves at all.
        TypeError, ValueError: as in `leaks`; the result has other rows than x has tokens.
    """
    found = leaks(fn, *inputs, draws=draws, batch_first=batch_first, seed=seed)
    T_out, T = found.tokens.shape
    if T_out != T:
        raise ValueError(f"fn must return as many rows as its input has tokens, {T}, got {T_out}")
    _judge(found, causal(T)[None], "it sees the future")


def assert_masked(
    fn: Callable[..., Any],
    *inputs: Tensor,
    mask: Bool[Tensor, "..."],
    change: int | Sequence[int] | None = None,
    draws: int = 3,
    batch_first: bool = True,
    seed: int = 0,
) -> None:
    """Raise unless each row moves only with tokens that the mask shows to it, of its own sample.

    Args:
        fn, *inputs, change, draws, batch_first, seed: as in `leaks`. Where the first input changes too,
            a row may move with its own token, whatever the mask says: its query is made from it.
        mask: bool, True = may attend, (T, S) or (B or 1, H or 1, T or 1, S). What one head may see, all may.

    Raises:
        AssertionError: a row sees what the mask hides or another sample, is NaN, or no row moves at all.
        TypeError: as in `leaks`; mask is not a bool tensor.
        ValueError: as in `leaks`; mask does not broadcast to (B, H, T, S).
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a bool tensor (True = may attend), got {got}")
    if mask.ndim not in (2, 4):
        raise ValueError(f"mask must have two axes (T, S) or four (B, H, T, S), got {tuple(mask.shape)}")
    found = leaks(fn, *inputs, change=change, draws=draws, batch_first=batch_first, seed=seed)
    may = (mask[None] if mask.ndim == 2 else mask.any(1)).cpu()
    try:
        may = may.expand_as(found.moves).clone()
    except RuntimeError:
        B, T, S = found.moves.shape
        raise ValueError(f"mask must broadcast to (B, H, T, S) = ({B}, H, {T}, {S}), got {tuple(mask.shape)}") from None
    changed = Probed(fn, inputs, change=change, batch_first=batch_first).change
    if 0 in changed and may.shape[1] == may.shape[2]:
        may |= torch.eye(may.shape[1], dtype=torch.bool)
    _judge(found, may, "the mask hides it")


def _judge(found: Leaks, may: Tensor, why: str) -> None:
    said = []
    bad = (found.moves & ~may).nonzero().tolist()
    if bad:
        b, t, j = min(bad, key=lambda place: (place[1], place[2]))
        sample = f" (sample {b})" if len(found.moves) > 1 else ""
        pairs = len({(t, j) for _, t, j in bad})
        more = f", and {pairs - 1} more such pairs" if pairs > 1 else ""
        said.append(f"row {t} moves when token {j} changes{sample}: {why}{more}{_guess(found.moves)}")
    said += [f"sample {b} moves when sample {c} changes: the batch is mixed" for b, c in found.between_samples[:1]]
    if found.nan_rows.any():
        b, t = found.nan_rows.nonzero()[0].tolist()
        said.append(f"row {t} of sample {b} is NaN, though every input is finite: does it see nothing?")
    if not said and not found.moves.any() and may.any() and found.moves.numel():
        said.append("no row moves, whatever token changes: does fn use its input?")
    if said:
        raise AssertionError("\n".join([*said, *([found.note] if found.note else [])]))


def _guess(moves: Tensor) -> str:
    tokens = moves.any(0)
    if moves.all():
        return ". Every row sees every token: is there a mask at all?"
    past = torch.ones_like(tokens).tril(-1)
    if tokens.shape[0] == tokens.shape[1] and not (tokens & past).any():
        return ". No row sees its past: is the mask inverted?"
    return ""
