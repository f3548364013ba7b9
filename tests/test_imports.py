"""The import graph is the architecture: design.md section 2's table, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mha_course"
FILES = sorted(PACKAGE.rglob("*.py"))

# A module may import those beside it, and itself where it is a folder.
LEAVES = ("dot_product", "masks", "cache", "measure", "positions")
BACKENDS = ("backends", "tiled", "sparse", "linear")
TOOLS = ("precision", "quantization", "profiling")
MODELS = ("block", "models", "data", "training", "heads", "parallel")
MECHANISM = {*LEAVES, "multihead", *BACKENDS, *TOOLS, *MODELS}
TABLE = {
    **{name: set() for name in LEAVES},
    "multihead": {"dot_product", "masks", "positions", "cache"},
    **{name: {"dot_product", "masks", "measure"} for name in BACKENDS},
    **{name: {"multihead", "measure"} for name in TOOLS},
    "quantization": {"multihead", "measure", "cache"},  # it holds a cache of bytes
    "profiling": {"multihead", "measure", "precision"},  # the name of the machine
    **{name: {"multihead", "positions", "masks", "cache", "tiled"} for name in MODELS},
    "models": {"block", "multihead", "positions", "masks", "cache", "tiled"},  # a decoder is made of blocks
    "checks": MECHANISM,
    "plots": set(),
    "experiments": MECHANISM,
    "lesson": {"plots"},
    "explorers": {*MECHANISM, "checks", "plots", "experiments", "lesson"},
    "__init__": MECHANISM,
}
WIDGETS = {"ipywidgets", "IPython"}
PICTURES = {"matplotlib", "PIL"}
MAY_SHOW = {"lesson", "explorers"}
MAY_DRAW = {"plots", *MAY_SHOW}
ARRAYS = {"matplotlib", "PIL", "numpy", "jaxtyping"}  # all that plots may import from outside
FORBIDDEN = (*WIDGETS, "matplotlib", "torch._dynamo", "torchao", "torch.distributed.tensor")


def module_of(file: Path) -> str:
    """The line of the table that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(file: Path, source: str) -> set[str]:
    """Full names of all that a file imports, wherever in the file."""
    here = ["mha_course", *file.relative_to(PACKAGE).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = here[: len(here) + 1 - node.level] if node.level else []
            origin = ".".join([*start, *([node.module] if node.module else [])])
            found |= {f"{origin}.{alias.name}" for alias in node.names}
    return found


def broken(file: Path, source: str) -> list[str]:
    """What a file imports against the table, in words."""
    module = module_of(file)
    if module not in TABLE:
        return [f"{module} has no line in the table"]
    said = []
    for name in sorted(imports(file, source)):
        top, _, rest = name.partition(".")
        if top == "mha_course":
            other = rest.partition(".")[0]
            if other not in TABLE and other != module:
                said.append(f"{module} imports {other} from the package itself, not its module")
            elif other not in TABLE[module] | {module}:
                said.append(f"{module} imports {other}")
        elif top in WIDGETS and module not in MAY_SHOW:
            said.append(f"{module} imports {name}")
        elif top in PICTURES and module not in MAY_DRAW:
            said.append(f"{module} imports {name}")
        elif module == "plots" and top not in ARRAYS | sys.stdlib_module_names:
            said.append(f"{module} imports {name}")
    return said


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(PACKAGE).as_posix())
class TestEveryFile:
    def test_imports_follow_the_table(self, file):
        assert broken(file, file.read_text(encoding="utf-8")) == []

    def test_is_at_most_300_lines(self, file):
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 300


@pytest.mark.parametrize(
    ("file", "line", "says"),
    [
        ("masks.py", "from mha_course.dot_product import attention", "masks imports dot_product"),
        ("masks.py", "from .dot_product import attention", "masks imports dot_product"),
        ("masks.py", "def f():\n    import mha_course.plots", "masks imports plots"),
        ("multihead.py", "from mha_course import checks", "multihead imports checks"),
        ("multihead.py", "from mha_course import attention", "multihead imports attention from"),
        ("linear/kernel.py", "from ..multihead import x", "linear imports multihead"),
        ("linear/kernel.py", "from .. import multihead", "linear imports multihead"),
        ("block.py", "from mha_course.dot_product import attention", "block imports dot_product"),
        ("checks/engine.py", "import matplotlib.pyplot as plt", "checks imports matplotlib.pyplot"),
        ("checks/engine.py", "from mha_course.lesson import show", "checks imports lesson"),
        ("checks/engine.py", "from IPython.display import HTML", "checks imports IPython.display"),
        ("experiments/a.py", "from mha_course import plots", "experiments imports plots"),
        ("plots/charts.py", "import ipywidgets", "plots imports ipywidgets"),
        ("plots/charts.py", "from torch import nn", "plots imports torch.nn"),
        ("plots/charts.py", "from mha_course import masks", "plots imports masks"),
        ("lesson.py", "from mha_course.explorers import geometry", "lesson imports explorers"),
        ("__init__.py", "from mha_course import lesson", "__init__ imports lesson"),
        ("novel.py", "", "novel has no line"),
    ],
)
def test_what_breaks_the_table_is_found(file, line, says):
    assert [said[: len(says)] for said in broken(PACKAGE / file, line)] == [says]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("plots/charts.py", "import io, numpy\nfrom mha_course.plots.style import figure"),
        ("plots/charts.py", "from .style import figure\nfrom matplotlib.figure import Figure"),
        ("lesson.py", "import ipywidgets\nfrom mha_course import plots"),
        ("explorers/_a.py", "import ipywidgets\nfrom mha_course import checks, lesson, masks"),
        ("multihead.py", "import torch.nn\nfrom mha_course.dot_product import attention"),
        ("linear/__init__.py", "from .kernel import x\nfrom mha_course.linear.other import y"),
    ],
)
def test_what_the_table_allows_passes(file, line):
    assert broken(PACKAGE / file, line) == []


def test_import_brings_in_nothing_heavy_on_top_of_torch():
    program = (
        "import sys, torch; before = set(sys.modules); import mha_course; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    added = done.stdout.split()
    assert "mha_course.dot_product" in added
    heavy = [m for m in added if any(m == f or m.startswith(f"{f}.") for f in FORBIDDEN)]
    assert heavy == []
