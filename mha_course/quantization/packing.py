"""Packing: several small codes in one byte, because no tensor has integers of 4 bits."""

import torch
from jaxtyping import Integer
from torch import Tensor


def codes_per_byte(bits: int) -> int:
    """Say how many codes of a width share a byte: 4 of 2 bits, 2 of 3 or 4; 1 above."""
    return max(8 // bits, 1)


def pack(codes: Integer[Tensor, "N K"], bits: int) -> Integer[Tensor, "N P"]:
    """Put symmetric codes of up to 8 bits into bytes, row by row.

    Args:
        codes: (N, K), from -(2^(bits-1) - 1) to 2^(bits-1) - 1.
        bits: 2 to 8.

    Returns:
        uint8 (N, P) with P = ceil(K / codes_per_byte(bits)). The first code of a byte stands in its lowest bits.
    """
    n = codes_per_byte(bits)
    shifted = torch.nn.functional.pad(codes.to(torch.int32) + 2 ** (bits - 1), (0, -codes.shape[-1] % n))
    places = torch.arange(n, device=codes.device) * (8 // n)
    return (shifted.unflatten(-1, (-1, n)) << places).sum(-1).to(torch.uint8)


def unpack(packed: Integer[Tensor, "N P"], bits: int, length: int) -> Integer[Tensor, "N K"]:
    """Take K = length codes of each row out of the bytes: int8 (N, K), what `pack` was given."""
    n = codes_per_byte(bits)
    places = torch.arange(n, device=packed.device) * (8 // n)
    codes = (packed.to(torch.int32).unsqueeze(-1) >> places) & (2 ** (8 // n) - 1)  # (N, P, n)
    return (codes.flatten(-2)[:, :length] - 2 ** (bits - 1)).to(torch.int8)
