"""Every explorer, at every value of every control: nothing fails, and nothing about the panel changes its size."""

import pytest

from mha_course import explorers, plots
from mha_course.explorers.base import Explorer

CALLS = [*(f"explorers.{name}()" for name in explorers.__all__), 'explorers.positions("distance")']


@pytest.fixture(params=CALLS)
def explorer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Explorer:
    """An explorer that draws but does not turn its drawing into a picture, which takes most of the time."""
    explorer = eval(request.param, {"explorers": explorers})
    monkeypatch.setattr(plots.Painter, "png", lambda painter, **_: b"")
    yield explorer
    explorer.close()


def test_every_value_of_every_control(explorer: Explorer) -> None:
    rows = explorer.numbers.value.count("<tr>")
    for control in explorer.specification:
        widget = explorer.controls[control.name]
        values = control.values()
        assert control.start in values
        for value in values:
            widget.value = value
            assert explorer.error.value == "", (control.name, value)
            assert explorer.numbers.value.count("<tr>") == rows
        widget.value = control.start


def test_extremes_together(explorer: Explorer) -> None:
    for end in (0, -1):
        for control in explorer.specification:
            explorer.controls[control.name].value = control.values()[end]
            assert explorer.error.value == "", (control.name, end)
