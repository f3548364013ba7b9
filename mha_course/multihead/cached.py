"""Attention with a cache: the new tokens join those before them, and masks are aligned to all."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mha_course.cache import KVCache, RingCache


def append(
    cache: KVCache,
    owner: object,
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B Hkv T D"],
    v: Float[Tensor, "B Hkv T D"],
    mask: Bool[Tensor, "..."] | None,
    score_bias: Float[Tensor, "..."] | None,
    is_causal: bool,
) -> tuple[
    Float[Tensor, "B Hkv S D"],
    Float[Tensor, "B Hkv S D"],
    Bool[Tensor, "..."] | None,
    Float[Tensor, "..."] | None,
    bool,
]:
    """Add k and v of T new tokens to the cache; return all that is to be attended to, and how.

    mask and score_bias are for all tokens so far, length + T. What is returned is for the S keys that are held, with
    causality in the mask, or in is_causal where the cache was empty and T = S.
    """
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, score_bias)):
        raise RuntimeError("a cache carries no gradients: call inside torch.no_grad() or torch.inference_mode()")
    T = k.shape[2]
    seen = cache.mask(T) if is_causal else None
    if isinstance(cache, RingCache):
        mask, score_bias = (_columns(x, cache.positions(T)) for x in (mask, score_bias))
    if seen is not None or cache.length:  # where the cache held some, a single query sees all
        is_causal = False
    k, v = cache.update(k, v, owner=owner)
    if seen is not None:
        mask = seen if mask is None else mask & seen
    return k, v, mask, score_bias, is_causal


def _columns(x: Tensor | None, positions: Tensor) -> Tensor | None:
    """What a mask or bias says of the keys at these positions."""
    return x if x is None or x.ndim == 0 or x.shape[-1] == 1 else x[..., positions]
