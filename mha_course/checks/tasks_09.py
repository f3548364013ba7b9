"""The exercises of notebook 09: a leak probe, and the weights of three patients repaired."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mha_course.checks import tasks_09_layers as layers
from mha_course.checks.task import Case, Task, Variation, by_steps, draw
from mha_course.checks.tasks_09_weights import repaired_weights

Tokens = Float[Tensor, "..."]
Layer = Callable[[Tokens], Tokens]
Moves = Bool[Tensor, "..."]


def _cases() -> tuple[Case, ...]:
    """B >= T and E >= T, so that each axis can be taken for the tokens'. A token of zeros is one that x * 2 leaves."""
    cases = []
    for seed, (sizes, layer, note) in enumerate(
        [
            ((7, 5, 11), layers.Masked(), "causal attention"),
            ((11, 7, 13), layers.Masked(window=2), "a window of two tokens; token 3 is zero"),
            ((5, 3, 7), layers.AfterSoftmax(), "weights set to 0 after the softmax"),
            ((7, 5, 13), layers.OneAhead(), "one feature sees the next token"),
            ((7, 5, 11), layers.Tiny(), "a leak of 1e-11"),
            ((5, 3, 11), layers.Padded(), "causal attention, another token hidden in each sample"),
            ((5, 3, 7), layers.Directions(), "causal attention that does not see how long a token is"),
            ((7, 5, 7), layers.RunningSum(), "a running sum"),
            ((5, 2, 2), layers.Opposites(), "causal attention, two features that cancel"),
            ((1, 1, 2), layers.Tiny(), "one token"),
        ]
    ):
        (x,) = draw(20 + seed, sizes)  # what a solution draws comes from seed 0: the same numbers would be no change
        if "token 3" in note:
            x[:, 3] = 0
        cases.append(Case(dict(zip(("B", "T", "E"), sizes, strict=True)), (layer, x), note))
    return tuple(cases)


def _more(x: Tokens) -> Tokens:
    """Other tokens than x, none of them a multiple."""
    return x + draw(99, tuple(x.shape))[0]


def _any(moved: Moves) -> Moves:
    return moved.any(-1).any(0)


@by_steps
def _probe(
    change: Callable[[Tokens], Tokens] = _more,
    which: Callable[[int], int | slice] = lambda s: s,
    differs: Callable[[Tokens, Tokens], Moves] = torch.ne,
    reduce: Callable[[Moves], Moves] = _any,
    end: Callable[[Moves], Moves] = lambda moves: moves,
) -> Callable[[Layer, Tokens], Moves]:
    """Change one token after another.

    Args:
        change: what becomes of a token.
        which: the tokens that are changed for entry s.
        differs: compares the results, (B, T, E).
        reduce: (B, T, E) -> (T,), the rows that count as moved.
        end: what becomes of the answer.
    """

    def fn(layer: Layer, x: Tokens) -> Moves:
        before = layer(x)
        columns = []
        for s in range(x.shape[1]):
            changed = x.clone()
            changed[:, which(s)] = change(changed[:, which(s)])
            columns.append(reduce(differs(layer(changed), before)))
        return end(torch.stack(columns, -1))

    return fn


def _all(value: bool) -> Callable[[Layer, Tokens], Moves]:
    return _probe(end=lambda moves: torch.full_like(moves, value))


_CUMULATIVE = "tokens before s are changed too: what was changed for one column stays so for the next"
_ONE_TOKEN_HINTS = (
    "Print, for s = 1, which tokens differ between the two inputs: token 1 should be the only one.",
    "Start from a fresh copy of x for every s, and change token s alone in it.",
)
_TOLERANCE_HINTS = (
    "A trace of the future is a leak too: how small a difference does your comparison see?",
    "Compare to the last bit, by torch.ne or torch.equal: what does not depend on a token stays bit-equal.",
)
_CHANGE_HINTS = (
    "Print token s before and after your change: what if it is zero, or if the layer divides by its length?",
    "Replace the token by other numbers, such as drawn ones: do not just multiply it.",
)
_EVERY_HINTS = (
    "What if a leak shows in one number of a row alone, or in one sample alone?",
    "A row has moved as soon as any of its numbers, in any sample, is another one.",
)
_FUTURE = "only rows up to token s are looked at, those that would see their future"
_FUTURE_HINTS = (
    "Probe causal attention: row 1 moves when token 0 is changed, which is as it should be.",
    "The probe says what moves; whether it may is asked later. Keep every row.",
)
_ALL_HINTS = (
    "Print where the two inputs differ: is it one token alone, in every sample and feature?",
    "Tokens lie along axis 1 of x (B, T, E): change x[:, s] in a copy, and leave the rest as it is.",
)


leak_probe = Task(
    name="leak_probe",
    arguments=("fn", "x"),
    results=(("moves", ("T", "T")),),
    axes={"T": "row", "TT": "changed token"},
    true="the row moves",
    dtype="bool",
    reference=_probe(),
    build=_probe,
    cases=_cases,
    variations=(
        Variation(
            "rows and columns have changed places: entry [t, s] is row t when token s is changed",
            _probe(end=lambda moves: moves.T.clone()),
            (
                "Probe causal attention: row 0 sees token 0 alone, so the True stand on and below the diagonal.",
                "What one change moves is a column of the result, not a row: stack along the last axis.",
            ),
        ),
        Variation(
            "the answer is inverted: True means that the row moves",
            _probe(end=torch.logical_not),
            ("Look at your comparison: is it for equal, or for different?", "A row moves where the results differ."),
        ),
        Variation(_CUMULATIVE, _probe(end=lambda moves: moves.cumsum(1) > 0), _ONE_TOKEN_HINTS),
        Variation(
            "token s and all those behind it are changed, not token s alone",
            _probe(end=lambda moves: moves.flip(1).cumsum(1).flip(1) > 0),
            _ONE_TOKEN_HINTS,
        ),
        Variation(
            "small moves are missed: the results are compared with a tolerance, or the change itself is tiny",
            _probe(differs=lambda a, b: ~torch.isclose(a, b)),
            _TOLERANCE_HINTS,
        ),
        Variation(
            "a row counts as moved only if all its numbers are others: a leak into one of them is missed",
            _probe(reduce=lambda moved: moved.all(-1).any(0)),
            _EVERY_HINTS,
        ),
        Variation(
            "a row counts as moved only if all its numbers are others, in all samples: a leak into one is missed",
            _probe(reduce=lambda moved: moved.all(-1).all(0)),
            _EVERY_HINTS,
        ),
        Variation(
            "a row counts as moved only if it moves in all samples: they may have other masks",
            _probe(reduce=lambda moved: moved.any(-1).all(0)),
            _EVERY_HINTS,
        ),
        Variation(
            "one sample alone is looked at: the others may have other masks, or fn is given one sample at a time",
            _probe(reduce=lambda moved: moved[0].any(-1)),
            _EVERY_HINTS,
        ),
        Variation(
            "one sample alone is looked at: the others may have other masks, or fn is given one sample at a time",
            _probe(reduce=lambda moved: moved[-1].any(-1)),
            _EVERY_HINTS,
        ),
        Variation(
            "the token is made longer: a token of zeros stays as it is, and a layer that normalises sees no change",
            _probe(lambda token: 2 * token),
            _CHANGE_HINTS,
        ),
        Variation(
            "the token is set to 0, or multiplied by a number: a token of zeros stays as it is",
            _probe(lambda token: -token),
            _CHANGE_HINTS,
        ),
        Variation(
            "the features of a row are added up before they are compared: moves that cancel are missed",
            _probe(differs=lambda a, b: (a.sum(-1, keepdim=True) != b.sum(-1, keepdim=True)).expand_as(a)),
            _EVERY_HINTS,
        ),
        Variation(
            "the token is set to NaN or infinity: 0 times either is NaN, which gets past every mask",
            _probe(lambda token: torch.full_like(token, torch.nan)),
            (
                "Print the result for a token of NaN: which rows hold NaN, and may they see that token?",
                "Change the token to finite numbers. NaN also differs from itself.",
            ),
        ),
        Variation(
            "only row s is looked at when token s is changed, the diagonal",
            _probe(end=lambda moves: moves & torch.eye(len(moves), dtype=torch.bool)),
            (
                "How many rows do you compare for each changed token? All T of them may move.",
                "Compare the whole result with the one before, and keep one True or False for each row.",
            ),
        ),
        Variation(_FUTURE, _probe(end=lambda moves: moves.triu(1)), _FUTURE_HINTS),
        Variation(_FUTURE, _probe(end=lambda moves: moves.triu()), _FUTURE_HINTS),
        Variation(
            "rows before token s are left out: there the leaks are that matter most",
            _probe(end=lambda moves: moves.tril()),
            (
                "Probe attention without a mask: every row should move with every token.",
                "Take no mask for granted: compare all rows for every token.",
            ),
        ),
        Variation(
            "the diagonal is left out: a row may move with its own token too",
            _probe(end=lambda moves: moves & ~torch.eye(len(moves), dtype=torch.bool)),
            ("Look at row 0 of causal attention: it sees token 0.", "Keep the row of the changed token itself."),
        ),
        Variation(
            "the tokens are counted one off: column s shows what token s - 1 moves",
            _probe(end=lambda moves: moves.roll(1, 1)),
            ("Which token do you change first?", "Count from 0, without adding or taking away 1."),
        ),
        Variation(
            "the tokens are counted one off: column s shows what token s + 1 moves",
            _probe(end=lambda moves: moves.roll(-1, 1)),
            ("Which token do you change first?", "Count from 0, without adding or taking away 1."),
        ),
        Variation(
            "a causal mask is returned, whatever fn does",
            _probe(end=lambda moves: torch.ones_like(moves).tril()),
            (
                "Does your result change with fn? Try attention without a mask.",
                "Measure: call fn, and compare what it gives before and after a change.",
            ),
        ),
        Variation("every row moves with every token: more is changed than token s", _all(True), _ALL_HINTS),
        Variation(
            "no row moves, whatever token is changed: the two results are of the same input",
            _all(False),
            (
                "Print the two inputs: does the first one still hold the old numbers?",
                "changed = x is another name for the same tensor: take x.clone(), and call fn on x before.",
            ),
        ),
    ),
    hints=(
        "Probe lambda x: x by hand: row t moves with token t alone.",
        "For every token: a copy of x with that token changed, fn of it, and which rows differ from those of fn(x). "
        "Call fn on tensors of the shape of x, since other sizes round differently.",
    ),
    shape_hint="One column for each changed token, one row for each row of the result: any over samples and features.",
)

TASKS = (leak_probe, repaired_weights)
