"""PyTorch's attention kernels: which take a call, which ran, how to force one, how two compare.

supported(device, dtype, head_dim, ...)    which kernels take such a call, and why the others do not
supported_for(q, k, v, ...)                the same for your own tensors
which(fn, *args)                           which kernels ran inside a function or model, how often
forced(backend)                            a `with` in which one kernel does the work, or says why not
attention(q, k, v, ..., backend=...)       attention on one kernel, with this package's masks
compare(f, g, inputs=...)                  differences, gradients, time and memory of several functions
flex(q, k, v, score_mod=...)               FlexAttention with errors that can be read
"""

from mha_course.backends.attend import attention
from mha_course.backends.comparison import Comparison, Row, compare
from mha_course.backends.flexible import flex
from mha_course.backends.ran import Ran, which
from mha_course.backends.refusal import Refused, forced
from mha_course.backends.support import Support, supported, supported_for

__all__ = [
    "Comparison",
    "Ran",
    "Refused",
    "Row",
    "Support",
    "attention",
    "compare",
    "flex",
    "forced",
    "supported",
    "supported_for",
    "which",
]
