"""A live panel, its controls moved one at a time from the start state."""

from collections.abc import Sequence

from mha_course.explorers.base import Explorer


def expect_every_value_to_change_the_picture(explorer: Explorer, some: Sequence[float]) -> None:
    """Give each control every value, one of many values only `some`; picture and numbers are the first at the start."""
    picture, numbers = bytes(explorer.picture.value), explorer.numbers.value
    for control in explorer.specification:
        name, values = control.name, control.values()
        for value in values if len(values) < 10 else some:
            explorer.controls[name].value = value
            assert explorer.error.value == ""
            same = value == control.start
            assert (bytes(explorer.picture.value) == picture) == same, (name, value)
            assert (explorer.numbers.value == numbers) == same, (name, value)
        explorer.controls[name].value = control.start
        assert (bytes(explorer.picture.value), explorer.numbers.value) == (picture, numbers), name
    explorer.close()
