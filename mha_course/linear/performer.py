"""Performer (FAVOR+): random positive features whose products have e^(q . k) as their mean."""

import math
import sys

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mha_course.dot_product import check_number, without_autocast
from mha_course.linear._inputs import at_least_float32, check_call, check_device, key_mask, refuse
from mha_course.linear.kernel import from_features
from mha_course.masks._inputs import check_integer


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
    features: Float[Tensor, "M D"],
    chunk: int = 64,
) -> Float[Tensor, "B H T Dv"]:
    """Approximate softmax attention by M random features, in O(S M) instead of O(S^2).

    phi(x)_m = e^(w_m . x - |x|^2 / 2) / sqrt(M), the mean of phi(x) . phi(y) over w is e^(x . y)
    out = phi(a q) (phi(a k)^T v) / (phi(a q) . sum of phi(a k)), a = sqrt(scale)

    An estimate of e^(x . y) has the variance (e^(|x + y|^2) - 1) e^(2 x . y) / M if features are
    independent: the error falls with 1 / sqrt(M), and rises without bound with the length of q and k.
    For normal q, k, v, S = 64, D = 16, relative to the exact output's norm, M = 64, 256, 1024, 4096:
    at standard deviation 0.5 of q and k, 0.23, 0.15, 0.08, 0.04 (plain average of all values:
    0.24); at 1, 1.04, 0.96, 0.86, 0.63 (0.76); at 1 with D = 64, 1.98, 1.86, 1.71, 1.43 (0.77).

    The factors that would overflow or vanish cancel: each feature of the keys is divided by its largest
    over all keys, a query's take that factor over, and are divided by their largest. Causally the
    keys' are not divided, because later keys must not matter: they overflow in float32 if
    some a k comes close to a feature longer than 13, and are 0 if |a k| is above about 16. Sums are
    taken in float32 at least. NaN or infinity goes where it goes in `kernel.attention`.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, Dv).
        mask: bool, True = may attend, the same for all queries: (B, 1, 1, S), (S,) and the like.
        score_bias, dropout_p: must be left as they are; there are no scores.
        scale: factor on q . k, above 0, 1 / sqrt(D) if None.
        is_causal: query t sees keys 0 to t only. T = S.
        features: w (M, D), one a row: see `orthogonal_features`.
        chunk: number of tokens that see each other directly if is_causal, at least 1.

    Returns:
        out (B, H, T, Dv) in the type of q.

    Raises:
        TypeError: q, k, v are not floating point tensors of one type; mask is not bool; scale is not a
            number; is_causal is not a bool; features is not a floating point tensor; chunk is not
            an integer.
        ValueError: other than four axes; sizes that do not fit each other; a mask that does not
            broadcast or differs between queries; score_bias or dropout_p given; is_causal with T != S;
            scale that is not finite or not above 0; features is not (M, D) or on another
            device; chunk below 1.

    Source: Choromanski et al. 2021, lemma 1 (positive features) and 2 (their variance), section 2.4 (orthogonal ones),
    appendix B (causal); their omega is w, their m is M.
    """
    check_call(q, k, v, is_causal)
    refuse("Performer", score_bias=score_bias, dropout_p=dropout_p)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else check_number("scale", scale)
    if not 0 < scale <= sys.float_info.max:
        raise ValueError(f"scale must be above 0 and finite, got {scale}")
    if not isinstance(features, Tensor) or not features.is_floating_point():
        got = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise TypeError(f"features must be a floating point tensor (M, D), got {got}")
    if features.ndim != 2 or features.shape[1] != q.shape[-1] or not len(features):
        raise ValueError(f"features must be (M, D) with D = {q.shape[-1]}, got {tuple(features.shape)}")
    check_device("features", features, q)
    seen = key_mask(mask, q, k)
    wide_q, wide_k, wide_v = at_least_float32(q, k, v)
    if seen is not None:
        wide_k = wide_k.masked_fill(~seen, 0.0)  # NaN would come back as its own gradient
    wide_q, wide_k, wide = wide_q * math.sqrt(scale), wide_k * math.sqrt(scale), features.to(wide_q.dtype)
    with without_autocast(q.device):
        log_q = wide_q @ wide.mT  # without -|x|^2 / 2, which cancels
        log_k = log_features(wide_k, wide)
        if seen is not None:
            log_k = log_k.masked_fill(~seen, -torch.inf)
        if not is_causal and log_k.numel():
            top = log_k.detach().amax(-2, keepdim=True)  # (B, H, 1, M)
            top = top.masked_fill(top == -torch.inf, 0.0)
            log_q, log_k = log_q + top, log_k - top
        phi_q = (log_q - log_q.detach().amax(-1, keepdim=True)).exp()
        return from_features(phi_q, log_k.exp(), wide_v, is_causal=is_causal, chunk=chunk).to(q.dtype)


def log_features(x: Float[Tensor, "*batch D"], features: Float[Tensor, "M D"]) -> Float[Tensor, "*batch M"]:
    """Return the logarithm of sqrt(M) phi(x), that is w_m . x - |x|^2 / 2.

    Args:
        x: (..., D).
        features: w (M, D).

    Returns:
        (..., M). The mean over m of e^(log phi(x) + log phi(y)) estimates e^(x . y).
    """
    return x @ features.mT - x.square().sum(-1, keepdim=True) / 2


def orthogonal_features(
    M: int,
    D: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "M D"]:
    """Draw M random directions, D at a time orthogonal, each as long as a normal vector of D numbers.

    A single feature is distributed like torch.randn(D), so the mean of the estimate stays right;
    orthogonal ones spread more evenly, so its variance is smaller.

    Args:
        M: number of features, at least 1.
        D: width, at least 1.
        generator: what to draw from, on the device; PyTorch's own if None.
        device, dtype: of the result.

    Returns:
        (M, D).

    Raises:
        TypeError: M or D is not an integer.
        ValueError: M or D is below 1.

    Source: Choromanski et al. 2021, section 2.4; Yu et al. 2016, section 3.
    """
    M, D = check_integer("M", M, least=1), check_integer("D", D, least=1)
    groups = -(-M // D)
    normal = torch.randn(2, groups, D, D, generator=generator, device=device, dtype=dtype)
    turned, triangle = torch.linalg.qr(normal[0])
    # QR alone does not turn evenly: the signs of the triangle's diagonal must go along
    turned = turned * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = normal[1].norm(dim=-1, keepdim=True)  # (groups, D, 1)
    return (turned.mT * lengths).flatten(0, 1)[:M]
