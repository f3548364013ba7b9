"""Recognise a mask: causal, a window, padding, mixtures of them, and each of these inverted."""

from typing import NamedTuple

import torch
from torch import Tensor


class Name(NamedTuple):
    """What a mask equals.

    Attributes:
        name: an expression of `masks`.
        meaning: what it lets through, in words.
        advice: what probably went wrong, "" if nothing.
    """

    name: str
    meaning: str
    advice: str = ""


_INVERTED = "Did you mean ~mask? In nn.MultiheadAttention True means blocked, here it means may attend."
_DIAGONAL = "The first row sees nothing: include the diagonal, unless the keys are shifted."
_REVERSED = "Did you mean tril instead of triu?"


def distances(T: int, S: int, device: torch.device) -> Tensor:
    """How far key s lies ahead of query t: s - t, (T, S)."""
    return torch.arange(S, device=device) - torch.arange(T, device=device).unsqueeze(-1)


def recognise(mask: Tensor) -> Name | None:
    """Name a mask (..., T, S), None if it is none of those known here."""
    if not mask.numel():
        return None
    T, S = mask.shape[-2:]
    if mask.all():
        return Name("all True", "every query sees every key")
    if not mask.any():
        return Name("all False", "no query sees anything", "Did you mean ~mask?")
    if T > 1:
        for candidate, inverted in ((mask, False), (~mask, True)):
            found = _of_order(candidate, T, S)
            if found is not None:
                return _invert(found) if inverted else found
    return _with_padding(mask, T, S)


def _with_padding(mask: Tensor, T: int, S: int) -> Name | None:
    """The same where some of the last keys are hidden from all rows of a sample."""
    for candidate, inverted in ((mask, False), (~mask, True)):
        key = torch.arange(S, device=mask.device)
        lengths = (candidate.any(-2) * (key + 1)).amax(-1)  # (...,)
        real = (key < lengths.unsqueeze(-1)).unsqueeze(-2)  # (..., 1, S)
        if (candidate == real).all():
            name = Name("padding", "the keys after the end of each sequence are hidden")
            if not inverted:
                return name
            return Name("~padding", "of each sequence only a run of keys at the end is seen", _AT_THE_END)
        found = _of_order(candidate, T, S, real) if T > 1 else None
        if found is not None:
            both = Name(f"{found.name} & padding", f"{found.meaning}; keys after the end of a sequence are hidden")
            both = both._replace(advice=found.advice)
            return _invert(both) if inverted else both
    return None


_AT_THE_END = f"Right where padding stands on the left. Otherwise: {_INVERTED[0].lower()}{_INVERTED[1:]}"


def _invert(found: Name) -> Name:
    if found.advice:  # the inverse of the inverse
        return Name(f"~({found.name})", f"all but this: {found.meaning}")
    name = f"~({found.name})" if "&" in found.name else f"~{found.name}"
    return Name(name, f"hidden is what {found.name} shows", _INVERTED)


def _of_order(mask: Tensor, T: int, S: int, real: Tensor | None = None) -> Name | None:
    """The name of a mask that shows the keys from one distance to another, among the real ones."""
    ahead = distances(T, S, mask.device)
    seen = ahead[mask.reshape(-1, T, S).any(0)]
    low, high = int(seen.min()), int(seen.max())
    inside = (ahead >= low) & (ahead <= high)
    if not ((inside if real is None else inside & real) == mask).all():
        return None
    last = S - 1 if real is None else int(real.sum(-1).max()) - 1
    back, forth = low <= 1 - T, high >= last  # whether there is no limit on that side
    if T == S:
        return _named(low, high, back, forth, f"{T}", "", S)
    for alignment, offset in (("upper_left", 0), ("lower_right", S - T)):
        found = _named(low - offset, high - offset, back, forth, f"{T}", f", {S}, alignment={alignment!r}", S)
        if found is not None and not found.name.startswith(
            "band"
        ):  # a band of either alignment is also one of the other
            return found
    return None


def _named(low: int, high: int, back: bool, forth: bool, T: str, rest: str, S: int) -> Name | None:
    """The name, low and high being distances from the query's own position; T and rest are arguments."""
    own = f"causal({T}{rest})"
    if back and high == 0:
        return Name(own, "each query sees itself and what came before it")
    if forth and low == 1:
        return Name(f"~{own}", "each query sees only what comes after it", _INVERTED)
    if back and high == -1:
        return Name(f"{own} without its diagonal", "each query sees what came before it, not itself", _DIAGONAL)
    if forth and low == 0:
        return Name(f"band({T}, 0, None{rest})", "each query sees itself and what comes after it", _REVERSED)
    if low == high == 0:
        return Name(f"band({T}, 0, 0{rest})", "each query sees itself alone")
    window = 1 - low
    if high == 0 and window <= S:
        return Name(f"sliding_window({T}, {window}{rest})", f"each query sees {window} keys, its own the last")
    if low <= 0 <= high and not (back and forth):
        left, right = (None if back else -low), (None if forth else high)
        start = "the first key" if back else f"{-low} before it"
        end = "the last" if forth else f"{high} after it"
        return Name(f"band({T}, {left}, {right}{rest})", f"each query sees the keys from {start} to {end}")
    return None
