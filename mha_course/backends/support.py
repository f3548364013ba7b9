"""Which of PyTorch's attention kernels take a call, and why the others do not: found by calling each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mha_course.backends.ran import which
from mha_course.backends.refusal import KERNELS, NO_REASON, Refused, forced, in_words
from mha_course.dot_product import check_number
from mha_course.masks._inputs import check_integer

LEARNED = "does not support a mask that needs a gradient"


@dataclass(frozen=True, repr=False, eq=False)
class Support:
    """Which kernels take a call; print it to read it.

    Attributes:
        refusals: for each kernel why it does not take the call, None if it does.
        default: the kernel that PyTorch picks by itself, "none" if there is nothing to compute, as with
            S = 0, None if the call fails.
    """

    refusals: dict[str, str | None]
    default: str | None

    @property
    def works(self) -> tuple[str, ...]:
        """The kernels that take the call."""
        return tuple(name for name, reason in self.refusals.items() if reason is None)

    def __str__(self) -> str:
        """One line for each kernel, and what PyTorch picks."""
        width = max(map(len, self.refusals))
        lines = [f"{name:{width}}  {reason or 'works'}" for name, reason in self.refusals.items()]
        picks = f"PyTorch picks {self.default}" if self.default else "the call fails"
        return "\n".join([*lines, f"Left alone, {picks}."])

    __repr__ = __str__


def supported(
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    head_dim: int = 64,
    *,
    value_dim: int | None = None,
    num_heads: int = 4,
    num_kv_heads: int | None = None,
    T: int = 16,
    S: int | None = None,
    mask: Literal["bool", "float", "learned"] | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    requires_grad: bool = False,
) -> Support:
    """Find out which kernels of `F.scaled_dot_product_attention` a model of these sizes can use on a device.

    Each kernel is called once, alone, with drawn numbers and B = 2, and its gradients are taken where
    some are asked for. For your own tensors, strides and all, there is `supported_for`.

    Args:
        device: where it would run.
        dtype: of q, k and v.
        head_dim: D, width of q and k.
        value_dim: Dv, width of v; D if None.
        num_heads: H.
        num_kv_heads: Hkv, a divisor of H; H if None. With fewer than H, enable_gqa=True is passed.
        T, S: number of queries and of keys; S = T if None.
        mask: the kind of attn_mask, (T, S): bool, float, or float and learned (it needs a gradient).
        is_causal, dropout_p: passed on.
        requires_grad: whether q, k and v need a gradient.

    Returns:
        Support(refusals, default).

    Raises:
        TypeError: dtype is not a floating point type; a size is not an integer; dropout_p is not a number.
        ValueError: device is not there; a size is below 1; Hkv does not divide H; another kind of mask;
            dropout_p outside [0, 1].
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating point type of torch, got {dtype}")
    if mask not in (None, "bool", "float", "learned"):
        raise ValueError(f'mask must be None, "bool", "float" or "learned", got {mask!r}')
    if not 0 <= check_number("dropout_p", dropout_p) <= 1:
        raise ValueError(f"dropout_p must lie in [0, 1], got {dropout_p}")
    sizes = {"head_dim": head_dim, "num_heads": num_heads, "T": T}
    optional = {"value_dim": value_dim, "num_kv_heads": num_kv_heads, "S": S}
    for name, n in (sizes | {name: n for name, n in optional.items() if n is not None}).items():
        check_integer(name, n, least=1)
    value_dim = head_dim if value_dim is None else value_dim
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    S = T if S is None else S
    if num_heads % num_kv_heads:
        raise ValueError(f"num_kv_heads must divide num_heads, got {num_kv_heads} and {num_heads}")
    try:
        device = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # AssertionError: this PyTorch is built without it
        raise ValueError(f"device must be one that is there, got {device}: {_first_line(error)}") from None

    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    q = drawn(2, num_heads, T, head_dim).requires_grad_(requires_grad)
    k = drawn(2, num_kv_heads, S, head_dim).requires_grad_(requires_grad)
    v = drawn(2, num_kv_heads, S, value_dim).requires_grad_(requires_grad)
    attn_mask = None
    if mask is not None:
        attn_mask = torch.ones(T, S, device=device).tril().bool() if mask == "bool" else drawn(T, S)
        attn_mask.requires_grad_(mask == "learned")
    with torch.enable_grad():
        return supported_for(
            q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, enable_gqa=num_heads != num_kv_heads
        )


def supported_for(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Support:
    """Find out which kernels take this very call of `F.scaled_dot_product_attention`.

    Each kernel is called once, alone, and once PyTorch may choose: "math" holds all scores at once, so
    pass tensors for which there is room. Gradients are taken too where a tensor needs one, and left
    nowhere.

    Args:
        q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa: those of
            `F.scaled_dot_product_attention`, with its meaning: a float attn_mask is added to the
            scores, and a float attn_mask is a bias.

    Returns:
        Support(refusals, default). Where no kernel takes the call because an argument is wrong, each
        line says what PyTorch says.

    Raises:
        TypeError: q, k, v or attn_mask is not a tensor.
    """
    named = {"q": q, "k": k, "v": v, **({} if attn_mask is None else {"attn_mask": attn_mask})}
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    own = {name: x.detach().requires_grad_(x.requires_grad) for name, x in named.items()}  # graphs end here
    leaves = [x for x in own.values() if x.requires_grad]
    options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    empty = 0 in (q.numel(), k.numel())  # then PyTorch returns without any kernel

    def call() -> None:
        out = F.scaled_dot_product_attention(own["q"], own["k"], own["v"], own.get("attn_mask"), **options)  # type: ignore[arg-type]
        if out.requires_grad:
            torch.autograd.grad(out.sum(), leaves)

    with torch.random.fork_rng([q.device] if q.is_cuda else []):
        refusals = {backend: _refusal(backend, call, empty) for backend in KERNELS}
        if attn_mask is not None and attn_mask.requires_grad:
            refusals = {name: LEARNED if reason == NO_REASON else reason for name, reason in refusals.items()}
        try:
            default = next(iter(which(call)), "none" if empty else None)
        except Exception:
            default = None
    return Support(refusals, default)


def _refusal(backend: str, call: Callable[[], Any], empty: bool) -> str | None:
    """Why a kernel does not take a call, None if it does."""
    try:
        with forced(backend):
            ran = which(call)
    except Refused as refused:
        return refused.reason
    except Exception as error:  # each kernel checks its arguments by itself
        return in_words(_first_line(error))
    if empty or backend in ran:
        return None
    return f"cannot be forced here: {', '.join(ran) or 'another kernel'} runs instead"


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
