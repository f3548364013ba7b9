"""Exact attention in pieces, and attention to some keys at the cost of some.

Every function here gives the numbers and the gradients of `attention` with the mask that it stands
for. Each has the signature of a backend and can be one: MultiHeadAttention(E, H,
backend=partial(sliding_window, window=128)).
"""

from mha_course.sparse.blocks import block_sparse
from mha_course.sparse.chunked import chunked
from mha_course.sparse.window import sliding_window

__all__ = ["block_sparse", "chunked", "sliding_window"]
