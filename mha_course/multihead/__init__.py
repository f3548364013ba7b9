"""Multi-head attention as a module."""

from mha_course.multihead.module import MultiHeadAttention, MultiHeadTrace

__all__ = ["MultiHeadAttention", "MultiHeadTrace"]
