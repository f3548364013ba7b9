"""Experiments of notebook 00: what this machine offers, and what bfloat16 costs on it."""

import os
import platform
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from mha_course import measure


def machine() -> dict[str, str]:
    """Say what this machine offers to the lessons.

    Returns:
        Name -> value, as text: PyTorch's version, cores and threads, instruction sets for
        bfloat16, accelerators, and the backends of `scaled_dot_product_attention` that ran.
    """
    device = accelerator()
    return {
        "PyTorch": torch.__version__,
        "Python": platform.python_version(),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "threads in lessons": str(torch.get_num_threads()),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "bfloat16 units": bfloat16_units(),
        "accelerator": "none" if device == "cpu" else device,
        "attention backends": ", ".join(attention_backends(device)),
    }


def accelerator() -> str:
    """Name the device type of an accelerator if there is one, else "cpu"."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if device is None else device.type


def bfloat16_units() -> str:
    """Name the processor's units for bfloat16 products, "none found" if there are none."""
    found = torch.cpu.get_capabilities()
    names = {"amx_bf16": "AMX", "avx512_bf16": "AVX512_BF16"}
    return ", ".join(name for key, name in names.items() if found.get(key)) or "none found"


def attention_backends(device: str) -> list[str]:
    """Try each backend of `scaled_dot_product_attention` on a small float32 input.

    Args:
        device: device type, such as "cpu" or "cuda".

    Returns:
        Names of the backends that ran, in lower case.
    """
    q = torch.zeros(1, 1, 8, 8, device=device)
    ran = []
    for backend in (
        SDPBackend.MATH,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
    ):
        try:
            with sdpa_kernel(backend):
                scaled_dot_product_attention(q, q, q)
        except RuntimeError:
            continue
        ran.append(backend.name.lower())
    return ran


def bfloat16_against_float32(width: int = 256, rounds: int = 15) -> measure.PairedRatio:
    """Time one matrix product in bfloat16 against the same product in float32, on the CPU.

    Args:
        width: of both matrices, (width, width).
        rounds: pairs of timings.

    Returns:
        Seconds in bfloat16 divided by seconds in float32; below 1 means bfloat16 is faster.
    """
    a, b = torch.randn(2, width, width)
    low_a, low_b = a.bfloat16(), b.bfloat16()
    return measure.paired_ratio(lambda: low_a @ low_b, lambda: a @ b, rounds=rounds)


def bfloat16_without_units() -> float:
    """Repeat `bfloat16_against_float32` in a new process that may not use bfloat16 units.

    Returns:
        The median ratio. On a processor other than x86 the switches do nothing.

    Raises:
        subprocess.CalledProcessError: the new process failed.
    """
    older = {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OMP_NUM_THREADS": "1",
    }
    said = subprocess.run(
        [sys.executable, "-m", __name__],
        env=os.environ | older,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return float(said)


if __name__ == "__main__":
    print(bfloat16_against_float32().median)
