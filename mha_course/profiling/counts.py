"""What the steps of attention cost: operations and bytes, by formula and by PyTorch's own counter."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from mha_course.measure import _check_callable, _ran
from mha_course.multihead._inputs import size

SOFTMAX_OPERATIONS = 5  # for each score: maximum, subtract, exponential, sum, divide
SOFTMAX_BACKWARD_OPERATIONS = 4  # for each score: multiply, sum, subtract, multiply

aten: Any = torch.ops.aten


class Cost(NamedTuple):
    """What a step does.

    Attributes:
        flops: floating point operations, 2 for a multiplication with its addition.
        read: bytes read.
        written: bytes written.
        exps: exponentials taken.
    """

    flops: int = 0
    read: int = 0
    written: int = 0
    exps: int = 0

    @property
    def bytes(self) -> int:
        """Bytes moved: read and written."""
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, operations for each byte moved; infinity where nothing moves."""
        return self.flops / self.bytes if self.bytes else math.inf

    def __add__(self, other: Any) -> "Cost":
        """Both, one after the other."""
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def __radd__(self, other: Any) -> "Cost":
        """Itself after the 0 from which `sum` starts."""
        return self if isinstance(other, int) and other == 0 else NotImplemented


class Counted(NamedTuple):
    """What PyTorch's counter found.

    Attributes:
        total: floating point operations.
        by_operation: PyTorch's name of an operation -> its part of the total, for example "bmm" -> 1024.
    """

    total: int
    by_operation: dict[str, int]


def attention_costs(
    B: int,
    T: int,
    S: int,
    E: int,
    H: int,
    *,
    Hkv: int | None = None,
    D: int | None = None,
    itemsize: int = 4,
    explicit: bool = True,
    backward: bool = False,
    mask: bool = False,
) -> dict[str, Cost]:
    """Count what each step of `MultiHeadAttention` costs.

    A product of (m, n) and (n, p) takes 2 m n p operations. The four projections take 2 B E H D (2 T) and
    2 B E Hkv D (2 S), the products with scores and weights 2 B H T S D each. For self-attention with H D = E and
    Hkv = H that is 8 B S E^2 + 4 B S^2 E, as `counted` finds. Softmax comes apart from the products: PyTorch's
    counter leaves it out. Here it is 5 operations for each of the B H T S scores, one of them an exponential; 4
    and none in the backward pass.

    A step reads each of its operands once and writes its result once: the least that it can move, unless it is joined
    with its neighbour. Softmax therefore reads and writes B H T S numbers.

    In the backward pass each product becomes two of its size, one for each operand. The fused kernel keeps no
    weights, so it computes scores and exponentials again: five products for two, 10 B H T S D. Its softmax is counted
    as `exps` only, in both passes.

    Args:
        B, T, S, E, H: batch, queries, keys, width of the model (also of key and value), heads; at least 1.
        Hkv: heads of k and v, a divisor of H; H if None.
        D: width of a head; E / H if None.
        itemsize: bytes of a number: 4 for float32, 2 for float16 and bfloat16.
        explicit: whether scores and weights are written out; else one fused step takes q, k and v to heads.
        backward: count the backward pass instead of the forward pass; gradients of the inputs are among the results.
        mask: whether a bool mask of (T, S) is read. Written out, the scores are then copied with -inf filled in. A
            causal mask removes no operation here, nor in PyTorch's counter.

    Returns:
        Step -> Cost, in the order in which they run forward: "q_proj", "k_proj", "v_proj", "scores", "softmax",
        "weighted sum", "out_proj"; with explicit=False "attention" instead of the three in the middle. With a bias in
        each projection; it adds bytes, and by PyTorch's rule no operations.

    Raises:
        TypeError: a size is not an integer; explicit, backward or mask is not True or False.
        ValueError: a size is below 1; Hkv does not divide H; H does not divide E and D is None.

    Source: Williams, Waterman and Patterson 2009, section 3 (operational intensity).
    """
    B, T, S, E, H = (size(name, n, 0) for name, n in zip("BTSEH", (B, T, S, E, H), strict=True))
    Hkv, itemsize = size("Hkv", Hkv, H), size("itemsize", itemsize, 0)
    for name, answer in {"explicit": explicit, "backward": backward, "mask": mask}.items():
        check_bool(name, answer)
    if H % Hkv:
        raise ValueError(f"Hkv must divide H, got {Hkv} and {H}")
    if D is None and E % H:
        raise ValueError(f"H must divide E if D is None, got {H} and {E}")
    D = size("D", D, E // H)
    q, k, scores = B * H * T * D, B * Hkv * S * D, B * H * T * S  # how many numbers each holds
    product = 2 * scores * D
    hidden = T * S if mask else 0  # bytes of the mask

    def project(rows: int, wide: int, narrow: int) -> Cost:
        operations, x, y, weight = 2 * rows * wide * narrow, rows * wide, rows * narrow, wide * narrow
        if backward:  # dy, x and W give dx, dW and db
            return _cost(2 * operations, y + x + weight, x + weight + narrow, itemsize)
        return _cost(operations, x + weight + narrow, y, itemsize)

    out_proj = project(B * T, H * D, E)
    steps = {"q_proj": project(B * T, E, H * D)}
    steps |= {name: project(B * S, E, Hkv * D) for name in ("k_proj", "v_proj")}
    if not explicit:
        rows = B * H * T  # the logarithm of a row's sum is kept for the backward pass
        if backward:  # q, k, v, out, its gradient and the rows give dq, dk and dv
            fused = _cost(5 * product, 3 * q + 2 * k + rows, q + 2 * k, itemsize, exps=scores)
        else:
            fused = _cost(2 * product, q + 2 * k, q + rows, itemsize, exps=scores)
        return {**steps, "attention": fused._replace(read=fused.read + hidden), "out_proj": out_proj}
    if backward:
        steps["scores"] = _cost(2 * product, scores + q + k, q + k, itemsize)
        steps["softmax"] = _cost(SOFTMAX_BACKWARD_OPERATIONS * scores, 2 * scores, scores, itemsize)
        steps["weighted sum"] = _cost(2 * product, q + scores + k, scores + k, itemsize)
    else:
        steps["scores"] = _cost(product, q + k, scores, itemsize)
        steps["softmax"] = _cost(SOFTMAX_OPERATIONS * scores, scores, scores, itemsize, exps=scores)
        steps["weighted sum"] = _cost(product, scores + k, q, itemsize)
    if mask:
        steps["scores"] += Cost(read=scores * itemsize + hidden, written=scores * itemsize)
    return {**steps, "out_proj": out_proj}


def counted(fn: Callable[[], Any]) -> Counted:
    """Run a function once and let PyTorch count the operations of its products.

    `torch.utils.flop_counter.FlopCounterMode` with one addition: it knows the fused attention kernels of GPUs but not
    that of the CPU, and leaves its products out. They are counted here as its formula for the others counts them, two
    products forward and five backward, whatever a mask hides. Not seen is what fn does in threads of its own.

    Args:
        fn: called without arguments; with its backward pass, if it runs one.

    Returns:
        Counted(total, by_operation), the largest part first. What fn raises is passed on.

    Raises:
        TypeError: fn cannot be called, or returns a generator or coroutine.
    """
    _check_callable("fn", fn)
    counter = FlopCounterMode(display=False, custom_mapping=_FUSED_ON_CPU)
    with counter:
        _ran(fn())
    found = {str(name).removeprefix("aten."): n for name, n in counter.get_flop_counts().get("Global", {}).items()}
    return Counted(counter.get_total_flops(), dict(sorted(found.items(), key=lambda item: -item[1])))


def check_bool(name: str, answer: bool) -> None:
    """Raise unless answer is True or False."""
    if not isinstance(answer, bool):
        raise TypeError(f"{name} must be True or False, got {type(answer).__name__}")


def _cost(flops: int, read: int, written: int, itemsize: int, exps: int = 0) -> Cost:
    return Cost(flops, read * itemsize, written * itemsize, exps)


def _fused(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any) -> int:
    B, H, T, D = q
    return 2 * B * H * T * k[2] * (D + v[3])


def _fused_backward(
    d_out: Sequence[int], q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any
) -> int:
    B, H, T, D = q
    return 2 * B * H * T * k[2] * (3 * D + 2 * v[3])  # scores, dq, dk; dweights, dv


_FUSED_ON_CPU = {
    aten._scaled_dot_product_flash_attention_for_cpu: _fused,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward,
}
