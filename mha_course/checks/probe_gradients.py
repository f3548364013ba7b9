"""Where gradients go: parameters that get none, and inputs that get some they should not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from mha_course.checks.probe_calls import Probed

Names = tuple[str, ...]

ROUNDING = 100  # a gradient below so many roundings of the largest one is as good as 0


@dataclass(frozen=True, repr=False, eq=False)
class Gradients:
    """What `gradients` found; print it to read it.

    Attributes:
        none: parameters that the result does not depend on.
        zero: parameters whose gradient is exactly 0.
        rounding: parameters whose gradient is 0 but for rounding; a bias of the keys is one.
        nan: parameters whose gradient holds NaN or infinity.
        frozen: parameters that ask for no gradient.
        parameters: how many there are, 0 for a function without `module`.
        tokens: (T_out, T_in), whether row t depends on token j: its gradient is a number other than 0,
            in some sample.
        samples: (B, B), whether sample b depends on sample c.
        nan_inputs: (row, token) whose gradient holds NaN or infinity.
        note: which tensor was probed, where fn returns several; "" otherwise.
    """

    none: Names
    zero: Names
    rounding: Names
    nan: Names
    frozen: Names
    parameters: int
    tokens: Bool[Tensor, "T_out T_in"]
    samples: Bool[Tensor, "B B"]
    nan_inputs: tuple[tuple[int, int], ...]
    note: str

    @property
    def ahead(self) -> tuple[tuple[int, int], ...]:
        """The pairs (t, j), j > t, in which row t depends on a later token."""
        return _pairs(self.tokens.triu(1))

    @property
    def between_samples(self) -> tuple[tuple[int, int], ...]:
        """The pairs (b, c), c not b, in which sample b depends on sample c."""
        return _pairs(self.samples & ~torch.eye(len(self.samples), dtype=torch.bool))

    def __str__(self) -> str:
        """In sentences, one a line."""
        lines = [
            f"Parameters {what}: {', '.join(names)}."
            for what, names in (
                ("without a gradient", self.none),
                ("with gradient 0", self.zero),
                ("with gradient 0 but for rounding", self.rounding),
                ("with NaN or infinity in their gradient", self.nan),
                ("that ask for none", self.frozen),
            )
            if names
        ]
        if self.parameters and not lines:
            lines = [f"All {self.parameters} parameters get a gradient."]
        if self.nan_inputs:
            named = "; ".join(f"row {t} to token {j}" for t, j in self.nan_inputs[:4])
            lines.append(f"NaN or infinity in the gradient from {named}{_more(self.nan_inputs)}.")
        ahead = "; ".join(f"row {t} on token {j}" for t, j in self.ahead[:4])
        lines.append(f"Depends on a later token: {ahead or 'no row'}{_more(self.ahead)}.")
        between = "; ".join(f"sample {b} on sample {c}" for b, c in self.between_samples[:4])
        lines.append(f"Depends on another sample: {between or 'none'}{_more(self.between_samples)}.")
        return "\n".join([*lines, *([self.note] if self.note else [])])

    __repr__ = __str__


@torch.inference_mode(False)
def gradients(
    fn: Callable[..., Any],
    *inputs: Tensor,
    module: nn.Module | None = None,
    change: int | None = None,
    batch_first: bool = True,
    seed: int = 0,
) -> Gradients:
    """Find the parameters that get no gradient, and the inputs that get one they should not.

    Every number is weighted by a drawn one before it is summed: the plain sum after a layer norm is
    constant, and its gradient 0. Gradients that the parameters already hold stay as they are.

    Args:
        fn: as in `leaks`; its parameters are looked at if it is a module.
        *inputs: floating point tensors.
        module: whose parameters are looked at, if fn is a function that uses one.
        change: the input whose tokens are looked at, by its place; all inputs together, which must be
            equally long, if None.
        batch_first: False for (T, B, E).
        seed: of the drawn numbers; the global generator is not touched.

    Returns:
        Gradients. A row that depends on nothing by its gradient may still move (rounding, arg max):
        `leaks` sees that, and NaN too.

    Raises:
        TypeError: as in `leaks`; an input is not floating point; module is not a module.
        ValueError: as in `leaks`, but for the check for two results.
    """
    module = fn if module is None and isinstance(fn, nn.Module) else module
    if module is not None and not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    probed = Probed(fn, inputs, change=change, batch_first=batch_first)
    probed.check_finite()
    for i in probed.change:
        if not probed.inputs[i].is_floating_point():
            raise TypeError(f"input {i} must be floating point to have a gradient, got {probed.inputs[i].dtype}")
    leaves = [probed.inputs[i].clone().requires_grad_() for i in probed.change]
    given = [x.clone() for x in probed.inputs]
    for i, leaf in zip(probed.change, leaves, strict=True):
        given[i] = leaf
    named = dict(module.named_parameters()) if module is not None else {}
    trained = {name: p for name, p in named.items() if p.requires_grad}

    generator = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        out = probed.first(given)
        probed.check_rows(out)
        if not out.requires_grad:
            probed.note = f"The result has no graph: nothing depends on anything by gradient. {probed.note}".rstrip()
        rows = probed.rows(out)  # (B, T_out, rest)
        weighted = rows * torch.randn(rows.shape, generator=generator, dtype=torch.float64).to(rows)

    def reached(part: Tensor) -> Tensor:
        """The gradients of part in the tokens of all inputs: (B, T_in, rest)."""
        if not weighted.requires_grad:
            return torch.zeros(probed.B, probed.T, 1)
        found = torch.autograd.grad(part.sum(), leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
        return torch.cat([probed.rows(g) for g in found], -1).cpu()

    tokens = torch.zeros(rows.shape[1], probed.T, dtype=torch.bool)
    bad = tokens.clone()
    samples = torch.zeros(probed.B, probed.B, dtype=torch.bool)
    found: tuple[Tensor | None, ...] = (None,) * len(trained)
    with torch.enable_grad():
        for t in range(rows.shape[1]):
            gradient = reached(weighted[:, t])
            tokens[t], bad[t] = _depends(gradient).any(0), (~gradient.isfinite()).any(-1).any(0)
        for b in range(probed.B):
            samples[b] = _depends(reached(weighted[b])).any(-1)
        if weighted.requires_grad and trained:
            found = torch.autograd.grad(weighted.sum(), list(trained.values()), allow_unused=True)
    none, zero, rounding, nan = _kinds(dict(zip(trained, found, strict=True)))
    frozen = tuple(name for name in named if name not in trained)
    return Gradients(none, zero, rounding, nan, frozen, len(named), tokens, samples, _pairs(bad), probed.note)


def _depends(gradient: Tensor) -> Tensor:
    """Where a gradient (B, T_in, rest) is a number other than 0: NaN spreads by 0 times NaN."""
    return ((gradient != 0) & gradient.isfinite()).any(-1)


def _kinds(of: dict[str, Tensor | None]) -> tuple[Names, Names, Names, Names]:
    """Names of parameters without a gradient, with 0, with rounding alone, with NaN."""
    sizes = {name: g.abs().max().item() if g.numel() else 0.0 for name, g in of.items() if g is not None}
    finite = {name: size for name, size in sizes.items() if size < float("inf")}
    largest = max(finite.values(), default=0.0)

    def is_rounding(name: str) -> bool:
        gradient = of[name]
        assert gradient is not None
        return 0 < finite[name] <= ROUNDING * torch.finfo(gradient.dtype).eps * largest

    return (
        tuple(name for name, g in of.items() if g is None),
        tuple(name for name, size in sizes.items() if size == 0),
        tuple(name for name in finite if is_rounding(name)),
        tuple(name for name in sizes if name not in finite),
    )


def _pairs(where: Tensor) -> tuple[tuple[int, int], ...]:
    return tuple((a, b) for a, b in where.nonzero().tolist())


def _more(pairs: tuple[Any, ...]) -> str:
    return f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
