"""The exercises of notebook 04: causal, padding, both together, and a sliding window."""

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor

from mha_course import masks
from mha_course.checks.mask_hints import DIAGONAL, INVERTED, TRIU
from mha_course.checks.task import Case, Task, Variation, by_steps
from mha_course.checks.tasks_04_padding import combined, padding

Mask = Bool[Tensor, "..."]


def _causal_cases() -> tuple[Case, ...]:
    return tuple(Case({"T": T}, (T,)) for T in (5, 2, 7, 1))


causal = Task(
    name="causal",
    arguments=("T",),
    results=(("mask", ("T", "T")),),
    reference=lambda T: masks.causal(T),
    cases=_causal_cases,
    variations=(
        Variation(
            "the mask is inverted, each query sees only what comes after it",
            lambda T: ~masks.causal(T),
            INVERTED,
        ),
        Variation(
            "the wrong triangle: each query sees itself and what comes after it",
            lambda T: masks.causal(T).T,
            TRIU,
        ),
        Variation("the diagonal is left out, no query sees itself", lambda T: masks.causal(T).tril(-1), DIAGONAL),
        Variation(
            "the diagonal is off by one, each query sees the next token too",
            lambda T: torch.ones(T, T).tril(1).bool(),
            (
                "Look at row 0: it may see key 0 alone.",
                "Compare the index of the key with that of the query, without adding 1.",
            ),
        ),
        Variation(
            "every query sees every key",
            lambda T: torch.ones(T, T).bool(),
            ("Count the True in row 0: it should be one.", "Hide the keys that come after the query."),
        ),
        Variation(
            "no query sees anything",
            lambda T: torch.zeros(T, T).bool(),
            ("Look at what your comparison gives for key 0 and query 0.", "A query sees itself and what came before."),
        ),
        Variation(
            "each query sees itself alone",
            lambda T: torch.eye(T).bool(),
            ("Count the True in the last row: it should see every key.", "Compare indices by <= or >=, not by ==."),
        ),
    ),
    hints=(
        "Print your mask for T = 3 beside the one you drew by hand.",
        "Row t is query t: it sees the keys 0 to t.",
    ),
    shape_hint="One row for each query, one column for each key.",
    dtype="bool",
)


def _window_cases() -> tuple[Case, ...]:
    return tuple(
        Case({"T": T, "window": window}, (T, window)) for T, window in ((7, 3), (5, 2), (3, 5), (5, 1), (1, 2))
    )


def _anywhere(behind: Tensor, window: int) -> Mask:
    return behind == behind


@by_steps
def _near(
    ahead: Callable[[Tensor, int], Mask] = lambda behind, window: behind >= 0,
    past: Callable[[Tensor, int], Mask] = lambda behind, window: behind < window,
    end: Callable[[Mask], Mask] = lambda mask: mask,
) -> Callable[[int, int], Mask]:
    """A mask from two conditions on how far the key lies behind the query, (T, T), and a last step."""

    def fn(T: int, window: int) -> Mask:
        behind = torch.arange(T)[:, None] - torch.arange(T)
        return end(ahead(behind, window) & past(behind, window))

    return fn


_WIDTH_HINTS = (
    "Count the True in the last row.",
    "window counts the query's own position: it sees itself and window - 1 keys before it.",
)

window = Task(
    name="window",
    arguments=("T", "window"),
    results=(("mask", ("T", "T")),),
    reference=_near(),
    build=_near,
    cases=_window_cases,
    variations=(
        Variation(
            "the mask is inverted, True where it is blocked",
            _near(end=torch.logical_not),
            INVERTED,
        ),
        Variation(
            "one key too many: window + 1 keys are seen",
            _near(past=lambda behind, window: behind <= window),
            _WIDTH_HINTS,
        ),
        Variation(
            "one key too few: window - 1 keys are seen",
            _near(past=lambda behind, window: behind < window - 1),
            _WIDTH_HINTS,
        ),
        Variation(
            "the window reaches to both sides, into the future too",
            _near(lambda behind, window: -behind < window),
            ("Look at row 0: it may see key 0 alone.", "Hide what comes after the query as well."),
        ),
        Variation(
            "the window reaches to both sides, by window keys each",
            _near(lambda behind, window: -behind <= window, lambda behind, window: behind <= window),
            ("Look at row 0: it may see key 0 alone.", "Hide what comes after the query. The window counts itself."),
        ),
        Variation(
            "the window reaches into the future, not into the past",
            _near(lambda behind, window: -behind < window, lambda behind, window: behind <= 0),
            TRIU,
        ),
        Variation(
            "each query sees the next token too, its future",
            _near(ahead=lambda behind, window: behind >= -1),
            TRIU,
        ),
        Variation(
            "fixed blocks of window tokens are used, the window does not slide with the query",
            lambda T, window: (torch.arange(T)[:, None] // window == torch.arange(T) // window).tril(),
            _WIDTH_HINTS,
        ),
        Variation(
            "the future is not hidden",
            _near(ahead=_anywhere),
            (
                "Look at row 0: it may see key 0 alone.",
                "Two conditions: not after the query, and not too far before it.",
            ),
        ),
        Variation(
            "the past is not limited, the mask is causal alone",
            _near(past=_anywhere),
            ("Does your mask change with window?", "Hide the keys that lie window or more before the query."),
        ),
        Variation(
            "the window reaches half to either side, as in an encoder",
            _near(lambda behind, window: -behind <= window // 2, lambda behind, window: behind <= window // 2),
            (
                "Look at row 0: it may see key 0 alone.",
                "Hide what comes after the query; window counts backwards alone.",
            ),
        ),
        Variation(
            "the query's own position is left out of the window",
            _near(ahead=lambda behind, window: behind > 0),
            DIAGONAL,
        ),
        Variation(
            "the window is 3 whatever window is",
            _near(past=lambda behind, window: behind < 3),
            ("Does your mask change with window?", "Compare with window, not with a number."),
        ),
        Variation(
            "the window stands before the query, its own position is left out",
            _near(lambda behind, window: behind > 0, lambda behind, window: behind <= window),
            DIAGONAL,
        ),
    ),
    hints=(
        "Print your mask for T = 5 and window 2 beside the one you drew by hand.",
        "Subtract the index of the key from that of the query: which differences are allowed?",
    ),
    shape_hint="One row for each query, one column for each key.",
    dtype="bool",
)

TASKS = (causal, padding, combined, window)
