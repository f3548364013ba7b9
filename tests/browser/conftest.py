"""Real JupyterLab, driven in headless Chromium: what a learner sees."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

ROOT = Path(__file__).parents[2]
TOKEN = "test-token"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave these tests out where no Chromium is; in CI its absence is an error instead."""
    here = [item for item in items if Path(item.fspath).is_relative_to(Path(__file__).parent)]
    for item in here:
        item.add_marker(pytest.mark.browser)
        if CHROMIUM is None and "CI" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="no Chromium on this machine"))


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its address and the folder that it serves."""

    url: str
    folder: Path


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab over a copy of notebooks/, with no settings but the course's own."""
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "notebooks"
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {f"JUPYTER_{kind}_DIR": str(home / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--expose-app-in-browser"),
        *(f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={TOKEN}"),
        *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
        f"--ServerApp.allow_root={hasattr(os, 'geteuid') and os.geteuid() == 0}",
        f"--LabApp.workspaces_dir={home / 'workspaces'}",
        f"--LabApp.user_settings_dir={home / 'settings'}",
    ]
    log = (home / "log").open("w")
    server = subprocess.Popen(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=os.environ | own | {"JUPYTER_PREFER_ENV_PATH": "1"},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{url}/api/status?token={TOKEN}", server, home / "log")
        yield Lab(url, folder)
    finally:
        server.terminate()
        server.wait(20)
        log.close()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; Playwright's own download is never used."""
    assert CHROMIUM is not None, "the browser tests need Chromium (Debian: apt install chromium)"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield chromium
        chromium.close()


class Notebook:
    """One notebook, open in JupyterLab."""

    def __init__(self, page: Page, lab: Lab, name: str) -> None:
        """Open the notebook alone, in single-document mode, and wait until it is drawn."""
        self.page, self.lab, self.name = page, lab, name
        self.problems: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        page.set_viewport_size({"width": 1400, "height": 1000})
        page.goto(f"{lab.url}/doc/tree/{name}?reset&token={TOKEN}")
        page.wait_for_function("window.jupyterapp !== undefined", timeout=60_000)
        page.evaluate("async () => { await window.jupyterapp.restored; }")
        page.wait_for_selector(".jp-Notebook .jp-RenderedMarkdown h1", timeout=60_000)

    def _note(self, message: object) -> None:
        if message.type == "error":  # type: ignore[attr-defined]
            self.problems.append(f"console: {message.text}")  # type: ignore[attr-defined]

    def command(self, name: str, arguments: dict[str, object] | None = None) -> None:
        """Run one of JupyterLab's commands, as its menus do."""
        self.page.evaluate(
            "async ([name, args]) => { await window.jupyterapp.commands.execute(name, args); }",
            [name, arguments or {}],
        )

    def look(self, theme: str, width: int) -> None:
        """Change to the Light or the Dark theme and to a width in pixels."""
        self.command("apputils:change-theme", {"theme": f"JupyterLab {theme}"})
        self.page.set_viewport_size({"width": width, "height": 1000})
        self.page.wait_for_timeout(500)

    def run_all(self) -> None:
        """Run every cell, as the menu does once a kernel is there, and wait for the last one."""
        self.page.set_default_timeout(180_000)
        self.page.wait_for_function(
            """() => {
                const session = window.jupyterapp.shell.currentWidget.sessionContext;
                return session.isReady && session.session?.kernel?.connectionStatus === 'connected';
            }""",
            polling=100,
        )
        self.command("notebook:run-all-cells")
        not_run: list[int] = self.page.evaluate(
            """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
                .map((cell, index) => [cell, index])
                .filter(([cell]) => cell.type === 'code' && cell.executionCount === null)
                .map(([cell, index]) => index)"""
        )
        assert not_run == [], f"cells that did not run: {not_run}"

    @property
    def path(self) -> Path:
        """The notebook's file."""
        return self.lab.folder / self.name

    def sources(self) -> list[str]:
        """The sources of all cells."""
        sources: list[str] = self.page.evaluate(
            """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
                .map(cell => cell.sharedModel.getSource())"""
        )
        return sources

    def go_to(self, source: str) -> int:
        """Make the cell with exactly this source the active one, in sight; return its index."""
        index = self.sources().index(source)
        self.page.evaluate(
            """async index => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                notebook.activeCellIndex = index;
                await notebook.scrollToItem(index, 'start');
            }""",
            index,
        )
        return index

    def output_of(self, source: str) -> Locator:
        """Scroll to the cell with exactly this source and return its output area."""
        index = self.go_to(source)
        cell = self.page.locator(f".jp-Cell[data-windowed-list-index='{index}']")
        return cell.locator(".jp-Cell-outputWrapper")

    def run(self, source: str) -> None:
        """Run the cell with exactly this source."""
        self.go_to(source)
        self.command("notebook:run-cell")

    def errors(self) -> list[str]:
        """Names and messages of the errors in the cells' outputs."""
        errors: list[str] = self.page.evaluate(
            """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
                .filter(cell => cell.type === 'code')
                .flatMap(cell => cell.outputs.toJSON())
                .filter(output => output.output_type === 'error')
                .map(output => `${output.ename}: ${output.evalue}`)"""
        )
        return errors

    def close(self, *, stop_kernel: bool) -> None:
        """Close the page, and the kernel as well if asked."""
        if stop_kernel:
            self.page.evaluate(
                """async () => {
                    await window.jupyterapp.shell.currentWidget.sessionContext.shutdown();
                }"""
            )
        self.page.close()


def take(lab: Lab, name: str) -> None:
    """Put a fresh copy of a notebook into the folder that JupyterLab serves."""
    shutil.copy(ROOT / "notebooks" / name, lab.folder / name)


@pytest.fixture
def open_notebook(lab: Lab, browser: Browser) -> Iterator[Callable[..., Notebook]]:
    """A function that opens a fresh copy of a notebook, or the one that is there again."""
    opened: list[Notebook] = []

    def open_one(name: str, *, again: bool = False) -> Notebook:
        if not again:
            take(lab, name)
        opened.append(Notebook(browser.new_page(), lab, name))
        return opened[-1]

    yield open_one
    for notebook in opened:
        if not notebook.page.is_closed():
            notebook.close(stop_kernel=True)
