"""The third exercise of notebook 03: the exponent with which a spread grows with the width."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mha_course.checks.task import Case, Task, Variation, by_steps


def _growth_cases() -> tuple[Case, ...]:
    cases = []
    for steps, exponents in [
        ((3, 6, 12, 24, 48), (0.0, 0.5, 0.0)),
        ((4, 16, 64), (0.5, -0.5)),
        ((5, 15), (0.317,)),
        ((2, 3, 10, 70, 71, 100, 640), (-0.25, 1.0, 0.123)),
    ]:
        n, widths = len(steps), torch.tensor(steps, dtype=torch.float64)
        levels = torch.linspace(5, 0.3, len(exponents), dtype=torch.float64)
        powers = torch.stack([level * widths**e for level, e in zip(levels, exponents, strict=True)])
        cases.append(Case({"layers": len(exponents), "n": n}, (widths, powers)))
    return tuple(cases)


@by_steps
def _growth(
    rise: Callable[[Tensor], Tensor] = torch.log,
    run: Callable[[Tensor], Tensor] = torch.log,
    change: Callable[[Tensor], Tensor] = lambda x: x[..., -1] - x[..., 0],
    slope: Callable[[Tensor, Tensor], Tensor] = lambda dy, dx: dy / dx,
) -> Callable[[Tensor, Tensor], Tensor]:
    """The slope of rise(spreads) against run(widths), between the first and the last width."""

    def fn(widths: Tensor, spreads: Tensor) -> Tensor:
        y, x = rise(spreads), run(widths)
        return slope(change(y), change(x))

    return fn


def _fitted(
    rise: Callable[[Tensor], Tensor] = torch.log, run: Callable[[Tensor], Tensor] = torch.log
) -> Callable[[Tensor, Tensor], Tensor]:
    """The slope of rise(spreads) against run(widths), of the line of least squares."""

    def fn(widths: Tensor, spreads: Tensor) -> Tensor:
        x = run(widths)
        return rise(spreads) @ (x - x.mean()) / (x - x.mean()).square().sum()

    return fn


_LINEAR = "the slope is taken on linear axes"
_WIDTHS = "the widths are not on a log axis, the spreads are"
_SPREADS = "the spreads are not on a log axis, the widths are"
_LOG_HINTS = (
    "A power law is a straight line on log axes: which axes are yours?",
    "Take the logarithm of the widths and of the spreads, then the slope.",
)


_RATIOS = (math.log(2), math.log(10), math.log2(10))  # of natural, binary and decimal logarithms


def _other_base(factor: float) -> Variation:
    """The slope with logarithms of two bases: a factor too large or too small."""
    return Variation(
        "the logarithms have different bases",
        _growth(slope=lambda dy, dx: factor * dy / dx),
        ("Which logarithm is taken of the widths, and which of the spreads?", "Take the same one twice."),
    )


growth_exponents = Task(
    name="growth_exponents",
    gradients=False,
    arguments=("widths", "spreads"),
    results=(("exponents", ("layers",)),),
    reference=_growth(),
    build=_growth,
    cases=_growth_cases,
    variations=(
        *(Variation(_LINEAR, slope(lambda y: y, lambda x: x), _LOG_HINTS) for slope in (_growth, _fitted)),
        *(Variation(_WIDTHS, slope(run=lambda x: x), _LOG_HINTS) for slope in (_growth, _fitted)),
        *(Variation(_SPREADS, slope(rise=lambda y: y), _LOG_HINTS) for slope in (_growth, _fitted)),
        Variation(
            "the slope is upside down, widths over spreads",
            _growth(slope=lambda dy, dx: dx / dy),
            ("Which of the two axes is the width?", "Divide the change of log spread by the change of log width."),
        ),
        Variation(
            "the growth of the variance is measured, twice that of the spread",
            _growth(slope=lambda dy, dx: 2 * dy / dx),
            ("Is there a square in your function?", "Use the spreads as they are."),
        ),
        Variation(
            "the change of the width is left out",
            _growth(slope=lambda dy, dx: dy),
            ("Try widths further apart: the exponent must stay.", "Divide by the change of log width."),
        ),
        Variation(
            "the ratio of the logarithms is taken, so the level counts as growth",
            _growth(change=lambda x: x[..., -1]),
            ("Multiply all spreads by 10: an exponent must stay.", "Take differences of logarithms before you divide."),
        ),
        *(_other_base(factor) for base in _RATIOS for factor in (base, 1 / base)),
        Variation(
            "all layers get one exponent, that of their mean: each has its own",
            lambda x, y: _growth()(x, y).mean().expand(len(y)),
            ("Change one row of spreads: which exponents change?", "Fit each row by itself."),
        ),
        Variation(
            "the intercept of the line is returned, not its slope",
            lambda x, y: y[:, 0].log() - _growth()(x, y) * x[0].log(),
            ("Multiply all spreads by 10: an exponent must stay.", "Take the other number of the fit."),
        ),
        Variation(
            "the line is forced through the origin, so the level counts as growth",
            lambda x, y: (y.log() * x.log()).sum(1) / x.log().square().sum(),
            (
                "Multiply all spreads by 10: an exponent must stay.",
                "Fit a line with an intercept, or take differences.",
            ),
        ),
        Variation(
            "the exponents are for steps from one width to the next, not one for each layer",
            _growth(change=lambda x: x.diff(dim=-1)),
            ("How many numbers should come back?", "One for each layer: average the steps, or use the ends."),
        ),
    ),
    hints=(
        "Take one layer by hand: by what factor does its spread grow when the width doubles?",
        "The exponent is the change of log spread divided by the change of log width.",
    ),
    shape_hint="Return one exponent for each row of spreads.",
)
