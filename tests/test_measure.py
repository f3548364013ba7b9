"""The measuring kit: exact arithmetic on fake clocks, exact bytes, and no stray lines in a cell."""

import gc
import math
import os
import sys
import threading
import time
import weakref
from fractions import Fraction
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
        ((9.9996e-4,), "1 ms (quartiles 1 and 1 ms, repeats: 1)"),
        ((0.99951,), "1 s (quartiles 1 and 1 s, repeats: 1)"),
        ((9.994e-7,), "999 ns (quartiles 999 and 999 ns, repeats: 1)"),
        ((0.001, 0.9, 2.0004), "900 ms (quartiles 450 and 1450 ms, repeats: 3)"),
        ((0.0,), "0 ns (quartiles 0 and 0 ns, repeats: 1)"),
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


def test_garbage_is_collected_before_the_first_call():
    class Cycle:
        pass

    one = Cycle()
    one.own = one
    there = weakref.ref(one)
    gc.disable()
    try:
        del one
        assert there() is not None
        seen = []
        timings(lambda: seen.append(there()), repeats=1, warmup=0)
        assert seen == [None]
    finally:
        gc.enable()


def generator():
    yield 1


async def coroutine():
    return 1


async def generates_later():
    yield 1


@pytest.mark.parametrize(
    ("fn", "kind"), [(generator, "generator"), (coroutine, "coroutine"), (generates_later, "async_generator")]
)
@pytest.mark.parametrize(
    "measured",
    [
        lambda fn: timings(fn, warmup=0),
        timings,
        lambda fn: paired_ratio(fn, list),
        lambda fn: paired_ratio(list, fn, warmup=0),
        peak_memory,
    ],
)
def test_a_body_that_does_not_run_is_refused(fn, kind, measured):
    with pytest.raises(TypeError, match=f"a measured function must run its body, got a {kind}: use it up inside"):
        measured(fn)
    assert gc.isenabled()
    assert timings(lambda: list(generator()), repeats=1)


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


@pytest.mark.parametrize("n", [6, 8, 9, 57, 1030, 1031])
def test_interval_of_the_median_is_the_widest_that_is_left_out(n):
    outer = measure._outer_order_statistic(n)
    misses = [Fraction(2 * sum(math.comb(n, i) for i in range(m + 1)), 2**n) for m in (outer, outer + 1)]
    assert misses[0] <= Fraction(1, 20) < misses[1]


def test_many_rounds(clock):
    found = paired_ratio(clock.takes(1), clock.takes(2), rounds=1030)
    assert found == pytest.approx((0.5, 0.5, 0.5, 1))


def test_the_interval_is_known_before_the_rounds(monkeypatch):
    calls = []
    monkeypatch.setattr(measure, "_outer_order_statistic", lambda n: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        paired_ratio(lambda: calls.append("a"), list, rounds=6)
    assert calls == []


@pytest.mark.parametrize("times", [(0, 1), (1, 0), (0, 0)])
def test_a_clock_that_does_not_move_is_named(clock, times):
    assert timings(clock.takes(0)).median == 0
    with pytest.raises(ValueError, match="must last longer than the clock's step, got 0 s"):
        paired_ratio(*map(clock.takes, times))


def test_large_ratios_have_no_exponent():
    assert repr(PairedRatio(1234.5, 999.6, 20000, 1)) == "1230 (95 % interval 1000 to 20000; a against itself 1)"


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


START = b"USDT:2026-11-29 20:18:30 18741:18741 SyncActivityProfilerHandler.cpp:52] profiler_start\n"
RELEASE = b"[W1129 20:18:30.762056464 CPUAllocator.cpp:245] Memory block of unknown size was allocated\n"


@pytest.mark.parametrize("chatter", [START, RELEASE, RELEASE[1:], START + RELEASE])
@pytest.mark.parametrize("before", [b"", b"before\n", b"before", b"USDT: before ", b"[W mine] ", b"CPUAllocator.cpp\n"])
def test_other_text_written_meanwhile_is_not_lost(capfd, before, chatter):
    with measure._without_chatter():
        os.write(2, before + chatter + b"after")
    assert capfd.readouterr().err == before.decode() + "after"


def test_text_without_a_newline_at_its_end_is_not_lost(capfd):
    held = [allocate(64)]

    def fn():
        os.write(2, b"one ")
        held.clear()
        os.write(2, b"two")

    peak_memory(fn)
    assert capfd.readouterr().err == "one two"


def test_standard_error_is_restored_after_an_error(capfd):
    with pytest.raises(KeyError), measure._without_chatter():
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


def test_peak_memory_holds_one_lock_while_it_measures(monkeypatch):
    lock, waits, order = measure._PROFILER, threading.Event(), []

    class Spy:
        def __enter__(self):
            if threading.current_thread() is worker:
                waits.set()
            lock.acquire()

        def __exit__(self, *_):
            lock.release()

    def first():
        worker.start()
        assert waits.wait(60), "the second measurement asks for the lock"
        order.append("first ends")

    worker = threading.Thread(target=lambda: peak_memory(lambda: order.append("second begins")))
    monkeypatch.setattr(measure, "_PROFILER", Spy())
    peak_memory(first)
    worker.join()
    assert order == ["first ends", "second begins"]


def test_peak_memory_sees_a_backward_pass_but_no_thread_started_in_python():
    def in_a_thread():
        worker = threading.Thread(target=allocate, args=(1024,))
        worker.start()
        worker.join()

    assert peak_memory(in_a_thread) == 0
    x = torch.ones(KIB, requires_grad=True)
    y = (x * 2).sum()
    assert peak_memory(y.backward) >= 4 * KIB


def test_a_profiler_inside_a_profiler_is_refused():
    with pytest.raises(RuntimeError, match="another profiler"):
        peak_memory(lambda: peak_memory(lambda: None))

    def with_its_own():
        with torch.profiler.profile():
            allocate(64)

    with pytest.raises(RuntimeError, match="fn must not run a profiler"):  # it gave 0 bytes
        peak_memory(with_its_own)
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
    """
    import time
    print(peak_memory(lambda: os.write(2, b"low\\n")))
    time.sleep(1)  # ipykernel's thread that reads file descriptor 2 must come first
    """,
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
