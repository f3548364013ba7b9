"""An explorer's panel in the browser, and what it has to show."""

import hashlib
import re
import time
from typing import NamedTuple

from playwright.sync_api import Locator, expect

from mha_course import plots
from mha_course.explorers.base import Choice, Control, Explorer, Slider
from tests.browser.notebook import PATIENCE, Notebook

READ = """async panel => {
    const text = part => part?.textContent ?? '', image = panel.querySelector('img');
    const bytes = image?.src ? await (await fetch(image.src)).arrayBuffer() : new ArrayBuffer(0);
    const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
    return [
        [...panel.querySelectorAll('tr')].map(row => [...row.cells].map(text)),
        text(panel.querySelector('p')),
        [...hash].map(byte => byte.toString(16).padStart(2, '0')).join(''),
        text(panel.querySelector('[role=alert]')),
    ];
}"""

COUNT = """panel => {
    window.redraws = 0;
    const watch = new MutationObserver(() => { window.redraws += 1; });
    watch.observe(panel.querySelector('img'), {attributeFilter: ['src']});
}"""

BURST = """(handle, keys) => keys.forEach(key => handle.dispatchEvent(
    new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true})))"""


class Shown(NamedTuple):
    """What a panel shows in one state: its table, its sentence, the SHA-256 of its picture, its error."""

    rows: list[list[str]]
    sentence: str
    picture: str
    error: str = ""


class Expected:
    """What an explorer has to show, by its own pure functions and a figure of ours."""

    def __init__(self, explorer: Explorer) -> None:
        """Take the functions and the controls of an explorer, which is closed."""
        self.controls = explorer.specification
        self._start = {name: control.value for name, control in explorer.controls.items()}
        self._pure = explorer._compute, explorer._draw, explorer._readout
        self._figure = plots.blank(tuple(explorer._figure.get_size_inches()))
        self._painter = plots.Painter(self._figure)
        explorer.close()
        self.start = self._state()  # the figure is laid out with the first state, as the explorer's is

    def after(self, control: Control, value: float | str) -> Shown:
        """What is to be seen after one control has moved to another value: not what was to be seen before."""
        state = self._state(**{control.name: value})
        assert state != self.start, f"{control.label} {value}: nothing to be seen"
        return state

    def _state(self, **moved: float | str) -> Shown:
        compute, draw, readout = self._pure
        data = compute(**(self._start | moved))
        draw(self._figure, data)
        rows, sentence = readout(data)
        return Shown([list(row) for row in rows], sentence, hashlib.sha256(self._painter.png()).hexdigest())


class Panel:
    """An explorer's panel, as the output of the cell with exactly this source."""

    def __init__(self, notebook: Notebook, source: str) -> None:
        self.page = notebook.page
        self.root = notebook.output_of(source).locator(".jupyter-widgets").first

    def expect(self, state: Shown, after: str) -> None:
        """Wait until the panel shows exactly this state, after something was done."""
        end = time.monotonic() + PATIENCE
        while (seen := self.reads()) != state and time.monotonic() < end:
            self.page.wait_for_timeout(20)
        assert seen == state, f"after {after}"

    def expect_lasting(self, state: Shown, after: str) -> None:
        """Wait for this state, then see that nothing which was still on its way changes it."""
        self.expect(state, after)
        self.page.wait_for_timeout(500)
        assert self.reads() == state, f"half a second after {after}"

    def reads(self) -> Shown:
        """What the panel shows now."""
        return Shown(*self.root.evaluate(READ))

    def row(self, control: Control) -> Locator:
        """The row of a control, found by its label."""
        label = self.page.locator(".widget-label", has_text=re.compile(f"^{re.escape(control.label)}$"))
        return self.root.locator(".widget-gridbox > *").filter(has=label)

    def button(self, control: Choice, option: str) -> Locator:
        """The button of one option."""
        return self.row(control).get_by_role("button", name=option, exact=True)

    def by_mouse(self, control: Control) -> float | str:
        """Drag a slider to its end, or click another option; return the value that it must have now."""
        if isinstance(control, Choice):
            value = next(option for option in control.options if option != control.start)
            self.button(control, value).click()
            return value
        low, *_, high = control.values()
        end = low if control.start == high else high
        self.row(control).locator(".noUi-handle").hover()
        track = self.row(control).locator(".noUi-base").bounding_box()
        assert track is not None
        self.page.mouse.down()
        self.page.mouse.move(track["x"] + track["width"] * (end == high), track["y"] + track["height"] / 2, steps=5)
        self.page.mouse.up()
        return end

    def by_keyboard(self, control: Control) -> float | str:
        """Press an arrow key on a slider, or Enter on another option; return the value that it must have now."""
        if isinstance(control, Choice):
            value = next(option for option in reversed(control.options) if option != control.start)
            self.focus(self.button(control, value))
            self.page.keyboard.press("Enter")
            return value
        (key,), moved = _keys(control, "+")
        self.focus(self.row(control).locator(".noUi-handle"))
        self.page.keyboard.press(key)
        return moved

    def burst(self, slider: Slider, pattern: str) -> float:
        """Press many arrow keys on a slider at once; return the value that it must have in the end.

        Args:
            slider: to move, from its start.
            pattern: a key for each sign, + towards the slider's farther end, - back.
        """
        keys, value = _keys(slider, pattern)
        self.root.evaluate(COUNT)
        self.row(slider).locator(".noUi-handle").evaluate(BURST, keys)
        return value

    def redraws(self) -> int:
        """How often the picture has changed since the last burst began."""
        count: int = self.page.evaluate("window.redraws")
        return count

    def focus(self, part: Locator) -> None:
        """Put the keyboard's focus on a part that Tab can reach as well."""
        part.focus()
        assert part.evaluate("part => part.tabIndex >= 0 && document.activeElement === part")

    def put_back(self, control: Control) -> None:
        """Put a control back to its start: type a slider's number, click a choice's option."""
        if isinstance(control, Choice):
            self.button(control, control.start).click()
        else:
            number = self.row(control).locator(".widget-readout")
            number.fill(str(control.start))
            number.press("Enter")

    def expect_value(self, control: Control, value: float | str) -> None:
        """Wait until the control itself shows this value."""
        if isinstance(control, Slider):
            written = f"{value:z.{control.digits}f}".replace("-", "−")
            expect(self.row(control).locator(".widget-readout"), control.label).to_have_text(written)
        else:
            expect(self.row(control).locator("button.mod-active"), control.label).to_have_text([str(value)])


def _keys(slider: Slider, pattern: str) -> tuple[list[str], float]:
    """The arrow keys that a pattern of + and - means from the slider's start, and the value that they lead to."""
    values = slider.values()
    place = values.index(slider.start)
    up = place <= len(values) // 2
    keys = []
    for sign in pattern:
        step = 1 if up == (sign == "+") else -1
        keys.append("ArrowRight" if step == 1 else "ArrowLeft")
        place = min(max(place + step, 0), len(values) - 1)
    return keys, values[place]
