"""The steps of multi-head attention timed one by one, and held against what they should take."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mha_course.measure import Timing, _check_count, _no_garbage_collection, _seconds
from mha_course.multihead import MultiHeadAttention
from mha_course.multihead._inputs import autocasts
from mha_course.multihead.steps import merge_heads, one_per_query_head
from mha_course.profiling.counts import Cost, check_bool
from mha_course.profiling.roofline import Machine

Step = Callable[[], Any]


class Row(NamedTuple):
    """A step, as predicted and as measured.

    Attributes:
        step: its name.
        predicted: seconds, by `Machine.seconds`.
        measured: seconds, the median.
        bound: what takes longest by the prediction: "compute", "memory" or "exp".
    """

    step: str
    predicted: float
    measured: float
    bound: str

    @property
    def ratio(self) -> float:
        """Measured over predicted; above 1, slower than the machine could be; infinite where 0 is predicted."""
        return self.measured / self.predicted if self.predicted else math.inf


class Comparison(tuple[Row, ...]):
    """The rows of `compare`, shown as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        """One line for each step, the sum in the last."""
        wide = max([14, *(len(row.step) + 1 for row in self)])
        lines = [f"{'step':{wide}}{'predicted':>13}{'measured':>13}{'ratio':>8}  bound"]
        total = Row("sum", sum(row.predicted for row in self), sum(row.measured for row in self), "")
        for row in (*self, total):
            times = f"{1e3 * row.predicted:10.3f} ms{1e3 * row.measured:10.3f} ms{row.ratio:8.2f}"
            lines.append(f"{row.step:{wide}}{times}  {row.bound}".rstrip())
        return "\n".join(lines)


@torch.no_grad()
def step_times(
    module: MultiHeadAttention, x: Float[Tensor, "B S E"], *, repeats: int = 7, backward: bool = False
) -> dict[str, Timing]:
    """Time each step of self-attention alone.

    The steps are those of `attention_costs(..., explicit=True)`, each one product or one softmax that reads what the
    step before it made and writes to memory that is already there. What `module.trace` does besides stays out: new
    memory for each result, the copies that split heads need, the scale, a search for rows that may attend to nothing.
    Times hold for the values of x too: subnormal numbers can make a CPU many times slower.

    Args:
        module: with four `nn.Linear`; its dropout and its backend are not used.
        x: (B, S, E).
        repeats: number of times taken of each step, at least 1.
        backward: time the backward pass of each step instead. The gradients that enter it are noise. The random state
            of PyTorch is the same afterwards.

    Returns:
        Step -> Timing, named and ordered as by `attention_costs`.

    Raises:
        TypeError: module is not a MultiHeadAttention, or a projection is not an nn.Linear; x as in `forward`; repeats
            is not an integer; backward is not True or False.
        ValueError: x as in `forward`, or it has no samples or tokens, or lies on "meta"; repeats is below 1.
        RuntimeError: autocast is on, which would not reach the steps.
    """
    if not isinstance(module, MultiHeadAttention):
        raise TypeError(f"module must be a MultiHeadAttention, got {type(module).__name__}")
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        if type(getattr(module, name)) is not nn.Linear:
            raise TypeError(f"module.{name} must be an nn.Linear, got {type(getattr(module, name)).__name__}")
    _check_count("repeats", repeats, 1)
    check_bool("backward", backward)
    device = module.q_proj.weight.device
    if autocasts(device):
        raise RuntimeError("step_times must run outside of autocast: convert module and x instead")
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        calls = _calls(module, x, backward)
    names = [*calls]
    taken: dict[str, list[float]] = {name: [] for name in names}
    with _no_garbage_collection():
        for call in calls.values():
            call()
        for turn in range(repeats):
            # In turn, so that a machine that slows down slows all of them, and each time from another step on: a
            # system that takes the processor away every few milliseconds would else hit the same step in each round.
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                taken[name].append(_seconds(calls[name]))
    return {name: Timing(tuple(times)) for name, times in taken.items()}


def compare(costs: Mapping[str, Cost], times: Mapping[str, Timing], machine: Machine) -> Comparison:
    """Hold measured times against what the roofline predicts.

    Args:
        costs: step -> Cost, as from `attention_costs`.
        times: step -> Timing, as from `step_times`, of the same steps.
        machine: as from `measure_machine`.

    Returns:
        Comparison, a tuple of `Row(step, predicted, measured, bound)` in the order of costs; `print` shows a table.

    Raises:
        ValueError: costs and times are not of the same steps.
    """
    if costs.keys() != times.keys():
        raise ValueError(f"costs and times must be of the same steps, got {[*costs]} and {[*times]}")
    rows = ((name, machine.seconds(cost), times[name].median, machine.bound(cost)) for name, cost in costs.items())
    return Comparison(Row(*row) for row in rows)


def _calls(module: MultiHeadAttention, x: Tensor, backward: bool) -> dict[str, Step]:
    """What is timed for each step; dropout and noise draw random numbers."""
    run = module.trace(x)
    if not x.numel():
        raise ValueError(f"x must hold at least one sample and one token, got {tuple(x.shape)}")
    if x.is_meta:
        raise ValueError("x must hold numbers, got a tensor on meta")
    k, v = (one_per_query_head(heads, run.q).flatten(0, 1).contiguous() for heads in (run.k, run.v))  # (B H, S, D)
    q = (run.q * run.q.shape[-1] ** -0.5).flatten(0, 1).contiguous()
    scores = run.scores.flatten(0, 1)
    weights = scores.softmax(-1)
    heads = merge_heads((weights @ v).view_as(run.heads)).flatten(0, 1)  # (B S, H D), without dropout
    rows = x.detach().flatten(0, 1)  # (B S, E)
    del run
    return {
        "q_proj": _project(module.q_proj, rows, backward),
        "k_proj": _project(module.k_proj, rows, backward),
        "v_proj": _project(module.v_proj, rows, backward),
        "scores": _multiply(q, k.mT, backward),
        "softmax": _softmax(scores, weights, backward),
        "weighted sum": _multiply(weights, v, backward),
        "out_proj": _project(module.out_proj, heads, backward),
    }


def _project(linear: nn.Linear, x: Tensor, backward: bool) -> Step:
    weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
    y = x.new_empty(len(x), len(weight))
    if not backward:
        if bias is None:
            return lambda: torch.mm(x, weight.T, out=y)
        return lambda: torch.addmm(bias, x, weight.T, out=y)
    dy, dx, d_weight = torch.randn_like(y), torch.empty_like(x), torch.empty_like(weight)
    d_bias = x.new_empty(len(weight))

    def gradients() -> None:
        torch.mm(dy, weight, out=dx)
        torch.mm(dy.T, x, out=d_weight)
        if bias is not None:
            torch.sum(dy, 0, out=d_bias)

    return gradients


def _multiply(a: Tensor, b: Tensor, backward: bool) -> Step:
    out = a.new_empty(len(a), a.shape[1], b.shape[2])
    if not backward:
        return lambda: torch.bmm(a, b, out=out)
    d_out, da, db = torch.randn_like(out), torch.empty_like(a), torch.empty_like(b)

    def gradients() -> None:
        torch.bmm(d_out, b.mT, out=da)
        torch.bmm(a.mT, d_out, out=db)

    return gradients


def _softmax(scores: Tensor, weights: Tensor, backward: bool) -> Step:
    if not backward:
        out = torch.empty_like(weights)
        return lambda: torch.softmax(scores, -1, out=out)
    d_weights, d_scores = torch.randn_like(weights), torch.empty_like(scores)
    softmax_backward: Any = torch._softmax_backward_data
    return lambda: softmax_backward(d_weights, weights, -1, scores.dtype, grad_input=d_scores)
