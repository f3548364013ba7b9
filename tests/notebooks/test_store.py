"""What `course.py notebooks` stores is the same twice, and nothing is stored from a notebook that fails."""

import copy
import json

import nbformat
import pytest

from tests.course.checkout import code, stream, write_notebook
from tests.notebooks.store import KERNEL, LANGUAGE, VIEW, keep_measured, main, normalise, store


def notebook(*cells, **metadata):
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def display(**data):
    return {"output_type": "display_data", "metadata": {}, "data": data}


def test_normalise_drops_what_differs_between_runs():
    timed = code("a", outputs=[display(**{VIEW: {"model_id": "1"}, "text/plain": "slider"})], count=7)
    timed["metadata"]["execution"] = {"iopub.execute_input": "now"}
    lone_view = code("b", outputs=[display(**{VIEW: {"model_id": "2"}}), stream("kept")], count=9)
    done = normalise(
        notebook(timed, lone_view, widgets={"state": {}}, jupytext={}, language_info={"version": "3.11.7"})
    )
    assert done["metadata"] == {"kernelspec": KERNEL, "language_info": LANGUAGE}
    assert "version" not in done["metadata"]["language_info"]
    assert done["cells"][0]["metadata"] == {}
    assert done["cells"][0]["outputs"] == [display(**{"text/plain": "slider"})]
    assert done["cells"][1]["outputs"] == [stream("kept")]


def test_normalise_merges_adjacent_streams_of_one_name():
    pieces = [stream("a"), stream("b"), stream("c", "stderr"), stream("d"), display(**{"text/plain": "x"}), stream("e")]
    done = normalise(notebook(code("x", outputs=pieces)))
    texts = [output.get("text") for output in done["cells"][0]["outputs"]]
    assert texts == ["ab", "c", "d", None, "e"]


def test_normalise_counts_cells_that_are_not_empty():
    result = {"output_type": "execute_result", "execution_count": 40, "metadata": {}, "data": {"text/plain": "1"}}
    done = normalise(notebook(code("1", outputs=[result], count=40), code(" \n"), code("2", count=42)))
    assert [cell["execution_count"] for cell in done["cells"]] == [1, None, 2]
    assert done["cells"][0]["outputs"][0]["execution_count"] == 1


def test_normalise_twice_changes_nothing():
    once = normalise(notebook(code("x", outputs=[stream("a"), stream("b")], count=3), widgets={}))
    assert normalise(copy.deepcopy(once)) == once


@pytest.fixture
def folder(tmp_path):
    """A notebooks folder."""
    (tmp_path / "notebooks").mkdir()
    return tmp_path / "notebooks"


def run(folder, *sources, **more):
    path = write_notebook(folder / "03_try.ipynb", *(code(source) for source in sources), **more)
    before = path.read_bytes()
    line, good = store(path)
    return path, before, line, good


def test_store_twice_writes_the_same_bytes(folder):
    sources = ["print('a', flush=True)\nprint('π')", "import ipywidgets\nipywidgets.IntSlider(3)", "", "1 + 1"]
    path, _, line, good = run(folder, *sources)
    assert good, line
    assert line.startswith("03_try.ipynb: ")
    assert line.endswith("MB of 700, written")
    stored = path.read_bytes()
    cells = json.loads(stored)["cells"]
    assert [cell["execution_count"] for cell in cells] == [1, 2, None, 3]
    assert cells[0]["outputs"][0]["text"] == ["a\n", "π\n"]
    assert list(cells[1]["outputs"][0]["data"]) == ["text/plain"]
    assert stored.endswith(b"}\n")
    assert "π".encode() in stored
    nbformat.validate(nbformat.reads(stored.decode(), as_version=4))
    line, good = store(path)
    assert good
    assert line.endswith("unchanged")
    assert path.read_bytes() == stored


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ValueError('broken here')", "cell 2: ValueError: broken here"),
        ("import sys\nprint('careful', file=sys.stderr)", "cell 2: wrote to stderr: careful"),
        ("import os\nprint(os.getcwd())", "cell 2: prints a path of this machine"),
        ("import os\nos._exit(1)", "cell 2: DeadKernelError"),
    ],
)
def test_a_failing_notebook_is_left_as_it_was(folder, source, reason):
    path, before, line, good = run(folder, "1 + 1", source)
    assert not good
    assert line.startswith(f"03_try.ipynb: FAILED, left as it was: {reason}")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"<<<<<<< HEAD\n{}",
        b"[]",
        b"null",
        b"\xef\xbb\xbf{}",
        b"\xff",
        b'{"nbformat": 4, "nbformat_minor": 5, "cells": []}',
        b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "code", "id": "a"}]}',
    ],
)
def test_a_broken_file_is_one_line_and_left_as_it_was(folder, capfd, content):
    path = folder / "03_try.ipynb"
    path.write_bytes(content)
    good = write_notebook(folder / "04_good.ipynb", code("1"))
    assert main([str(path), str(good)]) == 1
    out, err = capfd.readouterr()
    broken, after = out.splitlines()
    assert broken.startswith("03_try.ipynb: FAILED, left as it was: it is not a notebook: ")
    assert after.startswith("04_good.ipynb: ")
    # A kernel that is shut down may leave a traceback of ipykernel's own there.
    assert "store.py" not in err
    assert path.read_bytes() == content


def test_an_error_inside_a_widget_fails(folder):
    draw = "from ipywidgets import interact\n@interact(x=3)\ndef draw(x):\n    raise ValueError('in the callback')"
    path, before, line, good = run(folder, draw)
    assert not good
    assert "ValueError: in the callback" in line
    assert path.read_bytes() == before


def test_limits_are_upper_limits(folder):
    _, _, line, good = run(folder, "1", limits={"minutes": 5, "seconds": 0.001, "megabytes": 1})
    assert not good
    assert line.count("PASSED") == 2


def test_limits_must_be_declared(folder):
    _, _, line, good = run(folder, "1", limits=None)
    assert not good
    assert [key for key in ("minutes", "seconds", "megabytes") if f"mha_course.{key} is missing" in line] == [
        "minutes",
        "seconds",
        "megabytes",
    ]


def test_main_fails_when_one_of_them_fails(folder, capsys):
    good = write_notebook(folder / "00_good.ipynb", code("1"))
    bad = write_notebook(folder / "01_bad.ipynb", code("1 / 0"))
    assert main([str(good)]) == 0
    assert main([str(bad), str(good)]) == 1
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "00_good.ipynb",
        "01_bad.ipynb",
        "00_good.ipynb",
    ]


def measured(source, said, **metadata):
    cell = code(source, outputs=[stream(said)], count=1)
    cell["metadata"] = {"tags": ["nbval-ignore-output"], "reason": "a time", **metadata}
    return cell


def test_what_depends_on_the_machine_is_kept_until_its_source_changes():
    first = notebook(measured("now()", "1 s"))
    keep_measured(first, notebook(measured("now()", "0 s")))  # nothing says what the old output was made from
    assert first["cells"][0]["outputs"] == [stream("1 s")]

    second = notebook(measured("now()", "2 s"))
    keep_measured(second, first)
    assert second["cells"][0]["outputs"] == [stream("1 s")]
    assert second == first

    edited = notebook(measured("later()", "3 s", made_from=first["cells"][0]["metadata"]["made_from"]))
    keep_measured(edited, notebook(measured("later()", "1 s", **first["cells"][0]["metadata"])))
    assert edited["cells"][0]["outputs"] == [stream("3 s")]
    assert edited["cells"][0]["metadata"]["made_from"] != first["cells"][0]["metadata"]["made_from"]

    cleared = copy.deepcopy(first)
    cleared["cells"][0]["outputs"] = []
    third = notebook(measured("now()", "4 s"))
    keep_measured(third, cleared)
    assert third["cells"][0]["outputs"] == [stream("4 s")]


def test_what_is_compared_is_never_kept():
    new, old = notebook(code("x", outputs=[stream("b")])), notebook(code("x", outputs=[stream("a")]))
    keep_measured(new, old)
    assert new["cells"][0]["outputs"] == [stream("b")]
    assert new["cells"][0]["metadata"] == {}
