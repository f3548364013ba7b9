"""The experiments of notebook 15; of times only what holds on every machine."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course import backends
from mha_course.experiments import where_time_goes as lesson


def test_written_out_is_attention() -> None:
    q, k, v = torch.randn(2, 3, 5, 11), torch.randn(2, 3, 7, 11), torch.randn(2, 3, 7, 11)
    assert_close(lesson.written_out(q, k, v), F.scaled_dot_product_attention(q, k, v))


def test_growth() -> None:
    counts = lesson.growth([3, 6, 60], 30, 5)
    assert [*counts] == ["projections", "scores and weighted sum", "softmax"]
    lengths = np.array([3, 6, 60])
    np.testing.assert_array_equal(counts["projections"], 8 * lengths * 30**2)
    np.testing.assert_array_equal(counts["scores and weighted sum"], 4 * lengths**2 * 30)
    np.testing.assert_array_equal(counts["softmax"], 5 * 5 * lengths**2)


def test_shares() -> None:
    found = lesson.shares(7, 30, 5)
    assert [*found] == ["of operations", "of time"]
    for of in found.values():
        assert [*of] == ["projections", "scores and weighted sum", "softmax", "not counted"]
    counts, times = ([*of.values()] for of in found.values())
    whole = 8 * 7 * 30**2 + 4 * 7**2 * 30 + 5 * 5 * 7**2
    assert counts == pytest.approx([100 * n / whole for n in (8 * 7 * 30**2, 4 * 7**2 * 30, 5 * 5 * 7**2, 0)])
    assert sum(times) == pytest.approx(100)
    assert min(times) > 0


@pytest.mark.parametrize(
    ("plan", "calls"),
    [
        ({"wait": 2, "warmup": 1, "active": 2, "repeat": 2}, [3, 4, 8, 9]),
        ({"wait": 2, "warmup": 1, "active": 2, "repeat": 1}, [3, 4]),
        ({"wait": 1, "warmup": 1, "active": 1, "repeat": 3}, [2, 5, 8]),
    ],
)
def test_schedule(plan: dict[str, int], calls: list[int], capfd: pytest.CaptureFixture) -> None:
    assert lesson.recorded(10, **plan) == calls
    assert capfd.readouterr().err == ""


def test_in_trace() -> None:
    q, k = torch.randn(1, 2, 3, 11), torch.randn(1, 2, 5, 11)
    shapes = lesson.in_trace(lambda: lesson.written_out(q, k, k), "aten::bmm")
    assert shapes == [[[2, 3, 11], [2, 11, 5]], [[2, 3, 5], [2, 5, 11]]]


def test_totals_count_nested_operations_again() -> None:
    q = torch.randn(1, 2, 64, 16)
    total, own = lesson.totals(lambda: lesson.written_out(q, q, q))
    assert total > 1.2 * own > 0


def test_new_against_used() -> None:
    assert lesson.new_against_used(1, rounds=6).median > 0


def test_weights_are_what_they_are_called() -> None:
    tiny = torch.finfo(torch.float32).tiny
    weights = {low: lesson.uneven_scores(low).softmax(-1)[:, 1:] for low in (-20.0, -95.0, -200.0)}
    assert (weights[-20.0] > tiny).all()
    assert ((weights[-95.0] > 0) & (weights[-95.0] < tiny)).all()
    assert (weights[-200.0] == 0).all()


@pytest.mark.parametrize("low", [-95.0, -torch.inf, torch.nan])
@pytest.mark.parametrize("flush", [True, False])
def test_flushing_is_undone(low: float, flush: bool) -> None:
    assert lesson.against_ordinary(low, flush=flush, rounds=6).median > 0
    assert (torch.tensor([1e-30]) * 1e-10).item() > 0


@pytest.mark.unchecked
def test_compiled_gives_the_same() -> None:
    """These products and softmax need no C++ compiler: PyTorch knows them, and puts its fused kernel in their place."""
    q = torch.randn(1, 2, 32, 16)
    made = lesson.try_compile(lesson.written_out, q, q, q)
    assert made.said == f"Compiled, in {made.first:.1f} s."
    assert made.first > 0
    assert_close(made.call(q, q, q), lesson.written_out(q, q, q))
    assert backends.which(made.call, q, q, q) == {"flash": 1}


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.exc import InductorError

    def failing(said: str):
        def raises(_: torch.Tensor) -> None:
            raise InductorError(RuntimeError(said), None)

        return lambda fn, **_: raises

    x = torch.ones(3)
    monkeypatch.setattr(torch, "compile", failing("InvalidCxxCompiler: No working C++ compiler found in config"))
    made = lesson.try_compile(torch.exp, x)
    assert made == (torch.exp, 0.0, "Not compiled: this needs a C++ compiler, and none was found.")
    monkeypatch.setattr(torch, "compile", failing("something else"))
    with pytest.raises(InductorError, match="something else"):
        lesson.try_compile(torch.exp, x)


def test_threads_are_set_for_each_and_put_back() -> None:
    seen = set()
    before = torch.get_num_threads()
    ratio = lesson.threads_against_one(lambda: (seen.add(torch.get_num_threads()), torch.ones(999).exp()), 2, rounds=6)
    assert seen == {1, 2}
    assert torch.get_num_threads() == before
    assert ratio.median > 0


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (0, ValueError, "mebibytes must be at least 1, got 0"),
        (1.5, TypeError, "mebibytes must be an integer, got float"),
        (True, TypeError, "mebibytes must be an integer, got bool"),
    ],
)
def test_bad_size(size: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        lesson.new_against_used(size)


@pytest.mark.unchecked
def test_bad_rounds() -> None:
    for call in (
        lambda: lesson.new_against_used(1, rounds=5),
        lambda: lesson.against_ordinary(-95.0, rounds=5),
        lambda: lesson.threads_against_one(lambda: 1, 2, rounds=5),
    ):
        with pytest.raises(ValueError, match="rounds must be at least 6, got 5"):
            call()
