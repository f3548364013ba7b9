"""What a cached token costs."""

import torch

from mha_course.cache._inputs import check_dtype, check_integer


def bytes_per_token(
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype = torch.float16,
    *,
    v_head_dim: int | None = None,
) -> int:
    """Return the bytes that a model keeps of each token of each sequence.

    bytes = layers Hkv (D + Dv) * bytes of a number

    Multi-head latent attention keeps one vector of rank R, from which all heads make their keys and values, and one
    turned key of width D: that is num_kv_heads=1, head_dim=R + D, v_head_dim=0.

    Args:
        num_layers: number of attention layers.
        num_kv_heads: Hkv.
        head_dim: D.
        dtype: of what is kept.
        v_head_dim: Dv; D if None.

    Returns:
        Bytes per token; times batch and context it is the size of the cache.

    Raises:
        TypeError: a size is not an integer; dtype is not a floating point type.
        ValueError: v_head_dim is negative, another size below 1.

    Source: Shazeer 2019, section 3 (one head for all); Ainslie et al. 2023 (groups); DeepSeek-AI 2024 (DeepSeek-V2),
        sections 2.1.2 and 2.1.3, table 1 (latent: R is d_c, D is d_h^R).
    """
    layers, heads = (
        check_integer(name, n, least=1) for name, n in (("num_layers", num_layers), ("num_kv_heads", num_kv_heads))
    )
    D = check_integer("head_dim", head_dim, least=1)
    Dv = D if v_head_dim is None else check_integer("v_head_dim", v_head_dim)
    return layers * heads * (D + Dv) * check_dtype(dtype).itemsize
