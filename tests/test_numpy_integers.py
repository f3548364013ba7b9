"""A NumPy integer as a size or an offset means what the same int means, however narrow its type is."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from mha_course import MultiHeadAttention, masks, positions

DISTANCES = torch.arange(-200, 200)
CALLS = [
    lambda n: masks.causal(n(2), n(250), alignment="lower_right"),
    lambda n: masks.sliding_window(n(250), n(250)),
    lambda n: masks.band(n(3), n(255), n(255), n(200), alignment="lower_right"),
    lambda n: masks.prefix(n(100), n(100)),
    lambda n: masks.padding(torch.tensor([1, 3]), n(200)),
    lambda n: masks.block_diagonal(torch.tensor([100, 100]), n(250)),
    lambda n: positions.sinusoidal(n(200), n(4), offset=n(255)),
    lambda n: positions.alibi_slopes(n(127)),
    lambda n: positions.alibi(n(200), n(250), num_heads=n(2), offset=n(50)),
    lambda n: positions.t5_buckets(DISTANCES, num_buckets=n(32), max_distance=n(128)),
    lambda n: positions.rotary_frequencies(n(200), scaling="yarn", factor=2, trained_length=n(255)),
    lambda n: positions.Rotary(n(130))(torch.ones(3, 130), offset=n(255)),
    lambda n: positions.Sinusoidal(n(200))(torch.ones(3, 200), offset=n(255)),
]


@pytest.mark.unchecked
@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
@pytest.mark.parametrize("call", CALLS)
def test_numpy_integers(call, dtype):
    assert_close(call(dtype), call(int))


@pytest.mark.unchecked
def test_modules_with_parameters():
    table = positions.Learned(np.int16(300), np.uint8(4))
    assert table(torch.zeros(10, 4), offset=np.uint8(250)).shape == (10, 4)
    bias = positions.T5Bias(np.uint8(2), num_buckets=np.uint8(32), max_distance=np.uint8(128))
    assert_close(bias(np.uint8(200)), bias(200))
    layer = MultiHeadAttention(np.uint8(128), np.uint8(4), num_kv_heads=np.uint8(2))
    assert layer(torch.zeros(1, 2, 128)).shape == (1, 2, 128)
    assert layer.q_proj.weight.shape == (128, 128)
