"""Multi-head attention as steps that can be changed one by one: what a candidate is compared with.

A module has all steps; a function of q, k and v begins at `use` and ends at `mix`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from mha_course import masks

Array = Float[Tensor, "..."]
Mask = Bool[Tensor, "..."]
Step = Callable[..., Any]
Steps = Mapping[str, Step]


class Inputs(NamedTuple):
    """What attention is called with, in the course's own form.

    Attributes:
        query, key, value: (B, T, E), (B, S, Ek), (B, S, Ev) for a module; q (B, H, T, D), k and v (B, Hkv, S, D) for
            a function.
        mask: bool, True = may attend, (B or 1, H or 1, T, S); None hides nothing.
        bias: added to the scaled scores, (B or 1, 1, T, S); None adds nothing.
    """

    query: Array
    key: Array
    value: Array
    mask: Mask | None = None
    bias: Array | None = None


class Linear(NamedTuple):
    """A linear map, x @ weight + bias, with weight (in, out) and bias (out) or None."""

    weight: Array
    bias: Array | None = None

    def __call__(self, x: Array) -> Array:
        """The map of x."""
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Weights(NamedTuple):
    """The four linear maps of a module and its numbers of heads; o None if there is no output projection."""

    q: Linear
    k: Linear
    v: Linear
    o: Linear | None
    H: int
    Hkv: int


def output_of(w: Weights) -> Linear:
    """The output projection.

    Raises:
        ValueError: there is none, so that a fault of it does not fit.
    """
    if w.o is None:
        raise ValueError("there is no output projection")
    return w.o


class Trace(NamedTuple):
    """All that the steps made, in their order; None where a function has no such step."""

    projected: tuple[Array, Array, Array] | None
    q: Array
    k: Array
    v: Array
    scores: Array | None
    hidden: Array | None
    weights: Array | None
    heads: Array
    merged: Array | None
    out: Array


def split(x: Array, H: int) -> Array:
    """(B, T, E) -> (B, H, T, D)."""
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def merge(x: Array) -> Array:
    """(B, H, T, D) -> (B, T, E)."""
    return x.transpose(1, 2).flatten(2)


def hide(scores: Array, mask: Mask | None, fill: float = -math.inf) -> Array:
    """Scores with `fill` where the mask is False."""
    return scores if mask is None else scores.masked_fill(~mask, fill)


def softmax(scores: Array) -> Array:
    """Over the keys; 0 in a row that may attend to nothing."""
    return scores.softmax(-1).masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)


def add(products: Array, scale: float, bias: Array | None) -> Array:
    """Products times the scale, then the bias."""
    return products * scale if bias is None else products * scale + bias


def grouped(x: Array, H: int) -> Array:
    """Keys or values (B, Hkv, S, D) -> (B, H, S, D): query head h reads head h // (H / Hkv)."""
    return x if x.shape[1] == H else x.repeat_interleave(H // x.shape[1], 1)


def project(x: Inputs, w: Weights) -> tuple[Array, Array, Array]:
    """Queries from the query, keys from the key, values from the value."""
    return w.q(x.query), w.k(x.key), w.v(x.value)


DEFAULT: Steps = {
    "project": project,
    "split_q": split,
    "split_k": split,
    "split_v": split,
    "use": lambda q, k, v: (q, k, v),
    "group": grouped,
    "score": lambda q, k: q @ k.mT,
    "scale": lambda q, k: 1 / math.sqrt(q.shape[-1]),
    "add": add,
    "see": lambda T, S: None,
    "hide": hide,
    "normalize": softmax,
    "after": lambda weights, mask: weights,
    "mix": lambda weights, v, mask: weights @ v,
    "merge": merge,
    "finish": lambda merged, w, x: merged if w.o is None else w.o(merged),
}
FRONT = ("project", "split_q", "split_k", "split_v", "use")
MIDDLE = ("score", "scale", "add", "see", "hide", "normalize", "after", "mix", "group", "attend")
ATTEND = frozenset(MIDDLE) - {"scale"}  # what "attend" replaces
Memo = dict[Any, Any]


def _remembered(memo: Memo | None, key: Any, make: Callable[[], Any]) -> Any:
    """What make gives, or raises; kept in memo."""
    if memo is None:
        return make()
    if key not in memo:
        try:
            memo[key] = make()
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError) as error:
            memo[key] = error
    if isinstance(memo[key], Exception):
        raise memo[key]
    return memo[key]


def run(x: Inputs, w: Weights | None, changes: Steps, memo: Memo | None = None) -> Trace:
    """Attention with some steps changed; w None for a function of q, k and v.

    A step "attend" (q, k, v, mask, bias, scale) -> heads' output replaces all from `group` to `mix` but for `scale`.
    What `see` gives is a mask of the candidate's own, beside the caller's.

    Args:
        x, w, changes: inputs, weights, changed steps.
        memo: keeps results of earlier calls with the same x and w: pairs of faults share many steps.

    Raises:
        RuntimeError, IndexError, ValueError: the changed steps do not fit these sizes.
    """
    step = {**DEFAULT, **changes}
    front = tuple(id(changes.get(name)) for name in FRONT)
    middle = (front, tuple(id(changes.get(name)) for name in MIDDLE))
    projected, q, k, v = _remembered(memo, front, lambda: _front(x, w, step))
    scores, hidden, weights, heads = _remembered(memo, middle, lambda: _middle(x, q, k, v, step))
    if w is None:
        out = step["finish"](heads, w, x) if "finish" in changes else heads
        return Trace(None, q, k, v, scores, hidden, weights, heads, None, out)
    merged = step["merge"](heads)
    out = step["finish"](merged, w, x)
    return Trace(projected, q, k, v, scores, hidden, weights, heads, merged, out)


def _front(x: Inputs, w: Weights | None, step: Steps) -> tuple[Any, Array, Array, Array]:
    if w is None:
        return None, *step["use"](x.query, x.key, x.value)
    projected = step["project"](x, w)
    q = step["split_q"](projected[0], w.H)
    k = step["split_k"](projected[1], w.Hkv)
    v = step["split_v"](projected[2], w.Hkv)
    return projected, *step["use"](q, k, v)


def _middle(x: Inputs, q: Array, k: Array, v: Array, step: Steps) -> tuple[Any, Any, Any, Array]:
    own, scale = step["see"](q.shape[-2], k.shape[-2]), step["scale"](q, k)
    if "attend" in step:
        mask = own if x.mask is None else x.mask if own is None else x.mask & own
        return None, None, None, step["attend"](q, k, v, mask, x.bias, scale)
    k, v = (step["group"](y, q.shape[1]) for y in (k, v))
    scores = step["add"](step["score"](q, k), scale, x.bias)
    hidden = hide(step["hide"](scores, x.mask), own)
    weights = step["after"](step["normalize"](hidden), x.mask)
    return scores, hidden, weights, step["mix"](weights, v, x.mask)


def causal(T: int, S: int) -> Mask:
    """Key s is seen from query t if s <= t + S - T."""
    return masks.causal(T, S, alignment="lower_right")
