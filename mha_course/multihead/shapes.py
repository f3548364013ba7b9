"""The shapes that one call of multi-head attention goes through, recorded while it runs."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mha_course.multihead.module import MultiHeadAttention

MEANING = {
    "B": "samples",
    "T": "queries",
    "S": "keys, and as many values",
    "E": "width of the model",
    "Ek": "width of key",
    "Ev": "width of value",
    "H": "heads",
    "Hkv": "heads of k and v, each read by H / Hkv heads of q",
    "D": "width of a head",
    "HD": "the heads side by side, H times D",
    "HkvD": "the heads of k and v side by side, Hkv times D",
}


class Shape(NamedTuple):
    """The shape of one tensor of a call.

    Attributes:
        step: the step that made it, for example "2 split"; "input" for what came in.
        tensor: what it is, for example "q".
        axes: a letter for each axis, for example ("B", "H", "T", "D").
        sizes: as found, for example (2, 4, 3, 4).
    """

    step: str
    tensor: str
    axes: tuple[str, ...]
    sizes: tuple[int, ...]


class ShapeTrace(tuple[Shape, ...]):
    """The shapes of a call, in the order in which they arose; shown as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        """One line for each tensor: step, tensor, axes, shape; then what the letters mean."""
        rows = [("step", "tensor", "axes", "shape")]
        sizes: dict[str, int] = {}
        for before, shape in zip((None, *self), self, strict=False):
            step = "" if before is not None and before.step == shape.step else shape.step
            rows.append((step, shape.tensor, ", ".join(shape.axes), str(shape.sizes)))
            sizes |= dict(zip(shape.axes, shape.sizes, strict=True))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, "", *(f"{letter} = {n}: {MEANING[letter]}" for letter, n in sizes.items())])


def trace_shapes(
    module: MultiHeadAttention,
    query: Float[Tensor, "B T E"],
    key: Float[Tensor, "B S Ek"] | None = None,
    value: Float[Tensor, "B S Ev"] | None = None,
    *,
    mask: Bool[Tensor, "..."] | None = None,
) -> ShapeTrace:
    """Run a module once, on the explicit path and without gradients, and list every shape.

    The sizes are those of the tensors of this run: what enters and leaves the four projections,
    and what `module.trace` returns.

    Args:
        module: it is called once; in training mode with dropout.
        query, key, value, mask: as in `MultiHeadAttention.forward`.

    Returns:
        ShapeTrace, a tuple of `Shape(step, tensor, axes, sizes)`; `print` shows it as a table of the
        seven steps project, split, scores, softmax, weighted sum, merge, output projection.

    Raises:
        TypeError: module is not a MultiHeadAttention; and as `MultiHeadAttention.forward`.
        ValueError: as `MultiHeadAttention.forward`.
    """
    if not isinstance(module, MultiHeadAttention):
        raise TypeError(f"module must be a MultiHeadAttention, got {type(module).__name__}")
    passed: list[tuple[Tensor, Tensor]] = []  # through q_proj, k_proj, v_proj and out_proj, in this order

    def record(linear: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        passed.append((inputs[0], output))

    linears = (module.q_proj, module.k_proj, module.v_proj, module.out_proj)
    handles = [linear.register_forward_hook(record) for linear in dict.fromkeys(linears)]  # one may stand twice
    try:
        with torch.no_grad():
            run = module.trace(query, key, value, mask=mask)
    finally:
        for handle in handles:
            handle.remove()

    (of_q, q), (of_k, k), (of_v, v), (of_out, out) = passed
    E, H = of_q.shape[-1], "H" if run.k.shape[1] == run.q.shape[1] else "Hkv"
    found = [
        ("input", "query", "B T E", of_q),
        ("input", "key", "B S E" if of_k.shape[-1] == E else "B S Ek", of_k),
        ("input", "value", "B S E" if of_v.shape[-1] == E else "B S Ev", of_v),
        ("1 project", "q_proj(query)", "B T HD", q),
        ("1 project", "k_proj(key)", f"B S {H}D", k),
        ("1 project", "v_proj(value)", f"B S {H}D", v),
        ("2 split", "q", "B H T D", run.q),
        ("2 split", "k", f"B {H} S D", run.k),
        ("2 split", "v", f"B {H} S D", run.v),
        ("3 scores", "q k^T / sqrt(D)", "B H T S", run.scores),
        ("4 softmax", "weights", "B H T S", run.weights),
        ("5 weighted sum", "weights v", "B H T D", run.heads),
        ("6 merge", "heads side by side", "B T HD", of_out),
        ("7 output projection", "out", "B T E", out),
    ]
    return ShapeTrace(Shape(step, name, tuple(axes.split()), tuple(x.shape)) for step, name, axes, x in found)
