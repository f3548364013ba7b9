"""Where the time of attention goes: what each step costs, what the machine could do, and what it does."""

from mha_course.profiling.counts import Cost, Counted, attention_costs, counted
from mha_course.profiling.roofline import Machine, measure_machine
from mha_course.profiling.steps import compare, step_times
from mha_course.profiling.trace import export_trace, operations

__all__ = [
    "Cost",
    "Counted",
    "Machine",
    "attention_costs",
    "compare",
    "counted",
    "export_trace",
    "measure_machine",
    "operations",
    "step_times",
]
