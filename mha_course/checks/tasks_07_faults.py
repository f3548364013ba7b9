"""Multi-head attention built from steps, and faults that each change some of them.

x (B, T, E) is split into heads (B, H, T, D), E = H D, and heads are merged into (B, T, E).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mha_course.checks import attention_faults
from mha_course.checks.diagnosis.steps import hide, merge, split
from mha_course.checks.parting import Step

Array = Float[Tensor, "..."]
Mask = Bool[Tensor, "..."]
Three = tuple[Array, Array, Array]
Solution = Callable[[Array, Array, Array, Array, Array, Array, int, Mask | None], Array]


class Fault(NamedTuple):
    """A fault as a sentence, the function or the steps that show it, and two hints."""

    said: str
    change: Any
    hints: tuple[str, str]


def project(query: Array, context: Array, W_q: Array, W_k: Array, W_v: Array) -> Three:
    """Queries (B, T, E) from the query, keys and values (B, S, E) from the context."""
    return query @ W_q, context @ W_k, context @ W_v


def scale(q: Array, k: Array, v: Array) -> float:
    """The factor on the scores, from the split q, k and v."""
    return 1 / math.sqrt(q.shape[-1])


def built(
    project: Callable[[Array, Array, Array, Array, Array], Three] = project,
    split: Callable[[Array, int], Array] = split,
    use: Callable[[Array, Array, Array], Three] = lambda q, k, v: (q, k, v),
    score: Callable[[Array, Array], Array] = lambda q, k: q @ k.mT,
    scale: Callable[[Array, Array, Array], float] = scale,
    see: Callable[[Array, Mask | None], Mask | None] = lambda scores, mask: mask,
    hide: Callable[[Array, Mask | None], Array] = hide,
    share: Callable[[Array], Array] = lambda scores: scores.softmax(-1),
    late: Callable[[Array, Mask | None], Array] = lambda weights, mask: weights,
    mix: Callable[[Array, Array], Array] = lambda weights, v: weights @ v,
    merge: Callable[[Array], Array] = merge,
    finish: Callable[[Array, Array, Array], Array] = lambda out, W_o, query: out @ W_o,
) -> Solution:
    """Attention of a query (B, T, E) to a context (B, S, Ek) by heads, with some steps changed.

    Args:
        project: from query, context, W_q, W_k and W_v to q, k and v.
        split: cuts each of the three into heads.
        use: from the heads of q, k and v to those that are used.
        score: the products of queries and keys, (B, H, T, S).
        scale: from the heads of q, k and v to the factor on the scores.
        see: from scores and mask to the mask that is used.
        hide: puts it into the scores.
        share: from these to weights.
        late: what becomes of them, from them and the mask.
        mix: from weights and the heads of v to the heads' outputs.
        merge: puts the heads side by side.
        finish: from the merged heads, W_o and the query to the result.
    """

    def fn(
        query: Array, context: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array, num_heads: int, mask: Mask | None
    ) -> Array:
        projected = project(query, context, W_q, W_k, W_v)
        q, k, v = use(*(split(x, num_heads) for x in projected))
        scores = score(q, k) * scale(q, k, v)
        weights = late(share(hide(scores, see(scores, mask))), mask)
        return finish(merge(mix(weights, v)), W_o, query)

    return fn


def numbers(
    query: Array, context: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array, num_heads: int, mask: Mask | None
) -> tuple[Step, ...]:
    """The numbers of each step of attention by heads, for `parting`."""
    projected = project(query, context, W_q, W_k, W_v)
    q, k, v = (split(x, num_heads) for x in projected)
    scores = q @ k.mT * scale(q, k, v)
    weights = hide(scores, mask).softmax(-1)
    merged = merge(weights @ v)
    return (
        *(Step(name, x) for name, x in zip(("queries", "keys", "values"), projected, strict=True)),
        *(Step(f"heads of the {name}", x, 2) for name, x in (("queries", q), ("keys", k), ("values", v))),
        Step("products of queries and keys", scores, factor=True),
        Step("scaled scores", scores),
        *([] if mask is None else [Step("masked scores", hide(scores, mask))]),
        Step("weights", weights),
        Step("heads' outputs", weights @ v),
        Step("merged heads", merged, 2),
        Step("output", merged @ W_o),
    )


def _like(x: Array, H: int) -> tuple[int, int, int, int]:
    """The shape that the heads of x should have."""
    return x.shape[0], H, x.shape[1], x.shape[2] // H


def _by_tokens(x: Array, H: int) -> Array:
    """Heads of x taken for (T, B, E)."""
    B, H, T, D = _like(x, H)
    return x.reshape(T, B, H, D).permute(1, 2, 0, 3)


_COUNT = "Let x count upwards, torch.arange(8.0).view(1, 2, 4), and split it into 2 heads. "
_CUT_HINTS = (
    _COUNT + "Head 0 should hold 0, 1 and 4, 5: is it so?",
    "view and reshape move no number in memory: cut the last axis alone, into H and D, then exchange two axes.",
)
_CUT_ORDER_HINTS = (
    _COUNT + "Head 0 should hold 0, 1 and 4, 5: is it so?",
    "Head 0 takes the first D features, head 1 the next D: H comes before D where the last axis is cut.",
)
_CUT_BATCH_HINTS = (
    "Change one sample of x: only that sample's heads should change.",
    "Keep the batch in front from beginning to end, and put the axis of the heads right behind it.",
)
CUTS = (
    Fault(
        "x is viewed as (B, H, T, D) where it lies, which mixes tokens with features: no axes are exchanged",
        lambda x, H: x.reshape(_like(x, H)),
        _CUT_HINTS,
    ),
    Fault(
        "the heads are interleaved: feature i went to head i % H, not to head i // D",
        lambda x, H: x.unflatten(-1, (-1, H)).permute(0, 3, 1, 2),
        _CUT_ORDER_HINTS,
    ),
    Fault(
        "tokens and features are exchanged first, and then reshaped, which mixes them",
        lambda x, H: x.mT.reshape(_like(x, H)),
        _CUT_HINTS,
    ),
    Fault(
        "the wrong two axes are exchanged: x is viewed as (B, H, D, T), then T and D change places",
        lambda x, H: x.reshape(x.shape[0], H, -1, x.shape[1]).mT,
        _CUT_HINTS,
    ),
    Fault(
        "the wrong two axes are exchanged, H and D, and a reshape mixes the numbers",
        lambda x, H: x.unflatten(-1, (H, -1)).mT.reshape(_like(x, H)),
        _CUT_HINTS,
    ),
    Fault("x is taken for (T, B, E), tokens first", _by_tokens, _CUT_BATCH_HINTS),
    Fault(
        "x is viewed as (H, B, T, D), which mixes samples with heads",
        lambda x, H: x.reshape(H, x.shape[0], x.shape[1], -1).transpose(0, 1),
        _CUT_BATCH_HINTS,
    ),
    Fault(
        "the heads are put one after another along the batch, (H B, T, D), but viewed as (B, H, T, D)",
        lambda x, H: torch.cat(x.chunk(H, -1)).view(_like(x, H)),
        _CUT_BATCH_HINTS,
    ),
)
MORE_CUTS = (
    Fault(
        "the heads come in reversed order",
        lambda x, H: split(x, H).flip(1),
        (_COUNT + "Which numbers does head 0 hold?", "Head 0 takes the first D features."),
    ),
    Fault(
        "every head is the first one",
        lambda x, H: split(x, H)[:, :1].expand(-1, H, -1, -1),
        (_COUNT + "Do the two heads differ?", "Look for a slice that does not depend on the head: head 1 begins at D."),
    ),
)

_JOIN = "Merge two heads that hold ones and twos, B = 1, T = 2, D = 2. "
_JOIN_HINTS = (
    _JOIN + "Each token should read 1, 1, 2, 2: is it so?",
    "view and reshape move no number in memory: bring H next to D, behind T, before you join the two.",
)
_JOIN_ORDER_HINTS = (
    _JOIN + "Each token should read 1, 1, 2, 2: is it so?",
    "All features of head 0 come first: H stands before D where the two are joined.",
)
_JOIN_BATCH_HINTS = (
    "Change one sample of x: only that sample's row should change.",
    "Keep the batch in front from beginning to end.",
)
_JOIN_ALL_HINTS = (
    _JOIN + "Which numbers does one token hold?",
    "Put the heads of a token side by side, so that every number of every head is kept.",
)


def _tiled(one: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """(B, H, T, D) -> (B, T, E): one(x), (B, T, D), H times side by side."""
    return lambda x: one(x).repeat(1, 1, x.shape[1])


JOINS = (
    Fault(
        "the heads are reshaped to (B, T, E) where they lie, which mixes tokens with features: no axes are exchanged",
        lambda x: x.reshape(x.shape[0], x.shape[2], -1),
        _JOIN_HINTS,
    ),
    Fault(
        "the heads are interleaved: feature i comes from head i % H, not from head i // D",
        lambda x: x.permute(0, 2, 3, 1).flatten(2),
        _JOIN_ORDER_HINTS,
    ),
    Fault(
        "the wrong two axes are exchanged, T and D, and the reshape mixes the numbers",
        lambda x: x.mT.reshape(x.shape[0], x.shape[2], -1),
        _JOIN_HINTS,
    ),
    Fault(
        "the wrong two axes are exchanged, H and D, and the reshape mixes the numbers",
        lambda x: x.transpose(1, 3).reshape(x.shape[0], x.shape[2], -1),
        _JOIN_HINTS,
    ),
    Fault(
        "the tokens come before the batch when the heads are joined, and the reshape mixes the samples",
        lambda x: x.permute(2, 0, 1, 3).reshape(x.shape[0], x.shape[2], -1),
        _JOIN_BATCH_HINTS,
    ),
    Fault(
        "the heads come before the batch when they are joined, and the reshape mixes the samples",
        lambda x: x.transpose(0, 1).reshape(x.shape[0], x.shape[2], -1),
        _JOIN_BATCH_HINTS,
    ),
    Fault("the mean of the heads is repeated", _tiled(lambda x: x.mean(1)), _JOIN_ALL_HINTS),
    Fault("the sum of the heads is repeated", _tiled(lambda x: x.sum(1)), _JOIN_ALL_HINTS),
)
MORE_JOINS = (
    Fault(
        "batch and heads have changed places when the heads are joined, and the reshape mixes the samples",
        lambda x: x.permute(1, 2, 0, 3).reshape(x.shape[0], x.shape[2], -1),
        _JOIN_BATCH_HINTS,
    ),
    Fault(
        "the heads come in reversed order",
        lambda x: merge(x.flip(1)),
        (_JOIN + "Each token should read 1, 1, 2, 2: is it so?", "Head 0 gives the first D features."),
    ),
    Fault("the first head is repeated, the others are lost", _tiled(lambda x: x[:, 0]), _JOIN_ALL_HINTS),
)


_DIVIDE = "Divide the scores, before the softmax, by the square root of D, the width of one head."
_SIZE_HINTS = ("Look at the number that the scores are divided by: which size is under the root?", _DIVIDE)
_E = "the scores are divided by the square root of E, the width of all heads, not of D, that of one"
_H = "the scores are divided by the square root of H, the number of heads, not of D"
SCALES = (
    Fault(_E, {"scale": lambda q, k, v: 1 / math.sqrt(q.shape[1] * q.shape[-1])}, _SIZE_HINTS),
    Fault(_H, {"scale": lambda q, k, v: 1 / math.sqrt(q.shape[1])}, _SIZE_HINTS),
    *(
        Fault(factor.fault, {"scale": factor.of}, (factor.hints[0], _DIVIDE.replace(", before the softmax,", "")))
        for factor in attention_faults.FACTORS
    ),
    Fault(
        "the division by the square root of D comes after the softmax, not before it",
        {"scale": lambda q, k, v: 1.0, "mix": lambda weights, v: weights @ v / math.sqrt(v.shape[-1])},
        ("Sum the weights that one query gives: they should give 1, whatever D is.", _DIVIDE),
    ),
)
