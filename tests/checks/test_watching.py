"""Watching operations loads no compiler, which would take seconds of a learner's first check."""

import subprocess
import sys

import pytest

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
