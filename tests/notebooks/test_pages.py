"""What a reader gets without a kernel: the HTML export shows every picture, with its description."""

import json
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter

PATHS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


class Page(HTMLParser):
    """Counts the pictures that are part of the page itself, and keeps its text."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures, self.text = 0, ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        source = dict(attrs).get("src") or ""
        self.pictures += tag == "img" and source.startswith("data:image/png;base64,")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_html_export_shows_every_picture(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    captions = [o.data["text/plain"].strip() for o in outputs if "text/markdown" in o.get("data", {})]
    html, _ = HTMLExporter().from_notebook_node(notebook)
    page = Page()
    page.feed(html)
    assert page.pictures == len(pictures) > 0
    for caption in captions:
        assert caption in page.text
    assert "model not found" not in page.text


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_every_explorer_has_a_stored_picture(path: Path) -> None:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if "".join(cell["source"]).startswith("explorers."):
            assert any("image/png" in output.get("data", {}) for output in cell["outputs"])
            assert "keep-output" in cell["metadata"]["tags"]
