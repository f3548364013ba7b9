"""The exercises of notebook 02: scores from angles and lengths, and weights beside the output."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks import attention_faults as faults
from mha_course.checks.task import Case, Task, stepped
from mha_course.checks.tasks_01 import batched_cases

Row = Float[Tensor, " S"]


def _angle_cases() -> tuple[Case, ...]:
    cases = []
    queries = [(5, 1.25, 35.0), (3, 0.75, -110.0), (7, 2.0, 80.0), (1, 1.5, 20.0)]
    for seed, (S, q_length, q_angle) in enumerate(queries):
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.rand(2, S, generator=generator, dtype=torch.float64)
        key_lengths, key_angles = 0.5 + 1.5 * drawn[0], 360 * drawn[1] - 180
        cases.append(Case({"S": S}, (q_length, q_angle, key_lengths, key_angles)))
    return tuple(cases)


def _angles(
    size: Callable[[float, Row], Any] = lambda n, m: n * m,
    turn: Callable[[float], Any] = math.radians,
    turn_keys: Callable[[Row], Row] = torch.deg2rad,
    between: Callable[[Any, Row], Row] = lambda a, b: b - a,
    wave: Callable[[Row], Row] = torch.cos,
    rescale: Callable[[Row], Row] = lambda s: s,
    weigh: Callable[[Row], Row] = lambda s: s.softmax(0),
    order: Callable[[Row, Row], tuple[Row, Row]] = lambda scores, weights: (scores, weights),
) -> Callable[..., tuple[Row, Row]]:
    """Scores from (q_length, q_angle, key_lengths, key_angles), and weights from them, some steps changed.

    Args:
        size: from the length of the query and those of the keys to a factor.
        turn: from the query's angle to radians.
        turn_keys: from the keys' angles to radians.
        between: the angle between them.
        wave: the function of it.
        rescale: what becomes of the scores.
        weigh: from scores to weights.
        order: the two results.
    """

    def fn(q_length: float, q_angle: float, lengths: Row, angles: Row) -> tuple[Row, Row]:
        scores = rescale(size(q_length, lengths) * wave(between(turn(q_angle), turn_keys(angles))))
        return order(scores, weigh(scores))

    return fn


def _swapped(fn: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    return lambda *inputs: fn(*inputs)[::-1]


_ANGLE_HINTS = (
    "Try a key in the direction of the query, and one at a right angle: which scores do you get?",
    "Take the cosine of the angle between query and key, which has to be in radians.",
)
_BETWEEN_HINTS = (
    "Turn the query and all keys by 10 degrees: the scores must stay as they are.",
    "Take the cosine of the angle between query and key, the difference of their angles.",
)
_LENGTH_HINTS = (
    "Double the length of one vector: a dot product doubles too.",
    "The score has three factors, two lengths and the cosine.",
)
_DEGREES_HINTS = (
    "Print both angles just before you subtract them: are they in the same unit?",
    "Convert both from degrees to radians, or the difference once.",
)
_ORDER_HINTS = ("Look at the return line.", "Return the results in the order asked for.")

angles = Task(
    name="angles",
    gradients=False,
    arguments=("q_length", "q_angle", "key_lengths", "key_angles"),
    results=(("scores", ("S",)), ("weights", ("S",))),
    reference=_angles(),
    build=_angles,
    cases=_angle_cases,
    variations=(
        stepped(
            _angles,
            "the angles are used as radians, but they are in degrees",
            _ANGLE_HINTS,
            turn=lambda a: a,
            turn_keys=lambda b: b,
        ),
        stepped(
            _angles,
            "the angle of the query is left in degrees, those of the keys are in radians",
            _DEGREES_HINTS,
            turn=lambda a: a,
        ),
        stepped(
            _angles,
            "the angles of the keys are left in degrees, that of the query is in radians",
            _DEGREES_HINTS,
            turn_keys=lambda b: b,
        ),
        stepped(
            _angles,
            "the angles are converted from radians to degrees, they are in degrees already",
            (
                "Look at the conversion: 180 degrees should become pi.",
                "Convert from degrees to radians, which the cosine takes.",
            ),
            turn=math.degrees,
            turn_keys=torch.rad2deg,
        ),
        stepped(
            _angles,
            "the scores are cosines, both lengths are left out",
            _LENGTH_HINTS,
            size=lambda n, m: torch.ones_like(m),
        ),
        stepped(_angles, "the length of the query is left out", _LENGTH_HINTS, size=lambda n, m: m),
        stepped(
            _angles, "the lengths of the keys are left out", _LENGTH_HINTS, size=lambda n, m: torch.full_like(m, n)
        ),
        stepped(
            _angles,
            "the angle of the key is used, not the angle between query and key",
            _BETWEEN_HINTS,
            between=lambda a, b: b,
        ),
        stepped(
            _angles,
            "the angles are added, the angle between two vectors is the difference",
            _BETWEEN_HINTS,
            between=lambda a, b: b + a,
        ),
        stepped(_angles, "the sine is taken instead of the cosine", _ANGLE_HINTS, wave=torch.sin),
        stepped(_angles, "the sine is taken instead of the cosine", _ANGLE_HINTS, wave=lambda angle: -angle.sin()),
        stepped(
            _angles,
            "the weights do not sum to 1, the division is missing",
            ("Sum your weights: what should come out?", "Divide the exponentials by their sum."),
            weigh=torch.exp,
        ),
        stepped(
            _angles,
            "the exponential is missing, scores are divided by their sum",
            (
                "Look for negative weights: which step should make every weight positive?",
                "Take the exponential of the scores before you divide by the sum.",
            ),
            weigh=lambda s: s / s.sum(),
        ),
        stepped(
            _angles,
            "the softmax is missing, the weights are the scores",
            ("Sum your weights, and look for negative ones.", "The weights are the softmax of the scores."),
            weigh=torch.clone,
        ),
        stepped(
            _angles,
            "the weights are the softmax of the scores divided by the square root of 2",
            (
                "Your scores are right. Look at what happens to them before the softmax.",
                "Take the softmax of the scores as they are: there is no scale in this exercise.",
            ),
            weigh=lambda s: (s / 2**0.5).softmax(0),
        ),
        stepped(
            _angles,
            "the scores are divided by the square root of 2, this exercise has no scale",
            (
                "Try a key in the direction of the query: the score should be the product of the lengths.",
                "Leave out the division: there is no scale in this exercise.",
            ),
            rescale=lambda s: s / 2**0.5,
        ),
        stepped(
            _angles,
            "the two results are in the wrong order",
            _ORDER_HINTS,
            order=lambda scores, weights: (weights, scores),
        ),
    ),
    hints=(
        "Work out one score by hand, then the weights: which of the two differs first?",
        "Compare step by step: difference of the angles, radians, cosine, lengths, softmax.",
    ),
    shape_hint="Return one score and one weight for each key.",
)


_OUT_HINTS = (
    "Your weights are right. Look at what they are multiplied with, and in which order.",
    "The output is the product of these very weights and the values.",
)
_TRANSPOSED_HINTS = (
    "Sum your weights over the last axis: are those sums 1?",
    "A row of the weights is a query. Look for a transpose that comes too late.",
)


_SOFTMAX_LATE = "the weights are transposed: a column sums to 1 instead of a row"

weights_and_output = Task(
    name="weights_and_output",
    arguments=("q", "k", "v"),
    results=(("weights", ("B", "T", "S")), ("out", ("B", "T", "Dv"))),
    reference=faults.right,
    cases=batched_cases,
    variations=(
        faults.KEYS_BY_QUERIES,
        stepped(faults.built, _SOFTMAX_LATE, _TRANSPOSED_HINTS, show=lambda scores, weights: weights.mT),
        stepped(faults.built, _SOFTMAX_LATE, _TRANSPOSED_HINTS, late=lambda weights, q: weights.mT),
        *faults.SCALE,
        faults.SCALE_BY_T.in_attention(),
        faults.OUT_SCALED,
        *faults.WEIGHTS,
        *faults.SOFTMAX_AXIS,
        *faults.LAYOUT,
        stepped(
            faults.built,
            "the scores are returned in place of the weights, the output is right",
            ("Look at the return line.", "Return the weights that made the output."),
            show=lambda scores, weights: scores,
        ),
        stepped(
            faults.built,
            "the weights are right, but the output is the scores times the values",
            _OUT_HINTS,
            mix=lambda scores, weights, v: scores @ v,
        ),
        stepped(
            faults.built,
            "the weights are right, but the output is the mean of the values",
            _OUT_HINTS,
            mix=lambda scores, weights, v: v.mean(1, keepdim=True).expand(-1, weights.shape[1], -1),
        ),
        stepped(
            faults.built,
            "the weights are right, but transposed when the output is made",
            _OUT_HINTS,
            mix=lambda scores, weights, v: weights.mT @ v,
        ),
        stepped(
            faults.built,
            "the two results are in the wrong order",
            _ORDER_HINTS,
            order=lambda weights, out: (out, weights),
        ),
    ),
    build=faults.built,
    steps=faults.steps,
    hints=(
        "Look first at the weights: if they are right, the fault is in the last product.",
        "Compare step by step: scores, scale, softmax over the keys, product with the values.",
    ),
)

TASKS = (angles, weights_and_output)
