"""`python -m mha_course.checks FILE.py:NAME`: judge what a file defines, in a process of its own."""

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Sequence

from mha_course.checks.process import judge
from mha_course.checks.verdict import Verdict

_EPILOG = """examples:
  python -m mha_course.checks heads.py:MyAttention
  python -m mha_course.checks heads.py:attend --mask blocked --causal
  python -m mha_course.checks lesson.py:softmax --exercise softmax

exit status: 0 right, 1 not right, 2 could not be judged.
What the file prints goes to standard error, shortened."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge as the command line says; returns the exit status."""
    options = vars(_parser().parse_args(arguments))
    as_json = options.pop("json")
    verdict = judge(**options)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(json.dumps(vars(verdict)) if as_json else verdict, flush=True)
    except BrokenPipeError:  # who reads it has read enough; at the end Python would try, and complain, once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status(verdict)


def status(verdict: Verdict) -> int:
    """The exit status of a verdict: 0 right, 1 not right, 2 could not be judged."""
    if not verdict.judged:
        return 2
    return 0 if verdict.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mha_course.checks",
        description="Judge an attention that a file defines: a module, a class or a function.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("target", metavar="FILE.py[:NAME]", help="what to judge; without a name, the only one that is defined")
    add("--exercise", metavar="NAME", help="check it as a solution of this exercise of the course")
    add("--mask", choices=["may attend", "blocked", "additive"], help="what True, or a number, means in its mask")
    add("--mask-axes", metavar="AXES", help='axes of its mask, such as "B 1 T S" or "B S"')
    add("--layout", metavar="AXES", help='axes of its inputs, such as "B T E" or "B H T D"')
    add("--num-heads", metavar="N", type=_whole, help="its heads, where it does not say")
    add("--causal", action="store_true", default=None, help="it hides the future by itself")
    add("--half", action="store_true", default=None, help="it must work in float16")
    add("--seconds", metavar="S", type=_seconds, default=60.0, help="limit of time (60)")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return seconds


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the child is ended on the way out
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
