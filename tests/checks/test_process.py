"""A process of its own for a solution: what it may do, and what becomes of that."""

import io
import os
import signal
import sys
import time

import pytest

from mha_course.checks import Verdict, child
from mha_course.checks.process import judge, run

RIGHT = "{'ok': True, 'fault': None, 'evidence': 'fine', 'remarks': ['a']}"


def fake(body, seconds=20.0):
    """Run a child that is a few lines of Python, without PyTorch; say(phase=...) reports."""
    start = (
        "import json, os, signal, sys, time\ndef say(**what): open(sys.argv[-1], 'a').write(json.dumps(what) + '\\n')\n"
    )
    return run([sys.executable, "-c", start + body], {"target": "x"}, seconds)


def test_the_report_is_the_verdict_whatever_is_printed_or_raised_after_it():
    right = Verdict(True, None, "fine", remarks=("a",))
    assert fake(f"print('noise'); say(verdict={RIGHT}); os._exit(3)") == right


@pytest.mark.parametrize(
    ("end", "fault"),
    [
        ("os._exit(0)", "its process ended with exit status 0"),
        ("sys.exit(7)", "its process ended with exit status 7"),
        ("os.abort()", "its process ended by signal SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "its process ended by signal SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "its process ended by signal SIGSEGV"),
    ],
)
def test_a_crash_is_a_verdict_by_its_phase(end, fault):
    judging = fake(f"say(phase='importing'); say(phase='judging'); {end}")
    assert (judging.judged, judging.ok, judging.fault) == (True, False, fault)
    assert judging.names == ("process_ended",)
    importing = fake(f"say(phase='importing'); {end}")
    assert (importing.judged, importing.ok, importing.fault) == (False, False, fault)
    assert importing.evidence == "this happened while the file was imported"


@pytest.mark.parametrize(("phase", "judged"), [("judging", True), ("importing", False)])
def test_an_endless_child_and_what_it_started_are_ended(phase, judged, tmp_path):
    note = tmp_path / "pid"
    begin = time.monotonic()
    verdict = fake(
        "import subprocess; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'w').write(str(p.pid)); say(phase={phase!r})\nwhile True: pass",
        seconds=0.3,
    )
    assert (verdict.fault, verdict.judged) == ("it did not finish within 0.3 s", judged)
    assert time.monotonic() - begin < 15
    assert _gone(int(note.read_text()))


def test_what_a_child_leaves_running_is_ended_too(tmp_path):
    note = tmp_path / "pid"
    body = (
        "import subprocess; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'w').write(str(p.pid)); say(verdict={RIGHT})"
    )
    assert fake(body).ok
    assert _gone(int(note.read_text()))


def _gone(pid):
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "Z":
                return True
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False


def test_prints_go_to_standard_error_shortened(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert fake(f"[print(i) for i in range(100000)]; say(verdict={RIGHT})").ok
    lines = sys.stderr.getvalue().splitlines()
    assert lines[:20] == [str(i) for i in range(20)]
    assert lines[20:] == ["[... and 99980 more lines printed, not shown]"]


def test_there_is_nothing_to_read_and_a_torn_report_is_left_out():
    verdict = fake("say(phase='judging'); open(sys.argv[-1], 'a').write('{\"verd'); print(input())")
    assert verdict.fault == "its process ended with exit status 1"


@pytest.mark.parametrize(
    ("target", "file", "name"),
    [
        ("a.py:f", "a.py", "f"),
        ("a.py", "a.py", None),
        ("C:\\x.py:A.b", "C:\\x.py", "A.b"),
        ("C:\\x.py", "C:\\x.py", None),
        ("my dir/a.py:f", "my dir/a.py", "f"),
    ],
)
def test_a_target_is_split_at_its_last_colon(target, file, name):
    got = child.split(target)
    assert (str(got[0]), got[1]) == (file, name)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Judge a source in this process, with a judge that says what it was given."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(child, "_diagnose", lambda: lambda x, **given: Verdict(True, None, f"{x.__name__} {given}"))
    modules = set(sys.modules)

    def work(source, name="", exercise=None, **options):
        file = tmp_path / "sol.py"
        file.write_text(source)
        phases = []
        request = {"target": f"{file}{name}", "exercise": exercise, "seconds": 5, "options": options}
        return child.work(request, phases.append), phases

    yield work
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("source", "name", "says"),
    [
        ("def f(:\n  pass", ":f", r"sol.py, line 1 is not Python: "),
        ("x = 1\nimport nothing_like_it", ":f", r"ModuleNotFoundError.*[Ll]ine 2 of sol.py"),
        ("exit(3)", ":f", r"raises SystemExit: 3"),
        ("raise MemoryError", ":f", r"raises MemoryError"),
        ("def f(): pass\ndef g(): pass", ":h", r"has no h.*are f, g"),
        ("def f(): pass\ndef g(): pass", "", r"which of them.*are f, g"),
        ("x = 3", "", r"nothing to judge"),
        ("x = 3\ndef f(): pass", ":x", r"x cannot be called.*type int; there are f"),
    ],
)
def test_what_cannot_be_judged(work, source, name, says):
    verdict, phases = work(source, name)
    assert not verdict.judged
    assert phases == ["importing"]
    assert __import__("re").search(says, str(verdict).replace("\n", " "), 2), str(verdict)


def test_what_is_found(work):
    only = "from math import sqrt\n_x = 1\ndef f(q): return sqrt(q)\nif __name__ == '__main__': exit()"
    assert work(only)[0].evidence == "f {'seconds': 5}"
    assert work("class A:\n    def b(q): pass", ":A.b", causal=True, mask=None)[0].evidence == (
        "b {'seconds': 5, 'causal': True}"
    )
    verdict, phases = work("def g(): pass\ndef softmax(x): return x", exercise="softmax")
    assert (verdict.judged, verdict.ok, phases) == (True, False, ["importing", "judging"])
    assert not work("def f(x): pass", exercise="nothing")[0].judged


def test_files_that_are_none(tmp_path):
    for target in (tmp_path / "no.py", tmp_path):
        request = {"target": str(target), "exercise": None, "seconds": 5, "options": {}}
        assert not child.work(request, print).judged


def test_a_real_child_in_a_folder_with_a_space(tmp_path):
    folder = tmp_path / "my solutions"
    folder.mkdir()
    (folder / "beside.py").write_text("from torch import softmax as take")
    (folder / "s.py").write_text("import beside\ndef softmax(x):\n    return beside.take(x, -1)")
    assert judge(f"{folder / 's.py'}:softmax", exercise="softmax").ok
    assert sorted(x.name for x in folder.iterdir()) == ["beside.py", "s.py"]
