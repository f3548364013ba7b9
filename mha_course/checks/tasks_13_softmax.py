"""The cases of a softmax that works in every format, and softmaxes with faults, for notebook 13."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks.task import Case, Variation, draw

Scores = Float[Tensor, "B T S"]
Step = Callable[[Tensor], Tensor]
NONE = -torch.inf
HUGE = 1e4


def _case(seed: int, sizes: tuple[int, int, int], note: str = "", dtype: str = "float64", size: float = 1) -> Case:
    """Scores of a standard deviation of 1, or about +-size: some rows lie high, some low, and all keys of a row apart.

    The format and the tolerance that its spacing needs come with the name of the type.
    """
    (scores,) = draw(seed, sizes)
    if size != 1:
        signs = torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)[torch.arange(sizes[0] * sizes[1]) % 3]
        scores = size * (signs.view(*sizes[:2], 1) + 0.05 * scores)
    if "-inf" in note:
        scores[:, 0, 1:] = NONE
        scores[:, -1] = NONE
    tolerance = {"float64": 1e-6, "float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}[dtype]
    said = dtype + (f", {note}" if note else "")
    letters = dict(zip(("B", "T", "S"), sizes, strict=True))
    return Case(letters, (scores.to(getattr(torch, dtype)),), said, tolerance)


def _long() -> Case:
    """Many equal scores in bfloat16: 256 + 1 is 256 there."""
    sizes = {"B": 1, "T": 2, "S": 601}
    return Case(sizes, (torch.ones(1, 2, 601, dtype=torch.bfloat16),), "bfloat16, equal scores", 1e-3)


def softmax_cases() -> tuple[Case, ...]:
    """Ordinary scores, huge ones in each format, rows of -inf, and long rows."""
    return (
        _case(0, (2, 3, 5)),
        _case(1, (3, 5, 5)),
        _case(2, (2, 3, 7), "scores around +-10000", "float64", HUGE),
        _case(3, (3, 2, 5), "scores around +-10000", "float32", HUGE),
        _case(4, (2, 3, 5), "scores around +-10000", "float16", HUGE),
        _case(5, (2, 3, 5), "scores around +-10000", "bfloat16", HUGE),
        _case(6, (2, 5, 7), "scores around +-20", "float16", 20),
        _case(7, (3, 5, 2), "rows with -inf, one throughout", "float64"),
        _case(8, (2, 5, 3), "rows with -inf, one throughout", "float32"),
        _case(9, (2, 3, 5), "rows with -inf, one throughout", "float16"),
        _case(10, (2, 3, 7), "rows with -inf, one throughout", "bfloat16"),
        _case(11, (2, 3, 7), "scores around +-6000", "float64", 6000),  # exp overflows less the minimum, not the mean
        _case(12, (2, 3, 5), "scores around +-400", "float64", 400),  # exp holds -400, not -800
        _case(12, (2, 3, 5), "scores around +-60", "float32", 60),  # the same in float32
        _case(15, (2, 3, 5), "scores around +-10000, rows with -inf", "float64", HUGE),  # each row has its own maximum
        _case(13, (1, 1, 3), "", "bfloat16"),
        _case(14, (2, 3, 1), "", "float16"),
        _long(),
    )


def reference(scores: Scores) -> Scores:
    """Computed in float64, rounded once."""
    weights = scores.double().softmax(-1).to(scores.dtype)
    return weights.masked_fill((scores == NONE).all(-1, keepdim=True), 0)


def built(
    shifted: Step,
    working: torch.dtype | None = None,
    end: str = "nan stays",
    total: Step = lambda e: e.sum(-1, keepdim=True),
    late: Step = lambda e: e,
) -> Callable[[Scores], Scores]:
    """A softmax in steps.

    Args:
        shifted: from scores to what exp is taken of.
        working: the type in which it is computed, by default that of the scores.
        end: what becomes of NaN, or of a sum of 0.
        total: from the exponentials to what they are divided by.
        late: what becomes of the exponentials first.
    """

    def fn(scores: Scores) -> Scores:
        x = scores.to(working or scores.dtype)
        e = late(shifted(x).exp())
        s = total(e)
        w = e / s
        if end == "0 for nan":
            w = w.nan_to_num()
        elif end == "0 for a sum of 0":
            w = torch.where(s == 0, torch.zeros_like(w), w)
        elif end == "0 for empty rows":
            w = torch.where((scores == NONE).all(-1, keepdim=True), torch.zeros_like(w), w)
        return w.to(scores.dtype)

    return fn


def highest(x: Tensor) -> Tensor:
    """The maximum of each row, 0 where that is -inf."""
    m = x.amax(-1, keepdim=True)
    return m.masked_fill(m == NONE, 0)


def each(fault: str, hints: tuple[str, str], *shifts: Step) -> Iterator[Variation]:
    """A fault in what exp is taken of, in each type that it may be computed in, and with each end."""
    for shifted in shifts:
        for working in (None, torch.float32, torch.float64):
            for end in ("nan stays", "0 for nan", "0 for a sum of 0", "0 for empty rows"):
                yield Variation(fault, built(shifted, working, end), hints)


def along(axis: int) -> Step:
    """Shift by the maximum along an axis."""

    def shifted(x: Tensor) -> Tensor:
        m = x.amax(axis, keepdim=True)
        return x - m.masked_fill(m == NONE, 0)

    return shifted


def normalised(axis: int, working: torch.dtype | None, nan: float) -> Callable[[Scores], Scores]:
    """PyTorch's softmax along an axis."""
    return lambda scores: scores.to(working or scores.dtype).softmax(axis).nan_to_num(nan).to(scores.dtype)


def plus(e: Tensor, number: float) -> Tensor:
    """The sum, and a number."""
    return e.sum(-1, keepdim=True) + number


def one_by_one(e: Tensor) -> Tensor:
    """The sum, rounded after each key."""
    total = torch.zeros_like(e[..., :1])
    for key in e.split(1, -1):
        total = total + key
    return total


def unless_one_is_empty(x: Tensor) -> Tensor:
    """No row is shifted if one of them is -inf throughout."""
    m = x.amax(-1, keepdim=True)
    return x if m.isinf().any() else x - m


def turned(x: Tensor) -> Tensor:
    """The maximum less the scores."""
    return highest(x) - x


def taken_twice(scores: Scores) -> Scores:
    """The softmax of the weights."""
    return scores.softmax(-1).nan_to_num().softmax(-1)


def hardest(empty: bool) -> Callable[[Scores], Scores]:
    """All weight to the largest score, in empty rows too or not."""

    def fn(scores: Scores) -> Scores:
        weights = torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
        return weights if empty else weights.masked_fill((scores == NONE).all(-1, keepdim=True), 0)

    return fn


def log_weights(empty: float | None) -> Callable[[Scores], Scores]:
    """The logarithms of the weights, NaN replaced or not."""

    def fn(scores: Scores) -> Scores:
        weights = scores.log_softmax(-1)
        return weights if empty is None else weights.nan_to_num(empty, neginf=NONE)

    return fn


def by_logarithm(working: torch.dtype | None) -> Callable[[Scores], Scores]:
    """The logarithm of the sum is added to scores that are much larger: little of it is left."""

    def fn(scores: Scores) -> Scores:
        x = scores.to(working or scores.dtype)
        return (x - x.logsumexp(-1, keepdim=True)).exp().nan_to_num().to(scores.dtype)

    return fn


def by_rounded_logarithm(scores: Scores) -> Scores:
    """The same, but what is left is not rounded again."""
    total = scores.logsumexp(-1, keepdim=True)
    return (scores.double() - total.double()).exp().nan_to_num().to(scores.dtype)
