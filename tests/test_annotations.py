"""The check of annotations that the tests use is a check, and a function inside a function has it at first."""

import pytest
from beartype.roar import BeartypeCallHintParamViolation

from tests.annotations import ENOUGH, checked


def half(x: float) -> float:
    return x / 2


def test_a_wrong_argument_is_refused_and_an_int_may_stand_for_a_float():
    assert checked(half)(3) == 1.5
    for _ in range(ENOUGH + 1):  # however often it is decorated
        with pytest.raises(BeartypeCallHintParamViolation):
            checked(half)("3")


def test_a_function_inside_a_function_is_checked_when_it_is_made_the_first_times():
    def make():
        def inner(x: float) -> float:
            return x

        return checked(inner)

    for _ in range(ENOUGH):
        with pytest.raises(BeartypeCallHintParamViolation):
            make()("3")
    assert make()("3") == "3"
