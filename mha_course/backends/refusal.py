"""Force one of PyTorch's attention kernels, and say in words why it does not take a call."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "overrideable": SDPBackend.OVERRIDEABLE,
}
NO_REASON = "PyTorch gives no reason (on a CPU it gives none for a mask that needs a gradient)"

_NO_KERNEL = ("No available kernel", "No viable backend")  # how PyTorch's error begins
_HEADER = "kernel not used because"  # a CUDA device explains all of its kernels, each under a header
_HEADERS = {"flash": "flash", "efficient": "memory efficient", "cudnn": "cudnn"}
_WORDS = (
    (r"non-?zero dropout|not support dropout", "does not support dropout"),
    (r"to be 4 dimensional", "needs four axes (B, H, T, D) in q, k and v"),
    (r"following attn mask shapes", "needs a mask of two or four axes"),
    (r"same last dimension", "needs values as wide as the keys (Dv = D)"),
    (r"last dimension of the input to have stride 1", "needs the last axis of q, k and v to have stride 1"),
    (r"same num_heads", "needs as many heads in k and v as in q, or enable_gqa=True"),
    (r"same batch_size", "needs one batch size B in q, k and v"),
    (r"all be of dtype: \{([^}]*)\}", "needs one of the types {0}"),
    (r"non-null attn_mask", "does not support a mask"),
    (r"not compiled with", "is not part of this build of PyTorch"),
    (r"gpu architectures", "does not support this GPU"),
    (r"attn_mask should not be set when is_causal", "does not take a mask and is_causal together"),
    (r"No viable backend", "does not exist for this device"),
)


class Refused(RuntimeError):
    """A forced kernel does not take a call.

    Attributes:
        backend: its name.
        reason: why not, for example "does not support dropout".
        others: the kernels that do take it, None where they were not tried.
    """

    def __init__(self, backend: str, reason: str, others: tuple[str, ...] | None = None) -> None:
        self.backend, self.reason, self.others = backend, reason, others
        text = f'backend "{backend}" does not take this call: {reason}'
        if others is not None:
            text += f". Of the others, {', '.join(others) or 'none'} would"
        super().__init__(text)

    def __reduce__(self) -> tuple[type["Refused"], tuple[str, str, tuple[str, ...] | None]]:
        """Let pickle and copy make it of its parts: by themselves they pass the message alone."""
        return type(self), (self.backend, self.reason, self.others)


def check_backend(backend: str) -> SDPBackend:
    """Return PyTorch's own name of a backend; raise unless there is one of that name."""
    if not isinstance(backend, str) or backend not in KERNELS:
        raise ValueError(f"backend must be one of {', '.join(KERNELS)}, got {backend!r}")
    return KERNELS[backend]


@contextmanager
def forced(backend: str) -> Iterator[None]:
    """Let every `F.scaled_dot_product_attention` inside the `with` run on one kernel, or say why it cannot.

    Beyond `torch.nn.attention.sdpa_kernel`: PyTorch's "No available kernel" becomes an error with the
    reason in it, and the warnings that held the reason do not appear. What calls no
    `F.scaled_dot_product_attention` is not forced: see `which`. `nn.MultiheadAttention` calls none
    with need_weights=True, nor in eval mode without gradients. PyTorch keeps the choice for the whole
    process, other threads included: where two threads are inside at once, the choice and what hears
    the warnings may stay changed after both. A function that torch.compile compiled before may keep
    the kernel that it was compiled with.

    Args:
        backend: "math", "flash", "efficient", "cudnn" or "overrideable".

    Raises:
        ValueError: backend is not one of these.
        Refused: the kernel does not take a call inside; it is a RuntimeError.
    """
    kernel = check_backend(backend)
    with _heard() as said, sdpa_kernel(kernel):
        try:
            yield
        except RuntimeError as error:
            if not str(error).startswith(_NO_KERNEL):
                raise
            raise Refused(backend, _reason(backend, str(error), said)) from error


def in_words(message: str) -> str:
    """The first sentence of what PyTorch says, in this package's words where it has some."""
    for pattern, words in _WORDS:
        if found := re.search(pattern, message):
            return words.format(*found.groups())
    return re.split(r"\s*\(Triggered internally|\n|\. ", message.strip(), maxsplit=1)[0].rstrip(". ")


def _reason(backend: str, error: str, said: list[str]) -> str:
    if error.startswith("No viable backend"):
        return in_words(error)
    under: list[str] = []
    mine = False
    for message in said:
        if _HEADER in message:
            mine = message.lower().startswith(_HEADERS.get(backend, backend))
            under = [] if mine else under  # an earlier call inside the same `with` was refused too
        elif mine:
            under.append(in_words(message))
    return "; ".join(under) or NO_REASON


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Collect PyTorch's reasons, which it gives as warnings; all other warnings go their way."""
    said: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def hear(message, *rest, **more):  # type: ignore[no-untyped-def]
            if "sdp_utils" in str(message):
                said.append(str(message))
            else:
                show(message, *rest, **more)

        warnings.filterwarnings("always", message=r"(?s).*sdp_utils")  # the file of PyTorch they come from
        warnings.showwarning = hear
        yield said
