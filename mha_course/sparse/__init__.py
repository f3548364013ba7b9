"""Exact attention in pieces, and attention to some keys at the cost of some.

Every function here gives the numbers and the gradients of `attention` with the mask that it stands
for. Each has the signature of a backend and can be one: MultiHeadAttention(E, H,
backend=partial(sliding_window, window=128)).

`chunked` is made of `attention`. The other two give their blocks to PyTorch's fused kernel, which has no
second derivatives and no forward mode. NaN or infinity in a hidden key or value of these blocks reaches
the output, and so does a hidden score that overflows; other finite values do not. Where all scores
that a row sees are so large that their type cannot hold them and the logarithm of their number, as with
a score_bias of -1e9 throughout, the numbers are right and the gradients wrong: hide keys by mask or
by -inf.
"""

from mha_course.sparse.blocks import block_sparse
from mha_course.sparse.chunked import chunked
from mha_course.sparse.window import sliding_window

__all__ = ["block_sparse", "chunked", "sliding_window"]
