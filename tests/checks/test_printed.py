"""Prints of a solution: the first are shown, the rest is counted."""

import io
import logging
import os
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stdout

import pytest

from mha_course.checks.printed import limited_output


@pytest.fixture(autouse=True)
def streams_are_the_callers():
    before = sys.stdout, sys.stderr
    yield
    assert sys.stdout is before[0]
    assert sys.stderr is before[1]


def test_a_few_prints_are_shown_as_they_are(capsys):
    with limited_output() as seen:
        print("a", 1, flush=True)
        print("b", end="")
        print("c", file=sys.stderr)
    assert tuple(capsys.readouterr()) == ("a 1\nb", "c\n")
    assert (seen.dropped, seen.lines) == (0, 18)


@pytest.mark.parametrize(("n", "more"), [(3, ""), (4, "[... and 1 more line printed, not shown]\n"), (1000, None)])
def test_lines_beyond_the_limit_are_counted_once(n, more, capsys):
    with limited_output(lines=3) as seen:
        for i in range(n):
            print(i)
    more = "[... and 997 more lines printed, not shown]\n" if more is None else more
    assert capsys.readouterr().out == "0\n1\n2\n" + more
    assert seen.dropped == n - 3


def test_lines_are_shown_at_once_and_what_is_dropped_is_said_at_the_end(capsys):
    with limited_output(lines=1):
        print("first")
        print("second")
        assert capsys.readouterr().out == "first\n"
    assert capsys.readouterr().out == "[... and 1 more line printed, not shown]\n"


def test_many_lines_in_one_text_are_cut_at_the_same_place(capsys):
    with limited_output(lines=2):
        print("a\nb\nc\nd\n\ne")
    assert capsys.readouterr().out == "a\nb\n[... and 4 more lines printed, not shown]\n"


def test_characters_are_limited_too(capsys):
    with limited_output(characters=5):
        print("abcdefgh")
        print("i")
    assert capsys.readouterr().out == "abcde\n[... and 2 more lines printed, not shown]\n"


def test_the_end_of_a_line_that_fits_is_no_line_of_its_own(capsys):
    with limited_output(characters=5):
        print("abcde")
    assert capsys.readouterr().out == "abcde\n"


def test_without_line_ends(capsys):
    with limited_output(characters=10):
        for _ in range(100):
            print("abc", end="")
    assert capsys.readouterr().out == "abcabcabca\n[... and 1 more line printed, not shown]\n"


def test_both_streams_share_the_limits(capsys):
    with limited_output(lines=2):
        print("out")
        print("error", file=sys.stderr)
        print("dropped", file=sys.stderr)
    out, err = capsys.readouterr()
    assert (out, err) == ("out\n[... and 1 more line printed, not shown]\n", "error\n")


def test_nothing_is_shown_with_a_limit_of_zero(capsys):
    with limited_output(lines=0):
        print("a")
    with limited_output(characters=0):
        print("a")
    assert capsys.readouterr().out == "[... and 1 more line printed, not shown]\n" * 2


def test_100000_lines_are_fast(capsys):
    begin = time.monotonic()
    with limited_output():
        for i in range(100_000):
            print(i, "and some text")
    program = (
        "import sys, time\nfrom mha_course.checks.printed import limited_output\nbegin = time.perf_counter()\n"
        "with limited_output():\n    for i in range(100_000):\n        print(i, 'and some text')\n"
        "print(time.perf_counter() - begin, file=sys.stderr)"
    )
    assert time.monotonic() - begin < 20  # each write is checked for types here
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stderr) < 1
    assert len(capsys.readouterr().out) == len(done.stdout) < 700


def test_an_exception_passes_through_and_the_notice_is_said(capsys):
    with pytest.raises(KeyError), limited_output(lines=1):  # noqa: PT012
        print("a\nb")
        raise KeyError
    assert capsys.readouterr().out == "a\n[... and 1 more line printed, not shown]\n"


def test_a_stream_put_in_its_place_inside(capsys):
    with limited_output(lines=1):
        with redirect_stdout(io.StringIO()) as own:
            print("a\nb\nc")
        sys.stdout = io.StringIO()
        print("lost")
    assert own.getvalue() == "a\nb\nc\n"
    print("after")
    assert capsys.readouterr().out == "after\n"


def test_a_stream_kept_from_inside_is_not_limited_afterwards(capsys):
    with limited_output(lines=0):
        kept = logging.StreamHandler(sys.stdout)
    for _ in range(2):
        kept.emit(logging.makeLogRecord({"msg": "hello"}))
    assert capsys.readouterr().out == "hello\nhello\n"


def test_bytes_and_the_rest_of_a_stream(capfd):
    behind = sys.stdout
    with limited_output(lines=2):
        sys.stdout.buffer.write("\u00e9\nb\nc\n".encode(sys.stdout.encoding))
        sys.stdout.buffer.flush()
        sys.stdout.writelines(["d\n", "e\n"])
        assert sys.stdout.fileno() == behind.fileno()
        assert sys.stdout.isatty() is False
        assert sys.stdout.writable()
        assert sys.stdout.errors == behind.errors
        os.write(1, b"past the stream\n")
        sys.stdout.close()
    out = capfd.readouterr().out
    assert out.count("past the stream") == 1
    assert out.replace("past the stream\n", "") == "\u00e9\nb\n[... and 3 more lines printed, not shown]\n"


def test_logging_and_warnings_count(capsys):
    def shown(message, category, filename, lineno, file=None, line=None):  # as it is outside of pytest
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, "x"))

    with limited_output(lines=1), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = shown
        warnings.warn_explicit("careful", UserWarning, "file.py", 3)
        logging.lastResort.emit(logging.makeLogRecord({"msg": "hello"}))
    out, err = capsys.readouterr()
    assert err == "file.py:3: UserWarning: careful\n"
    assert out == "[... and 2 more lines printed, not shown]\n"


@pytest.mark.unchecked
def test_what_is_no_text_is_refused_as_ever():
    with limited_output(), pytest.raises(TypeError, match="must be str"):
        sys.stdout.write(3)
    with pytest.raises(ValueError, match="0 or more"):
        limited_output(-1)


def test_without_streams_and_with_a_closed_one(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with limited_output(lines=0):
        print("nowhere")
    closed = io.StringIO()
    monkeypatch.setattr(sys, "stdout", closed)
    with limited_output(lines=0):
        print("a")
        closed.close()


def test_limits_nest(capsys):
    with limited_output(lines=2), limited_output(lines=5):
        print("1\n2\n3")
    assert capsys.readouterr().out == "1\n2\n[... and 1 more line printed, not shown]\n"
