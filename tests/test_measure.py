"""The measuring kit: exact arithmetic on fake clocks, exact bytes, and no stray lines in a cell."""

import gc
import os
import sys
import threading
import time
from textwrap import dedent

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from mha_course import measure
from mha_course.measure import PairedRatio, Timing, paired_ratio, peak_memory, threads, timings

KIB, MIB = 2**10, 2**20


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when a function of the test says so."""

    class Clock:
        now = 100.0

        def takes(self, *seconds):
            left = list(seconds)

            def fn():
                self.now += left.pop(0) if len(left) > 1 else left[0]

            return fn

    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def test_threads_are_set_and_restored():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_threads_are_restored_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), threads(before + 1):
        raise KeyError
    assert torch.get_num_threads() == before


def test_timings_are_those_of_the_clock_without_the_warm_up(clock):
    timing = timings(clock.takes(50, 60, 1, 4, 2, 3, 5), repeats=5, warmup=2)
    torch.testing.assert_close(timing.seconds, (1.0, 4.0, 2.0, 3.0, 5.0))
    assert timing.median == pytest.approx(3)
    assert timing.spread == pytest.approx((2, 4))


def test_one_repeat_has_no_spread(clock):
    timing = timings(clock.takes(0.25), repeats=1, warmup=0)
    assert timing.spread == pytest.approx((0.25, 0.25))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ((1.0, 2.0, 4.0), "2 s (quartiles 1.5 and 3 s, repeats: 3)"),
        ((0.0125,), "12.5 ms (quartiles 12.5 and 12.5 ms, repeats: 1)"),
        ((0.00125,), "1.25 ms (quartiles 1.25 and 1.25 ms, repeats: 1)"),
        ((2e-6,), "2 us (quartiles 2 and 2 us, repeats: 1)"),
        ((3e-8,), "30 ns (quartiles 30 and 30 ns, repeats: 1)"),
    ],
)
def test_timing_reads_in_a_sensible_unit(seconds, text):
    assert repr(Timing(seconds)) == text


def test_the_result_is_freed_outside_of_the_time(clock):
    class Slow:
        def __del__(self):
            clock.now += 7

    assert timings(Slow, repeats=3, warmup=1).median == 0


def test_the_garbage_collector_is_paused_and_put_back(clock):
    seen = []
    timings(lambda: seen.append(gc.isenabled()), repeats=1, warmup=1)
    assert seen == [False, False]
    assert gc.isenabled()
    gc.disable()
    try:
        timings(lambda: None, repeats=1)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_timed_passes_its_error_on_and_leaves_the_collector_on():
    with pytest.raises(ZeroDivisionError):
        timings(lambda: 1 / 0, repeats=1)
    assert gc.isenabled()


def test_accelerators_in_use_are_waited_for_inside_the_time(clock, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", clock.takes(2))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "synchronize", clock.takes(3))
    assert timings(clock.takes(1), repeats=1).median == pytest.approx(6)


def test_paired_ratio_on_a_machine_that_slows_down(clock):
    # a takes 1, 2, 3, ... and b half of it: within a round the mean of both a is exactly 2 b
    fn_a = clock.takes(9, *range(1, 15))
    fn_b = clock.takes(9, *(n + 0.5 for n in range(1, 15, 2)))
    found = paired_ratio(fn_a, lambda: [fn_b(), setattr(clock, "now", clock.now)], rounds=7)
    assert found[:3] == pytest.approx((1, 1, 1))
    assert found.control == pytest.approx(7 / 8)  # the median of 1/2, 3/4, 5/6, ..., 13/14


def test_paired_ratio_is_a_over_b_with_the_interval_of_the_median(clock):
    b = [4, 2, 1, 8, 16, 32, 64, 128, 256]
    found = paired_ratio(clock.takes(2), clock.takes(*b), rounds=9, warmup=0)
    # sorted ratios 1/128, 1/64, 1/32, ..., 1, 2; one is left out at each end
    assert found == pytest.approx((1 / 8, 1 / 64, 1, 1))
    assert repr(found) == "0.125 (95 % interval 0.0156 to 1; a against itself 1)"


@pytest.mark.parametrize(("rounds", "outer"), [(6, 0), (8, 0), (9, 1), (21, 5), (100, 39)])
def test_interval_of_the_median_is_the_published_one(rounds, outer):
    # binomial tables: 6th and 16th of 21 values, 40th and 61st of 100
    assert measure._outer_order_statistic(rounds) == outer


def test_paired_ratio_runs_in_turn():
    calls = []
    paired_ratio(lambda: calls.append("a"), lambda: calls.append("b"), rounds=6, warmup=2)
    assert "".join(calls) == "abab" + 6 * "aba"
    assert isinstance(paired_ratio(list, list, rounds=6), PairedRatio)


def allocate(kib):
    return torch.empty(kib * KIB // 4)


def test_peak_of_one_tensor_that_is_kept():
    assert peak_memory(lambda: allocate(1024)) == MIB


def test_peak_of_one_tensor_that_is_freed():
    assert peak_memory(lambda: allocate(1024).numel()) == MIB


def test_peak_of_one_after_the_other():
    def fn():
        allocate(1024)
        allocate(1024)

    assert peak_memory(fn) == MIB


def test_peak_of_two_at_once_and_less_later():
    def fn():
        both = allocate(1024), allocate(1024)
        del both
        return allocate(512)

    assert peak_memory(fn) == 2 * MIB


def test_release_of_what_was_held_before_is_not_counted(capfd):
    held = [allocate(4096)]

    def fn():
        held.clear()
        return allocate(1024)

    assert peak_memory(fn) == MIB
    assert peak_memory(lambda: None) == 0
    assert capfd.readouterr().err == "", "PyTorch warns of the release, from C++"


def test_peak_of_a_softmax_is_that_of_its_result():
    x = torch.zeros(512, 512)
    assert peak_memory(lambda: x.softmax(-1)) == MIB


def test_peak_memory_passes_an_error_on_and_works_again(capfd):
    def fails():
        allocate(64)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        peak_memory(fails)
    assert peak_memory(lambda: allocate(64)) == 64 * KIB
    os.write(2, b"still there\n")
    assert capfd.readouterr() == ("", "still there\n")


def test_peak_memory_keeps_what_fn_writes_and_opens_no_file(capfd):
    def fn():
        print("out")
        print("err", file=sys.stderr, flush=True)
        os.write(2, b"low\n")

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    peak_memory(fn)
    after = len(os.listdir("/proc/self/fd")) if before is not None else None
    out, err = capfd.readouterr()
    assert (out, err) == ("out\n", "err\nlow\n")
    assert before == after


def test_other_lines_written_meanwhile_are_not_lost(capfd):
    with measure._without_lines(b"Handler"):
        os.write(2, b"before\nUSDT Handler start\nafter")
    assert capfd.readouterr().err == "before\nafter"


def test_standard_error_is_restored_after_an_error(capfd):
    with pytest.raises(KeyError), measure._without_lines(b"Handler"):
        raise KeyError
    os.write(2, b"back\n")
    assert capfd.readouterr().err == "back\n"


def test_peak_memory_without_standard_error(monkeypatch):
    def closed(_):
        raise OSError("bad file descriptor")

    monkeypatch.setattr(os, "dup", closed)
    monkeypatch.setattr(sys, "stderr", None)
    assert peak_memory(lambda: allocate(64)) == 64 * KIB


def test_peak_memory_in_threads_waits_for_its_turn():
    found = []
    workers = [
        threading.Thread(target=lambda n=n: found.append((n, peak_memory(lambda: allocate(n))))) for n in (16, 32, 64)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(found) == [(kib, kib * KIB) for kib in (16, 32, 64)]


def test_a_profiler_inside_a_profiler_is_refused():
    with pytest.raises(RuntimeError, match="another profiler"):
        peak_memory(lambda: peak_memory(lambda: None))
    assert peak_memory(lambda: allocate(64)) == 64 * KIB


CELLS = [
    """
    import os, sys, torch
    from mha_course.measure import peak_memory
    def fn():
        print("err", file=sys.stderr)
        return torch.empty(2**18)
    """,
    "print(peak_memory(lambda: torch.empty(2**18)))",
    "print(peak_memory(fn))",
    """
    x = [torch.ones(9)]
    print(peak_memory(lambda: x.clear()))
    """,
    'print(peak_memory(lambda: os.write(2, b"low\\n")))',
]


def test_a_notebook_cell_holds_no_stray_line():
    cells = [nbformat.v4.new_code_cell(dedent(cell).strip()) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    # Under pytest ipykernel would not capture file descriptor 2, and the test see nothing.
    env = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute(env=env)
    said = [sorted((output.name, output.text) for output in cell.outputs) for cell in notebook.cells]
    assert said == [
        [],
        [("stdout", f"{MIB}\n")],
        [("stderr", "err\n"), ("stdout", f"{MIB}\n")],
        [("stdout", "0\n")],
        [("stderr", "low\n"), ("stdout", "0\n")],
    ]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: threads(True).__enter__(), TypeError, "n must be an integer, got bool"),
        (lambda: threads(1.0).__enter__(), TypeError, "n must be an integer, got float"),
        (lambda: threads(0).__enter__(), ValueError, "n must be at least 1, got 0"),
        (lambda: timings(3), TypeError, "fn must be a function without arguments, got int"),
        (lambda: timings(list, repeats=0), ValueError, "repeats must be at least 1, got 0"),
        (lambda: timings(list, repeats="5"), TypeError, "repeats must be an integer, got str"),
        (lambda: timings(list, warmup=-1), ValueError, "warmup must be at least 0, got -1"),
        (lambda: timings(list, warmup=None), TypeError, "warmup must be an integer, got NoneType"),
        (lambda: paired_ratio(3, list), TypeError, "fn_a must be a function"),
        (lambda: paired_ratio(list, 3), TypeError, "fn_b must be a function"),
        (lambda: paired_ratio(list, list, rounds=5), ValueError, "at least 6, got 5"),
        (lambda: paired_ratio(list, list, rounds=7.0), TypeError, "rounds must be an integer"),
        (lambda: paired_ratio(list, list, warmup=-1), ValueError, "warmup must be at least 0"),
        (lambda: paired_ratio(list, list, warmup="a"), TypeError, "warmup must be an integer"),
        (lambda: peak_memory(None), TypeError, "fn must be a function"),
        (lambda: peak_memory(list, device="meta"), ValueError, "CPU or a CUDA device, got meta"),
    ],
)
def test_bad_arguments(call, error, says):
    with pytest.raises(error, match=says):
        call()
