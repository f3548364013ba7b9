"""The hold-out bank, written after the first one and not used to build the checks: no right one is called wrong.

Its wrong ones are there to measure how many are rejected and named, which no test asserts.
"""

import pytest

from mha_course import checks
from tests.checks.bank.second import SECOND_RIGHT

pytestmark = pytest.mark.unchecked


@pytest.mark.parametrize("item", SECOND_RIGHT, ids=[item.name for item in SECOND_RIGHT])
def test_no_right_one_is_called_wrong(item):
    verdict = checks.diagnose(item.make(), **item.stated)
    assert verdict.ok or not verdict.judged, verdict
