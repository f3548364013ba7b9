"""A KV cache: what attention keeps of the tokens that it has read, so that a decoder reads each token once.

One cache belongs to one attention layer; a model has a list of them. It holds keys and values after projection, split
and, with rotary positions, turned. Position p of a token is the number of tokens before it, whatever the cache dropped.
"""

from mha_course.cache.paged import gather_blocks
from mha_course.cache.preallocated import KVCache
from mha_course.cache.ring import RingCache
from mha_course.cache.size import bytes_per_token

__all__ = ["KVCache", "RingCache", "bytes_per_token", "gather_blocks"]
