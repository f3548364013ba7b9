"""Attention in tiles: no matrix of T x S scores is ever held.

`attention` is the whole, forwards and backwards. Its pieces, for keys that arrive in parts: `partial`
attends to some of the keys, `merge` puts two such results together, `finish` divides. `traffic` counts what
tiles move between a fast and a slow memory.
"""

from mha_course.tiled import traffic
from mha_course.tiled.function import attention
from mha_course.tiled.online import Partial, finish, merge, nothing, partial

__all__ = ["Partial", "attention", "finish", "merge", "nothing", "partial", "traffic"]
