"""The process in which a solution in a file is judged: import the file, find the candidate, judge it."""

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from mha_course.checks import words
from mha_course.checks.process import IMPORTING, JUDGING
from mha_course.checks.verdict import Verdict


class Unjudged(Exception):
    """There is nothing to judge: its arguments are the fault and the evidence."""


def main(root: str) -> None:
    """What the process does: the last two arguments are files, what is asked for and what to report."""
    asked, report = sys.argv[-2:]
    sys.argv[:] = [""]
    request = json.loads(Path(asked).read_text(encoding="utf-8"))
    if root in sys.path:
        sys.path.remove(root)
    while "" in sys.path:
        sys.path.remove("")

    def say(**what: Any) -> None:
        with open(report, "a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")

    if request["exercise"] is None:
        _diagnose()  # imported before the time begins to count
    verdict = work(request, lambda phase: say(phase=phase))
    say(verdict=vars(verdict))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            pass
    os._exit(0)  # threads and exit functions of the file are not waited for


def work(request: dict[str, Any], report: Callable[[str], None]) -> Verdict:
    """Judge as asked for; report is called with the phase that begins."""
    try:
        file, name = split(request["target"])
        if not file.exists():
            raise Unjudged(f"there is no file {file}", f"looked in {Path.cwd()}" if not file.is_absolute() else "")
        if not file.is_file():
            raise Unjudged(f"{file} is a folder, not a file", "")
        if file.suffix == ".ipynb":
            raise Unjudged(f"{file} is a notebook", "in a notebook, call the check in a cell")
        report(IMPORTING)
        module = load(file)
        label, candidate = find(module, file, name, request["exercise"])
        report(JUDGING)
        return _judge(candidate, label, request)
    except Unjudged as why:
        return Verdict(False, why.args[0], why.args[1], judged=False)


def split(target: str) -> tuple[Path, str | None]:
    """File and name of a target: at the last colon, where a name follows."""
    file, colon, name = target.rpartition(":")
    if colon and file and all(part.isidentifier() for part in name.split(".")) and not Path(target).is_file():
        return Path(file), name
    return Path(target), None


def load(file: Path) -> ModuleType:
    """Import a file as `python FILE.py` would find it, but not as __main__."""
    path = file.absolute()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem not in sys.modules else f"solution_{path.stem}"
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        where = f"{Path(error.filename or file).name}, line {error.lineno}"
        source = (error.text or "").strip()
        raise Unjudged(f"{where} is not Python: {error.msg}", source[: words.LONGEST]) from None
    except BaseException as error:
        said, _ = words.raised(error, load)
        lines = [x for x in traceback.extract_tb(error.__traceback__) if x.filename == str(path)]
        where = f"line {lines[-1].lineno} of {file.name}: {lines[-1].line}" if lines else ""
        raise Unjudged(f"{file.name} cannot be imported, it raises {said}", where) from None
    return module


def find(module: ModuleType, file: Path, name: str | None, exercise: str | None = None) -> tuple[str, Any]:
    """The name and the object to judge."""
    there = candidates(module)
    known = f"there are {', '.join(there)}" if there else "no function, class or module is defined there"
    if name is None:
        if exercise in there:
            return exercise, there[exercise]
        if len(there) != 1:
            which = "which of them is to be judged" if there else "there is nothing to judge"
            raise Unjudged(f"{which} in {file.name}", f"{known}: write {file}:NAME" if there else known)
        return next(iter(there.items()))
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except Exception:
            raise Unjudged(f"{file.name} has no {name}", known) from None
    if not callable(found):
        raise Unjudged(f"{name} cannot be called", f"it is of type {type(found).__name__}; {known}")
    return name, found


def candidates(module: ModuleType) -> dict[str, Any]:
    """What a file defines that can be judged: functions, classes and objects of nn.Module."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (
            isinstance(value, nn.Module)
            or (isinstance(value, FunctionType) and value.__module__ == module.__name__)
            or (isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__)
        )
    }


def _judge(candidate: Any, label: str, request: dict[str, Any]) -> Verdict:
    if request["exercise"] is not None:
        from mha_course.checks import check, tasks

        if request["exercise"] not in tasks():
            raise Unjudged(f"no exercise is named {request['exercise']!r}", f"there are {', '.join(tasks())}")
        return check(request["exercise"], candidate)
    given = {key: value for key, value in request["options"].items() if value is not None}
    judge = _diagnose()
    if judge is None:
        raise Unjudged("only solutions of exercises can be judged", "name one with --exercise")
    verdict: Verdict = judge(candidate, seconds=request["seconds"], **given)
    return verdict


def _diagnose() -> Callable[..., Any] | None:
    from mha_course import checks

    return getattr(checks, "diagnose", None)
