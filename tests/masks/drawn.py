"""What the tests of masks share: a mask as text, and the integer types."""

import torch
from torch import Tensor

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]


def drawn(mask: Tensor) -> list[str]:
    """One string a row: x where the query may attend."""
    assert mask.dtype == torch.bool
    return ["".join("x" if may else "." for may in row) for row in mask.tolist()]
