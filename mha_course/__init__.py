"""Multi-head attention: the finished implementation that the course's notebooks import.

Letters used throughout: B batch, H heads, T query length, S key length, D width of a head,
E model width. A mask is a bool tensor in which True means "may attend".
"""

from mha_course.cache import KVCache
from mha_course.dot_product import AttentionTrace, attention
from mha_course.multihead import MultiHeadAttention, MultiHeadTrace

__all__ = ["AttentionTrace", "KVCache", "MultiHeadAttention", "MultiHeadTrace", "attention"]
__version__ = "0.1.0"
