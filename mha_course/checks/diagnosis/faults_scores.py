"""Faults of the scale."""

import math
from collections.abc import Callable

from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.steps import Array

_DIVIDE = "Divide the scores, before the softmax, by the square root of D, the width of one head."
_SIZE_HINTS = ("Look at the number that the scores are divided by: which size is under the root?", _DIVIDE)
_LATE_HINTS = ("Sum the weights that one query gives: they should give 1, whatever D is.", _DIVIDE)
_FIXED_HINTS = (
    "Look at the number that the scores are divided by: does it follow when the width changes?",
    "Read the width of a head from the shape of the queries, and divide by its square root.",
)


def _by(name: str, said: str, scale: Callable[[Array, Array], float], hints: tuple[str, str]) -> Fault:
    return Fault(name, said, {"scale": scale}, hints)


def _fixed(divisor: float, said: str) -> Fault:
    return _by(
        "scale_fixed", f"the scores are divided by {said}, whatever D is", lambda q, k: 1 / divisor, _FIXED_HINTS
    )


def _root(x: float) -> float:
    return 1 / math.sqrt(x)


BIAS = Fault(
    "scale_applied_to_mask",
    "the additive mask is scaled together with the scores",
    {"add": lambda products, scale, bias: (products if bias is None else products + bias) * scale},
    (
        "Add a mask of small finite numbers: by how much does it change a score?",
        "Scale the products of q and k first, then add the mask.",
    ),
)
SCALE = (
    _by(
        "no_scale",
        "the scores are not scaled",
        lambda q, k: 1.0,
        ("Look at what happens between the dot products and the softmax: a step is missing there.", _DIVIDE),
    ),
    _by(
        "scale_by_embed_dim",
        "the scores are divided by the square root of E, the width of all heads, not of D, that of one",
        lambda q, k: _root(q.shape[1] * q.shape[-1]),
        _SIZE_HINTS,
    ),
    _by(
        "scale_by_d",
        "the scores are divided by D, not by its square root: the root is missing, or it is taken twice",
        lambda q, k: 1 / q.shape[-1],
        ("Count the places in which q, k or the scores are divided, and look for the root.", _DIVIDE),
    ),
    _by(
        "scale_inverted",
        "the scores are multiplied by the square root of D, not divided by it",
        lambda q, k: math.sqrt(q.shape[-1]),
        ("Do the scores become smaller by the scale, or larger?", _DIVIDE),
    ),
    _by(
        "scale_inverted",
        "the scores are multiplied by D, not divided by its square root",
        lambda q, k: q.shape[-1],
        ("Do the scores become smaller by the scale, or larger?", _DIVIDE),
    ),
    _by(
        "scale_by_num_heads",
        "the scores are divided by the square root of H, the number of heads, not of D",
        lambda q, k: _root(q.shape[1]),
        _SIZE_HINTS,
    ),
    _by(
        "scale_by_num_heads",
        "the scores are divided by H, the number of heads, not by the square root of D",
        lambda q, k: 1 / q.shape[1],
        _SIZE_HINTS,
    ),
    _by(
        "scale_by_embed_dim",
        "the scores are divided by E, the width of all heads, not by the square root of D",
        lambda q, k: 1 / (q.shape[1] * q.shape[-1]),
        _SIZE_HINTS,
    ),
    _by(
        "scale_twice",
        "the scores are scaled three times",
        lambda q, k: q.shape[-1] ** -1.5,
        ("Count the places in which something is divided: q, k and the scores.", "Keep one of them."),
    ),
    _by(
        "scale_half",
        "the scores are divided by the fourth root of D: one of q and k is scaled, the other is not",
        lambda q, k: q.shape[-1] ** -0.25,
        (
            "Count the factors that q and k bring with them.",
            "Scale both by the fourth root, or the scores by the root.",
        ),
    ),
    _by(
        "scale_by_keys",
        "the scores are divided by the square root of the number of keys, not of D",
        lambda q, k: _root(k.shape[-2]),
        _SIZE_HINTS,
    ),
    _by(
        "scale_by_queries",
        "the scores are divided by the square root of the number of queries, not of D",
        lambda q, k: _root(q.shape[-2]),
        _SIZE_HINTS,
    ),
    *(
        _fixed(divisor, said)
        for divisor, said in (
            (8, "8, the square root of 64"),
            (4, "4"),
            (2, "2"),
            (math.sqrt(2), "the square root of 2"),
            (10, "10"),
            (16, "16"),
            (math.sqrt(8), "the square root of 8"),
            (math.sqrt(32), "the square root of 32"),
            (64, "64"),
            (math.sqrt(512), "the square root of 512"),
        )
    ),
    Fault(
        "scale_after_softmax",
        "the division by the square root of D comes after the softmax, not before it",
        {"scale": lambda q, k: 1.0, "mix": lambda weights, v, mask: weights @ v / math.sqrt(v.shape[-1])},
        _LATE_HINTS,
    ),
    Fault(
        "scale_on_output",
        "the output is divided by the square root of D as well as the scores",
        {"mix": lambda weights, v, mask: weights @ v / math.sqrt(v.shape[-1])},
        _LATE_HINTS,
    ),
    BIAS,
)
