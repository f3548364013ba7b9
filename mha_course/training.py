"""Train a model for a number of steps, and repeat an experiment over seeds with an interval."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

Batch = Sequence[Any]


class Fit(NamedTuple):
    """What a call of `fit` did.

    Attributes:
        losses: (steps done,), the loss of each step's batch before that step's update.
        stopped: whether the callback ended the training.
    """

    losses: Float[np.ndarray, " steps"]
    stopped: bool


class Repeats(NamedTuple):
    """An experiment's results over seeds: their mean with a 95 % t-interval.

    Attributes:
        mean: (...), the mean over the runs.
        low: (...), lower end of the interval for the mean; NaN for a single run.
        high: (...), upper end; NaN for a single run.
        values: (runs, ...), every run's result, in the order of the seeds.
    """

    mean: Float[np.ndarray, "..."]
    low: Float[np.ndarray, "..."]
    high: Float[np.ndarray, "..."]
    values: Float[np.ndarray, "runs ..."]


def fit(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    loss: Callable[[Any, Any], Tensor],
    steps: int,
    lr: float | Callable[[int], float],
    clip: float | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    callback: Callable[[int, float], bool | None] | None = None,
) -> Fit:
    """Train a model in place, one update per batch.

    Each step computes loss(model(*inputs), target) for a batch (*inputs, target), scales the
    gradient down to norm `clip` if it is longer, and lets the optimizer step. The model is in
    training mode during the call; afterwards every module is back in the mode it was in and
    holds no gradient, also when the call ends by an error or a kernel interrupt, so that the
    training can be continued by calling `fit` again (with a new optimizer state).

    Args:
        model: the module to train; parameters that do not require a gradient stay as they are.
        batches: batches (*inputs, target). A list or a DataLoader starts anew when it is used
            up; a generator must last for all steps.
        loss: takes the model's output and the target, returns a tensor with one element.
        steps: number of updates, at least 1.
        lr: learning rate, or a function of the step (1, 2, ..., steps) that returns it.
        clip: largest norm of the gradient of all parameters together; None does not clip.
        optimizer: called as optimizer(parameters, lr=...).
        callback: called as callback(step, loss) after each update, with step counted from 1.
            Returning True stops the training; None or False goes on.

    Returns:
        Fit(losses, stopped).

    Raises:
        TypeError: model is not a module; steps is not an integer; a batch is not a sequence;
            the loss is not a tensor; the callback returns something else than None or a bool.
        ValueError: steps below 1; lr not finite or below 0; clip not above 0; no parameter
            requires a gradient; batches run out; a batch with fewer than two entries; a loss
            that has several elements or does not depend on the parameters.
        FloatingPointError: the loss or the norm of the gradient is NaN or infinite. The message
            names the step; the parameters are those before that step's update.
    """
    parameters = _check_fit(model, steps, clip)
    rate = lr if callable(lr) else lambda step: lr
    update = optimizer(parameters, lr=_check_rate(rate(1), 1))
    supply = _supply(batches, steps)
    modes = [(module, module.training) for module in model.modules()]
    losses, stopped = list[float](), False
    try:
        model.train()
        for step in range(1, steps + 1):
            for group in update.param_groups:
                group["lr"] = _check_rate(rate(step), step)
            losses.append(_step(model, next(supply), loss, parameters, clip, update, step))
            if callback is not None and _check_answer(callback(step, losses[-1])):
                stopped = True
                break
    finally:
        model.zero_grad()
        for module, mode in modes:
            module.training = mode
    return Fit(np.array(losses), stopped)


def repeat(fn: Callable[[int], Any], seeds: int | Iterable[int]) -> Repeats:
    """Run an experiment once per seed; give the mean and its `interval`.

    Args:
        fn: takes a seed, returns a number or an array; every run the same shape.
        seeds: the seeds (any iterable, so a progress bar can wrap them), or n for 0 to n - 1.

    Returns:
        Repeats(mean, low, high, values).

    Raises:
        TypeError: seeds is neither an integer nor an iterable of integers; fn returns None.
        ValueError: no seed; the same seed twice; results of different shapes.
    """
    values: list[np.ndarray] = []
    seen: set[int] = set()
    for seed in _seeds(seeds):
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise TypeError(f"seeds must be integers, got {type(seed).__name__}")
        if seed in seen:
            raise ValueError(f"seeds must differ, got {seed} twice")
        seen.add(int(seed))
        result = fn(int(seed))
        if result is None:
            raise TypeError("fn must return a number or an array, got None: is a return missing?")
        values.append(np.asarray(result.detach().cpu() if isinstance(result, Tensor) else result, dtype=np.float64))
        if values[-1].shape != values[0].shape:
            raise ValueError(
                f"fn must return one shape, got {values[0].shape}, then {values[-1].shape} for seed {seed}"
            )
    if not values:
        raise ValueError("seeds must hold at least one seed, got none")
    return interval(np.stack(values))


def interval(values: Float[np.ndarray, "runs ..."]) -> Repeats:
    """Give the mean over the runs and a 95 % t-interval for it.

    half-width = t(n - 1) * s / sqrt(n)

    for n runs with sample standard deviation s (divisor n - 1), where t(n - 1) is the 97.5 %
    point of Student's distribution with n - 1 degrees of freedom. The interval assumes
    independent runs whose results are roughly normal; it may reach beyond the possible values,
    for instance above an accuracy of 1. A single run bounds nothing: low and high are NaN.
    Infinite or NaN results are kept: the mean is then infinite or NaN and the interval NaN.

    Args:
        values: (runs, ...), the runs along the first axis.

    Returns:
        Repeats(mean, low, high, values).

    Raises:
        ValueError: no run.

    Source: Student 1908, "The probable error of a mean".
    """
    if values.ndim == 0 or len(values) == 0:
        raise ValueError(f"values must hold at least one run, got shape {values.shape}")
    runs = len(values)
    with np.errstate(invalid="ignore"):  # inf - inf: the interval is NaN, as documented
        mean = np.asarray(values.mean(axis=0))
        if runs == 1:
            half = np.full(mean.shape, np.nan)
        else:
            half = t_quantile(runs - 1) * values.std(axis=0, ddof=1) / math.sqrt(runs)
        return Repeats(mean, np.asarray(mean - half), np.asarray(mean + half), values)


def t_quantile(df: int) -> float:
    """The 97.5 % point of Student's distribution: 95 % of it lie between minus and plus this.

    Args:
        df: degrees of freedom, at least 1.

    Returns:
        The point t with P(-t < T < t) = 0.95, found by bisection.

    Raises:
        ValueError: df below 1.

    Source: Abramowitz and Stegun 1964, equations 26.7.3 and 26.7.4: df is their nu.
    """
    if df < 1:
        raise ValueError(f"df must be at least 1, got {df}")
    low, high = 0.0, 13.0  # 12.706 at df = 1 is the largest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _within(middle, df) > 0.95 else (middle, high)
    return (low + high) / 2


def _within(t: float, df: int) -> float:
    """P(-t < T < t) for Student's T with df degrees of freedom."""
    angle = math.atan2(t, math.sqrt(df))
    cosine = math.cos(angle)
    odd = df % 2
    term, total = (cosine if odd else 1.0), 0.0
    for i in range(2 + odd, df + 1, 2):  # A&S: powers of the cosine up to df - 2
        total += term
        term *= cosine * cosine * (i - 1) / i
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total


def _step(
    model: nn.Module,
    batch: Batch,
    loss: Callable[[Any, Any], Tensor],
    parameters: list[nn.Parameter],
    clip: float | None,
    update: torch.optim.Optimizer,
    step: int,
) -> float:
    *inputs, target = _check_batch(batch, step)
    value = _check_loss(loss(model(*inputs), target))
    if not math.isfinite(number := value.item()):
        raise FloatingPointError(f"the loss is {number} at step {step}")
    model.zero_grad()  # of every parameter, whether the optimizer was given it or not
    value.backward()
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if not torch.isfinite(norm):
        raise FloatingPointError(
            f"the norm of the gradient is {norm.item()} at step {step}, with a loss of {number:.4g}"
        )
    if clip is not None:
        nn.utils.clip_grads_with_norm_(parameters, clip, norm)
    update.step()
    return number


def _supply(batches: Iterable[Batch], steps: int) -> Iterator[Batch]:
    """The batches, anew when they are used up and can be iterated again."""
    given = 0
    while True:
        before = given
        for batch in batches:
            yield batch
            given += 1
        if given == before or isinstance(batches, Iterator):
            raise ValueError(f"batches ran out: steps is {steps}, got {given} batches")


def _check_fit(model: nn.Module, steps: int, clip: float | None) -> list[nn.Parameter]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"steps must be an integer, got {type(steps).__name__}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be above 0 or None, got {clip}")
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("model must have a parameter that requires a gradient, got none")
    return parameters


def _check_rate(rate: float, step: int) -> float:
    if not 0 <= rate < math.inf:
        raise ValueError(f"lr must be finite and at least 0, got {rate} at step {step}")
    return rate


def _check_batch(batch: Batch, step: int) -> Batch:
    if not isinstance(batch, Sequence):
        raise TypeError(f"a batch must be a tuple (*inputs, target), got {type(batch).__name__} at step {step}")
    if len(batch) < 2:
        raise ValueError(f"a batch must hold inputs and a target, got {len(batch)} at step {step}")
    return batch


def _check_loss(value: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"loss must return a tensor, got {type(value).__name__}")
    if value.numel() != 1:
        raise ValueError(f"loss must return one element, got shape {tuple(value.shape)}")
    if not value.requires_grad:
        raise ValueError("loss must depend on the model's parameters, got a constant")
    return value


def _check_answer(answer: bool | None) -> bool:
    if answer is None or isinstance(answer, bool):
        return bool(answer)
    raise TypeError(f"callback must return None or a bool, got {type(answer).__name__}")


def _seeds(seeds: int | Iterable[int]) -> Iterable[int]:
    if isinstance(seeds, bool) or not isinstance(seeds, int | Iterable):
        raise TypeError(f"seeds must be an integer or integers, got {type(seeds).__name__}")
    return range(seeds) if isinstance(seeds, int) else seeds
