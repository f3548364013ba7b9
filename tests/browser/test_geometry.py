"""The explorer `geometry`, moved by mouse and keyboard: picture and numbers follow."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from mha_course.explorers import _geometry as geometry
from tests.browser.conftest import Lab, Notebook, take

START = {control.name: control.start for control in geometry.CONTROLS}


SOURCE = "explorers.geometry()"


@pytest.fixture(scope="module")
def notebook(lab: Lab, browser: Browser) -> Iterator[Notebook]:
    """The notebook of the explorer, run once for all tests."""
    take(lab, "02_geometry.ipynb")
    notebook = Notebook(browser.new_page(), lab, "02_geometry.ipynb")
    notebook.run_all()
    yield notebook
    assert notebook.errors() == []
    assert notebook.problems == []
    notebook.close(stop_kernel=True)


@pytest.fixture
def panel(notebook: Notebook) -> Locator:
    """The explorer's panel in its first state: its cell is run anew for each test."""
    notebook.run(SOURCE)
    panel = notebook.output_of(SOURCE).locator(".jupyter-widgets").first
    expect_weights(panel, weights())
    return panel


def weights(**moved: object) -> list[str]:
    """The weights of the three keys as the panel writes them."""
    state = geometry.compute(**(START | moved))
    return [row[-1] for row in geometry.readout(state).rows[1:]]


def expect_weights(panel: Locator, expected: list[str]) -> None:
    """Wait until the table shows these weights."""
    expect(panel.locator("tr td:last-child")).to_have_text(expected, timeout=5_000)


def handle(panel: Locator, label: str) -> Locator:
    """The handle of the slider with this label."""
    row = panel.locator(".widget-slider").filter(has_text=label)
    return row.locator(".noUi-handle")


def test_keyboard(panel: Locator) -> None:
    before = panel.locator("img").get_attribute("src")
    slider = handle(panel, "query angle")
    slider.focus()
    for _ in range(3):
        slider.press("ArrowRight")
    expect_weights(panel, weights(q_angle=15))
    assert panel.locator("img").get_attribute("src") != before


def test_mouse(panel: Locator) -> None:
    slider = handle(panel, "temperature")
    track = panel.locator(".widget-slider").filter(has_text="temperature").locator(".noUi-base")
    box = track.bounding_box()
    slider.hover()
    panel.page.mouse.down()
    panel.page.mouse.move(box["x"] + box["width"], box["y"] + box["height"] / 2, steps=10)
    panel.page.mouse.up()
    expect_weights(panel, weights(temperature=5))


def test_choice_by_keyboard(panel: Locator) -> None:
    before = panel.locator("img").get_attribute("src")
    button = panel.get_by_role("button", name="B", exact=True)
    button.focus()
    button.press("Enter")
    expect(panel.locator("img")).not_to_have_attribute("src", before, timeout=5_000)
    expect_weights(panel, weights(guides="B"))


def test_sixty_fast_moves_end_at_the_last_value(panel: Locator) -> None:
    slider = handle(panel, "key B angle")
    slider.focus()
    for _ in range(30):
        slider.press("ArrowRight")
    for _ in range(30):
        slider.press("ArrowLeft")
    slider.press("ArrowLeft")
    expect_weights(panel, weights(b_angle=START["b_angle"] - 5))
    panel.page.wait_for_timeout(500)  # nothing that was queued may arrive later
    expect_weights(panel, weights(b_angle=START["b_angle"] - 5))


def test_task_can_be_solved(panel: Locator) -> None:
    expect(panel).to_contain_text("not solved")
    slider = handle(panel, "query length")
    slider.focus()
    for _ in range(10):
        slider.press("ArrowLeft")
    expect(panel).to_contain_text("A vector of length 0 has no direction")
