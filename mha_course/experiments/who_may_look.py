"""Experiments of notebook 04: rows that may attend to nothing, and three masked layers with a fault each."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mha_course import masks
from mha_course.dot_product import attention

B, H, T, D = 2, 2, 5, 8  # of `empty_rows`: two samples, the second of padding alone
EMBED_DIM = H * D


class EmptyRow(NamedTuple):
    """What a call makes of a sample whose keys are all hidden.

    Attributes:
        call: what was called, and how.
        out: "0", "NaN", "mean of v" or "bias of out_proj".
        gradient: "0", "finite" or "NaN" of the input of that sample; "" without gradients.
        others: "finite" or "NaN", the gradient of what both samples share, the weights; "" as before.
    """

    call: str
    out: str
    gradient: str
    others: str


def empty_rows() -> tuple[EmptyRow, ...]:
    """Call attention in every way PyTorch has on a batch whose second sample is padding alone.

    Returns:
        One EmptyRow for each call, found by calling it here and now.
    """
    mask = masks.padding(torch.tensor([T, 0]), T)
    found = [
        _chain("softmax(masked_fill(-inf)) v", lambda q, k, v: _plain(q, k, v, mask, -math.inf)),
        _chain("softmax(masked_fill(-1e9)) v", lambda q, k, v: _plain(q, k, v, mask, -1e9)),
    ]
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            name = f"scaled_dot_product_attention, {backend.name.split('_')[0].lower()}"
            found.append(_chain(name, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))
    found.append(_chain("mha_course.attention", lambda q, k, v: attention(q, k, v, mask=mask).out))
    for weights in (True, False):
        for mode in ("train", "eval", "eval, no_grad"):
            found.append(_module(weights, mode, masks.to_blocked(mask)[:, 0, 0]))
    return tuple(found)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def _plain(q: Tensor, k: Tensor, v: Tensor, mask: Bool[Tensor, "..."], fill: float) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(D)
    return scores.masked_fill(~mask, fill).softmax(-1) @ v


def _drawn() -> Float[Tensor, "B T E"]:
    return torch.randn(B, T, EMBED_DIM, generator=torch.Generator().manual_seed(0)).requires_grad_()


def _chain(call: str, attend: Attend) -> EmptyRow:
    x = _drawn()
    generator = torch.Generator().manual_seed(1)
    projections = [
        (torch.randn(EMBED_DIM, EMBED_DIM, generator=generator) / math.sqrt(EMBED_DIM)).requires_grad_()
        for _ in range(3)
    ]
    q, k, v = ((x @ W).unflatten(-1, (H, D)).transpose(1, 2) for W in projections)  # (B, H, T, D)
    out = attend(q, k, v)
    return EmptyRow(call, _value(out[1], v[1].mean(-2, keepdim=True)), *_gradients(out, x, projections))


def _module(need_weights: bool, mode: str, blocked: Bool[Tensor, "B S"]) -> EmptyRow:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        module = nn.MultiheadAttention(EMBED_DIM, H, batch_first=True)
    nn.init.normal_(module.out_proj.bias, generator=torch.Generator().manual_seed(2))
    module.train(mode == "train")
    x = _drawn()
    with torch.set_grad_enabled(mode != "eval, no_grad"):
        out = module(x, x, x, key_padding_mask=blocked, need_weights=need_weights)[0]
    call = f"nn.MultiheadAttention, weights {'on' if need_weights else 'off'}, {mode}"
    value = _value(out[1], module.out_proj.bias, "bias of out_proj")
    gradients = _gradients(out, x, list(module.parameters())) if out.requires_grad else ("", "")
    return EmptyRow(call, value, *gradients)


def _value(out: Tensor, known: Tensor, name: str = "mean of v") -> str:
    if out.isnan().any():
        return "NaN"
    if not out.any():
        return "0"
    return name if torch.allclose(out, known.expand_as(out), atol=1e-6) else "something else"


def _gradients(out: Tensor, x: Tensor, shared: list[Tensor]) -> tuple[str, str]:
    """The gradients of a loss over all rows that are finite: those of the second sample's input, of what is shared."""
    first, *others = torch.autograd.grad(out.square().mean(), [x, *shared], allow_unused=True)
    return _size(first[1]), _size(torch.cat([g.flatten() for g in others if g is not None]))


def _size(gradient: Tensor) -> str:
    if gradient.isnan().any():
        return "NaN"
    return "finite" if gradient.any() else "0"


def broken(name: str, padding: Bool[Tensor, "2 1 1 T"]) -> Callable[[Float[Tensor, "2 T E"]], Float[Tensor, "2 T E"]]:
    """Give one of three masked self-attentions with two heads, each with one fault in its mask.

    Args:
        name: "A": each token also sees the next one. "B": hidden weights are set to 0 after the softmax.
            "C": the padding (B, 1, S) meets (B, H, T, S), so that sample b's mask goes to head b.
        padding: the mask of the keys, (2, 1, 1, T).

    Returns:
        fn(x (2, T, E)) -> out (2, T, E), meant to be causal and to hide padding.

    Raises:
        ValueError: another name.
    """
    if name not in ("A", "B", "C"):
        raise ValueError(f"name must be 'A', 'B' or 'C', got {name!r}")

    def fn(x: Tensor) -> Tensor:
        q = k = v = x.unflatten(-1, (2, -1)).transpose(1, 2)  # (B, H, T, D)
        length = x.shape[1]
        mask = masks.causal(length) & padding
        if name == "A":
            mask = masks.band(length, None, 1) & padding
        if name == "C":
            mask = masks.causal(length) & padding[:, 0]
        weights = attention(q, k, v, mask=None if name == "B" else mask).weights
        if name == "B":
            weights = weights * mask
        return (weights @ v).transpose(1, 2).flatten(2)

    return fn
