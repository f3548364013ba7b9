"""Multi-head attention as a module, and the shapes it goes through."""

from mha_course.multihead.module import MultiHeadAttention, MultiHeadTrace
from mha_course.multihead.shapes import Shape, ShapeTrace, trace_shapes
from mha_course.multihead.steps import merge_heads, split_heads

__all__ = [
    "MultiHeadAttention",
    "MultiHeadTrace",
    "Shape",
    "ShapeTrace",
    "merge_heads",
    "split_heads",
    "trace_shapes",
]
