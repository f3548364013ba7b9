"""Attention on a kernel of your choice, with the meaning that attention has everywhere in this package."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel

from mha_course.backends.refusal import NO_REASON, Refused, check_backend, forced
from mha_course.backends.support import LEARNED, supported_for
from mha_course.dot_product import check_call
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
    attend to nothing gives 0, on every kernel and device, and its gradient is 0. Hide keys by mask or by
    -inf: where all of a row's score_bias is a large finite number, such as -1e9, "flash" on a CPU
    returns the right numbers with wrong gradients, as PyTorch's kernel does. As a backend of the module:
    `MultiHeadAttention(..., backend=partial(backends.attention, backend="math"))`, also under
    torch.compile, but a call that is refused there ends in PyTorch's own error.

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
    check_call(q, k, v, mask, score_bias, scale, is_causal, dropout_p)
    # "math" takes no mask besides is_causal, and "flash" gives NaN with is_causal and a scale that is not positive
    if is_causal and not (mask is None and score_bias is None and (scale is None or scale > 0)):
        past = causal(q.shape[2], device=q.device)
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
