"""What explorer `floats` shows: a number in six formats, and a softmax in one of them."""

import math
import re
from typing import NamedTuple

import torch
from jaxtyping import Float
from numpy import ndarray

from mha_course.explorers.base import Readout
from mha_course.precision.formats import FORMATS, Bits, Format, Neighbours
from mha_course.precision.softmax import SoftmaxSteps, softmax_in

KEYS = 5


class State(NamedTuple):
    """One state of the explorer."""

    form: Format
    x: float
    bits: tuple[Bits, ...]  # in each format
    held: tuple[float, ...]  # by each format
    line: Neighbours
    spacing: float  # NaN beyond the largest value
    scores: Float[ndarray, " keys"]
    plain: SoftmaxSteps
    less: SoftmaxSteps


def compute(*, format: str, factor: float, power: float, top: float, apart: float) -> State:
    """Round a number to every format, and take a softmax in one of them."""
    form, x = FORMATS[format], math.ldexp(factor, int(power))
    scores = top - apart * torch.arange(KEYS, dtype=torch.float64)
    one = torch.tensor([x], dtype=torch.float64)
    return State(
        form=form,
        x=x,
        bits=tuple(each.bits_of(x) for each in FORMATS.values()),
        held=tuple(each.round(one).item() for each in FORMATS.values()),
        line=form.neighbours(x),
        spacing=form.spacing(one).item(),
        scores=scores.numpy(),
        plain=softmax_in(scores, form, subtract_max=False),
        less=softmax_in(scores, form),
    )


def readout(state: State) -> Readout:
    """The number, the range of the format, and both softmaxes."""
    form = state.form
    error = abs(state.line.nearest - state.x)
    rows = [
        ("number", short(state.x, 6)),
        ("held as", say(state.line.nearest, form)),
        ("relative error", _percent(error / abs(state.x)) if state.x else "0"),
        ("spacing here", short(state.spacing) if math.isfinite(state.spacing) else "beyond the largest"),
        (form.name, f"{form.exponent_bits} + {form.fraction_bits} bits"),
        ("largest", short(form.largest, 6)),
        ("smallest normal", short(form.smallest_normal)),
        ("smallest", short(form.smallest_subnormal)),
        ("spacing at 1", short(form.epsilon)),
        ("decimal digits", f"{form.decimal_digits:.1f}"),
        ("sum of exp(s)", short(state.plain.total.item())),
        ("sum of exp(s \u2212 max)", short(state.less.total.item())),
    ]
    sentences = _of_number(state), _of_softmax(state), _of_scores(state)
    return Readout(rows, " ".join(filter(None, sentences)))


def say(value: float, form: Format) -> str:
    """A value that a format holds, with enough digits to tell it from its neighbours."""
    return short(value, max(3, math.ceil(form.decimal_digits) + 1))


def short(x: float, digits: int = 3) -> str:
    """A number without the zeros and the plus of its exponent, with a minus as wide as a digit."""
    said = "NaN" if math.isnan(x) else f"{x:.{digits}g}"
    return re.sub(r"e([+-])0*", r"e\1", said).replace("e+", "e").replace("-", "\u2212")


def _percent(x: float) -> str:
    return f"{short(100 * x, 2)} %" if math.isfinite(x) else "infinite"


def _of_number(state: State) -> str:
    form, nearest = state.form, state.line.nearest
    if state.x == 0:
        return f"{form.name} holds 0 exactly."
    if nearest == 0:
        return f"This number is too small for {form.name}: 0 is left of it."
    if not math.isfinite(state.spacing):
        became = "infinity" if math.isinf(nearest) else say(nearest, form)
        return f"This number is too large for {form.name}: it becomes {became}."
    if nearest == state.x:
        return f"{form.name} holds this number exactly."
    kind = "subnormal, with fewer digits" if abs(nearest) < form.smallest_normal else "normal"
    return f"{form.name} rounds this number; what it holds is {kind}."


def _of_softmax(state: State) -> str:
    plain, less = state.plain, state.less
    total = plain.total.item()
    if math.isinf(plain.exponentials.max().item()):
        return "exp of the scores overflows: infinity / infinity is NaN. With the maximum subtracted, exp is at most 1."
    if math.isinf(total):
        return "Each exp is finite, but their sum overflows, and all weights become 0. Subtract the maximum first."
    if total == 0:
        return "exp of all scores is 0, and 0 / 0 is NaN. With the maximum subtracted, the largest exp is 1."
    largest = (plain.weights - less.weights).abs().max().item()
    if not state.form.infinities and total == state.form.largest:
        return f"exp of the scores, or their sum, stops at {total:g}, the largest number: the weights are wrong."
    if largest > 0.02:
        return f"Few digits of exp are left: the weights differ by up to {short(largest, 2)}. Subtract the maximum."
    return "Neither overflows: the weights agree with and without the maximum, up to rounding."


def _of_scores(state: State) -> str:
    same = len(set(state.plain.shifted.tolist())) < len(set(state.scores.tolist()))
    return "Different scores are held as the same number." if same else ""
