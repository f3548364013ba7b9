"""Multi-head attention as a module, and the shapes it goes through."""

from mha_course.multihead.module import MultiHeadAttention, MultiHeadTrace
from mha_course.multihead.shapes import Shape, ShapeTrace, trace_shapes

__all__ = ["MultiHeadAttention", "MultiHeadTrace", "Shape", "ShapeTrace", "trace_shapes"]
