"""What a leak probe is told that calls its function on another size."""

import torch

from mha_course.checks import check
from tests.checks.test_tasks_09 import leak_probe


def one_at_a_time(fn, x):
    """A layer that has a mask for each sample takes each for the first."""
    return torch.stack([leak_probe(fn, x[b : b + 1]) for b in range(len(x))]).any(0)


def test_a_probe_of_one_sample_after_another_is_named():
    verdict = check("leak_probe", one_at_a_time)
    assert (verdict.fault or "").startswith("one sample alone is looked at"), verdict
    assert (verdict.fault or "").endswith(", or fn is given one sample at a time")


def test_an_unknown_fault_is_told_to_keep_the_size():
    verdict = check("leak_probe", lambda fn, x: leak_probe(fn, x) & (torch.arange(x.shape[1]) % 2 == 0))
    assert verdict.fault == "moves differs from the reference"
    assert len(verdict.hints) == 2
    assert (
        "call fn on tensors of the shape of x, since other sizes round differently" in " ".join(verdict.hints).lower()
    )
