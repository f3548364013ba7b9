"""What tiled attention moves between a large, slow memory and a small, fast one, counted."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mha_course.dot_product import check_tensors
from mha_course.masks._inputs import check_integer
from mha_course.tiled.memory import Memory, Move, Traffic
from mha_course.tiled.online import finite, positive


class Blocks(NamedTuple):
    """How the scores are cut into tiles.

    Attributes:
        queries: rows of a tile, the paper's Br.
        keys: columns of a tile, the paper's Bc.
    """

    queries: int
    keys: int

    def tiles(self, T: int, S: int) -> int:
        """Number of tiles of (T, S) scores."""
        return math.ceil(T / self.queries) * math.ceil(S / self.keys)

    def peak(self, T: int, S: int, D: int) -> int:
        """Elements in fast memory while a tile is worked on: Q and O, K and V, l and m, and the tile's scores."""
        rows, columns = min(self.queries, T), min(self.keys, S)
        return 2 * rows * D + 2 * columns * D + 2 * rows + rows * columns


class Step(NamedTuple):
    """The work on one tile.

    Attributes:
        queries: rows of the tile.
        keys: columns of the tile.
        before: running maximum of each row before the tile, -inf if it is the row's first.
        after: running maximum with the tile.
    """

    queries: range
    keys: range
    before: Float[Tensor, " rows"]
    after: Float[Tensor, " rows"]

    @property
    def rescaled(self) -> Bool[Tensor, " rows"]:
        """The rows whose earlier tiles must be multiplied by exp(before - after), as their maximum grew."""
        return (self.after > self.before) & (self.before > -math.inf)


class Simulation(NamedTuple):
    """One run in the simulated memory.

    Attributes:
        out: (T, D), what attention returns.
        traffic: elements moved, counted as they moved.
        peak: most elements that fast memory held at one time.
        steps: the tiles in their order.
        log: every move in its order.
    """

    out: Float[Tensor, "T D"]
    traffic: Traffic
    peak: int
    steps: tuple[Step, ...]
    log: tuple[Move, ...]


def standard(T: int, S: int, D: int) -> Traffic:
    """Count what attention moves that writes scores and weights to slow memory.

    Q and K are read, the scores written; the scores read, the weights written; the weights and V read, O
    written. Each matrix crosses once an operation, whatever the size of fast memory: 4 T S + 2 T D + 2 S D.

    Args:
        T, S, D: number of queries, of keys, and width; at least 1.

    Returns:
        Traffic(loads, stores) in elements.

    Raises:
        TypeError: T, S or D is not an integer.
        ValueError: T, S or D is below 1.

    Source: Dao et al. 2022, Algorithm 0, with T = S = N and D = d.
    """
    T, S, D = _sizes(T, S, D)
    return Traffic(loads=T * D + S * D + T * S + T * S + S * D, stores=T * S + T * S + T * D)


def block_sizes(D: int, *, sram: int, order: str) -> Blocks:
    """Choose the largest blocks whose Q, K, V and O together fill fast memory.

    keys outside: Bc = ceil(sram / 4D) keys, Br = min(Bc, D) queries, as in the paper
    queries outside, the same with the roles exchanged: Br = ceil(sram / 4D) queries, Bc = min(Br, D) keys

    The Br x Bc scores of a tile and its row statistics come on top, and what ceil rounds up. Rounding aside they
    pass sram by at most a quarter and 1 / 2D of it, at sram = 4 D^2. For D of at least 8 all fits from 8 D^2 + 37 D
    on; for a smaller D it takes more. `Blocks.peak` counts them.

    Args:
        D: width, at least 1.
        sram: elements that fast memory holds, at least 4 D: one row each of Q, K, V and O.
        order: "keys outside" or "queries outside".

    Returns:
        Blocks(queries, keys).

    Raises:
        TypeError: D or sram is not an integer.
        ValueError: D is below 1, or sram below 4 D; an unknown order.

    Source: Dao et al. 2022, Algorithm 1, line 1, with D = d and sram = M. Dao 2023 leaves the sizes open.
    """
    D, sram = check_integer("D", D, 1), check_integer("sram", sram)
    _check_order(order)
    if sram < 4 * D:
        raise ValueError(f"sram must hold one row each of Q, K, V and O, 4 D = {4 * D} elements, got {sram}")
    outer = -(-sram // (4 * D))
    inner = min(outer, D)
    return Blocks(queries=inner, keys=outer) if order == "keys outside" else Blocks(queries=outer, keys=inner)


def counts(T: int, S: int, D: int, *, sram: int, order: str) -> Traffic:
    """Count what tiled attention moves, without doing it: what `simulate` finds, at any size.

    keys outside: O, l, m are written once at the start. K and V are read once. For each block of
        keys, all of Q, O, l, m are read, and O, l, m written again.
    queries outside: Q is read once. For each block of queries, all of K and V are read. O and one
        logsumexp a row are written once.

    Far above the size of a block this is about 12 T S D^2 / sram with keys outside, 8 T S D^2 / sram with queries
    outside. They meet the standard algorithm's 4 T S at sram = 3 D^2 and at 2 D^2.

    Args:
        T, S, D: number of queries, of keys, and width; at least 1.
        sram: elements that fast memory holds, at least 4 D.
        order: which loop is outside, "keys outside" or "queries outside".

    Returns:
        Traffic(loads, stores) in elements.

    Raises:
        TypeError: T, S, D or sram is not an integer.
        ValueError: T, S or D is below 1, or sram below 4 D; an unknown order.

    Source: Dao et al. 2022, Algorithm 1 and Theorem 2 (T = S = N, D = d, sram = M); Dao 2023, Algorithm 1.
    """
    T, S, D = _sizes(T, S, D)
    blocks = block_sizes(D, sram=sram, order=order)
    if order == "keys outside":
        passes = math.ceil(S / blocks.keys)
        return Traffic(
            loads=2 * S * D + passes * (2 * T * D + 2 * T),
            stores=(1 + passes) * (T * D + 2 * T),
        )
    passes = math.ceil(T / blocks.queries)
    return Traffic(loads=T * D + passes * 2 * S * D, stores=T * D + T)


def simulate(
    q: Float[Tensor, "T D"], k: Float[Tensor, "S D"], v: Float[Tensor, "S D"], *, sram: int, order: str
) -> Simulation:
    """Run tiled attention in a memory that counts, tile after tile.

    m_new = max(m, largest score of the tile)
    l_new = exp(m - m_new) l + sum of exp(scores - m_new)
    keys outside: O = (exp(m - m_new) l O + exp(scores - m_new) V) / l_new, always the finished average so far
    queries outside: O = exp(m - m_new) O + exp(scores - m_new) V, divided by l after the last tile

    Args:
        q: queries (T, D); the scores are scaled by 1 / sqrt(D).
        k: keys (S, D).
        v: values (S, D).
        sram: elements that fast memory holds, at least 4 D; it chooses the blocks (`block_sizes`).
        order: which loop is outside, "keys outside" or "queries outside".

    Returns:
        Simulation(out, traffic, peak, steps, log).

    Raises:
        TypeError: q, k or v is not a floating point tensor; they have different types; sram is not an integer.
        ValueError: q, k or v is not a matrix with at least one row and column; k's width is not that of q, or v's
            shape that of k; sram is below 4 D; an unknown order.

    Source: Dao et al. 2022, Algorithm 1; Dao 2023, Algorithm 1.
    """
    _check_inputs(q, k, v)
    blocks = block_sizes(q.shape[1], sram=sram, order=order)
    memory = Memory(Q=q, K=k, V=v)
    steps = tuple(_ORDERS[order](memory, blocks))
    return Simulation(memory.slow["O"], memory.traffic, memory.peak, steps, tuple(memory.log))


def _keys_outside(memory: Memory, blocks: Blocks) -> Iterator[Step]:
    q, k = memory.slow["Q"], memory.slow["K"]
    memory.fill("O", q, 0)
    memory.fill("l", q[:, 0], 0)
    memory.fill("m", q[:, 0], -math.inf)
    for keys in _cut(len(k), blocks.keys):
        memory.load("K", keys)
        memory.load("V", keys)
        for queries in _cut(len(q), blocks.queries):
            _, out, total, before = (memory.load(name, queries) for name in "QOlm")
            weights, kept, after = _weigh(memory)
            total_after = kept * total + weights.sum(-1)
            out = (kept * total)[:, None] * out + weights @ memory.fast["V"]
            memory.hold("O", out / positive(total_after)[:, None])
            memory.hold("l", total_after)
            memory.free("S", "Q")
            for name in "Olm":
                memory.store(name, queries)
            yield Step(queries, keys, before, after)
        memory.free("K", "V")


def _queries_outside(memory: Memory, blocks: Blocks) -> Iterator[Step]:
    q, k = memory.slow["Q"], memory.slow["K"]
    memory.slow |= {"O": torch.empty_like(q), "L": torch.empty_like(q[:, 0])}
    for queries in _cut(len(q), blocks.queries):
        block = memory.load("Q", queries)
        memory.hold("O", torch.zeros_like(block))
        memory.hold("l", torch.zeros_like(block[:, 0]))
        memory.hold("m", torch.full_like(block[:, 0], -math.inf))
        for keys in _cut(len(k), blocks.keys):
            memory.load("K", keys)
            memory.load("V", keys)
            before = memory.fast["m"]
            weights, kept, after = _weigh(memory)
            memory.hold("l", kept * memory.fast["l"] + weights.sum(-1))
            memory.hold("O", kept[:, None] * memory.fast["O"] + weights @ memory.fast["V"])
            memory.free("S", "K", "V")
            yield Step(queries, keys, before, after)
        total, maximum = memory.fast.pop("l"), memory.fast.pop("m")
        memory.hold("O", memory.fast["O"] / positive(total)[:, None])
        memory.hold("L", maximum + total.log())
        memory.free("Q")
        memory.store("O", queries)
        memory.store("L", queries)


_ORDERS: dict[str, Callable[[Memory, Blocks], Iterator[Step]]] = {
    "keys outside": _keys_outside,
    "queries outside": _queries_outside,
}


def _weigh(memory: Memory) -> tuple[Tensor, Tensor, Tensor]:
    """Replace S by exp(scores - m_new) and m by m_new; also return exp(m - m_new), the factor of what was before."""
    q, k = memory.fast["Q"], memory.fast["K"]
    scores = memory.hold("S", q @ k.T * q.shape[1] ** -0.5)  # (Br, Bc)
    before = memory.fast["m"]
    after = memory.hold("m", torch.maximum(before, scores.amax(-1)))
    subtracted = finite(after)  # all scores may have overflowed to -inf
    return memory.hold("S", (scores - subtracted[:, None]).exp()), (before - subtracted).exp(), after


def _cut(length: int, size: int) -> Iterator[range]:
    return (range(start, min(start + size, length)) for start in range(0, length, size))


def _sizes(T: int, S: int, D: int) -> tuple[int, int, int]:
    return check_integer("T", T, 1), check_integer("S", S, 1), check_integer("D", D, 1)


def _check_order(order: str) -> None:
    if not isinstance(order, str) or order not in _ORDERS:
        raise ValueError(f'order must be "keys outside" or "queries outside", got {order!r}')


def _check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    check_tensors(q, k, v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 2 or 0 in x.shape:
            raise ValueError(
                f"{name} must be a matrix (length, D) of at least one row and column, got {tuple(x.shape)}"
            )
    if v.shape != k.shape:
        raise ValueError(f"k and v must have one shape (S, D), got k {tuple(k.shape)} and v {tuple(v.shape)}")
