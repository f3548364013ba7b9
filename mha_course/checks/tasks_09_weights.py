"""The second exercise of notebook 09: the weights that three patients of the clinic get wrong."""

import math
from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor

from mha_course.checks import attention_faults
from mha_course.checks.parting import Step
from mha_course.checks.task import Case, Task, Variation, by_steps, draw

Array = Float[Tensor, "..."]
Mask = Bool[Tensor, "..."]


def _cases() -> tuple[Case, ...]:
    """Every query may attend to some keys and not to others, so that a filling of -1e9 is as good as one of -inf.

    One of -100 is not: in one case all scores are about -300.
    """
    cases = []
    drawn = [(2, 3, 5, 7, 11), (3, 3, 5, 5, 7), (2, 1, 7, 3, 5), (1, 2, 3, 5, 2), (1, 1, 1, 2, 3)]
    for seed, (B, H, T, S, D) in enumerate(drawn):
        q, k, random = draw(seed, (B, H, T, D), (B, H, S, D), (B, 1, 1 if seed == 2 else T, S))
        mask = (random < 0) | (random == random.amin(-1, keepdim=True))
        mask &= random != random.amax(-1, keepdim=True)
        sizes = {"B": B, "H": H, "T": T, "S": S, "D": D}
        note = "a mask (B, 1, 1, S)" if seed == 2 else "random mask"
        cases.append(Case(sizes, (q, k, mask), note))
    return (*cases, _far_below(cases[0]))


def _far_below(case: Case) -> Case:
    q, k, mask = case.inputs
    shift = math.sqrt(300 / math.sqrt(q.shape[-1]))
    return Case(case.sizes, (q / 8 - shift, k / 8 + shift, mask), "scores around -300")


def _scale(q: Array, k: Array, v: Array) -> float:
    return 1 / math.sqrt(q.shape[-1])


@by_steps
def _weights(
    scale: Callable[[Array, Array, Array], float] = _scale,
    see: Callable[[Array, Mask], Mask] = lambda scores, mask: mask,
    hide: Callable[[Array, Mask], Array] = lambda scores, mask: scores.masked_fill(~mask, -math.inf),
    share: Callable[[Array], Array] = lambda scores: scores.softmax(-1),
    late: Callable[[Array, Mask], Array] = lambda weights, mask: weights,
    rescale: Callable[[Array, Array], Array] = lambda weights, q: weights,
) -> Callable[[Array, Array, Mask], Array]:
    """Weights, with some steps changed.

    Args:
        scale: the factor on the scores (B, H, T, S).
        see: from scores and mask to the mask that is used.
        hide: puts it into the scores.
        share: from these to weights.
        late: what becomes of them, from them and the mask.
        rescale: what becomes of these, from them and q.
    """

    def fn(q: Array, k: Array, mask: Mask) -> Array:
        scores = q @ k.mT * scale(q, k, k)
        return rescale(late(share(hide(scores, see(scores, mask))), mask), q)

    return fn


def _numbers(q: Array, k: Array, mask: Mask) -> tuple[Step, ...]:
    """The numbers of each step, for `parting`."""
    scores = q @ k.mT * _scale(q, k, k)
    masked = scores.masked_fill(~mask, -math.inf)
    return (
        Step("products of queries and keys", scores, factor=True),
        Step("scaled scores", scores),
        Step("masked scores", masked),
        Step("weights", masked.softmax(-1)),
    )


def _hidden(factor: float, q: Array, k: Array, mask: Mask) -> tuple[tuple[Array, Array, Mask], Mask]:
    """The key that most queries do not see, replaced; the weights, (B, 1, T, 1), of those that do not see it."""
    s = int((~mask).sum((0, 1, 2)).argmax())
    changed = k.clone()
    changed[:, :, s] = factor * draw(7, (*k.shape[:2], k.shape[-1]))[0]
    return (q, changed, mask), ~mask[..., s, None]


def _everything(scores: Array, mask: Mask) -> Array:
    return scores


def _repeated(scores: Array, mask: Mask) -> Mask:
    """A mask for each head, folded as M0 M1 M0 M1 and not as M0 M0 M1 M1."""
    B, H, T, S = scores.shape
    return mask.expand(B, 1, T, S).repeat(H, 1, 1, 1).view(scores.shape)


def _filled(fill: float) -> Callable[[Array, Mask], Array]:
    return lambda scores, mask: scores.masked_fill(~mask, fill)


_INVERTED = "the mask is inverted: queries attend to what is hidden"
_INVERTED_HINTS = (
    "Look at the weight of a key where the mask is False: it should be 0.",
    "Here True means may attend. What you fill or add must fall on the others, where ~mask is True.",
)
_HIDDEN_HINTS = (
    "Look at the weight of a key where the mask is False: it should be 0.",
    "Where the mask is False the score becomes -inf, before the softmax, and the new scores must be kept.",
)
_SCALE_HINTS = (
    "Multiply q by 2: by how much do your scaled scores grow? Then count the places that divide.",
    "Divide the scores once, before the softmax, by the square root of D, the width of one head.",
)
_AXIS_HINTS = (
    "Sum your weights over each axis in turn: which sums are 1, which should be?",
    "One row is one query: the softmax runs over the keys, the last axis.",
)
_ORDER_HINTS = (
    "Give sample 1 another mask: in which samples do the weights change?",
    "A mask (B, 1, T, S) meets (B, H, T, S) by itself: what is repeated or moved can only fall out of step.",
)
_FILLS = (-math.inf, -1e9)
_WEAK_FILLS = (-1, -5, -10, -100)
_LAST_STEPS: dict[str, Callable[[Array], Array]] = {
    "the softmax runs over the queries, not over the keys": lambda scores: scores.softmax(-2),
    "the softmax runs over the heads, not over the keys": lambda scores: scores.softmax(1),
    "the softmax is missing: these are scores": lambda scores: scores,
}

repaired_weights = Task(
    name="repaired_weights",
    arguments=("q", "k", "mask"),
    results=(("weights", ("B", "H", "T", "S")),),
    reference=_weights(),
    build=_weights,
    steps=_numbers,
    hidden=_hidden,
    cases=_cases,
    variations=(
        Variation(
            "the scale comes after the softmax: the weights of a query do not sum to 1",
            _weights(scale=attention_faults.one, rescale=lambda weights, q: weights * _scale(q, q, q)),
            _SCALE_HINTS,
        ),
        Variation(
            "the scale is there twice, before and after the softmax: the weights of a query do not sum to 1",
            _weights(rescale=lambda weights, q: weights * _scale(q, q, q)),
            _SCALE_HINTS,
        ),
        Variation(
            "the scores are divided by D: the square root of D is there twice",
            _weights(scale=lambda q, k, v: 1 / q.shape[-1]),
            _SCALE_HINTS,
        ),
        Variation(
            "the scores are divided by the square root of E, the width of all heads, not of D",
            _weights(scale=lambda q, k, v: 1 / math.sqrt(q.shape[1] * q.shape[-1])),
            _SCALE_HINTS,
        ),
        *(
            Variation(factor.fault, _weights(scale=factor.of), _SCALE_HINTS)
            for factor in attention_faults.FACTORS
            if "divided by D," not in factor.fault
        ),
        Variation(_INVERTED, _weights(see=lambda scores, mask: ~mask), _INVERTED_HINTS),
        Variation("the mask is ignored", _weights(hide=_everything), _HIDDEN_HINTS),
        Variation(
            "the mask is applied after the softmax: the weights of a query do not sum to 1",
            _weights(hide=_everything, late=lambda weights, mask: weights * mask),
            _HIDDEN_HINTS,
        ),
        *(
            Variation(
                "the mask is applied after the softmax: the weights of a query do not sum to 1",
                _weights(hide=_everything, late=_filled(fill)),
                _HIDDEN_HINTS,
            )
            for fill in _FILLS
        ),
        *(
            Variation(
                f"hidden scores become {fill}, which is not small enough: hidden keys keep some weight",
                _weights(hide=_filled(fill)),
                _HIDDEN_HINTS,
            )
            for fill in _WEAK_FILLS
        ),
        Variation(
            "the softmax is taken twice: hidden keys get weight from the second",
            _weights(share=lambda scores: scores.softmax(-1).softmax(-1)),
            ("Look for a second softmax.", "Once is enough: a softmax of weights makes them nearly equal."),
        ),
        Variation(
            "hidden scores become 0, which hides nothing",
            _weights(hide=lambda scores, mask: scores * mask),
            _HIDDEN_HINTS,
        ),
        Variation(
            "the mask is added to the scores, where True counts as 1: nothing is hidden",
            _weights(hide=lambda scores, mask: scores + mask),
            _HIDDEN_HINTS,
        ),
        Variation(
            "the mask is multiplied by infinity: 0 times infinity is NaN",
            _weights(hide=lambda scores, mask: scores + ~mask * -math.inf),
            (
                "Print what you add to the scores: where is it NaN? Of a bool mask, a product is float32, and there the"
                " smallest number of float64 is -inf.",
                "Fill in -inf without a product, or give the mask the type of the scores first.",
            ),
        ),
        Variation(
            "samples and heads of the mask are confused: it is repeated as M0 M1 M0 M1, the heads lie as M0 M0 M1 M1",
            _weights(see=_repeated),
            _ORDER_HINTS,
        ),
        Variation(
            "every sample uses the mask of the first",
            _weights(see=lambda scores, mask: mask[:1]),
            _ORDER_HINTS,
        ),
        *(
            Variation(fault, _weights(share=last, hide=_filled(fill)), _AXIS_HINTS)
            for fault, last in _LAST_STEPS.items()
            for fill in _FILLS
        ),
    ),
    hints=(
        "Take a mask that is True throughout: if that is right, look at the mask, else at the scale and the softmax.",
        "Four steps: products of queries and keys, scale, mask, softmax over the keys.",
    ),
    shape_hint="One score for each query and each key of a head: (B, H, T, S).",
)
