"""Paging: keys and values lie in blocks of a common pool, and a table says which blocks make up a sequence."""

from jaxtyping import Float, Integer
from torch import Tensor

from mha_course.cache._inputs import rows


def gather_blocks(pool: Float[Tensor, "N Hkv P D"], table: Integer[Tensor, "B M"]) -> Float[Tensor, "B Hkv MP D"]:
    """Read the keys or values of B sequences from a pool of blocks.

    out[b, h, m P + p] = pool[table[b, m], h, p]

    A sequence takes blocks as it grows, wherever they are free, so at most P - 1 slots of it stand empty; those that
    begin alike may share blocks. What lies behind the end of a sequence must be hidden: `masks.padding(lengths, S)`.
    (A kernel for paged attention reads the blocks where they lie; this makes a copy of them.)

    Args:
        pool: N blocks of P slots each, (N, Hkv, P, D).
        table: the blocks of each sequence in order, (B, M) integers from 0 to N - 1; any of them behind its end.

    Returns:
        (B, Hkv, S, D) with S = M P, as `attention` takes it.

    Raises:
        TypeError: pool is not a tensor; table is not an integer tensor.
        ValueError: pool has other than four axes, table other than two; a number that is not a block.

    Source: Kwon et al. 2023 (PagedAttention), section 4.1: P is B, "block size".
    """
    if not isinstance(pool, Tensor):
        raise TypeError(f"pool must be a tensor, got {type(pool).__name__}")
    if pool.ndim != 4:
        raise ValueError(f"pool must be (N, Hkv, P, D), got {tuple(pool.shape)}")
    table = rows("table", table, 2, pool.shape[0]).to(pool.device)
    blocks = pool[table]  # (B, M, Hkv, P, D)
    return blocks.transpose(1, 2).flatten(2, 3)  # (B, Hkv, M, P, D), then (B, Hkv, M P, D)
