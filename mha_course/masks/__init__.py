"""Masks: bool tensors in which True means "this query may attend to this key".

Masks are plain tensors. Combine them with `&`, `|` and `~`, never with `+` or `*`. Two axes mean
(T, S), never (B, S): what differs between samples has four, (B, 1, 1, S) or (B, 1, T, S). `attention`
refuses a (B, S) mask unless B is T or 1; then nothing tells it from (T, S), but `explain` suspects it.

The values in a tensor (lengths, ids, a mask to convert) are checked one by one where they can be
read: not while torch.compile or torch.export traces, nor on the device "meta".
"""

from mha_course.masks.content import block_diagonal, block_diagonal_from_ids, padding, padding_from_tokens
from mha_course.masks.convert import from_additive, from_blocked, from_integers, to_additive, to_blocked
from mha_course.masks.explanation import Explanation, explain
from mha_course.masks.order import band, causal, prefix, sliding_window
from mha_course.masks.patterns import blocks, dilated, random_links

__all__ = [
    "Explanation",
    "band",
    "block_diagonal",
    "block_diagonal_from_ids",
    "blocks",
    "causal",
    "dilated",
    "explain",
    "from_additive",
    "from_blocked",
    "from_integers",
    "padding",
    "padding_from_tokens",
    "prefix",
    "random_links",
    "sliding_window",
    "to_additive",
    "to_blocked",
]
