"""The exercises of notebook 05: sinusoids for any width, and how far a layer is from equivariance."""

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks.task import Case, Task, Variation, by_steps
from mha_course.checks.tasks_05_equivariance import equivariance_error

Table = Float[Tensor, "..."]
Solution = Callable[[int, int], Table]


def _cases() -> tuple[Case, ...]:
    sizes = [(5, 6), (7, 11), (3, 2), (11, 5), (2, 12), (1, 7), (13, 1), (601, 4)]
    return tuple(Case({"length": length, "width": width}, (length, width)) for length, width in sizes)


@by_steps
def _table(
    power: Callable[[Tensor, int], Tensor] = lambda j, E: 2 * (j // 2) / E,
    base: float = 10000,
    place: Callable[[Tensor, int], Tensor] = lambda p, T: p,
    waves: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = (torch.sin, torch.cos),
    end: Callable[[Table], Table] = lambda table: table,
) -> Solution:
    """Waves of the angle place(p, T) / base ** power(j, E): one for even columns j, one for odd ones; then end."""

    def fn(length: int, width: int) -> Table:
        j = torch.arange(width, dtype=torch.float64)
        p = torch.arange(length, dtype=torch.float64)[:, None]
        angles = place(p, length) / base ** power(j, width)  # (length, width)
        return end(torch.where(j % 2 == 0, waves[0](angles), waves[1](angles)))

    return fn


_right = _table()


def _halves(
    count: Callable[[int], tuple[int, int]],
    pad: bool = False,
    power: Callable[[Tensor, int], Tensor] = lambda i, E: 2 * i / E,
) -> Solution:
    """All sines, then all cosines, count(E) of them; with pad a column of zeros where one is missing."""

    def fn(length: int, width: int) -> Table:
        i = torch.arange((width + 1) // 2, dtype=torch.float64)
        angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** power(i, width)
        sines, cosines = count(width)
        table = torch.cat([angles.sin()[:, :sines], angles.cos()[:, :cosines]], 1)
        return torch.cat([table, table.new_zeros(length, width - sines - cosines)], 1) if pad else table

    return fn


def _even_only(length: int, width: int) -> Table:
    """As many cosines as sines are written into the odd columns: an odd width raises."""
    table = _right(length, width)
    table[:, 1::2] = _right(length, width + width % 2)[:, 1::2]
    return table


def _odd(change: Callable[[int, int], Table]) -> Solution:
    """The right table for an even width, change(length, width) for an odd one."""
    return lambda length, width: change(length, width) if width % 2 else _right(length, width)


def _one_more(length: int, width: int) -> Table:
    """One column more than asked for, with the right frequencies."""
    return _table(lambda j, more: 2 * (j // 2) / (more - 1))(length, width + 1)


def _is_odd(sizes: Mapping[str, int]) -> bool:
    return sizes["width"] % 2 == 1


def _fault(fault: str, fn: Solution, hints: tuple[str, str]) -> Variation:
    """A fault in a solution for all widths, or in one that raises for odd widths, whatever it raises."""
    return Variation(fault, fn, hints, _is_odd)


_HALVES = "all sines come first, then all cosines: the two of a pair do not stand side by side"
_HALVES_HINTS = (
    "Look at row 0: it should read 0, 1, 0, 1, and so on.",
    "Put the sines into the even columns and the cosines into the odd ones.",
)
_PAIR_HINTS = (
    "Compare columns 0 and 1 in row 1: their squares should sum to 1.",
    "Columns 2i and 2i + 1 share one angle. Count the pairs by i, not the columns.",
)
_POWER_HINTS = (
    "Take width 4: by what is the position divided in columns 2 and 3? It should be 100.",
    "In columns 2i and 2i + 1 the power of 10000 is 2i / width.",
)
_BASE_HINTS = ("Take width 4: in columns 2 and 3 the position should be divided by 100.", "The base is 10000.")
_EXP_HINTS = (
    "Take width 4: in columns 2 and 3 the position should be divided by 100.",
    "10000 ** a is exp(a * log(10000)), with the natural logarithm.",
)
_PLACE_HINTS = ("Look at row 0: it should read 0, 1, 0, 1, and so on.", "Count positions from 0.")
_ANGLE_HINTS = (
    "Look at row 1, column 0: it should be sin(1), about 0.84.",
    "Take the position as it is, divided by the power of 10000, in radians.",
)
_ODD_HINTS = (
    "Take width 3: how many sines, how many cosines does it need?",
    "An odd width ends with a sine: leave out the last cosine, and nothing else.",
)
_ODD_POWER_HINTS = (
    "Try width 3: by what is the position divided in column 2?",
    "The power is 2i / width with the width that was asked for, odd or not.",
)
_LAYOUT_HINTS = ("Print the shape of your table.", "One row for each position, one column for each feature.")
_COSINE = "an odd width ends with a cosine instead of a sine"
_EXTRA = "with an odd width the table has one column too many"
_ENDS = "the frequencies are spaced so that the last one is 1 / 10000 itself"
_ENDS_HINTS = (
    "Take width 4: by what is the position divided in columns 2 and 3? It should be 100.",
    "Divide i by the number of pairs, width / 2, not by one less.",
)

sinusoidal = Task(
    name="sinusoidal",
    gradients=False,
    arguments=("length", "width"),
    results=(("table", ("length", "width")),),
    reference=_right,
    build=_table,
    cases=_cases,
    variations=(
        _fault("an odd width raises: it has one sine more than cosines", _even_only, _ODD_HINTS),
        _fault(
            "sine and cosine have changed places",
            _table(waves=(torch.cos, torch.sin)),
            ("Look at row 0: it should read 0, 1, 0, 1, and so on.", "Sines stand in the even columns, from column 0."),
        ),
        _fault(_HALVES, _table(end=lambda table: torch.cat((table[:, 0::2], table[:, 1::2]), 1)), _HALVES_HINTS),
        Variation(_HALVES, _halves(lambda E: ((E + 1) // 2, (E + 1) // 2)), _HALVES_HINTS),
        Variation(_HALVES, _halves(lambda E: (E // 2, E // 2)), _HALVES_HINTS),
        Variation(_HALVES, _halves(lambda E: (E // 2, E // 2), pad=True), _HALVES_HINTS),
        _fault(
            f"{_HALVES}; also, {_ENDS}",
            _halves(lambda E: (E // 2, E // 2), pad=True, power=lambda i, E: i / max(E // 2 - 1, 1)),
            _HALVES_HINTS,
        ),
        _fault(_ENDS, _table(lambda j, E: (j // 2) / max((E + 1) // 2 - 1, 1)), _ENDS_HINTS),
        _fault("sine and cosine of a pair have different frequencies", _table(lambda j, E: j / E), _PAIR_HINTS),
        _fault(
            "columns are counted where the formula counts pairs: each column has its own frequency",
            _table(lambda j, E: 2 * j / E),
            _PAIR_HINTS,
        ),
        _fault(
            "the power is 4i / width, not 2i / width: the column 2i was doubled once more",
            _table(lambda j, E: 4 * (j // 2) / E),
            _POWER_HINTS,
        ),
        _fault(
            "the power is i / width, not 2i / width: the frequencies cover half their range",
            _table(lambda j, E: (j // 2) / E),
            _POWER_HINTS,
        ),
        _fault(
            "the power of 10000 is divided by the width, not its exponent: ** binds before /",
            _table(lambda j, E: 2 * (j // 2) - math.log(E, 10000)),
            (_POWER_HINTS[0], "Put the exponent in brackets, 10000 ** (2i / width)."),
        ),
        _fault(
            "every pair has the same frequency, 1",
            _table(lambda j, E: 0 * j),
            ("Compare columns 0 and 2: later pairs should turn more slowly.", _POWER_HINTS[1]),
        ),
        _fault(
            "the position is multiplied by the power of 10000, not divided by it",
            _table(lambda j, E: -2 * (j // 2) / E),
            ("Compare columns 0 and 2: later pairs should turn more slowly.", "Look at the sign of the exponent."),
        ),
        _fault(
            "the frequencies are in the wrong order, the slowest first",
            _table(lambda j, E: 2 * ((E - 1) // 2 - j // 2) / E),
            ("Look at row 1, column 0: it should be sin(1), about 0.84.", "The fastest pair comes first."),
        ),
        _fault("the base is 1000, not 10000", _table(base=1000), _BASE_HINTS),
        _fault("the base is 100000, not 10000", _table(base=100000), _BASE_HINTS),
        _fault("the base is e, not 10000: the factor log(10000) is missing", _table(base=math.e), _EXP_HINTS),
        _fault("the logarithm is to base 10, exp needs the natural one", _table(base=math.exp(4)), _EXP_HINTS),
        _fault("positions start at 1, not at 0", _table(place=lambda p, T: p + 1), _PLACE_HINTS),
        _fault("the positions run backwards", _table(place=lambda p, T: T - 1 - p), _PLACE_HINTS),
        _fault(
            "the position is divided by the length of the sequence",
            _table(place=lambda p, T: p / T),
            (
                "Row 3 must be the same whatever the length is: is it?",
                "Take the position as it is, without the length.",
            ),
        ),
        _fault("the angles are taken for degrees", _table(place=lambda p, T: torch.deg2rad(p)), _ANGLE_HINTS),
        _fault(
            "the angles are multiplied by 2 pi, as if they were whole turns",
            _table(place=lambda p, T: 2 * math.pi * p),
            _ANGLE_HINTS,
        ),
        _fault("every column is a sine", _table(waves=(torch.sin, torch.sin)), _HALVES_HINTS),
        _fault("every column is a cosine", _table(waves=(torch.cos, torch.cos)), _HALVES_HINTS),
        _fault(
            "the angles are returned, without sine and cosine",
            _table(waves=(torch.clone, torch.clone)),
            _HALVES_HINTS,
        ),
        _fault(
            "the table is multiplied by the square root of the width",
            _table(end=lambda table: table * math.sqrt(table.shape[1])),
            (
                "No entry of the table is larger than 1: are yours?",
                "The root belongs to the embeddings, not to the positions.",
            ),
        ),
        _fault(
            "the table is transposed, (width, length) instead of (length, width)",
            _table(end=lambda table: table.T),
            _LAYOUT_HINTS,
        ),
        Variation(
            "length and width have changed places",
            lambda length, width: _right(width, length),
            _LAYOUT_HINTS,
            lambda sizes: sizes["length"] % 2 == 1,
        ),
        Variation(
            "with an odd width the last column is all zeros",
            _odd(lambda T, E: torch.cat([_right(T, E)[:, :-1], torch.zeros(T, 1).double()], 1)),
            _ODD_HINTS,
        ),
        Variation(
            "with an odd width the last column is all zeros, and the frequencies are those of one column less",
            _odd(lambda T, E: torch.cat([_right(T, E - 1), torch.zeros(T, 1).double()], 1)),
            _ODD_HINTS,
        ),
        Variation("with an odd width the last column is missing", _odd(lambda T, E: _right(T, E)[:, :-1]), _ODD_HINTS),
        Variation(
            "with an odd width the last column is missing, and the frequencies are those of one column less",
            _odd(lambda T, E: _right(T, E - 1)),
            _ODD_HINTS,
        ),
        Variation(
            _COSINE,
            _odd(lambda T, E: torch.cat([_right(T, E)[:, :-1], _table(waves=(torch.cos, torch.cos))(T, E)[:, -1:]], 1)),
            _ODD_HINTS,
        ),
        Variation(_COSINE, _odd(lambda T, E: _one_more(T, E)[:, 1:]), _ODD_HINTS),
        Variation(_COSINE, _odd(lambda T, E: _right(T, E + 1)[:, 1:]), _ODD_HINTS),
        Variation(_EXTRA, _odd(_one_more), _ODD_HINTS),
        Variation(_EXTRA, _odd(lambda T, E: _right(T, E + 1)), _ODD_HINTS),
        Variation(
            "with an odd width the frequencies are those of one column more",
            _odd(lambda T, E: _right(T, E + 1)[:, :-1]),
            _ODD_POWER_HINTS,
        ),
        Variation(
            "with an odd width the frequencies are those of one column less",
            _odd(_table(lambda j, E: 2 * (j // 2) / (E - 1))),
            _ODD_POWER_HINTS,
        ),
    ),
    hints=(
        "Take length 2 and width 4: row 1 should be sin(1), cos(1), sin(1/100), cos(1/100).",
        "Go step by step: the pairs i, the power of 10000, the angles, then sines and cosines.",
    ),
    shape_hint="One row for each position, one column for each feature; an odd width ends with a sine.",
)

TASKS = (sinusoidal, equivariance_error)
