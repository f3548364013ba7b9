"""Right and wrong solutions of notebook 10: attention in tiles, and how much of the scores they hold."""

import math

import pytest
import torch
from torch.nn import functional as F

from mha_course.checks import check, engine
from mha_course.checks.held import Held
from tests.checks.heads import unreached


def cuts(n, block):
    return [(i, i + block) for i in range(0, n, block)]


def tile(
    rows=lambda T, block: [(0, T)],
    cut=cuts,
    start=-math.inf,
    scores=lambda q, k, n: q @ k.T / math.sqrt(q.shape[1]),
    top=lambda m, s: torch.maximum(m, s.amax(1, keepdim=True)),
    powers=lambda s, m: torch.exp(s - m),
    factor=lambda m, new, n: torch.exp(m - new),
    values=lambda k, v, i, j: v[i:j],
    step=lambda c, den, acc, p, v: (c * den + p.sum(1, keepdim=True), c * acc + p @ v),
    kept=lambda m, new: new,
    end=lambda acc, den, blocks, S: acc / den,
):
    """A solution in steps, some of them changed."""

    def fn(q, k, v, block):
        out = torch.zeros_like(q)
        for first, last in rows(len(q), block):
            qi = q[first:last]
            m = torch.full((len(qi), 1), start, dtype=q.dtype)
            den, acc = torch.zeros_like(m), torch.zeros_like(qi)
            blocks = cut(len(k), block)
            for n, (i, j) in enumerate(blocks):
                s = scores(qi, k[i:j], n)
                new = top(m, s)
                den, acc = step(factor(m, new, n), den, acc, powers(s, new), values(k, v, i, j))
                m = kept(m, new)
            out[first:last] = end(acc, den, len(blocks), len(k))
        return out

    return fn


def scaled(divisor):
    return {"scores": lambda q, k, n: q @ k.T / divisor(q, k)}


def by_keys(q, k, v, block):
    """The square root of the number of all keys."""
    return tile()(q * math.sqrt(q.shape[1] / len(k)), k, v, block)


def no_factor(m, new, n):
    return torch.ones_like(m)


def whole(n, block):
    return [(i * block, (i + 1) * block) for i in range(n // block)]


def undivided(acc, den, blocks, S):
    return acc


def own(m, s):
    return s.max(dim=1, keepdim=True).values


def of_first(m, s):
    return own(m, s) if m.isinf().all() else m


def in_twos(x, m, *_):
    return 2 ** (x - m)


def with_zeros(q, k, v, block):
    missing = math.ceil(len(k) / block) * block - len(k)
    return tile()(q, F.pad(k, (0, 0, 0, missing)), F.pad(v, (0, 0, 0, missing)), block)


def of_tile(m, s):
    return torch.maximum(m, s.max())


def step(total=lambda c, den, p: c * den + p.sum(1, keepdim=True), output=lambda c, acc, pv, den: c * acc + pv):
    def fn(c, den, acc, p, v):
        den = total(c, den, p)
        return den, output(c, acc, p @ v, den)

    return {"step": fn}


def in_each_block(end, dim=1):
    return tile(powers=lambda s, m: s.softmax(dim), factor=no_factor, end=end)


def diagonal(q, k, v, block):
    out = torch.zeros_like(q)
    for i in range(0, min(len(q), len(k)), block):
        out[i : i + block] = tile()(q[i : i + block], k[i : i + block], v[i : i + block], block)
    return out


SHORT = "the last block is left out where it is shorter"
OWN = "the maximum is that of the current block alone, not the largest so far"
WRONG = [
    (tile(cut=whole), SHORT),
    (tile(cut=whole, **scaled(lambda q, k: 1)), f"{SHORT} than the others, and the scores are not scaled"),
    (tile(cut=whole, **scaled(lambda q, k: q.shape[1])), f"{SHORT} than the others, and the scores are divided by D"),
    (tile(cut=whole, rows=whole), "two faults: the last block is left out"),
    (tile(cut=lambda n, b: [(i, i + b - 1) for i in range(0, n, b) if b > 1]), "each block lacks its last key"),
    (tile(cut=lambda n, b: [(i, i + b - 1) for i in range(0, n, b)]), "each block lacks its last key"),
    (tile(cut=lambda n, b: [(i, i + b + 1) for i in range(0, n, b)]), "blocks overlap: the first key of a block"),
    (tile(cut=lambda n, b: [(i, i + b) for i in range(1, n, b)]), "the first key is left out"),
    (tile(cut=lambda n, b: [(i, i + b) for i in range(0, n - 1, b)]), "the last key is left out where it is alone"),
    (tile(cut=lambda n, b: cuts(n, b)[1:]), "the first block is left out"),
    (
        tile(cut=lambda n, b: [(i, i + b) for i in range(0, n - b, b)]),
        "the last block is left out, whatever its length",
    ),
    (tile(cut=lambda n, b: [(0, b)]), "the first block alone is used"),
    (tile(cut=lambda n, b: [(i, i + b) for i in range(math.ceil(n / b))]), "blocks start at 0, 1, 2, ..."),
    (tile(**scaled(lambda q, k: 1)), "the scores are not scaled"),
    (tile(**scaled(lambda q, k: q.shape[1])), "the scores are divided by D: the square root of D is there twice"),
    (tile(**scaled(lambda q, k: q.shape[1] ** -0.5)), "the scores are multiplied by the square root of D"),
    (by_keys, "the scores are divided by the square root of the number of keys"),
    (tile(**scaled(lambda q, k: math.sqrt(2))), "the scores are divided by the square root of 2"),
    (tile(**scaled(lambda q, k: 2)), "the scores are divided by 2"),
    (tile(**scaled(lambda q, k: 4)), "the scores are divided by 4"),
    (tile(**scaled(lambda q, k: 8)), "the scores are divided by 8"),
    (
        tile(scores=lambda q, k, n: q @ k.T / q.shape[1] ** (n / 2 + 0.5)),
        "the queries are divided by the square root of D a",
    ),
    (tile(factor=no_factor), "nothing is rescaled when the maximum rises"),
    (tile(**step(total=lambda c, den, p: den + p.sum(1, keepdim=True))), "the sum is not rescaled"),
    (tile(**step(output=lambda c, acc, pv, den: acc + pv)), "the output is not rescaled"),
    (tile(factor=lambda m, new, n: torch.exp(new - m) if n else 0 * new), "the factor is upside down"),
    (tile(factor=lambda m, new, n: torch.exp(new - m)), "the factor is upside down"),
    (tile(top=own, factor=no_factor), f"{OWN}, and nothing is rescaled"),
    (tile(top=own), OWN),
    (tile(top=of_tile), "one maximum is used for all queries"),
    (tile(top=of_tile, rows=cuts), "one maximum is used for all queries"),
    (with_zeros, "the zeros that fill up the last block are counted as keys"),
    (tile(top=of_first), "the maximum is that of the first block, whatever comes later"),
    (tile(powers=in_twos), "powers of 2 are taken, not of e"),
    (tile(factor=in_twos), "powers of 2 are taken, not of e"),
    (tile(powers=in_twos, factor=in_twos), "powers of 2 are taken, not of e"),
    (tile(start=0), "the maximum starts at 0"),
    (tile(top=lambda m, s: 0 * m, start=0), "no maximum is subtracted"),
    (tile(end=undivided), "the output is not divided by the sum at the end"),
    (
        tile(**step(output=lambda c, acc, pv, den: (c * acc + pv) / den), end=undivided),
        "the output is divided by the sum in every step, not once",
    ),
    (
        tile(**step(output=lambda c, acc, pv, den: (c * acc + pv) / den)),
        "the output is divided by the sum in every step, and",
    ),
    (tile(end=lambda acc, den, blocks, S: acc / S), "the output is divided by the number of keys"),
    (
        tile(kept=lambda m, new: m),
        "the last block alone counts: what came before is lost, as the new maximum is not kept",
    ),
    (
        tile(**step(total=lambda c, den, p: p.sum(1, keepdim=True), output=lambda c, acc, pv, den: pv)),
        "the last block alone counts",
    ),
    (tile(**step(output=lambda c, acc, pv, den: pv)), "the output is overwritten by every block"),
    (tile(**step(total=lambda c, den, p: p.sum(1, keepdim=True))), "the sum is overwritten by every block"),
    (
        in_each_block(lambda acc, den, blocks, S: acc / blocks),
        "a softmax is taken in each block by itself, and the results are av",
    ),
    (in_each_block(undivided), "a softmax is taken in each block by itself, and the results are added"),
    (in_each_block(undivided, dim=0), "a softmax is taken in each block by itself, over the queries"),
    (tile(values=lambda k, v, i, j: v[: len(k[i:j])]), "the values are always those of the first block"),
    (tile(values=lambda k, v, i, j: k[i:j]), "the weights meet the keys, not the values"),
    (tile(rows=whole), "the last queries are left out"),
    (diagonal, "each block of queries sees one block of keys alone"),
    # not named
    (tile(values=lambda k, v, i, j: v), "it raises RuntimeError"),
    (tile(end=lambda acc, den, blocks, S: (acc / den) ** 2), "the numbers differ from the reference"),
    (lambda q, k, v, block: tile()(q, k, v, block)[:-1], "out has the wrong shape"),
    (lambda q, k, v, block: tile()(q, k, v, block).T, "out has the wrong shape"),
    (lambda q, k, v: tile()(q, k, v, 2), "it cannot be called as fn(q, k, v, block)"),
]


def whole_matrix(q, k, v, block):
    return F.softmax(q @ k.T / math.sqrt(q.shape[1]), dim=1) @ v


def elementwise(q, k, v, block):
    scores = (q[:, None] * k).sum(-1) / math.sqrt(q.shape[1])
    return torch.einsum("ts,sd->td", scores.softmax(-1), v)


def in_one_operation(q, k, v, block):
    """Two axes alone: PyTorch's own function writes all scores down."""
    return F.scaled_dot_product_attention(q, k, v)


def written_into(q, k, v, block):
    scores = torch.empty(len(q), len(k), dtype=q.dtype)
    for i, j in cuts(len(k), block):
        scores[:, i:j] = q @ k[i:j].T
    return (scores / math.sqrt(q.shape[1])).softmax(1) @ v


def kept_tiles(q, k, v, block):
    tiles = [q @ k[i:j].T / math.sqrt(q.shape[1]) for i, j in cuts(len(k), block)]
    top = torch.cat([s.amax(1, keepdim=True) for s in tiles], 1).amax(1, keepdim=True)
    den = sum((s - top).exp().sum(1, keepdim=True) for s in tiles)
    return sum((s - top).exp() @ v[i:j] for s, (i, j) in zip(tiles, cuts(len(k), block), strict=True)) / den


def row_by_row(q, k, v, block):
    return torch.stack([(k @ x / math.sqrt(len(x))).softmax(0) @ v for x in q])


def rows_in_blocks(q, k, v, block):
    return torch.cat([whole_matrix(x, k, v, block) for x in q.split(block)])


def counted(q, k, v, block):
    width = math.ceil(len(k) / block)
    return tile()(q, k, v, width)


def fixed(q, k, v, block):
    return tile()(q, k, v, 64)


def many(q, k, v, block):
    return tile()(q, k, v, 256)


def sixteen(q, k, v, block):
    return tile()(q, k, v, 16 * block)


def filled_up(q, k, v, block):
    """All scores at once, in a matrix that is wider than S."""
    missing = math.ceil(len(k) / block) * block - len(k)
    scores = q @ F.pad(k, (0, 0, 0, missing)).T / math.sqrt(q.shape[1])
    return scores[:, : len(k)].softmax(1) @ v


ALL = "the numbers are right, but all T x S scores are held at once"
ROWS = "the numbers are right, but whole rows of scores are held at once"
WIDE = "the numbers are right, but the tiles are not block keys wide"
HELD = [
    *((fn, ALL) for fn in (whole_matrix, elementwise, in_one_operation, written_into, kept_tiles, filled_up)),
    *((fn, ROWS) for fn in (row_by_row, rows_in_blocks)),
    *((fn, WIDE) for fn in (counted, fixed, many, sixteen)),
]


@pytest.mark.parametrize("rows", [lambda T, block: [(0, T)], cuts, lambda T, block: cuts(T, 1)])
def test_right(rows):
    verdict = check("tiled_attention", tile(rows=rows))
    assert verdict.ok, verdict


@pytest.mark.parametrize(("fn", "fault"), [*WRONG, *HELD])
def test_wrong(fn, fault):
    verdict = check("tiled_attention", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) >= 2


def test_every_variation_is_what_some_solution_does():
    assert unreached("tiled_attention", [fn for fn, _ in WRONG]) == []


def test_evidence_says_what_is_held():
    sizes = "with T, S, block = 29, 1009, 23"
    assert check("tiled_attention", written_into).evidence.endswith(
        f" numbers are held at the same time: T x S = 29261, T x block = 667, {sizes}"
    )
    assert check("tiled_attention", row_by_row).evidence == f"a product of shape (S,) = (1009,) is made, {sizes}"
    assert check("tiled_attention", counted).evidence == f"a product of shape (T, 44) = (29, 44) is made, {sizes}"


def test_what_fails_under_the_count_alone_is_no_fault():
    def large_alone(q, k, v, block):
        if len(k) > 100:
            raise RuntimeError
        return whole_matrix(q, k, v, block)

    assert check("tiled_attention", large_alone)


def test_an_interrupt_under_the_count_passes_through():
    def interrupted(q, k, v, block):
        if len(k) > 100:
            raise KeyboardInterrupt
        return whole_matrix(q, k, v, block)

    with pytest.raises(KeyboardInterrupt):
        check("tiled_attention", interrupted)


def test_what_is_let_go_no_longer_counts_and_views_and_inputs_never():
    x = torch.zeros(7, 11)
    with Held([x]) as held:
        y = x + 1
        del y
        z = x * 2
        z[1:].T.unsqueeze(0)
        x.T.reshape(77, 1).T[:2]
    assert held.most == 2 * 77, "z, and the copy that reshape makes"
    with Held([x]) as held:
        both = [x + 1, x + 2]
        both[0].sum()
        x @ x.T
    assert held.most == 2 * 77 + 49
    assert held.products == {(7, 7)}


def test_every_way_to_cut_wrongly_meets_a_case():
    cases = engine._TASKS["tiled_attention"].cases()
    sizes = [(c.sizes["T"], c.sizes["S"], c.sizes["block"]) for c in cases]
    assert any(S % block for _, S, block in sizes)
    assert any(T % block for T, _, block in sizes)
    assert any(S % block == 1 and block > 1 for _, S, block in sizes)
    assert any(block == 1 for *_, block in sizes)
    assert any(block == S > 1 for _, S, block in sizes)
    assert any(block > max(T, S) for T, S, block in sizes)
    assert all(c.inputs[3] == c.sizes["block"] for c in cases)


def test_queries_are_not_written_into():
    def in_place(q, k, v, block):
        q /= math.sqrt(q.shape[1])
        return tile(scores=lambda q, k, n: q @ k.T)(q, k, v, block)

    assert check("tiled_attention", in_place).fault == "it changes its input q in place"
