"""One notebook, open in JupyterLab, and what a learner does with it."""

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page

MINUTES = 3  # how long a notebook may take to run; beyond that it hangs
PATIENCE = 20  # seconds that the page may take to follow, on a busy machine

READY = """() => {
    const session = window.jupyterapp.shell.currentWidget?.sessionContext;
    return session?.isReady && session.session?.kernel?.connectionStatus === 'connected';
}"""

EXECUTE = """async ([name, args, button, minutes]) => {
    const late = new Promise((_, fail) => setTimeout(fail, minutes * 60_000, new Error(`${name} hangs`)));
    const done = window.jupyterapp.commands.execute(name, args);
    while (button && !document.querySelector(button)) await Promise.race([late, new Promise(requestAnimationFrame)]);
    if (button) document.querySelector(button).click();
    await Promise.race([late, done]);
}"""


def explorer_calls(path: Path) -> list[str]:
    """The one-line sources of the cells that show an explorer."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [source for source in sources if source.startswith("explorers.")]


class Notebook:
    """One notebook, open in JupyterLab."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page, self.path = page, path
        self._problems: list[str] = []
        page.set_default_timeout(PATIENCE * 1000)
        page.set_viewport_size({"width": 1400, "height": 1000})
        self.open()

    def open(self) -> None:
        """Open the notebook and wait until it is drawn and its kernel can be talked to."""
        self.page.on("console", self._note)
        self.page.on("pageerror", self._note)
        self.command("docmanager:open", path=self.path.name)
        self.page.wait_for_selector(".jp-NotebookPanel .jp-RenderedMarkdown h1")
        self.page.wait_for_function(READY, polling=50)

    def _note(self, said: Any) -> None:
        text = getattr(said, "text", None) or str(said)
        # "Canceled future": JupyterLab's own requests that a kernel's end leaves unanswered
        if getattr(said, "type", "error") == "error" and "Canceled future for" not in text:
            self._problems.append(text)

    def close(self) -> None:
        """Shut the kernel down and close the notebook, without saving."""
        self.page.remove_listener("console", self._note)
        self.page.remove_listener("pageerror", self._note)
        self.page.evaluate(
            """async () => {
                const panel = window.jupyterapp.shell.currentWidget;
                await panel.sessionContext.shutdown();
                panel.dispose();
            }"""
        )

    def command(self, name: str, *, then_click: str = "", **arguments: object) -> None:
        """Run one of JupyterLab's commands, as its menus do, clicking a button that it asks for."""
        self.page.evaluate(EXECUTE, [name, arguments, then_click, MINUTES])

    def look(self, theme: str, width: int) -> None:
        """Change to the Light or the Dark theme and to a width in pixels."""
        self.command("apputils:change-theme", theme=f"JupyterLab {theme}")
        self.page.wait_for_selector(f"body[data-jp-theme-name='JupyterLab {theme}']", state="attached")
        self.page.set_viewport_size({"width": width, "height": 1000})
        self.page.wait_for_timeout(300)

    def run_all(self) -> None:
        """Run every cell, as the menu does, and wait for the last one."""
        self.command("notebook:run-all-cells")
        assert None not in self.counts(), f"not every cell ran: {self.problems()}"

    def restart_and_run_all(self) -> None:
        """Restart the kernel, saying yes to JupyterLab's question, and run every cell."""
        before = self.counts()
        self.command("notebook:restart-run-all", then_click=".jp-Dialog .jp-mod-accept")
        once = list(range(1, len(before) + 1))
        assert before != once, "nothing would tell a new kernel from the old one"
        assert self.counts() == once, f"not every cell ran once in a new kernel: {self.problems()}"

    def counts(self) -> list[int | None]:
        """The execution count of each code cell."""
        counts: list[int | None] = self.page.evaluate(
            """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
                .filter(cell => cell.type === 'code').map(cell => cell.executionCount)"""
        )
        return counts

    def sources(self) -> list[str]:
        """The sources of all cells."""
        sources: list[str] = self.page.evaluate(
            """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
                .map(cell => cell.sharedModel.getSource())"""
        )
        return sources

    def go_to(self, source: str) -> Locator:
        """Make the cell with exactly this source the active one, at the top of what is seen; return it."""
        index = self.sources().index(source)
        self.page.evaluate("index => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = index; }", index)
        cell = self.page.locator(f".jp-Cell[data-windowed-list-index='{index}']")
        cell.evaluate("cell => cell.scrollIntoView()")
        return cell

    def output_of(self, source: str) -> Locator:
        """Go to the cell with exactly this source and return its output area."""
        return self.go_to(source).locator(".jp-Cell-outputWrapper")

    def run(self, source: str) -> None:
        """Run the cell with exactly this source."""
        self.go_to(source)
        self.command("notebook:run-cell")

    def add(self, source: str) -> None:
        """Add a code cell at the end."""
        self.page.evaluate(
            """source => window.jupyterapp.shell.currentWidget.content.model.sharedModel
                .addCell({cell_type: 'code', source})""",
            source,
        )

    def delete(self, source: str) -> None:
        """Delete the cell with exactly this source."""
        self.go_to(source)
        self.command("notebook:delete-cell")

    def problems(self) -> list[str]:
        """The errors in the cells' outputs, and those that the console showed since last asked."""
        errors: list[str] = self.page.evaluate(
            """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
                .filter(cell => cell.type === 'code')
                .flatMap(cell => cell.outputs.toJSON())
                .filter(output => output.output_type === 'error')
                .map(output => `${output.ename}: ${output.evalue}`)"""
        )
        console, self._problems = self._problems, []
        return errors + console
