"""Every stored notebook, found by glob, is one that `course.py notebooks` wrote and nbval can compare."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.notebooks.store import VIEW, code_cells, compared, faults

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# trainings, long sequences; else 30
SECONDS = {"03": 45, "06": 75, "08": 45, "09": 60, "10": 60, "11": 60, "12": 60, "13": 45, "14": 60, "15": 45}
# all S x S scores at 8192 tokens and 4096; any other has 1500
MEGABYTES = {"10": 3000, "11": 2000, "12": 2000, "14": 2000, "15": 2000}
MACHINE_LESSONS = ("00", "10", "15")  # half of their outputs may depend on the machine, elsewhere a fifth


def share(notebooks):
    """(cells with output that nbval does not compare, cells with output)."""
    with_output = [cell for notebook in notebooks for cell in code_cells(notebook) if cell["outputs"]]
    return sum(not compared(cell) for cell in with_output), len(with_output)


def read(path):
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert list(faults(notebook, str(ROOT))) == []
    assert path.stat().st_size < 1_000_000
    assert re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_limits_are_declared(path):
    limits = read(path)["metadata"].get("mha_course", {})
    assert {"minutes", "seconds", "megabytes"} <= limits.keys()
    assert limits["seconds"] <= SECONDS.get(path.name[:2], 30)
    assert limits["megabytes"] <= MEGABYTES.get(path.name[:2], 1500)


def test_one_output_in_five_may_depend_on_the_machine():
    not_compared, all_of_them = share(read(path) for path in NOTEBOOKS)
    assert not_compared * 5 <= all_of_them


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.name.startswith(MACHINE_LESSONS)], ids=lambda path: path.stem
)
def test_one_output_in_two_where_the_machine_is_the_subject(path):
    not_compared, all_of_them = share([read(path)])
    assert not_compared * 2 <= all_of_them


def good():
    output = nbformat.v4.new_output("stream", text="fine\n")
    cells = [
        nbformat.v4.new_code_cell("1", execution_count=1, outputs=[output]),
        nbformat.v4.new_markdown_cell("NBVAL_"),
    ]
    cells[1]["source"] = "words"
    return nbformat.v4.new_notebook(cells=cells)


def test_a_good_notebook_has_no_faults():
    assert list(faults(good())) == []


def ignore(cell, **more):
    cell["metadata"].update(tags=["nbval-ignore-output"], **more)


def output(cell, kind, **more):
    cell["outputs"].append(nbformat.v4.new_output(kind, **more))


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda notebook, cell: cell.update(execution_count=2), "execution counts"),
        (lambda notebook, cell: notebook["metadata"].update(widgets={}), "widget state"),
        (lambda notebook, cell: notebook["metadata"].update(language_info={"version": "3"}), "Python version"),
        (lambda notebook, cell: cell["metadata"].update(tags=["raises-exception"]), "raises-exception"),
        (lambda notebook, cell: ignore(cell), "metadata.reason does not say why"),
        (lambda notebook, cell: ignore(cell, reason=" "), "metadata.reason does not say why"),
        (lambda notebook, cell: cell["metadata"].update(tags=["nbval-skip"], reason="slow"), "only the tag"),
        (lambda notebook, cell: cell.update(source="# NBVAL_IGNORE_OUTPUT\n1"), "only the tag"),
        (lambda notebook, cell: output(cell, "error", ename="E", evalue="broken", traceback=[]), "E: broken"),
        (lambda notebook, cell: output(cell, "stream", name="stderr", text="x"), "wrote to stderr: x"),
        (lambda notebook, cell: output(cell, "display_data", data={VIEW: {"model_id": "1"}}), "random id"),
        (lambda notebook, cell: output(cell, "display_data", data={"text/plain": "'/root/x'"}), "a path of"),
        (lambda notebook, cell: output(cell, "stream", text="in /home/me/course"), "a path of"),
    ],
)  # fmt: skip
def test_each_fault_is_found(spoil, fault):
    notebook = good()
    spoil(notebook, notebook["cells"][0])
    assert any(fault in line for line in faults(notebook))


def test_a_reason_and_a_picture_are_no_faults():
    notebook = good()
    ignore(notebook["cells"][0], reason="times depend on the machine")
    output(notebook["cells"][0], "display_data", data={"image/png": "aaaa/tmp/aaaa", "text/plain": "<Figure>"})
    assert list(faults(notebook)) == []
    assert share([notebook]) == (1, 1)
