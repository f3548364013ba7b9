"""Attention on a kernel of your choice, with the meaning that attention has everywhere in this package."""

import math
import sys

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel

from mha_course.backends.refusal import NO_REASON, Refused, check_backend, forced
from mha_course.backends.support import LEARNED, supported_for
from mha_course.dot_product import check_addend, check_number
from mha_course.masks import causal

KNOWN_ZERO = ("cpu",)  # devices whose kernels give 0 in a row that sees nothing
CORNER = 16  # queries and keys with which the other kernels are tried after a refusal


def attention(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B Hkv S D"],
    v: Float[Tensor, "B Hkv S Dv"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    backend: str,
) -> Float[Tensor, "B H T Dv"]:
    """Attend on one of PyTorch's kernels, or say why it does not take the call and which ones would.

    out = softmax(scale * q k^T + score_bias, -inf where mask is False) v

    Nothing is done to make a call fit: tensors are neither copied nor padded nor moved. A row that may
    attend to nothing gives 0, on every kernel and device, and its gradient is 0. As a backend of the
    module: `MultiHeadAttention(..., backend=partial(backends.attention, backend="math"))`, also
    under torch.compile, but a call that is refused there ends in PyTorch's own error.

    Args:
        q: (B, H, T, D).
        k: (B, Hkv, S, D). Query head h reads head h // (H / Hkv) of k and v.
        v: (B, Hkv, S, Dv).
        mask: bool, True = may attend, broadcasts to (B, H, T, S).
        score_bias: added to the scaled scores, broadcasts to (B, H, T, S).
        scale: factor on q k^T, 1 / sqrt(D) if None.
        is_causal: query t may attend to keys 0 to t only, and where mask lets it too. T = S.
        dropout_p: probability of dropping a weight, in [0, 1]; applied whenever it is above 0.
        backend: "math", "flash", "efficient", "cudnn" or "overrideable".

    Returns:
        out (B, H, T, Dv).

    Raises:
        TypeError: q, k, v are not floating point tensors of one type; mask is not bool; score_bias is
            not floating point; scale or dropout_p is not a number; is_causal is not a bool.
        ValueError: q, k or v without four axes; D = 0; different B, width D or length S; Hkv does not
            divide H, or differs in k and v; different devices; mask or score_bias that does not
            broadcast to (B, H, T, S); is_causal with T != S; scale that is not finite; dropout_p
            outside [0, 1]; backend of another name.
        Refused: the kernel does not take the call; it is a RuntimeError.
    """
    kernel = check_backend(backend)
    check_qkv(q, k, v)
    shape = (*q.shape[:3], k.shape[2])
    check_addend("mask", mask, shape, q)
    check_addend("score_bias", score_bias, shape, q)
    if scale is not None and not abs(check_number("scale", scale)) <= sys.float_info.max:
        raise ValueError(f"scale must be finite, got {scale}")
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be True or False, got {type(is_causal).__name__}")
    if is_causal and shape[2] != shape[3]:
        raise ValueError(f"is_causal needs T = S, got T = {shape[2]} and S = {shape[3]}: pass mask=causal(T, S, ...)")
    if not 0 <= check_number("dropout_p", dropout_p) <= 1:
        raise ValueError(f"dropout_p must lie in [0, 1], got {dropout_p}")

    if is_causal and not (mask is None and score_bias is None):  # "math" takes no mask besides is_causal
        past = causal(shape[2], device=q.device)
        mask, is_causal = past if mask is None else mask & past, False
    added = mask
    if score_bias is not None:
        added = score_bias.to(q.dtype)
        added = added if mask is None else added.masked_fill(~mask, -math.inf)
    sees_nothing = None
    if added is not None and q.device.type not in KNOWN_ZERO:
        sees_nothing, added = _without_empty_rows(added)
    if added is not None:
        added = added[(None,) * (4 - added.ndim)]  # the fused kernels take two axes or four
    options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    try:
        with sdpa_kernel(kernel) if torch.compiler.is_compiling() else forced(backend):  # warnings break a graph
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=added, **options)  # type: ignore[arg-type]
    except Refused as refused:
        learned = added is not None and added.requires_grad and refused.reason == NO_REASON
        corner = None if added is None else _corner(added)
        others = supported_for(_corner(q, 1), _corner(k, 1), _corner(v, 1), attn_mask=corner, **options)  # type: ignore[arg-type]
        takers = tuple(name for name in others.works if name != backend)
        raise Refused(backend, LEARNED if learned else refused.reason, takers) from refused
    return out if sees_nothing is None else out.masked_fill(sees_nothing, 0.0)


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise unless q, k and v are floating point tensors (B, H, T, D), (B, Hkv, S, D), (B, Hkv, S, Dv)."""
    for name, x in {"q": q, "k": k, "v": v}.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if not x.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {x.dtype}")
        if x.dtype != q.dtype:
            raise TypeError(f"{name} must have the type of q, {q.dtype}, got {x.dtype}")
        if x.ndim != 4:
            raise ValueError(f"{name} must have four axes (B, heads, length, width), got {tuple(x.shape)}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on q's device, {q.device}, got {x.device}")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}"
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"q, k and v must have one batch size B, got {shapes}")
    if not q.shape[3] == k.shape[3] >= 1:
        raise ValueError(f"q and k must have one width D of at least 1, got {shapes}")
    if k.shape[2] != v.shape[2]:
        raise ValueError(f"k and v must have one length S, got {shapes}")
    if k.shape[1] != v.shape[1] or (q.shape[1] != k.shape[1] and (k.shape[1] == 0 or q.shape[1] % k.shape[1])):
        raise ValueError(f"k and v must have one number of heads that divides that of q, got {shapes}")


def _without_empty_rows(added: Tensor) -> tuple[Tensor, Tensor]:
    """Where a row sees nothing, (..., T or 1, 1), and the mask in which it sees all: no kernel meets it."""
    if added.dtype == torch.bool:
        sees_nothing = ~added.any(-1, keepdim=True)
        return sees_nothing, added | sees_nothing
    sees_nothing = (added == -math.inf).all(-1, keepdim=True)
    return sees_nothing, added.masked_fill(sees_nothing, 0.0)


def _corner(x: Tensor, least: int = 2) -> Tensor:
    """The first sample, queries and keys, with the strides of x; of a mask (least = 2) both lengths."""
    x = x[:1, :, :CORNER]
    return x[..., :CORNER] if least == 2 else x
