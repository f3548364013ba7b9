"""What the explorer `bits` shows: a matrix with an outlier, quantized in several ways."""

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from mha_course.quantization.affine import Affine, fake_quantize
from mha_course.quantization.calibration import find_affine

ROWS, COLUMNS, GROUP, TOKENS = 24, 128, 32, 64
TENSOR, CHANNEL, GROUPS = SCHEMES = ("tensor", "channel (row)", f"group of {GROUP}")
SYMMETRIC, ASYMMETRIC = GRIDS = ("symmetric", "asymmetric")
PER: dict[str, Any] = {TENSOR: "tensor", CHANNEL: "channel", GROUPS: GROUP}
FEWEST, MOST = 2, 8
SCALE_BITS = 16  # a scale is kept as float16
TASK_BITS, TASK_OUTLIER, TASK_ERROR = 4, 12, 0.1


class State(NamedTuple):
    """One state of the explorer; weights and errors of weights in standard deviations of the matrix."""

    bits: int
    outlier: int
    place: tuple[int, int]
    scheme: str
    grid: str
    weights: Float[ndarray, "rows columns"]
    rounded: Float[ndarray, "rows columns"]
    own: Float[ndarray, " codes"]  # values that have a code, where the outlier is
    other: Float[ndarray, " codes"]  # the same in another row
    step: float  # between two of them, where the outlier is
    plain_step: float  # the same without an outlier
    other_step: float
    scales: int
    errors: Float[ndarray, "schemes bits"]  # of the output, against its size

    @property
    def weight_error(self) -> float:
        """Root mean square of the error of the weights, against that of the weights."""
        return float(np.sqrt(np.square(self.rounded - self.weights).mean() / np.square(self.weights).mean()))

    @property
    def output_error(self) -> float:
        """The same of the output."""
        return float(self.errors[SCHEMES.index(self.scheme), self.bits - FEWEST])

    @property
    def zeros(self) -> float:
        """The share of weights that become 0."""
        return float((self.rounded == 0).mean())

    @property
    def stored(self) -> int:
        """Bits of all codes, scales and zero points."""
        zero_point = 0 if self.grid == SYMMETRIC else self.bits
        return self.bits * ROWS * COLUMNS + self.scales * (SCALE_BITS + zero_point)

    @property
    def done(self) -> bool:
        """Whether the task is met."""
        return self.bits == TASK_BITS and self.outlier >= TASK_OUTLIER and self.output_error < TASK_ERROR


def compute(*, bits: float, outlier: float, scheme: str, row: float, grid: str, column: float) -> State:
    """Put the outlier into the weights, quantize them, and pass tokens through both."""
    b, place, symmetric = int(bits), (int(row), int(column)), grid == SYMMETRIC
    W = _weights(int(outlier), place)
    affine = find_affine(W, b, per=PER[scheme], symmetric=symmetric)
    plain = find_affine(_matrix(), b, per=PER[scheme], symmetric=symmetric)
    elsewhere = ((place[0] + ROWS // 2) % ROWS, place[1])
    return State(
        bits=b,
        outlier=int(outlier),
        place=place,
        scheme=scheme,
        grid=grid,
        weights=W.numpy(),
        rounded=fake_quantize(W, affine).numpy(),
        own=_values(affine, place),
        other=_values(affine, elsewhere),
        step=float(_at(affine.scale, place)),
        plain_step=float(_at(plain.scale, place)),
        other_step=float(_at(affine.scale, elsewhere)),
        scales=affine.scale.numel(),
        errors=_errors(int(outlier), place, symmetric),
    )


@cache
def _matrix() -> Float[Tensor, "rows columns"]:
    """Weights without an outlier, in standard deviations; those of later rows are larger."""
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(ROWS, COLUMNS, generator=generator) * torch.logspace(0, 0.6, ROWS)[:, None]
    return W / W.std()


@cache
def _tokens() -> Float[Tensor, "tokens columns"]:
    """Inputs whose features are of different sizes."""
    generator = torch.Generator().manual_seed(1)
    sizes = (0.7 * torch.randn(COLUMNS, generator=generator)).exp()
    return torch.randn(TOKENS, COLUMNS, generator=generator) * sizes


def _weights(outlier: int, place: tuple[int, int]) -> Float[Tensor, "rows columns"]:
    W = _matrix().clone()
    if outlier:
        W[place] = outlier
    return W


@lru_cache(maxsize=512)
def _errors(outlier: int, place: tuple[int, int], symmetric: bool) -> Float[ndarray, "schemes bits"]:
    """The error of the output, root mean square against that of the output, of every scheme and number of bits."""
    W, x = _weights(outlier, place), _tokens()
    size = (x @ W.T).square().mean()
    found = [
        [fake_quantize(W, find_affine(W, b, per=PER[scheme], symmetric=symmetric)) for b in range(FEWEST, MOST + 1)]
        for scheme in SCHEMES
    ]
    lost = x @ (torch.stack([torch.stack(row) for row in found]) - W).mT
    return (lost.square().mean((-2, -1)) / size).sqrt().numpy()


def _at(numbers: Tensor, place: tuple[int, int]) -> Tensor:
    """Of a scale or zero point of any scheme, the one of the weight at a place."""
    row, column = place
    if numbers.ndim == 0:
        return numbers
    return numbers[row, 0] if numbers.ndim == 2 else numbers[row, column // GROUP, 0]


def _values(affine: Affine, place: tuple[int, int]) -> Float[ndarray, " codes"]:
    codes = torch.arange(affine.lowest, affine.highest + 1)
    return ((codes - _at(affine.zero_point, place)) * _at(affine.scale, place)).numpy()
