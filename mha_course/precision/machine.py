"""What computes here: the name that belongs beside a time or an error of this machine."""

import os
import platform
from collections.abc import Mapping
from typing import Any

import torch

_X86 = {"AVX512": "AVX-512", "AVX2": "AVX2"}


def instruction_set(device: torch.device | str = "cpu") -> str:
    """Name the device, or the best instructions of the processor that PyTorch uses for low types.

    PyTorch may be told to use fewer than there are (`ATEN_CPU_CAPABILITY`); then those are named. A limit of oneDNN,
    which makes the products (`ONEDNN_MAX_CPU_ISA`), is named too.

    Args:
        device: "cpu", "cuda" or another.

    Returns:
        "CPU with AMX", "CPU with AVX-512 and bfloat16", "CPU with AVX-512", "CPU with AVX2", "CPU with NEON", the
        last also with " and bfloat16"; else what PyTorch or the system calls it. With a limit of oneDNN also
        ", oneDNN limited to AVX2", for instance. For a GPU its name.
    """
    device = torch.device(device)
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"
    if device.type != "cpu":
        return device.type
    used, has = torch.backends.cpu.get_cpu_capability(), _capabilities()
    if used == "AVX512" and has.get("amx_bf16"):
        return f"CPU with AMX{_limit()}"
    name = _X86.get(used, "NEON" if platform.machine().lower() in ("arm64", "aarch64") else used)
    if has.get("avx512_bf16" if used == "AVX512" else "bf16" if name == "NEON" else ""):
        name += " and bfloat16"
    return f"CPU with {name}{_limit()}"


def _limit() -> str:
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    return "" if limit in ("", "ALL", "DEFAULT") else f", oneDNN limited to {limit}"


def _capabilities() -> Mapping[str, Any]:
    """What the processor has; nothing where PyTorch cannot say."""
    try:
        return torch.cpu.get_capabilities()
    except (AttributeError, RuntimeError):  # older, or a processor that it does not know
        return {}
