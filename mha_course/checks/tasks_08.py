"""The exercises of notebook 08: a pre-norm block, and the block that has lost its skip."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from mha_course.checks.parting import Step
from mha_course.checks.task import Case, Task, Variation, by_steps, draw
from mha_course.checks.tasks_08_skips import Part, Tokens, lost_skips, parts

Half = Callable[[Tokens, Part, Part], Tokens]
Solution = Callable[[Tokens, Part, Part, Part, Part], Tokens]


def _cases() -> tuple[Case, ...]:
    cases = []
    for seed, (B, T, E) in enumerate([(2, 5, 7), (5, 3, 11), (3, 1, 5), (1, 7, 3), (1, 1, 2)]):
        (x,) = draw(seed, (B, T, E))
        cases.append(Case({"B": B, "T": T, "E": E}, (x, *parts(E, seed))))
    return tuple(cases)


def _pre(x: Tokens, norm: Part, part: Part) -> Tokens:
    return x + part(norm(x))


def _post(x: Tokens, norm: Part, part: Part) -> Tokens:
    return norm(x + part(x))


def _alone(x: Tokens, norm: Part, part: Part) -> Tokens:
    return part(norm(x))


def _from_normed(x: Tokens, norm: Part, part: Part) -> Tokens:
    return norm(x) + part(norm(x))


def _behind(x: Tokens, norm: Part, part: Part) -> Tokens:
    return x + norm(part(x))


def _unnormed(x: Tokens, norm: Part, part: Part) -> Tokens:
    return x + part(x)


def _twice(x: Tokens, norm: Part, part: Part) -> Tokens:
    return norm(_pre(x, norm, part))


def _minus(x: Tokens, norm: Part, part: Part) -> Tokens:
    return x - part(norm(x))


@by_steps
def _block(
    first: Half = _pre,
    second: Half = _pre,
    norms: Callable[[Part, Part], tuple[Part, Part]] = lambda norm_1, norm_2: (norm_1, norm_2),
    order: Callable[[Part, Part], tuple[Part, Part]] = lambda attend, mlp: (attend, mlp),
    ends: Callable[[Tokens, Float[Tensor, "..."], Part, Part], Tokens] | None = None,
) -> Solution:
    """A block of two halves, each a norm and a part.

    Args:
        first, second: the halves.
        norms: the two norms that they use.
        order: the two parts that they use.
        ends: in place of the halves: from x, what attention gives, norm_2 and mlp to the result.
    """

    def fn(x: Tokens, norm_1: Part, attend: Part, norm_2: Part, mlp: Part) -> Tokens:
        norm_1, norm_2 = norms(norm_1, norm_2)
        attend, mlp = order(attend, mlp)
        if ends is not None:
            return ends(x, attend(norm_1(x)), norm_2, mlp)
        return second(first(x, norm_1, attend), norm_2, mlp)

    return fn


def _numbers(x: Tokens, norm_1: Part, attend: Part, norm_2: Part, mlp: Part) -> tuple[Step, ...]:
    """The numbers of each step, for `parting`."""
    middle = x + attend(norm_1(x))
    return (
        Step("normalised tokens", norm_1(x)),
        Step("result of attention", attend(norm_1(x))),
        Step("first sum", middle),
        Step("normalised sum", norm_2(middle)),
        Step("result of the MLP", mlp(norm_2(middle))),
        Step("second sum", middle + mlp(norm_2(middle))),
    )


_WHERE = ("before attention", "before the MLP")
_PART = ("attention", "the MLP")


def _faults(half: Half, both: str, one: str, hints: tuple[str, str]) -> tuple[Variation, ...]:
    """The fault in both halves, in the first and in the second; {} in `one` is attention or the MLP."""
    return (
        Variation(both, _block(half, half), hints),
        Variation(one.format(_PART[0]), _block(half, _pre), hints),
        Variation(one.format(_PART[1]), _block(_pre, half), hints),
    )


_POST_HINTS = (
    "Let attend and mlp return zeros, torch.zeros_like: x should come back as it went in, number for number.",
    "The norm stands inside the branch: what attention reads is normalised, what it is added to is not.",
)
_SKIP_HINTS = (
    "Let attend and mlp return zeros, torch.zeros_like: what comes back? It should be x.",
    "A part adds to the stream that it read: there is one sum for attention and one for the MLP.",
)
_NORMED_HINTS = (
    "Multiply x by 1000: the result should grow nearly as much, as the skip is x itself.",
    "Give the normalised tokens a name of their own, or none: the sum needs the tokens as they were before the norm.",
)
_UNNORMED_HINTS = (
    "Multiply x by 1000: what attention and the MLP add should stay as large as it was.",
    "Each part reads the stream through the norm that stands before it.",
)
_NORM_HINTS = (
    "Print norm_1.weight and norm_2.weight: they are two layers, learned apart.",
    "norm_1 stands before attention and norm_2 before the MLP, each used once.",
)
_MIDDLE_HINTS = (
    "Write down the stream after the first sum: do both the MLP and the second sum start from it?",
    "Give the first sum a name, and use that alone in the second half.",
)
_ORDER_HINTS = ("Which part comes first?", "Attention first, then the MLP; each has the norm that stands before it.")
_HALF_HINTS = (
    "Count the sums in your function: a block has two.",
    "The first half adds attention to the stream, the second half adds the MLP to what came out of the first.",
)

pre_norm_block = Task(
    name="pre_norm_block",
    arguments=("x", "norm_1", "attend", "norm_2", "mlp"),
    results=(("out", ("B", "T", "E")),),
    axes={"T": "token"},
    reference=_block(),
    build=_block,
    steps=_numbers,
    cases=_cases,
    variations=(
        *_faults(
            _post,
            "this is a post-norm block: the sums are normalised, not what attention and the MLP read",
            "half of the block is post-norm: the sum with {} is normalised, not what it reads",
            _POST_HINTS,
        ),
        *_faults(
            _alone,
            "both skips are missing: nothing of x is added to what attention and the MLP give",
            "the skip around {} is missing",
            _SKIP_HINTS,
        ),
        *_faults(
            _from_normed,
            "the skips start behind the norms: what is added to is normalised, the stream itself is lost",
            "the skip around {} starts behind the norm: the stream itself is normalised",
            _NORMED_HINTS,
        ),
        *_faults(
            _behind,
            "the norms stand behind attention and the MLP, not before them",
            "the norm stands behind {}, not before it",
            _POST_HINTS,
        ),
        *_faults(
            _unnormed,
            "no norm is used: attention and the MLP read the stream as it is",
            "{} reads the stream as it is: its norm is left out",
            _UNNORMED_HINTS,
        ),
        *_faults(
            _twice,
            "each norm is used twice: the sums are normalised too, and the stream with them",
            "the sum with {} is normalised too, and the stream with it",
            _POST_HINTS,
        ),
        *_faults(
            _minus,
            "attention and the MLP are subtracted from the stream, not added to it",
            "{} is subtracted from the stream, not added to it",
            ("Look at the signs of the two sums.", "Each part adds to the stream."),
        ),
        Variation(
            "norm_1 is used before the MLP too, norm_2 never",
            _block(norms=lambda norm_1, norm_2: (norm_1, norm_1)),
            _NORM_HINTS,
        ),
        Variation(
            "norm_2 is used before attention too, norm_1 never",
            _block(norms=lambda norm_1, norm_2: (norm_2, norm_2)),
            _NORM_HINTS,
        ),
        Variation(
            "norm_1 and norm_2 have changed places",
            _block(norms=lambda norm_1, norm_2: (norm_2, norm_1)),
            _NORM_HINTS,
        ),
        Variation(
            "the MLP comes first, each part with its own norm",
            _block(norms=lambda norm_1, norm_2: (norm_2, norm_1), order=lambda attend, mlp: (mlp, attend)),
            _ORDER_HINTS,
        ),
        Variation(
            "the MLP comes first, with the norm of attention",
            _block(order=lambda attend, mlp: (mlp, attend)),
            _ORDER_HINTS,
        ),
        Variation(
            "the MLP reads x, not what attention has added to it: the two parts run side by side",
            _block(ends=lambda x, a, norm, mlp: x + a + mlp(norm(x))),
            _MIDDLE_HINTS,
        ),
        Variation(
            "both parts read norm_1 of x: they run side by side, and norm_2 is never used",
            lambda x, norm_1, attend, norm_2, mlp: x + attend(norm_1(x)) + mlp(norm_1(x)),
            _MIDDLE_HINTS,
        ),
        Variation(
            "the second skip starts at x: what attention has added is not in the sum",
            _block(ends=lambda x, a, norm, mlp: x + mlp(norm(x + a))),
            _MIDDLE_HINTS,
        ),
        Variation(
            "the second skip starts at what attention gives, not at its sum with x",
            _block(ends=lambda x, a, norm, mlp: a + mlp(norm(x + a))),
            _MIDDLE_HINTS,
        ),
        Variation(
            "one skip leads around both parts: the MLP reads what attention gives, not its sum with x",
            _block(ends=lambda x, a, norm, mlp: x + mlp(norm(a))),
            _HALF_HINTS,
        ),
        Variation(
            "the MLP reads what attention gives, not its sum with x",
            _block(ends=lambda x, a, norm, mlp: x + a + mlp(norm(a))),
            _MIDDLE_HINTS,
        ),
        Variation(
            "x is added twice: the first sum holds it already",
            _block(ends=lambda x, a, norm, mlp: x + x + a + mlp(norm(x + a))),
            _MIDDLE_HINTS,
        ),
        Variation("the second half is missing: no MLP is added", _block(second=lambda x, norm, part: x), _HALF_HINTS),
        Variation(
            "the first half is missing: no attention is added",
            _block(first=lambda x, norm, part: x),
            _HALF_HINTS,
        ),
        Variation("x comes back as it was", lambda x, norm_1, attend, norm_2, mlp: x.clone(), _HALF_HINTS),
    ),
    hints=(
        "Let attend and mlp return zeros, torch.zeros_like, in turn: which half is right by itself?",
        "Two sums: the stream and attention of its norm; then that sum, and the MLP of its norm.",
    ),
    shape_hint="Every part keeps (B, T, E): only add, and neither join nor average.",
)

TASKS = (pre_norm_block, lost_skips)
