"""The tables of lessons in README.md and in notebook 00 say what the notebooks' metadata says."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| \[(\d\d) (.+)\]\((?:notebooks/)?([^)]+)\) \| (\d+) \| (\d+) \| (\d+) \|$", re.M)


def stored(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def expected() -> list[tuple[str, ...]]:
    rows = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = stored(path)
        title = "".join(notebook["cells"][0]["source"]).splitlines()[0].removeprefix("# ")
        limits = notebook["metadata"]["mha_course"]
        numbers = (str(limits[key]) for key in ("minutes", "seconds", "megabytes"))
        rows.append((path.name[:2], title, path.name, *numbers))
    return rows


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def first_lesson() -> str:
    cells = stored(ROOT / "notebooks" / "00_start_here.ipynb")["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("text", [readme, first_lesson])
def test_table_of_lessons(text: object) -> None:
    assert ROW.findall(text()) == expected()
