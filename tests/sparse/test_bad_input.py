"""Every case of Raises, for each function that has it."""

import math

import pytest
import torch

from mha_course.sparse import block_sparse, chunked, sliding_window

q = torch.zeros(2, 6, 5, 11)
kv = torch.zeros(2, 3, 5, 11)
true = torch.ones(5, 5, dtype=torch.bool)
GOOD = {
    chunked: {"chunk": 2},
    sliding_window: {"window": 2},
    block_sparse: {"layout": torch.ones(3, 3, dtype=torch.bool), "block": 2},
}
COMMON = [
    ({"q": [[1.0]]}, TypeError, r"^q must be a tensor, got list$"),
    ({"v": None}, TypeError, r"^v must be a tensor, got NoneType$"),
    ({"q": q.long()}, TypeError, r"^q must be floating point, got torch\.int64$"),
    ({"k": kv.double()}, TypeError, r"^k must have the type of q, torch\.float32, got torch\.float64$"),
    ({"mask": true.float()}, TypeError, r"^mask must be bool \(True = may attend\), got torch\.float32$"),
    ({"score_bias": true}, TypeError, r"^score_bias must be floating point, got torch\.bool$"),
    ({"scale": "1"}, TypeError, r"^scale must be a number, got str$"),
    ({"dropout_p": None}, TypeError, r"^dropout_p must be a number, got NoneType$"),
    ({"is_causal": 1}, TypeError, r"^is_causal must be True or False, got int$"),
    ({"q": q[0]}, ValueError, r"^q must have four axes \(B, H, T, D\), got \(6, 5, 11\)$"),
    ({"k": kv[None]}, ValueError, r"^k must have four axes"),
    ({"v": kv[:, :2]}, ValueError, r"^k and v must have one number of heads Hkv, got .* v \(2, 2, 5, 11\)$"),
    ({"q": q[:, :5]}, ValueError, r"^the heads of k and v, Hkv, must divide those of q, H, got q \(2, 5, "),
    ({"q": q[:, :1]}, ValueError, r"^the heads of k and v, Hkv, must divide those of q, H, got q \(2, 1, "),
    ({"k": kv[:, :0], "v": kv[:, :0]}, ValueError, r"Hkv, must divide those of q, H, got .* k \(2, 0, "),
    ({"q": q[..., 1:]}, ValueError, r"one width D, got q \(2, 6, 5, 10\)"),
    ({"v": kv[..., 1:, :]}, ValueError, r"one length S, got k \(2, 3, 5, 11\) and v \(2, 3, 4, 11\)$"),
    ({"q": q[:1]}, ValueError, r"one batch size B"),
    ({"mask": true[1:]}, ValueError, r"^mask must broadcast to \(\.\.\., T, S\) = \(2, 6, 5, 5\), got \(4, 5\)$"),
    ({"score_bias": q}, ValueError, r"^score_bias must broadcast"),
    ({"scale": math.nan}, ValueError, r"^scale must be finite, got nan$"),
    ({"scale": 10**400}, ValueError, r"^scale must be finite, got 1000"),
    ({"dropout_p": 1.5}, ValueError, r"^dropout_p must lie in \[0, 1\], got 1\.5$"),
    ({"dropout_p": math.nan}, ValueError, r"^dropout_p must lie in \[0, 1\], got nan$"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize("run", GOOD, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("change", "error", "match"), COMMON)
def test_of_all(run, change: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        run(**{"q": q, "k": kv, "v": kv, **GOOD[run], **change})


@pytest.mark.unchecked
@pytest.mark.parametrize("run", [chunked, block_sparse], ids=lambda f: f.__name__)
def test_causal_with_other_lengths(run) -> None:
    with pytest.raises(ValueError, match=r"^is_causal needs T = S, got T = 4 and S = 5"):
        run(q[:, :, :4], kv, kv, is_causal=True, **GOOD[run])


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("run", "change", "error", "match"),
    [
        (chunked, {"chunk": 0}, ValueError, r"^chunk must be at least 1, got 0$"),
        (chunked, {"chunk": -1}, ValueError, r"^chunk must be at least 1, got -1$"),
        (chunked, {"chunk": 2.0}, TypeError, r"^chunk must be an integer, got float$"),
        (chunked, {"recompute": None}, TypeError, r"^recompute must be True or False, got NoneType$"),
        (sliding_window, {"window": 0}, ValueError, r"^window must be at least 1, got 0$"),
        (sliding_window, {"window": -3}, ValueError, r"^window must be at least 1, got -3$"),
        (sliding_window, {"window": 2.0}, TypeError, r"^window must be an integer, got float$"),
        (sliding_window, {"window": True}, TypeError, r"^window must be an integer, got bool$"),
        (sliding_window, {"q": q[:, :, :4]}, ValueError, r"^sliding_window needs T = S, got T = 4 and S = 5$"),
        (block_sparse, {"block": 0}, ValueError, r"^block must be at least 1, got 0$"),
        (block_sparse, {"block": 1.5}, TypeError, r"^block must be an integer, got float$"),
        (block_sparse, {"block": 3}, ValueError, r"^layout must be .* = \(2, 2\), rounded up, got \(3, 3\)$"),
        (block_sparse, {"layout": torch.ones(3, 3)}, TypeError, r"^layout must be bool .*, got torch\.float32$"),
        (block_sparse, {"layout": None}, TypeError, r"^layout must be a bool .* tensor, got NoneType$"),
        (
            block_sparse,
            {"layout": torch.ones(3, 3, dtype=torch.bool, device="meta")},
            ValueError,
            r"^layout must be on q's device, cpu, got meta$",
        ),
    ],
)
def test_of_one(run, change: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        run(**{"q": q, "k": kv, "v": kv, **GOOD[run], **change})
