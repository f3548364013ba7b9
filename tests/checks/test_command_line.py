"""The command line: what it passes on, what it prints, and its exit status."""

import json
import os
import subprocess
import sys

import pytest

from mha_course.checks import Verdict
from mha_course.checks import __main__ as command

WRONG = Verdict(False, "no scale", "seen", ("Where?",), ("no_scale",), ("True may attend",))


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (Verdict(True, None, "fine"), 0),
        (WRONG, 1),
        (Verdict(False, "not attempted yet", ""), 1),
        (Verdict(False, "no file", "", judged=False), 2),
    ],
)
def test_text_and_exit_status(verdict, status, monkeypatch, capsys):
    monkeypatch.setattr(command, "judge", lambda **_: verdict)
    assert command.main(["a.py"]) == status
    assert capsys.readouterr().out == f"{verdict}\n"


def test_options_are_passed_on_and_json_has_all_fields(monkeypatch, capsys):
    given = {}
    monkeypatch.setattr(command, "judge", lambda **options: given.update(options) or WRONG)
    line = ["a.py:A", "--mask", "blocked", "--mask-axes", "B S", "--num-heads", "4", "--causal", "--seconds", "9"]
    assert command.main([*line, "--layout", "T B E", "--json"]) == 1
    assert given == {
        "target": "a.py:A",
        "exercise": None,
        "mask": "blocked",
        "mask_axes": "B S",
        "layout": "T B E",
        "num_heads": 4,
        "causal": True,
        "half": None,
        "seconds": 9.0,
    }
    assert json.loads(capsys.readouterr().out) == {
        "ok": False,
        "judged": True,
        "fault": "no scale",
        "names": ["no_scale"],
        "evidence": "seen",
        "hints": ["Where?"],
        "remarks": ["True may attend"],
    }


@pytest.mark.parametrize(
    "line", [[], ["a.py", "--mask", "x"], ["a.py", "--num-heads", "0"], ["a.py", "--seconds", "nan"]]
)
def test_wrong_usage(line, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(line)
    assert ended.value.code == 2
    assert "usage: python -m mha_course.checks" in capsys.readouterr().err


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert "heads.py:MyAttention" in capsys.readouterr().out


def test_the_whole_command_with_a_crash(tmp_path):
    file = tmp_path / "s.py"
    file.write_text("import ctypes\ndef softmax(x):\n    print('here')\n    ctypes.string_at(0)")
    line = [sys.executable, "-m", "mha_course.checks", "s.py:softmax", "--exercise", "softmax", "--json"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["fault"] == "its process ended by signal SIGSEGV"
    assert done.stderr.startswith("here\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_is_no_traceback(unbuffered, tmp_path):
    line = [sys.executable, "-m", "mha_course.checks", "missing.py:A"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(line, cwd=tmp_path, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, **pipes)
    process.stdout.close()  # as `| head -1` does, after its line
    assert process.stderr.read() == ""
    assert process.wait() == 2
    process.stderr.close()
