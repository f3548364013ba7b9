"""The two exercises of notebook 11 in steps, and their cases: a sliding window, and linear attention with a state."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mha_course.checks.parting import Step
from mha_course.checks.task import Case, by_steps, draw

Array = Tensor  # unchecked: a search for two faults calls the steps a thousand times
Window = Callable[[Array, Array, Array, int], Array]
Linear = Callable[[Array, Array, Array], Array]
Run = Callable[[Array], Array]
Reach = Callable[[int, int], Array]
Three = tuple[Array, Array, Array]


def window_case(seed: int, sizes: tuple[int, int, int], note: str = "") -> Case:
    """Queries, keys and values drawn for S, D and window."""
    S, D, window = sizes
    return Case({"S": S, "D": D, "window": window}, (*draw(seed, *3 * [(S, D)]), window), note)


def window_cases() -> tuple[Case, ...]:
    """Windows that divide S and that do not, of one key, of all, and of more than there are."""
    return (
        window_case(0, (7, 5, 3)),
        window_case(1, (11, 3, 2)),
        window_case(2, (13, 7, 5)),
        window_case(3, (12, 5, 4), "S is a multiple of the window"),
        window_case(4, (5, 3, 1), "each token sees itself alone"),
        window_case(5, (5, 2, 7), "the window is larger than S"),
        window_case(6, (7, 1, 3)),
        window_case(7, (1, 3, 2)),
    )


def past(S: int, window: int) -> Array:
    """The place itself and the window - 1 before it, (S, window); a place below 0 is none."""
    return torch.arange(S)[:, None] - torch.arange(window)


def at(x: Array, places: Array) -> Array:
    """The rows of x at places (S, n), any row where there is none: (S, n, D)."""
    return x[places.clamp(0, len(x) - 1)]


@by_steps
def windowed(
    reach: Callable[[int, int], Array] = past,
    valid: Callable[[Array, int], Array] = lambda places, S: (places >= 0) & (places < S),
    keys: Callable[[Array, Array], Array] = at,
    values: Callable[[Array, Array, Array], Array] = lambda k, v, places: at(v, places),
    scale: Callable[[Array, Array, Array, Array], Array | float] = lambda q, k, v, there: 1 / math.sqrt(q.shape[-1]),
    hide: Callable[[Array, Array], Array] = lambda scores, there: scores.masked_fill(~there, -math.inf),
    weigh: Callable[[Array], Array] = lambda scores: scores.softmax(-1),
    late: Callable[[Array, Array], Array] = lambda weights, there: weights,
    finish: Callable[[Array, int], Array] = lambda out, window: out,
) -> Window:
    """Attention in a sliding window, with some steps changed.

    Args:
        reach: from S and window to the places (S, n) that each token sees.
        valid: from these and S to those that take part.
        keys: from k and the places to the keys (S, n, D).
        values: from k, v and the places to the values (S, n, D).
        scale: the factor on the scores, from q, k, v and what takes part.
        hide: from the scores (S, n) and what takes part to scores.
        weigh: from these to weights.
        late: from weights and what takes part to weights.
        finish: from the output (S, D) and the window to the result.
    """

    def fn(q: Array, k: Array, v: Array, window: int) -> Array:
        places = reach(len(q), window)
        there = valid(places, len(q))
        scores = (keys(k, places) @ q[..., None])[..., 0] * scale(q, k, v, there)  # (S, n)
        weights = late(weigh(hide(scores, there)), there)
        return finish((weights[:, None] @ values(k, v, places))[:, 0], window)

    return fn


def window_numbers(q: Array, k: Array, v: Array, window: int) -> tuple[Step, ...]:
    """The numbers of each step for the last token, and the output, for `parting`."""
    products = k[-window:] @ q[-1]
    scores = products / math.sqrt(q.shape[1])
    return (
        Step("products of the last token", products, factor=True),
        Step("scores of the last token", scores),
        Step("weights of the last token", scores.softmax(-1)),
        Step("output", windowed()(q, k, v, window)),
    )


def where(sees: Callable[[Array, Array, int], Array]) -> Reach:
    """Places (S, S) by a mask: -1, which is none, where token t does not see key s."""

    def reach(S: int, window: int) -> Array:
        t, s = torch.arange(S)[:, None], torch.arange(S)
        return torch.where(sees(t, s, window), s, -1)

    return reach


def slice_from_below_0(t: Array, s: Array, window: int) -> Array:
    """What k[t - window + 1 : t + 1] is where the start is negative: Python counts it from the end."""
    start = t - window + 1
    return (s >= torch.where(start < 0, (start + len(t)).clamp(min=0), start)) & (s <= t)


def zeros_outside(x: Array, places: Array) -> Array:
    """Rows of 0 where there is no place."""
    return at(x, places).masked_fill((places < 0)[..., None], 0)


def rows_alone(first: Callable[[int, int], int], last: Callable[[int, int], int]) -> Callable[[Array, int], Array]:
    """Leave the rows from first to last alone, 0 in all others."""

    def finish(out: Array, window: int) -> Array:
        kept = torch.arange(len(out))[:, None]
        return torch.where((kept >= first(len(out), window)) & (kept < last(len(out), window)), out, 0)

    return finish


def linear_case(seed: int, sizes: tuple[int, int, int], note: str = "") -> Case:
    """Queries and keys with features above 1, so that a small number added to a sum of products changes nothing."""
    S, M, D = sizes
    q, k, v = draw(seed, (S, M), (S, M), (S, D))
    return Case({"S": S, "M": M, "D": D}, (1 + q.exp(), 1 + k.exp(), v), note)


def linear_cases() -> tuple[Case, ...]:
    """More features than there are in a value, fewer, and as many."""
    return (
        linear_case(0, (7, 3, 5)),
        linear_case(1, (5, 7, 2)),
        linear_case(2, (13, 2, 3)),
        linear_case(3, (5, 3, 3), "as many features as in a value"),
        linear_case(4, (7, 1, 5)),
        linear_case(5, (5, 3, 1)),
        linear_case(6, (1, 5, 2)),
    )


def so_far(x: Array) -> Array:
    """The sum over all tokens up to each one, its own included."""
    return x.cumsum(0)


def outer(k: Array, v: Array) -> Array:
    """The outer product of the key and the value of each token, (S, M, D)."""
    return k[:, :, None] * v[:, None]


@by_steps
def linear(
    use: Callable[[Array, Array, Array], Three] = lambda q, k, v: (q, k, v),
    product: Callable[[Array, Array], Array] = outer,
    state: Callable[[Array], Array] = so_far,
    norm: Callable[[Array], Array] = so_far,
    of_norm: Callable[[Array, Array], Array] = lambda q, norm: (q * norm).sum(-1, keepdim=True),
    divide: Callable[[Array, Array], Array] = lambda sums, den: sums / den,
    finish: Callable[[Array], Array] = lambda out: out,
) -> Linear:
    """Causal linear attention, with some steps changed.

    Args:
        use: from q, k and v to those that are used.
        product: from keys and values to what each token adds to the state.
        state: from that to the state that each token reads, (S, M, D).
        norm: from the keys to the sum that each token reads, (S, M).
        of_norm: from the queries and that to the denominator (S, 1).
        divide: from the sums (S, D) and the denominator to the output.
        finish: from the output to the result.
    """

    def fn(q: Array, k: Array, v: Array) -> Array:
        q, k, v = use(q, k, v)
        sums = (q[:, None] @ state(product(k, v)))[:, 0]
        return finish(divide(sums, of_norm(q, norm(k))))

    return fn


def linear_numbers(q: Array, k: Array, v: Array) -> tuple[Step, ...]:
    """The numbers of each step after the last token, and the output, for `parting`."""
    return (
        Step("state after the last token", k.T @ v),
        Step("sum of the keys after the last token", k.sum(0)),
        Step("output", linear()(q, k, v)),
    )


def of_all(x: Array) -> Array:
    """The sum over all tokens, whichever one reads it."""
    return x.sum(0, keepdim=True).expand_as(x)


def before(x: Array) -> Array:
    """Without the own token."""
    return x.cumsum(0) - x


def alone(x: Array) -> Array:
    """Without any sum: what there was before is overwritten."""
    return x


def from_here(x: Array) -> Array:
    """The sum over each token and all later ones."""
    return x.flip(0).cumsum(0).flip(0)


def running_mean(x: Array) -> Array:
    """The mean over all tokens up to each one."""
    return x.cumsum(0) / count(x).view(-1, *[1] * (x.ndim - 1))


def without_first(x: Array) -> Array:
    """The sum over all tokens up to each one but the first."""
    return x.cumsum(0) - x[:1]


def fading(rate: float) -> Run:
    """What there is so far gets a factor at each step."""

    def run(x: Array) -> Array:
        place = torch.arange(len(x), dtype=x.dtype)
        weights = (rate ** (place[:, None] - place)).tril()
        return (weights @ x.flatten(1)).view_as(x)

    return run


def count(x: Array) -> Array:
    """How many tokens there are up to each one, (S, 1)."""
    return torch.arange(1, len(x) + 1, dtype=x.dtype)[:, None]


def zero_for_nan(out: Array) -> Array:
    """The rows of 0 / 0 as 0."""
    return out.nan_to_num(0.0)


def divided_on(normal: bool) -> Callable[[Array, Array, Array], Array]:
    """The state, or the sum of keys too, is divided at each step before it goes on."""

    def fn(q: Array, k: Array, v: Array) -> Array:
        state, norm, out = k.new_zeros(k.shape[1], v.shape[1]), k.new_zeros(k.shape[1]), torch.empty_like(v)
        for t in range(len(q)):
            state, norm = state + torch.outer(k[t], v[t]), norm + k[t]
            den = q[t] @ norm
            state = state / den
            norm = norm / den if normal else norm
            out[t] = q[t] @ state
        return out

    return fn


def softmax_instead(scale: Callable[[Array], float]) -> Callable[[Array, Array, Array], Array]:
    """Causal attention with a softmax, its scores scaled."""

    def fn(q: Array, k: Array, v: Array) -> Array:
        scores = q @ k.T * scale(q)
        return scores.masked_fill(scores.new_ones(scores.shape).triu(1) > 0, -torch.inf).softmax(-1) @ v

    return fn
