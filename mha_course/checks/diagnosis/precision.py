"""Narrow steps taken in float64: a candidate that computes in bfloat16 inside, and its numbers without that."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from mha_course.checks.diagnosis.calling import Given
from mha_course.checks.watching import Watching

NARROW = (torch.float16, torch.bfloat16)
SMALL = 50.0  # inputs below this overflow in no type
CLOSE = 0.05  # what rounding to bfloat16 may change, against 1


class Precise(Watching):
    """Inside, every tensor that is asked for in float16, bfloat16 or float32 is made in float64.

    Attributes:
        narrowed: the types that were asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.narrowed: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation on tensors comes through here."""
        kwargs = kwargs or {}
        wanted = kwargs.get("dtype")
        if wanted in (*NARROW, torch.float32):
            self.narrowed.add(wanted)
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


class Precision:
    """Calls of one candidate, with its narrow steps taken in float64 where that only takes away rounding.

    Attributes:
        narrowed: the types that were asked for.
    """

    def __init__(self) -> None:
        self.narrowed: set[torch.dtype] = set()
        self._plain: set[Any] = set()

    def result(self, run: Callable[[Given], Tensor], given: Given, spare: Given, kind: Any) -> Tensor:
        """The result of a call, in float64.

        Args:
            run: calls the candidate.
            given: the arguments.
            spare: copies of them, for a second call.
            kind: of the call; one kind is watched until it gave numbers without a narrow step.

        Raises:
            BaseException: whatever the candidate raises.
        """
        if kind in self._plain:
            return _numbers(run(given))
        exact, precise = None, Precise()
        try:
            with precise:
                exact = _numbers(run(given))
        except Exception:
            if not precise.narrowed:
                raise
        if exact is not None and not precise.narrowed:
            self._plain.add(kind)
            return exact
        try:
            plain = _numbers(run(spare))
        except Exception:
            if exact is not None and precise.narrowed == {torch.float32}:
                return exact  # what is in float32 as a whole casts to float32 as it likes
            raise
        numbers = [y for y in (*spare[0], *spare[1].values()) if y.is_floating_point()]
        largest = max(y.abs().nan_to_num(posinf=0.0).max().item() for y in numbers)
        if exact is None or not _rounds_only(plain, exact, largest):
            return plain
        self.narrowed |= precise.narrowed
        return exact

    def exactly(self) -> AbstractContextManager[Any]:
        """Within it narrow steps are taken in float64, if the candidate's are."""
        return Precise() if self.narrowed else nullcontext()

    @property
    def remark(self) -> str:
        """What is to be said of the types that it computes in, "" if nothing."""
        names = " and ".join(str(one).removeprefix("torch.") for one in NARROW if one in self.narrowed)
        if not names:
            return ""
        return f"It computes in {names} inside: its numbers were compared with these steps taken in float64."


def _numbers(out: Tensor) -> Tensor:
    return out.detach().double().clone()


def _rounds_only(plain: Tensor, exact: Tensor, largest: float) -> bool:
    """Whether a result differs from that of float64 steps as rounding does; large inputs may overflow."""
    if plain.shape != exact.shape:
        return False
    if largest >= SMALL:
        return True
    close = (plain - exact).abs() <= CLOSE * (1 + exact.abs())
    return bool((close | (plain.isnan() & exact.isnan()) | (plain == exact)).all())
