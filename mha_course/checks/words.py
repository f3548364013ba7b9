"""How a verdict says things: numbers that are stable, places, shapes in letters, exceptions."""

import dis
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from linecache import getline
from typing import Any

from mha_course.checks.task import Case

AXES = {
    "B": "sample",
    "H": "head",
    "T": "query",
    "S": "key",
    "D": "feature",
    "Dv": "feature",
    "E": "feature",
    "rows": "row",
    "columns": "column",
    "n": "entry",
    "layers": "layer",
    "length": "position",
    "width": "feature",
}

LONGEST = 200  # characters of a message or a line of code


def number(x: float) -> str:
    """A difference with two digits, the same on every machine.

    Differences on either side of a border of rounding (0.125) differ by 1e-15 between CPUs:
    both are nudged over it. Below 0.001 the digits may be rounding noise, so none are given.
    """
    x *= 1 + 1e-9
    if x < 0.001:
        return "less than 0.001"
    if x >= 1000:
        return "more than 1000"
    return f"{x:.{max(0, 1 - math.floor(math.log10(x)))}f}"


def case_sizes(index: int, case: Case) -> str:
    """For example: case 2 (T, S = 5, 5; scores around 1000)."""
    letters, sizes = ", ".join(case.sizes), ", ".join(map(str, case.sizes.values()))
    note = f"; {case.note}" if case.note else ""
    return f"case {index + 1} ({letters} = {sizes}{note})"


def all_different(letters: Sequence[str]) -> str:
    """For example: ", with T and S different"; "" for one letter."""
    if len(letters) < 2:
        return ""
    return f", with {', '.join(letters[:-1])} and {letters[-1]} {'all ' if len(letters) > 2 else ''}different"


def place(position: Sequence[int], letters: Sequence[str], axes: Mapping[str, str]) -> str:
    """For example: sample 0, query 2, feature 1 (counted from 0); "" for no axes. The second T is the keys'.

    axes are the names that an exercise has for its axes, where they are not those in AXES: {"T": "row", "TT": "token"}
    with another name for the second T.
    """
    axes = {**AXES, **axes}
    names = []
    for axis, (letter, i) in enumerate(zip(letters, position, strict=True)):
        if letter != "1":
            names.append(f"{axes.get(2 * letter, 'key') if letter in letters[:axis] else axes[letter]} {i}")
    return ", ".join(names) + " (counted from 0)" if names else ""


def shape_in_letters(shape: Sequence[int], sizes: Mapping[str, int], expected: Sequence[str]) -> str:
    """For example: (B, S, Dv) = (2, 5, 11). A size that is no letter's stays a number.

    So does a 1 that is not in its place, or whose place is unknown as an axis is lost.
    """
    if not shape:
        return "(), a single number"
    words = []
    lost = len(shape) != len(expected)
    for axis, size in enumerate(shape):
        here = expected[axis] if axis < len(expected) else None
        if here is not None and sizes.get(here) == size and not (lost and size == 1):
            words.append(here)
        elif size == 1:
            words.append("1")
        else:
            words.append(next((letter for letter, n in sizes.items() if n == size), str(size)))
    comma = "," if len(shape) == 1 else ""
    return f"({', '.join(words)}{comma}) = ({', '.join(map(str, shape))}{comma})"


def is_stub(error: BaseException) -> bool:
    """Whether a `raise NotImplementedError` was reached, and not an operation PyTorch lacks."""
    if not isinstance(error, NotImplementedError):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    package = str(last.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return _raises(last.tb_frame.f_code, last.tb_lasti) and package not in ("torch", "numpy")


def message(error: BaseException) -> str:
    """The first line of what an exception says, "" if it says nothing."""
    try:
        return (str.strip(str(error)).splitlines() or [""])[0]
    except KeyboardInterrupt:
        raise
    except BaseException:
        return "its message cannot be read"


def raised(error: BaseException, fn: Callable[..., Any]) -> tuple[str, str]:
    """What was raised, and in which line of the learner's code ("" if that is unknown)."""
    # An object's address differs from run to run.
    said = re.sub(r"0x[0-9a-fA-F]{6,}", "0x...", message(error))
    said = _cut(said.rstrip("."))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__, _line(error, fn)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 6].rstrip() + " [...]"


def _line(error: BaseException, fn: Callable[..., Any]) -> str:
    """The innermost line of the file or cell that holds fn, counted from the def above it."""
    code = _code(fn)
    found = ""
    step = error.__traceback__
    while step is not None and code is not None:
        here = step.tb_frame.f_code
        if here.co_filename == code.co_filename:
            source = _cut(getline(here.co_filename, step.tb_lineno).strip())
            line = step.tb_lineno - here.co_firstlineno + 1
            found = f"line {line} of {here.co_name}" + (f": {source}" if source else "")
        step = step.tb_next
    return found


def _code(fn: Any) -> types.CodeType | None:
    """The code of a function, of what a decorator or partial wraps, or of an object's call."""
    for name in ("__wrapped__", "func", "forward"):
        with suppress(Exception):  # an object may answer to any name, or raise
            fn = getattr(fn, name, fn)
    for find in (lambda: fn.__code__, lambda: type(fn).__call__.__code__):
        with suppress(Exception):
            if isinstance(find(), types.CodeType):
                return find()
    return None


def _raises(code: types.CodeType, offset: int) -> bool:
    """Whether the instruction at a byte offset is a `raise` statement."""
    return dis.opname[code.co_code[offset]] == "RAISE_VARARGS"
