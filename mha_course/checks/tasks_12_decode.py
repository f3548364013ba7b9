"""The second exercise of notebook 12: decoding with a cache, equal to one pass over all tokens."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mha_course.checks import attention_faults
from mha_course.checks.task import Case, Task, Variation, by_steps, draw

Array = Tensor  # unchecked: a search for two faults calls the steps a thousand times
Three = tuple[Array, Array, Array]


def _case(seed: int, sizes: tuple[int, int, int, int, int], note: str = "") -> Case:
    """Tokens and a table of more positions than there are tokens; matrices that keep a variance of 1."""
    T, L, E, D, prompt = sizes
    x, P, *matrices = draw(seed, (T, E), (L, E), *((E, D) for _ in range(3)))
    inputs = (x, P, *(W / math.sqrt(E) for W in matrices), prompt)
    return Case({"T": T, "L": L, "E": E, "D": D, "prompt": prompt}, inputs, note)


def _cases() -> tuple[Case, ...]:
    return (
        _case(0, (7, 11, 5, 3, 2)),
        _case(1, (5, 7, 2, 11, 3)),
        _case(2, (11, 13, 3, 2, 5)),
        _case(3, (5, 7, 3, 2, 1), "a prompt of one token"),
        _case(4, (5, 11, 2, 3, 5), "nothing behind the prompt"),
        _case(5, (7, 11, 3, 1, 2)),
        _case(6, (1, 3, 5, 2, 1)),
    )


def _mask(T: int, S: int, n: int) -> Array:
    return torch.ones(T, S, dtype=torch.bool).tril(n)


def _none(T: int, S: int, n: int) -> Array:
    return torch.ones(T, S, dtype=torch.bool)


def _joined(old: Array, new: Array, n: int) -> Array:
    return torch.cat([old, new])


@by_steps
def decoded(
    feed: Callable[[Array, int, int], Array] = lambda x, n, T: x[n : n + T],
    place: Callable[[int, int], int] = lambda n, prompt: n,
    add: Callable[[Array, Array, int], Array] = lambda x, p, n: x + p,
    project: Callable[[Array, Array, Array, Array], Three] = lambda h, W_q, W_k, W_v: (h @ W_q, h @ W_k, h @ W_v),
    see: Callable[[Array, Array, int], Array] = _joined,
    keep: Callable[[Array, Array, int], Array] = _joined,
    scale: Callable[[Array, Array, Array], float] = lambda q, k, v: 1 / math.sqrt(q.shape[-1]),
    mask: Callable[[int, int, int], Array] = _mask,
    weigh: Callable[[Array], Array] = lambda scores: scores.softmax(-1),
    show: Callable[[list[Array]], Any] = torch.cat,
) -> Callable[[Array, Array, Array, Array, Array, int], Array]:
    """Decoding with a cache, with some steps changed.

    Args:
        feed: from all tokens, the number of those before and the number of new ones to the new ones.
        place: from the number of tokens before and the prompt to the position of the first new one.
        add: from new tokens, their rows of the table and the number of tokens before to what is projected.
        project: from that and the matrices to queries, keys and values.
        see: from old and new keys, or values, and the number of tokens before to those that are attended to.
        keep: the same to those that are kept.
        scale: the factor on the scores, from q, k and v.
        mask: from T, S and the number of tokens before to True where a query may attend.
        weigh: from scores to weights.
        show: from the outputs of prompt and steps to the result.
    """

    def fn(x: Array, P: Array, W_q: Array, W_k: Array, W_v: Array, prompt: int) -> Array:
        K, V, out = x.new_empty(0, W_k.shape[1]), x.new_empty(0, W_v.shape[1]), []
        for n in (0, *range(prompt, len(x))):
            T = 1 if n else prompt
            start = place(n, prompt) if n else 0
            h = add(feed(x, n, T) if n else x[:prompt], P[start : start + T], n)
            q, k, v = project(h, W_q, W_k, W_v)
            keys, values = (see(K, k, n), see(V, v, n)) if n else (k, v)
            scores = q @ keys.T * scale(q, keys, values)
            scores = scores.masked_fill(~mask(T, len(keys), n), -math.inf)
            out.append(weigh(scores) @ values)
            K, V = keep(K, k, n), keep(V, v, n)
        return show(out)

    return fn


_MASK_HINTS = (
    "Print the mask of a step with one query: which keys does it show?",
    "Query t of a call has position length + t, where length counts the tokens before it: it sees keys up to there.",
)
_CAUSAL_HINTS = (
    "Change the last token of the prompt: do the outputs before it change?",
    "Within the prompt a query sees keys up to its own position; a single new token sees all that are held.",
)
_OWN_HINTS = (
    "Count the keys in the first step behind the prompt: there should be prompt + 1.",
    "Put the new key and value into the cache first, then attend.",
)
_POSITION_HINTS = (
    "Print the row of P that each step adds: which number should it have?",
    "The position of a token is the number of tokens before it: row t of P belongs to token t.",
)
_CACHE_HINTS = (
    "Print the number of keys that each step attends to: it should be prompt + 1, prompt + 2, and so on.",
    "Keep the key and the value of every token, those of the prompt and those of each step.",
)
_FEED_HINTS = (
    "Print which token each step reads: the first step comes right behind the prompt.",
    "The step that gives row t of the output reads token t, x[t], at position t.",
)
_SCALE_HINTS = (
    "Compute the standard deviation of your scores for some D: does it grow with D?",
    "Divide each score by the square root of D, the number of columns of W_q, once.",
)
_PROJECT_HINTS = (
    "Replace one of W_q, W_k and W_v by zeros: do the right things become zero?",
    "Queries are h @ W_q, keys h @ W_k, values h @ W_v.",
)
_SHOW_HINTS = (
    "Print the shape of your result: it should have one row for each token, those of the prompt included.",
    "Join the outputs of the prompt, all of them, and of each step: torch.cat along the tokens.",
)


def _swapped(*order: int) -> Callable[[Array, Array, Array, Array], Three]:
    def project(h: Array, *matrices: Array) -> Three:
        q, k, v = (h @ matrices[i] for i in order)
        return q, k, v

    return project


decode = Task(
    name="decode",
    gradients=False,
    arguments=("x", "P", "W_q", "W_k", "W_v", "prompt"),
    results=(("out", ("T", "D")),),
    axes={"T": "token"},
    reference=decoded(),
    build=decoded,
    cases=_cases,
    work=_case(7, (13, 17, 601, 7, 3)),
    variations=(
        Variation(
            "the mask is aligned to the upper left corner: a new token sees the first key alone",
            decoded(mask=lambda T, S, n: _mask(T, S, 0)),
            _MASK_HINTS,
        ),
        Variation(
            "the prompt has no causal mask: its tokens see those that come later",
            decoded(mask=_none),
            _CAUSAL_HINTS,
        ),
        Variation(
            "a new token does not see itself: it attends before its key and value are in the cache",
            decoded(see=lambda old, new, n: old),
            _OWN_HINTS,
        ),
        Variation(
            "each new token gets position 0, as if every call began a text",
            decoded(place=lambda n, prompt: 0),
            _POSITION_HINTS,
        ),
        Variation(
            "positions start at 0 again behind the prompt",
            decoded(place=lambda n, prompt: n - prompt),
            _POSITION_HINTS,
        ),
        Variation(
            "the position of each new token is one too large",
            decoded(place=lambda n, prompt: n + 1),
            _POSITION_HINTS,
        ),
        Variation(
            "the position of each new token is one too small: that of the token before it",
            decoded(place=lambda n, prompt: n - 1),
            _POSITION_HINTS,
        ),
        Variation(
            "each new token gets the position behind the prompt, which does not move on",
            decoded(place=lambda n, prompt: prompt),
            _POSITION_HINTS,
        ),
        Variation(
            "new tokens get no position, those of the prompt do",
            decoded(add=lambda x, p, n: x if n else x + p),
            _POSITION_HINTS,
        ),
        Variation("no token gets a position: P is not used", decoded(add=lambda x, p, n: x), _POSITION_HINTS),
        Variation(
            "everything is one token late: each step reads the token before the one whose turn it is",
            decoded(feed=lambda x, n, T: x[n - 1 : n], place=lambda n, prompt: n - 1),
            _FEED_HINTS,
        ),
        Variation(
            "each step reads the token before the one whose turn it is, at the right position",
            decoded(feed=lambda x, n, T: x[n - 1 : n]),
            _FEED_HINTS,
        ),
        Variation(
            "new tokens are not kept in the cache: a later one does not see them",
            decoded(keep=lambda old, new, n: old if n else new),
            _CACHE_HINTS,
        ),
        Variation(
            "the prompt is not in the cache: new tokens see each other alone",
            decoded(keep=lambda old, new, n: torch.cat([old, new]) if n else old),
            _CACHE_HINTS,
        ),
        Variation(
            "a new token sees itself alone: nothing of what came before is in the cache",
            decoded(see=lambda old, new, n: new),
            _CACHE_HINTS,
        ),
        Variation(
            "a new token sees itself and the last one before it alone: each replaces what was kept",
            decoded(keep=lambda old, new, n: new),
            _CACHE_HINTS,
        ),
        Variation(
            "the scores are divided by D: the square root of D is there twice",
            decoded(scale=lambda q, k, v: 1 / q.shape[-1]),
            _SCALE_HINTS,
        ),
        *(
            Variation(factor.fault, decoded(scale=factor.of), _SCALE_HINTS)
            for factor in attention_faults.FACTORS
            if "divided by D," not in factor.fault
        ),
        Variation("the values are made with W_k, not with W_v", decoded(project=_swapped(0, 1, 1)), _PROJECT_HINTS),
        Variation("the keys are made with W_q, not with W_k", decoded(project=_swapped(0, 0, 2)), _PROJECT_HINTS),
        Variation("the queries are made with W_k, not with W_q", decoded(project=_swapped(1, 1, 2)), _PROJECT_HINTS),
        Variation("the matrices W_k and W_v have changed places", decoded(project=_swapped(0, 2, 1)), _PROJECT_HINTS),
        Variation(
            "of the prompt only the last output is returned",
            decoded(show=lambda out: torch.cat([out[0][-1:], *out[1:]])),
            _SHOW_HINTS,
        ),
        Variation(
            "the outputs of the prompt are not returned",
            decoded(show=lambda out: torch.cat([out[0][:0], *out[1:]])),
            _SHOW_HINTS,
            lambda sizes: sizes["T"] == sizes["prompt"],
        ),
    ),
    hints=(
        "Compare with one pass over all tokens under a causal mask, row by row: which is the first that differs?",
        "Each call: add positions to the new tokens, project them, put keys and values behind those held, attend with"
        " the mask aligned to the lower right, keep the outputs.",
    ),
    shape_hint="out has one row for each token, those of the prompt included, and the width of the values: (T, D).",
)
