"""What the low types cost in accuracy: a module under autocast against itself in float64."""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Errors(NamedTuple):
    """Relative errors, norm of the difference over norm.

    Attributes:
        out: of the output.
        gradients: of the gradients of all parameters, taken as one vector.
    """

    out: float
    gradients: float


def errors_against_float64(
    module: nn.Module, *args: Tensor, dtypes: Sequence[torch.dtype] = DTYPES
) -> dict[torch.dtype, Errors]:
    """Run a module forward and backward in each type and compare with float64.

    error = ||x - x64|| / ||x64||, NaN for 0 / 0

    The gradients are those of the output times fixed noise, summed. Weights and inputs are float32 in each run, only
    the computation differs; float64 starts from the same numbers.

    Args:
        module: returns one tensor; in float32, on any device with float64. A new copy of it runs each time.
        args: its inputs, floating point tensors.
        dtypes: torch.float32 runs without autocast, the others under it.

    Returns:
        For each type Errors(out, gradients).

    Raises:
        TypeError: an argument is not a floating point tensor; module does not return a tensor.
        ValueError: no parameter of module needs a gradient.
    """
    for x in args:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"args must be floating point tensors, got {getattr(x, 'dtype', type(x).__name__)}")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("module must have a parameter that needs a gradient, got none")
    exact = _run(copy.deepcopy(module).double(), [x.detach().double() for x in args], torch.float64)
    found = {}
    for dtype in dtypes:
        run = _run(copy.deepcopy(module), [x.detach() for x in args], dtype)
        out, gradients = (((a - b).norm() / b.norm()).item() for a, b in zip(run, exact, strict=True))
        found[dtype] = Errors(out, gradients)
    return found


def _run(module: nn.Module, args: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The output and all gradients as one vector, in float64."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    device = parameters[0].device.type
    low = dtype not in (torch.float32, torch.float64)
    # Each run starts from the same state of the generators, so that dropout drops the same.
    with torch.random.fork_rng(devices=[] if device == "cpu" else None), torch.enable_grad():
        with torch.autocast(device, dtype=dtype if low else torch.bfloat16, enabled=low):
            out = module(*args)
        if not isinstance(out, Tensor):
            raise TypeError(f"module must return a tensor, got {type(out).__name__}")
        noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out.device, out.dtype)
        with torch.autocast(device, enabled=False):  # one around the call would lower the backward pass
            gradients = torch.autograd.grad(out, parameters, noise, allow_unused=True, materialize_grads=True)
    return out.detach().double(), torch.cat([g.double().flatten() for g in gradients])
