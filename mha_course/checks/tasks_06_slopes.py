"""The second exercise of notebook 06: the slopes of ALiBi, one for each head."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks.task import Case, Task, Variation, by_steps

Slopes = Float[Tensor, "..."]


def _slope_cases() -> tuple[Case, ...]:
    return tuple(Case({"H": H}, (H,)) for H in (8, 4, 12, 2, 1, 7, 3))


def _powers(
    power: Callable[[Tensor, int], Tensor] = lambda i, H: -8 * i / H, base: float = 2
) -> Callable[[int], Slopes]:
    """The slopes base ** power(i, H) for i = 1 ... H, whatever H is."""
    return lambda H: base ** power(torch.arange(1, H + 1, dtype=torch.float64), H)


_plain = _powers()


def _below(H: int) -> int:
    """The largest power of two that is at most H."""
    return 1 << (H.bit_length() - 1)


def _first(more: Slopes, missing: int) -> Slopes:
    return more[0::2][:missing]


@by_steps
def _as_coded(
    simple: Callable[[int], Slopes] = _plain,
    extra: Callable[[Slopes, int], Slopes] = _first,
    join: Callable[[Slopes, Slopes], Slopes] = lambda slopes, more: torch.cat((slopes, more)),
) -> Callable[[int], Slopes]:
    """As the authors' code: simple(n) for the power of two, joined with extra(simple(2n), how many are missing)."""

    def fn(H: int) -> Slopes:
        n = _below(H)
        return join(simple(n), extra(simple(2 * n), H - n))

    return fn


def _both(fault: str, simple: Callable[[int], Slopes], hints: tuple[str, str]) -> tuple[Variation, Variation]:
    """A fault of the slopes of 2, 4, 8 ... heads, extended as the authors do and by the formula itself."""
    return Variation(fault, _as_coded(simple), hints), Variation(fault, simple, hints)


_RATIO_HINTS = (
    "For 4 heads the slopes should be 1/4, 1/16, 1/64, 1/256: what are yours?",
    "The last slope is 2 ** -8 for any power of two; the exponents reach it in H equal steps.",
)
_START_HINTS = ("The last slope is 1/256 for any power of two: is yours?", "Count the heads from 1, not from 0.")
_EXTRA_HINTS = (
    "For 12 heads, print your last four slopes: they should be 2 to the power -0.5, -1.5, -2.5, -3.5.",
    "Compute the slopes of 16 heads, and take every other one, from the first on, until there are enough.",
)
_BASE_HINTS = (
    "For 8 heads each slope should be half the one before.",
    "The slopes are powers of 2: 2 ** exponent.",
)
_SIGN_HINTS = ("All slopes are positive numbers below 1: are yours?", "The exponents are negative, the slopes are not.")

slopes = Task(
    name="slopes",
    gradients=False,
    arguments=("num_heads",),
    results=(("slopes", ("H",)),),
    reference=_as_coded(),
    build=_as_coded,
    cases=_slope_cases,
    variations=(
        *_both("the exponents start at 0: the first slope is 1", _powers(lambda i, H: -8 * (i - 1) / H), _START_HINTS),
        *_both("the slopes are 1/2, 1/4, 1/8 ... whatever the number of heads", _powers(lambda i, H: -i), _RATIO_HINTS),
        *_both(
            "the slopes are 1, 1/2, 1/4 ... whatever the number of heads", _powers(lambda i, H: 1 - i), _RATIO_HINTS
        ),
        *_both("the ratio is upside down, H / 8 where 8 / H is meant", _powers(lambda i, H: -i * H / 8), _RATIO_HINTS),
        *_both("the 8 is missing: the last slope is 1/2, not 1/256", _powers(lambda i, H: -i / H), _RATIO_HINTS),
        *_both(
            "the exponents reach from -1 to -8 for any number of heads",
            _powers(lambda i, H: -1 - 7 * (i - 1) / max(H - 1, 1)),
            (_RATIO_HINTS[0], "The first exponent is -8 / H, and the others are its multiples."),
        ),
        *_both("the exponents are positive: the slopes grow to 256", _powers(lambda i, H: 8 * i / H), _SIGN_HINTS),
        *_both("the slopes are negative", lambda H: -_plain(H), _SIGN_HINTS),
        *_both(
            "the exponents are returned, not the powers of 2",
            lambda H: _plain(H).log2(),
            ("All slopes are positive numbers below 1: are yours?", "Return 2 ** exponent."),
        ),
        *_both("powers of e are taken, not of 2", _powers(base=math.e), _BASE_HINTS),
        *_both("powers of 10 are taken, not of 2", _powers(base=10), _BASE_HINTS),
        *_both(
            "the slopes fall in equal steps, not by equal factors",
            lambda H: torch.linspace(2 ** (-8 / H), 2**-8, H, dtype=torch.float64),
            _BASE_HINTS,
        ),
        Variation(
            "the slopes fall in equal steps from 1/2 on, not by equal factors",
            lambda H: torch.linspace(0.5, 2**-8, H, dtype=torch.float64),
            _BASE_HINTS,
        ),
        *_both(
            "the slopes are in reverse order, the smallest first",
            lambda H: _plain(H).flip(0),
            ("For 8 heads the first slope should be 1/2.", "Let the exponents run from -8 / H down to -8."),
        ),
        Variation(
            "for 12 heads the paper's sentence is followed, 2 ** (-8i / 12), not the authors' code",
            _plain,
            (
                "The formula holds for 1, 2, 4, 8, 16 heads. For 12, the authors start with the 8 slopes of 8 heads.",
                "Then add slopes of 16 heads, every other one from the first on, until there are 12.",
            ),
        ),
        Variation(
            "the slopes added for 12 heads are the first ones of 16, not every other one",
            _as_coded(extra=lambda more, missing: more[:missing]),
            _EXTRA_HINTS,
        ),
        Variation(
            "the slopes added for 12 heads start with the second one of 16: those are there already",
            _as_coded(extra=lambda more, missing: more[1::2][:missing]),
            _EXTRA_HINTS,
        ),
        Variation(
            "the slopes added for 12 heads are the last ones of 16, not every other one from the first on",
            _as_coded(extra=lambda more, missing: more[len(more) - missing :]),
            _EXTRA_HINTS,
        ),
        Variation(
            "the slopes added for 12 heads are the last of every other one of 16, not the first",
            _as_coded(extra=lambda more, missing: more[0::2][len(more) // 2 - missing :]),
            _EXTRA_HINTS,
        ),
        Variation(
            "the slopes added for 12 heads are those of 4 heads, not from 16",
            lambda H: torch.cat((_plain(_below(H)), _plain(H - _below(H)))),
            _EXTRA_HINTS,
        ),
        Variation(
            "the added slopes come first, they belong after the others",
            _as_coded(join=lambda slopes, more: torch.cat((more, slopes))),
            _EXTRA_HINTS,
        ),
        Variation(
            "the slopes are sorted, the added ones belong after the others",
            _as_coded(join=lambda slopes, more: torch.cat((slopes, more)).sort(descending=True).values),
            _EXTRA_HINTS,
        ),
        Variation(
            "the slopes of 12 heads are the first 12 of 16 heads",
            lambda H: _plain(H if H == _below(H) else 2 * _below(H))[:H],
            _EXTRA_HINTS,
        ),
        Variation(
            "only 8 slopes come back for 12 heads, the rest is missing",
            lambda H: _plain(_below(H)),
            _EXTRA_HINTS,
        ),
        Variation(
            "all slopes of 16 heads come back for 12, four too many",
            lambda H: _plain(H if H == _below(H) else 2 * _below(H)),
            _EXTRA_HINTS,
        ),
    ),
    hints=(
        "For 8 heads the slopes are 1/2, 1/4, down to 1/256; for 4 heads they are 1/4, 1/16, 1/64, 1/256.",
        "2 ** (-8i / H) for a power of two; else the slopes of the one below, and every other one of the next.",
    ),
    shape_hint="One slope for each head.",
)
