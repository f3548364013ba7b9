"""Every notebook in JupyterLab: read without a kernel, run, its explorers moved, saved, closed, opened again.

The tests of one notebook share one opening and one Run All, and follow it in the order of this file.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from mha_course import explorers
from mha_course.explorers.base import Slider
from tests.browser import fit, raises
from tests.browser.conftest import Lab
from tests.browser.notebook import Notebook, explorer_calls
from tests.browser.panel import Expected, Panel

PATHS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
# Each explorer is driven in one notebook, the last one that shows it; in the others only a little.
EXPLORERS = {source: path.name for path in PATHS for source in explorer_calls(path)}
ONE = "02_geometry.ipynb"  # for what need not be tried in each notebook
RAISING = f"{Path(raises.__file__).read_text(encoding='utf-8')}\n\nraises_at_2()"

of_every_explorer = pytest.mark.parametrize(
    ("stored", "source"),
    [(name, source) for source, name in EXPLORERS.items()],
    indirect=["stored"],
    scope="module",
)
of_one_notebook = pytest.mark.parametrize("stored", [ONE], indirect=True)


@pytest.fixture(scope="module", params=[path.name for path in PATHS])
def stored(request: pytest.FixtureRequest, page: Page, lab: Lab) -> Iterator[Notebook]:
    """A fresh copy of a notebook, opened and not run."""
    name = request.param
    shutil.copy(PATHS[0].parent / name, lab.folder / name)
    notebook = Notebook(page, lab.folder / name)
    yield notebook
    notebook.close()


@pytest.fixture(scope="module")
def lesson(stored: Notebook) -> Notebook:
    """The notebook after Run All."""
    stored.run_all()
    return stored


def expected_of(source: str) -> Expected:
    """What the explorer has to show that a cell's one-line source builds."""
    return Expected(eval(source, {"explorers": explorers}))


def picture(output: Locator) -> None:
    """Wait for the picture of an explorer's output."""
    image = output.locator("img").first
    expect(image).to_be_visible()
    assert image.evaluate("async image => { await image.decode(); return image.naturalWidth > 100; }")


def test_reads_without_a_kernel(stored: Notebook) -> None:
    for source in explorer_calls(stored.path):
        output = stored.output_of(source)
        picture(output)
        expect(output.locator(".jupyter-widgets")).to_have_count(0)
    assert stored.problems() == []


def test_runs(lesson: Notebook) -> None:
    assert lesson.problems() == []
    for source in explorer_calls(lesson.path):
        Panel(lesson, source).expect(expected_of(source).start, "Run All")


@of_every_explorer
def test_every_control_by_mouse_and_by_keyboard(lesson: Notebook, source: str) -> None:
    expected, panel = expected_of(source), Panel(lesson, source)
    for control in expected.controls:
        for move in (panel.by_mouse, panel.by_keyboard):
            value = move(control)
            panel.expect_value(control, value)
            panel.expect(expected.after(control, value), f"{control.label} {value} {move.__name__}")
            panel.put_back(control)
            panel.expect_value(control, control.start)
            panel.expect(expected.start, f"{control.label} put back")
    assert lesson.problems() == []


@of_every_explorer
def test_sixty_fast_moves_end_at_the_last_value(lesson: Notebook, source: str) -> None:
    lesson.run(source)  # its first state, whatever the test before left
    expected, panel = expected_of(source), Panel(lesson, source)
    slider = next(control for control in expected.controls if isinstance(control, Slider))
    value = panel.burst(slider, "+-+" * 20)
    panel.expect_lasting(expected.after(slider, value), "sixty moves")
    assert panel.redraws() <= 5  # of sixty: what came while the kernel was busy was not queued
    assert lesson.problems() == []


def test_nothing_is_cut_or_covered(lesson: Notebook) -> None:
    for theme, width in (("Light", 1400), ("Dark", 1400), ("Dark", 900), ("Light", 900)):
        lesson.look(theme, width)
        assert fit.too_wide(lesson.page) == [], (theme, width)
        for source in explorer_calls(lesson.path):
            assert fit.faults(Panel(lesson, source).root) == [], (source, theme, width)
    assert lesson.problems() == []


@of_one_notebook
def test_a_prediction_by_keyboard(lesson: Notebook) -> None:
    question = next(source for source in lesson.sources() if source.startswith("guess_key = predict("))
    option = lesson.output_of(question).get_by_role("button", name="A wins")
    option.focus()
    option.press("Enter")
    answer = next(s for s in lesson.sources() if s.rstrip().splitlines()[-1].startswith("guess_key.reveal("))
    output = lesson.output_of(answer)
    expect(output).to_contain_text("no choice made. Measured: 0.62")
    lesson.run(answer)
    expect(output).to_contain_text("about 0.6: A wins. Measured: 0.62")


@of_one_notebook
def test_an_error_is_shown_in_the_panel(lesson: Notebook) -> None:
    lesson.add(RAISING)
    lesson.run(RAISING)
    assert lesson.problems() == []
    expected, panel = Expected(raises.raises_at_2()), Panel(lesson, RAISING)
    (slider,) = expected.controls
    panel.expect(expected.start, "running the cell")

    assert panel.by_keyboard(slider) == 2
    failed = expected.start._replace(error="This state could not be drawn. ValueError: no <x> & 2")
    panel.expect_lasting(failed, "the x 2")
    alert = panel.root.get_by_role("alert")
    expect(alert).to_be_visible()
    expect(alert).to_have_css("border-left-color", "rgb(213, 94, 0)")

    panel.page.keyboard.press("ArrowRight")
    panel.expect(expected.after(slider, 3), "the x 3")
    assert lesson.problems() == []
    lesson.delete(RAISING)


@of_one_notebook
def test_restart_and_run_all(lesson: Notebook) -> None:
    calls = explorer_calls(lesson.path)
    lesson.run(calls[0])
    lesson.restart_and_run_all()
    for source in calls:
        expected, panel = expected_of(source), Panel(lesson, source)
        panel.expect(expected.start, "a restart and Run All")
        value = panel.by_keyboard(expected.controls[0])
        panel.expect(expected.after(expected.controls[0], value), f"{expected.controls[0].label} {value}")
    assert lesson.problems() == []


def test_saved_closed_and_opened_again(lesson: Notebook) -> None:
    states = {}
    for source in explorer_calls(lesson.path):
        lesson.run(source)
        expected, panel = expected_of(source), Panel(lesson, source)
        value = panel.by_keyboard(expected.controls[0])
        states[source] = expected.after(expected.controls[0], value)
        panel.expect(states[source], f"{expected.controls[0].label} {value}")
    lesson.command("docmanager:save")
    assert lesson.problems() == []
    lesson.close()

    lesson.open()
    for source, state in states.items():
        Panel(lesson, source).expect(state, "saving, closing and opening again")
    assert lesson.problems() == []
