"""Wrong solutions of the exercises of notebook 11: linear attention with a running state."""

import torch

from tests.checks.bank_exercises import CHANGED, wrong

linear = "linear_attention"

DIVISOR = r"(not|no|never|missing).*(normal|divid)|(normal|divi)\w*.*missing"
NORM_ALL = r"(normal|sum|divi|denominator).*(all|every|not causal|future|later|whole)"
FUTURE = r"causal|future|later|all (keys|tokens)|whole|ahead"
OWN = r"own|itself|late|after.*read|before.*(add|update)|current"


def empty(k, v):
    return torch.zeros(k.shape[1], v.shape[1], dtype=k.dtype), torch.zeros(k.shape[1], dtype=k.dtype)


@wrong(linear, "no normalisation", DIVISOR)
def not_divided(q, k, v):
    state, _ = empty(k, v)
    out = torch.empty_like(v)
    for t in range(len(q)):
        state = state + torch.outer(k[t], v[t])
        out[t] = q[t] @ state
    return out


@wrong(linear, "the normaliser sums all keys, later ones too", NORM_ALL)
def normaliser_of_all(q, k, v):
    state, total = empty(k, v)[0], k.sum(0)
    out = torch.empty_like(v)
    for t in range(len(q)):
        state += torch.outer(k[t], v[t])
        out[t] = q[t] @ state / (q[t] @ total)
    return out


@wrong(linear, "not causal: the state of all keys answers every query", FUTURE)
def not_causal(q, k, v):
    return (q @ (k.T @ v)) / (q @ k.sum(0))[:, None]


@wrong(linear, "the state holds all keys, the normaliser is causal", FUTURE)
def state_of_all(q, k, v):
    norm = k.cumsum(0)
    return (q @ (k.T @ v)) / (q * norm).sum(-1, keepdim=True)


@wrong(linear, "the state is read before the own token is added", OWN)
def read_first(q, k, v):
    state, norm = empty(k, v)
    out = torch.zeros_like(v)
    for t in range(len(q)):
        if t > 0:
            out[t] = q[t] @ state / (q[t] @ norm)
        state = state + torch.outer(k[t], v[t])
        norm = norm + k[t]
    return out


@wrong(linear, "the state is read before the own token is added; row 0 is 0 / 0", OWN)
def read_first_nan(q, k, v):
    state, norm = empty(k, v)
    rows = []
    for a, b, c in zip(q, k, v, strict=True):
        rows.append((a @ state) / (a @ norm))
        state, norm = state + b[:, None] * c, norm + b
    return torch.stack(rows)


@wrong(linear, "the state is read before, the normaliser after the own token is added", OWN)
def state_late(q, k, v):
    state, norm = empty(k, v)
    out = torch.empty_like(v)
    for t in range(len(q)):
        norm = norm + k[t]
        out[t] = q[t] @ state / (q[t] @ norm)
        state = state + torch.outer(k[t], v[t])
    return out


@wrong(linear, "the outer product the other way round: v k^T", r"transpos|outer|other way|turned")
def transposed(q, k, v):
    state, norm = torch.zeros(v.shape[1], k.shape[1], dtype=k.dtype), torch.zeros(k.shape[1], dtype=k.dtype)
    out = torch.empty_like(v)
    for t in range(len(q)):
        state = state + torch.outer(v[t], k[t])
        norm = norm + k[t]
        out[t] = q[t] @ state / (q[t] @ norm)
    return out


@wrong(linear, "the state fades: it is multiplied by 0.9 at each step", r"decay|fade|factor|shrink|forget")
def decays(q, k, v):
    state, norm = empty(k, v)
    out = torch.empty_like(v)
    for t in range(len(q)):
        state = 0.9 * state + torch.outer(k[t], v[t])
        norm = 0.9 * norm + k[t]
        out[t] = q[t] @ state / (q[t] @ norm)
    return out


@wrong(linear, "divided by the number of tokens so far", r"number of|position|how many|count|t \+ 1|mean")
def by_position(q, k, v):
    state = torch.cumsum(torch.einsum("sm,sd->smd", k, v), 0)
    count = torch.arange(1, len(q) + 1, dtype=q.dtype)[:, None]
    return torch.einsum("sm,smd->sd", q, state) / count


@wrong(linear, "the sum of keys is not multiplied by the query", r"query|\bq\b|sum of the (keys|norm)")
def norm_without_query(q, k, v):
    state, norm = empty(k, v)
    out = torch.empty_like(v)
    for t in range(len(q)):
        state += torch.outer(k[t], v[t])
        norm += k[t]
        out[t] = q[t] @ state / norm.sum()
    return out


@wrong(linear, "the state is overwritten, not added to", r"overwr|replac|own|not added|alone|lost")
def overwritten(q, k, v):
    out = torch.empty_like(v)
    norm = torch.zeros(k.shape[1], dtype=k.dtype)
    for t in range(len(q)):
        state = torch.outer(k[t], v[t])
        norm = norm + k[t]
        out[t] = q[t] @ state / (q[t] @ norm)
    return out


@wrong(linear, "the normaliser is of the own key alone", r"normal.*(own|overwr|alone|current)|own")
def own_norm(q, k, v):
    state = torch.cumsum(k[:, :, None] * v[:, None, :], dim=0)
    num = (q[:, None, :] @ state)[:, 0]
    return num / (q * k).sum(-1, keepdim=True)


@wrong(linear, "a softmax of the products: that is not linear attention", r"softmax|exponential")
def softmax_scores(q, k, v):
    s = q @ k.T / q.shape[1] ** 0.5
    s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf"))
    return s.softmax(-1) @ v


@wrong(linear, "elu + 1 once more", r"feature map|again|twice|mapped|elu")
def mapped_twice(q, k, v):
    q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    state = torch.cumsum(k[:, :, None] * v[:, None, :], dim=0)
    norm = torch.cumsum(k, 0)
    return torch.einsum("sm,smd->sd", q, state) / (q * norm).sum(-1, keepdim=True)


@wrong(
    linear, "queries and keys have changed places", r"(quer|\bq\b).*(key|\bk\b).*(place|swap|chang|exchang)|state.*quer"
)
def swapped(q, k, v):
    state, norm = empty(k, v)
    out = torch.empty_like(v)
    for t in range(len(q)):
        state = state + torch.outer(q[t], v[t])
        norm = norm + q[t]
        out[t] = k[t] @ state / (k[t] @ norm)
    return out


@wrong(linear, "the first token never enters the state", r"first|token 0|start")
def starts_at_one(q, k, v):
    state, norm = empty(k, v)
    out = torch.zeros_like(v)
    for t in range(1, len(q)):
        state += torch.outer(k[t], v[t])
        norm += k[t]
        out[t] = q[t] @ state / (q[t] @ norm)
    return out


@wrong(linear, "the last row is never written", r"last")
def last_row_missing(q, k, v):
    state, norm = empty(k, v)
    out = torch.zeros_like(v)
    for t in range(len(q) - 1):
        state += torch.outer(k[t], v[t])
        norm += k[t]
        out[t] = q[t] @ state / (q[t] @ norm)
    return out


@wrong(linear, "the state is divided before it goes on", r"divid.*(every|each|step|again|state|twice)|state.*divid")
def state_divided(q, k, v):
    state, norm = empty(k, v)
    out = torch.empty_like(v)
    for t in range(len(q)):
        norm = norm + k[t]
        state = (state + torch.outer(k[t], v[t])) / (q[t] @ norm)
        out[t] = q[t] @ state
    return out


@wrong(linear, "the time runs backwards: keys from t on", FUTURE + r"|backward|revers|from t\b|past")
def from_the_end(q, k, v):
    state, norm = empty(k, v)
    out = torch.empty_like(v)
    for t in reversed(range(len(q))):
        state = state + torch.outer(k[t], v[t])
        norm = norm + k[t]
        out[t] = q[t] @ state / (q[t] @ norm)
    return out


@wrong(linear, "all weights are formed, then masked", r"all S x S scores are held at once")
def all_weights(q, k, v):
    weights = (q @ k.T).tril()
    return weights / weights.sum(-1, keepdim=True) @ v


@wrong(linear, "one row of weights after another: S x S of them in the end", r"S x S|grow|all.*(keys|past|again)")
def row_by_row(q, k, v):
    rows = []
    for t in range(len(q)):
        w = k[: t + 1] @ q[t]
        rows.append(w @ v[: t + 1] / w.sum())
    return torch.stack(rows)


@wrong(linear, "the cumulative sum is taken of the keys in place", CHANGED)
def in_place(q, k, v):
    state = torch.cumsum(k[:, :, None] * v[:, None, :], dim=0)
    norm = k.cumsum_(0)
    return torch.einsum("sm,smd->sd", q, state) / (q * norm).sum(-1, keepdim=True)


@wrong(linear, "the weights are averaged with the length S", r"number of|length|\bS\b|tokens")
def by_length(q, k, v):
    state = torch.cumsum(k[:, :, None] * v[:, None, :], dim=0)
    return torch.einsum("sm,smd->sd", q, state) / len(q)
