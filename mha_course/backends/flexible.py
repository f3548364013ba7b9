"""FlexAttention, with errors that say what is missing before PyTorch fails on it."""

import shutil
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.dot_product import check_heads, check_number


def flex(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B Hkv S D"],
    v: Float[Tensor, "B Hkv S Dv"],
    *,
    score_mod: Callable[..., Tensor] | None = None,
    mask_mod: Callable[..., Tensor] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    compiled: bool | None = None,
) -> Float[Tensor, "B H T Dv"]:
    """Attend with scores that a function of yours changes, by PyTorch's `flex_attention`.

    out = softmax(score_mod(scale * q k^T, b, h, t, s), -inf where mask_mod(b, h, t, s) is False) v

    A soft cap c, for example: score_mod = lambda score, b, h, t, s: c * torch.tanh(score / c).
    Not compiled, it holds all scores at once and is no faster than writing them out: for trying a
    function, not for speed. A row that may attend to nothing gives 0.

    Args:
        q: (B, H, T, D).
        k: (B, Hkv, S, D). Query head h reads head h // (H / Hkv) of k and v.
        v: (B, Hkv, S, Dv).
        score_mod: (score, b, h, t, s) -> score, all of them tensors without axes.
        mask_mod: (b, h, t, s) -> bool, True = may attend. A block mask is made of it in each call.
        block_mask: made before by `torch.nn.attention.flex_attention.create_block_mask`, instead.
        scale: factor on q k^T, 1 / sqrt(D) if None.
        compiled: whether torch.compile makes one kernel of it, seconds in the first call; if None, on
            every device but the CPU.

    Returns:
        out (B, H, T, Dv).

    Raises:
        TypeError: q, k, v are not floating point tensors of one type; score_mod or mask_mod cannot be
            called; block_mask is not a BlockMask; scale is not a number; compiled is neither None nor a bool.
        ValueError: q, k or v without four axes; sizes that do not fit, as in `attention`; S = 0; both mask_mod
            and block_mask; block_mask of other lengths, or of another B or H that is not 1; scale that is not finite.
        RuntimeError: q, k or v needs a gradient on a CPU; compiled without a C++ compiler.

    Source: Dong et al. 2024, Flex Attention, section 3.
    """
    from torch.nn.attention import flex_attention as torch_flex

    check_heads(q, k, v)
    T, S = q.shape[2], k.shape[2]
    if S == 0:
        raise ValueError(f"k must have a length S of at least 1 in FlexAttention, got {tuple(k.shape)}")
    for name, function in {"score_mod": score_mod, "mask_mod": mask_mod}.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function, got {type(function).__name__}")
    if block_mask is not None and not isinstance(block_mask, torch_flex.BlockMask):
        raise TypeError(f"block_mask must be a BlockMask, got {type(block_mask).__name__}")
    if mask_mod is not None and block_mask is not None:
        raise ValueError("mask_mod and block_mask are two ways to say one thing: give one of them")
    if block_mask is not None and tuple(block_mask.shape[-2:]) != (T, S):
        raise ValueError(f"block_mask must be made for (T, S) = {(T, S)}, got {tuple(block_mask.shape[-2:])}")
    if block_mask is not None and not all(n in (1, m) for n, m in zip(block_mask.shape[:2], q.shape[:2], strict=True)):
        sizes = tuple(q.shape[:2]), tuple(block_mask.shape[:2])
        raise ValueError(f"block_mask must be made for (B, H) = {sizes[0]}, or 1 in their place, got {sizes[1]}")
    if scale is not None and not abs(check_number("scale", scale)) <= sys.float_info.max:
        raise ValueError(f"scale must be finite, got {scale}")
    if not (compiled is None or isinstance(compiled, bool)):
        raise TypeError(f"compiled must be None, True or False, got {type(compiled).__name__}")
    on_cpu = q.device.type == "cpu"
    needs = [name for name, x in {"q": q, "k": k, "v": v}.items() if x.requires_grad]
    if on_cpu and needs:
        raise RuntimeError(
            f"FlexAttention has no gradients on a CPU, and {', '.join(needs)} needs one (no_grad does not help): "
            "pass .detach(), or add a score_bias to `attention`"
        )
    compiled = not on_cpu if compiled is None else compiled
    if compiled and on_cpu and _compiler() is None:
        raise RuntimeError(
            "compiled=True needs a C++ compiler, such as g++, and none was found: compiled=False needs none"
        )

    if mask_mod is not None:  # a mask of its own for each sample and head: mask_mod may look at both
        block_mask = torch_flex.create_block_mask(mask_mod, q.shape[0], q.shape[1], T, S, device=q.device)
    options = {"score_mod": score_mod, "block_mask": block_mask, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    if not compiled:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            return torch_flex.flex_attention(q, k, v, **options)
    from torch._inductor.exc import InductorError

    try:
        return _compiled()(q, k, v, **options)
    except InductorError as error:
        raise RuntimeError(
            f"FlexAttention could not be compiled here ({str(error).splitlines()[0]}): compiled=False needs no compiler"
        ) from error


@cache
def _compiled() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _compiler() -> str | None:
    """The C++ compiler that torch.compile would call."""
    from torch._inductor import config

    named = config.cpp.cxx
    for candidate in named if isinstance(named, list | tuple) else (named,):
        if candidate and (found := shutil.which(candidate)):
            return found
    return None
