"""The third exercise of notebook 07: multi-head attention, its matrices given as inputs."""

import math
from typing import Any

import torch

from mha_course.checks.task import Case, Task, Variation, by_steps, draw
from mha_course.checks.tasks_07_faults import Array, Fault, Mask, Solution, built, hide, numbers
from mha_course.checks.tasks_07_steps import AMONG, FILLED, ROLE_HINTS, STEPS, TRANSPOSED_HINTS


def _mask(seed: int, B: int, T: int) -> Mask:
    """A random mask (B, 1, T, T): every query sees itself, and with T > 1 something is hidden from it."""
    (random,) = draw(100 + seed, (B, 1, T, T))
    t = torch.arange(T)
    hidden = t.roll(1) == t[:, None]
    return ((random > -0.5) & ~hidden) | torch.eye(T, dtype=torch.bool)


def _cases() -> tuple[Case, ...]:
    cases = []
    drawn = [(2, 5, 3, 7), (3, 7, 2, 5), (2, 3, 3, 5), (5, 1, 2, 3), (1, 2, 1, 7), (2, 3, 5, 1)]
    for seed, (B, T, H, D) in enumerate(drawn):
        E = H * D
        x, *drawn_weights = draw(seed, (B, T, E), *[(E, E)] * 4)
        weights = [W / math.sqrt(E) for W in drawn_weights]  # q, k and v stay as large as x
        sizes = {"B": B, "T": T, "E": E, "H": H, "D": D}
        cases.append(Case(sizes, (x, *weights, H, _mask(seed, B, T)), "random mask"))
    return tuple(cases)


def _of_x(fn: Solution) -> Any:
    """Attention of x to itself."""
    return lambda x, W_q, W_k, W_v, W_o, num_heads, mask: fn(x, x, W_q, W_k, W_v, W_o, num_heads, mask)


@by_steps
def _built(**changes: Any) -> Any:
    return _of_x(built(**changes))


def _hidden(factor: float, x: Array, *others: Any) -> tuple[tuple[Any, ...], Mask]:
    """The token that most queries do not see, replaced; rows of the output, (B, T, 1), that do not see it."""
    hidden = ~others[-1][:, 0]  # (B, T, T)
    s = int(hidden.sum((0, 1)).argmax())
    changed = x.clone()
    changed[:, s] = factor * draw(7, (len(x), x.shape[-1]))[0]
    return (changed, *others), hidden[:, :, s, None]


def _repeated(scores: Array, mask: Mask) -> Mask:
    """A mask for each head, folded as M0 M1 M0 M1 and not as M0 M0 M1 M1."""
    return mask.repeat(scores.shape[1], 1, 1, 1).view(scores.shape)


_MASK_HINTS = (
    "Set mask[0, 0, 0, 1] to True and to False: what changes in your weights, and where?",
    "Where the mask is False the score becomes -inf, before the softmax.",
)
_NOT_HIDDEN_HINTS = (
    "Look at the weight of a hidden key: it should be 0.",
    "exp(0) is 1, so that a score of 0 hides nothing: minus infinity does.",
)
_INVERTED_HINTS = (
    "Look at the weight of a key where the mask is False: it should be 0.",
    "Here True means may attend, and masked_fill fills where its own mask is True.",
)
_INVERTED = "the mask is inverted: queries attend to what is hidden"
_NOT_HIDDEN = "hidden scores become 0, which hides nothing"
_POSITIVE = "hidden scores become large, not minus infinity: the hidden keys take all"
_POSITIVE_HINTS = ("Look at the weight of a hidden key: it should be 0.", "Mind the sign of what you fill in.")

_MASKS = (
    Fault("the mask is ignored", {"see": lambda scores, mask: None}, _MASK_HINTS),
    Fault(_INVERTED, {"see": lambda scores, mask: ~mask}, _INVERTED_HINTS),
    Fault(
        _INVERTED,
        {"see": lambda scores, mask: ~mask, "late": lambda weights, mask: weights.nan_to_num(0)},
        _INVERTED_HINTS,
    ),
    Fault(
        _INVERTED,
        {"see": lambda scores, mask: ~mask, "hide": lambda scores, mask: hide(scores, mask, -1e9)},
        _INVERTED_HINTS,
    ),
    Fault(
        "the mask is applied after the softmax: the weights of a query no longer sum to 1",
        {"see": lambda scores, mask: None, "late": lambda weights, mask: weights * mask},
        ("Sum the weights of each query: they should give 1.", "Hide the scores, before the softmax."),
    ),
    Fault(_NOT_HIDDEN, {"hide": lambda scores, mask: hide(scores, mask, 0)}, _NOT_HIDDEN_HINTS),
    Fault(
        "the mask is added to the scores, where True counts as 1: nothing is hidden",
        {"hide": lambda scores, mask: scores + mask},
        ("Look at the weight of a hidden key: it should be 0.", _MASK_HINTS[1]),
    ),
    Fault(_POSITIVE, {"hide": lambda scores, mask: hide(scores, mask, 1e9)}, _POSITIVE_HINTS),
    Fault(
        "the mask is multiplied by infinity: 0 times infinity is NaN",
        {"hide": lambda scores, mask: scores + ~mask * -math.inf},
        (
            "Print your scores once the mask is in: where are they NaN?",
            "Fill in minus infinity without a product: masked_fill does.",
        ),
    ),
    Fault(
        "the mask is transposed, keys against queries",
        {"see": lambda scores, mask: mask.mT},
        ("Hide one key from one query: is it that weight which becomes 0?", "A row of the mask is a query."),
    ),
    Fault(
        "every sample uses the mask of the first",
        {"see": lambda scores, mask: mask[:1]},
        ("Change the mask of sample 1: does its result change?", "Look for an index 0 or a slice :1 of the mask."),
    ),
    Fault(
        "samples and heads of the mask are confused: it is repeated as M0 M1 M0 M1, the heads lie as M0 M0 M1 M1",
        {"see": _repeated},
        (
            "Change the mask of sample 1: in which samples does the result change?",
            "A mask (B, 1, T, T) broadcasts over the heads by itself. Folded, repeat each sample's mask H times.",
        ),
    ),
    Fault(
        "a causal mask is used in place of the mask that is given",
        {"see": lambda scores, mask: torch.ones_like(mask).tril()},
        ("Does your result change with mask?", "Which keys are hidden is the caller's choice: use the argument."),
    ),
    Fault(
        "a causal mask is used beside the mask that is given",
        {"see": lambda scores, mask: mask.tril()},
        ("Try a mask that is True throughout: is anything hidden?", "Hide what the argument hides, and nothing else."),
    ),
    Fault(
        f"{AMONG.said}, and the mask is ignored",
        {**AMONG.change, "see": lambda scores, mask: None},
        AMONG.hints,
    ),
)

_PROJECTIONS = (
    Fault(
        "queries and keys have changed places: the scores are transposed",
        {"use": lambda q, k, v: (k, q, v)},
        ("Make one row of q very large: does one row of your scores become large?", "A row of the scores is a query."),
    ),
    Fault("queries and values have changed places", {"use": lambda q, k, v: (v, k, q)}, ROLE_HINTS),
    Fault("the queries are made with W_k, not with W_q", {"use": lambda q, k, v: (k, k, v)}, ROLE_HINTS),
    Fault("the queries are made with W_v, not with W_q", {"use": lambda q, k, v: (v, k, v)}, ROLE_HINTS),
    Fault("the keys are made with W_q, not with W_k", {"use": lambda q, k, v: (q, q, v)}, ROLE_HINTS),
    Fault("the values are made with W_q, not with W_v", {"use": lambda q, k, v: (q, k, q)}, ROLE_HINTS),
    Fault("queries, keys and values are all made with W_q", {"use": lambda q, k, v: (q, q, q)}, ROLE_HINTS),
    Fault(
        "x itself is used for queries, keys and values: W_q, W_k and W_v are missing",
        {"project": lambda query, context, W_q, W_k, W_v: (query, query, query)},
        ("Does your result change with W_q?", "Multiply x by the three matrices before it is split."),
    ),
    Fault(
        "x itself is used for the values: W_v is missing",
        {"project": lambda query, context, W_q, W_k, W_v: (query @ W_q, query @ W_k, query)},
        ("Does your result change with W_v?", "The values too are x times a matrix of their own."),
    ),
    Fault(
        "the matrices W_q, W_k and W_v are transposed",
        {"project": lambda query, context, W_q, W_k, W_v: (query @ W_q.T, query @ W_k.T, query @ W_v.T)},
        TRANSPOSED_HINTS,
    ),
    Fault(
        "all four matrices are transposed",
        {
            "project": lambda query, context, W_q, W_k, W_v: (query @ W_q.T, query @ W_k.T, query @ W_v.T),
            "finish": lambda out, W_o, query: out @ W_o.T,
        },
        TRANSPOSED_HINTS,
    ),
)

multi_head = Task(
    name="multi_head",
    arguments=("x", "W_q", "W_k", "W_v", "W_o", "num_heads", "mask"),
    results=(("out", ("B", "T", "E")),),
    reference=_of_x(built()),
    build=_built,
    steps=lambda x, *others: numbers(x, x, *others),
    hidden=_hidden,
    cases=_cases,
    variations=tuple(
        Variation(said, _built(**change), hints) for said, change, hints in (*STEPS, *_MASKS, *FILLED, *_PROJECTIONS)
    ),
    hints=(
        "Try num_heads = 1 and a mask that is True throughout: if that is right, look at the heads or at the mask.",
        "Compare step by step: project, split, scores, scale, mask, softmax over the keys, values, merge, W_o.",
    ),
    shape_hint="x (B, T, E), heads (B, H, T, D), scores (B, H, T, T), heads again, merged (B, T, E).",
)
