"""The checks of the exercises against a bank that was written without them: each fault named, no right one refused."""

import re
from collections import Counter

import pytest

from mha_course.checks import check, tasks
from tests.checks import bank_exercises as bank

bank.load()


def test_the_bank_covers_every_exercise():
    wrong, right = (Counter(item.task for item in items) for items in (bank.WRONG, bank.RIGHT))
    assert set(wrong) == set(right) == set(tasks())
    assert min(wrong.values()) >= 3
    names = [item.name for item in (*bank.WRONG, *bank.RIGHT)]
    assert len(set(names)) == len(names)


def test_no_match_takes_a_sentence_that_names_nothing():
    empty = ("the numbers differ from the reference", "the result differs from the reference", "not right yet")
    assert not [item.name for item in bank.WRONG for words in empty if re.search(item.match, words, re.IGNORECASE)]


@pytest.mark.parametrize("item", bank.WRONG, ids=lambda item: item.name)
def test_a_wrong_solution_is_named(item):
    verdict = check(item.task, item.fn)
    assert not verdict.ok, item.said
    assert re.search(item.match, verdict.fault, re.IGNORECASE), f"{item.said}\nverdict: {verdict.fault}"


@pytest.mark.parametrize("item", bank.RIGHT, ids=lambda item: item.name)
def test_a_right_solution_is_accepted(item):
    verdict = check(item.task, item.fn)
    assert verdict.ok, f"{verdict.fault}\n{verdict.evidence}"
