"""The name of what computes."""

import platform

import pytest
import torch

from mha_course.precision import instruction_set


@pytest.mark.parametrize(
    ("used", "has", "processor", "want"),
    [
        ("AVX512", {"amx_bf16": True, "avx512_bf16": True}, "x86_64", "CPU with AMX"),
        ("AVX512", {"avx512_bf16": True}, "x86_64", "CPU with AVX-512 and bfloat16"),
        ("AVX512", {"avx512_bf16": False}, "x86_64", "CPU with AVX-512"),
        ("AVX2", {"amx_bf16": True, "avx512_bf16": True}, "x86_64", "CPU with AVX2"),
        ("DEFAULT", {"bf16": True}, "aarch64", "CPU with NEON and bfloat16"),
        ("DEFAULT", {}, "arm64", "CPU with NEON"),
        ("DEFAULT", {"bf16": True}, "x86_64", "CPU with DEFAULT"),
        ("VSX", {}, "ppc64le", "CPU with VSX"),
    ],
)
def test_processor(monkeypatch, used, has, processor, want):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: used)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert instruction_set() == want
    assert instruction_set(torch.device("cpu")) == want
    for limit, said in (("avx2", ", oneDNN limited to AVX2"), ("ALL", "")):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        assert instruction_set() == want + said


def test_pytorch_cannot_say(monkeypatch):
    def fails():
        raise RuntimeError

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.cpu, "get_capabilities", fails)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert instruction_set() == "CPU with AVX-512"


def test_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert instruction_set("cuda:1") == "GPU 1, compute capability 8.6"


def test_another_device():
    assert instruction_set("mps") == "mps"
