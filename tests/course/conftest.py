"""A checkout of its own for each test: course.py with two small lessons, and no environment yet."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.course.checkout import ROOT, code, load, stream, write_notebook


@pytest.fixture
def folder(tmp_path):
    """A checkout in a folder whose name has a space and brackets."""
    folder = tmp_path / "a course [1]"
    (folder / "notebooks").mkdir(parents=True)
    (folder / "mha_course").mkdir()
    shutil.copy(ROOT / "course.py", folder)
    (folder / "mha_course" / "jupyterlab.json").write_text("{}")
    (folder / "pyproject.toml").write_text("[project]\n")
    (folder / "requirements.txt").write_text("alpha==1\nbeta==2\n")
    for name in ("00_start", "02_geometry"):
        write_notebook(
            folder / "notebooks" / f"{name}.ipynb",
            code("picture()", tags=["keep-output"], outputs=[stream("the cover\n")], count=1),
            code("1 + 1", outputs=[stream("the answer\n")], count=2),
        )
    return folder


@pytest.fixture
def course(folder):
    return load(folder)


@pytest.fixture
def pip(course, monkeypatch):
    """Replace the steps of an install: `calls` are their commands, `fail` is the step to stop at."""
    record = SimpleNamespace(calls=[], stamped=[], fail=None)

    def step(command, _lock, env=None, *_args, **_more):
        record.calls.append(" ".join(command[1:]))
        record.stamped.append(Path(course.STAMP).exists())
        if env:
            Path(env["TMPDIR"], "of pip's").touch()
        if record.fail in command:
            raise course.Fail("stopped")
        if "venv" in command:
            shutil.rmtree(course.VENV, ignore_errors=True)
            python = Path(course.PYTHON)
            python.parent.mkdir(parents=True)
            python.write_text("#!/bin/sh\n")

    monkeypatch.setattr(course, "step", step)
    return record


@pytest.fixture
def ready(course, pip):
    """The checkout with a finished environment whose python prints its arguments and exits with 5."""
    course.ensure()
    python = Path(course.PYTHON)
    python.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" "token=${JUPYTER_TOKEN-unset}" "site=$PYTHONNOUSERSITE"\nexit 5\n'
    )
    python.chmod(0o755)
    return course
