"""Any Python can parse course.py, and one that is too old gets one line."""

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.course.checkout import ROOT

SOURCE = (ROOT / "course.py").read_text(encoding="utf-8")
TOO_NEW = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.AsyncFunctionDef, ast.YieldFrom, ast.Match)


def too_new(tree):
    """Lines that Python 2.7 cannot parse."""
    for node in ast.walk(tree):
        if isinstance(node, TOO_NEW) or (isinstance(node, ast.Raise) and node.cause):
            yield node.lineno
        elif isinstance(node, ast.FunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            if arguments.posonlyargs or arguments.kwonlyargs or node.returns or any(a and a.annotation for a in every):
                yield node.lineno
        elif isinstance(node, (ast.List, ast.Tuple, ast.Set)) and any(isinstance(e, ast.Starred) for e in node.elts):
            yield node.lineno
        elif isinstance(node, ast.Dict) and None in node.keys:
            yield node.lineno


@pytest.mark.parametrize(
    "new",
    ["f'{x}'", "x: int = 1", "(x := 1)", "def f(*, x): 0", "def f() -> int: 0", "def f(x: int): 0", "[*x]", "{**x}",
     "try: 0\nexcept E as e: raise F from e"],
)  # fmt: skip
def test_the_search_for_new_syntax_finds_it(new):
    assert list(too_new(ast.parse(new)))


def test_nothing_newer_than_python_2():
    assert list(too_new(ast.parse(SOURCE))) == []
    assert SOURCE.isascii()


def old_pythons():
    """Python 2.7 to 3.10, wherever this machine has one."""
    for version in ("2.7", "3.6", "3.10"):
        homes = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        python = str(homes[-1]) if homes else shutil.which(f"python{version}")
        works = python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
        reason = f"no Python {version} on this machine"
        yield pytest.param(python, version, id=version, marks=[] if works else pytest.mark.skip(reason=reason))


@pytest.mark.parametrize(("python", "version"), list(old_pythons()))
def test_an_old_python_refuses_in_one_line(folder, python, version):
    done = subprocess.run([python, "-B", "course.py", "lab"], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"this course needs Python 3.11, 3.12 or 3.13, this is {version}.")
    assert done.stderr.count("\n") == 1
    assert not (folder / ".venv").exists()


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 10, 13), (3, 14, 0)])
def test_refusal_names_an_interpreter_that_runs(course, monkeypatch, version):
    def call(command, **_pipes):
        if command[0] == "python3.11":
            raise FileNotFoundError
        return 0 if command[0] == "python3.13" else 127  # 3.12: a shim of a version that is switched off

    monkeypatch.setattr(course.subprocess, "call", call)
    line = course.refusal(version, ["course.py", "lab", "--read"])
    assert line.endswith("this is {}.{}.{}: run `python3.13 course.py lab --read`".format(*version))


def test_refusal_when_no_other_python_is_there(course, monkeypatch):
    monkeypatch.setattr(course.subprocess, "call", lambda *_args, **_pipes: 127)
    assert course.refusal((3, 9, 1), ["course.py"]).endswith("this is 3.9.1: none of them was found here, install one")


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 12, 1), (3, 13, 9)])
def test_no_refusal(course, version):
    assert course.refusal(version, ["course.py"]) is None
