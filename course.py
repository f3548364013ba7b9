#!/usr/bin/env python3
"""The course's only entry: lab, test, notebooks, cpus, lock.

Standard library only. Any Python, even 2.7, can parse this file, so that an old one gets a clear refusal
instead of a SyntaxError: no f-strings, no annotations, no keyword-only arguments.
"""

from __future__ import print_function

import argparse
import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time

SUPPORTED = ((3, 11), (3, 12), (3, 13))
HERE = os.path.dirname(os.path.realpath(__file__))
VENV = os.path.join(HERE, ".venv")
PYTHON = os.path.join(VENV, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))
STAMP = os.path.join(VENV, "course.stamp")
LOG = os.path.join(VENV, "install.log")
NOTEBOOKS = os.path.join(HERE, "notebooks")
WORK = os.path.join(HERE, "work")
REQUIREMENTS = os.path.join(HERE, "requirements.txt")

RECIPE = 1  # raise it when the steps of `install` change
WANTED_GB = 2.5
FIRST_PORT = 8888
TORCH = "torch==2.13.0"  # the version the stored outputs were made with; newer ones come with other rounding
PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)==", re.M)
LESSON = re.compile(r"\d\d_[a-z0-9_]+\.ipynb$")
FOREIGN = re.compile(  # the user's variables that would change what the course runs or where it installs
    r"JUPYTER(?!_(DATA_DIR|RUNTIME_DIR|PLATFORM_DIRS|ALLOW_INSECURE_WRITES)$)|PYTEST_"
    r"|PYTHON(PATH|HOME|OPTIMIZE|SAFEPATH|WARNINGS|INSPECT)$|PIP_(TARGET|PREFIX|ROOT|USER|DRY_RUN)$"
)


class Fail(Exception):
    """What is missing, in one line for the user."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def say(text):
    print(text)
    sys.stdout.flush()


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    """Replace a file in one step: a reader sees the old text or the new, never half of it."""
    part = "%s.%d.part" % (path, os.getpid())
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if os.path.exists(path):
            shutil.copymode(path, part)
        os.replace(part, path)
    except OSError as error:
        if os.path.exists(part):
            os.remove(part)
        raise Fail("%s cannot be written: %s" % (os.path.relpath(path, HERE), error.strerror))


# ---------------------------------------------------------------- Python


def refusal(version, argv):
    """The line for a Python that the course does not run on; None for one that it does."""
    if tuple(version[:2]) in SUPPORTED:
        return None
    found = None
    with open(os.devnull, "w") as null:
        for name in ["python%d.%d" % pair for pair in SUPPORTED]:
            try:  # run it: a pyenv shim exists for versions that are switched off
                if subprocess.call([name, "-c", ""], stdout=null, stderr=null) == 0:
                    found = name
                    break
            except OSError:
                pass
    how = "run `%s`" % " ".join([found] + argv) if found else "none of them was found here, install one"
    return "this course needs Python 3.11, 3.12 or 3.13, this is %d.%d.%d: %s" % (tuple(version[:3]) + (how,))


# ---------------------------------------------------------------- environment


def environment(**more):
    """The variables a process of the course runs with: nothing from the user's own packages or kernels."""
    env = dict((name, value) for name, value in os.environ.items() if not FOREIGN.match(name))
    env.update(PYTHONNOUSERSITE="1", JUPYTER_PREFER_ENV_PATH="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    env.update(PIP_USER="0", PIP_DRY_RUN="0")  # pip.conf may say otherwise
    return dict(env, **more)


def fingerprint():
    """What the environment is made from; it is made again or brought up to date when this changes."""
    digest = hashlib.sha256()
    for name in ("requirements.txt", "pyproject.toml", os.path.join("mha_course", "jupyterlab.json")):
        path = os.path.join(HERE, name)
        if not os.path.exists(path):
            raise Fail("%s is missing: is this the whole course?" % name)
        with open(path, "rb") as file:
            digest.update(file.read() + b"\0")
    return {"recipe": RECIPE, "python": "%d.%d" % sys.version_info[:2], "where": HERE, "made_from": digest.hexdigest()}


def stale():
    """(why, whether it must be made from nothing) for an environment that cannot be used as it is, else None."""
    wanted = fingerprint()
    if not os.path.isdir(VENV):
        return "making the environment in .venv, once: some minutes and about 2 GB", True
    try:
        stamp = json.loads(read(STAMP))
    except (OSError, ValueError):
        stamp = None
    if not isinstance(stamp, dict) or not os.path.exists(PYTHON):
        return "an install in .venv was not finished: making it anew", True
    if stamp.get("where") != HERE:
        return "the folder was moved: making .venv anew", True
    if stamp.get("python") != wanted["python"]:
        return "this is another Python (%s, was %s): making .venv anew" % (wanted["python"], stamp.get("python")), True
    return None if stamp == wanted else ("the requirements changed: bringing .venv up to date", False)


@contextlib.contextmanager
def one_at_a_time():
    """Hold .venv.lock, waiting for another course.py; the system drops it when its last holder ends."""
    try:
        file = open(os.path.join(HERE, ".venv.lock"), "a+b")
    except OSError as error:
        raise Fail("the course's folder cannot be written (%s): %s" % (error.strerror, HERE))

    def take():
        if os.name == "nt":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    told = False
    with file:
        while True:
            try:
                take()
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
                    raise Fail("%s: cannot be locked (%s)" % (file.name, error.strerror))
            if not told:
                say("another course.py is installing: waiting for it")
                told = True
            time.sleep(0.5)
        yield file


def ensure():
    """Return with a finished environment in .venv; well under a second when it is there."""
    if stale() is None:
        return
    with one_at_a_time() as lock:
        state = stale()  # the other course.py may have finished it
        if state is not None:
            install(lock, *state)


def install(lock, why, anew):
    """Fill .venv; the stamp goes first and is written last, so whatever stops this is seen by the next call."""
    started = time.time()
    say(why)
    if anew:
        free = shutil.disk_usage(HERE).free / 1e9
        if free < WANTED_GB:
            raise Fail("the environment needs %.1f GB of disk, %.1f GB are free at %s" % (WANTED_GB, free, HERE))
        import importlib.util

        if importlib.util.find_spec("ensurepip") is None:
            package = "python%d.%d-venv" % sys.version_info[:2]
            raise Fail("this Python lacks ensurepip: on Debian or Ubuntu, `apt install %s`" % package)
    elif os.path.exists(STAMP):
        os.remove(STAMP)
    temporary = os.path.join(VENV, "tmp")  # pip's, so that nothing stays in the system's after a kill
    if anew:
        base = getattr(sys, "_base_executable", None) or sys.executable
        step([base, "-m", "venv", "--clear", VENV], lock, keep_log=False)
    os.makedirs(temporary, exist_ok=True)
    pip = [PYTHON, "-m", "pip", "install", "--progress-bar=off"]
    if "PIP_RETRIES" not in os.environ:
        pip.append("--retries=2")
    env = environment(TMPDIR=temporary, TEMP=temporary, TMP=temporary)
    try:
        step(pip + ["-r", REQUIREMENTS], lock, env, Progress(len(PINNED.findall(read(REQUIREMENTS)))))
        step(pip + ["--no-deps", "--no-build-isolation", "-e", "."], lock, env)
        step([PYTHON, "-m", "pip", "check"], lock, env)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    write(STAMP, json.dumps(fingerprint()))
    say("the environment is ready: %.0f s" % (time.time() - started))


def step(command, lock, env=None, progress=None, keep_log=True):
    """Run one command of the install, its output into the log, and turn a failure into one line."""
    kept = {} if os.name == "nt" else {"pass_fds": (lock.fileno(),)}  # killed alone, we leave pip holding the lock
    process = subprocess.Popen(
        command, cwd=HERE, env=env or environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, errors="replace", **kept
    )  # fmt: skip
    lines = []

    def listen():
        for line in process.stdout:
            lines.append(line)
            if progress:
                progress.hear(line)

    listener = threading.Thread(target=listen)
    listener.daemon = True
    listener.start()
    try:
        while process.poll() is None:
            if progress:
                progress.show()
            time.sleep(0.1)
    except BaseException:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    finally:
        listener.join(2)
        if not listener.is_alive():
            process.stdout.close()
        if progress:
            progress.close()
        with contextlib.suppress(OSError):
            with open(LOG, "a" if keep_log else "w", encoding="utf-8") as log:
                log.writelines(["$ %s\n" % " ".join(command)] + lines)
    if process.returncode:
        where = "; the whole output: %s" % os.path.relpath(LOG, HERE) if os.path.exists(LOG) else ""
        raise Fail("the environment is not finished: %s%s" % (explain("".join(lines)), where))


CAUSES = (
    (r"No space left on device|Errno 28|not enough space on the disk", "the disk is full"),
    (r"Read-only file system|Permission denied|Access is denied", "the folder cannot be written"),
    (r"NewConnectionError|NameResolutionError|[Nn]ame resolution|getaddrinfo failed|Network is unreachable"
     r"|ConnectTimeoutError|ReadTimeoutError|Read timed out|Connection (refused|reset|aborted)|ProxyError|SSLError"
     r"|IncompleteRead|RemoteDisconnected", "no network, pip cannot reach its package index; call again when it is up"),
)  # fmt: skip


def explain(output):
    """The cause of a failed pip or venv, from its output."""
    for pattern, cause in CAUSES:
        if re.search(pattern, output):
            return cause
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if missing:
        return "pip's package index has no %s for this Python and system" % missing.group(1)
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    errors = [line for line in lines if line.startswith(("ERROR", "Error"))] or lines
    return lines[-1] if errors[-1] == "ERROR: Exception:" else errors[-1]  # a traceback follows that one


class Progress(object):
    """How far pip is: one line, rewritten on a terminal, printed every 20 s elsewhere."""

    def __init__(self, total):
        self.total, self.fetched, self.name, self.installing = total, 0, "", []
        self.started = self.phase = time.time()
        self.shown, self.tty = self.started, sys.stdout.isatty()
        self.made = os.path.join(glob.escape(sysconfig.get_path("purelib", "venv", {"base": VENV})), "*.dist-info")

    def hear(self, line):
        found = re.match(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)", line)
        if found:
            self.fetched, self.name = min(self.fetched + 1, self.total), found.group(1)
        elif line.startswith("Installing collected packages:"):
            self.installing, self.phase = line.split(":", 1)[1].strip().split(", "), time.time()

    def text(self):
        done, total, name, verb = self.fetched, self.total, self.name, "fetching"
        if self.installing:  # pip is silent now, but goes through its list in order
            new = sum(os.path.getmtime(path) >= self.phase for path in glob.glob(self.made))
            total, verb = len(self.installing), "installing"
            done, name = min(new + 1, total), self.installing[min(new, total - 1)]
        return "%s %d of %d packages: %s, %.0f s" % (verb, done, total, name, time.time() - self.started)

    def show(self):
        now = time.time()
        if now - self.shown < (0.5 if self.tty else 20):
            return
        self.shown = now
        with contextlib.suppress(OSError):  # a folder of pip's went away while we looked
            if self.tty:
                sys.stdout.write("\r\033[K" + self.text()[: shutil.get_terminal_size().columns - 1])
                sys.stdout.flush()
            else:
                say(self.text())

    def close(self):
        if self.tty:
            sys.stdout.write("\r\033[K")
            sys.stdout.flush()


def become(command, **more):
    """Hand over to another program for good: its signals and its exit status are its own."""
    sys.stdout.flush()
    if os.name == "nt":  # there, exec returns to the prompt at once
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return subprocess.call(command, cwd=HERE, env=environment(**more))
    os.chdir(HERE)
    os.execve(command[0], command, environment(**more))


# ---------------------------------------------------------------- lessons


def lessons(numbers=()):
    """Paths of the notebooks, all or those with these numbers."""
    found = sorted(glob.glob(os.path.join(glob.escape(NOTEBOOKS), "*.ipynb")))
    found = [path for path in found if LESSON.match(os.path.basename(path))]
    if not found:
        raise Fail("there are no lessons in %s" % NOTEBOOKS)
    by_number = {os.path.basename(path)[:2]: path for path in found}
    for number in numbers:
        if number.zfill(2) not in by_number:
            raise Fail("there is no lesson %s: there are %s" % (number, " ".join(sorted(by_number))))
    return [by_number[number.zfill(2)] for number in numbers] or found


def cleared(path):
    """A notebook's text without the answers: no outputs, but for cells tagged keep-output, and no counts."""
    try:
        notebook = json.loads(read(path))
        notebook["metadata"].pop("widgets", None)
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                continue
            cell["execution_count"] = None
            if "keep-output" not in cell["metadata"].get("tags", []):
                cell["outputs"] = []
            for output in cell["outputs"]:
                if "execution_count" in output:
                    output["execution_count"] = None
    except OSError as error:
        raise Fail("%s cannot be read: %s" % (os.path.relpath(path, HERE), error.strerror))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = "it has no %s" % error if isinstance(error, KeyError) else error
        raise Fail("%s is not a notebook: %s" % (os.path.relpath(path, HERE), reason))
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def copy_lessons(fresh=None):
    """Give work/ the lessons it does not have; take `fresh` anew and keep the learner's beside it."""
    if fresh:
        cleared(fresh)  # fails before anything moves
    try:
        os.makedirs(WORK, exist_ok=True)
        if fresh:
            mine = os.path.join(WORK, os.path.basename(fresh))
            if os.path.lexists(mine):
                number = 1
                while os.path.lexists(re.sub(r"ipynb$", "old-%d.ipynb" % number, mine)):
                    number += 1
                kept = re.sub(r"ipynb$", "old-%d.ipynb" % number, mine)
                os.rename(mine, kept)
                say("your copy is now work/%s" % os.path.basename(kept))
    except OSError as error:
        raise Fail("work/ cannot be written (%s); `course.py lab --read` only reads" % error.strerror)
    for path in lessons():
        mine = os.path.join(WORK, os.path.basename(path))
        if not os.path.lexists(mine):
            try:
                text = cleared(path)
            except Fail as reason:
                say("%s: going on without it" % reason)
                continue
            write(mine, text)


def free_port(asked):
    """The port asked for, or the first free one; say so when it is not the usual one."""
    for port in [asked] if asked else range(FIRST_PORT, FIRST_PORT + 100):
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            if os.name != "nt":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if asked:
                    taken = error.errno == errno.EADDRINUSE
                    raise Fail("port %d %s" % (port, "is in use" if taken else "cannot be used: " + error.strerror))
                continue
        if not asked and port != FIRST_PORT:
            say("port %d is in use: taking %d" % (FIRST_PORT, port))
        return port
    raise Fail("no free port from %d to %d: name one with --port" % (FIRST_PORT, FIRST_PORT + 99))


def lab(options):
    fresh = lessons([options.fresh])[0] if options.fresh else lessons() and None
    port = free_port(options.port)
    ensure()
    if not options.read:
        copy_lessons(fresh)
    folder = NOTEBOOKS if options.read else WORK
    command = [PYTHON, "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=%d" % port,
               "--ServerApp.port_retries=0", "--ServerApp.root_dir=" + folder, "--ServerApp.answer_yes=True",
               "--Application.log_level=WARN",
               "--ServerApp.jpserver_extensions={'jupyter_server_terminals': True, 'jupyter_lsp': True}"]  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--ServerApp.allow_root=True")
    if options.no_browser:
        command.append("--ServerApp.open_browser=False")
    more = {"JUPYTER_NO_CONFIG": "1"}  # neither the user's nor the system's: they can switch the token off
    if os.access(VENV, os.W_OK):  # tabs of other projects stay closed
        more["JUPYTERLAB_SETTINGS_DIR"] = os.path.join(VENV, "settings")
        more["JUPYTERLAB_WORKSPACES_DIR"] = os.path.join(VENV, "workspaces", os.path.basename(folder))
    note = "; what you change there changes the course's own files" if options.read else ""
    say("JupyterLab opens %s/ on 127.0.0.1:%d%s; Ctrl-C ends it" % (os.path.basename(folder), port, note))
    return become(command, **more)


WHOLE = ("--dist=loadfile", "--no-loadscope-reorder", "--durations=10")


def test(options):
    ensure()
    if options.arguments:
        return become([PYTHON, "-m", "pytest"] + options.arguments)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(2, cores)  # a notebook may take 3 GB of memory
    threads = os.environ.get("OMP_NUM_THREADS", "1")  # the cores are taken already
    return become([PYTHON, "-m", "pytest", "-n%d" % count] + list(WHOLE), OMP_NUM_THREADS=threads)


def notebooks(options):
    chosen = lessons(options.numbers)
    ensure()
    return become([PYTHON, "-m", "tests.notebooks.store"] + chosen)


CPUS = (
    ("avx2", {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}),
    ("default", {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}),
    ("2 threads", {"MHA_COURSE_THREADS": "2"}),
)


def cpus(options):
    chosen = lessons(options.numbers)
    for path in chosen:
        cleared(path)  # fails for one that is not a notebook
    ensure()
    rows, good = [], True
    for way, more in CPUS:
        say("== %s" % way)
        started = time.time()
        status = subprocess.call([PYTHON, "-m", "pytest", "-q"] + chosen, cwd=HERE, env=environment(**more))
        rows.append("%-10s %-6s %4.0f s" % (way, "same" if status == 0 else "DIFFER", time.time() - started))
        good = good and status == 0
    say("\nstored outputs of %d notebooks against\n%s" % (len(chosen), "\n".join(rows)))
    return 0 if good else 1


# ---------------------------------------------------------------- requirements


def lock(_):
    import tomllib

    project = tomllib.loads(read(os.path.join(HERE, "pyproject.toml")))
    wanted = project["build-system"]["requires"] + project["project"]["dependencies"] + [TORCH]
    wanted += [name for extra in project["project"]["optional-dependencies"].values() for name in extra]
    with tempfile.TemporaryDirectory() as folder:
        python = os.path.join(folder, "venv", os.path.relpath(PYTHON, VENV))
        with open(os.path.join(folder, "course.in"), "w", encoding="utf-8") as file:
            file.write("\n".join(wanted))
        for command in (
            [sys.executable, "-m", "venv", os.path.join(folder, "venv")],
            [python, "-m", "pip", "install", "--quiet", "pip-tools"],
            [python, "-m", "piptools", "compile", "--quiet", "--no-header", "--no-emit-index-url",
             "--no-emit-find-links", "--strip-extras", "--allow-unsafe", "--output-file=course.txt", "course.in"],
        ):  # fmt: skip
            done = subprocess.run(
                command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if done.returncode:
                raise Fail("requirements.txt is left as it was: %s" % explain(done.stdout))
        text = read(os.path.join(folder, "course.txt"))
    text = "# Made by `course.py lock` from pyproject.toml: the versions the course is tested with.\n" + text
    text = re.sub(r"\+cpu\b|\n# The following packages are considered.*\n", "", text)
    text = text.replace("-r course.in", "mha-course (pyproject.toml)")
    write(REQUIREMENTS, text)
    say("requirements.txt: %d packages" % len(PINNED.findall(text)))
    return 0


# ---------------------------------------------------------------- command line


def parser():
    about = "The course on multi-head attention. The first call makes its environment in .venv."
    top = argparse.ArgumentParser(prog="course.py", description=about)
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True

    one = commands.add_parser("lab", help="open the lessons in JupyterLab, in your own copies under work/")
    which = one.add_mutually_exclusive_group()
    which.add_argument("--read", action="store_true", help="open notebooks/ with the stored outputs instead")
    which.add_argument("--fresh", metavar="NN", help="take lesson NN anew; your copy is kept beside it")
    one.add_argument("--port", type=port_number, help="port on 127.0.0.1 (%d or the next free one)" % FIRST_PORT)
    one.add_argument("--no-browser", action="store_true", help="only print the address")
    one.set_defaults(run=lab)

    text = "run all tests, in two processes; whatever follows goes to pytest instead"
    commands.add_parser("test", help=text, description=text, usage="course.py test [pytest's arguments]")

    for name, run, text in (
        ("notebooks", notebooks, "maintainers: run notebooks and store their outputs, twice the same"),
        ("cpus", cpus, "maintainers: compare the stored outputs under other instruction sets and with 2 threads"),
    ):
        one = commands.add_parser(name, help=text)
        one.add_argument("numbers", metavar="NN", nargs="*", help="lessons, for example 00 02; all when none is named")
        one.set_defaults(run=run)

    commands.add_parser("lock", help="maintainers: write requirements.txt from pyproject.toml").set_defaults(run=lock)
    return top


def port_number(text):
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError("%r is not a port (1 to 65535)" % text)
    return int(text)


def terminated(_number, _frame):
    raise Terminated()


def main(argv):
    line = refusal(sys.version_info, [os.path.basename(__file__)] + argv)
    if line:
        sys.stderr.write(line + "\n")
        return 2
    if argv[:1] == ["test"] and argv[1:] not in (["-h"], ["--help"]):
        options = argparse.Namespace(run=test, arguments=argv[1:])
    else:
        options = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, terminated)
    try:
        return options.run(options)
    except Fail as reason:
        sys.stderr.write("course.py: %s\n" % reason)
        return 2
    except KeyboardInterrupt as stop:
        sys.stderr.write("\ncourse.py: stopped; call it again to go on\n")
        return 143 if isinstance(stop, Terminated) else 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
