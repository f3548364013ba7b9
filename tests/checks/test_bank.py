"""The banks: every wrong attention is rejected and its fault named, no right one is, whatever its style.

The items were written without a look at how the check finds faults.
"""

import re

import pytest

from mha_course import checks
from tests.checks.bank.fourth_right import FOURTH_RIGHT, FOURTH_VARIANTS
from tests.checks.bank.fourth_wrong import FOURTH_WRONG
from tests.checks.bank.right import BADLY, EDGE, RIGHT, VARIANTS
from tests.checks.bank.second import SECOND_RIGHT, SECOND_WRONG
from tests.checks.bank.third import THIRD_WRONG
from tests.checks.bank.wrong import WRONG

pytestmark = pytest.mark.unchecked

WRONG = [*WRONG, *SECOND_WRONG, *THIRD_WRONG, *FOURTH_WRONG]
RIGHT = [*RIGHT, *SECOND_RIGHT, *FOURTH_RIGHT]
VARIANTS = [*VARIANTS, *FOURTH_VARIANTS]
PATIENCE = 100.0  # seconds: a busy machine is no fault of a candidate


def names(items):
    return [item.name for item in items]


def diagnosed(item, seconds=PATIENCE):
    return checks.diagnose(item.make(), **{**item.stated, "seconds": seconds})


def said(verdict):
    return f"{verdict!r}\n{verdict.names}"


@pytest.mark.parametrize("item", WRONG, ids=names(WRONG))
def test_wrong_is_rejected_and_named(item):
    verdict = diagnosed(item, seconds=1.0 if "endless_loop" in item.fault else PATIENCE)
    assert not verdict.ok, said(verdict)
    assert verdict.judged, said(verdict)
    found, also = set(verdict.names), set(item.also)
    assert found, said(verdict)
    assert found <= {*item.fault, *also}, said(verdict)
    assert all(name in found or found & also for name in item.fault), said(verdict)
    assert len(verdict.hints) in (2, 4), said(verdict)


@pytest.mark.parametrize("item", RIGHT, ids=names(RIGHT))
def test_right_is_accepted(item):
    verdict = diagnosed(item)
    assert verdict.ok, said(verdict)
    remark = getattr(item, "remark", "")
    if remark:
        assert re.search(remark, " ".join(verdict.remarks), re.IGNORECASE), said(verdict)


@pytest.mark.parametrize("item", EDGE, ids=names(EDGE))
def test_edge_gets_a_remark_and_no_condemnation(item):
    verdict = diagnosed(item)
    assert verdict.ok, said(verdict)
    if item.remark:
        assert re.search(item.remark, " ".join(verdict.remarks), re.IGNORECASE), said(verdict)


@pytest.mark.parametrize("item", VARIANTS, ids=names(VARIANTS))
def test_variant_is_right_with_a_remark_or_not_judged(item):
    verdict = diagnosed(item)
    if verdict.judged:
        assert verdict.ok, said(verdict)
        assert verdict.remarks, said(verdict)
    else:
        assert not verdict.ok
        assert verdict.hints, said(verdict)


@pytest.mark.parametrize("item", BADLY, ids=names(BADLY))
def test_bad_behaviour_has_a_verdict(item, capsys):
    wanted = set(item.expect.split(" | "))
    seconds = 1.0 if "seconds" in item.stated else PATIENCE
    if wanted == {"TypeError"}:
        with pytest.raises(TypeError, match="candidate must be a module, a class or a function, got "):
            diagnosed(item, seconds=seconds)
        return
    verdict = diagnosed(item, seconds=seconds)
    got = set(verdict.names) | ({"ok"} if verdict.ok else set()) | (set() if verdict.judged else {"not judged"})
    assert got & wanted, said(verdict)
    assert len(capsys.readouterr().out) < 5000


def test_the_banks_are_large():
    assert len(WRONG) >= 80
    assert len(RIGHT) >= 25
    assert len(checks.faults()) >= 45
