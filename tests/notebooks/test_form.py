"""The anatomy of a lesson: what each notebook must have, and how long it may be."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.notebooks.store import code_cells, compared

FOLDER = Path(__file__).parents[2] / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
EMOJI = re.compile("[\U0001f300-\U0001faff\u2705\u274c\u26a0]")

every_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def texts(path: Path) -> list[str]:
    return [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]


def prose(path: Path) -> str:
    return "\n\n".join(texts(path))


def lines(source: str) -> list[str]:
    return [line for line in source.splitlines() if line.strip()]


@every_notebook
def test_one_title_and_it_is_a_question(path: Path) -> None:
    titles = re.findall(r"^# .+$", prose(path), re.M)
    assert len(titles) == 1
    assert texts(path)[0].startswith(titles[0])
    assert titles[0].endswith("?")


@every_notebook
def test_length(path: Path) -> None:
    assert len(prose(path).split()) <= 4000
    cells = code_cells(read(path))
    assert 12 <= len(cells) <= 36
    counts = [len(lines(cell.source)) for cell in cells]
    assert max(counts) <= 15
    assert sorted(counts)[len(counts) // 2] <= 6  # as a rule


@every_notebook
def test_parts_stand_in_their_order(path: Path) -> None:
    parts = (
        *("**You will** ", "**You will be able to** ", "**You need** ", "**Skip this notebook if"),
        *("xercise", "## What to keep", "**Limits.** ", "**Sources.** ", "**Next:** "),
    )
    places = [prose(path).find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    assert places == sorted(places)


@every_notebook
def test_the_first_code_cell_imports_seeds_and_shows_the_cover(path: Path) -> None:
    first, *others = code_cells(read(path))
    assert "start(seed=" in first.source
    assert "show(" in first.source
    assert "keep-output" in first.metadata.tags
    assert not any(re.search(r"^(import|from) ", cell.source, re.M) for cell in others)


@every_notebook
def test_each_prediction_is_revealed_once_and_later(path: Path) -> None:
    sources = [cell.source for cell in code_cells(read(path))]
    asked = {name: i for i, s in enumerate(sources) for name in re.findall(r"^(guess_\w+) = predict\(", s, re.M)}
    revealed = {name: i for i, s in enumerate(sources) for name in re.findall(r"^(guess_\w+)\.reveal\(", s, re.M)}
    assert len(asked) >= 2
    assert asked.keys() == revealed.keys()
    assert all(asked[name] < revealed[name] for name in asked)
    assert len(asked) == sum(source.count("= predict(") for source in sources)


@every_notebook
def test_exercises_are_stubs_with_a_check(path: Path) -> None:
    stubs = [cell.source for cell in code_cells(read(path)) if "raise NotImplementedError" in cell.source]
    assert stubs
    assert all(re.search(r"^check\(", stub, re.M) for stub in stubs)


@every_notebook
def test_pictures_have_a_description(path: Path) -> None:
    outputs = [output for cell in code_cells(read(path)) for output in cell.outputs]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    for picture in pictures:
        assert len(picture.metadata["image/png"]["alt"]) >= 30
    assert not any(re.search(r"!\[\s*\]\(", text) for text in texts(path))


@every_notebook
def test_links_resolve(path: Path) -> None:
    links = LINK.findall(prose(path))
    assert links
    for link in links:
        target, _, anchor = link.partition("#")
        assert not target.startswith(("http:", "https:")), "sources are named, not linked"
        assert (FOLDER / target).is_file(), link
        assert not anchor, link


@every_notebook
def test_tone(path: Path) -> None:
    for text in texts(path):
        assert not EMOJI.search(text)
        assert not re.search(r"\w!(\s|$)", re.sub(r"`[^`]*`|\$[^$]*\$", "", text)), text


@every_notebook
def test_no_stored_warning(path: Path) -> None:
    for cell in code_cells(read(path)):
        for output in cell.outputs:
            assert output.get("name") != "stderr"
            assert "Warning:" not in output.get("text", "")


def test_no_timing_word_is_compared() -> None:
    for path in PATHS:
        for cell in code_cells(read(path)):
            said = "".join(output.get("text", "") for output in cell.outputs)
            assert not (compared(cell) and re.search(r"\d (ms|us|s|seconds)\b", said)), (path.name, said)
