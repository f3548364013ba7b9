"""The exercises of notebook 02: scores from angles and lengths, and weights beside the output."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.checks import attention_faults as faults
from mha_course.checks.task import Case, Task, Variation
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
    score: Callable[..., Row], to_weights: Callable[[Row], Row] = lambda s: s.softmax(0)
) -> Callable[..., tuple[Row, Row]]:
    """Scores from (q_length, q_angle, key_lengths, key_angles), and weights from scores."""

    def fn(q_length: float, q_angle: float, lengths: Row, angles: Row) -> tuple[Row, Row]:
        scores = score(q_length, q_angle, lengths, angles)
        return scores, to_weights(scores)

    return fn


def _score(q_length: float, q_angle: float, lengths: Row, angles: Row) -> Row:
    return q_length * lengths * torch.deg2rad(angles - q_angle).cos()


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
    arguments=("q_length", "q_angle", "key_lengths", "key_angles"),
    results=(("scores", ("S",)), ("weights", ("S",))),
    reference=_angles(_score),
    cases=_angle_cases,
    variations=(
        Variation(
            "the angles are used as radians, but they are in degrees",
            _angles(lambda n, a, m, b: n * m * (b - a).cos()),
            _ANGLE_HINTS,
        ),
        Variation(
            "the angle of the query is left in degrees, those of the keys are in radians",
            _angles(lambda n, a, m, b: n * m * (torch.deg2rad(b) - a).cos()),
            _DEGREES_HINTS,
        ),
        Variation(
            "the angles of the keys are left in degrees, that of the query is in radians",
            _angles(lambda n, a, m, b: n * m * (b - math.radians(a)).cos()),
            _DEGREES_HINTS,
        ),
        Variation(
            "the angles are converted from radians to degrees, they are in degrees already",
            _angles(lambda n, a, m, b: n * m * torch.rad2deg(b - a).cos()),
            (
                "Look at the conversion: 180 degrees should become pi.",
                "Convert from degrees to radians, which the cosine takes.",
            ),
        ),
        Variation(
            "the scores are cosines, both lengths are left out",
            _angles(lambda n, a, m, b: _score(1.0, a, torch.ones_like(m), b)),
            _LENGTH_HINTS,
        ),
        Variation(
            "the length of the query is left out", _angles(lambda n, a, m, b: _score(1.0, a, m, b)), _LENGTH_HINTS
        ),
        Variation(
            "the lengths of the keys are left out",
            _angles(lambda n, a, m, b: _score(n, a, torch.ones_like(m), b)),
            _LENGTH_HINTS,
        ),
        Variation(
            "the angle of the key is used, not the angle between query and key",
            _angles(lambda n, a, m, b: _score(n, 0.0, m, b)),
            _BETWEEN_HINTS,
        ),
        Variation(
            "the angles are added, the angle between two vectors is the difference",
            _angles(lambda n, a, m, b: _score(n, -a, m, b)),
            _BETWEEN_HINTS,
        ),
        Variation(
            "the sine is taken instead of the cosine", _angles(lambda n, a, m, b: _score(n, a + 90, m, b)), _ANGLE_HINTS
        ),
        Variation(
            "the sine is taken instead of the cosine", _angles(lambda n, a, m, b: _score(n, a - 90, m, b)), _ANGLE_HINTS
        ),
        Variation(
            "the weights do not sum to 1, the division is missing",
            _angles(_score, lambda s: s.exp()),
            ("Sum your weights: what should come out?", "Divide the exponentials by their sum."),
        ),
        Variation(
            "the exponential is missing, scores are divided by their sum",
            _angles(_score, lambda s: s / s.sum()),
            (
                "Look for negative weights: which step should make every weight positive?",
                "Take the exponential of the scores before you divide by the sum.",
            ),
        ),
        Variation(
            "the softmax is missing, the weights are the scores",
            _angles(_score, lambda s: s.clone()),
            ("Sum your weights, and look for negative ones.", "The weights are the softmax of the scores."),
        ),
        Variation(
            "the weights are the softmax of the scores divided by the square root of 2",
            _angles(_score, lambda s: (s / 2**0.5).softmax(0)),
            (
                "Your scores are right. Look at what happens to them before the softmax.",
                "Take the softmax of the scores as they are: there is no scale in this exercise.",
            ),
        ),
        Variation(
            "the scores are divided by the square root of 2, this exercise has no scale",
            _angles(lambda *x: _score(*x) / 2**0.5),
            (
                "Try a key in the direction of the query: the score should be the product of the lengths.",
                "Leave out the division: there is no scale in this exercise.",
            ),
        ),
        Variation("the two results are in the wrong order", _swapped(_angles(_score)), _ORDER_HINTS),
    ),
    hints=(
        "Work out one score by hand, then the weights: which of the two differs first?",
        "Compare step by step: difference of the angles, radians, cosine, lengths, softmax.",
    ),
    shape_hint="Return one score and one weight for each key.",
)


def _other_out(change: Callable[..., Tensor]) -> Callable[..., faults.Pair]:
    """Right weights, and an output that is something else."""

    def fn(q: Tensor, k: Tensor, v: Tensor) -> faults.Pair:
        scores, weights = faults.attention(q, k, v)[:2]
        return weights, change(scores, weights, v)

    return fn


_OUT_HINTS = (
    "Your weights are right. Look at what they are multiplied with, and in which order.",
    "The output is the product of these very weights and the values.",
)
_TRANSPOSED_HINTS = (
    "Sum your weights over the last axis: are those sums 1?",
    "A row of the weights is a query. Look for a transpose that comes too late.",
)


def _transposed_weights(q: Tensor, k: Tensor, v: Tensor) -> faults.Pair:
    weights, out = faults.right(q, k, v)
    return weights.transpose(1, 2), out


def _transposed_and_used(q: Tensor, k: Tensor, v: Tensor) -> faults.Pair:
    weights = faults.right(q, k, v)[0].transpose(1, 2)
    return weights, weights @ v


_SOFTMAX_LATE = "the weights are transposed: a column sums to 1 instead of a row"

weights_and_output = Task(
    name="weights_and_output",
    arguments=("q", "k", "v"),
    results=(("weights", ("B", "T", "S")), ("out", ("B", "T", "Dv"))),
    reference=faults.right,
    cases=batched_cases,
    variations=(
        faults.KEYS_BY_QUERIES,
        Variation(_SOFTMAX_LATE, _transposed_weights, _TRANSPOSED_HINTS),
        Variation(_SOFTMAX_LATE, _transposed_and_used, _TRANSPOSED_HINTS),
        *faults.SCALE,
        faults.SCALE_BY_T.in_attention(),
        faults.OUT_SCALED,
        *faults.WEIGHTS,
        *faults.SOFTMAX_AXIS,
        *faults.LAYOUT,
        Variation(
            "the scores are returned in place of the weights, the output is right",
            lambda q, k, v: (faults.attention(q, k, v).scores, faults.right(q, k, v)[1]),
            ("Look at the return line.", "Return the weights that made the output."),
        ),
        Variation(
            "the weights are right, but the output is the scores times the values",
            _other_out(lambda scores, weights, v: scores @ v),
            _OUT_HINTS,
        ),
        Variation(
            "the weights are right, but the output is the mean of the values",
            _other_out(lambda scores, weights, v: v.mean(1, keepdim=True).expand(-1, weights.shape[1], -1)),
            _OUT_HINTS,
        ),
        Variation(
            "the weights are right, but transposed when the output is made",
            _other_out(lambda scores, weights, v: weights.transpose(1, 2) @ v),
            _OUT_HINTS,
        ),
        Variation("the two results are in the wrong order", _swapped(faults.right), _ORDER_HINTS),
    ),
    hints=(
        "Look first at the weights: if they are right, the fault is in the last product.",
        "Compare step by step: scores, scale, softmax over the keys, product with the values.",
    ),
)

TASKS = (angles, weights_and_output)
