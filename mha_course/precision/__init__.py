"""Half the bits: number formats, what autocast does with them, and a training step that is right in them."""

from mha_course.precision.amp import AmpStep, amp_step
from mha_course.precision.dtypes import DtypeTrace, Op, trace_dtypes
from mha_course.precision.errors import Errors, errors_against_float64
from mha_course.precision.formats import FORMATS, Bits, Format, Neighbours
from mha_course.precision.machine import instruction_set
from mha_course.precision.softmax import SoftmaxSteps, softmax_in, stable_softmax

__all__ = [
    "FORMATS",
    "AmpStep",
    "Bits",
    "DtypeTrace",
    "Errors",
    "Format",
    "Neighbours",
    "Op",
    "SoftmaxSteps",
    "amp_step",
    "errors_against_float64",
    "instruction_set",
    "softmax_in",
    "stable_softmax",
    "trace_dtypes",
]
