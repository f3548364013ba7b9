"""Sinusoids that raise at odd widths, whatever they raise, and those that end with the wrong column."""

import math

import numpy as np
import pytest
import torch

from mha_course.checks import check


def pair_by_pair(length, width, base=10000):
    pe = torch.zeros(length, width, dtype=torch.float64)
    for p in range(length):
        for i in range(0, width, 2):
            pe[p, i] = math.sin(p / base ** (i / width))
            pe[p, i + 1] = math.cos(p / base ** (i / width))
    return pe


def stacked(length, width, base=10000):
    angle = torch.arange(length)[:, None] / base ** (2 * torch.arange(width // 2).double() / width)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).view(length, width)


def in_numpy(length, width, base=10000):
    pe = np.zeros((length, width))
    angle = np.arange(length)[:, None] / base ** (np.arange(0, width, 2) / width)
    pe[:, 0::2] = np.sin(angle)
    pe[:, 1::2] = np.cos(angle) if width > 1 else np.zeros((length, 2))
    return torch.from_numpy(pe)


def asserted(length, width, base=10000):
    assert width % 2 == 0
    return stacked(length, width, base)


def refused(length, width, base=10000):
    if width % 2:
        raise ValueError("even")
    return stacked(length, width, base)


RAISING = [
    (pair_by_pair, "it raises IndexError: index 11 is out of bounds"),
    (stacked, "it raises RuntimeError: shape '[7, 11]' is invalid for input of size 70"),
    (in_numpy, "it raises ValueError: could not broadcast input array"),
    (asserted, "it raises AssertionError"),
    (refused, "it raises ValueError: even, line 3 of refused"),
]


def halves(fn):
    """The sines of fn first, then its cosines."""

    def blocks(length, width):
        table = fn(length, width)
        return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)

    return blocks


@pytest.mark.parametrize(("fn", "said"), RAISING)
def test_an_odd_width_that_raises_is_named_beside_what_it_raises(fn, said):
    verdict = check("sinusoidal", fn)
    assert verdict.fault == "an odd width raises: it has one sine more than cosines"
    assert verdict.evidence.startswith(said)
    assert verdict.evidence.endswith("case 2 (length, width = 7, 11)")
    assert verdict.hints[0] == "Take width 3: how many sines, how many cosines does it need?"


@pytest.mark.parametrize(("fn", "said"), RAISING)
def test_another_fault_is_named_first(fn, said):
    assert check("sinusoidal", lambda T, E: fn(T, E, 1000)).fault == "the base is 1000, not 10000"
    assert check("sinusoidal", halves(fn)).fault.startswith("all sines come first")
    assert check("sinusoidal", lambda T, E: fn(T, E).T).fault.startswith("the table is transposed")
    assert check("sinusoidal", lambda T, E: fn(E, T)).fault == "length and width have changed places"


def test_even_widths_must_agree_and_all_odd_ones_raise():
    unnamed = check("sinusoidal", lambda T, E: stacked(T, E) * 1.01)
    assert unnamed.fault == "the numbers differ from the reference"
    some = check("sinusoidal", lambda T, E: refused(T, E) if E < 11 else stacked(T, E + E % 2)[:, :E] * 2)
    assert some.fault == "the numbers differ from the reference"


def test_one_that_is_unfinished_is_not_named():
    def unfinished(length, width):
        if width % 2:
            raise NotImplementedError("your turn")
        return stacked(length, width)

    verdict = check("sinusoidal", unfinished)
    assert verdict.fault == "it raises NotImplementedError: your turn"
    assert verdict.hints[1] == "Write what is missing there, or take out the raise."


def waves(length, width, start, of):
    """Columns start, start + 1 ... of a table with the frequencies of width `of`."""
    j = torch.arange(start, start + width)
    angle = torch.arange(length).double()[:, None] / 10000 ** ((j - j % 2).double() / of)
    return torch.where(j % 2 == 0, angle.sin(), angle.cos())


def last_is_a_cosine(length, width):
    table = waves(length, width, 0, width)
    if width % 2:
        table[:, -1] = torch.cos(torch.arange(length) / 10000 ** ((width - 1) / width))
    return table


@pytest.mark.parametrize(
    "fn",
    [
        last_is_a_cosine,
        lambda T, E: waves(T, E, E % 2, E),  # the first sine dropped, not the last cosine
        lambda T, E: waves(T, E, E % 2, E + E % 2),
    ],
)
def test_an_odd_width_that_ends_with_a_cosine_is_named(fn):
    verdict = check("sinusoidal", fn)
    assert verdict.fault == "an odd width ends with a cosine instead of a sine"
    assert verdict.hints[1] == "An odd width ends with a sine: leave out the last cosine, and nothing else."
