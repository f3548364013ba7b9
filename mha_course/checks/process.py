"""Judge a solution in a file, in a process of its own that may crash, hang or print as it likes."""

import codecs
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from mha_course.checks.limit import ENDLESS_HINTS
from mha_course.checks.printed import limited_output
from mha_course.checks.verdict import Verdict

STARTING, IMPORTING, JUDGING = "starting", "importing", "judging"  # what the child reports on its way
START_SECONDS = 300.0  # for importing PyTorch, from a slow disk too
POLL = 0.02  # seconds from one look at the child to the next

_ROOT = str(Path(__file__).parents[2])
_PROGRAM = f"import sys; sys.path.insert(0, {_ROOT!r}); from mha_course.checks import child; child.main({_ROOT!r})"


def judge(target: str, *, exercise: str | None = None, seconds: float = 60, **options: Any) -> Verdict:
    """Judge what a file defines, in a process of its own.

    Whatever the file does to its process becomes part of the verdict. What it prints goes to
    sys.stderr, limited. What it starts is ended with it, unless it made a session of its own.

    Args:
        target: "FILE.py:NAME", or "FILE.py" where the file defines one candidate only.
        exercise: the exercise to check for, one of `checks.tasks()`; None for a judgement of attention.
        seconds: the time for importing the file, and for judging it.
        options: conventions, as `checks.diagnose` takes them.

    Returns:
        A Verdict. `judged` is False if there was nothing to judge: no such file or name, or an error in importing.
    """
    request = {"target": target, "exercise": exercise, "seconds": seconds, "options": options}
    command = [sys.executable, "-X", "faulthandler", "-c", _PROGRAM]
    return run(command, request, seconds)


def run(command: list[str], request: dict[str, Any], seconds: float) -> Verdict:
    """Run a child with the paths of its request and of its report as last arguments, and read the report."""
    with tempfile.TemporaryDirectory(prefix="mha_course_", ignore_cleanup_errors=True) as folder:
        asked, report = Path(folder, "request.json"), Path(folder, "report.jsonl")
        asked.write_text(json.dumps(request), encoding="utf-8")
        report.touch()
        ended = _follow([*command, str(asked), str(report)], report, seconds)
        said = _lines(report)
    verdict = said[-1].get("verdict") if said else None
    if verdict is not None:
        fields: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in verdict.items()}
        return Verdict(**fields)
    return _without_report(ended, said[-1]["phase"] if said else STARTING, seconds)


class _Ended(NamedTuple):
    code: int | None  # None if the time was over


def _follow(command: list[str], report: Path, seconds: float) -> _Ended:
    """Wait for the end of a child, or end it when its time is over; nothing of it runs afterwards."""
    new_group: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        new_group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    env = {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, **new_group
    )
    assert process.stdout is not None
    reader = threading.Thread(target=_forward, args=(process.stdout, sys.stderr), daemon=True)
    reader.start()
    try:
        size, end = 0, time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < end:
            if report.stat().st_size != size and (said := _lines(report)):
                size = report.stat().st_size
                grace = min(5.0, max(1.0, seconds / 10))  # the child's own limit comes first, and says more
                end = time.monotonic() + seconds + grace * (said[-1].get("phase") == JUDGING)
            time.sleep(POLL)
        return _Ended(process.poll())
    finally:
        _end(process)
        reader.join(2)  # a process that left the group may hold the pipe for ever


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a child and what it started."""
    if sys.platform == "win32":
        if process.poll() is None:
            subprocess.run(["taskkill", "/T", "/F", "/PID", str(process.pid)], capture_output=True, check=False)
            process.kill()
    else:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its own group, also when it has ended by itself
    process.wait()


def _forward(pipe: IO[bytes], to: Any) -> None:
    """Pass on the first of what a child prints, and read the rest."""
    limit = limited_output()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    encoding = getattr(to, "encoding", None) or "utf-8"

    def show(text: str) -> None:
        if text and to is not None:
            with suppress(OSError, ValueError):
                to.write(text.encode(encoding, "replace").decode(encoding))
                to.flush()

    with pipe, suppress(OSError, ValueError):
        while data := os.read(pipe.fileno(), 65536):
            show(limit.take(decoder.decode(data).replace("\r\n", "\n")))
    show(limit.notice())


def _lines(report: Path) -> list[dict[str, Any]]:
    """What a child has reported; a line that it did not finish is left out."""
    said = []
    with suppress(OSError, ValueError):
        for line in report.read_text(encoding="utf-8").splitlines():
            said.append(json.loads(line))
    return said


_CRASH_HINTS = (
    "Run the file by itself, and print where it is: the last line printed is near the end.",
    "Look for what ends or leaves Python: exit(), os._exit, ctypes, and data larger than the memory.",
)


def _without_report(ended: _Ended, phase: str, seconds: float) -> Verdict:
    """The verdict on a child that ended, or was ended, before it had one."""
    names: tuple[str, ...] = ("process_ended",)
    hints = _CRASH_HINTS
    if ended.code is None:
        limit = START_SECONDS if phase == STARTING else seconds
        fault, names, hints = f"it did not finish within {limit:g} s", ("endless_loop",), ENDLESS_HINTS
    elif ended.code < 0:
        fault = f"its process ended by signal {_signal(-ended.code)}"
    else:
        fault = f"its process ended with exit status {ended.code}"
    if phase == STARTING:
        return Verdict(False, fault, "Python and PyTorch did not start", names=names, judged=False)
    if phase == IMPORTING:
        return Verdict(False, fault, "this happened while the file was imported", hints, names, judged=False)
    memory = "; perhaps the memory was full" if ended.code == -9 else ""
    return Verdict(False, fault, f"this happened while it was judged{memory}", hints, names)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
