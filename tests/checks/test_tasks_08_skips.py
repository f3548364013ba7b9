"""Right and wrong solutions of notebook 08: which blocks have lost a skip."""

import pytest
import torch
from torch.nn import functional as F

from mha_course.checks import check, tasks_08_skips
from tests.checks.heads import unreached
from tests.checks.test_tasks_08 import block as pre_norm


def walked(say, go_on=True):
    """say(block's input, its output, x) for each block; each is given what the last one returned, or x."""

    def fn(blocks, x):
        stream, found = x, []
        for block in blocks:
            out = block(stream)
            found.append(bool(say(stream, out, x)))
            stream = out if go_on else x
        return torch.tensor(found)

    return fn


def cosine(a, b):
    return F.cosine_similarity(a.flatten(), b.flatten(), dim=0)


def of_tokens(a, b):
    return F.cosine_similarity(a, b, dim=-1).mean()


def change(a, b):
    return (b - a).norm() / a.norm()


def by_large_inputs(blocks, x):
    return torch.tensor([bool((block(1e4 * x).abs().mean() < 100 * x.abs().mean()).item()) for block in blocks])


def by_the_block_itself(blocks, x):
    """Exercise one, put to use."""
    found = torch.zeros(len(blocks), dtype=torch.bool)
    for i, block in enumerate(blocks):
        own = pre_norm(x, block.norm_1, block.attend, block.norm_2, block.mlp)
        found[i] = not torch.allclose(own, block(x))
    return found


def by_gradients(blocks, x):
    """A skip lets the gradient of a large input through as it is."""
    found = []
    for block in blocks:
        large = (1e4 * x).requires_grad_()
        (gradient,) = torch.autograd.grad(block(large).sum(), large)
        found.append(gradient.mean() < 0.5)
    return torch.stack(found)


def projected(a, b, x):
    return (a * b).sum() / (a * a).sum() < 0.5


RIGHT = [
    walked(lambda a, b, x: cosine(a, b) < 0.5),
    walked(lambda a, b, x: cosine(a, b) < 0.2),
    walked(lambda a, b, x: of_tokens(a, b) < 0.8, go_on=False),
    walked(lambda a, b, x: change(a, b) > 1),
    walked(lambda a, b, x: (b - a).abs().mean() > 0.7 * a.abs().mean()),
    walked(projected),
    by_large_inputs,
    by_the_block_itself,
    by_gradients,
]


def worst(measure):
    def fn(blocks, x):
        sizes = []
        for block in blocks:
            y = block(x)
            sizes.append(measure(x, y).item())
            x = y
        lost = torch.zeros(len(blocks), dtype=torch.bool)
        lost[sizes.index(max(sizes))] = True
        return lost

    return fn


def late(blocks, x):
    found, before = [], x
    for block in blocks:
        found.append(cosine(before, x) < 0.5)
        before, x = x, block(x)
    return torch.stack(found)


def stops(blocks, x):
    lost = torch.zeros(len(blocks), dtype=torch.bool)
    for i, block in enumerate(blocks):
        y = block(x)
        if cosine(x, y) < 0.5:
            lost[i] = True
            break
        x = y
    return lost


def hooked(blocks, x):
    """The stream between the halves, which norm_2 reads."""
    middles = []
    for block in blocks:
        handle = block.norm_2.register_forward_pre_hook(lambda norm, args: middles.append(args[0]))
        y = block(x)
        handle.remove()
        yield x, middles[-1], y
        x = y


ONE = "always one block is named"
WRONG = [
    (walked(lambda a, b, x: cosine(a, b) > 0.5), "the answer is inverted"),
    (walked(lambda a, b, x: cosine(x, b) < 0.5), "every block behind a lost skip is named too"),
    (walked(lambda a, b, x: change(x, b) > 1), "every block behind a lost skip is named too"),
    (late, "the block behind the lost skip is named"),
    (worst(lambda a, b: -cosine(a, b)), ONE),
    (worst(change), ONE),
    (worst(lambda a, b: (b - a).norm()), ONE),
    (stops, "only the first block that has lost a skip"),
    (
        lambda blocks, x: torch.stack([cosine(a, b) < 0.5 for a, b, _ in hooked(blocks, x)]),
        "a lost skip around the MLP is not seen",
    ),
    (
        lambda blocks, x: torch.stack([cosine(b, c) < 0.5 for _, b, c in hooked(blocks, x)]),
        "a lost skip around attention is not seen",
    ),
    (walked(lambda a, b, x: (a != b).any()), "every block is named"),
    (walked(lambda a, b, x: not torch.allclose(a, b)), "every block is named"),
    (walked(lambda a, b, x: torch.equal(a, b)), "no block is named"),
    (walked(lambda a, b, x: change(a, b) > 10), "no block is named"),
    # not named
    (walked(lambda a, b, x: b.norm() < a.norm()), "lost differs from the reference"),
    (
        lambda blocks, x: late(blocks, x).nonzero(),
        "lost has type int64, expected bool, True = the block has lost a skip",
    ),
    (lambda blocks, x: late(blocks, x).double(), "lost has type float64"),
    (lambda blocks, x: late(blocks, x).tolist(), "it returns a list of 5 instead of one tensor"),
    (lambda blocks, x: int(late(blocks, x).nonzero()[0]), "lost is an int, expected a tensor"),
    (lambda blocks, x: torch.stack([cosine(x, block(x)) < 0.5 for block in blocks[1:]]), "lost has the wrong shape"),
    (lambda blocks, x: blocks(x), "it raises NotImplementedError"),
    (lambda blocks: blocks, "it cannot be called as fn(blocks, x)"),
]


@pytest.mark.parametrize("fn", RIGHT)
def test_right(fn):
    verdict = check("lost_skips", fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(("fn", "fault"), WRONG)
def test_wrong(fn, fault):
    verdict = check("lost_skips", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_every_variation_is_what_some_solution_does():
    assert unreached("lost_skips", [fn for fn, _ in WRONG]) == []


def test_any_sensible_border_tells_them_apart():
    """Whether the stream is handed on or not, at once or token by token."""
    for case in tasks_08_skips._cases():
        blocks, x = case.inputs
        for block, stream in zip(blocks, tasks_08_skips._streams(blocks, x), strict=False):
            for given in (stream, x):
                alike = [measure(given, block(given)) for measure in (cosine, of_tokens)]
                apart = change(given, block(given))
                assert max(alike) < 0.15 if block.lost else min(alike) > 0.85
                assert apart > 1.4 if block.lost else apart < 0.6


def test_evidence_names_the_block():
    verdict = check("lost_skips", walked(lambda a, b, x: False))
    assert verdict.evidence == (
        "1 of 5 entries differ, the first at block 2 (counted from 0): False, expected True, "
        "case 1 (layers, B, T, E = 5, 2, 7, 13; no skip around attention in block 2)"
    )


def test_hints_of_another_type_are_not_those_of_a_mask():
    verdict = check("lost_skips", lambda blocks, x: x.new_zeros(len(blocks)))
    assert verdict.hints[1] == "End with a comparison, such as > or ==, or make the tensor with dtype=torch.bool."


def test_blocks_may_not_be_changed():
    def leaves_a_hook(blocks, x):
        blocks[0].register_forward_hook(lambda *_: None)
        return by_large_inputs(blocks, x)

    assert check("lost_skips", leaves_a_hook).fault == "it changes its input blocks in place"

    def zeroed(blocks, x):
        found = []
        for block in blocks:
            for part in (block.attend, block.mlp):
                for parameter in part.parameters():
                    parameter.zero_()
            found.append((block(x) != x).any())
        return torch.stack(found)

    verdict = check("lost_skips", zeroed)
    assert verdict.fault == "it changes its input blocks in place"
    assert verdict.evidence == "its results are right"


def test_the_reference_finds_what_was_lost():
    by_hand = [[0, 0, 1, 0, 0], [1, 0, 0], [0, 0], [0, 1, 0, 1, 0], [1], [0]]
    for case, expected in zip(tasks_08_skips._cases(), by_hand, strict=True):
        assert tasks_08_skips._lost(*case.inputs).int().tolist() == expected
