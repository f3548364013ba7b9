"""A limit of time: what it ends, what it leaves as it was, and what it lets pass."""

import contextlib
import itertools
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from mha_course.checks import limit
from mha_course.checks.limit import OutOfTime, time_limit

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs SIGALRM")


def spin():
    while True:
        pass


def spin_in_comprehension():
    return [i for i in itertools.count() if i < 0]


def sleep():
    time.sleep(10**6)


def swallow():
    while True:
        try:
            time.sleep(10**6)
        except:  # noqa: E722
            pass


def swallow_inside_of_swallowing():
    while True:
        try:
            while True:
                try:
                    sum(range(100))
                except BaseException:
                    pass
        except BaseException:
            pass


def swallow_in_each_of_three_functions():
    while True:
        try:
            swallow_inside_of_swallowing()
        except BaseException:
            continue


def suppress():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


def swallow_in_a_callback():
    def harmless(x):
        try:
            return abs(x)
        except BaseException:
            return 0

    for _ in map(harmless, itertools.count()):
        pass


def finally_goes_on():
    while True:
        try:
            abs(1)
        finally:
            continue  # noqa: B012


ENDLESS = [
    spin,
    spin_in_comprehension,
    sleep,
    swallow,
    swallow_inside_of_swallowing,
    swallow_in_each_of_three_functions,
    suppress,
    swallow_in_a_callback,
    finally_goes_on,
]


@pytest.fixture(autouse=True)
def nothing_left_behind():
    before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGTERM)
    yield
    assert (signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGTERM)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert limit._running == []


@pytest.mark.filterwarnings("ignore:'continue' in a 'finally'")
@pytest.mark.parametrize("endless", ENDLESS)
def test_endless_code_is_ended(endless):
    begin = time.monotonic()
    with pytest.raises(OutOfTime, match=r"^the time is over$"), time_limit(0.1):
        endless()
    assert time.monotonic() - begin < 8


@pytest.mark.parametrize("endless", [spin, swallow_inside_of_swallowing, swallow_in_each_of_three_functions, suppress])
def test_a_thread_interrupts_where_there_is_no_alarm(endless, monkeypatch):
    monkeypatch.setattr(limit, "_ALARM", None)
    with pytest.raises(OutOfTime), time_limit(0.1):
        endless()
    with time_limit(0.05):
        pass
    time.sleep(0.1)  # its thread is gone, or this would end the tests


def test_code_that_ends_in_time_is_left_alone():
    with time_limit(5):
        value = sum(range(10))
    assert value == 45
    time.sleep(0.01)


def test_except_exception_does_not_catch_it():
    caught = []
    with pytest.raises(OutOfTime), time_limit(0.05):  # noqa: PT012
        while True:
            try:
                time.sleep(1)
            except Exception as error:
                caught.append(error)
    assert caught == []


def test_code_may_clean_up():
    said = []
    with pytest.raises(OutOfTime), time_limit(0.05):  # noqa: PT012
        try:
            spin()
        finally:
            for i in range(1000):
                said.append(i)
    assert len(said) == 1000


def test_a_limit_that_is_over_at_once_raises_in_the_block_or_not_at_all():
    for _ in range(3000):
        with contextlib.suppress(OutOfTime), time_limit(1e-6):
            pass
        assert limit._running == []


def test_the_outer_limit_ends_the_inner_block():
    begin = time.monotonic()
    with pytest.raises(OutOfTime), time_limit(0.1), time_limit(50):
        spin()
    assert time.monotonic() - begin < 5


def test_the_outer_limit_is_there_after_the_inner():
    begin = time.monotonic()
    with pytest.raises(OutOfTime), time_limit(0.3):  # noqa: PT012
        with pytest.raises(OutOfTime), time_limit(0.05):
            spin()
        inner = time.monotonic() - begin
        with time_limit(20):
            pass
        spin()
    assert 0.04 < inner < 0.25
    assert 0.29 < time.monotonic() - begin < 5


@pytest.mark.parametrize("raises", [False, True])
def test_the_callers_handler_and_timer_go_on(raises):
    heard = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 30, 7)
        with pytest.raises(OutOfTime) if raises else contextlib.nullcontext(), time_limit(0.05 if raises else 5):
            spin() if raises else time.sleep(0.02)
        left, every = signal.getitimer(signal.ITIMER_REAL)
        assert 25 < left < 29.99
        assert every == pytest.approx(7)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with time_limit(5):
            time.sleep(0.05)
            assert heard == [], "the caller's timer waits for the end of the block"
        time.sleep(0.02)
        assert len(heard) == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_ctrl_c_passes_through():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    with pytest.raises(KeyboardInterrupt), time_limit(5):
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    with pytest.raises(ZeroDivisionError), time_limit(5):
        raise ZeroDivisionError


def test_in_another_thread_there_is_no_limit():
    ended = []

    def work():
        with time_limit(0.01):
            time.sleep(0.05)
            ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [True]


def test_global_random_numbers_are_the_learners():
    random.seed(3)
    state = random.getstate()
    with pytest.raises(OutOfTime), time_limit(0.05):
        swallow()
    assert random.getstate() == state


def test_a_limit_runs_once_at_a_time():
    once = time_limit(5)
    with once, pytest.raises(RuntimeError, match="is running"), once:
        pass
    with once:
        pass


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (True, TypeError),
        ("3", TypeError),
        (None, TypeError),
    ],
)
def test_seconds_must_be_a_number_above_zero(seconds, error):
    with pytest.raises(error, match=r"^seconds must be a number"):
        time_limit(seconds)


@pytest.mark.unchecked
@pytest.mark.parametrize("seconds", [1, 1e300, np.float32(2), np.int64(3)])
def test_other_numbers_will_do(seconds):
    with time_limit(seconds):
        pass


def test_a_limit_costs_under_50_microseconds():
    program = (
        "import time\nfrom mha_course.checks.limit import time_limit\nbest = 1\n"
        "for _ in range(20):\n    begin = time.perf_counter()\n    for _ in range(200):\n"
        "        with time_limit(10):\n            pass\n"
        "    best = min(best, (time.perf_counter() - begin) / 200)\nprint(best)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 50e-6


def test_a_kernel_goes_on_after_a_cell_out_of_time():
    manager = pytest.importorskip("jupyter_client").manager
    kernel, client = manager.start_new_kernel(kernel_name="python3")
    try:
        said = []

        def run(code):
            reply = client.execute_interactive(code, timeout=60, output_hook=said.append, allow_stdin=False)
            return reply["content"]["status"], reply["content"].get("ename")

        assert run("from mha_course.checks.limit import time_limit") == ("ok", None)
        assert run("with time_limit(0.2):\n    while True: pass") == ("error", "OutOfTime")
        swallowing = "while True:\n        try: input\n        except BaseException: pass"
        assert run(f"with time_limit(0.2):\n    {swallowing}") == ("error", "OutOfTime")
        assert run("import time; time.sleep(0.3); print(6 * 7)") == ("ok", None)
        texts = [m["content"]["text"] for m in said if m["msg_type"] == "stream"]
        assert "".join(texts) == "42\n"
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
