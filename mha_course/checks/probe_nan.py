"""Where the NaN in a result come from: from which token, or from the function itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from mha_course.checks.probe_calls import Probed

Place = tuple[int, int]


class Origin(NamedTuple):
    """A token with NaN or infinity in it.

    Attributes:
        input: which input, counted from 0.
        sample: which sample, 0 without a batch.
        token: which token.
        rows: (sample, row) of the result that are not finite because of it.
    """

    input: int
    sample: int
    token: int
    rows: tuple[Place, ...]


@dataclass(frozen=True)
class NanOrigins:
    """Where NaN and infinity in a result come from; print it to read it.

    Attributes:
        rows: (sample, row) of the result that hold NaN or infinity.
        of_fn: those that do so with finite inputs as well: fn makes them.
        origins: the tokens that hold NaN or infinity, each with the rows that it alone spoils.
        note: which tensor was probed, where fn returns several; "" otherwise.
    """

    rows: tuple[Place, ...]
    of_fn: tuple[Place, ...]
    origins: tuple[Origin, ...]
    note: str

    def __str__(self) -> str:
        """In sentences, one a line."""
        lines = [f"Rows of the result with NaN or infinity: {_named(self.rows)}."]
        for input, sample, token, rows in self.origins:
            where = f"Token {token} of sample {sample}, input {input}, is not finite"
            lines.append(f"{where}; it alone spoils: {_named(rows)}.")
        if self.of_fn:
            lines.append(f"Not finite with finite inputs too, so made by fn: {_named(self.of_fn)}.")
        return "\n".join([*lines, *([self.note] if self.note else [])])


def nan_origins(fn: Callable[..., Any], *inputs: Tensor, batch_first: bool = True) -> NanOrigins:
    """Find the tokens that the NaN and infinities in a result come from.

    Each token that is not finite is left in alone, all others put to 0. A mask holds back the
    score of a hidden token, not its value: 0 times NaN is NaN, in PyTorch's kernels too.

    Args:
        fn, *inputs, batch_first: as in `leaks`; the inputs may hold NaN and infinity.

    Returns:
        NanOrigins(rows, of_fn, origins, note).

    Raises:
        TypeError, ValueError: as in `leaks`.
    """
    probed = Probed(fn, inputs, change=0, batch_first=batch_first)
    clean = [x.nan_to_num(0.0, 0.0, 0.0) if x.is_floating_point() else x for x in probed.inputs]
    origins = []
    for i, x in enumerate(probed.inputs):
        if not x.is_floating_point() or x.isfinite().all():
            continue
        if not probed.has_batch(x):
            raise ValueError(
                f"an input that is not finite must have the batch of input 0, {tuple(probed.inputs[0].shape)}, "
                f"got {tuple(x.shape)} as input {i}: expand it"
            )
        for sample, token in (~probed.rows(x).isfinite()).any(-1).nonzero().tolist():
            alone = [y.clone() for y in clean]
            probed.part(alone[i], token, sample).copy_(probed.part(x, token, sample))
            origins.append(Origin(i, sample, token, _spoilt(probed, alone)))
    return NanOrigins(_spoilt(probed, probed.inputs), _spoilt(probed, clean), tuple(origins), probed.note)


def _spoilt(probed: Probed, inputs: Sequence[Tensor]) -> tuple[Place, ...]:
    out = probed(inputs)
    probed.check_rows(out)
    bad = (~probed.rows(out).isfinite()).any(-1)
    return tuple((b, t) for b, t in bad.nonzero().tolist())


def _named(places: Sequence[Place], most: int = 6) -> str:
    """For example: sample 0, rows 1, 2; sample 3, row 0."""
    if not places:
        return "none"
    parts = []
    for sample in sorted({b for b, _ in places}):
        rows = [t for b, t in places if b == sample]
        more = f" and {len(rows) - most} more" if len(rows) > most else ""
        parts.append(f"sample {sample}, row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:most]))}{more}")
    return "; ".join(parts)
