"""Checks: what is wrong with a solution, or with any attention, said in a sentence.

`check(name, fn)` compares a learner's function with the reference of the exercise `name`; `tasks()` lists the names.
`diagnose(candidate)` names the fault in any module or function that should be attention; `faults()` lists what it
knows. `checks.probe` looks for leaks. `python -m mha_course.checks FILE.py:NAME` judges a file in a process of its own.
"""

from mha_course.checks.diagnosis.entry import diagnose, faults
from mha_course.checks.engine import check, tasks
from mha_course.checks.verdict import Verdict

__all__ = ["Verdict", "check", "diagnose", "faults", "tasks"]
