"""Blocks gathered through a table are the sequence again, whatever their order, and numbers are equal."""

import pytest
import torch
from torch.testing import assert_close

from mha_course import attention, masks
from mha_course.cache import gather_blocks
from tests.cache.test_preallocated import numbers, refuses

N, HKV, P, D = 13, 3, 5, 11
pool = numbers(N, HKV, P, D)


def test_by_hand() -> None:
    table = torch.tensor([[4, 0], [12, 4]], dtype=torch.uint8)  # block 4 is shared
    got = gather_blocks(pool, table)
    assert got.shape == (2, HKV, 2 * P, D)
    for b in range(2):
        for s in range(2 * P):
            assert_close(got[b, :, s], pool[table[b, s // P].item(), :, s % P], rtol=0, atol=0)


def test_on_the_meta_device() -> None:
    table = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    assert gather_blocks(pool.to("meta"), table).shape == (2, HKV, 3 * P, D)


def test_attention_over_pages_equals_attention_over_each_sequence() -> None:
    """Three sequences of different length; the first two begin alike and share two blocks."""
    lengths = torch.tensor([13, 11, 4])
    table = torch.tensor([[7, 2, 9], [7, 2, 0], [5, 1, 1]])
    k, v, q = [], [], numbers(3, HKV, 1, D, seed=1)
    values = numbers(N, HKV, P, D, seed=2)
    for row, n in zip(table.tolist(), lengths.tolist(), strict=True):
        k.append(torch.cat([pool[i] for i in row], 1)[None, :, :n])
        v.append(torch.cat([values[i] for i in row], 1)[None, :, :n])
    mask = masks.padding(lengths, 3 * P)
    got = attention(q, gather_blocks(pool, table), gather_blocks(values, table), mask=mask).out
    for b in range(3):
        assert_close(got[b : b + 1], attention(q[b : b + 1], k[b], v[b]).out)
    assert_close(k[0][:, :, :10], k[1][:, :, :10])


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (([1], torch.tensor([[0]])), TypeError, "pool must be a tensor, got list"),
        ((pool[0], torch.tensor([[0]])), ValueError, "pool must be (N, Hkv, P, D), got (3, 5, 11)"),
        ((pool, [[0]]), TypeError, "table must be an integer tensor, got list"),
        ((pool, torch.zeros(1, 1)), TypeError, "table must be an integer tensor, got torch.float32"),
        ((pool, torch.tensor([0])), ValueError, "table must have 2 axes, got (1,)"),
        ((pool, torch.tensor([[0, N]])), ValueError, "table must lie in [0, 12], got 0 to 13"),
        ((pool, torch.tensor([[-1, 3]])), ValueError, "table must lie in [0, 12], got -1 to 3"),
    ],
)
def test_bad_input(args: tuple, error: type[Exception], message: str) -> None:
    with refuses(error, message):
        gather_blocks(*args)
