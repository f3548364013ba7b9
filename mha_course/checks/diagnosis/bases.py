"""What belongs to no fault: a causal mask inside, a window, a norm, positions, a capped or widened softmax."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mha_course import masks, positions
from mha_course.checks.diagnosis.catalogue import TOP_LEFT
from mha_course.checks.diagnosis.faults_causal import CAUSAL_UNASKED
from mha_course.checks.diagnosis.faults_keys import plus_one
from mha_course.checks.diagnosis.faults_projections import ADDED
from mha_course.checks.diagnosis.steps import Array, Inputs, Step, Steps, Weights, add, causal
from mha_course.checks.diagnosis.subject import Subject


class Base(NamedTuple):
    """Right attention with something beside it: the steps, and what is to be said about it."""

    changes: Steps
    remarks: tuple[str, ...] = ()


PLAIN = Base({})
CAUSAL = Base({"see": causal}, ("it hides the future by itself (causal)",))
UPPER_LEFT = Base(
    TOP_LEFT.changes,
    (
        "it hides the future by itself (causal), aligned at the upper left: with T and S different the last keys "
        "are never seen",
    ),
)
UNASKED = Base(CAUSAL_UNASKED.changes, ("it hides the future where no mask is given, and only there",))


def _rotary(head_dim: int, interleaved: bool) -> Base:
    turn = positions.Rotary(head_dim, interleaved=interleaved)
    which = "in neighbours (2i, 2i + 1)" if interleaved else "in halves (i, i + D/2)"
    said = f"it rotates queries and keys by their position, {which}"
    return Base({"use": lambda q, k, v: (turn(q), turn(k), v)}, (said,))


def _alibi(products: Array, scale: float, bias: Array | None) -> Array:
    H, T, S = products.shape[-3:]
    return add(products, scale, bias) + positions.alibi(T, S, num_heads=H, offset=S - T, dtype=products.dtype)


_TELLS_ZERO_KEY = re.compile(
    r"zero_?(attn|key)|sink|plus_?one|off_?by_?one|softmax_?(1|one)|quiet|null_?k", re.IGNORECASE
)


def _tells_zero_key(subject: Subject) -> bool:
    """Whether an attribute, an argument or a name says that one more key is meant."""
    fn = subject.original
    names = [getattr(fn, "__name__", "")]
    if isinstance(fn, nn.Module):
        layers = list(fn.modules())
        names += [type(layer).__name__ for layer in layers]
        names += [name for layer in layers for name, value in vars(layer).items() if value is not False]
    return any(_TELLS_ZERO_KEY.search(name) for name in names)


def _capped(cap: float) -> Step:
    return lambda products, scale, bias: add(cap * torch.tanh(products * scale / cap), 1.0, bias)


def _window(width: int, both: bool) -> Base:
    ahead = width - 1 if both else 0

    def see(T: int, S: int) -> Tensor:
        return masks.band(T, width - 1, ahead, S, alignment="lower_right")

    way = "on both sides" if both else "of the past, causal"
    said = f"every position sees a window: itself and {width - 1} positions {way}"
    return Base({"see": see}, (said,))


def _norms(module: nn.Module, width: int) -> list[nn.Module]:
    kinds = [m for m in module.modules() if type(m).__name__ in ("LayerNorm", "RMSNorm")]
    return [m for m in kinds if sum(p.numel() for p in m.parameters()) in (0, width, 2 * width)]


_residual = ADDED.changes["finish"]


def _after(norm: nn.Module) -> Base:
    def finish(merged: Array, w: Weights, x: Inputs) -> Array:
        out: Array = norm(_residual(merged, w, x))
        return out

    return Base({"finish": finish}, ("it adds its input, a residual, and normalizes the sum",))


def _before(norm: nn.Module, residual: bool) -> Base:
    def project(x: Inputs, w: Weights) -> tuple[Array, Array, Array]:
        query = norm(x.query)
        return w.q(query), w.k(query if x.key is x.query else x.key), w.v(query if x.value is x.query else x.value)

    changes: dict[str, Step] = {"project": project}
    said = "it normalizes its input first"
    if residual:
        changes["finish"] = _residual
        said += " and adds it, a residual, to the result"
    return Base(changes, (said,))


def kinds(stated_causal: bool | None) -> list[Base]:
    """Whether the future is hidden: the bases for what is stated."""
    if stated_causal is None:
        return [PLAIN, CAUSAL, UPPER_LEFT]
    return [CAUSAL] if stated_causal else [PLAIN]


def bases(subject: Subject, stated_causal: bool | None) -> Iterator[Base]:
    """All bases to try, the plainest first."""
    own = kinds(stated_causal)
    yield from own
    extras: list[Base] = []
    if subject.is_module:
        for norm in _norms(subject.fn, subject.width):  # type: ignore[arg-type]
            extras += [_after(norm), _before(norm, True), _before(norm, False)]
    if subject.head_dim % 2 == 0:
        extras += [_rotary(subject.head_dim, interleaved) for interleaved in (False, True)]
    extras.append(Base({"add": _alibi}, ("it adds a bias that falls with the distance of positions, ALiBi",)))
    if _tells_zero_key(subject):
        zero = "its softmax has one more key with score 0 and value 0, so that a row can sum to less than 1"
        extras.append(Base({"normalize": plus_one}, (zero,)))
    for cap in (50.0, 30.0, 20.0, 10.0, 5.0):
        extras.append(Base({"add": _capped(cap)}, (f"its scores are capped at {cap:g} by a tanh",)))
    for extra in extras:
        for kind in own:
            yield Base({**kind.changes, **extra.changes}, (*kind.remarks, *extra.remarks))
    if stated_causal is None:
        longest = max(sizes.T for sizes in subject.sizes().values())
        yield from (_window(width, both) for width in range(1, longest) for both in (False, True))
