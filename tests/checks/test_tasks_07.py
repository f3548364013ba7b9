"""Right and wrong solutions of notebook 07: split and merge heads."""

import pytest
import torch

from mha_course.checks import check
from tests.checks.heads import unreached


def split(x, num_heads):
    B, T, E = x.shape
    return x.view(B, T, num_heads, E // num_heads).transpose(1, 2)


def split_by_loops(x, num_heads):
    B, T, E = x.shape
    D = E // num_heads
    heads = torch.zeros(B, num_heads, T, D, dtype=x.dtype)
    for h in range(num_heads):
        for d in range(D):
            heads[:, h, :, d] = x[:, :, h * D + d]
    return heads


def split_by_selection(x, num_heads):
    chosen = torch.eye(x.shape[-1], dtype=x.dtype).unflatten(0, (num_heads, -1))
    return torch.einsum("bte,hde->bhtd", x, chosen)


def split_by_slices(x, num_heads):
    D = x.shape[-1] // num_heads
    return torch.stack([x[..., h * D : (h + 1) * D] for h in range(num_heads)], dim=1)


SPLIT_RIGHT = [
    split,
    split_by_loops,
    split_by_selection,
    split_by_slices,
    lambda x, num_heads: x.unflatten(-1, (num_heads, -1)).transpose(-3, -2),
    lambda x, num_heads: torch.stack(x.chunk(num_heads, dim=-1), dim=1),
    lambda x, num_heads: x.reshape(*x.shape[:2], num_heads, -1).permute(0, 2, 1, 3).contiguous(),
    lambda x, num_heads: x.mT.reshape(len(x), num_heads, -1, x.shape[1]).mT,  # (B, E, T), (B, H, D, T)
    lambda x, num_heads: torch.cat(x.split(x.shape[2] // num_heads, 2)).unflatten(0, (num_heads, -1)).transpose(0, 1),
    lambda x, num_heads: x.view(len(x), -1, num_heads, x.shape[2] // num_heads).swapaxes(1, 2),
]


def view(shape):
    """x.view of a shape from (B, T, H, D)."""
    return lambda x, H: x.reshape(shape(len(x), x.shape[1], H, x.shape[2] // H))


def wrong_axes_reshaped(x, num_heads):
    B, T, E = x.shape
    return x.view(B, T, num_heads, -1).transpose(2, 3).reshape(B, num_heads, T, E // num_heads)


def folded_as_published(x, num_heads):  # of code that writes split and concat of TensorFlow
    return torch.cat(x.split(x.shape[-1] // num_heads, dim=-1), dim=0)


def splits_in_the_width_of_a_head(x, num_heads):
    return torch.stack(x.split(num_heads, dim=-1), dim=1)


SPLIT_WRONG = [
    (view(lambda B, T, H, D: (B, H, T, D)), "x is viewed as (B, H, T, D) where it lies"),
    (lambda x, H: split(x, H).transpose(1, 2).reshape(split(x, H).shape), "x is viewed as (B, H, T, D) where it lies"),
    (lambda x, H: x.view(*x.shape[:2], -1, H).permute(0, 3, 1, 2), "the heads are interleaved"),
    (lambda x, H: torch.stack([x[..., h::H] for h in range(H)], 1), "the heads are interleaved"),
    (lambda x, H: x.transpose(1, 2).reshape(len(x), H, x.shape[1], -1), "tokens and features are exchanged first"),
    (lambda x, H: x.view(len(x), H, -1, x.shape[1]).transpose(2, 3), "the wrong two axes are exchanged: x is viewed"),
    (wrong_axes_reshaped, "the wrong two axes are exchanged, H and D"),
    (lambda x, H: x.view(x.shape[1], len(x), H, -1).permute(1, 2, 0, 3), "x is taken for (T, B, E)"),
    (lambda x, H: x.view(H, len(x), x.shape[1], -1).transpose(0, 1), "x is viewed as (H, B, T, D)"),
    (lambda x, H: folded_as_published(x, H).view(split(x, H).shape), "the heads are put one after another"),
    (lambda x, H: torch.stack(x.chunk(H, -1)[::-1], 1), "the heads come in reversed order"),
    (lambda x, H: torch.stack([x[..., : x.shape[-1] // H]] * H, 1), "every head is the first one"),
    (view(lambda B, T, H, D: (B, T, H, D)), "the tokens stand before the heads, (B, T, H, D)"),
    (lambda x, H: torch.stack(x.chunk(H, -1), 2), "the tokens stand before the heads, (B, T, H, D)"),
    (lambda x, H: torch.stack(x.chunk(H, -1)), "the heads stand before the batch"),
    (lambda x, H: x.view(*x.shape[:2], H, -1).permute(1, 2, 0, 3), "the tokens stand in front, (T, H, B, D)"),
    (lambda x, H: x.view(*x.shape[:2], H, -1).permute(0, 2, 3, 1), "tokens and features have changed places"),
    (lambda x, H: torch.stack(x.chunk(H, -1), -1), "the heads stand behind the features"),
    (splits_in_the_width_of_a_head, "num_heads is used as the width of a head"),
    (lambda x, H: x.view(*x.shape[:2], -1, H), "num_heads is used as the width of a head"),
    (view(lambda B, T, H, D: (B, D, T, H)), "num_heads is used as the width of a head"),
    (lambda x, H: x.view(len(x) * H, -1, x.shape[2] // H), "batch and heads are one axis, (B H, T, D), and cut"),
    (lambda x, H: split(x, H).flatten(0, 1), "batch and heads are one axis, (B H, T, D)"),
    (folded_as_published, "batch and heads are one axis, (H B, T, D)"),
    (lambda x, H: x.unsqueeze(1).repeat(1, H, 1, 1), "every head gets all E features"),
    (lambda x, H: x, "x comes back as it was"),
    # not named
    (lambda x, H: x.chunk(H, -1), "it returns a tuple of 3 instead of one tensor"),
    (lambda x, H: list(x.chunk(H, -1)), "it returns a list of 3 instead of one tensor"),
    (lambda x, H: split(x, H) / split(x, H).shape[-1] ** 0.5, "the numbers differ"),
    (lambda x, H: split(x, H).float(), "heads has type float32, expected float64"),
    (lambda x, H: split(x, H).squeeze(), "heads has the wrong shape"),
    (lambda x, H: x.view(*x.shape[:2], H, -1).T, "heads has the wrong shape"),
    (lambda x, H: x.view(*x.shape[:2], 3, 7).transpose(1, 2), "it raises RuntimeError: shape '[3, 7, 3, 7]'"),
    (lambda x, H: x.view(*x.shape[:2], H, x.shape[2] / H), "it raises TypeError"),
    (lambda x: x, "it cannot be called as fn(x, num_heads)"),
]


def merge(x):
    B, H, T, D = x.shape
    return x.transpose(1, 2).contiguous().view(B, T, H * D)


def merge_by_loops(x):
    B, H, T, D = x.shape
    out = torch.zeros(B, T, H * D, dtype=x.dtype)
    for h in range(H):
        out[:, :, h * D : (h + 1) * D] = x[:, h]
    return out


def merge_by_selection(x):
    H, D = x.shape[1], x.shape[3]
    return torch.einsum("bhtd,hde->bte", x, torch.eye(H * D, dtype=x.dtype).view(H, D, -1))


MERGE_RIGHT = [
    merge,
    merge_by_loops,
    merge_by_selection,
    lambda x: x.transpose(1, 2).flatten(2),
    lambda x: x.permute(0, 2, 1, 3).reshape(len(x), x.shape[2], -1),
    lambda x: torch.cat(x.unbind(1), dim=-1),
    lambda x: torch.cat([x[:, h] for h in range(x.shape[1])], dim=2),
    lambda x: torch.stack(x.unbind(1), dim=2).flatten(-2),
    lambda x: x.mT.flatten(1, 2).mT,  # (B, H, D, T), (B, E, T)
]


def read_in_the_wrong_order(x):
    B, T, H, D = x.shape
    return x.transpose(1, 2).reshape(B, T, H * D)


def never_exchanged_and_read_in_the_wrong_order(x):
    B, T, H, D = x.shape
    return x.reshape(B, T, H * D)


MERGE_WRONG = [
    (lambda x: x.reshape(len(x), x.shape[2], -1), "the heads are reshaped to (B, T, E) where they lie"),
    (lambda x: x.contiguous().view(len(x), -1, x.shape[1] * x.shape[3]), "the heads are reshaped to (B, T, E) where"),
    (lambda x: x.permute(0, 2, 3, 1).reshape(len(x), x.shape[2], -1), "the heads are interleaved"),
    (lambda x: torch.stack(x.unbind(1), -1).flatten(2), "the heads are interleaved"),
    (lambda x: x.transpose(2, 3).reshape(len(x), x.shape[2], -1), "the wrong two axes are exchanged, T and D"),
    (lambda x: x.transpose(1, 3).reshape(len(x), x.shape[2], -1), "the wrong two axes are exchanged, H and D"),
    (lambda x: x.permute(2, 0, 1, 3).reshape(len(x), x.shape[2], -1), "the tokens come before the batch"),
    (lambda x: torch.cat(x.unbind(1)).view(len(x), x.shape[2], -1), "the heads come before the batch"),
    (lambda x: torch.cat(x.unbind(1)[::-1], -1), "the heads come in reversed order"),
    (lambda x: torch.cat([x[:, 0]] * x.shape[1], -1), "the first head is repeated"),
    (lambda x: torch.cat([x.mean(1)] * x.shape[1], -1), "the mean of the heads is repeated"),
    (lambda x: sum(x.unbind(1)).repeat(1, 1, x.shape[1]), "the sum of the heads is repeated"),
    (lambda x: x.mean(dim=1), "the heads are averaged"),
    (lambda x: sum(x[:, h] for h in range(x.shape[1])), "the heads are added up"),
    (lambda x: x[:, 0], "the first head alone is kept"),
    (lambda x: torch.stack(x.unbind(1), 2), "the heads and their features are still two axes, (B, T, H, D)"),
    (lambda x: x.permute(2, 0, 1, 3).flatten(2), "the tokens stand before the batch, (T, B, E)"),
    (lambda x: torch.cat(x.mT.unbind(1), 1), "tokens and features have changed places, (B, E, T)"),
    (lambda x: torch.cat(x.unbind(1), 1), "the heads are joined along the tokens, (B, H T, D)"),
    (lambda x: x.transpose(1, 2).reshape(len(x), -1, x.shape[3]), "the heads are joined along the tokens, (B, T H, D)"),
    (lambda x: torch.cat([x[:, h] for h in range(x.shape[1])]), "the heads are joined along the batch, (H B, T, D)"),
    (lambda x: x.view(-1, *x.shape[2:]), "the heads are joined along the batch, (B H, T, D)"),
    (read_in_the_wrong_order, "the axes H and T are confused"),
    (never_exchanged_and_read_in_the_wrong_order, "the axes H and T are confused"),
    (lambda x: x.transpose(2, 3).flatten(2), "the axes H and T are confused"),
    # not named
    (lambda x: x, "merged has the wrong shape"),
    (lambda x: x.transpose(1, 2).view(len(x), x.shape[2], -1), "it raises RuntimeError: view size is not compatible"),
    (lambda x: merge(x).squeeze(), "merged has the wrong shape"),
    (lambda x: merge(x).float(), "merged has type float32"),
    (lambda x: torch.cat(x.unbind(1), -1) * 2, "the numbers differ"),
]

RIGHT = {"split_heads": SPLIT_RIGHT, "merge_heads": MERGE_RIGHT}
WRONG = {"split_heads": SPLIT_WRONG, "merge_heads": MERGE_WRONG}


@pytest.mark.parametrize(("name", "fn"), [(name, fn) for name, fns in RIGHT.items() for fn in fns])
def test_right(name, fn):
    verdict = check(name, fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(("name", "fn", "fault"), [(name, *pair) for name, pairs in WRONG.items() for pair in pairs])
def test_wrong(name, fn, fault):
    verdict = check(name, fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


@pytest.mark.parametrize("name", RIGHT)
def test_every_variation_is_what_some_solution_does(name):
    assert unreached(name, [fn for fn, _ in WRONG[name]]) == []


def test_wrong_ways_cancel_each_other():
    """So a round trip proves nothing, and the numbers of each are compared."""
    x = torch.randn(2, 5, 6)
    cut, join = SPLIT_WRONG[0][0], MERGE_WRONG[0][0]
    assert torch.equal(join(cut(x, 3)), x)
    assert not torch.equal(cut(x, 3), split(x, 3))


def test_a_view_of_exchanged_axes_is_told_what_to_do():
    verdict = check("merge_heads", lambda x: x.transpose(1, 2).view(len(x), x.shape[2], -1))
    assert verdict.hints == (
        "view needs numbers that lie in memory in this order, and an exchange of axes moves none of them.",
        "Put them in order first, contiguous(), or let reshape do it, which copies where it must.",
    )


def test_sizes_that_do_not_multiply_are_told_apart():
    verdict = check("split_heads", lambda x, H: x.view(*x.shape[:2], 3, 7).transpose(1, 2))
    assert (
        verdict.hints[0] == "Multiply the sizes in that line: do they give the size of what is cut or reshaped there?"
    )
    assert check("split_heads", lambda x, H: x.unflatten(-1, (3, 7)).transpose(1, 2)).hints == verdict.hints


def test_shapes_and_places_are_said_in_letters():
    assert check("split_heads", lambda x, H: split(x, H).transpose(1, 2)).evidence == (
        "shape (B, T, H, D) = (2, 5, 3, 7), expected (B, H, T, D) = (2, 3, 5, 7), "
        "case 1 (B, T, E, H, D = 2, 5, 21, 3, 7)"
    )
    assert "(H, B, T, D) = (3, 2, 5, 7)" in check("split_heads", lambda x, H: torch.stack(x.chunk(H, -1))).evidence

    def one_off(x):
        out = merge(x)
        out[1, 4, 20] += 0.5
        return out

    assert check("merge_heads", one_off).evidence == (
        "largest difference 0.50 in merged, sample 1, token 4, feature 20 (counted from 0), "
        "case 1 (B, T, E, H, D = 2, 5, 21, 3, 7)"
    )


def test_a_transpose_of_all_axes_is_named():
    verdict = check("split_heads", lambda x, H: x.view(*x.shape[:2], H, -1).T)
    assert verdict.hints[1] == "Name the two axes that change places: x.transpose(-2, -1) swaps the last two alone."
