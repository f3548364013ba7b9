"""Faults of the mask, and of hiding the future."""

import math
from typing import Any

import torch

from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.steps import Array, Mask, Step, hide

_MASK_HINTS = (
    "Switch one entry of the mask: which weights change, and in which sample and head?",
    "Where a key is hidden the score becomes -inf, before the softmax. masked_fill returns a new tensor.",
)
_HIDDEN_HINTS = (
    "Look at the weight of a hidden key: it should be 0.",
    "exp(0) is 1, so that a score of 0 hides nothing: minus infinity does.",
)
_SIGN_HINTS = ("Look at the weight of a hidden key: it should be 0.", "Mind the sign of what is filled in or added.")
_LATE_HINTS = (
    "Sum the weights of each query: they should give 1.",
    "Hide the scores, before the softmax.",
)
_SAMPLE_HINTS = (
    "Change the mask of sample 1: in which samples does the result change?",
    "A mask (B, 1, T, S) broadcasts over the heads by itself. Folded, repeat each sample's mask H times.",
)
_AXES_HINTS = (
    "Line the shape of the mask up with (B, H, T, S) from the right: which axis meets which?",
    "Give the mask an axis of size 1 for what it does not depend on: mask[:, None] for the heads.",
)
_ROW_HINTS = ("Hide one key from one query: is it that weight which becomes 0?", "A row of the mask is a query.")
_CALLER_HINTS = (
    "Try a mask that hides nothing: is anything hidden?",
    "Which keys are hidden is the caller's choice: use the argument, and nothing else.",
)


def _filled(fill: float) -> Step:
    return lambda scores, mask: hide(scores, mask, fill)


def _added(number: float) -> Step:
    """A number added to the scores of hidden keys."""
    return lambda scores, mask: scores if mask is None else scores + (~mask).to(scores.dtype) * number


def _given(change: Any) -> Step:
    """Hide by another mask, made from (mask, scores), where there is a mask."""
    return lambda scores, mask: scores if mask is None else hide(scores, change(mask, scores))


def _repeated(mask: Mask, scores: Array) -> Mask:
    """A mask for each head, folded as M0 M1 M0 M1 and not as M0 M0 M1 M1."""
    B, H, T, S = scores.shape
    return mask.expand(B, 1, T, S).repeat(H, 1, 1, 1).view(scores.shape)


def _masked_values(weights: Array, v: Array, mask: Mask | None) -> Array:
    seen = torch.ones_like(v[..., :1], dtype=torch.bool) if mask is None else mask[..., -1:, :].mT
    return weights @ (v * seen)


def _past(mask: Mask, scores: Array) -> Mask:
    T, S = scores.shape[-2:]
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


def _mask(name: str, said: str, step: Step, hints: tuple[str, str] = _MASK_HINTS) -> Fault:
    return Fault(name, said, {"hide": step}, hints)


def weak_fills(fill: float) -> tuple[Fault, Fault]:
    """A fill that hides too little, put in the place of hidden scores, or added to them."""
    filled = f"hidden scores become {fill:g}, which hides them too little"
    added = f"{-fill:g} is taken off hidden scores, which hides them too little"
    return (
        _mask("mask_fill_weak", filled, _filled(fill), _HIDDEN_HINTS),
        _mask("mask_fill_weak", added, _added(fill), _HIDDEN_HINTS),
    )


_IGNORED = Fault("mask_ignored", "the mask makes no difference", {"hide": lambda scores, mask: scores}, _MASK_HINTS)
_AFTER = "the mask is applied after the softmax: the weights of a query no longer sum to 1"
_ZERO = "hidden scores become 0, which hides nothing"
_WEAK = (-1.0, -2.0, -3.0, -5.0, -9.0, -10.0, -15.0, -20.0, -30.0)
MASK = (
    _IGNORED,
    Fault(
        "mask_additive_sign",
        "the additive mask is taken off the scores, not added: hidden keys get plus infinity",
        {
            "hide": _filled(math.inf),
            "add": lambda products, scale, bias: products * scale if bias is None else products * scale - bias,
        },
        _SIGN_HINTS,
        convention="additive",
    ),
    _mask(
        "mask_inverted",
        "the mask is inverted: queries attend to what is hidden",
        _given(lambda mask, scores: ~mask),
        (
            "Look at the weight of a key that the mask shows: it should not be 0.",
            "masked_fill fills where its own mask is True, and scaled_dot_product_attention attends where it is.",
        ),
    ),
    Fault(
        "mask_after_softmax",
        _AFTER,
        {"hide": lambda s, m: s, "after": lambda w, m: w if m is None else w * m},
        _LATE_HINTS,
    ),
    Fault(
        "mask_after_softmax",
        "weights of hidden keys become -inf or NaN after the softmax: the scores were to be hidden before it",
        {"hide": lambda s, m: s, "after": lambda w, m: hide(w, m)},
        _LATE_HINTS,
    ),
    Fault(
        "mask_after_softmax",
        "a large negative number is put into the weights, after the softmax, where it hides nothing",
        {"hide": lambda s, m: s, "after": lambda w, m: hide(w, m, -1e9)},
        _LATE_HINTS,
    ),
    Fault(
        "mask_and_softmax_inverted",
        "the mask is applied after the softmax, and inverted: the weights of hidden keys are kept",
        {"hide": lambda s, m: s, "after": lambda w, m: w if m is None else w * ~m},
        _LATE_HINTS,
    ),
    Fault(
        "mask_on_values",
        "the values of hidden keys become 0, and the keys stay visible: the weights that are left do not sum to 1",
        {"hide": lambda s, m: s, "mix": _masked_values},
        _LATE_HINTS,
    ),
    _mask("mask_fill_zero", _ZERO, _filled(0.0), _HIDDEN_HINTS),
    _mask(
        "bool_mask_added",
        "the mask is added to the scores, where True counts as 1: nothing is hidden",
        lambda scores, mask: scores if mask is None else scores + mask.to(scores.dtype),
        ("Look at the weight of a hidden key: it should be 0.", _MASK_HINTS[1]),
    ),
    _mask(
        "bool_mask_added",
        "the mask is added to the scores, where True, hidden, counts as 1: nothing is hidden",
        _added(1.0),
        ("Look at the weight of a hidden key: it should be 0.", _MASK_HINTS[1]),
    ),
    *(fault for fill in _WEAK for fault in weak_fills(fill)),
    *(
        _mask(
            "mask_fill_positive",
            "hidden scores become large, not minus infinity: the hidden keys take all",
            step,
            _SIGN_HINTS,
        )
        for step in (_filled(1e9), _filled(1e4), _filled(1.0), _added(1e9), _filled(torch.finfo(torch.float64).max))
    ),
    _mask(
        "mask_fill_positive",
        "hidden scores become plus infinity, and the softmax gives NaN",
        _filled(math.inf),
        _SIGN_HINTS,
    ),
    _mask(
        "mask_fill_positive",
        "hidden scores become the smallest positive number, tiny or finfo.tiny, which is about 0",
        _filled(1e-30),
        _SIGN_HINTS,
    ),
    _mask(
        "mask_times_inf",
        "the mask is multiplied by infinity: 0 times infinity is NaN",
        lambda scores, mask: scores if mask is None else scores + ~mask * -math.inf,
        ("Print your scores once the mask is in: where are they NaN?", "Fill in minus infinity without a product."),
    ),
    _mask(
        "padding_on_query_axis",
        "the padding lies along the queries, (B, 1, S, 1): real queries attend to padding",
        _given(lambda mask, scores: mask.mT),
        _AXES_HINTS,
    )._replace(axes="B S"),
    _mask(
        "mask_transposed",
        "the mask is transposed, keys against queries",
        _given(lambda mask, scores: mask.mT),
        _ROW_HINTS,
    ),
    _mask(
        "mask_transposed",
        "the mask is transposed, keys against queries, and a large negative number is added in its rows",
        lambda scores, mask: scores if mask is None else scores + (~mask.mT).to(scores.dtype) * -1e9,
        _ROW_HINTS,
    ),
    _mask(
        "mask_head_order",
        "samples and heads of the mask are confused: it is repeated as M0 M1 M0 M1, the heads lie as M0 M0 M1 M1",
        _given(_repeated),
        _SAMPLE_HINTS,
    ),
    _mask(
        "mask_batch_axis_meets_heads",
        "the batch axis of the mask meets the heads: a mask (B, T, S) broadcasts as (1, B, T, S)",
        _given(lambda mask, scores: mask[:, 0]),
        _AXES_HINTS,
    ),
    _mask(
        "mask_first_sample",
        "every sample uses the mask of the first",
        _given(lambda mask, scores: mask[:1]),
        (_SAMPLE_HINTS[0], "Look for an index 0 or a slice :1 of the mask."),
    ),
    _mask(
        "mask_first_row",
        "every query uses the first row of the mask",
        _given(lambda mask, scores: mask[..., :1, :]),
        _ROW_HINTS,
    ),
    _mask(
        "mask_first_row",
        "every query uses the last row of the mask",
        _given(lambda mask, scores: mask[..., -1:, :]),
        _ROW_HINTS,
    ),
    _mask(
        "mask_first_head_only",
        "the mask acts in the first head alone",
        lambda scores, mask: (
            scores if mask is None else torch.cat([hide(scores[:, :1], mask[:, :1]), scores[:, 1:]], 1)
        ),
        _SAMPLE_HINTS,
    ),
    _mask(
        "mask_last_key_only",
        "the mask acts on the last key alone",
        lambda scores, mask: (
            scores if mask is None else torch.cat([scores[..., :-1], hide(scores[..., -1:], mask[..., -1:])], -1)
        ),
        _ROW_HINTS,
    ),
    _mask(
        "mask_shifted",
        "the mask is shifted by one key",
        _given(lambda mask, scores: mask.roll(1, -1)),
        _ROW_HINTS,
    ),
    _mask(
        "mask_shifted",
        "the mask is shifted by one key, to the left",
        _given(lambda mask, scores: mask.roll(-1, -1)),
        _ROW_HINTS,
    ),
    _mask(
        "causal_in_place_of_mask",
        "a causal mask is used in place of the mask that is given",
        _given(_past),
        _CALLER_HINTS,
    ),
    _mask(
        "causal_beside_mask",
        "a causal mask is used beside the mask that is given",
        _given(lambda mask, scores: mask & _past(mask, scores)),
        _CALLER_HINTS,
    ),
)
