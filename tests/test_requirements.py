"""pyproject.toml, requirements.txt and environment.yml say the same."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
WANTED = [
    *PROJECT["build-system"]["requires"],
    *PROJECT["project"]["dependencies"],
    *(one for extra in EXTRAS.values() for one in extra),
]
ADDRESS = re.compile(r"https?:|file:|git\+|--(extra-)?index|--find-links|(^|\s)/\w|[A-Z]:\\")


def name(requirement):
    return re.sub(r"[-_.]+", "-", requirement.name).lower()


def pins():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.lstrip().startswith("#")]


def test_every_line_is_one_exact_public_version():
    for pin in pins():
        assert re.fullmatch(r"==[0-9][0-9a-z.]*", str(pin.specifier)), pin
        assert pin.url is None
    assert len({name(pin) for pin in pins()}) == len(pins()) > 100


@pytest.mark.parametrize("wanted", WANTED)
def test_every_dependency_is_pinned_inside_its_range(wanted):
    wanted = Requirement(wanted)
    pinned = {name(pin): str(pin.specifier).removeprefix("==") for pin in pins()}
    assert wanted.specifier.contains(pinned[name(wanted)])


def test_environment_yml_only_points_at_the_others():
    lines = [line.strip() for line in (ROOT / "environment.yml").read_text(encoding="utf-8").splitlines()]
    assert lines[lines.index("dependencies:") + 1 :] == [
        "- python=3.11",
        "- pip",
        "- pip:",
        "- -r requirements.txt",
        "- -e .",
    ]


@pytest.mark.parametrize("file", ["requirements.txt", "environment.yml", "pyproject.toml"])
def test_no_host_and_no_local_path(file):
    found = [line for line in (ROOT / file).read_text(encoding="utf-8").splitlines() if ADDRESS.search(line)]
    assert found == []


def test_python_versions_agree():
    source = (ROOT / "course.py").read_text(encoding="utf-8")
    assert "SUPPORTED = ((3, 11), (3, 12), (3, 13))" in source
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.14"
