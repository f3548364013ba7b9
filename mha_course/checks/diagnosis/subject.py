"""A candidate made ready to be compared: its own copy, its weights drawn, its arguments known."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from mha_course.checks.diagnosis import calling, layouts, projections
from mha_course.checks.diagnosis.calling import Form, Signature
from mha_course.checks.diagnosis.copying import copied, draw_mask, draw_parameters, freeze
from mha_course.checks.diagnosis.layouts import Reading
from mha_course.checks.diagnosis.precision import Precision
from mha_course.checks.diagnosis.steps import Inputs, Trace, run
from mha_course.checks.limit import OutOfTime

_PRIMES = (5, 7, 11, 13, 17, 19, 23)


class Outcome(NamedTuple):
    """What one call gave: a float64 result, or an error."""

    out: Tensor | None
    error: BaseException | None = None


class Sizes(NamedTuple):
    """Of one case."""

    B: int
    T: int
    S: int


class Subject:
    """A candidate with all that is needed to call it and to compare it.

    Args:
        fn: a module or a function. A module is copied, made float64, and its parameters are drawn.
        num_heads: of a module, if it does not say.
        how: its signature, to be read if None.

    Attributes:
        fn: what is called.
        how: its signature.
        learned: names of its learned numbers, one or one per head, which keep their first values.
        even: whether it is called with as many keys as queries alone.
        brief: whether no pairs of faults are looked for.
        readings: ways to read a module's weights; one without weights for a function.
        is_module: whether it has projections.
        changed: the arguments that some call changed in place.
        lengths: T and S of its calls; None for the usual ones.
        precision: which of its steps are narrower than float64.

    Raises:
        NoAdapter: it wants arguments that cannot be guessed.
        Unreadable: a module's weights cannot be read.
    """

    def __init__(self, fn: Callable[..., Any], num_heads: int | None = None, how: Signature | None = None) -> None:
        self.original = fn
        self.is_module = isinstance(fn, nn.Module) and any(_is_matrix(p) for p in fn.parameters())
        self.brief, self.even = how is not None, False
        self.how: Signature = how or calling.signature(fn, not self.is_module)
        self.learned: list[str] = []
        self.H, self.D = 3, 6  # no root of D is a number that people write by hand
        self.readings: list[Reading | None] = [None]
        if isinstance(fn, nn.Module):
            fn = copied(fn)
            self.learned = draw_parameters(fn, 0, num_heads or projections.count(fn, "heads") or 1)
            if not self.is_module:
                self.D = _width(fn)
        self.fn = fn
        if self.is_module:
            assert isinstance(fn, nn.Module)
            freeze(fn)
            self.readings = list(layouts.readings(fn, num_heads))
        self.changed: set[str] = set()
        self.lengths: tuple[int, int] | None = None
        self.precision = Precision()
        self._within: Callable[[], Any] = nullcontext
        self._seen: dict[tuple[Any, ...], tuple[Inputs, Outcome]] = {}

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts to try, the likeliest first; one sequence alone where a batch of them raises."""
        if not isinstance(self.fn, nn.Module) or not self.is_module:
            return calling.LAYOUTS["function"]
        both = calling.LAYOUTS["module"][:2]
        kinds = [*self.fn.modules()]
        told = [projections.attribute(m, "batch_first") for m in kinds]
        likely = both[::-1] if False in told else both
        if any(isinstance(m, nn.Conv2d) for m in kinds):
            likely = ("B E 1 T", *likely)
        if any(isinstance(m, nn.Conv1d) for m in kinds):
            likely = (*likely, "B E T")
        return (*likely, "T E")

    @property
    def others(self) -> list[str]:
        """Names of the parameters that are none of the projections'."""
        if self.first is None or not isinstance(self.fn, nn.Module):
            return []
        used = self.first.used
        names = [name for name, _ in self.fn.named_parameters()]
        return [n for n in names if not any(n == u or n.startswith(f"{u}.") for u in used) and not _is_bias(n)]

    @property
    def guessed(self) -> str:
        """The names of its maps, if one of them has to serve for several; "" if not."""
        return ", ".join(sorted(self.first.used)) if self.first and self.first.shared else ""

    @property
    def head_dim(self) -> int:
        """D, of the likeliest reading."""
        return self.first.weights.q.weight.shape[1] // self.first.weights.H if self.first else self.D

    def forget(self, mode: Callable[[], Any] | None = None) -> None:
        """Forget all outcomes, and make every call within a context from now on, if one is given."""
        self._seen.clear()
        self._within = mode or self._within

    @property
    def first(self) -> Reading | None:
        """The likeliest reading."""
        return self.readings[0]

    def heads(self) -> int:
        """H, of the likeliest reading."""
        return self.first.weights.H if self.first else self.H

    def sizes(self) -> dict[str, Sizes]:
        """The cases without a mask, by name."""
        H = self.heads()
        if self.lengths is None:
            B = 3 if H == 2 else 2
            T, S = [p for p in _PRIMES if p not in {B, *self.taken()}][:2]
        else:
            B = 7 if H != 7 else 5
            T, S = self.lengths
        cases = {"uneven": Sizes(B, T, S), "even": Sizes(B, T, T)}
        if not self.crosses:
            del cases["uneven"]
        if 1 < H <= 8 and B != H:
            cases["square"] = Sizes(H, T, T)
        return cases

    @property
    def crosses(self) -> bool:
        """Whether keys may be more than queries."""
        return self.how.crosses and not self.even

    def taken(self) -> set[int]:
        """Sizes that no length should have."""
        return {self.heads(), self.D, *self._widths()}

    def _widths(self) -> tuple[int, int, int]:
        if self.first is None:
            return self.D, self.D, self.D
        return self.first.widths

    @property
    def width(self) -> int:
        """Of the result."""
        if self.first is None:
            return self.D
        w = self.first.weights
        return w.o.weight.shape[1] if w.o is not None else w.v.weight.shape[1]

    def inputs(self, sizes: Sizes, layout: str, *, axes: str = "", seed: int = 0, bias: bool = False) -> Inputs:
        """Draw inputs, with a mask of these axes if there are any."""
        B, T, S = sizes
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        if self.is_module:
            E, Ek, Ev = self._widths()
            B = 1 if layout == "T E" else B
            query = draw(B, T, E)
            key = draw(B, S, Ek)
            value = draw(B, S, Ev)
        else:
            heads = {"B T D": (B, 1), "T D": (1, 1)}.get(layout, (B, self.H))
            B = heads[0]
            query, key, value = draw(*heads, T, self.D), draw(*heads, S, self.D), draw(*heads, S, self.D)
        if not self.how.crosses:
            key = value = query
        elif "value" not in self.how.roles:
            value = key
        mask = draw_mask(axes, B, T, S, generator) if axes else None
        if axes == "B H T S" and mask is not None:
            mask = mask.expand(B, self.heads(), T, S)
        added = draw(B if axes.startswith("B") else 1, 1, 1 if axes == "B S" else T, S) if bias else None
        return Inputs(query, key, value, mask, added)

    def outcome(
        self, form: Form, case: str, *, axes: str = "", seed: int = 0, bias: bool = False
    ) -> tuple[Inputs, Outcome]:
        """Inputs of a case, and what the candidate gives for them; remembered."""
        key = (form, case, axes, seed, bias)
        if key not in self._seen:
            x = self.inputs(self.sizes()[case], form.layout, axes="" if axes == "all" else axes, seed=seed, bias=bias)
            if axes == "all":
                x = x._replace(mask=self.neutral_mask(form, x))
            self._seen[key] = x, self.call(form, x, neutral=not axes)
        return self._seen[key]

    def calls(self, form: Form) -> int:
        """How many remembered calls gave numbers in this form, or without a mask in its layout."""
        return sum(
            outcome.out is not None and (one == form if axes else one.layout == form.layout)
            for (one, _, axes, _, biased), (_, outcome) in self._seen.items()
            if not biased
        )

    @property
    def answered(self) -> bool:
        """Whether some remembered call gave numbers for a batch."""
        return any(outcome.out is not None and form.layout != "T E" for (form, *_), (_, outcome) in self._seen.items())

    def call(self, form: Form, x: Inputs, *, neutral: bool = False) -> Outcome:
        """Call the candidate; only an interrupt and the time limit pass through."""
        if neutral and self.how.needs_mask:
            x = x._replace(mask=self.neutral_mask(form, x))
        before = calling.arguments(self.how, form, x)
        given = _copies(before)
        try:
            with torch.no_grad(), self._within():
                run = partial(calling.call, self.fn, form, x=x, width=self.width)
                out = self.precision.result(run, given, _copies(before), (x.mask is None, x.bias is None))
            outcome = Outcome(out)
        except (KeyboardInterrupt, OutOfTime):
            raise
        except BaseException as error:
            outcome = Outcome(None, error)
        names = [argument.name or argument.role for argument in self.how.inputs if not argument.name]
        pairs = [*zip(names, before[0], given[0], strict=True), *((n, y, given[1][n]) for n, y in before[1].items())]
        self.changed |= {name for name, old, new in pairs if not _same(old, new)}
        return outcome

    def neutral_mask(self, form: Form, x: Inputs) -> Tensor:
        """A mask that hides nothing."""
        B, T, S = x.query.shape[0], x.query.shape[-2], x.key.shape[-2]
        sizes = {"B S": (B, 1, 1, S), "T S": (1, 1, T, S), "B H T S": (B, self.heads(), T, S)}
        return torch.ones(sizes.get(form.axes, (B, 1, T, S)), dtype=torch.bool)

    def reference(self, reading: Reading | None, x: Inputs, changes: Any) -> Trace:
        """The course's own attention with these steps changed."""
        return run(x, reading.weights if reading else None, changes)


def _width(module: nn.Module) -> int:
    """The width of a head that a module without weights was made for; 6 if it does not say."""
    for name, power in (("d_k", 1), ("head_dim", 1), ("dim", 1), ("d", 1), ("temperature", 2), ("scale", -2)):
        value = projections.attribute(module, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            width = round(value**power)
            if 1 < width <= 512 and math.isclose(width, value**power, rel_tol=1e-3):
                return width
    return 6


def forms(subject: Subject, layout: str | None, mask: str | None, axes: str | None) -> Iterator[Form]:
    """The forms to try, the stated ones alone where they are stated."""
    for one in (layout,) if layout else subject.layouts:
        if one == "T E" and not layout and subject.answered:
            continue
        if not subject.how.takes_mask:
            yield Form(one)
            continue
        for convention in (mask,) if mask else calling.CONVENTIONS:
            for form_axes in (axes,) if axes else ("T S",) if one == "T E" else calling.AXES:
                yield Form(one, convention, form_axes)


def _is_matrix(p: Tensor) -> bool:
    return isinstance(p, UninitializedBuffer | UninitializedParameter) or projections.is_matrix(p)


def _is_bias(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return bool(re.search(r"^(in_proj_bias|b_?[qkvo](_.*)?|([qkvo]|out|query|key|value|output).*bias)$", last))


def _copies(given: calling.Given) -> calling.Given:
    """Copies of all arguments; one tensor that is passed twice stays one."""
    made: dict[int, Tensor] = {}
    args = [made.setdefault(id(y), y.clone()) for y in given[0]]
    return args, {name: made.setdefault(id(y), y.clone()) for name, y in given[1].items()}


def _same(before: Tensor, after: Tensor) -> bool:
    return before.shape == after.shape and torch.equal(before.nan_to_num(), after.nan_to_num())
