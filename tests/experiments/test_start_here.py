"""What notebook 00 asks of the machine."""

import pytest
import torch

from mha_course.experiments import start_here
from mha_course.measure import PairedRatio


def test_machine_says_what_torch_says() -> None:
    found = start_here.machine()
    assert found["PyTorch"] == torch.__version__
    assert found["threads in lessons"] == str(torch.get_num_threads())
    assert all(isinstance(value, str) and value for value in found.values())


def test_backends_that_a_cpu_has() -> None:
    assert start_here.attention_backends("cpu") == ["math", "flash_attention"]


@pytest.mark.parametrize(
    ("capabilities", "units"),
    [
        ({}, "none found"),
        ({"amx_bf16": False, "avx512_bf16": True}, "AVX512_BF16"),
        ({"amx_bf16": True, "avx512_bf16": True}, "AMX, AVX512_BF16"),
    ],
)
def test_units(capabilities: dict, units: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert start_here.bfloat16_units() == units


def test_ratio_is_bfloat16_over_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def record(a, b, *, rounds: int) -> PairedRatio:
        seen.append((a().dtype, b().dtype, tuple(a().shape), rounds))
        return PairedRatio(2.0, 1.0, 3.0, 1.0)

    monkeypatch.setattr(start_here.measure, "paired_ratio", record)
    assert start_here.bfloat16_against_float32(width=5, rounds=7).median == 2.0
    assert seen == [(torch.bfloat16, torch.float32, (5, 5), 7)]


def test_without_units_runs_in_a_process_of_its_own_and_returns_its_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = start_here.subprocess.run

    def record(*args, **options):
        calls.append(options["env"]["ONEDNN_MAX_CPU_ISA"])
        return real(*args, **options)

    monkeypatch.setattr(start_here.subprocess, "run", record)
    assert start_here.bfloat16_without_units() > 0
    assert calls == ["AVX2"]
