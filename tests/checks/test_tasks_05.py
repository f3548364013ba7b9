"""Right and wrong solutions of notebook 05: sinusoids."""

import math

import pytest
import torch
from torch import nn

from mha_course import positions
from mha_course.checks import check


def waves(length, width):
    pe = torch.zeros(length, width, dtype=torch.float64)
    angle = torch.arange(length).unsqueeze(1) / 10000 ** (torch.arange(0, width, 2).double() / width)
    pe[:, 0::2] = torch.sin(angle)
    pe[:, 1::2] = torch.cos(angle)[:, : width // 2]
    return pe


def waves_by_loops(length, width):
    rows = []
    for p in range(length):
        row = []
        for j in range(width):
            angle = p / 10000 ** (2 * (j // 2) / width)
            row.append(math.cos(angle) if j % 2 else math.sin(angle))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def waves_by_complex_numbers(length, width):
    pairs = torch.arange((width + 1) // 2, dtype=torch.float64)
    turns = torch.outer(torch.arange(length, dtype=torch.float64), torch.exp(-2 * pairs / width * math.log(10000)))
    z = torch.polar(torch.ones_like(turns), turns)  # cos + i sin
    return torch.view_as_real(z).flip(-1).flatten(1)[:, :width]


def waves_by_a_phase(length, width):
    column = torch.arange(width, dtype=torch.float64)
    angle = torch.arange(length)[:, None] * torch.pow(1e-4, (column - column % 2) / width)
    return torch.sin(angle + math.pi / 2 * (column % 2))


def waves_by_rotation(length, width):
    row = torch.tensor([0.0, 1.0] * ((width + 1) // 2), dtype=torch.float64).view(-1, 2)
    step = 10000 ** (-2 * torch.arange(len(row), dtype=torch.float64) / width)
    rows = []
    for _ in range(length):
        rows.append(row.flatten()[:width])
        s, c = row.unbind(1)
        row = torch.stack([s * step.cos() + c * step.sin(), c * step.cos() - s * step.sin()], 1)
    return torch.stack(rows)


SINUSOIDAL_RIGHT = [
    waves,
    waves_by_loops,
    waves_by_complex_numbers,
    waves_by_a_phase,
    waves_by_rotation,
    lambda T, E: waves(T + 3, E)[:T],
    lambda T, E: positions.sinusoidal(T, E, dtype=torch.float64),
]


def tutorial(
    power=lambda i, E: 2 * i / E, place=lambda p: p, base=10000.0, first=torch.sin, second=torch.cos, any_width=False
):
    """As tutorials write it, for even widths: an odd one raises unless any_width."""

    def fn(length, width):
        pe = torch.zeros(length, width, dtype=torch.float64)
        position = place(torch.arange(0, length, dtype=torch.float64).unsqueeze(1))
        i = torch.arange((width + 1) // 2, dtype=torch.float64)
        div_term = torch.exp(-power(i, width) * math.log(base))
        pe[:, 0::2] = first(position * div_term)
        pe[:, 1::2] = second(position * div_term)[:, : width // 2 if any_width else None]
        return pe

    return fn


def entry(angle, even=math.sin, odd=math.cos):
    """Entry by entry: angle(p, j, length, width)."""

    def fn(T, E):
        rows = [[(odd if j % 2 else even)(angle(p, j, T, E)) for j in range(E)] for p in range(T)]
        return torch.tensor(rows, dtype=torch.float64)

    return fn


def blocks(length, width, odd="cut"):
    angle = torch.arange(length)[:, None] / 10000 ** (2 * torch.arange((width + 1) // 2).double() / width)
    if odd == "drop":
        angle = angle[:, : width // 2]
    table = torch.cat([angle.sin(), angle.cos()], dim=1)
    return table[:, :width] if odd == "cut" else table


def tensor2tensor(length, width):
    scales = width // 2
    step = math.log(10000) / max(scales - 1, 1)
    angle = torch.arange(length).double()[:, None] * torch.exp(-step * torch.arange(scales).double())
    return nn.functional.pad(torch.cat([angle.sin(), angle.cos()], dim=1), (0, width % 2))


def two_counters(length, width):
    """A known tutorial: i runs over columns, and the cosine takes the next one."""
    pe = torch.zeros(length, width, dtype=torch.float64)
    for pos in range(length):
        for i in range(0, width, 2):
            pe[pos, i] = math.sin(pos / (10000 ** ((2 * i) / width)))
            if i + 1 < width:
                pe[pos, i + 1] = math.cos(pos / (10000 ** ((2 * (i + 1)) / width)))
    return pe


def by_columns(factor):
    """A frequency for each column, for even widths; an odd one raises."""

    def fn(length, width):
        pe = torch.zeros(length, width).double()
        angle = torch.arange(length)[:, None] * 10000.0 ** (-factor * torch.arange(width).double() / width)
        pe[:, 0::2] = angle[:, 0::2].sin()
        pe[:, 1::2] = angle[:, 1::2].cos() if width % 2 == 0 else angle[:, 0::2].cos()
        return pe

    return fn


def zero_at_the_end(length, width):
    pe = torch.zeros(length, width, dtype=torch.float64)
    for j in range(width - width % 2):
        angle = torch.arange(length) / 10000 ** (2 * (j // 2) / width)
        pe[:, j] = angle.cos() if j % 2 else angle.sin()
    return pe


def padded(length, width):
    return nn.functional.pad(waves(length, width - width % 2), (0, width % 2))


WAVES_FAULTS: list = [  # each with and without a care for odd widths
    ({"first": torch.cos, "second": torch.sin}, "sine and cosine have changed places"),
    ({"power": lambda i, E: i / max((E + 1) // 2 - 1, 1)}, "the frequencies are spaced so that the last"),
    ({"power": lambda i, E: 4 * i / E}, "the power is 4i / width"),
    ({"power": lambda i, E: i / E}, "the power is i / width"),
    ({"base": 100.0}, "the power is i / width"),
    ({"power": lambda i, E: 0 * i}, "every pair has the same frequency"),
    ({"power": lambda i, E: -2 * i / E}, "the position is multiplied by the power"),
    ({"power": lambda i, E: (2 * i / E).flip(0)}, "the frequencies are in the wrong order"),
    ({"base": 1000.0}, "the base is 1000,"),
    ({"base": 100_000.0}, "the base is 100000,"),
    ({"base": math.e}, "the base is e"),
    ({"base": math.exp(math.log10(10000))}, "the logarithm is to base 10"),
    ({"place": lambda p: p + 1}, "positions start at 1"),
    ({"place": lambda p: p.flip(0)}, "the positions run backwards"),
    ({"place": lambda p: p / len(p)}, "the position is divided by the length"),
    ({"place": lambda p: p * math.pi / 180}, "the angles are taken for degrees"),
    ({"place": lambda p: p * 2 * math.pi}, "the angles are multiplied by 2 pi"),
    ({"second": torch.sin}, "every column is a sine"),
    ({"first": torch.cos}, "every column is a cosine"),
    ({"first": lambda a: a, "second": lambda a: a}, "the angles are returned"),
    ({"first": lambda a: a.sin() * 6**0.5}, "the numbers differ"),
]
COLUMNS = "columns are counted where the formula counts pairs"
SINUSOIDAL_WRONG = [
    *((tutorial(**change, any_width=way), fault) for change, fault in WAVES_FAULTS for way in (True, False)),
    (tutorial(), "an odd width raises"),
    (entry(lambda p, j, T, E: p / 10000 ** ((j - j % 2) / E), math.cos, math.sin), "sine and cosine have changed"),
    (blocks, "all sines come first"),
    (lambda T, E: blocks(T, E, "drop"), "all sines come first"),
    (lambda T, E: blocks(T, E, "keep"), "all sines come first"),
    (lambda T, E: nn.functional.pad(blocks(T, E, "drop"), (0, E % 2)), "all sines come first"),
    (
        tensor2tensor,
        "all sines come first, then all cosines: the two of a pair do not stand side by side; also, the fr",
    ),
    (entry(lambda p, j, T, E: p / 10000 ** (j / E)), "sine and cosine of a pair have different frequencies"),
    (by_columns(1), "sine and cosine of a pair have different frequencies"),
    (entry(lambda p, j, T, E: p / 10000 ** (2 * j / E)), COLUMNS),
    (by_columns(2), COLUMNS),
    (two_counters, COLUMNS),
    (entry(lambda p, j, T, E: p * 10000 ** (-2 * (j - j % 2) / E)), "the power is 4i / width"),
    (entry(lambda p, j, T, E: p / 100 ** (2 * (j // 2) / E)), "the power is i / width"),
    (entry(lambda p, j, T, E: p / (10000 ** (2 * (j // 2)) / E)), "the power of 10000 is divided by the width"),
    (lambda T, E: tutorial(lambda i, _: 2 * i, lambda p: p * E)(T, E), "the power of 10000 is divided by the width"),
    (entry(lambda p, j, T, E: p), "every pair has the same frequency"),
    (lambda T, E: waves(T + 1, E)[1:], "positions start at 1"),
    (lambda T, E: waves(T, E).flip(0), "the positions run backwards"),
    (lambda T, E: waves(T, E) * E**0.5, "the table is multiplied by the square root"),
    (lambda T, E: tutorial()(T, E) * math.sqrt(E), "the table is multiplied by the square root"),
    (lambda T, E: waves(T, E).transpose(0, 1), "the table is transposed"),
    (lambda T, E: waves(E, T), "length and width have changed places"),
    (zero_at_the_end, "with an odd width the last column is all zeros"),
    (padded, "with an odd width the last column is all zeros, and"),
    (lambda T, E: waves(T, E)[:, : E // 2 * 2], "with an odd width the last column is missing"),
    (lambda T, E: waves(T, E - E % 2), "with an odd width the last column is missing, and"),
    (lambda T, E: waves(T, E + E % 2), "with an odd width the table has one column too many"),
    (
        lambda T, E: tutorial(lambda i, _: 2 * i / E)(T, E + E % 2),
        "with an odd width the table has one column too many",
    ),
    (
        lambda T, E: waves_by_loops(T, E + E % 2)[:, :E],
        "with an odd width the frequencies are those of one column more",
    ),
    (
        lambda T, E: tutorial(lambda i, _: i / torch.tensor(E // 2))(T, E + E % 2)[:, :E],
        "with an odd width the frequencies are those of one column less",
    ),
    # not named
    (lambda T, E: waves(T, E).float(), "table has type float32, expected float64"),
    (lambda T, E: torch.arange(T * E).view(T, E), "table has type int64, expected float64"),
    (lambda T, E: -waves(T, E), "the numbers differ"),
    (lambda T, E: waves(T, E)[None], "table has the wrong shape"),
    (lambda T, E: waves(T, E).squeeze(), "table has the wrong shape"),
    (lambda T, E: waves(T, E).tolist(), "it returns a list of 5 instead of one tensor"),
    (lambda T: waves(T, 6), "it cannot be called as fn(length, width)"),
    (entry(lambda p, j, T, E: p / 10000 ** (2 * (j // 2) / (E - E % 2))), "the numbers differ"),  # width 1: 0 / 0
]


@pytest.mark.parametrize("fn", SINUSOIDAL_RIGHT)
def test_right(fn):
    verdict = check("sinusoidal", fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(("fn", "fault"), SINUSOIDAL_WRONG)
def test_wrong(fn, fault):
    verdict = check("sinusoidal", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_an_odd_width_that_raises_is_named_beside_what_it_raises():
    verdict = check("sinusoidal", tutorial())
    assert verdict.fault == "an odd width raises: it has one sine more than cosines"
    assert "The expanded size of the tensor (5) must match the existing size (6)" in verdict.evidence
    assert verdict.evidence.endswith("case 2 (length, width = 7, 11)")


def test_a_fault_is_named_before_an_odd_width_that_raises():
    verdict = check("sinusoidal", tutorial(base=1000.0))
    assert verdict.evidence.startswith("largest difference ")
    assert verdict.evidence.endswith("case 1 (length, width = 5, 6)")


def test_places_are_positions_and_features():
    def one_off(length, width):
        table = waves(length, width)
        table[2, 3] += 0.5
        return table

    assert check("sinusoidal", one_off).evidence == (
        "largest difference 0.50 in table, position 2, feature 3 (counted from 0), case 1 (length, width = 5, 6)"
    )


def test_a_type_is_asked_for_where_there_is_no_input_to_take_it_from():
    verdict = check("sinusoidal", lambda T, E: torch.zeros(T, E))
    assert verdict.fault == "table has type float32, expected float64"
    assert verdict.hints[1] == "Name the type where a tensor is made: dtype=torch.float64."
