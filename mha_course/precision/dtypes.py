"""Which type each operation of a module really uses under autocast, forward and backward: found by running it."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Phase = Literal["forward", "backward"]


@dataclass(frozen=True)
class Op:
    """One operation, and how often it ran with these types.

    Attributes:
        name: PyTorch's, such as "mm" (a matrix product), "bmm" (several) or "_to_copy" (a change of type).
        phase: "forward" or "backward".
        inputs: types of its floating point inputs, in their order.
        outputs: types of its floating point outputs.
        count: how often it ran.
    """

    name: str
    phase: Phase
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]
    count: int


@dataclass(frozen=True, repr=False)
class DtypeTrace:
    """What ran; print it to read it as a table.

    Attributes:
        rows: the operations in the order in which they first ran.
    """

    rows: tuple[Op, ...]

    def only(self, *names: str) -> "DtypeTrace":
        """Keep the operations whose name contains one of these words."""
        return DtypeTrace(tuple(row for row in self.rows if any(name in row.name for name in names)))

    def __str__(self) -> str:
        """One line for each row, in columns."""
        lines = [("", "operation", "takes", "gives", "times")]
        lines += [(r.phase, r.name, _listed(r.inputs), _listed(r.outputs), str(r.count)) for r in self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(f"{x:{w}}" for x, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    __repr__ = __str__


class _Recorder(TorchDispatchMode):
    """Note the types of each operation, below autocast and autograd, where they are those of the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.phase: Phase = "forward"
        self.ran: Counter[tuple[str, Phase, tuple[torch.dtype, ...], tuple[torch.dtype, ...]]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs, outputs = _dtypes((args, kwargs)), _dtypes(out)
        name = func.overloadpacket.__name__
        if inputs and outputs and not func.is_view and name != "_unsafe_view":
            self.ran[name, self.phase, inputs, outputs] += 1
        return out


def trace_dtypes(
    module: Callable[..., Any],
    *args: Any,
    dtype: torch.dtype = torch.bfloat16,
    device_type: str = "cpu",
    enabled: bool = True,
    backward: bool = True,
    **kwargs: Any,
) -> DtypeTrace:
    """Run a module forward and backward under autocast, and tell the types of each operation.

    The forward pass runs inside `torch.autocast`, the backward pass outside, as in training; an autocast around the
    call has no effect on either. Gradients start as ones. Views, which compute nothing, are left out. Weights are
    converted anew for each use, where autocast outside of this function would keep what it has converted.

    Args:
        module: a module, or a function. What it computes with may be arguments, or held by it.
        args, kwargs: what it is called with.
        dtype: the low type of autocast.
        device_type: where the module lies, "cpu" or "cuda" for instance.
        enabled: False runs without autocast.
        backward: False runs the forward pass alone.

    Returns:
        DtypeTrace(rows). The module's gradients, buffers and mode and the random number generators are afterwards
        what they were.

    Raises:
        TypeError: module cannot be called; dtype is not a floating point type.
        ValueError: backward, and no output needs a gradient.
    """
    if not callable(module):
        raise TypeError(f"module must be a module or a function, got {type(module).__name__}")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating point type, got {dtype}")
    recorder = _Recorder()
    options: dict[str, Any] = {"device_type": device_type, "dtype": dtype}
    with torch.random.fork_rng(device_type="cuda" if device_type == "cpu" else device_type), _own_buffers(module):
        with torch.set_grad_enabled(backward), torch.autocast(**options, enabled=enabled, cache_enabled=False):
            with recorder:
                out = module(*args, **kwargs)
        if backward:
            _run_backward(recorder, options, out, list(_tensors((args, kwargs))))
    return DtypeTrace(tuple(Op(*row, count) for row, count in recorder.ran.items()))


@contextlib.contextmanager
def _own_buffers(module: Any) -> Iterator[None]:
    """Let a module compute with copies of its buffers, so that it can change neither them nor which it holds."""
    held = [(m, m._buffers) for m in module.modules()] if isinstance(module, nn.Module) else []
    copies = {id(b): b.clone() for _, buffers in held for b in buffers.values() if b is not None}
    try:
        for m, buffers in held:
            m._buffers = {name: copies.get(id(b)) for name, b in buffers.items()}
        yield
    finally:
        for m, buffers in held:
            m._buffers = buffers


def _run_backward(recorder: _Recorder, options: dict[str, Any], out: Any, given: list[Tensor]) -> None:
    ends = [x for x in _tensors(out) if x.requires_grad]
    starts = _starts(ends, [x for x in given if x.requires_grad])
    if not ends or not starts:
        raise ValueError("an output of module must need a gradient, got none that does: pass backward=False")
    ones = [torch.ones_like(x) for x in ends]
    recorder.phase = "backward"
    with recorder, torch.autocast(**options, enabled=False):
        torch.autograd.grad(ends, starts, ones, allow_unused=True)  # leaves .grad alone


def _starts(ends: list[Tensor], given: list[Tensor]) -> list[Tensor]:
    """What the ends were computed from: the given tensors, and the leaves, which a module or a function holds."""
    starts = {id(x): x for x in given}
    seen = {x.grad_fn for x in given}  # not beyond them
    nodes = [x.grad_fn for x in ends]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().endswith("AccumulateGrad"):
            leaf = cast(Any, node).variable
            starts[id(leaf)] = leaf
        nodes += [before for before, _ in node.next_functions]
    return list(starts.values())


def _tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list | dict):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(part)


def _dtypes(tree: Any) -> tuple[torch.dtype, ...]:
    return tuple(x.dtype for x in _tensors(tree) if x.is_floating_point())


def _listed(dtypes: tuple[torch.dtype, ...]) -> str:
    """For example "2 bfloat16, float32"."""
    counts: list[tuple[torch.dtype, int]] = []
    for dtype in dtypes:
        if counts and counts[-1][0] == dtype:
            counts[-1] = (dtype, counts[-1][1] + 1)
        else:
            counts.append((dtype, 1))
    return ", ".join(
        f"{n} {str(d).removeprefix('torch.')}" if n > 1 else str(d).removeprefix("torch.") for d, n in counts
    )
