"""Real JupyterLab, driven in headless Chromium: what a learner sees."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.notebook import PATIENCE

TOKEN = "test-token"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# JupyterLab draws a notebook's cells when the browser says that it is idle. A headless Chromium sometimes never
# does; then 5 cells are drawn every 3 seconds, after a timeout, and the last ones come too late for a test.
IDLE = """window.requestIdleCallback = work => setTimeout(() => {
    const end = performance.now() + 50;
    work({didTimeout: false, timeRemaining: () => Math.max(0, end - performance.now())});
});
window.cancelIdleCallback = clearTimeout;"""


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
    """JupyterLab over a folder of its own, with no settings but the course's own."""
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
def page(lab: Lab) -> Iterator[Page]:
    """JupyterLab in Debian's Chromium, in single-document mode; Playwright's own download is never used.

    One page for all notebooks: loading JupyterLab takes 4 seconds, opening a notebook in it half a second.
    """
    assert CHROMIUM is not None, "the browser tests need Chromium (Debian: apt install chromium)"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        expect.set_options(timeout=PATIENCE * 1000)
        page = chromium.new_page()
        page.add_init_script(IDLE)
        page.goto(f"{lab.url}/doc?reset&token={TOKEN}")
        page.wait_for_function("window.jupyterapp !== undefined", timeout=60_000)
        page.evaluate("async () => { await window.jupyterapp.restored; }")
        yield page
        chromium.close()
