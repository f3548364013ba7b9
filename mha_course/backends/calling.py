"""One call of `compare`: the same for each function, and nothing left behind."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from mha_course.measure import PairedRatio, paired_ratio, peak_memory

Function = Callable[..., Any]


class Call:
    """One way to call each function: the same inputs, the same seed, the same gradient of the output."""

    def __init__(self, given: dict[str, Any], by_name: bool, seed: int) -> None:
        self.given, self.by_name, self.seed = given, by_name, seed
        tensors = [x for x in tree_leaves(given) if isinstance(x, Tensor)]
        self.device = next((x.device for x in tensors), torch.device("cpu"))
        self.drawn: dict[Any, Tensor] = {}
        self.leaves = [name for name, x in given.items() if isinstance(x, Tensor) and x.requires_grad]

    def copies(self) -> dict[str, Any]:
        """The inputs with copies of their tensors: of the same strides, and a tensor that is there twice stays one."""
        detached: dict[int, Tensor] = {}
        memo: dict[int, Any] = {}

        def copied(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            own = detached.setdefault(id(x), x.detach())
            return copy.deepcopy(own, memo).requires_grad_(x.requires_grad)

        return tree_map(copied, self.given)

    def once(self, fn: Function, given: dict[str, Any]) -> list[Tensor]:
        """The output, and the gradient of each input that needs one: what is measured."""
        given = {name: x.detach().requires_grad_() if name in self.leaves else x for name, x in given.items()}
        with torch.set_grad_enabled(bool(self.leaves)):
            returned = fn(**given) if self.by_name else fn(*given.values())
            out = next((x for x in tree_leaves(returned) if isinstance(x, Tensor)), None)
            if out is None:
                raise TypeError("returns no tensor")
            leaves = [given[name] for name in self.leaves]
            if not out.requires_grad:
                return [out, *map(torch.zeros_like, leaves)]
            grads = torch.autograd.grad(out, leaves, self.upstream(out), allow_unused=True, materialize_grads=True)
        return [out.detach(), *grads]

    def upstream(self, out: Tensor) -> Tensor:
        """The gradient of the output: drawn for the first output of that kind, so that no measured call draws it."""
        kind = out.shape, out.dtype, out.device
        if kind not in self.drawn:
            generator = torch.Generator().manual_seed(self.seed)
            dtype = torch.complex128 if out.is_complex() else torch.float64
            self.drawn[kind] = torch.randn(out.shape, generator=generator, dtype=dtype).to(out)
        return self.drawn[kind]

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Draw from the seed inside, and from where it stood before afterwards."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            yield

    def attempt(self, fn: Function) -> list[Tensor] | str:
        """What a call gives, or what it raised, in words."""
        try:
            with self.seeded(), _as_before(fn):
                result = [x.clone() for x in self.once(fn, self.copies())]  # an output may be a buffer
            for x in result:
                largest(x, x)  # an output of a layout that cannot be compared is an error of its function
            return result
        except Exception as error:
            return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"

    def in_float64(self, fn: Function) -> Tensor | None:
        """The output in float64, if fn can do that."""
        given = tree_map(lambda x: wide(x) if isinstance(x, Tensor) and _has_fractions(x) else x, self.copies())
        try:
            exact = copy.deepcopy(fn).double() if isinstance(fn, nn.Module) else fn
            with self.seeded(), _as_before(fn):
                out = self.once(exact, given)[0]
        except Exception:  # a function that holds parameters of its own, a device without float64
            return None
        return out if out.dtype in (torch.float64, torch.complex128) else None

    def time(self, fn: Function, reference: Function, rounds: int) -> PairedRatio:
        """How long fn takes, as a multiple of the reference."""
        mine, theirs = self.copies(), self.copies()
        with self.seeded(), _as_before(fn), _as_before(reference):
            return paired_ratio(lambda: self.once(fn, mine), lambda: self.once(reference, theirs), rounds=rounds)

    def memory(self, fn: Function) -> int | None:
        """Bytes at the peak of a call, None on a device that does not count them."""
        if self.device.type not in ("cpu", "cuda"):
            return None
        given = self.copies()
        with self.seeded(), _as_before(fn):
            return peak_memory(lambda: self.once(fn, given), device=self.device)


@contextmanager
def _as_before(fn: Function) -> Iterator[None]:
    """Leave the buffers and gradients of a module as they were."""
    modules = list(fn.modules()) if isinstance(fn, nn.Module) else []
    buffers = [(m._buffers, name, x, x.clone()) for m in modules for name, x in m._buffers.items() if x is not None]
    parameters = [p for m in modules for p in m.parameters(recurse=False)]
    gradients = [(p, p.grad, None if p.grad is None else p.grad.clone()) for p in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for named, name, x, was in buffers:
                named[name] = x.copy_(was)
            for p, grad, before in gradients:
                p.grad = grad if grad is None or before is None else grad.copy_(before)


def largest(a: Tensor, b: Tensor) -> float:
    """The largest difference; NaN if one is NaN where the other is not."""
    a, b = wide(a), wide(b.to(a.device))
    same = (a == b) | (a.isnan() & b.isnan())
    return (a - b).abs().masked_fill(same, 0.0).max().item() if a.numel() else 0.0


def wide(x: Tensor) -> Tensor:
    """The same in float64 or complex128."""
    return x.to(torch.complex128) if x.is_complex() else x.double()


def _has_fractions(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()
