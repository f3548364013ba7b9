"""The roofline by hand; of a measured one only what holds on every machine."""

import math
import re
from functools import partial

import pytest
import torch

from mha_course.measure import threads
from mha_course.precision import instruction_set
from mha_course.profiling import Cost, Machine, measure_machine, roofline

SLOW = Machine(peak=100.0, bandwidth=20.0, exp_rate=2.0)


def test_ridge_and_roof() -> None:
    assert SLOW.ridge == 5
    assert [SLOW.attainable(x) for x in (0.5, 5, 50)] == [10, 100, 100]


@pytest.mark.parametrize(
    ("cost", "seconds", "bound"),
    [
        (Cost(600, 60, 40, 0), 6, "compute"),
        (Cost(400, 60, 40, 0), 5, "memory"),
        (Cost(500, 60, 40, 10), 5, "memory"),
        (Cost(400, 40, 60, 14), 7, "exp"),
    ],
)
def test_the_longest_part_decides(cost: Cost, seconds: float, bound: str) -> None:
    assert SLOW.seconds(cost) == seconds
    assert SLOW.bound(cost) == bound
    assert SLOW.parts(cost)[bound] == seconds


def test_exponentials_are_free_unless_their_rate_is_given() -> None:
    assert Machine(100.0, 20.0).bound(Cost(400, 40, 60, 10**9)) == "memory"


@pytest.mark.unchecked
@pytest.mark.parametrize("rate", ["peak", "bandwidth", "exp_rate"])
def test_rates_are_positive(rate: str) -> None:
    given = {"peak": 1.0, "bandwidth": 1.0}
    for bad in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match=rf"{rate} must be positive.*, got {bad}"):
            Machine(**given | {rate: bad})
    for bad in (True, "1", None):
        with pytest.raises(TypeError, match=f"{rate} must be a number, got {type(bad).__name__}"):
            Machine(**given | {rate: bad})
    if rate == "exp_rate":
        assert Machine(1, 1, math.inf).exp_rate == math.inf
    else:
        with pytest.raises(ValueError, match=f"{rate} must be positive and finite, got inf"):
            Machine(**given | {rate: math.inf})


def test_no_rate_is_attainable_at_an_intensity_that_cannot_be() -> None:
    assert (SLOW.attainable(0), SLOW.attainable(math.inf)) == (0, 100)
    for intensity in (-1.0, math.nan):
        with pytest.raises(ValueError, match=f"intensity must be at least 0, got {intensity}"):
            SLOW.attainable(intensity)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_measured_machine(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = roofline._Sizes(rows=2, width=3, heads=5, length=7, stream=2**16, scores=(11, 13))
    monkeypatch.setitem(roofline._SIZES, "cpu", sizes)
    with threads(1):
        machine = measure_machine(dtype=dtype, seconds=1e-3)
    assert all(0 < x < math.inf for x in (machine.peak, machine.bandwidth, machine.exp_rate))
    assert machine.name == instruction_set()
    assert machine.threads == 1


def test_work_is_what_the_calls_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates follow from the work of a call and the median of its times, the faster product giving the peak."""
    sizes = roofline._Sizes(rows=2, width=3, heads=5, length=7, stream=2**10, scores=(11, 13))
    work, calls = roofline._work(sizes, torch.float64, torch.device("cpu"))
    assert work == {"projection": 2 * 2 * 3 * 3, "heads": 2 * 5 * 7 * 7 * 64, "stream": 2 * 2**10, "softmax": 11 * 13}
    assert calls["projection"]().shape == (2, 3)
    assert calls["heads"]().shape == (5, 7, 7)
    assert calls["stream"]().nbytes == 2**10
    assert calls["softmax"]().shape == (11, 13)

    seconds = {"projection": 1.0, "heads": 7.0, "stream": 4.0, "softmax": 11.0}
    monkeypatch.setattr(roofline, "_work", lambda *_: (work, {name: partial(str, name) for name in work}))
    monkeypatch.setattr(roofline, "_seconds", lambda call: seconds[call()])  # what each call takes is given
    named = []
    monkeypatch.setattr(roofline, "instruction_set", lambda device: named.append(device) or "a name")
    machine = measure_machine(device="cpu", seconds=1e-9)
    assert (machine.name, named) == ("a name", [torch.device("cpu")])
    assert (machine.peak, machine.bandwidth, machine.exp_rate) == (max(36 / 1, 31360 / 7), 2 * 2**10 / 4, 143 / 11)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *(
            ({"dtype": dtype}, TypeError, f"dtype must be a floating point type of at least 2 bytes, got {dtype}")
            for dtype in (torch.int32, torch.complex64, torch.float8_e4m3fn, "float32")
        ),
        ({"seconds": "1"}, TypeError, "seconds must be a number, got str"),
        ({"seconds": True}, TypeError, "seconds must be a number, got bool"),
        ({"seconds": 0}, ValueError, "seconds must be positive and finite, got 0"),
        ({"seconds": math.nan}, ValueError, "seconds must be positive and finite, got nan"),
        ({"seconds": math.inf}, ValueError, "seconds must be positive and finite, got inf"),
        ({"device": "cuda:99"}, ValueError, "CUDA devices, got cuda:99"),
        ({"device": "meta"}, ValueError, "device must be a CPU or a CUDA device, got meta"),
    ],
)
def test_bad_input(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        measure_machine(**options)
