"""Call what is probed: on copies, with one token or sample replaced, rows compared to the last bit."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

FACTORS = (1.0, 0.01, 1000.0)  # size of drawn numbers, relative to the input's
LARGEST_IN_HALF = 30.0  # in place of 1000, which float16 has no room for


class Probed:
    """A callable with its inputs.

    Args:
        fn: what is called.
        inputs: tensors, each with a batch or none.
        change: places of the inputs that change; all if None.
        batch_first: whether the batch is the first axis.

    Attributes:
        change: places of the inputs that change.
        T: number of tokens in each of them.
        note: what is to be said about how fn behaved.
    """

    def __init__(
        self, fn: Callable[..., Any], inputs: Sequence[Tensor], *, change: int | Sequence[int] | None, batch_first: bool
    ) -> None:
        self.fn, self.batch_first = fn, batch_first
        if not callable(fn):
            raise TypeError(f"fn must be a function or module, got {type(fn).__name__}")
        if not inputs:
            raise ValueError("fn needs at least one input, got none")
        for i, x in enumerate(inputs):
            if not isinstance(x, Tensor):
                raise TypeError(f"input {i} must be a tensor, got {type(x).__name__}: bind other arguments by a lambda")
            if x.dtype == torch.bool or x.is_complex():
                raise TypeError(f"input {i} must be floating point or integer, got {x.dtype}: bind masks by a lambda")
            if x.ndim < (2 if x.is_floating_point() else 1):
                form = "(B, T, E) or (T, E)" if x.is_floating_point() else "(B, T) or (T,)"
                raise ValueError(f"input {i} must be {form}, got {tuple(x.shape)}")
        self.inputs = tuple(x.detach() for x in inputs)
        first = self.inputs[0]
        self.batched = first.ndim > (2 if first.is_floating_point() else 1)
        self.B = first.shape[0 if batch_first else 1] if self.batched else 1
        self.change = self._changed(change)
        self.T = self._tokens(self.change[0])
        self.note = ""

    def _changed(self, change: int | Sequence[int] | None) -> tuple[int, ...]:
        places = range(len(self.inputs)) if change is None else (change,) if isinstance(change, int) else change
        if isinstance(change, bool | str) or not isinstance(places, Sequence):
            raise TypeError(f"change must be an integer or a sequence of them, got {type(change).__name__}")
        for i in places:
            if isinstance(i, bool) or not isinstance(i, int):
                raise TypeError(f"change must be an integer or a sequence of them, got {type(i).__name__} in it")
            if not 0 <= i < len(self.inputs):
                raise ValueError(f"change must name inputs from 0 to {len(self.inputs) - 1}, got {i}")
            if not self.has_batch(self.inputs[i]):
                raise ValueError(
                    f"inputs that change must have the batch of input 0, {tuple(self.inputs[0].shape)}, got "
                    f"{tuple(self.inputs[i].shape)} as input {i}: leave it out of change, or bind it by a lambda"
                )
        lengths = [self._tokens(i) for i in places]
        if not lengths or len(set(lengths)) > 1:
            raise ValueError(
                f"inputs that change together must be equally long, got lengths {lengths}: say which change, "
                "as in change=(1, 2) for the key and value of fn(query, key, value)"
            )
        return tuple(places)

    def has_batch(self, x: Tensor) -> bool:
        """Whether x has a batch as input 0 has: neither positions (T, E) nor lengths (B,) have."""
        batched = x.ndim > (2 if x.is_floating_point() else 1)
        return batched == self.batched and (not batched or x.shape[0 if self.batch_first else 1] == self.B)

    def _token_axis(self, x: Tensor) -> int:
        if not self.batch_first:
            return 0
        return x.ndim - 2 if x.is_floating_point() else x.ndim - 1

    def _tokens(self, i: int) -> int:
        return self.inputs[i].shape[self._token_axis(self.inputs[i])]

    def part(self, x: Tensor, token: int, sample: int) -> Tensor:
        """One token of one sample of an input, a view."""
        tokens = x.select(self._token_axis(x), token)
        return tokens.select(0, sample) if self.batched else tokens

    def check_finite(self) -> None:
        """Raise if an input holds NaN or infinity."""
        for i, x in enumerate(self.inputs):
            if x.is_floating_point() and not x.isfinite().all():
                place = tuple((~x.isfinite()).nonzero()[0].tolist())
                raise ValueError(f"input {i} holds {x[place].item()} at index {place}: ask nan_origins where it goes")

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """The first tensor that fn returns, of copies of the inputs, without its graph."""
        return self.first(inputs).detach().clone()  # fn may write its next result into the same memory

    def first(self, inputs: Sequence[Tensor]) -> Tensor:
        """The first tensor that fn returns, of copies of the inputs."""
        returned = self.fn(*(x.clone() for x in inputs))
        if isinstance(returned, Tensor):
            return returned
        parts = list(returned.values()) if isinstance(returned, Mapping) else returned
        tensors = [x for x in parts if isinstance(x, Tensor)] if isinstance(parts, list | tuple) else []
        kind = type(returned).__name__
        if not tensors:
            raise TypeError(f"fn must return a tensor, or several of which the first is probed, got {kind}")
        self.note = f"fn returns a {kind}: its first tensor, {tuple(tensors[0].shape)}, was probed."
        return tensors[0]

    def base(self) -> Tensor:
        """The result for the inputs as they are, the same twice."""
        before = self(self.inputs)
        self.check_rows(before)
        self.check_still(before)
        return before

    def check_value(self, value: float | None) -> None:
        """Raise unless every input that changes can be filled with a value."""
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"value must be a number, got {type(value).__name__}")
        for i in self.change:
            x = self.inputs[i]
            if not x.is_floating_point() and value != (int(value) if math.isfinite(value) else None):
                raise ValueError(f"value must be a whole number for token ids, input {i}, got {value}")
            if x.is_floating_point() and math.isfinite(value) and abs(value) > torch.finfo(x.dtype).max:
                raise ValueError(f"value must fit {x.dtype}, input {i}, got {value}")

    def check_rows(self, before: Tensor) -> None:
        """Raise unless a result has the batch and one row a token."""
        if before.ndim < (2 if self.batched else 1):
            raise ValueError(f"fn must return one row a token, (B, T, ...), got {tuple(before.shape)}")
        if self.batched and before.shape[0 if self.batch_first else 1] != self.B:
            raise ValueError(f"fn must return a batch of {self.B}, got {tuple(before.shape)}")

    def check_still(self, before: Tensor) -> None:
        """Raise if fn gives another result for the same inputs."""
        again = self(self.inputs)
        if again.shape != before.shape:
            raise ValueError(
                f"fn returned {tuple(before.shape)}, then {tuple(again.shape)} for the same input: "
                "it keeps something from call to call, a cache perhaps"
            )
        if not same(before, again).all():
            raise ValueError("fn gives two results for the same input: call .eval() first, or take out what is random")

    def rows(self, out: Tensor) -> Tensor:
        """A result with the axes (B, T_out, rest)."""
        if not self.batched:
            out = out.unsqueeze(0)
        elif not self.batch_first:
            out = out.transpose(0, 1)
        axis = 1 if out.ndim <= 3 or not self.batch_first else out.ndim - 2
        rows = out.movedim(axis, 1)
        return rows.unsqueeze(-1).flatten(2)

    def moved(self, before: Tensor, inputs: Sequence[Tensor]) -> Tensor:
        """Which rows (B, T_out) are other ones than before."""
        after = self(inputs)
        if after.shape != before.shape:
            raise ValueError(f"fn returned {tuple(before.shape)}, then {tuple(after.shape)} for changed numbers")
        return (~same(self.rows(before), self.rows(after))).any(-1).cpu()

    def replaced(
        self,
        draw: int,
        generator: torch.Generator,
        value: float | None,
        *,
        token: int | None = None,
        sample: int | None = None,
    ) -> list[Tensor]:
        """The inputs, with one token of all samples, or all tokens of one sample, replaced."""
        inputs = [x.clone() for x in self.inputs]
        for i in self.change:
            x = inputs[i]
            axis = self._token_axis(x) if token is not None else (0 if self.batch_first else 1)
            part = x.select(axis, token if token is not None else sample or 0)  # a view
            part.copy_(_other(part, x, draw, generator) if value is None else torch.full_like(part, value))
        return inputs


def same(a: Tensor, b: Tensor) -> Tensor:
    """Where two results are equal to the last bit, NaN equal to NaN."""
    return (a == b) | (a.isnan() & b.isnan())


def _other(part: Tensor, x: Tensor, draw: int, generator: torch.Generator) -> Tensor:
    """Numbers or ids to put in place of part."""
    if not x.is_floating_point():
        ids = x.unique().cpu()
        if len(ids) < 2:
            raise ValueError("token ids must not all be equal: others are chosen among them")
        steps = torch.randint(1, len(ids), part.shape, generator=generator)
        return ids[(torch.searchsorted(ids, part.cpu().contiguous()) + steps) % len(ids)].to(part)
    factor = FACTORS[draw % len(FACTORS)]
    if x.dtype == torch.float16:
        factor = min(factor, LARGEST_IN_HALF)
    most = max(x.abs().max().item() if x.numel() else 0.0, torch.finfo(x.dtype).max / 16)
    size = x.double().square().mean().sqrt().item() or 1.0
    drawn = torch.randn(part.shape, generator=generator, dtype=torch.float64) * size * factor
    return drawn.clamp(-most, most).to(part)  # never infinite: 0 times infinity is NaN
