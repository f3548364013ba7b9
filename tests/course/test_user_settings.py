"""What the user has set for pip, Python, pytest and Jupyter does not reach the course."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")

BACKEND = """
import alpha  # there only without build isolation
import shutil

def build_editable(folder, config_settings=None, metadata_directory=None):
    return shutil.copy({wheel!r}, folder).rpartition("/")[2]
"""


def write_wheel(folder, name):
    """An empty module as a wheel, version 1."""
    info = f"{name}-1.dist-info"
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return str(path)


@pytest.mark.parametrize("where", ["variables", "pip.conf"])
def test_an_install_goes_into_the_environment(course, folder, tmp_path, monkeypatch, where):
    elsewhere = tmp_path / "elsewhere"
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    write_wheel(mirror, "alpha")
    (folder / "requirements.txt").write_text("alpha==1\n")
    (folder / "backend.py").write_text(BACKEND.format(wheel=write_wheel(mirror, "beta")))
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["of-no-index"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "beta"\nversion = "1"\n'
    )
    conf = tmp_path / "pip.conf"
    conf.write_text("[install]\nuser = true\ndry-run = true\n" if where == "pip.conf" else "")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(conf))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(mirror))  # a mirror is honoured
    if where == "variables":
        for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONPATH", "PYTHONHOME"):
            monkeypatch.setenv(name, str(elsewhere))
        monkeypatch.setenv("PIP_USER", "1")
        monkeypatch.setenv("PIP_DRY_RUN", "1")
    course.ensure()
    subprocess.run([course.PYTHON, "-c", "import alpha, beta"], env=course.environment(), cwd=tmp_path, check=True)
    assert not elsewhere.exists()
    assert not Path(course.VENV, "tmp").exists()


@pytest.fixture
def real(ready):
    """The checkout with an environment whose python is the one that runs the tests."""
    Path(ready.PYTHON).write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    return ready


def test_pytest_is_told_nothing_else(real, folder, monkeypatch):
    (folder / "test_it.py").write_text("def test_it():\n    assert __debug__\n")
    variables = {
        "PYTHONOPTIMIZE": "1", "PYTHONSAFEPATH": "1", "PYTHONPATH": "elsewhere", "PYTHONWARNINGS": "error",
        "PYTEST_ADDOPTS": "--no-such-option", "PYTEST_PLUGINS": "no_such_plugin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not variables.keys() & real.environment().keys()
    command = [sys.executable, "course.py", "test", "-q", "--nbval", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("variable", ["JUPYTER_PATH", "JUPYTER_DATA_DIR"])
def test_python3_is_the_environments_kernel(real, tmp_path, monkeypatch, variable):
    spec = tmp_path / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/of/the/user"], "display_name": "mine", "language": "python"}))
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    program = (
        "import sys; sys.base_prefix = sys.prefix  # as where Jupyter does not see that this is an environment\n"
        "from jupyter_client.kernelspec import get_kernel_spec; print(get_kernel_spec('python3').argv[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=real.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() != "/of/the/user"


class Lab:
    """A real `course.py lab` in a home of its own."""

    def __init__(self, folder, home, *arguments, **variables):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "course.py", "lab", "--no-browser", f"--port={self.port}", *arguments]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
        self.log = home / "log"
        with self.log.open("w") as log:
            self.server = subprocess.Popen(
                command,
                cwd=folder,
                env=kept | {"HOME": str(home), "TMPDIR": str(home), **variables},
                stdout=log,
                stderr=log,
            )

    def __enter__(self):
        for _ in range(300):
            if self.server.poll() is not None or "token=" in self.log.read_text() or self.status("/api") != 0:
                break
            time.sleep(0.2)
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait(20)

    @property
    def token(self):
        return re.search(r"token=(\w+)", self.log.read_text())[1]

    def request(self, path, method="GET", body=None, token=None):
        headers = {"Authorization": f"token {token}"} if token else {}
        url = f"http://127.0.0.1:{self.port}{path}"
        return urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=20)

    def status(self, path):
        try:
            with self.request(path) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


@pytest.fixture
def home(tmp_path):
    """A home whose Jupyter is set to let everyone in, elsewhere."""
    config = tmp_path / "home" / ".jupyter"
    config.mkdir(parents=True)
    server = {"token": "", "password": "", "base_url": "/mine/", "preferred_dir": "/nowhere", "sock": "", "port": 1}
    settings = {"ServerApp": server, "IdentityProvider": {"token": ""}, "PasswordIdentityProvider": {"token": ""}}
    for name in ("jupyter_config", "jupyter_server_config", "jupyter_lab_config"):
        (config / f"{name}.json").write_text(json.dumps(settings))
    return config.parent


def hostile_jupyter(home, name):
    empty = home / "empty"
    empty.touch()
    return {
        "home": {},
        "token file": {"JUPYTER_TOKEN_FILE": str(empty)},
        "folders": {"JUPYTER_CONFIG_DIR": str(home / ".jupyter"), "JUPYTER_CONFIG_PATH": str(home / ".jupyter")},
    }[name]


@pytest.mark.parametrize("name", ["home", "token file", "folders"])
def test_lab_asks_for_its_token_whatever_the_user_set(real, folder, home, name):
    if name == "token file":
        shutil.rmtree(home / ".jupyter")
    with Lab(folder, home, **hostile_jupyter(home, name)) as lab:
        assert lab.status("/api/contents") == 403, lab.log.read_text()
        with lab.request("/api/contents", token=lab.token) as answer:
            assert sorted(entry["name"] for entry in json.load(answer)["content"]) == [
                "00_start.ipynb",
                "02_geometry.ipynb",
            ]


def test_lab_has_the_courses_settings_and_keeps_the_learners(real, folder, home):
    notification = "/lab/api/settings/@jupyterlab/apputils-extension:notification"
    themes = "/lab/api/settings/@jupyterlab/apputils-extension:themes"
    body = json.dumps({"raw": '{"theme": "JupyterLab Dark"}'}).encode()
    with Lab(folder, home) as lab:
        with lab.request(notification, token=lab.token) as answer:
            assert json.load(answer)["schema"]["properties"]["fetchNews"]["default"] == "false"
        lab.request(themes, "PUT", body, lab.token).close()
        lab.request("/api/terminals", token=lab.token).close()
        lab.request("/lsp/status", token=lab.token).close()
    with Lab(folder, home) as lab, lab.request(themes, token=lab.token) as answer:
        assert json.load(answer)["settings"] == {"theme": "JupyterLab Dark"}
    assert sorted(path.name for path in (home / ".jupyter").iterdir()) == [
        "jupyter_config.json",
        "jupyter_lab_config.json",
        "jupyter_server_config.json",
    ]


def test_the_systems_jupyter_config_is_not_read(ready, folder):
    Path(ready.PYTHON).write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "import jupyter_core.paths as p; print(p.jupyter_config_path())"\n'
    )
    done = subprocess.run([sys.executable, "course.py", "lab"], cwd=folder, capture_output=True, text=True, check=True)
    (only,) = json.loads(done.stdout.splitlines()[-1].replace("'", '"'))
    assert "jupyter-clean-cfg" in only
    Path(only).rmdir()
