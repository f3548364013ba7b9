"""The exercises of notebook 06: rotary positions, and the slopes and the bias of ALiBi."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks.task import Case, Task, Variation, by_steps, draw
from mha_course.checks.tasks_06_alibi import alibi_bias
from mha_course.checks.tasks_06_slopes import slopes

Heads = Float[Tensor, "..."]
Pair = tuple[Heads, Heads]
Solution = Callable[[Heads, int], Heads]


_SIZES = ((2, 3, 5, 6), (3, 5, 2, 12), (1, 7, 3, 4), (2, 5, 3, 2), (5, 1, 1, 4), (3, 2, 5, 6))
_OFFSETS = (7, 0, 11, 4, 3, 2)


def _cases() -> tuple[Case, ...]:
    """Two of them have the same T and D, and other offsets."""
    return tuple(
        Case(dict(zip("BHTD", sizes, strict=True)), (*draw(seed, sizes), offset), f"offset {offset}")
        for seed, (sizes, offset) in enumerate(zip(_SIZES, _OFFSETS, strict=True))
    )


def _adjacent(x: Heads) -> Pair:
    return x[..., 0::2], x[..., 1::2]


def _halves(x: Heads) -> Pair:
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


def _interleaved(a: Heads, b: Heads) -> Heads:
    return torch.stack((a, b), -1).flatten(-2)


def _side_by_side(a: Heads, b: Heads) -> Heads:
    return torch.cat((a, b), -1)


@by_steps
def _rotary(
    turn: Callable[[Heads, Heads, Heads, Heads], Pair] = lambda a, b, cos, sin: (a * cos - b * sin, a * sin + b * cos),
    place: Callable[[Tensor, int], Tensor] = lambda t, offset: offset + t,
    power: Callable[[Tensor, int], Tensor] = lambda i, D: 2 * i / D,
    base: float = 10000,
    axis: int = 2,
    take: Callable[[Heads], Pair] = _adjacent,
    put: Callable[[Heads, Heads], Heads] = _interleaved,
    turned: Callable[[Tensor, int], Tensor] = lambda i, D: i >= 0,
) -> Solution:
    """Rotary positions, with one step changed.

    Args:
        turn: from a pair of numbers and the cosine and sine of its angle to the new pair.
        place: from indices along `axis` and the offset to positions.
        power: from the pairs i and D to the power of the base that divides the positions.
        base: that base.
        axis: the axis of x along which positions run.
        take: splits x into the first and the second numbers of its pairs.
        put: the way back.
        turned: from the pairs i and D to whether a pair is turned at all.
    """

    def fn(x: Heads, offset: int) -> Heads:
        D = x.shape[-1]
        i = torch.arange(D // 2, dtype=x.dtype)
        t = torch.arange(x.shape[axis], dtype=x.dtype)
        angles = place(t, offset)[:, None] / base ** power(i, D) * turned(i, D)
        angles = angles.view(*(n if a == axis else 1 for a, n in enumerate(x.shape[:3])), D // 2)
        return put(*turn(*take(x), angles.cos(), angles.sin()))

    return fn


_right = _rotary()


def _wide(
    power: Callable[[Tensor, int], Tensor],
    take: Callable[[Heads], Pair] = _adjacent,
    put: Callable[[Heads, Heads], Heads] = _interleaved,
) -> Solution:
    """Rotary with an angle for each feature j: x * cos + put(-b, a) * sin, a and b from take(x)."""

    def fn(x: Heads, offset: int) -> Heads:
        T, D = x.shape[2:]
        t, j = torch.arange(T, dtype=x.dtype), torch.arange(D, dtype=x.dtype)
        angles = (offset + t)[:, None] / 10000 ** power(j, D)  # (T, D)
        a, b = take(x)
        return x * angles.cos() + put(-b, a) * angles.sin()

    return fn


def _resized(power: float) -> Callable[[Heads, int], Heads]:
    return lambda x, offset: _right(x, offset) * x.shape[-1] ** power


_PAIR_HINTS = (
    "Take x = (1, 2, 3, 4): which numbers form the first pair? 1 and 2.",
    "Take every other number, x[..., 0::2] and x[..., 1::2], and put the results back into the same places.",
)
_SIGN_HINTS = (
    "Turn the pair (1, 0) by a small positive angle: the second number should become positive.",
    "The pair (a, b) becomes (a cos - b sin, a sin + b cos).",
)
_PLACE_HINTS = (
    "Call it with offset 0 and look at t = 0: nothing should change there.",
    "Row t stands at position offset + t.",
)
_OFFSET_HINTS = (
    "Row 1 with offset 0 and row 0 with offset 1 stand at the same position: do you turn them by the same angle?",
    "Row t stands at position offset + t.",
)
_POWER_HINTS = (
    "Take D = 4: by what is the position divided for the second pair? It should be 100.",
    "The position is divided by 10000 to the power 2i / D, and i counts the pairs from 0.",
)
_AXIS_HINTS = (
    "x is (B, H, T, D): does each sample and each head get the same angles?",
    "Positions run along axis 2. Lay the angles out as (T, D / 2): they broadcast from the right.",
)
_SIZE_HINTS = (
    "Compare the length of a pair before and after: turning keeps it.",
    "Return the turned pairs as they are.",
)
_ANGLE_HINTS = (
    "Turn the pair (1, 0) at position 1, pair 0: the first number should be cos(1), about 0.54.",
    "Take the position as it is, divided by the power of 10000, in radians.",
)
_LAYOUT_HINTS = (
    "Print your angles for T = 2 and D = 4: which features share one? Which features do you turn together?",
    "The numbers 2i and 2i + 1 form pair i, and both use its angle.",
)
_MIXED = "two layouts are mixed: the angles are laid out for other pairs than those that are turned"
_OWN = "the two numbers of a pair are turned by different angles"
_PART = "only the first half of the pairs is turned"
_PART_HINTS = ("Compare the last pair before and after: does it change?", "Turn all D / 2 pairs.")
_NO_TURN = "this is no rotation, a sign is wrong: pairs change their length"

rotary = Task(
    name="rotary",
    arguments=("x", "offset"),
    results=(("rotated", ("B", "H", "T", "D")),),
    reference=_right,
    build=_rotary,
    cases=_cases,
    variations=(
        Variation(
            "the pairs are (x[i], x[i + D/2]), the half split of Llama, not neighbours as in the paper",
            _rotary(take=_halves, put=_side_by_side),
            _PAIR_HINTS,
        ),
        Variation(
            "the pairs are turned right, but come back in two halves and not side by side",
            _rotary(put=_side_by_side),
            (
                "Call it with offset 0 and look at t = 0: are the numbers in their places?",
                "Put the two numbers of each pair side by side again: stack them along a new last axis, then flatten.",
            ),
        ),
        Variation(
            "the offset of an earlier call stays: a table is kept for each length, whatever the offset",
            lambda x, offset: _rotary()(x, 7 if x.shape[-2:] == (5, 6) else offset),
            (
                "Call it twice with inputs of one length and two offsets: do the two results differ?",
                "Make the table anew, or keep it by the offset as well.",
            ),
        ),
        Variation("the pairs are taken from two halves, and put back side by side", _rotary(take=_halves), _PAIR_HINTS),
        Variation(_MIXED, _wide(lambda j, D: 2 * (j % (D // 2)) / D), _LAYOUT_HINTS),
        Variation(_MIXED, _wide(lambda j, D: 2 * (j // 2) / D, _halves, _side_by_side), _LAYOUT_HINTS),
        Variation(_OWN, _wide(lambda j, D: j / D), _LAYOUT_HINTS),
        Variation(_OWN, _wide(lambda j, D: 2 * j / D), _LAYOUT_HINTS),
        Variation(
            "the pairs are turned the other way round, by minus the angle",
            _rotary(lambda a, b, cos, sin: (a * cos + b * sin, b * cos - a * sin)),
            _SIGN_HINTS,
        ),
        Variation(_NO_TURN, _rotary(lambda a, b, cos, sin: (a * cos - b * sin, b * cos - a * sin)), _SIGN_HINTS),
        Variation(_NO_TURN, _rotary(lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos)), _SIGN_HINTS),
        Variation(
            "this is a reflection, not a rotation: the second number of each pair has the wrong sign",
            _rotary(lambda a, b, cos, sin: (a * cos - b * sin, -a * sin - b * cos)),
            _SIGN_HINTS,
        ),
        Variation(
            "this is a reflection, not a rotation: at position 0 the second number of each pair changes its sign",
            _rotary(lambda a, b, cos, sin: (a * cos + b * sin, a * sin - b * cos)),
            _SIGN_HINTS,
        ),
        Variation(
            "sine and cosine have changed places",
            _rotary(lambda a, b, cos, sin: (a * sin - b * cos, a * cos + b * sin)),
            ("Call it with offset 0 and look at t = 0: nothing should change there.", _SIGN_HINTS[1]),
        ),
        Variation(
            "the second number of a pair is computed from the new first number, not from the old one",
            _rotary(lambda a, b, cos, sin: (a * cos - b * sin, (a * cos - b * sin) * sin + b * cos)),
            (
                "At the line for the second number: has the first already been overwritten?",
                "Keep the old pair under names of its own, and compute both new numbers from it.",
            ),
        ),
        Variation(
            "the sine part is missing, numbers are only multiplied by cosines",
            _rotary(lambda a, b, cos, sin: (a * cos, b * cos)),
            _SIGN_HINTS,
        ),
        Variation(
            "sines and cosines are added, as in notebook 05, and nothing is turned",
            _rotary(lambda a, b, cos, sin: (a + sin, b + cos)),
            ("Double x: the result of a rotation doubles. Does yours?", _SIGN_HINTS[1]),
        ),
        Variation(
            "x comes back as it was",
            lambda x, offset: x.clone(),
            ("Print your angles: are they all 0?", "Turn pair i of row t by its angle, and return the new numbers."),
        ),
        Variation("the offset is ignored", _rotary(place=lambda t, offset: t), _OFFSET_HINTS),
        Variation("the offset is subtracted, not added", _rotary(place=lambda t, offset: t - offset), _OFFSET_HINTS),
        Variation(
            "all rows are turned by the angle of the first one",
            _rotary(place=lambda t, offset: 0 * t + offset),
            ("Compare the angles of row 0 and row 1: are they the same?", "Row t stands at position offset + t."),
        ),
        Variation("positions start at 1, not at 0", _rotary(place=lambda t, offset: offset + t + 1), _PLACE_HINTS),
        Variation(
            "the position is divided by the number of rows",
            _rotary(place=lambda t, offset: (offset + t) / len(t)),
            ("Cut off the last row of x: do the others stay as they were?", "Take the position as it is."),
        ),
        Variation("the positions run along the heads, not along the rows", _rotary(axis=1), _AXIS_HINTS),
        Variation("the positions run along the samples, not along the rows", _rotary(axis=0), _AXIS_HINTS),
        Variation(
            "the power is i / D, not 2i / D: the frequencies cover half their range",
            _rotary(power=lambda i, D: i / D),
            _POWER_HINTS,
        ),
        Variation(
            "the power is 4i / D, not 2i / D: the feature 2i was doubled once more",
            _rotary(power=lambda i, D: 4 * i / D),
            _POWER_HINTS,
        ),
        Variation(
            "the frequencies are spaced so that the last one is 1 / 10000 itself",
            _rotary(power=lambda i, D: i / max(D // 2 - 1, 1)),
            _POWER_HINTS,
        ),
        Variation(
            "the power of 10000 is divided by D, not its exponent: ** binds before /",
            _rotary(power=lambda i, D: 2 * i - math.log(D, 10000)),
            (_POWER_HINTS[0], "Put the exponent in brackets, 10000 ** (2i / D)."),
        ),
        Variation("pairs are counted from 1, not from 0", _rotary(power=lambda i, D: 2 * (i + 1) / D), _POWER_HINTS),
        Variation(
            "all pairs are turned by the angle of the first one",
            _rotary(power=lambda i, D: 0 * i),
            ("Print the angles of one row: later pairs should turn more slowly.", _POWER_HINTS[1]),
        ),
        Variation(
            "the position is multiplied by the power of 10000, not divided by it",
            _rotary(power=lambda i, D: -2 * i / D),
            ("Print the angles of one row: later pairs should turn more slowly.", "Look at the sign of the exponent."),
        ),
        Variation(
            "the frequencies are in the wrong order, the slowest first",
            _rotary(power=lambda i, D: 2 * (D // 2 - 1 - i) / D),
            ("Print the angles of one row: later pairs should turn more slowly.", "The first pair is the fastest."),
        ),
        Variation("the base is 1000, not 10000", _rotary(base=1000), _POWER_HINTS),
        Variation("the base is e, not 10000: the factor log(10000) is missing", _rotary(base=math.e), _POWER_HINTS),
        Variation("the base is 500000, that of Llama 3, not 10000", _rotary(base=500000), _POWER_HINTS),
        Variation(_PART, _rotary(turned=lambda i, D: i < D // 4), _PART_HINTS),
        Variation(_PART, _rotary(turned=lambda i, D: i < D // 4, power=lambda i, D: 4 * i / D), _PART_HINTS),
        Variation("the angles are taken for degrees", _rotary(place=lambda t, n: torch.deg2rad(n + t)), _ANGLE_HINTS),
        Variation(
            "the angles are multiplied by 2 pi, as if they were whole turns",
            _rotary(place=lambda t, n: 2 * math.pi * (n + t)),
            _ANGLE_HINTS,
        ),
        Variation("the result is divided by the square root of D", _resized(-0.5), _SIZE_HINTS),
        Variation("the result is multiplied by the square root of D", _resized(0.5), _SIZE_HINTS),
    ),
    hints=(
        "Take x = (1, 2, 3, 4) with offset 1: (1, 2) is turned by the angle 1, and (3, 4) by 1/100.",
        "Go step by step: positions (T,), frequencies (D / 2,), angles (T, D / 2), pairs, then the way back.",
    ),
    shape_hint="A rotation changes no shape: put the two numbers of each pair back, (D / 2, 2) becomes D.",
    axes={"T": "token"},  # x may hold queries or keys
)

TASKS = (rotary, slopes, alibi_bias)
