"""A limit of time for code that may never end, in the process that it runs in.

    with time_limit(20):
        fn(x)  # raises OutOfTime here when 20 seconds are over

Python runs a signal's handler between two of its instructions, and the handler raises. Code that
catches `Exception` does not catch OutOfTime. Code that catches everything and goes on is hit again
every 0.1 seconds, and after a few times at every call and at every turn of a loop until it ends.
What lets no instruction of Python run cannot be stopped: one long call in C, a large matrix product.
Neither can code that sets the signal's handler itself, nor code outside the main thread.
"""

import _thread
import math
import signal
import sys
import threading
import time
from functools import partial
from numbers import Real
from random import Random
from types import FrameType
from typing import Any, NamedTuple, no_type_check

EVERY = 0.1  # seconds from one raise to the next, where the code goes on
PATIENCE = 5  # raises that leave the code between them alone, so that it can clean up
LONGEST = 10.0**8  # seconds; timers take no more

ENDLESS_HINTS = (
    "Look for a loop that never ends: a while whose condition stays true, or a function that calls itself.",
    "Print a counter inside the loop, and let it stop: a for over range(...) always does.",
)


class OutOfTime(BaseException):
    """Raised in code under a time limit when the time is over; no Exception, so that few catch it."""

    def __str__(self) -> str:
        """What a traceback says."""
        return "the time is over"


def time_limit(seconds: float) -> "_Limit":
    """Limit the time of the code in a `with` block: OutOfTime is raised in it when the time is over.

    Handlers and timers are the caller's again afterwards; a timer that runs out inside fires then. Limits nest.
    Where there is no SIGALRM (Windows) a thread interrupts instead, which cannot end a sleep. In other threads
    than the main one there is no limit. Keep other `with` blocks outside of this one, and name it in the
    `with` itself: code that swallows OutOfTime is stopped without regard for what it still has to close.

    Raises:
        TypeError: seconds is no number.
        ValueError: seconds is not above 0, or not finite.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise TypeError(f"seconds must be a number, got {type(seconds).__name__}")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"seconds must be a number above 0, got {seconds}")
    return _Limit(min(float(seconds), LONGEST))


class _Storm(NamedTuple):
    """Two ways to leave the handler so that the signal comes again at the next instruction that looks for one.

    The signal is set in C, by an instance that is made or deleted: set in Python, it would come in the handler.
    """

    error: type[OutOfTime]  # to be raised as a class
    local: type[object]  # to be held in a local variable of the handler


def _storm(signum: signal.Signals) -> _Storm:
    again = {"__module__": __name__, "__slots__": ()}, staticmethod(partial(_thread.interrupt_main, signum))
    return _Storm(
        type("OutOfTime", (OutOfTime,), {**again[0], "__init__": again[1]}),
        type("_Again", (), {**again[0], "__del__": again[1]}),
    )


_ALARM = getattr(signal, "SIGALRM", None)
_INSTEAD = signal.SIGTERM  # on Windows nothing sends it, and a handler of its own leaves Ctrl-C alone
_STORMS = {signum: _storm(signum) for signum in (_ALARM, _INSTEAD) if signum is not None}
_HERE = sys._getframe().f_code.co_filename
_chance = Random().random  # not the global state, which is the learner's
_running: "list[_Limit]" = []  # the outermost first


@no_type_check  # a wrapper around __exit__ would be hit before it ends the limit
class _Limit:
    def __init__(self, seconds: float):
        self.seconds = seconds
        self.raised = 0
        self.signum: signal.Signals | None = None

    def __enter__(self) -> "_Limit":
        if self in _running:
            raise RuntimeError("this limit is running: make another with time_limit(seconds)")
        self.signum = _signal()
        if self.signum is None:
            return self
        self.raised = 0
        self.frame = sys._getframe(1)
        self.begin = time.monotonic()
        self.end = self.begin + self.seconds
        self.handler = signal.getsignal(self.signum)
        _running.append(self)
        signal.signal(self.signum, _tick)
        if self.signum == _ALARM:
            self.timer = signal.setitimer(signal.ITIMER_REAL, max(1e-6, _next(self.begin)), EVERY)
        else:
            self.left = threading.Event()
            threading.Thread(target=_interrupt, args=(self.left, self.seconds, self.signum), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # The handler raises in no frame of this file, so nothing interrupts these lines.
        if self.signum is None:
            return
        if self.signum == _ALARM:
            signal.setitimer(signal.ITIMER_REAL, 0)
        else:
            self.left.set()
        _running.remove(self)
        signal.signal(self.signum, self.handler)
        if self.signum == _ALARM and self.handler is _tick and _running:
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, _next(time.monotonic())), EVERY)
        elif self.signum == _ALARM and self.timer[0]:
            left, every = self.timer
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, left - (time.monotonic() - self.begin)), every)
        self.signum = None
        del self.frame


def _signal() -> signal.Signals | None:
    """The signal to use; None where no limit is possible: in a thread, or beside a handler not of Python's."""
    if threading.current_thread() is not threading.main_thread():
        return None
    signum = _INSTEAD if _ALARM is None else _ALARM
    return None if signal.getsignal(signum) is None else signum


@no_type_check
def _next(now: float) -> float:
    """Seconds until the first of the running limits is over; EVERY where one is."""
    left = min(limit.end for limit in _running) - now
    return left if left > 0 else EVERY


def _interrupt(left: threading.Event, seconds: float, signum: signal.Signals) -> None:
    """What the thread does: what the timer does elsewhere."""
    while not left.wait(seconds):
        _thread.interrupt_main(signum)
        seconds = EVERY


@no_type_check
def _tick(signum: int, frame: FrameType | None) -> Any:
    """The handler: raise in the code that was interrupted, if a limit is over."""
    now = time.monotonic() + 0.001  # timers are not exact
    late = next((limit for limit in _running if limit.end <= now), None)
    while frame is not None and late is not None and frame is not late.frame:
        if frame.f_code.co_filename == _HERE:  # a limit is being entered or left: that must be done in full
            return
        frame = frame.f_back
    if late is None:
        return
    late.raised += 1
    if late.raised <= PATIENCE or frame is None:  # without the frame of its `with` a storm would not end
        raise OutOfTime
    # Where each check for signals lies inside of a `try`, raising at each would go round in it: some are let pass.
    if _chance() < 0.25:
        again = _STORMS[signum].local()  # noqa: F841
        return
    raise _STORMS[signum].error
