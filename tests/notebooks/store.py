"""Run notebooks and store their outputs, the same bytes each time: what `course.py notebooks` calls.

A notebook whose cell fails, or whose outputs have a fault that the tests would find, is left as it was.
"""

import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat

import course

Notebook = dict[str, Any]
Cell = dict[str, Any]

CELL_SECONDS = 600
VIEW = "application/vnd.jupyter.widget-view+json"
PATH = re.compile(r"(?<![\w.:/-])/(root|home|Users|tmp|usr|opt|work|private|var)/|site-packages|[A-Za-z]:\\+Users")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}


class Failed(Exception):
    """Why a notebook cannot be stored, in one line."""


def normalise(notebook: Notebook) -> Notebook:
    """Take out of a notebook (lines joined, as nbformat reads it) all that differs between two runs."""
    for name in ("widgets", "jupytext"):
        notebook["metadata"].pop(name, None)
    notebook["metadata"].update(kernelspec=dict(KERNEL), language_info=dict(LANGUAGE))
    count = 0
    for cell in notebook["cells"]:
        for name in ("execution", "collapsed", "ExecuteTime"):
            cell["metadata"].pop(name, None)
        if cell["cell_type"] != "code":
            continue
        runs = bool(cell["source"].strip())
        count += runs
        cell["execution_count"] = count if runs else None
        outputs: list[dict[str, Any]] = []
        for output in cell["outputs"]:
            if "data" in output:
                output["data"].pop(VIEW, None)
                if not output["data"]:
                    continue
            if "execution_count" in output:
                output["execution_count"] = count
            last = outputs[-1] if outputs else {}
            if output["output_type"] == last.get("output_type") == "stream" and output["name"] == last["name"]:
                last["text"] += output["text"]
            else:
                outputs.append(output)
        cell["outputs"] = outputs
    return notebook


def code_cells(notebook: Notebook) -> list[Cell]:
    """The cells that a kernel runs."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and cell["source"].strip()]


def tags(cell: Cell) -> list[str]:
    """The tags of a cell."""
    return cell["metadata"].get("tags", [])


def compared(cell: Cell) -> bool:
    """Whether nbval compares this cell's output."""
    return not {"nbval-ignore-output", "nbval-skip"} & set(tags(cell)) and "NBVAL_" not in cell["source"]


def keep_measured(notebook: Notebook, before: Notebook) -> None:
    """Give cells that are not compared their stored output back, if it was made from the same source.

    A time or a list of devices differs at each run, and the file would change for nothing. The cell's metadata holds a
    hash of the source that its output was made from; clear the output to have it measured anew.
    """
    for cell, old in zip(notebook["cells"], before["cells"], strict=True):
        if cell["cell_type"] != "code" or compared(cell):
            continue
        made_from = hashlib.sha256(cell["source"].encode()).hexdigest()[:12]
        if old["outputs"] and old["metadata"].get("made_from") == made_from:
            cell["outputs"] = old["outputs"]
        cell["metadata"]["made_from"] = made_from


def words(output: dict[str, Any]) -> str:
    """What an output says, without its pictures."""
    data = {kind: value for kind, value in output.get("data", {}).items() if not kind.startswith("image/")}
    return output.get("text", "") + json.dumps(data, ensure_ascii=False)


def first_line(text: object) -> str:
    """The first line of a text, or of an exception's; empty when it has none."""
    return (str(text).strip().splitlines() or [""])[0]


def output_faults(output: dict[str, Any], folder: str) -> Iterator[str]:
    """What must not be in one stored output."""
    if output["output_type"] == "error":
        yield f"{output['ename']}: {output['evalue']}"
    if output.get("name") == "stderr":
        yield f"wrote to stderr: {first_line(output['text'])}"
    if VIEW in output.get("data", {}):
        yield "a widget's random id: run `course.py notebooks`"
    said = words(output)
    if PATH.search(said) or (folder and json.dumps(folder, ensure_ascii=False)[1:-1] in said):
        yield "prints a path of this machine"


def faults(notebook: Notebook, folder: str = "") -> Iterator[str]:
    """What must not be in a stored notebook, one line each.

    Args:
        notebook: as nbformat reads it, lines joined.
        folder: of the checkout, which no output may name.
    """
    cells = code_cells(notebook)
    if [cell["execution_count"] for cell in cells] != list(range(1, len(cells) + 1)):
        yield "execution counts are not 1..n: run `course.py notebooks`"
    if "widgets" in notebook["metadata"]:
        yield "widget state in the metadata: run `course.py notebooks`"
    if "version" in notebook["metadata"].get("language_info", {}):
        yield "the Python version in the metadata: run `course.py notebooks`"
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        if "raises-exception" in tags(cell):
            yield f"cell {number}: raises-exception passes when nothing is raised: catch and print"
        if "nbval-skip" in tags(cell) or "NBVAL_" in cell["source"]:
            yield f"cell {number}: only the tag nbval-ignore-output, with metadata.reason, keeps nbval from comparing"
        elif not compared(cell) and not str(cell["metadata"].get("reason", "")).strip():
            yield f"cell {number}: its output is not compared, and metadata.reason does not say why"
        for output in cell["outputs"]:
            for fault in output_faults(output, folder):
                yield f"cell {number}: {fault}"


def parsed(path: Path) -> nbformat.NotebookNode:
    """A notebook, its lines joined.

    Raises:
        Failed: the file is not a notebook.
    """
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat's own, or what it stumbles over
        raise Failed(f"it is not a notebook: {first_line(error)}") from error
    return notebook


def execute(path: Path) -> tuple[nbformat.NotebookNode, float, float | None]:
    """Run a notebook in a new kernel, in its folder.

    Returns:
        (the notebook, seconds from the kernel's start, its peak memory in MB or None where it cannot be measured).

    Raises:
        Failed: it is not a notebook, or a cell failed, or a callback of a widget.
    """
    notebook = parsed(path)
    client = nbclient.NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    started, peak = time.perf_counter(), None
    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells, 1):
            try:
                client.execute_cell(cell, number - 1)
            except nbclient.exceptions.CellExecutionError as error:
                raise Failed(f"cell {number}: {error.ename}: {error.evalue}") from error
            except Exception as error:  # a dead kernel, the time limit: whatever it is, name the cell
                raise Failed(f"cell {number}: {type(error).__name__}: {first_line(error)}") from error
        seconds = time.perf_counter() - started
        manager: Any = client.km
        status = Path(f"/proc/{manager.provisioner.pid}/status")
        if status.exists():
            peak = int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1000
    for state in client.widget_state.values():
        for output in state.get("outputs", ()):
            if output["output_type"] == "error":
                raise Failed(f"in a widget: {output['ename']}: {output['evalue']}")
    return notebook, seconds, peak


def against_limits(limits: dict[str, float], seconds: float, peak: float | None) -> tuple[str, bool]:
    """(what a run cost beside what its author declared, whether it is within)."""
    missing = [
        f"metadata.mha_course.{key} is missing" for key in ("minutes", "seconds", "megabytes") if key not in limits
    ]
    if missing:
        return ", ".join(missing), False
    slow, big = seconds > limits["seconds"], (peak or 0) > limits["megabytes"]
    time_text = f"{seconds:.0f} s of {limits['seconds']}" + " PASSED" * slow
    memory_text = (
        "memory not measured here" if peak is None else f"{peak:.0f} MB of {limits['megabytes']}" + " PASSED" * big
    )
    return f"{time_text}, {memory_text}", not slow and not big


def store(path: Path) -> tuple[str, bool]:
    """Run a notebook and store what it says.

    Returns:
        (one line for the maintainer, whether all is well).
    """
    before = path.read_bytes()
    try:
        stored = parsed(path)
        notebook, seconds, peak = execute(path)
        keep_measured(notebook, stored)
        text = nbformat.writes(normalise(notebook)) + "\n"
        for fault in faults(notebook, str(path.parents[1])):
            raise Failed(fault)
    except Failed as reason:
        return f"{path.name}: FAILED, left as it was: {reason}", False
    changed = text.encode() != before
    if changed:
        course.write(str(path), text)
    cost, within = against_limits(notebook.metadata.get("mha_course", {}), seconds, peak)
    return f"{path.name}: {cost}, {'written' if changed else 'unchanged'}", within


def main(paths: list[str]) -> int:
    """Store each notebook and print its line.

    Returns:
        1 if one of them failed or passed its limits, else 0.
    """
    good = True
    for path in paths:
        line, well = store(Path(path))
        print(line, flush=True)
        good = good and well
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except course.Fail as reason:
        sys.exit(f"course.py: {reason}")
    except KeyboardInterrupt:
        sys.exit(130)
