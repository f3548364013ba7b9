"""At the edges: float16, where a fill may not fit, and rows that may attend to nothing."""

import copy

import torch
from torch import nn

from mha_course.checks.diagnosis.conduct import Finding, called
from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.search import Match
from mha_course.checks.diagnosis.steps import Inputs
from mha_course.checks.diagnosis.subject import Subject

FILL = Fault(
    "fill_value_overflows_half",
    "with a mask it raises in float16: the number it fills in is larger than float16 has",
    {},
    ("Call it in float16 with a mask.", "Fill in -inf, or torch.finfo(scores.dtype).min."),
)


def overflows_half(subject: Subject, match: Match) -> Finding | None:
    """Whether a mask makes it raise in float16, as a fill of -1e9 does."""
    if not subject.how.takes_mask:
        return None
    name = next(iter(subject.sizes()))
    x = subject.outcome(match.form, name, axes=match.form.axes)[0]
    fn = copy.deepcopy(subject.fn).half() if isinstance(subject.fn, nn.Module) else subject.fn
    x = Inputs(x.query.half(), x.key.half(), x.value.half(), x.mask)
    if not subject.how.crosses:
        x = x._replace(key=x.query, value=x.query)
    try:
        with torch.no_grad():
            called(subject, match, x, fn)
    except (KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:
        if "without overflow" in str(error):
            return Finding(FILL, str(error).splitlines()[0])
    return None


def empty_rows(subject: Subject, match: Match) -> str:
    """What becomes of a row that may attend to nothing, "" if it gives 0 as the course's attention."""
    if not subject.how.takes_mask:
        return ""
    x = subject.inputs(subject.sizes()["even"], match.form.layout, axes=match.form.axes)
    assert x.mask is not None
    mask = x.mask.clone()
    if match.form.axes == "B S":
        mask[0] = False
    else:
        mask[..., 0, :] = False
    x = x._replace(mask=mask)
    got = subject.call(match.form, x)
    if got.out is None:
        return "A row that may attend to nothing makes it raise."
    rows = got.out[0] if match.form.axes == "B S" else got.out[..., 0, :]
    if rows.isnan().any():
        return "A row that may attend to nothing becomes NaN."
    right = subject.reference(match.reading, x, match.changes).out
    right = right[0] if match.form.axes == "B S" else right[..., 0, :]
    if torch.allclose(rows, right, 1e-6, 1e-6):
        return ""
    flat = x._replace(mask=None)
    mean = {**match.changes, "normalize": lambda s: torch.full_like(s, 1 / s.shape[-1])}
    uniform = subject.reference(match.reading, flat, mean).out
    uniform = uniform[0] if match.form.axes == "B S" else uniform[..., 0, :]
    if torch.allclose(rows, uniform, 1e-5, 1e-5):
        return "A row that may attend to nothing gets the mean of all values, hidden ones too."
    return "A row that may attend to nothing gets other numbers than 0."
