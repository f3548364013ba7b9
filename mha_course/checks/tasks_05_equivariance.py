"""The second exercise of notebook 05: does a layer's output follow when its tokens change places?"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from mha_course import masks
from mha_course.checks.task import Case, Task, Variation, by_steps, draw
from mha_course.dot_product import attention

Tokens = Float[Tensor, "..."]
Order = Integer[Tensor, " T"]
Layer = Callable[[Tokens], Tokens]
Solution = Callable[[Layer, Tokens, Order], Tensor]


class _Attention(nn.Module):
    """Attention of tokens of any width to each other, without weights of its own.

    Args:
        places: whether the tokens' places are added to them first.
        causal: whether a token sees only those before it, and itself.
    """

    def __init__(self, places: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.places, self.causal = places, causal

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        T = x.shape[1]
        if self.places:
            x = x + torch.linspace(-1, 1, T, dtype=x.dtype)[:, None]
        return attention(x, x, x, mask=masks.causal(T) if self.causal else None).out


class _Centred(nn.Module):
    """Less the mean of all tokens of the batch."""

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        return x - x.mean((0, 1))


class _RunningSum(nn.Module):
    """The sum of all tokens so far."""

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        return x.cumsum(1)


def _cases() -> tuple[Case, ...]:
    """No order is its own inverse; B >= T and E >= T, so that each axis can be taken for the tokens'."""
    cases = []
    for seed, (sizes, order, layer, note) in enumerate(
        [
            ((7, 5, 11), (2, 4, 1, 0, 3), _Attention(places=True), "a layer that adds positions"),
            ((5, 3, 7), (1, 2, 0), _Attention(), "attention without positions"),
            ((11, 7, 13), (3, 0, 6, 1, 5, 2, 4), _Attention(causal=True), "causal attention"),
            ((5, 3, 3), (2, 0, 1), _RunningSum(), "a running sum over the tokens"),
            ((5, 3, 11), (1, 2, 0), _Centred(), "less the mean of all tokens"),
            ((1, 1, 2), (0,), _Attention(places=True), "one token"),
        ]
    ):
        (x,) = draw(seed, sizes)
        letters = dict(zip(("B", "T", "E"), sizes, strict=True))
        cases.append(Case(letters, (layer, x, torch.tensor(order)), note))
    return tuple(cases)


def _largest(difference: Tokens) -> Tensor:
    return difference.abs().amax()


@by_steps
def _sides(
    of_output: Callable[[Tokens, Order], Tokens] = lambda y, order: y[:, order],
    of_input: Callable[[Tokens, Order], Tokens] = lambda x, order: x[:, order],
    after: Callable[[Tokens, Order], Tokens] = lambda y, order: y,
    measure: Callable[[Tokens], Tensor] = _largest,
) -> Solution:
    """measure(of_output(layer(x)) - after(layer(of_input(x))))."""
    return lambda layer, x, order: measure(of_output(layer(x), order) - after(layer(of_input(x, order)), order))


def _as_is(x: Tokens, order: Order) -> Tokens:
    return x


def _back(x: Tokens, order: Order) -> Tokens:
    return x[:, order.argsort()]


_AXIS_HINTS = (
    "x is (B, T, E): which of its axes does your index reorder?",
    "The tokens lie along axis 1: a colon for the samples, then order.",
)
_SAME_HINTS = (
    "Write down where token 0 goes on either side: is it the same place?",
    "Both sides take the tokens in the same order: output[:, order] against the layer of x[:, order].",
)
_CONFUSED = "order and its inverse are confused: the tokens end up in different places on the two sides"
_INVERSE_HINTS = (
    "Write down where token 0 goes on either side: is it the same place?",
    "layer(x)[:, order] stands beside the layer of x[:, order]. To bring the latter back, take order.argsort().",
)
_TWICE_HINTS = (
    "Count how often each of the two outputs is put in order: how often should it be?",
    "Order the input of one and the output of the other, each once.",
)
_SIGN = "the largest difference is taken with its sign, a negative one is missed"
_SIGN_HINTS = ("Can your result be negative, or miss a difference of -5?", "Take absolute values, then the largest.")
_LARGEST_HINTS = (
    "One wrong number among a thousand right ones: does your result show its full size?",
    "Take the largest of the absolute differences.",
)
_PLAIN_HINTS = (
    "Take a layer that doubles its output: your result should double too.",
    "Return the largest absolute difference as it is.",
)
_LEFT_OUT = "the layer is left out on one side"
_LEFT_OUT_HINTS = (
    "How often do you call the layer? Once for each side.",
    "One side is the layer of x, put in order; the other is the layer of x that was put in order before.",
)
_FIRST_HINTS = ("Does a difference in the last sample change your result?", "Take the largest over all axes.")

equivariance_error = Task(
    name="equivariance_error",
    gradients=False,
    arguments=("layer", "x", "order"),
    results=(("error", ()),),
    reference=_sides(),
    build=_sides,
    cases=_cases,
    variations=(
        Variation(
            "the features are put in order, not the tokens",
            _sides(lambda y, order: y[..., order], lambda x, order: x[..., order]),
            _AXIS_HINTS,
        ),
        Variation(
            "the samples are put in order, not the tokens",
            _sides(lambda y, order: y[order], lambda x, order: x[order]),
            _AXIS_HINTS,
        ),
        Variation(
            "this measures whether the output stays the same, not whether it follows the tokens",
            _sides(_as_is),
            (
                "One of the two outputs must change places, as the tokens do, and the other one must not.",
                "Put layer(x) in order, and compare it with the layer of x[:, order] as it is.",
            ),
        ),
        Variation(
            "only the output is put in order, the layer always sees x as it was",
            _sides(of_input=_as_is),
            ("What does the layer see in your two calls? Its inputs should differ.", "Give it x[:, order] once."),
        ),
        Variation(_CONFUSED, _sides(_back), _INVERSE_HINTS),  # or layer(x) against layer(x[:, order])[:, order]
        Variation(_CONFUSED, _sides(of_input=_back), _INVERSE_HINTS),
        Variation("both sides are put in the inverse order", _sides(_back, _back), _SAME_HINTS),
        Variation(
            "one output is put in order and the other one is put back: once would do",
            _sides(after=_back),
            _TWICE_HINTS,
        ),
        Variation(_SIGN, _sides(measure=lambda d: d.amax()), _SIGN_HINTS),
        Variation(_SIGN, _sides(measure=lambda d: (-d).amax()), _SIGN_HINTS),
        Variation(_SIGN, _sides(measure=lambda d: d.amin()), _SIGN_HINTS),
        Variation(
            "the differences are averaged, not the largest taken",
            _sides(measure=lambda d: d.abs().mean()),
            _LARGEST_HINTS,
        ),
        Variation(
            "the differences are averaged with their signs, so they cancel",
            _sides(measure=lambda d: d.mean()),
            _LARGEST_HINTS,
        ),
        Variation(
            "the differences are averaged with their signs, so they cancel",
            _sides(measure=lambda d: d.mean().abs()),
            _LARGEST_HINTS,
        ),
        Variation(
            "the differences are added up, not the largest taken",
            _sides(measure=lambda d: d.abs().sum()),
            _LARGEST_HINTS,
        ),
        Variation(
            "the mean of the squared differences is taken, not the largest difference",
            _sides(measure=lambda d: d.square().mean()),
            _LARGEST_HINTS,
        ),
        Variation(
            "the root of the mean square is taken, not the largest difference",
            _sides(measure=lambda d: d.square().mean().sqrt()),
            _LARGEST_HINTS,
        ),
        Variation(
            "the length of the difference is taken, not its largest entry",
            _sides(measure=lambda d: d.norm()),
            _LARGEST_HINTS,
        ),
        Variation(
            "the smallest difference is taken, not the largest",
            _sides(measure=lambda d: d.abs().amin()),
            _LARGEST_HINTS,
        ),
        Variation("the largest difference is squared", _sides(measure=lambda d: d.square().amax()), _PLAIN_HINTS),
        Variation(
            "the difference is divided by the largest output",
            lambda layer, x, order: _sides()(layer, x, order) / layer(x).abs().amax(),
            _PLAIN_HINTS,
        ),
        Variation("only the first sample is compared", _sides(measure=lambda d: _largest(d[0])), _FIRST_HINTS),
        Variation("only the first token is compared", _sides(measure=lambda d: _largest(d[:, 0])), _FIRST_HINTS),
        Variation(_LEFT_OUT, lambda layer, x, order: _largest(layer(x)[:, order] - x[:, order]), _LEFT_OUT_HINTS),
        Variation(_LEFT_OUT, lambda layer, x, order: _largest(layer(x[:, order]) - x[:, order]), _LEFT_OUT_HINTS),
        Variation(
            "the result is 0 for every layer",
            lambda layer, x, order: x.new_zeros(()),
            (
                "Try a layer that adds positions: is your result still 0?",
                "Print the two sides that you compare: one is the layer of x[:, order].",
            ),
        ),
    ),
    hints=(
        "Take a layer that returns its input: both sides are x[:, order], and the result is 0.",
        "Two calls of the layer, one on x and one on x[:, order]; put the first output in order, and compare.",
    ),
    shape_hint="Return one number, a tensor without axes: take the largest over all of them at once.",
)
