"""Watching operations loads no compiler, which would take seconds of a learner's first check."""

import subprocess
import sys

import pytest
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mha_course.checks.watching import Watching, no_mode_left

CALLS = {
    "diagnose": "checks.diagnose(torch.nn.MultiheadAttention(12, 3, batch_first=True))",
    "check": "checks.check('tiled_attention', lambda q, k, v, block: tiled.attention("
    "*(x[None, None] for x in (q, k, v)), block_k=block)[0, 0])",
}


@pytest.mark.parametrize("name", CALLS)
def test_no_compiler_is_loaded(name: str) -> None:
    source = f"""
import sys
import torch
from mha_course import checks, tiled
verdict = {CALLS[name]}
assert verdict.ok, verdict
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=120)


def test_no_mode_is_left_on():
    """As a time limit that strikes while a mode is being left would leave it."""
    outer = Watching()
    with outer:
        with no_mode_left():
            Watching().__enter__()
            Watching().__enter__()
            TorchFunctionMode().__enter__()
        assert _get_current_dispatch_mode_stack() == [outer]
    assert not _get_current_dispatch_mode_stack()
    assert not _get_current_function_mode_stack()


def test_modes_that_were_left_stay_so():
    with no_mode_left(), Watching():
        pass
    assert not _get_current_dispatch_mode_stack()
