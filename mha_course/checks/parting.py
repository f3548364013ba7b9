"""Where two ways of computing the same thing part: which numbers of a reference were ever there."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mha_course.checks.limit import OutOfTime

MOST = 400  # tensors that are kept
LARGEST = 200_000  # numbers in one of them
ALL = 4_000_000  # numbers in all of them
TOLERANCE = 1e-5
HIDDEN = -1e4  # what a score below it stands for: minus infinity

_FLOATS = (torch.float64, torch.float32)


class Step(NamedTuple):
    """A named tensor of the reference, in the order in which they are computed.

    Attributes:
        name: what a sentence calls it, after "the": "scores".
        numbers: its value.
        group: how many leading axes count groups whose numbers belong together: 2 for heads (B, H, T, D) and for
            merged heads (B, T, E), which hold the same numbers; 0 where the numbers alone tell it.
        factor: whether a constant times it is as good, as for scores before their scale.
    """

    name: str
    numbers: Tensor
    group: int = 0
    factor: bool = False


class Parting(NamedTuple):
    """Up to where the numbers agree.

    Attributes:
        agrees: the last step whose numbers were there, None if none was.
        differs: the next step, None if there is none.
        unseen: steps before `agrees` that were not there: computed otherwise, or wrong without an effect so far.
    """

    agrees: str | None
    differs: str | None
    unseen: tuple[str, ...] = ()

    def said(self) -> str:
        """As part of a sentence, "" where nothing can be said."""
        if self.agrees is None:
            return ""
        if self.differs is None:
            return f"the numbers agree up to the {self.agrees}"
        return f"the numbers agree up to the {self.agrees}, those of the {self.differs} are the first that differ"


class _Record(TorchFunctionMode):
    """Keeps a copy of every float tensor that a torch function gives."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []
        self.size = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        parts = result if isinstance(result, tuple | list) else (result,)
        for part in itertools.islice(parts, 64):
            try:
                self._keep(part)
            except Exception:  # whatever it is, it holds no numbers that can be read
                continue
        return result

    def _keep(self, x: Any) -> None:
        if not isinstance(x, Tensor) or x.dtype not in _FLOATS or x.layout != torch.strided:
            return
        if len(self.kept) >= MOST or not 1 < x.numel() <= LARGEST:
            return
        if self.size + x.numel() <= ALL:
            self.size += x.numel()
            self.kept.append(x.detach().clone().double())


def record(fn: Callable[..., Any], *args: Any) -> list[Tensor]:
    """The float tensors that torch functions give while fn(*args) runs, in order, as copies in float64.

    A function of torch counts as one, whatever it calls. What fn raises ends the record;
    an interrupt, or the end of the time, passes through.
    At most `MOST` tensors are kept, and none of a single number or of more than `LARGEST`, `ALL` together.
    """
    recorder = _Record()
    try:
        with recorder:
            fn(*args)
    except (KeyboardInterrupt, OutOfTime):
        raise
    except BaseException:
        return recorder.kept
    return recorder.kept


def first_missing(recorded: Sequence[Tensor], steps: Sequence[Step | tuple[str, Tensor]]) -> Parting:
    """The last of the steps whose numbers are among the recorded tensors, and the one behind it.

    Numbers count as the same in any order of axes and in any shape, and beside others along the last axis (a fused
    projection). One tensor for each head is as good as all heads together. A step that is missing while a later one
    is there was computed in another way: it does not count. Nothing is raised.
    """
    named = [Step(*step) for step in steps]
    known = _Recorded(recorded)
    found = [known.holds(step) for step in named]
    if not any(found):
        return Parting(None, named[0].name if named else None)
    last = max(i for i, there in enumerate(found) if there)
    unseen = tuple(step.name for step, there in zip(named[:last], found[:last], strict=True) if not there)
    return Parting(named[last].name, named[last + 1].name if last + 1 < len(named) else None, unseen)


class _Recorded:
    """Recorded tensors by their number of entries, each sorted once."""

    def __init__(self, recorded: Sequence[Tensor]) -> None:
        self.by_size: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for x in recorded:
            y = _plain(x)
            self.by_size.setdefault(y.numel(), []).append((y, y.flatten().sort().values))

    def holds(self, step: Step) -> bool:
        """Whether some recorded tensor, or one for each head, holds the numbers of the step."""
        try:
            wanted = _plain(step.numbers)
            if self._whole(wanted, step) or self._beside(wanted, step):
                return True
            heads = wanted.unbind(1) if wanted.ndim == 4 and wanted.shape[1] > 1 else ()
            one = step._replace(group=max(step.group - 1, 0))
            return bool(heads) and all(self._whole(head, one) for head in heads)
        except Exception:
            return False

    def _whole(self, wanted: Tensor, step: Step) -> bool:
        target = wanted.flatten().sort().values
        for x, values in self.by_size.get(wanted.numel(), []):
            if _alike(values, target, step.factor) and (not step.group or _grouped(x, wanted, step.group)):
                return True
        return False

    def _beside(self, wanted: Tensor, step: Step) -> bool:
        """Whether the step is one of 2 to 4 equal parts of the last axis, or of more, or in turns along it."""
        width = wanted.shape[-1] if wanted.ndim else 0
        target = wanted.flatten().sort().values
        for times in (2, 3, 4):
            for x, _ in self.by_size.get(times * wanted.numel(), []):
                if not width or x.ndim < 2 or x.shape[-1] % times:
                    continue
                split = [*x.chunk(times, -1), *x.unflatten(-1, (-1, times)).unbind(-1)]
                if any(_alike(part.flatten().sort().values, target, step.factor) for part in split):
                    return True
        return False


def _plain(x: Tensor) -> Tensor:
    """In float64, very negative numbers as `HIDDEN`."""
    return x.detach().double().clamp(min=HIDDEN)


def _alike(a: Tensor, b: Tensor, factor: bool) -> bool:
    """Whether sorted numbers are the same, to the tolerance, or up to a positive factor."""
    if a.isnan().any() or b.isnan().any():
        return False
    if factor:
        shown, wanted = a[a > HIDDEN], b[b > HIDDEN]
        if shown.numel() != wanted.numel() or not shown.numel():
            return False
        size = shown.norm()
        if not 0 < size < math.inf:
            return False
        a, b = shown * (wanted.norm() / size), wanted
    return torch.allclose(a, b, TOLERANCE, TOLERANCE * float(b.abs().max().clamp(max=1)))


def _grouped(x: Tensor, wanted: Tensor, group: int) -> bool:
    """Whether some axes of x count groups that hold the numbers of wanted's groups, each in any order."""
    rows = wanted.flatten(0, group - 1).flatten(1)
    signs = _signature(rows)
    return any(
        torch.allclose(_signature(y), signs, TOLERANCE, TOLERANCE)
        for y in _groupings(x, len(rows), wanted.ndim - group)
    )


def _signature(rows: Tensor) -> Tensor:
    """Of each row a number that depends on its entries but not on their order, sorted."""
    return (rows.sin().mean(1) + rows.square().mean(1)).sort().values


def _groupings(x: Tensor, count: int, others: int) -> Iterator[Tensor]:
    """The tensor as (count, rest): some axes count so many groups, and so many others are left; in all the ways."""
    for several in range(x.ndim):
        for axes in itertools.combinations(range(x.ndim), several):
            if x.ndim - several == others and math.prod(x.shape[a] for a in axes) == count:
                rest = [a for a in range(x.ndim) if a not in axes]
                yield x.permute(*axes, *rest).reshape(count, -1)
