"""The two exercises of notebook 10 in steps, and their cases: two blocks merged, and attention in tiles."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from mha_course.checks.parting import Step
from mha_course.checks.task import Case, by_steps, draw

Array = Tensor  # unchecked: a search for two faults calls the steps a thousand times
Block = tuple[Array, Array, Array]
Pair = tuple[Array, Array]
Merge = Callable[[Array, Array, Array, Array, Array, Array], Block]
Cuts = Callable[[int, int], Iterable[slice]]

_SEEN = (2, 7)  # keys in the two blocks


def _block(scores: Array, v: Array) -> Block:
    """Maximum (T,), sum (T,) and output (T, D) of a block; -inf, 0 and 0 for a query that sees none of its keys."""
    m = scores.amax(-1)
    powers = torch.where(scores == -math.inf, 0, (scores - m[:, None]).exp())
    den = powers.sum(-1)
    return m, den, powers @ v / den.clamp(min=1)[:, None]


def _drawn(seed: int, T: int, D: int, note: str = "", shift: Array | None = None) -> Case:
    """Two blocks, of 2 and of 7 keys; shift (2, T) is added to the scores of either block."""
    s1, s2, v1, v2 = draw(seed, *((T, S) for S in _SEEN), *((S, D) for S in _SEEN))
    if shift is not None:
        s1, s2 = s1 + shift[0, :, None], s2 + shift[1, :, None]
    if note == "equal maxima":
        s2 = s2 + (s1.amax(-1) - s2.amax(-1))[:, None]
    return Case({"T": T, "D": D}, (*_block(s1, v1), *_block(s2, v2)), note)


def merge_cases() -> tuple[Case, ...]:
    """No case is -inf, or overflows, in all its rows: a solution that gives NaN there still tells something."""
    no, up, down = -math.inf, 800.0, -800.0
    empty = torch.tensor([[no, 0, no, 0, 0], [0, no, no, 0, 0]])
    far = torch.tensor([[0, up, down, up, down, 0, up], [0, up, down, up + 1, down - 1, 0, down]])
    return (
        _drawn(0, 3, 5),
        _drawn(1, 5, 3),
        _drawn(2, 5, 7, "rows in which a block, or both, see no key", empty),
        _drawn(3, 7, 3, "maxima around 800 and -800", far),
        _drawn(4, 3, 7, "equal maxima"),
        _drawn(5, 3, 1),
        _drawn(6, 1, 2),
    )


def gap(m_i: Array, m: Array) -> Array:
    """The exponent of a block's factor: -inf where it sees no key."""
    return torch.where(m_i == -math.inf, m_i, m_i - m)


def _sum(a: Array, l1: Array, b: Array, l2: Array, m: Array) -> Array:
    return a * l1 + b * l2


@by_steps
def merged(
    top: Callable[[Array, Array], Array] = torch.maximum,
    gap: Callable[[Array, Array], Array] = gap,
    factor: Callable[[Array], Array] = torch.exp,
    rescale: Callable[[Array, Array], Pair] = lambda a, b: (a, b),
    total: Callable[[Array, Array, Array, Array, Array], Array] = _sum,
    weigh: Callable[[Array, Array], Array] = lambda a, den: a * den,
    mix: Callable[[Array, Array, Array, Array], Array] = lambda x, o1, y, o2: x * o1 + y * o2,
    nonzero: Callable[[Array], Array] = lambda den: torch.where(den == 0, 1, den),
    divide: Callable[[Array, Array, Array], Array] = lambda o, den, own: o / den,
    show: Callable[[Array, Array, Array], Array] = lambda m, m1, m2: m,
) -> Merge:
    """Two blocks merged, with some steps changed.

    Args:
        top: from both maxima to the new one, (T,).
        gap: from a block's maximum and the new one to the exponent of its factor.
        factor: from that to the factor.
        rescale: the two factors that are used.
        total: from factor and sum of both blocks, and the new maximum, to the new sum.
        weigh: from factor and sum of a block to the weight of its output.
        mix: from weight (T, 1) and output (T, D) of both blocks to the numerator.
        nonzero: makes the denominator of it.
        divide: from numerator, the new sum and the sum of both weights, to the output.
        show: from the new maximum and both old ones to the one that is returned.
    """

    def fn(m1: Array, l1: Array, o1: Array, m2: Array, l2: Array, o2: Array) -> Block:
        m = top(m1, m2)
        a, b = rescale(factor(gap(m1, m)), factor(gap(m2, m)))
        den = total(a, l1, b, l2, m)
        x, y = weigh(a, l1), weigh(b, l2)
        o = mix(x[:, None], o1, y[:, None], o2)
        return show(m, m1, m2), den, divide(o, nonzero(den)[:, None], nonzero(x + y)[:, None])

    return fn


def merge_numbers(m1: Array, l1: Array, o1: Array, m2: Array, l2: Array, o2: Array) -> tuple[Step, ...]:
    """The numbers of each step, for `parting`."""
    m, den, o = merged()(m1, l1, o1, m2, l2, o2)
    return Step("new maximum", m), Step("new sum", den), Step("output", o)


def tile_case(seed: int, sizes: tuple[int, int, int, int], note: str = "") -> Case:
    """Queries, keys and values drawn for T, S, D and block."""
    T, S, D, block = sizes
    q, k, v = draw(seed, (T, D), (S, D), (S, D))
    return Case({"T": T, "S": S, "D": D, "block": block}, (q, k, v, block), note)


def _steered(case: Case, rows: Array, keys: Array, note: str) -> Case:
    """The same with rows (T,) times keys (S,) added to the scaled scores, in place of their first feature."""
    q, k, v, block = case.inputs
    q, k = q.clone(), k.clone()
    q[:, 0], k[:, 0] = rows * math.sqrt(q.shape[1]), keys
    return Case(case.sizes, (q, k, v, block), note)


def tile_cases() -> tuple[Case, ...]:
    """No case overflows in all its rows: a solution that gives NaN there still tells something."""
    down, along = tile_case(6, (5, 13, 3, 2)), tile_case(7, (7, 11, 2, 3))
    signs = torch.tensor([1.0, -1, 0, 1, -1, 0, 1])
    return (
        tile_case(0, (3, 7, 5, 2)),
        tile_case(1, (5, 5, 7, 3)),
        tile_case(2, (5, 11, 3, 5)),
        tile_case(3, (7, 5, 3, 1), "one key at a time"),
        tile_case(4, (5, 7, 11, 7), "all keys in one block"),
        tile_case(5, (5, 3, 7, 11), "block larger than S"),
        _steered(down, torch.tensor([0.0, 1, 1, 1, 1]), -800 * torch.ones(13), "scores around -800 in all rows but 0"),
        _steered(along, signs, torch.linspace(800, -800, 11), "scores from 800 to -800, or back, or around 0"),
        tile_case(8, (3, 5, 1, 2)),
        tile_case(9, (1, 3, 2, 2)),
        tile_case(10, (2, 1, 3, 3)),
    )


def blocks_of(n: int, block: int) -> list[slice]:
    """Blocks of n positions, the last one shorter where block is no divisor."""
    return [slice(i, min(i + block, n)) for i in range(0, n, block)]


def whole_blocks(n: int, block: int) -> list[slice]:
    """The whole blocks alone."""
    return [slice(i * block, (i + 1) * block) for i in range(n // block)]


@by_steps
def tiled(
    rows: Cuts = lambda T, block: [slice(0, T)],
    cut: Cuts = blocks_of,
    start: float = -math.inf,
    scale: Callable[[Array, Array, Array], float] = lambda q, k, v: 1 / math.sqrt(q.shape[-1]),
    again: Callable[[float, int], float] = lambda scale, n: scale,
    highest: Callable[[Array, Array], Array] = lambda m, s: torch.maximum(m, s.amax(1, keepdim=True)),
    power: Callable[[Array, Array], Array] = lambda s, new: (s - new).exp(),
    factor: Callable[[Array, Array, int], Array] = lambda m, new, n: (m - new).exp(),
    add: Callable[[Array, Array, Array], Array] = lambda den, c, p: c * den + p.sum(1, keepdim=True),
    values: Callable[[Array, Array, slice], Array] = lambda k, v, b: v[b],
    gather: Callable[[Array, Array, Array, Array], Array] = lambda acc, c, pv, den: c * acc + pv,
    keep: Callable[[Array, Array], Array] = lambda m, new: new,
    end: Callable[[Array, Array, int, int], Array] = lambda acc, den, n, S: acc / den,
) -> Callable[[Array, Array, Array, int], Array]:
    """Attention in tiles, with some steps changed.

    Args:
        rows: from T and block to the blocks of queries, one after another; one block as a rule.
        cut: from S and block to the blocks of keys.
        start: the maximum before the first block.
        scale: the factor on the scores, from q, k and v.
        again: from that and the number of the block to the one that is used.
        highest: from the maximum so far (T, 1) and the tile (T, block) to the new maximum.
        power: from the tile and the new maximum to exponentials.
        factor: from both maxima and the number of the block to the factor on what there is so far.
        add: from the sum so far, factor and exponentials to the new sum (T, 1).
        values: from all keys, all values and the block to those that are used.
        gather: from the output so far, the factor, exponentials times values and the new sum to the output (T, D).
        keep: from both maxima to the one that the next block finds.
        end: from the output, the sum, the number of blocks and that of keys to the result.
    """

    def attend(q: Array, k: Array, v: Array, block: int) -> Array:
        m, den, acc = q.new_full((len(q), 1), start), q.new_zeros(len(q), 1), q.new_zeros(q.shape)
        blocks = list(cut(len(k), block))
        for n, b in enumerate(blocks):
            s = q @ k[b].T * again(scale(q, k, v), n)
            new = highest(m, s)
            p, c = power(s, new), factor(m, new, n)
            den = add(den, c, p)
            acc = gather(acc, c, p @ values(k, v, b), den)
            m = keep(m, new)
        return end(acc, den, len(blocks), len(k))

    def fn(q: Array, k: Array, v: Array, block: int) -> Array:
        out = torch.zeros_like(q)
        for i in rows(len(q), block):
            out[i] = attend(q[i], k, v, block)
        return out

    return fn


def with_zeros(q: Array, k: Array, v: Array, block: int) -> Array:
    """The last block is filled up with zeros, which count as keys."""
    extra = k.new_zeros(-len(k) % block, k.shape[1])
    return tiled()(q, torch.cat([k, extra]), torch.cat([v, extra]), block)


def diagonal(q: Array, k: Array, v: Array, block: int) -> Array:
    """Each block of queries sees the block of keys in the same place alone."""
    out = torch.zeros_like(q)
    for b in blocks_of(min(len(q), len(k)), block):
        rows = slice(b.start, b.start + block)
        out[rows] = (q[rows] @ k[rows].T / math.sqrt(q.shape[1])).softmax(-1) @ v[rows]
    return out


def tile_numbers(q: Array, k: Array, v: Array, block: int) -> tuple[Step, ...]:
    """The numbers of each step in the first block of keys, and the output, for `parting`."""
    first = q @ k[:block].T
    scores = first / math.sqrt(q.shape[1])
    powers = (scores - scores.amax(1, keepdim=True)).exp()
    return (
        Step("products of the first tile", first, factor=True),
        Step("scores of the first tile", scores),
        Step("exponentials of the first tile", powers),
        Step("share of the first tile in the output", powers @ v[:block]),
        Step("output", tiled()(q, k, v, block)),
    )
