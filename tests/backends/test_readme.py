"""What the README shows of `backends` is what it prints."""

import contextlib
import io
import re
import textwrap
from pathlib import Path

import torch

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_readme_shows():
    ((source, shown),) = re.findall(
        r"```python\n(from mha_course import backends\n(?s:.*?))```\n\n((?:    .*\n)+)", README
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(source, {"torch": torch})
    assert printed.getvalue() == textwrap.dedent(shown)
