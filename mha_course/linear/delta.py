"""The delta rule: a state that is corrected towards each new value, so that a key can be overwritten."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mha_course.dot_product import check_number, without_autocast
from mha_course.linear._inputs import (
    at_least_float32,
    check_call,
    check_device,
    check_state,
    check_token,
    key_mask,
    refuse,
)
from mha_course.masks._inputs import check_integer


def attention(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H T D"],
    v: Float[Tensor, "B H T Dv"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    beta: float | Float[Tensor, "..."] = 1.0,
    chunk: int = 64,
) -> Float[Tensor, "B H T Dv"]:
    """Store v_t under k_t in a matrix, after taking out what was stored there; read it with q_t.

    state_t = state_(t-1) + beta_t k_t (v_t - k_t state_(t-1)), out_t = q_t state_t
    with q_t and k_t divided by their length first

    With beta = 1 a key reads exactly the value that it was last written with, as long as later keys
    are orthogonal to it; a plain sum of k v^T keeps old values too. D orthogonal keys fit. Keys in
    random directions disturb each other, and more than in the sum: at D = 16 with 16 different
    values, 8, 16, 32 pairs are recalled with 0.94, 0.79, 0.51 right (sum: 0.99, 0.95, 0.81;
    softmax: 1). It is another attention, not an approximation: a model must be trained with it.

    Tokens of a chunk are solved for together; `step` reads one at a time and gives the same numbers.
    The state is float32 at least. NaN or infinity in a key or a value, hidden or not, reaches every
    output of its chunk, earlier ones too, and all later ones.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, T, D), as many as queries.
        v: values (B, H, T, Dv).
        mask: bool, False = this token writes nothing, the same for all queries: (B, 1, 1, T), (T,)
            and the like.
        score_bias, scale, dropout_p: must be left as they are; there are no scores.
        is_causal: must be True: token t reads what tokens 0 to t wrote.
        beta: how much of the old value is replaced, in [0, 1]: a number, or what broadcasts to (B, H,
            T), learned as a rule. The values of a tensor are not checked.
        chunk: number of tokens solved for at a time, at least 1.

    Returns:
        out (B, H, T, Dv) in the type of q.

    Raises:
        TypeError: q, k, v are not floating point tensors of one type; mask is not bool; is_causal is
            not a bool; beta is neither a number nor a floating point tensor; chunk is not an integer.
        ValueError: is_causal is False; other than four axes; sizes that do not fit each other; T !=
            S; a mask that does not broadcast or differs between queries; score_bias, scale or
            dropout_p given; beta outside [0, 1], not broadcasting or on another device; chunk below 1.

    Source: Schlag et al. 2021, section 4.2, where keys sum to 1; keys of length 1, which make beta =
    1 overwrite exactly, and chunks: Yang et al. 2024 (DeltaNet), section 3.
    """
    check_call(q, k, v, is_causal)
    refuse("the delta rule", score_bias=score_bias, scale=scale, dropout_p=dropout_p)
    if not is_causal:
        raise ValueError("is_causal must be True: the delta rule reads tokens in order, got False")
    chunk = check_integer("chunk", chunk, least=1)
    rate = _rate(beta, q.shape[:3], q)
    seen = key_mask(mask, q, k)
    if seen is not None:
        rate = torch.where(seen[..., 0], rate, 0.0)
    dtype, T = q.dtype, q.shape[2]
    q, k, v = at_least_float32(q, k, v)
    q, k = _unit(q), _unit(k)
    rate = rate.to(v.dtype).expand(q.shape[:3])[..., None]  # (B, H, T, 1)
    state = v.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])  # (B, H, D, Dv)
    parts = [v[:, :, :0]]
    with without_autocast(q.device):
        for start in range(0, T, chunk):
            few_q, few_k, few_v, few = (x[:, :, start : start + chunk] for x in (q, k, v, rate))
            # u_t = beta_t (v_t - k_t state_(t-1)), where state_(t-1) holds the u of this chunk up to t - 1
            earlier = (few * (few_k @ few_k.mT)).tril(-1)
            u = torch.linalg.solve_triangular(earlier, few * (few_v - few_k @ state), upper=False, unitriangular=True)
            parts.append(few_q @ state + (few_q @ few_k.mT).tril() @ u)
            state = state + few_k.mT @ u
    return torch.cat(parts, dim=2).to(dtype)


def step(
    state: Float[Tensor, "B H D Dv"] | None,
    q: Float[Tensor, "B H D"],
    k: Float[Tensor, "B H D"],
    v: Float[Tensor, "B H Dv"],
    *,
    beta: float | Float[Tensor, "..."] = 1.0,
) -> tuple[Float[Tensor, "B H D Dv"], Float[Tensor, "B H Dv"]]:
    """Read one token: correct the state, then answer the query from it. The formula is that of `attention`.

    Args:
        state: what the last call returned, None at the first token. It is not changed.
        q, k: (B, H, D), of one token.
        v: (B, H, Dv).
        beta: as in `attention`, a tensor broadcasts to (B, H).

    Returns:
        The new state, in float32 at least, and out (B, H, Dv) in the type of q.

    Raises:
        TypeError, ValueError: as `attention` for q, k, v and beta; TypeError for a state that is no tensor or
            of another type, ValueError for one of other sizes or on another device.
    """
    check_token(q, k, v)
    rate, dtype = _rate(beta, q.shape[:2], q), q.dtype
    q, k, v = at_least_float32(q, k, v)
    q, k = _unit(q)[..., None, :], _unit(k)[..., None, :]  # (B, H, 1, D)
    empty = v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    if state is None:
        state = empty
    check_state("state", state, "(B, H, D, Dv)", empty)
    with without_autocast(q.device):
        u = rate.to(v.dtype)[..., None, None] * (v[..., None, :] - k @ state)
        state = state + k.mT @ u
        return state, (q @ state)[..., 0, :].to(dtype)


def _unit(x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    """Divide by the length, first by the largest entry: the square of that may overflow or vanish."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    return F.normalize(x / largest.where(largest > 0, 1.0), dim=-1)


def _rate(beta: float | Tensor, shape: tuple[int, ...], q: Tensor) -> Tensor:
    """Beta as a tensor; raise unless it may be one for these sizes."""
    if not isinstance(beta, Tensor):
        if not 0 <= check_number("beta", beta) <= 1:
            raise ValueError(f"beta must lie in [0, 1], got {beta}")
        return torch.tensor(float(beta), dtype=torch.float64, device=q.device)
    if not beta.is_floating_point():
        raise TypeError(f"beta must be floating point, got {beta.dtype}")
    check_device("beta", beta, q)
    sizes = zip(reversed(beta.shape), reversed(shape), strict=False)
    if beta.ndim > len(shape) or not all(size in (1, want) for size, want in sizes):
        letters = "(B, H, T)"[: 3 * len(shape) - 1] + ")"
        raise ValueError(f"beta must broadcast to {letters} = {tuple(shape)}, got {tuple(beta.shape)}")
    return beta
