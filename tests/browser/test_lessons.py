"""Every notebook in JupyterLab: read without a kernel, run, saved, closed and opened again."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

NAMES = sorted(path.name for path in (Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
PICTURE_IS_THERE = "image => image.complete && image.naturalWidth > 100"


def explorer_calls(path: Path) -> list[str]:
    """The one-line sources of the cells that show an explorer."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [source for source in sources if source.startswith("explorers.")]


def picture(output: Locator) -> Locator:
    """The picture of an explorer's output, once it is loaded."""
    image = output.locator("img").first
    expect(image).to_be_visible(timeout=10_000)
    assert image.evaluate(PICTURE_IS_THERE)
    return image


@pytest.mark.parametrize("name", NAMES)
def test_reads_without_a_kernel(open_notebook: Callable, name: str) -> None:
    notebook = open_notebook(name)
    for source in explorer_calls(notebook.path):
        picture(notebook.output_of(source))
    assert notebook.problems == []


@pytest.mark.parametrize("name", NAMES)
def test_runs_and_keeps_its_pictures(open_notebook: Callable, name: str) -> None:
    notebook = open_notebook(name)
    notebook.run_all()
    assert notebook.errors() == []
    for source in explorer_calls(notebook.path):
        image = picture(notebook.output_of(source).locator(".jupyter-widgets"))
        before = image.get_attribute("src")
        handle = notebook.output_of(source).locator(".noUi-handle").first
        handle.focus()
        handle.press("ArrowRight")
        expect(image).not_to_have_attribute("src", before, timeout=5_000)
    notebook.command("docmanager:save")
    assert notebook.problems == []
    notebook.close(stop_kernel=True)

    again = open_notebook(name, again=True)
    for source in explorer_calls(again.path):
        output = again.output_of(source)
        picture(output)
        expect(output).not_to_contain_text("model not found")
        expect(output).not_to_contain_text("Error")
    assert again.problems == []


def test_explorers_fit(open_notebook: Callable) -> None:
    notebook = open_notebook("02_geometry.ipynb")
    notebook.run_all()
    for theme, width in (("Light", 1400), ("Dark", 1400), ("Dark", 900), ("Light", 900)):
        notebook.look(theme, width)
        panel = notebook.output_of("explorers.geometry()").locator(".jupyter-widgets").first
        assert panel.evaluate("panel => panel.scrollWidth <= panel.clientWidth + 1")
        inside = panel.bounding_box()
        parts = panel.locator("img, button, table, .noUi-target").all()
        assert len(parts) >= 10
        for part in parts:
            box = part.bounding_box()
            assert box["x"] >= inside["x"] - 1
            assert box["x"] + box["width"] <= inside["x"] + inside["width"] + 1
        for label in panel.locator(".widget-label").all():
            assert label.evaluate("label => label.scrollWidth <= label.clientWidth"), label.inner_text()


def test_a_prediction_by_keyboard(open_notebook: Callable) -> None:
    notebook = open_notebook("02_geometry.ipynb")
    notebook.run_all()
    source = next(s for s in notebook.sources() if s.startswith("guess_key = predict("))
    option = notebook.output_of(source).get_by_role("button", name="A wins")
    option.focus()
    option.press("Enter")
    answer = next(s for s in notebook.sources() if s.rstrip().splitlines()[-1].startswith("guess_key.reveal("))
    output = notebook.output_of(answer)
    expect(output).to_contain_text("no choice made. Measured: 0.62")
    notebook.run(answer)
    expect(output).to_contain_text("about 0.6: A wins. Measured: 0.62")
