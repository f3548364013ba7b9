"""What an exercise's check is made of: a reference, drawn cases, and named variations."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks.plain import Plain

Build = TypeVar("Build", bound=Callable[..., Any])


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        sizes: letter -> size, in the order in which they are named: {"T": 3, "S": 5}. Lessons before
            the letters use words: {"rows": 3, "columns": 5}.
        inputs: the arguments, in order. Every call gets its own copy.
        note: what is special about it, "" if nothing.
        tolerance: of the results, absolute and relative.
    """

    sizes: Mapping[str, int]
    inputs: tuple[Any, ...]
    note: str = ""
    tolerance: float = 1e-6


@dataclass(frozen=True)
class Variation:
    """The reference with one fault in it.

    Attributes:
        fault: the fault in a sentence, without capital and full stop.
        fn: called like the reference.
        hints: where to look, then what to change; of two faults up to four.
        may_raise: the sizes for which a solution with this fault may raise whatever it likes, instead
            of what fn does.
        changes: the steps of the task's `build` that show the fault: two variations that change different
            steps are tried together. Empty if no steps show it.
    """

    fault: str
    fn: Callable[..., Any]
    hints: tuple[str, ...]
    may_raise: Callable[[Mapping[str, int]], bool] = lambda sizes: False
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Take the changes that `by_steps` has noted."""
        if not self.changes:
            object.__setattr__(self, "changes", getattr(self.fn, "changes", {}))


def by_steps(build: Build) -> Build:
    """Decorate a function from steps to a solution: each solution notes which steps were changed, as `changes`.

    A variation made with such a solution is thereby given by its steps.
    """
    signature = inspect.signature(build)

    @functools.wraps(build)
    def noting(*steps: Any, **named: Any) -> Any:
        given = signature.bind(*steps, **named).arguments
        changes = {name: x for name, x in given.items() if x is not signature.parameters[name].default}
        solution = build(*steps, **named)
        solution.changes = {**changes.pop("changes", {}), **changes}
        return solution

    return cast(Build, noting)


def stepped(
    build: Callable[..., Callable[..., Any]],
    fault: str,
    hints: tuple[str, ...],
    may_raise: Callable[[Mapping[str, int]], bool] = lambda sizes: False,
    **changes: Any,
) -> Variation:
    """A variation given by the steps that it changes."""
    return Variation(fault, build(**changes), hints, may_raise, changes)


@dataclass(frozen=True)
class Growth:
    """Two cases that show how the cost of a solution grows.

    Attributes:
        short: a case in which S is far from the other sizes.
        long: the same with twice as many tokens.
        hints: for a solution whose cost grows with S x S.
    """

    short: Case
    long: Case
    hints: tuple[str, str]


@dataclass(frozen=True)
class Task:
    """An exercise.

    Attributes:
        name: what `check` calls it.
        arguments: the names of the function's arguments.
        results: (name, letters of its axes) of each result; one means that no tuple is expected. The
            letter "1" is an axis of size 1; T twice means queries, then keys.
        reference: the right answer.
        cases: draws the cases, the same each time.
        variations: tried in this order.
        hints: for a solution that is wrong in a way that no variation reproduces.
        shape_hint: what to change where the shape is wrong.
        numpy: whether inputs and results are NumPy arrays instead of tensors.
        dtype: the type of the results, "float64" or "bool"; "input" is that of the first input.
        true: what True means, where the results are bool.
        axes: letter -> what an index along that axis counts, where it is not what `words.AXES` says; "TT"
            for the second of two axes T.
        build: from changed steps to a solution, build() being right; None where there are no steps.
        steps: from the inputs to the numbers of each step, for `parting.first_missing`.
        gradients: whether gradients are compared too. False where right numbers are all that is asked for, such as
            of a measurement, which may well be taken without a graph.
        hidden: called as hidden(factor, *inputs): inputs with one hidden key replaced, times factor, and which
            entries of the first result do not see it, as a bool tensor that broadcasts to that result.
        tiles: a case in which T, S and block are so far apart that tiles of the scores and all of them are told
            apart by their size; None if scores may be held as they come.
        growth: two lengths that tell a cost that grows with S from one that grows with S x S; None if it may.
        integers: names of the results that are plain integers.
        codes: names of the results that may be tensors of integers too, instead of `dtype`.
        written: (name, letters) of the arguments that a solution writes into: what they hold afterwards is compared
            as a result is.
        refused: draws cases in which a ValueError is wanted, and nothing written.
        work: a case with sizes T, E, D and prompt, E much larger than T, in which products are counted, so that each
            of T tokens is projected once and none ahead of its turn; None if they may be made as they come.
        plain: how results are read that are plain numbers and words, not tensors.
        run: from a solution and the inputs of a case to what is compared, or to a `calls.Problem`, where the inputs
            are not what a solution is called with; by default the solution is called with them.
    """

    name: str
    arguments: tuple[str, ...]
    results: tuple[tuple[str, tuple[str, ...]], ...]
    reference: Callable[..., Any]
    cases: Callable[[], tuple[Case, ...]]
    variations: tuple[Variation, ...]
    hints: tuple[str, str]
    shape_hint: str = "Each product must sum over the axis that both sides share; the others stay, in that order."
    numpy: bool = False
    dtype: Literal["float64", "bool", "input"] = "float64"
    true: str = "may attend"
    axes: Mapping[str, str] = field(default_factory=dict)
    build: Callable[..., Callable[..., Any]] | None = None
    steps: Callable[..., Sequence[tuple[Any, ...]]] | None = None
    gradients: bool = True
    hidden: Callable[..., tuple[tuple[Any, ...], Tensor]] | None = None
    tiles: Case | None = None
    growth: Growth | None = None
    integers: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    written: tuple[tuple[str, tuple[str, ...]], ...] = ()
    refused: Callable[[], tuple[Case, ...]] | None = None
    work: Case | None = None
    plain: Plain | None = None
    run: Callable[..., Any] | None = None


def draw(seed: int, *shapes: tuple[int, ...]) -> tuple[Float[Tensor, "..."], ...]:
    """Draw standard normal float64 tensors without touching the global generator.

    With q and k drawn so, scaled scores have a standard deviation of 1: no weight saturates.
    """
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
