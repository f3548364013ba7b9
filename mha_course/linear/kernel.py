"""Linear attention: features instead of a softmax, so that all past keys and values fit in one small state."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mha_course.dot_product import without_autocast
from mha_course.linear._inputs import (
    at_least_float32,
    check_call,
    check_state,
    check_token,
    key_mask,
    refuse,
)
from mha_course.masks._inputs import check_integer


class State(NamedTuple):
    """All that is left of the keys and values read so far, of one size however many they were.

    Attributes:
        kv: (B, H, M, Dv), the sum of phi(k) v^T.
        k_sum: (B, H, M), the sum of phi(k).
    """

    kv: Float[Tensor, "B H M Dv"]
    k_sum: Float[Tensor, "B H M"]


def elu_plus_one(x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    """Make every number positive: x + 1 above 0, e^x below.

    elu(x) + 1, without the 1 that swallows e^x in float32 from x = -17 on.
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def attention(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H S D"],
    v: Float[Tensor, "B H S Dv"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    feature_map: Callable[[Tensor], Tensor] = elu_plus_one,
    chunk: int = 64,
) -> Float[Tensor, "B H T Dv"]:
    """Weigh the values by phi(q) . phi(k) instead of e^(q . k): O(S) time, and a state instead of a cache.

    out = phi(q) (phi(k)^T v) / (phi(q) . sum of phi(k)), causal: sums over s <= t only

    The brackets are the point: phi(k)^T v is (M, Dv), and no (T, S) weights exist. This is
    another attention, not an approximation of softmax: a model must be trained with it. Put in the
    place of softmax, for normal q, k, v of variance 1, S = 256, D = 64, its output is 0.77 of the
    exact output's norm away from it; the plain average of all values is 0.80 away.

    Causally, chunks of queries see earlier chunks through the state and their own directly; `step`
    reads one token at a time and gives the same numbers. Sums are taken in float32 at least.
    A query that may attend to nothing, or whose weights are all too small for that type, gets 0. NaN
    or infinity in a value, hidden or not, reaches every output that it is summed into, with
    weight 0 too: of its chunk and of all later ones.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, Dv).
        mask: bool, True = may attend, the same for all queries: (B, 1, 1, S), (S,) and the like.
        score_bias, scale, dropout_p: must be left as they are; there are no scores.
        is_causal: query t sees keys 0 to t only. T = S.
        feature_map: phi, (..., D) to (..., M), positive; M need not equal D.
        chunk: number of tokens that see each other directly if is_causal, at least 1.

    Returns:
        out (B, H, T, Dv) in the type of q.

    Raises:
        TypeError: q, k, v are not floating point tensors of one type; mask is not bool; is_causal
            is not a bool; chunk is not an integer; feature_map cannot be called, or returns no tensor
            of the type that it was given.
        ValueError: other than four axes; sizes that do not fit each other; a mask that does not
            broadcast or differs between queries; score_bias, scale or dropout_p given; is_causal with
            T != S; chunk below 1; feature_map changes other than the last size.

    Source: Katharopoulos et al. 2020, equations 4 to 7 and 9 to 12; their C is our M. Chunks:
    Hua et al. 2022, section 3.2.
    """
    check_call(q, k, v, is_causal)
    refuse("linear attention", score_bias=score_bias, scale=scale, dropout_p=dropout_p)
    seen = key_mask(mask, q, k)
    wide_q, wide_k, wide_v = at_least_float32(q, k, v)
    with without_autocast(q.device):
        phi_q, phi_k = _features(feature_map, wide_q), _features(feature_map, wide_k)
        if seen is not None:
            phi_k = phi_k.masked_fill(~seen, 0.0)
        return from_features(phi_q, phi_k, wide_v, is_causal=is_causal, chunk=chunk).to(q.dtype)


def from_features(
    phi_q: Float[Tensor, "B H T M"],
    phi_k: Float[Tensor, "B H S M"],
    v: Float[Tensor, "B H S Dv"],
    *,
    is_causal: bool,
    chunk: int = 64,
) -> Float[Tensor, "B H T Dv"]:
    """Do what `attention` does after its feature map; the arguments are its."""
    chunk = check_integer("chunk", chunk, least=1)
    T = phi_q.shape[2]
    with_one = F.pad(v, (0, 1), value=1.0)  # (B, H, S, Dv + 1): the last column sums the weights
    if not is_causal:
        sums = phi_q @ (phi_k.mT @ with_one)
    else:
        chunk = max(1, min(chunk, T))
        after = -T % chunk if T else 1
        few_q, few_k, few_v = (
            F.pad(x, (0, 0, 0, after)).unflatten(2, (-1, chunk)) for x in (phi_q, phi_k, with_one)
        )  # (B, H, chunks, chunk, M or Dv + 1)
        states = (few_k.mT @ few_v).cumsum(dim=2)  # after each chunk
        before = F.pad(states, (0, 0, 0, 0, 1, 0))[:, :, :-1]
        own = (few_q @ few_k.mT).tril() @ few_v
        sums = (few_q @ before + own).flatten(2, 3)[:, :, :T]
    return _divide(sums[..., :-1], sums[..., -1:])


def step(
    state: State | None,
    q: Float[Tensor, "B H D"],
    k: Float[Tensor, "B H D"],
    v: Float[Tensor, "B H Dv"],
    *,
    feature_map: Callable[[Tensor], Tensor] = elu_plus_one,
) -> tuple[State, Float[Tensor, "B H Dv"]]:
    """Read one token: add its key and value to the state, then answer its query from the state.

    kv = kv + phi(k) v^T, k_sum = k_sum + phi(k), out = phi(q) kv / (phi(q) . k_sum)

    Args:
        state: what the last call returned, None at the first token. It is not changed.
        q, k: (B, H, D), of one token.
        v: (B, H, Dv).
        feature_map: as in `attention`.

    Returns:
        The new state, in float32 at least, and out (B, H, Dv) in the type of q.

    Raises:
        TypeError, ValueError: as `attention` for q, k, v and feature_map; TypeError for a state that is no
            State or of another type, ValueError for one of other sizes or on another device.

    Source: Katharopoulos et al. 2020, equations 16 to 20.
    """
    check_token(q, k, v)
    wide_q, wide_k, wide_v = at_least_float32(q, k, v)
    with without_autocast(q.device):
        phi_q, phi_k = _features(feature_map, wide_q), _features(feature_map, wide_k)
        new = State(phi_k[..., :, None] * wide_v[..., None, :], phi_k)
        if state is not None:
            _check_state(state, new)
            new = State(state.kv + new.kv, state.k_sum + new.k_sum)
        out = _divide((phi_q[..., None, :] @ new.kv)[..., 0, :], (phi_q * new.k_sum).sum(-1, keepdim=True))
    return new, out.to(q.dtype)


def _features(feature_map: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Phi of x; raise unless it may be that."""
    if not callable(feature_map):
        raise TypeError(f"feature_map must be a function, got {type(feature_map).__name__}")
    phi = feature_map(x)
    if not isinstance(phi, Tensor) or phi.dtype != x.dtype:
        got = phi.dtype if isinstance(phi, Tensor) else type(phi).__name__
        raise TypeError(f"feature_map must return a tensor of the type given, {x.dtype}, got {got}")
    if phi.ndim != x.ndim or phi.shape[:-1] != x.shape[:-1]:
        raise ValueError(f"feature_map must return (..., M) for {tuple(x.shape)}, got {tuple(phi.shape)}")
    return phi


def _check_state(state: State, new: State) -> None:
    """Raise unless state and what this token adds to it fit."""
    if not isinstance(state, State):
        raise TypeError(f"state must be a State or None, got {type(state).__name__}")
    check_state("state.kv", state.kv, "(B, H, M, Dv)", new.kv)
    check_state("state.k_sum", state.k_sum, "(B, H, M)", new.k_sum)


def _divide(sums: Tensor, total: Tensor) -> Tensor:
    """Sums by their total, 0 where nothing was summed."""
    nothing = total == 0
    return (sums / total.masked_fill(nothing, 1.0)).masked_fill(nothing, 0.0)
