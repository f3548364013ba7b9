"""Attention in time proportional to S: five methods, one a file, and how far each is from the exact one.

Each file has an `attention` that takes q, k, v like a backend and can be one:
MultiHeadAttention(E, H, backend=partial(linear.kernel.attention, chunk=32)). An argument that a
method has no place for is refused, not ignored.
"""

from mha_course.linear import delta, kernel, linformer, performer, reformer

__all__ = ["delta", "kernel", "linformer", "performer", "reformer"]
