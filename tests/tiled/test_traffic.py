"""Traffic of tiled attention: measured in a simulated memory, in closed form, and by the formulas of the papers."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from mha_course.dot_product import attention
from mha_course.tiled import traffic
from mha_course.tiled.memory import Memory, Traffic

ORDERS = ("keys outside", "queries outside")
# (T, S, D, sram): primes that no block divides, blocks longer than T or S, one row a block, blocks that fit
SIZES = [
    (11, 13, 3, 29),
    (13, 11, 5, 53),
    (13, 13, 2, 47),
    (7, 17, 3, 97),
    (17, 7, 3, 97),
    (5, 3, 2, 8),
    (2, 3, 7, 1009),
    (1, 1, 1, 4),
    (12, 12, 3, 48),
]


def drawn(T: int, S: int, D: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(T + S + D)
    q, k, v = (torch.randn(n, D, generator=generator, dtype=torch.float64) for n in (T, S, S))
    return 2 * q, k, v


def simulated(T: int, S: int, D: int, sram: int, order: str) -> traffic.Simulation:
    return traffic.simulate(*drawn(T, S, D), sram=sram, order=order)


def lengths(n: int, size: int) -> list[int]:
    """What a length is cut into: full blocks and a rest."""
    return [size] * (n // size) + [n % size] * (n % size > 0)


def by_the_papers(T: int, S: int, D: int, sram: int, order: str) -> Traffic:
    """Loop over the blocks of the algorithms as they are printed, and add."""
    loads = stores = 0
    if order == "keys outside":
        Bc = math.ceil(sram / (4 * D))
        Br = min(Bc, D)
        stores += T * D + 2 * T
        for columns in lengths(S, Bc):
            loads += 2 * columns * D
            for rows in lengths(T, Br):
                loads += 2 * rows * D + 2 * rows
                stores += rows * D + 2 * rows
    else:
        Br = math.ceil(sram / (4 * D))
        Bc = min(Br, D)
        for rows in lengths(T, Br):
            loads += rows * D
            loads += sum(2 * columns * D for columns in lengths(S, Bc))
            stores += rows * D + rows
    return Traffic(loads, stores)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
class TestSimulation:
    def test_output_is_attention(self, sizes: tuple[int, ...], order: str) -> None:
        T, S, D, sram = sizes
        torch.testing.assert_close(simulated(T, S, D, sram, order).out, attention(*drawn(T, S, D)).out)

    def test_measured_counts_are_those_of_the_closed_form_and_of_the_papers(
        self, sizes: tuple[int, ...], order: str
    ) -> None:
        T, S, D, sram = sizes
        measured = simulated(T, S, D, sram, order).traffic
        assert measured == traffic.counts(T, S, D, sram=sram, order=order)
        assert measured == by_the_papers(T, S, D, sram, order)

    def test_peak(self, sizes: tuple[int, ...], order: str) -> None:
        T, S, D, sram = sizes
        blocks = traffic.block_sizes(D, sram=sram, order=order)
        rows, columns = min(blocks.queries, T), min(blocks.keys, S)
        peak = simulated(T, S, D, sram, order).peak
        assert peak == blocks.peak(T, S, D) == 2 * (rows + columns) * D + 2 * rows + rows * columns

    def test_every_score_is_in_one_tile(self, sizes: tuple[int, ...], order: str) -> None:
        T, S, D, sram = sizes
        steps, seen = simulated(T, S, D, sram, order).steps, torch.zeros(T, S)
        for step in steps:
            seen[step.queries.start : step.queries.stop, step.keys.start : step.keys.stop] += 1
        torch.testing.assert_close(seen, torch.ones(T, S))
        assert len(steps) == traffic.block_sizes(D, sram=sram, order=order).tiles(T, S)
        outer = [step.keys if order == "keys outside" else step.queries for step in steps]
        assert all(a == b or b.start == a.stop for a, b in pairwise(outer))

    def test_maxima(self, sizes: tuple[int, ...], order: str) -> None:
        T, S, D, sram = sizes
        q, k, v = drawn(T, S, D)
        scores = attention(q, k, v).scores
        for step in traffic.simulate(q, k, v, sram=sram, order=order).steps:
            rows = scores[step.queries.start : step.queries.stop]
            so_far = rows[:, : step.keys.stop].amax(-1)
            old = rows[:, : step.keys.start]
            before = old.amax(-1) if step.keys.start else torch.full_like(so_far, -math.inf)
            torch.testing.assert_close(step.after, so_far)
            torch.testing.assert_close(step.before, before)
            assert step.rescaled.tolist() == [
                step.keys.start > 0 and a > b for a, b in zip(so_far, before, strict=True)
            ]

    def test_log(self, sizes: tuple[int, ...], order: str) -> None:
        T, S, D, sram = sizes
        run = simulated(T, S, D, sram, order)
        width = {"Q": D, "K": D, "V": D, "O": D, "l": 1, "m": 1, "L": 1}
        assert all(move.elements == len(move.rows) * width[move.name] for move in run.log)
        for kind, total in zip(("load", "store"), run.traffic, strict=True):
            assert sum(move.elements for move in run.log if move.kind == kind) == total
        assert run.log[-1].held == (2 * min(S, len(run.steps[-1].keys)) * D if order == "keys outside" else 0)
        assert "S" not in {move.name for move in run.log}  # scores never cross


def test_keys_outside_by_hand() -> None:
    """N = 4, d = 2, M = 16: two blocks of two each way."""
    run = simulated(4, 4, 2, 16, "keys outside")
    start = ["store O[0:4] 8", "store l[0:4] 4", "store m[0:4] 4"]
    inner = [
        f"{kind} {name}[{rows}] {4 if name in 'QO' else 2}"
        for rows in ("0:2", "2:4")
        for kind, names in (("load", "QOlm"), ("store", "Olm"))
        for name in names
    ]
    outer = [[f"load K[{rows}] 4", f"load V[{rows}] 4", *inner] for rows in ("0:2", "2:4")]
    assert [" ".join(str(move).split()[:3]) for move in run.log] == [*start, *outer[0], *outer[1]]
    # 16 to start; K and V 16; four times 12 in and 8 out
    assert run.traffic == Traffic(loads=16 + 4 * 12, stores=16 + 4 * 8)
    assert run.traffic.moved == 112
    # K, V, Q, O four each, l and m two each, four scores
    assert run.peak == 24


def test_queries_outside_by_hand() -> None:
    run = simulated(4, 4, 2, 16, "queries outside")
    assert list(map(str, run.log[:7])) == [
        "load  Q[0:2]       4 elements,   4 in fast memory",
        "load  K[0:2]       4 elements,  16 in fast memory",
        "load  V[0:2]       4 elements,  20 in fast memory",
        "load  K[2:4]       4 elements,  16 in fast memory",
        "load  V[2:4]       4 elements,  20 in fast memory",
        "store O[0:2]       4 elements,   2 in fast memory",
        "store L[0:2]       2 elements,   0 in fast memory",
    ]
    assert [(move.kind, move.name, move.rows) for move in run.log[7:]] == [
        (kind, name, rows if name in "KV" else range(2, 4)) for kind, name, rows in (move[:3] for move in run.log[:7])
    ]
    # Q 8; K and V 16 for each of two blocks of queries; O 8 and four logsumexps
    assert run.traffic == Traffic(loads=8 + 2 * 16, stores=8 + 4)
    assert run.traffic.moved == 52
    assert run.peak == 24


def test_the_logsumexp_of_each_row_is_stored() -> None:
    q, k, v = drawn(7, 11, 3)
    memory = Memory(Q=q, K=k, V=v)
    list(traffic._queries_outside(memory, traffic.Blocks(queries=3, keys=2)))
    torch.testing.assert_close(memory.slow["L"], attention(q, k, v).scores.logsumexp(-1))


@pytest.mark.parametrize("order", ORDERS)
def test_large_scores_do_not_overflow(order: str) -> None:
    q, k, v = (x.float() for x in drawn(11, 13, 3))
    out = traffic.simulate(1e4 * q, k, v, sram=29, order=order).out
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, attention(1e4 * q, k, v).out)


@pytest.mark.parametrize("order", ORDERS)
def test_scores_that_overflow_to_minus_infinity_weigh_nothing(order: str) -> None:
    q, k, v = torch.full((5, 3), 1e20), torch.full((13, 3), -1e20), torch.randn(13, 3)
    assert not traffic.simulate(q, k, v, sram=29, order=order).out.any()
    k[7] = 0.0
    torch.testing.assert_close(traffic.simulate(q, k, v, sram=29, order=order).out, v[[7]].expand(5, 3))


@pytest.mark.parametrize("order", ORDERS)
def test_the_input_is_left_alone(order: str) -> None:
    given = drawn(11, 13, 3)
    traffic.simulate(*given, sram=29, order=order)
    for x, y in zip(given, drawn(11, 13, 3), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_standard_by_hand() -> None:
    # in: Q 6, K 10, scores 15, weights 15, V 10; out: scores 15, weights 15, O 6
    assert traffic.standard(3, 5, 2) == Traffic(loads=56, stores=36)
    N, d = 101, 7
    assert traffic.standard(N, N, d).moved == 4 * N**2 + 4 * N * d


@pytest.mark.parametrize(
    ("kilobytes", "keys", "queries"), [(16, 0.328, 0.503), (50, 1.021, 1.564), (100, 2.030, 3.108), (200, 4.013, 6.142)]
)
def test_ratios_of_the_lesson(kilobytes: int, keys: float, queries: float) -> None:
    """N = 8192, d = 64, float32; a kilobyte is 1024 bytes."""
    standard = traffic.standard(8192, 8192, 64).moved
    for order, ratio in zip(ORDERS, (keys, queries), strict=True):
        moved = traffic.counts(8192, 8192, 64, sram=kilobytes * 256, order=order).moved
        assert standard / moved == pytest.approx(ratio, abs=5e-4)


@pytest.mark.parametrize(("order", "factor"), [("keys outside", 3), ("queries outside", 2)])
@pytest.mark.parametrize("D", [16, 64, 256])
def test_break_even(D: int, order: str, factor: int) -> None:
    N = 1 << 20
    moved = traffic.counts(N, N, D, sram=factor * D * D, order=order).moved
    statistics = 1 + 4 / (3 * D) if order == "keys outside" else 1  # l and m beside Q, O and O
    assert moved / traffic.standard(N, N, D).moved == pytest.approx(statistics, rel=1e-3)


@pytest.mark.parametrize("order", ORDERS)
def test_twice_the_memory_halves_it_and_twice_the_length_quadruples_it(order: str) -> None:
    def moved(N: int, sram: int) -> int:
        return traffic.counts(N, N, 64, sram=sram, order=order).moved

    assert moved(1 << 18, 32768) / moved(1 << 18, 65536) == pytest.approx(2, rel=0.01)
    assert moved(1 << 19, 65536) / moved(1 << 18, 65536) == pytest.approx(4, rel=0.01)


def test_block_sizes_by_hand() -> None:
    sizes = {(64, 25600): (100, 64), (64, 4096): (16, 16), (64, 4097): (17, 17), (3, 97): (9, 3), (7, 28): (1, 1)}
    for (D, sram), (outer, inner) in sizes.items():
        assert traffic.block_sizes(D, sram=sram, order="keys outside") == traffic.Blocks(queries=inner, keys=outer)
        assert traffic.block_sizes(D, sram=sram, order="queries outside") == traffic.Blocks(queries=outer, keys=inner)


@pytest.mark.parametrize("order", ORDERS)
def test_by_how_much_the_peak_passes_sram(order: str) -> None:
    D, N = 64, 1 << 20

    def share(sram: int) -> float:
        return traffic.block_sizes(D, sram=sram, order=order).peak(N, N, D) / sram

    assert share(4 * D**2) == 1 + 1 / 4 + 1 / (2 * D)
    assert max(share(4 * D * n) for n in range(1, 1000)) == share(4 * D**2)
    fits = math.ceil(8 * D**3 / (D - 2) / (4 * D)) * 4 * D if order == "queries outside" else 8 * D**2 + 8 * D
    assert share(fits - 4 * D) > 1 >= share(fits)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("D", [8, 11, 16])
def test_from_where_on_all_fits(D: int, order: str) -> None:
    def fits(sram: int) -> bool:
        return traffic.block_sizes(D, sram=sram, order=order).peak(1 << 20, 1 << 20, D) <= sram

    least = 8 * D**2 + 37 * D
    assert all(fits(sram) for sram in range(least, 2 * least))
    assert not all(fits(sram) for sram in range(8 * D**2, least))


@pytest.mark.unchecked
class TestBadInput:
    @pytest.mark.parametrize("name", ["T", "S", "D"])
    @pytest.mark.parametrize(
        ("bad", "error", "said"),
        [(0, ValueError, "must be at least 1, got 0"), (2.0, TypeError, "must be an integer, got float")],
    )
    def test_sizes(self, name: str, bad: float, error: type[Exception], said: str) -> None:
        sizes = {"T": 5, "S": 7, "D": 3, name: bad}
        with pytest.raises(error, match=f"{name} {said}"):
            traffic.standard(**sizes)
        with pytest.raises(error, match=f"{name} {said}"):
            traffic.counts(**sizes, sram=48, order="keys outside")
        if name == "D":
            with pytest.raises(error, match=f"{name} {said}"):
                traffic.block_sizes(bad, sram=48, order="keys outside")

    @pytest.mark.parametrize(
        ("changed", "error", "said"),
        [
            ({"sram": 11}, ValueError, "sram must hold one row each of Q, K, V and O, 4 D = 12 elements, got 11"),
            ({"sram": 48.0}, TypeError, "sram must be an integer, got float"),
            ({"order": "rows"}, ValueError, 'order must be "keys outside" or "queries outside", got \'rows\''),
            ({"order": ["rows"]}, ValueError, r'order must be "keys outside" or "queries outside", got \[\'rows\'\]'),
        ],
    )
    def test_sram_and_order(self, changed: dict[str, object], error: type[Exception], said: str) -> None:
        given = {"sram": 48, "order": "keys outside"} | changed
        for call, sizes in (
            (traffic.block_sizes, (3,)),
            (traffic.counts, (5, 7, 3)),
            (traffic.simulate, drawn(5, 7, 3)),
        ):
            with pytest.raises(error, match=said):
                call(*sizes, **given)

    @pytest.mark.parametrize(
        ("name", "change", "error", "said"),
        [
            ("q", lambda x: x.tolist(), TypeError, "q must be a tensor, got list"),
            ("k", lambda x: x.long(), TypeError, "k must be floating point, got torch.int64"),
            ("v", lambda x: x.float(), TypeError, "v must have the type of q, torch.float64, got torch.float32"),
            ("k", lambda x: x[None], ValueError, r"k must be a matrix .* got \(1, 7, 3\)"),
            ("q", lambda x: x[:0], ValueError, r"q must be a matrix .* got \(0, 3\)"),
            ("k", lambda x: x[:, :2], ValueError, r"one width D, got q \(5, 3\) and k \(7, 2\)"),
            ("v", lambda x: x[:5], ValueError, r"one length S, got k \(7, 3\) and v \(5, 3\)"),
            ("v", lambda x: x[:, :2], ValueError, r"one shape \(S, D\), got k \(7, 3\) and v \(7, 2\)"),
        ],
    )
    def test_matrices(self, name: str, change: object, error: type[Exception], said: str) -> None:
        given = dict(zip("qkv", drawn(5, 7, 3), strict=True))
        given[name] = change(given[name])
        with pytest.raises(error, match=said):
            traffic.simulate(**given, sram=48, order="keys outside")
