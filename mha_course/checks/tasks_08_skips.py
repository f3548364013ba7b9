"""The second exercise of notebook 08: which blocks of a stack have lost a skip?"""

import itertools
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from mha_course.checks.task import Case, Task, Variation, draw
from mha_course.dot_product import attention

Tokens = Float[Tensor, "..."]
Part = Callable[[Tokens], Tokens]
Lost = Literal["", "attention", "mlp"]


class _Attention(nn.Module):
    """Attention of tokens to each other, its values and its result through one matrix."""

    def __init__(self, E: int) -> None:
        super().__init__()
        self.linear = skip_init(nn.Linear, E, E, dtype=torch.float64)

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        return self.linear(attention(x, x, x).out)


def parts(E: int, seed: int, sizes: tuple[float, float] = (1.0, 1.0)) -> tuple[nn.Module, ...]:
    """norm_1, attend, norm_2 and mlp, (B, T, E) -> (B, T, E) in float64, each different, without gradients.

    Args:
        E: width of a token.
        seed: of their weights; the global generator is not touched.
        sizes: factors on what attention and the MLP give.
    """
    norms = [nn.LayerNorm(E, dtype=torch.float64) for _ in range(2)]
    attend = _Attention(E)
    up, down = (skip_init(nn.Linear, *n, dtype=torch.float64) for n in ((E, 3 * E), (3 * E, E)))
    named = (norms[0], attend, norms[1], nn.Sequential(up, nn.GELU(), down))
    generator = torch.Generator().manual_seed(seed)
    for parameter in itertools.chain(*(part.parameters() for part in named)):
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = drawn / parameter.shape[-1] ** 0.5 if drawn.ndim > 1 else 0.2 * drawn
        parameter.requires_grad_(False)
    for norm in norms:
        norm.weight.add_(1)
    for linear, size in zip((attend.linear, down), sizes, strict=True):
        linear.weight.mul_(size)
        linear.bias.mul_(size)
    return named


class _Block(nn.Module):
    """A pre-norm block that may have lost one of its skips."""

    def __init__(self, E: int, seed: int, lost: Lost) -> None:
        super().__init__()
        # Without its skip, a part gives as much as the stream holds: the blocks behind it find no small stream.
        sizes = (2.5 if lost == "attention" else 0.25, 2.0 if lost == "mlp" else 0.25)
        self.norm_1, self.attend, self.norm_2, self.mlp = parts(E, seed, sizes)
        self.lost = lost

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        branch = self.attend(self.norm_1(x))
        x = branch if self.lost == "attention" else x + branch
        branch = self.mlp(self.norm_2(x))
        return branch if self.lost == "mlp" else x + branch


def _cases() -> tuple[Case, ...]:
    drawn: list[tuple[tuple[int, int, int], tuple[Lost, ...], str]] = [
        ((2, 7, 13), ("", "", "attention", "", ""), "no skip around attention in block 2"),
        ((3, 5, 11), ("mlp", "", ""), "no skip around the MLP in block 0"),
        ((5, 3, 13), ("", ""), "no skip is lost"),
        ((2, 7, 11), ("", "mlp", "", "attention", ""), "two blocks have lost one"),
        ((1, 5, 13), ("attention",), "one block, which has lost one"),
        ((1, 3, 11), ("",), "one block, which has lost none"),
    ]
    cases = []
    for seed, ((B, T, E), lost, note) in enumerate(drawn):
        (x,) = draw(seed, (B, T, E))
        blocks = nn.ModuleList(_Block(E, 100 * seed + i, one) for i, one in enumerate(lost))
        cases.append(Case({"layers": len(lost), "B": B, "T": T, "E": E}, (blocks, x), note))
    return tuple(cases)


Stack = nn.ModuleList
Found = Bool[Tensor, " layers"]


def _lost(blocks: Stack, x: Tokens) -> Found:
    """Whether a block forgets an input so large that what it adds vanishes beside it."""
    large = 1e6 * x
    return torch.stack([(block(large) - large).norm() > 0.5 * large.norm() for block in blocks])


def _streams(blocks: Stack, x: Tokens) -> list[Tokens]:
    """What goes into each block, and what comes out of the last."""
    return list(itertools.accumulate(blocks, lambda stream, block: block(stream), initial=x))


def _likeness(a: Tokens, b: Tokens) -> Tensor:
    return F.cosine_similarity(a.flatten(), b.flatten(), dim=0)


def _one(measure: Callable[[Tokens, Tokens], Tensor]) -> Callable[[Stack, Tokens], Found]:
    """The one block with the smallest measure of what goes in and what comes out."""

    def fn(blocks: Stack, x: Tokens) -> Found:
        streams = _streams(blocks, x)
        sizes = torch.stack([measure(*pair) for pair in itertools.pairwise(streams)])
        return torch.arange(len(blocks)) == sizes.argmin()

    return fn


def _kinds(*kinds: Lost) -> Callable[[Stack, Tokens], Found]:
    return lambda blocks, x: torch.tensor([block.lost in kinds for block in blocks])


_OWN_HINTS = (
    "Lose a skip in one block, and look at those behind it: each should be compared with what it was given itself.",
    "Keep the stream before and after each block: the pair to compare is the block's own input and output.",
)
_WORST = "always one block is named, the worst: none or two may have lost a skip"
_ONE_HINTS = (
    "What does your function say of a stack in which every skip is there, and of one with two lost?",
    "Judge each block by itself, by a border, not by which of them is the worst.",
)
_BOTH_HINTS = (
    "A block has two skips: take each of them out in turn. Do you see both?",
    "Compare what goes into the whole block with what comes out of it.",
)
_ALL_HINTS = (
    "Every block changes its input, whether its skips are there or not: by how much?",
    "With both skips most of the input is still in the output; print the cosine of the two for each block.",
)
_SHIFTED_HINTS = (
    "Print, for block 0, what you compare with what: is it the block's input and its output?",
    "Look at where in the loop the block is called: before you compare, and not after.",
)

lost_skips = Task(
    name="lost_skips",
    arguments=("blocks", "x"),
    results=(("lost", ("layers",)),),
    axes={"layers": "block"},
    true="the block has lost a skip",
    dtype="bool",
    reference=_lost,
    cases=_cases,
    variations=(
        Variation(
            "the answer is inverted: True means that a skip is lost",
            lambda blocks, x: ~_lost(blocks, x),
            ("Look at the comparison: which side is larger where the input is lost?", "Turn the comparison round."),
        ),
        Variation(
            "every block behind a lost skip is named too: its output is compared with the first x, not its own input",
            lambda blocks, x: _lost(blocks, x).cumsum(0) > 0,
            _OWN_HINTS,
        ),
        Variation(
            "the block behind the lost skip is named: what is compared is one block late",
            lambda blocks, x: torch.cat([torch.zeros(1, dtype=torch.bool), _lost(blocks, x)[:-1]]),
            _SHIFTED_HINTS,
        ),
        Variation(_WORST, _one(_likeness), _ONE_HINTS),
        Variation(_WORST, _one(lambda a, b: -(b - a).norm()), _ONE_HINTS),
        Variation(
            "only the first block that has lost a skip is named",
            lambda blocks, x: (lost := _lost(blocks, x)) & (lost.cumsum(0) == 1),
            ("What does your function say of a stack with two lost skips?", "Go on after the first one is found."),
        ),
        Variation("a lost skip around the MLP is not seen", _kinds("attention"), _BOTH_HINTS),
        Variation("a lost skip around attention is not seen", _kinds("mlp"), _BOTH_HINTS),
        Variation(
            "every block is named",
            lambda blocks, x: torch.ones(len(blocks), dtype=torch.bool),
            _ALL_HINTS,
        ),
        Variation(
            "healthy blocks are named too: the border is too strict, what a block adds counts as a lost skip",
            lambda blocks, x: torch.stack(
                [F.cosine_similarity(a, b, dim=-1).mean() < 0.99 for a, b in itertools.pairwise(_streams(blocks, x))]
            ),
            _ALL_HINTS,
        ),
        Variation(
            "no block is named",
            lambda blocks, x: torch.zeros(len(blocks), dtype=torch.bool),
            (
                "Print the number that you compare for each block: one of them should stand out.",
                "Choose the border between the number of a block with its skips and of one without.",
            ),
        ),
    ),
    hints=(
        "For each block, print the cosine of its input and its output, flattened: which ones stand out?",
        "With both skips most of the input is still in the output, and the cosine is near 1; choose a border.",
    ),
    shape_hint="Return one True or False for each block, as a tensor of bool with one axis.",
)
