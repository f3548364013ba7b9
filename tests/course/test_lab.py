"""The learner's copies hide the answers and are never overwritten; JupyterLab is asked for safely."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.course.checkout import code, stream, write_notebook


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def test_copies_hide_the_answers_and_keep_the_pictures(course, folder):
    course.copy_lessons()
    assert sorted(path.name for path in (folder / "work").iterdir()) == ["00_start.ipynb", "02_geometry.ipynb"]
    cover, answer = cells(folder / "work" / "00_start.ipynb")
    assert cover["outputs"] == [stream("the cover\n")]
    assert answer["outputs"] == []
    assert cover["execution_count"] is answer["execution_count"] is None
    assert answer["source"] == "1 + 1"
    assert "the answer" in (folder / "notebooks" / "00_start.ipynb").read_text()


def test_a_kept_result_loses_its_count_and_widget_state_goes(course, folder):
    result = {"output_type": "execute_result", "execution_count": 3, "metadata": {}, "data": {"text/plain": "π"}}
    path = write_notebook(
        folder / "notebooks" / "01_next.ipynb",
        code("x", tags=["keep-output"], outputs=[result], count=3),
        widgets={"state": {}},
    )
    copy = json.loads(course.cleared(str(path)))
    assert copy["cells"][0]["outputs"] == [{**result, "execution_count": None}]
    assert "widgets" not in copy["metadata"]


def test_copies_are_never_overwritten(course, folder):
    (folder / "work").mkdir()
    mine = folder / "work" / "00_start.ipynb"
    mine.write_text("my answers")
    course.copy_lessons()
    assert mine.read_text() == "my answers"
    assert (folder / "work" / "02_geometry.ipynb").exists()


@pytest.fixture(
    params=[b"<<<<<<< HEAD\n{}", b"[]", b"null", b'{"cells": []}', b'{"metadata": {}}', b"\xef\xbb\xbf{}", b"\xff",
            b'{"metadata": {}, "cells": [3]}', b'{"metadata": [], "cells": []}',
            b'{"metadata": {}, "cells": [{"cell_type": "code", "metadata": []}]}', None]
)  # fmt: skip
def broken(request, folder):
    """A file in notebooks/ that is not a notebook, and how its line begins."""
    path = folder / "notebooks" / "01_broken.ipynb"
    name = str(path.relative_to(folder))
    if request.param is None:
        path.mkdir()
        return f"{name} cannot be read: "
    path.write_bytes(request.param)
    return f"{name} is not a notebook: "


def test_a_broken_file_is_one_line_and_the_others_are_copied(course, folder, capsys, broken):
    course.copy_lessons()
    line = capsys.readouterr().out
    assert line.startswith(broken)
    assert line.endswith(": going on without it\n")
    assert line.count("\n") == 1
    assert sorted(path.name for path in (folder / "work").iterdir()) == ["00_start.ipynb", "02_geometry.ipynb"]


def test_a_broken_file_is_not_taken_fresh(course, pip, folder, capsys, broken):
    (folder / "work").mkdir()
    (folder / "work" / "01_broken.ipynb").write_text("my answers")
    assert course.main(["lab", "--fresh", "1"]) == 2
    assert capsys.readouterr().err.startswith(f"course.py: {broken}")
    assert [path.name for path in (folder / "work").iterdir()] == ["01_broken.ipynb"]


def test_cpus_does_not_start_with_a_broken_file(course, capsys, broken):
    assert course.main(["cpus"]) == 2
    assert capsys.readouterr().err.startswith(f"course.py: {broken}")


@pytest.mark.parametrize("name", ["Untitled", "00_start-Copy1", "00_Start", "0_start", "00_start.old-1", "000_start"])
def test_what_is_not_named_like_a_lesson_is_none(course, folder, name):
    before = course.lessons()
    (folder / "notebooks" / f"{name}.ipynb").write_text("")
    assert course.lessons() == before


def test_fresh_keeps_every_old_copy(course, folder, capsys):
    fresh = course.lessons(["2"])[0]
    mine = folder / "work" / "02_geometry.ipynb"
    course.copy_lessons(fresh)
    for text in ("first", "second"):
        mine.write_text(text)
        course.copy_lessons(fresh)
        assert cells(mine)[1]["source"] == "1 + 1"
    assert mine.with_name("02_geometry.old-1.ipynb").read_text() == "first"
    assert mine.with_name("02_geometry.old-2.ipynb").read_text() == "second"
    assert capsys.readouterr().out.splitlines()[-1] == "your copy is now work/02_geometry.old-2.ipynb"


def test_a_write_that_fails_leaves_no_part(course, folder, monkeypatch):
    def refuse(_source, _target):
        raise OSError(28, "No space left on device")

    (folder / "kept").write_text("old")
    monkeypatch.setattr(course.os, "replace", refuse)
    with pytest.raises(course.Fail, match="kept cannot be written: No space left on device"):
        course.write(str(folder / "kept"), "new")
    assert [path.name for path in folder.glob("kept*")] == ["kept"]
    assert (folder / "kept").read_text() == "old"


def test_work_cannot_be_written(course, folder):
    (folder / "work").write_text("a file in its place")
    with pytest.raises(course.Fail, match=r"work/ cannot be written .*--read"):
        course.copy_lessons()


@pytest.mark.parametrize("number", ["42", "x"])
def test_unknown_lesson(course, number):
    with pytest.raises(course.Fail, match=f"there is no lesson {number}: there are 00 02"):
        course.lessons([number])


def test_no_lessons(course, folder):
    (folder / "notebooks").rename(folder / "elsewhere")
    with pytest.raises(course.Fail, match="there are no lessons in"):
        course.lessons()


@pytest.fixture
def taken():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_named_port_in_use(course, taken, capsys):
    assert course.main(["lab", "--port", str(taken)]) == 2
    assert capsys.readouterr().err == f"course.py: port {taken} is in use\n"


def test_the_usual_port_in_use(course, taken, capsys, monkeypatch):
    monkeypatch.setattr(course, "FIRST_PORT", taken)
    port = course.free_port(None)
    assert taken < port < taken + 100
    assert capsys.readouterr().out == f"port {taken} is in use: taking {port}\n"


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x"])
def test_not_a_port(course, port, capsys):
    with pytest.raises(SystemExit) as stop:
        course.main(["lab", f"--port={port}"])
    assert stop.value.code == 2
    assert "is not a port (1 to 65535)" in capsys.readouterr().err


def lab(folder, *arguments, **variables):
    """The words JupyterLab is started with."""
    command = [sys.executable, "course.py", "lab", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    return done.stdout.splitlines()


def test_lab_is_local_and_keeps_its_token(ready, folder):
    words = lab(folder, "--no-browser", JUPYTER_TOKEN="")
    assert "--ServerApp.port_retries=0" in words  # it takes the port that was printed, or none
    assert words[0].startswith("JupyterLab opens work/ on 127.0.0.1:") or words[0].startswith("port 8888 is in use")
    assert "--ServerApp.ip=127.0.0.1" in words
    assert f"--ServerApp.root_dir={folder / 'work'}" in words
    assert "--ServerApp.open_browser=False" in words
    assert ("--ServerApp.allow_root=True" in words) == (os.geteuid() == 0)
    assert words[-2:] == ["token=unset", "site=1"]
    assert (folder / "work" / "00_start.ipynb").exists()


def test_lab_read_opens_the_stored_pages(ready, folder):
    words = lab(folder, "--read")
    assert any(
        word.endswith("; what you change there changes the course's own files; Ctrl-C ends it") for word in words
    )
    assert f"--ServerApp.root_dir={folder / 'notebooks'}" in words
    assert "--ServerApp.open_browser=False" not in words
    assert not (folder / "work").exists()


def test_the_settings_override_names_what_jupyterlab_has():
    overrides = json.loads((Path(__file__).parents[2] / "mha_course" / "jupyterlab.json").read_text())
    lab = Path(sys.prefix, "share", "jupyter", "lab")
    extensions = Path(sys.prefix, "share", "jupyter", "labextensions")
    for plugin, settings in overrides.items():
        name, part = plugin.split(":")
        found = [*lab.glob(f"schemas/{name}/{part}.json"), *extensions.glob(f"*/*/schemas/{name}/{part}.json")]
        properties = json.loads(found[0].read_text(encoding="utf-8"))["properties"]
        assert settings.keys() <= properties.keys()
        for key, value in settings.items():
            assert isinstance(value, {"boolean": bool, "string": str}[properties[key]["type"]])


def test_notebooks_runs_the_chosen_ones_in_the_environment(ready, folder):
    command = [sys.executable, "course.py", "notebooks", "2"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    chosen = str(folder / "notebooks" / "02_geometry.ipynb")
    assert done.stdout.splitlines()[:3] == ["-m", "tests.notebooks.store", chosen]
    assert done.returncode == 5


def test_cpus_fails_when_one_way_differs(course, monkeypatch, capsys):
    seen = []

    def call(command, **more):
        seen.append((command[-2:], more["env"]))
        return 1 if more["env"].get("MHA_COURSE_THREADS") == "2" else 0

    monkeypatch.setattr(course, "ensure", lambda: None)
    monkeypatch.setattr(course.subprocess, "call", call)
    assert course.main(["cpus"]) == 1
    assert [env.get("ATEN_CPU_CAPABILITY") for _, env in seen] == ["avx2", "default", None]
    assert all(paths == course.lessons() for paths, _ in seen)
    assert [line.split()[-3] for line in capsys.readouterr().out.splitlines()[-3:]] == ["same", "same", "DIFFER"]
