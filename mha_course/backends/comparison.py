"""Compare functions that should compute the same: numbers, gradients, time and memory in one table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from mha_course.backends.calling import Call, Function, largest
from mha_course.masks._inputs import check_integer
from mha_course.measure import PairedRatio, threads


@dataclass(frozen=True)
class Row:
    """What one function did.

    Attributes:
        name: of the function.
        error: type and first line of what it raised, "" if nothing; then all else is empty.
        difference: the largest difference of its output from the reference's; None for the reference.
        gradients: the same for each input that needs a gradient, by its name.
        rounding: the largest error of its output, against the reference computed in float64;
            None where that was not possible.
        time: how many times as long as the reference it took; None for the reference and without rounds.
        memory: bytes at the peak of a call; None where they cannot be counted.
    """

    name: str
    error: str = ""
    difference: float | None = None
    gradients: tuple[tuple[str, float], ...] = ()
    rounding: float | None = None
    time: PairedRatio | None = None
    memory: int | None = None


@dataclass(frozen=True, repr=False)
class Comparison:
    """What `compare` found; print it to read it.

    Attributes:
        rows: one for each function, in the order in which they were given.
        reference: name of the function that the others were compared with, the first that did not raise.
        backward: whether each call took gradients too.
    """

    rows: tuple[Row, ...]
    reference: str | None
    backward: bool

    def __getitem__(self, name: str) -> Row:
        """The row of that name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __str__(self) -> str:
        """A table."""
        if self.reference is None:
            return "\n".join(f"{row.name}: {row.error}" for row in self.rows)
        names = next((tuple(name for name, _ in row.gradients) for row in self.rows if row.gradients), ())
        columns = [("", [row.name for row in self.rows])]
        columns.append(("out", [_number(row.difference) for row in self.rows]))
        for i, name in enumerate(names):
            found = [row.gradients[i][1] if row.gradients else None for row in self.rows]
            columns.append((f"grad {name}", [_number(x) for x in found]))
        optional = {
            "rounding": [_number(row.rounding) for row in self.rows],
            "memory": ["" if row.memory is None else _bytes(row.memory) for row in self.rows],
            "time": ["" if row.time is None else repr(row.time) for row in self.rows],
        }
        columns += [(title, cells) for title, cells in optional.items() if any(cells)]
        widths = [max(len(title), *map(len, cells)) for title, cells in columns]
        table = [[title for title, _ in columns], *zip(*(cells for _, cells in columns), strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        for i, row in enumerate(self.rows):
            if row.error:
                lines[i + 1] = f"{row.name:{widths[0]}}  {row.error}"
        what = "out and grad: largest difference" if names else "out: largest difference"
        said = [f"{what} from {self.reference}"]
        if any(optional["rounding"]):
            said.append(f"rounding: largest error of out, against {self.reference} in float64")
        if any(optional["memory"]):
            said.append("memory: peak of a call")
        if any(optional["time"]):
            said.append(
                f"time: as a multiple of that of {self.reference}; a against itself, the control, should be near 1"
            )
        calls = "forward and backward" if self.backward else "forward only"
        return "\n".join([*lines, "", *(f"{line}." for line in said), f"Calls: {calls}."])

    __repr__ = __str__


def compare(
    *functions: Function | Mapping[str, Function],
    inputs: Sequence[Any] | Mapping[str, Any],
    rounds: int = 0,
    num_threads: int = 1,
    seed: int = 0,
) -> Comparison:
    """Call several functions on the same inputs and compare what they return, and what they cost.

    Where an input needs a gradient, each call also goes backward, from the same drawn gradient of the
    output. Every call starts from the same seed, with a copy of the inputs of its own (in the timed
    rounds one for each function), and leaves the inputs, the global generator, and the buffers and
    gradients of a module as they were. An error is a row of the table, not its end.

    Args:
        *functions: functions or modules; or one mapping from names to them. Of a tuple, list or mapping
            that one returns, the first tensor is compared, complex numbers as such.
        inputs: what each is called with: a sequence in its place, a mapping by name.
        rounds: of timing, by `measure.paired_ratio`, at least 6; 0: no times, and the same table each time.
        num_threads: number of threads of the CPU in all of it.
        seed: of what is drawn.

    Returns:
        Comparison(rows, reference, backward). NaN in the same place in both is no difference, NaN in one is NaN.

    Raises:
        TypeError: a function cannot be called; inputs is neither a sequence nor a mapping; rounds,
            num_threads or seed is not an integer.
        ValueError: fewer than two functions; two of one name; rounds between 1 and 5 or below 0;
            num_threads below 1, seed below 0.
        RuntimeError: called while a profiler records.
    """
    named = _named(functions)
    if isinstance(inputs, Tensor | str) or not isinstance(inputs, Sequence | Mapping):
        raise TypeError(f"inputs must be a sequence or a mapping, got {type(inputs).__name__}")
    for name, n, least in (("rounds", rounds, 0), ("num_threads", num_threads, 1), ("seed", seed, 0)):
        check_integer(name, n, least=least)
    if 0 < rounds < 6:
        raise ValueError(f"rounds must be 0 or at least 6, got {rounds}")
    given = dict(inputs) if isinstance(inputs, Mapping) else {str(i): x for i, x in enumerate(inputs)}
    call = Call(given, isinstance(inputs, Mapping), seed)
    with threads(num_threads):
        results = {name: call.attempt(fn) for name, fn in named.items()}
        reference = next((name for name, result in results.items() if not isinstance(result, str)), None)
        if reference is None:
            rows = [Row(name, error=str(result)) for name, result in results.items()]
            return Comparison(tuple(rows), None, bool(call.leaves))
        want = results[reference]
        assert not isinstance(want, str)
        exact = call.in_float64(named[reference])
        rows = []
        for name, result in results.items():
            wrong = result if isinstance(result, str) else ""
            if not isinstance(result, str) and result[0].shape != want[0].shape:
                sizes = tuple(result[0].shape), tuple(want[0].shape)
                wrong = f"returns {sizes[0]} where {reference} returns {sizes[1]}"
            if isinstance(result, str) or wrong:
                rows.append(Row(name, error=wrong))
                continue
            apart = [largest(a, b) for a, b in zip(result, want, strict=True)]
            own = name == reference
            rows.append(
                Row(
                    name,
                    difference=None if own else apart[0],
                    gradients=() if own else tuple(zip(call.leaves, apart[1:], strict=True)),
                    rounding=None if exact is None else largest(result[0], exact),
                    time=None if own or not rounds else call.time(named[name], named[reference], rounds),
                    memory=call.memory(named[name]),
                )
            )
    return Comparison(tuple(rows), reference, bool(call.leaves))


def _named(functions: Sequence[Any]) -> dict[str, Function]:
    if len(functions) == 1 and isinstance(functions[0], Mapping):
        pairs = list(functions[0].items())
    else:
        pairs = [(_name(fn), fn) for fn in functions]
    for name, fn in pairs:
        if not callable(fn):
            raise TypeError(f"{name} must be a function or module, got {type(fn).__name__}")
    names = [name for name, _ in pairs]
    if len(pairs) < 2:
        raise ValueError(f"compare needs at least two functions, got {len(pairs)}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two functions have the name {twice!r}: pass a mapping from names to functions")
    return dict(pairs)


def _name(fn: Any) -> str:
    if isinstance(fn, partial):
        options = [*map(repr, fn.args), *(f"{name}={value!r}" for name, value in fn.keywords.items())]
        return f"{_name(fn.func)}({', '.join(options)})"
    return getattr(fn, "__name__", type(fn).__name__)


def _number(x: float | None) -> str:
    return "" if x is None else "0" if x == 0 else f"{x:.0e}"


def _bytes(n: int) -> str:
    factor, unit = next((u for u in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if n >= u[0]), (1, "B"))
    return f"{n / factor:.3g} {unit}"
