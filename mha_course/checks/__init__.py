"""Checks for the exercises: what is wrong with a solution, said in a sentence.

`check(name, fn)` compares a learner's function with the reference of the exercise `name`;
`tasks()` lists the names. `checks.probe` looks for leaks in any attention, also other people's.
"""

from mha_course.checks.engine import check, tasks
from mha_course.checks.verdict import Verdict

__all__ = ["Verdict", "check", "tasks"]
