"""What the README shows of `diagnose` is what it says."""

import re
import textwrap
from pathlib import Path

from mha_course import checks

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_module_of_the_readme_gets_the_verdict_of_the_readme():
    (source,) = re.findall(r"```python\n(import torch\nfrom torch import nn\n.*?)```", README, re.DOTALL)
    (shown,) = re.findall(r"    \$ python -m mha_course\.checks my_attention\.py:MyAttention\n((?:    .*\n)+)", README)
    names = {}
    exec(source, names)
    assert str(checks.diagnose(names["MyAttention"])) == textwrap.dedent(shown).strip()


def test_the_number_of_faults_is_that_of_the_readme():
    (said,) = re.findall(r"until one of (\d+) known faults", README)
    assert int(said) == len(checks.faults())
