"""One case for each way in which a call can be wrong."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mha_course import tiled
from tests.tiled.problems import B, S, T, inputs

q, k, v = (x.detach() for x in inputs(H=6, Hkv=2, dtype=torch.float32))
true = torch.ones(T, S, dtype=torch.bool)


def heads(x: Tensor, n: int) -> Tensor:
    return x[:, :1].expand(-1, n, -1, -1)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"q": [[1.0]]}, TypeError, r"^q must be a tensor, got list$"),
        ({"k": None}, TypeError, r"^k must be a tensor, got NoneType$"),
        ({"v": np.zeros((2, 2))}, TypeError, r"^v must be a tensor, got ndarray$"),
        ({"q": q.long()}, TypeError, r"^q must be floating point, got torch\.int64$"),
        ({"v": v.to(torch.complex64)}, TypeError, r"^v must be floating point, got torch\.complex64$"),
        ({"k": k.double()}, TypeError, r"^k must have the type of q, torch\.float32, got torch\.float64$"),
        ({"v": v.half()}, TypeError, r"^v must have the type of q, torch\.float32, got torch\.float16$"),
        ({"mask": true.float()}, TypeError, r"^mask must be bool \(True = may attend\), got torch\.float32$"),
        ({"mask": True}, TypeError, r"^mask must be a bool \(True = may attend\) tensor, got bool$"),
        ({"score_bias": true}, TypeError, r"^score_bias must be floating point, got torch\.bool$"),
        ({"scale": "1"}, TypeError, r"^scale must be a number, got str$"),
        ({"is_causal": 1}, TypeError, r"^is_causal must be True or False, got int$"),
        ({"dropout_p": None}, TypeError, r"^dropout_p must be a number, got NoneType$"),
        ({"block_q": 1.0}, TypeError, r"^block_q must be an integer, got float$"),
        ({"block_k": True}, TypeError, r"^block_k must be an integer, got bool$"),
        ({"q": q[0]}, ValueError, r"^q must have four axes \(B, H, T, D\), got \(6, 5, 11\)$"),
        ({"k": k[0]}, ValueError, r"^k must have four axes \(B, Hkv, S, D\), got \(2, 7, 11\)$"),
        ({"v": v[0, 0]}, ValueError, r"^v must have four axes \(B, Hkv, S, Dv\), got \(7, 13\)$"),
        ({"q": q[..., :0], "k": k[..., :0]}, ValueError, r"^q must have width D of at least 1, got \(2, 6, 5, 0\)$"),
        ({"q": q[..., 1:]}, ValueError, r"^q and k must have one width D, got q \(2, 6, 5, 10\) and k \(2, 2, 7, 11\)"),
        ({"v": v[:, :, 1:]}, ValueError, r"^k and v must have one length S, .* and v \(2, 2, 6, 13\)$"),
        ({"v": v[:, :1]}, ValueError, r"^k and v must have one number of heads Hkv, .* and v \(2, 1, 7, 13\)$"),
        ({"q": q[:1]}, ValueError, r"^q, k and v must have one batch size B, got q \(1, 6, 5, 11\), k \(2, 2"),
        ({"v": v[:1]}, ValueError, r"^q, k and v must have one batch size B, got .* and v \(1, 2, 7, 13\)$"),
        ({"k": heads(k, 4), "v": heads(v, 4)}, ValueError, r"^the heads of k and v, Hkv, must divide those of q, H, "),
        ({"k": k[:, :0], "v": v[:, :0]}, ValueError, r"must divide those of q, H, got q .*, k \(2, 0, 7, 11\)"),
        ({"k": k.to("meta")}, ValueError, r"^k must be on q's device, cpu, got meta$"),
        ({"mask": true.to("meta")}, ValueError, r"^mask must be on q's device, cpu, got meta$"),
        ({"mask": true.T}, ValueError, r"^mask must broadcast to \(\.\.\., T, S\) = \(2, 6, 5, 7\), got \(7, 5\)$"),
        ({"score_bias": torch.zeros(B, S, S)}, ValueError, r"^score_bias must broadcast .* got \(2, 7, 7\)$"),
        ({"scale": math.nan}, ValueError, r"^scale must be finite, got nan$"),
        ({"scale": 10**400}, ValueError, r"^scale must be finite, got 1000"),
        ({"is_causal": True}, ValueError, r"^is_causal needs T = S, got T = 5 and S = 7: pass mask=causal\(T, S, al"),
        ({"dropout_p": -0.1}, ValueError, r"^dropout_p must lie in \[0, 1\], got -0\.1$"),
        ({"dropout_p": 1.5}, ValueError, r"^dropout_p must lie in \[0, 1\], got 1\.5$"),
        ({"block_q": 0}, ValueError, r"^block_q must be at least 1, got 0$"),
        ({"block_k": -1}, ValueError, r"^block_k must be at least 1, got -1$"),
    ],
)
def test_bad_input(change: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        tiled.attention(**{"q": q, "k": k, "v": v, **change})
