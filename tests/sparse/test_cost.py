"""What is held in memory: counted, not timed."""

import pytest
import torch
from torch import Tensor

from mha_course import attention, masks
from mha_course.measure import peak_memory
from mha_course.sparse import block_sparse, chunked, sliding_window


def peak(T: int, run, backward: bool = False) -> int:
    q, k, v = (torch.zeros(1, 2, T, 16, requires_grad=backward) for _ in range(3))

    def work() -> Tensor | tuple[Tensor, ...]:
        out = run(q, k, v)
        return torch.autograd.grad(out.sum(), (q, k, v)) if backward else out

    return peak_memory(work)


@pytest.mark.unchecked
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward and backward"])
def test_a_window_takes_memory_in_proportion_to_the_length(backward: bool) -> None:
    short, twice, four = (
        peak(T, lambda q, k, v: sliding_window(q, k, v, window=64), backward) for T in (512, 1024, 2048)
    )
    assert 1.9 < twice / short < 2.1
    assert 1.9 < four / twice < 2.1
    dense = peak(2048, lambda q, k, v: attention(q, k, v, mask=masks.sliding_window(2048, 64)).out, backward)
    assert four < dense / 10


@pytest.mark.unchecked
def test_a_window_wider_than_the_sequence_takes_no_more() -> None:
    exact, wide = (peak(256, lambda q, k, v, n=n: sliding_window(q, k, v, window=n)) for n in (256, 100_000))
    assert wide == exact


@pytest.mark.unchecked
def test_chunks_hold_few_scores_at_a_time() -> None:
    T = 1024
    scores = 2 * T * T * 4
    whole = peak(T, lambda q, k, v: attention(q, k, v).out)
    pieces = peak(T, lambda q, k, v: chunked(q, k, v, chunk=32))
    assert whole > 2 * scores
    assert pieces < scores / 4


@pytest.mark.unchecked
def test_without_recomputing_the_backward_pass_holds_all_weights() -> None:
    T = 1024
    scores = 2 * T * T * 4
    kept = peak(T, lambda q, k, v: chunked(q, k, v, chunk=32, recompute=False), backward=True)
    again = peak(T, lambda q, k, v: chunked(q, k, v, chunk=32), backward=True)
    assert kept > scores
    assert again < scores / 3


@pytest.mark.unchecked
def test_blocks_take_memory_in_proportion_to_the_fullest_row() -> None:
    T, block = 1024, 32
    diagonal = torch.eye(T // block, dtype=torch.bool)
    one_full = diagonal.clone()
    one_full[-1] = True
    few = peak(T, lambda q, k, v: block_sparse(q, k, v, layout=diagonal, block=block))
    many = peak(T, lambda q, k, v: block_sparse(q, k, v, layout=one_full, block=block))
    assert few < 1.5e6
    assert many > 10 * few
