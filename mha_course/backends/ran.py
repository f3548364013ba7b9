"""Which attention kernels ran inside a function, and how often."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# PyTorch's operators, as they arrive below autograd, and what each is called here
_NAMES = {
    "_safe_softmax": "math",  # only the math kernel of F.scaled_dot_product_attention calls it
    "_scaled_dot_product_attention_math_for_mps": "math",
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_flash_attention_forward": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_efficient_attention_forward": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_cudnn_attention_forward": "cudnn",
    "_scaled_dot_product_fused_attention_overrideable": "overrideable",
    "_native_multi_head_attention": "native",
    "_transformer_encoder_layer_fwd": "native",
}
_PRODUCTS = ("bmm", "mm", "baddbmm", "mv")  # addmm is a linear map with a bias, hardly a score
_SOFTMAX = ("_softmax", "_masked_softmax")


class Ran(dict[str, int]):
    """How often each attention kernel ran, by name; print it to read it."""

    __slots__ = ()

    def __repr__(self) -> str:
        """For example: flash: 2 calls, math: 1 call."""
        if not self:
            return "no attention that `which` knows ran"
        return ", ".join(f"{name}: {n} call{'s' if n > 1 else ''}" for name, n in self.items())

    __str__ = __repr__


def which(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Ran:
    """Run a function or module once and count the attention kernels that ran.

    "math", "flash", "efficient", "cudnn", "overrideable": `F.scaled_dot_product_attention` on that one.
    "native": the fast path of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`.
    "flex": `flex_attention`, compiled or not.
    "explicit": written out: a matrix product, its softmax, and a product with what came of that.
    Any other name: an operator of another library with "attn" or "attention" in its name.

    Forward passes are counted, those of a checkpoint again each time. Not seen: a softmax made of exp
    and sum, or of log_softmax; scores from a linear layer with a bias, or joined with others before the
    softmax (sinks by cat, heads by stack); what a compiled graph has fused into a kernel of its own;
    other threads.

    Args:
        fn: called once as `fn(*args, **kwargs)`; what it changes stays changed.

    Returns:
        Ran, a dict from name to number of calls, in the order of the first calls; empty if none ran.
        What fn raises is passed on.

    Raises:
        TypeError: fn cannot be called.
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function or module, got {type(fn).__name__}")
    with _Watch() as watch:
        fn(*args, **kwargs)
    return Ran(watch.counts)


class _Watch(TorchDispatchMode):
    """Sees every operator below autograd, and follows scores and weights by their memory."""

    supports_higher_order_operators = True  # flex_attention is one

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let compiled functions run as such: else flex_attention fails, and goes on failing afterwards."""
        return True

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.scores: set[StorageWeakRef] = set()  # products, and what was made of them element by element
        self.weights: dict[StorageWeakRef, int] = {}  # the same for softmaxes, with their number
        self.softmaxes = 0
        self.used: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        namespace, _, rest = str(func).partition(".")
        name = rest.partition(".")[0]
        if namespace == "aten" and name not in _NAMES:
            with self:  # under inference_mode operators arrive whole
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if namespace == "flex_attention":
            self.counts["flex"] += 1
        elif namespace != "aten":
            if ("attn" in name or "attention" in name) and "backward" not in name and "bwd" not in name:
                self.counts[f"{namespace}.{name}"] += 1
        elif name in _NAMES:
            self.counts[_NAMES[name]] += 1
        else:
            self.follow(name, list(_tensors((args, kwargs))), next(_tensors(out), None))
        return out

    def follow(self, name: str, inputs: list[Tensor], out: Tensor | None) -> None:
        """Note products, their softmaxes, and the products of those."""
        if out is None:
            return
        places = [_place(x) for x in inputs]
        if name in _PRODUCTS:
            for number in {self.weights[place] for place in places if place in self.weights} - self.used:
                self.used.add(number)  # the backward pass multiplies by the same weights once more
                self.counts["explicit"] += 1
            self.scores.add(_place(out))
        elif name in _SOFTMAX:
            if places[0] in self.scores:
                self.softmaxes += 1
                self.weights[_place(out)] = self.softmaxes
        else:
            same = [place for place, x in zip(places, inputs, strict=True) if x.shape == out.shape]
            if any(place in self.scores for place in same):
                self.scores.add(_place(out))
            self.weights |= {_place(out): self.weights[place] for place in same if place in self.weights}


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (x for x in tree_leaves(tree) if isinstance(x, Tensor) and not x.is_nested and x.layout == torch.strided)


def _place(x: Tensor) -> StorageWeakRef:
    return StorageWeakRef(x.untyped_storage())
