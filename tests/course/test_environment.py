"""The environment is finished or made again; what is missing is said in one line."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.course.checkout import load

MINOR = "{}.{}".format(*sys.version_info)
INSTALL = ["-r", "--no-deps", "check"]


def test_first_call_makes_it_and_the_second_does_nothing(course, pip, capsys):
    course.ensure()
    assert [next(word for word in ("venv", *INSTALL) if word in call.split()) for call in pip.calls] == [
        "venv",
        *INSTALL,
    ]
    assert capsys.readouterr().out.startswith("making the environment in .venv, once")
    pip.calls.clear()
    course.ensure()
    assert pip.calls == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("stop", INSTALL)
def test_an_interrupted_install_is_made_anew(course, pip, capsys, stop):
    pip.fail = stop
    with pytest.raises(course.Fail, match="stopped"):
        course.ensure()
    assert course.stale() == ("an install in .venv was not finished: making it anew", True)
    assert not Path(course.VENV, "tmp").exists()  # pip's leftovers
    pip.fail = None
    course.ensure()
    assert not Path(course.VENV, "tmp").exists()
    assert course.stale() is None
    assert pip.stamped == [False] * len(pip.stamped)  # the stamp came after every step
    assert "not finished" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml", "mha_course/jupyterlab.json"])
def test_a_pull_that_changes_what_it_is_made_from_updates_it(course, pip, folder, name):
    course.ensure()
    pip.calls.clear(), pip.stamped.clear()
    (folder / name).write_text("changed==1\n")
    course.ensure()
    assert not any("venv" in call.split() for call in pip.calls)
    assert len(pip.calls) == 3
    assert not any(pip.stamped)  # the old stamp went first, so an interruption is seen
    assert course.stale() is None


def test_another_recipe_updates_it(course, pip):
    course.ensure()
    course.RECIPE += 1
    assert course.stale() == ("the requirements changed: bringing .venv up to date", False)


def test_a_moved_checkout_is_made_anew(course, pip, folder):
    course.ensure()
    moved = folder.rename(folder.with_name("moved"))
    assert load(moved).stale() == ("the folder was moved: making .venv anew", True)


def test_another_python_is_made_anew(course, pip, monkeypatch):
    course.ensure()
    monkeypatch.setattr(course.sys, "version_info", (3, 99, 1))
    assert course.stale() == (f"this is another Python (3.99, was {MINOR}): making .venv anew", True)


@pytest.mark.parametrize("stamp", ["", "[]", "{", "null"])
def test_a_broken_stamp_is_made_anew(course, pip, stamp):
    course.ensure()
    Path(course.STAMP).write_text(stamp)
    assert course.stale()[1] is True


def test_a_vanished_python_is_made_anew(course, pip):
    course.ensure()
    Path(course.PYTHON).unlink()
    assert course.stale()[1] is True


def test_no_disk(course, pip, monkeypatch):
    monkeypatch.setattr(course.shutil, "disk_usage", lambda _path: SimpleNamespace(free=1.1e9))
    with pytest.raises(course.Fail, match=r"needs 2\.5 GB of disk, 1\.1 GB are free"):
        course.ensure()
    assert not Path(course.VENV).exists()


def test_no_ensurepip(course, pip, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(course.Fail, match=r"lacks ensurepip: on Debian or Ubuntu, `apt install python3\.\d+-venv`"):
        course.ensure()


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml"])
def test_half_a_course(course, folder, name):
    (folder / name).unlink()
    with pytest.raises(course.Fail, match=f"{name} is missing"):
        course.ensure()


def test_the_folder_cannot_be_written(course, folder, pip):
    (folder / ".venv.lock").mkdir()  # root may write anywhere, but not into this
    with pytest.raises(course.Fail, match="the course's folder cannot be written"):
        course.ensure()


def test_the_second_of_two_waits_and_finds_it_finished(course, pip, folder, capsys):
    other = load(folder)
    with other.one_at_a_time():
        waiting = threading.Thread(target=course.ensure)
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive()
        assert pip.calls == []
        Path(course.PYTHON).parent.mkdir(parents=True)
        Path(course.PYTHON).touch()
        Path(course.STAMP).write_text(course.json.dumps(course.fingerprint()))
    waiting.join(5)
    assert pip.calls == []
    assert capsys.readouterr().out == "another course.py is installing: waiting for it\n"


def test_the_lock_ends_with_its_process(course, folder):
    program = "import course, time\nwith course.one_at_a_time():\n print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        holder.kill()
    with course.one_at_a_time():
        pass


def failing(course, folder, program):
    """The one line for an install step that runs a program."""
    Path(course.VENV).mkdir()
    with course.one_at_a_time() as lock, pytest.raises(course.Fail) as failure:
        course.step([sys.executable, "-c", program], lock)
    return str(failure.value)


def test_a_failed_step_names_the_cause_and_the_log(course, folder):
    line = failing(
        course, folder, "import sys; print('begun'); sys.exit('OSError: [Errno 28] No space left on device')"
    )
    assert line == f"the environment is not finished: the disk is full; the whole output: {Path('.venv/install.log')}"
    log = (folder / ".venv" / "install.log").read_text()
    assert "begun" in log
    assert "Errno 28" in log


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError('x')'\n"
         "ERROR: No matching distribution found for alpha==1", "no network"),
        ("socket.gaierror: Temporary failure in name resolution", "no network"),
        ("pip._vendor.urllib3.exceptions.ReadTimeoutError: Read timed out.", "no network"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "the disk is full"),
        ("PermissionError: [Errno 13] Permission denied: 'x'", "the folder cannot be written"),
        ("ERROR: No matching distribution found for alpha==1", "pip's package index has no alpha==1"),
        ("noise\nERROR: alpha has a bad hash\nmore noise", "ERROR: alpha has a bad hash"),
        ("ERROR: Exception:\nTraceback (most recent call last):\n  File 'x'\nValueError: odd\n", "ValueError: odd"),
        ("alpha 1 requires beta, which is not installed.\n", "alpha 1 requires beta"),
        ("", "no output"),
    ],
)  # fmt: skip
def test_explain(course, output, cause):
    assert course.explain(output).startswith(cause)


def test_progress_counts_what_pip_says(course, folder):
    progress = course.Progress(3)
    progress.hear("Collecting alpha==1 (from -r requirements.txt (line 1))\n")
    progress.hear("  Downloading alpha-1.whl (10 kB)\n")
    progress.hear("Requirement already satisfied: beta==2 in somewhere\n")
    assert progress.text() == "fetching 2 of 3 packages: beta, 0 s"
    progress.hear("Installing collected packages: alpha, gamma\n")
    assert progress.text() == "installing 1 of 2 packages: alpha, 0 s"
    site = Path(course.VENV, *(["Lib"] if os.name == "nt" else ["lib", f"python{MINOR}"]), "site-packages")
    (site / "alpha-1.dist-info").mkdir(parents=True)
    progress.phase -= 1
    assert progress.text() == "installing 2 of 2 packages: gamma, 0 s"


def test_an_interrupt_is_one_line(course, monkeypatch, capsys):
    def interrupted(_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(course, "test", interrupted)
    assert course.main(["test"]) == 130
    assert capsys.readouterr().err == "\ncourse.py: stopped; call it again to go on\n"


def test_sigterm_in_an_install_ends_pip_too(course, folder):
    program = (
        "import course, sys\n"
        "def slow(_):\n"
        " with course.one_at_a_time() as lock:\n"
        "  course.step([sys.executable, '-c', 'import time; print(1); time.sleep(60)'], lock)\n"
        "course.test = slow\n"
        "print(flush=True)\n"
        "sys.exit(course.main(['test']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        time.sleep(0.5)
        running.terminate()
        assert running.wait(10) == 143
    with course.one_at_a_time():  # pip's process held the lock too: it is gone
        pass


def test_arguments_and_exit_status_are_pytests(ready, folder):
    if shutil.which("sh") is None:
        pytest.skip("needs a shell")
    command = [sys.executable, "course.py", "test", "-q", "-k", "a or b"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stdout.splitlines() == ["-m", "pytest", "-q", "-k", "a or b", "token=unset", "site=1"]


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (2, 2), (64, 2)])
@pytest.mark.parametrize(("threads", "given"), [(None, "1"), ("3", "3")])
def test_all_tests_run_in_two_processes_of_one_thread(course, pip, monkeypatch, cores, processes, threads, given):
    monkeypatch.setattr(course.os, "sched_getaffinity", lambda _process: set(range(cores)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr(course, "become", lambda command, **more: (command, more))
    command, more = course.test(SimpleNamespace(arguments=[]))
    wanted = ["-m", "pytest", f"-n{processes}", "--dist=loadfile", "--no-loadscope-reorder", "--durations=10"]
    assert command == [course.PYTHON, *wanted]
    assert more == {"OMP_NUM_THREADS": given}
