"""Experiments of notebook 07: what heads cost, how a module is called wrongly, and, imported, layouts and trainings."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mha_course import measure
from mha_course.experiments.heads_layout import (
    LAYOUTS,
    can_reach,
    in_place,
    share_in_place,
    wrong_merge,
    wrong_split,
)
from mha_course.experiments.heads_training import Fetched, Mixture, Reversal, best_read_out, fetch_two, reverse
from mha_course.experiments.scaling_training import at_least
from mha_course.multihead import MultiHeadAttention

__all__ = [
    "LAYOUTS",
    "Accounts",
    "Call",
    "Fetched",
    "Mixture",
    "Reversal",
    "Times",
    "accounts",
    "best_read_out",
    "calls",
    "can_reach",
    "fetch_two",
    "in_place",
    "reverse",
    "share_in_place",
    "times",
    "wrong_merge",
    "wrong_split",
]


class Accounts(NamedTuple):
    """What one forward call of a module costs, at every number of heads.

    Attributes:
        heads: (n,), H.
        parameters: (n,), of the module.
        flops: (n,), of all matrix products, two for each multiplication with addition.
        score_bytes: (n,), of the scores (B, H, T, T); the explicit path holds the weights as well.
    """

    heads: Integer[np.ndarray, " n"]
    parameters: Integer[np.ndarray, " n"]
    flops: Integer[np.ndarray, " n"]
    score_bytes: Integer[np.ndarray, " n"]


def accounts(heads: Sequence[int], *, embed_dim: int = 512, length: int = 1024, batch: int = 1) -> Accounts:
    """Count parameters, FLOPs and bytes of float32 self-attention on PyTorch's meta device, where nothing is computed.

    parameters = 4 (E^2 + E),   flops = 8 B T E^2 + 4 B T^2 E,   bytes = 4 B H T^2

    Args:
        heads: numbers of heads H, each a divisor of E.
        embed_dim: E.
        length: T = S.
        batch: B.

    Returns:
        Accounts(heads, parameters, flops, score_bytes), all counted, none by the formula.

    Raises:
        TypeError: a size is not an integer.
        ValueError: no number of heads; a size below 1; H does not divide E.
    """
    found = []
    x = _input(heads, embed_dim, length, batch, "meta")
    for H in heads:
        module = MultiHeadAttention(embed_dim, H, device="meta")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            scores = module.trace(x).scores
        found.append((H, sum(p.numel() for p in module.parameters()), counter.get_total_flops(), scores.nbytes))
    return Accounts(*np.array(found).T)


class Times(NamedTuple):
    """Seconds of one forward call without gradient, and of its parts, at every number of heads: medians.

    A large result lies in fresh memory, which the operating system maps page by page as it is first written. That can
    take several times as long as the arithmetic; the two columns "reused" write into memory that is mapped already.

    Attributes:
        heads: (n,), H.
        sdpa: (n,), the module with backend "sdpa".
        explicit: (n,), the module with backend "explicit".
        scores: (n,), of that the product q k^T.
        softmax: (n,), of that the softmax.
        values: (n,), of that the product of weights and v.
        scores_reused: (n,), the product q k^T, written into existing memory.
        softmax_reused: (n,), the softmax, written into existing memory.
    """

    heads: Integer[np.ndarray, " n"]
    sdpa: Float[np.ndarray, " n"]
    explicit: Float[np.ndarray, " n"]
    scores: Float[np.ndarray, " n"]
    softmax: Float[np.ndarray, " n"]
    values: Float[np.ndarray, " n"]
    scores_reused: Float[np.ndarray, " n"]
    softmax_reused: Float[np.ndarray, " n"]


def times(heads: Sequence[int], *, embed_dim: int = 512, length: int = 512, batch: int = 1, repeats: int = 5) -> Times:
    """Time self-attention in float32 with `measure.timings`, after one call that is not timed.

    Args:
        heads: numbers of heads H, each a divisor of E.
        embed_dim: E.
        length: T = S.
        batch: B.
        repeats: calls of which the median is taken.

    Returns:
        Times(heads, sdpa, explicit, scores, softmax, values, scores_reused, softmax_reused).

    Raises:
        TypeError: a size is not an integer.
        ValueError: no number of heads; a size below 1; H does not divide E.
    """
    found = []
    x = _input(heads, embed_dim, length, batch, "cpu")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        for H in heads:
            module = MultiHeadAttention(embed_dim, H)
            q, k, v = module.trace(x)[:3]
            row = [_median(module, x, repeats=repeats)]
            module.backend = "explicit"
            row.append(_median(module, x, repeats=repeats))
            q, k = q / math.sqrt(embed_dim // H), k.transpose(-2, -1)
            scores = q @ k
            row.append(_median(torch.matmul, q, k, repeats=repeats))
            row.append(_median(torch.softmax, scores, -1, repeats=repeats))
            row.append(_median(torch.matmul, scores, v, repeats=repeats))
            room = torch.zeros_like(scores)
            row.append(_median(partial(torch.matmul, out=room), q, k, repeats=repeats))
            row.append(_median(partial(torch.softmax, out=room), scores, -1, repeats=repeats))
            del scores, room  # the memory is wanted for the next number of heads
            found.append(row)
    return Times(np.array(heads), *np.array(found).T)


def _median(fn: Callable[..., Tensor], *arguments: Any, repeats: int) -> float:
    return measure.timings(partial(fn, *arguments), repeats=repeats).median


def _input(heads: Sequence[int], embed_dim: int, length: int, batch: int, device: str) -> Float[Tensor, "B T E"]:
    if not len(heads):
        raise ValueError("heads must hold at least one number, got none")
    for name, size in (("embed_dim", embed_dim), ("length", length), ("batch", batch)):
        at_least(name, size, 1)
    x = torch.randn(batch, length, embed_dim, generator=torch.Generator().manual_seed(0))
    return x.to(device)


class Call(NamedTuple):
    """A call, the type and the first line of what it raised or "nothing", and its result beside the right one.

    Attributes:
        call: as one would write it.
        raised: for example "TypeError: ..."; "nothing".
        result: "equal to no mask", "equal to mask", "something else" or, where it raised, "none".
    """

    call: str
    raised: str
    result: str


class Tutorial(nn.Module):
    """Self-attention as many tutorials write it: forward(x, mask), positions where mask is 0 filled with -1e9."""

    def __init__(self, module: MultiHeadAttention) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from x to x."""
        q, k, v = self.module.trace(x)[:3]
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.module.head_dim)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.module.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def calls(*, batch: int = 2, length: int = 3, embed_dim: int = 16, heads: int = 4) -> tuple[Call, ...]:
    """Call a module with forward(x, mask), and ours with forward(query, key, value, *, mask), rightly and wrongly.

    x is standard normal and mask causal. In the last call of the tutorial's module x has gone through a ReLU.

    Args:
        batch, length, embed_dim, heads: B, T, E, H.

    Returns:
        One Call for each, found by calling it here and now.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        ours = MultiHeadAttention(embed_dim, heads)
    tutorial, mask = Tutorial(ours), torch.ones(length, length).tril().bool()
    x = torch.randn(batch, length, embed_dim, generator=torch.Generator().manual_seed(0))
    positive = x.relu()
    return (
        _call("tutorial(x, mask)", tutorial, (x, mask), ours, mask),
        _call("tutorial(x, x, x)", tutorial, (x, x, x), ours, mask),
        _call("tutorial(x, x)", tutorial, (x, x), ours, mask),
        _call("tutorial(x.relu(), x.relu())", tutorial, (positive, positive), ours, mask),
        _call("ours(x, x, x)", ours, (x, x, x), ours, mask),
        _call("ours(x, mask)", ours, (x, mask), ours, mask),
        _call("ours(x, x, x, mask)", ours, (x, x, x, mask), ours, mask),
    )


def _call(text: str, fn: nn.Module, arguments: tuple[Tensor, ...], ours: MultiHeadAttention, mask: Tensor) -> Call:
    with torch.no_grad():
        try:
            out = fn(*arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            return Call(text, f"{type(error).__name__}: {str(error).splitlines()[0]}", "none")
        x = arguments[0]
        for name, known in (("no mask", ours(x)), ("mask", ours(x, mask=mask))):
            if out.shape == known.shape and torch.allclose(out, known, atol=1e-5):
                return Call(text, "nothing", f"equal to {name}")
    return Call(text, "nothing", "something else")
