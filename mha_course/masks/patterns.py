"""Sparse masks: few keys for each query.

A mask with few True makes attention see less, not cost less: `attention` and SDPA compute all T S
scores and hide most of them. What skips them is in `sparse`.
"""

import torch
from jaxtyping import Bool
from torch import Tensor

from mha_course.masks._inputs import check_bool, check_integer

Device = torch.device | str


def dilated(T: int, window: int, dilation: int, *, device: Device | None = None) -> Bool[Tensor, "T T"]:
    """Let each query see its own position and every dilation-th one before it: `window` keys in all.

    mask[t, s] = t - s is one of 0, dilation, 2 dilation, ..., (window - 1) dilation

    It reaches dilation times as far back as a window of as many keys. Layers of one dilation
    keep tokens apart whose distance is no multiple of it.

    Args:
        T: number of queries and of keys, at least 0.
        window: number of keys that a query sees, its own included, at least 1.
        dilation: distance from one to the next, at least 1, which is `sliding_window`.
        device: where the mask is made.

    Returns:
        Bool tensor (T, T), True = may attend.

    Raises:
        TypeError: T, window or dilation is not an integer.
        ValueError: T is negative; window or dilation is below 1.

    Source: Beltagy et al. 2020 (Longformer), section 3.1, there on both sides; d is our dilation.
    """
    window, dilation = check_integer("window", window, least=1), check_integer("dilation", dilation, least=1)
    T = check_integer("T", T)
    reach, dilation = min(window * dilation, T), min(dilation, max(T, 1))  # any larger is not an int64 at some point
    place = torch.arange(T, device=device)
    back = place[:, None] - place  # (T, T)
    return (back >= 0) & (back < reach) & (back % dilation == 0)


def blocks(
    layout: Bool[Tensor, "rows columns"], block: int, T: int | None = None, S: int | None = None
) -> Bool[Tensor, "T S"]:
    """Let whole blocks of queries see whole blocks of keys.

    mask[t, s] = layout[t // block, s // block]

    With torch.eye(n).bool() as layout, each token sees its own block; causal(n) adds all blocks
    before it. `sparse.block_sparse` takes the same layout and skips the other blocks.

    Args:
        layout: bool (T / block, S / block), rounded up.
        block: number of queries, and of keys, in a block, at least 1.
        T: number of queries, rows block if None; less cuts the last block.
        S: number of keys, columns block if None; likewise.

    Returns:
        Bool tensor (T, S) on layout's device, True = may attend.

    Raises:
        TypeError: layout is not a bool tensor; block, T or S is not an integer.
        ValueError: layout has other than two axes, or is not (T / block, S / block), rounded up;
            block is below 1; T or S is negative.

    Source: Child et al. 2019, section 5.5 (their blocks of 32 and 8).
    """
    check_bool("layout", layout)
    if layout.ndim != 2:
        raise ValueError(f"layout must have two axes (T / block, S / block), got {tuple(layout.shape)}")
    block = check_integer("block", block, least=1)
    T = layout.shape[0] * block if T is None else check_integer("T", T)
    S = layout.shape[1] * block if S is None else check_integer("S", S)
    want = (-(-T // block), -(-S // block))
    if tuple(layout.shape) != want:
        raise ValueError(f"layout must be (T / block, S / block) = {want}, rounded up, got {tuple(layout.shape)}")
    block = min(block, max(T, S, 1))
    row, column = (torch.arange(n, device=layout.device) // block for n in (T, S))
    return layout[row[:, None], column]


def random_links(
    T: int, links: int, *, generator: torch.Generator | None = None, device: Device | None = None
) -> Bool[Tensor, "T T"]:
    """Let each query see its own position and `links` of those before it, drawn at random.

    The links of a query are all different and equally likely; a query with fewer positions before
    it sees them all.

    Args:
        T: number of queries and of keys, at least 0.
        links: number of positions drawn for each query, at least 0.
        generator: what to draw from, on the device; PyTorch's own if None.
        device: where the mask is made.

    Returns:
        Bool tensor (T, T), True = may attend. No query sees what comes after it.

    Raises:
        TypeError: T or links is not an integer.
        ValueError: T or links is negative.

    Source: Zaheer et al. 2020 (BigBird), section 2, where r keys are drawn from the whole sequence.
    """
    T, links = check_integer("T", T), check_integer("links", links)
    # a half type, were it the default, would draw the same few numbers again and again
    draws = torch.rand(T, T, generator=generator, device=device, dtype=torch.float32)
    past = torch.ones_like(draws, dtype=torch.bool).tril(-1)
    chosen = draws.masked_fill(~past, -1.0).topk(min(links, T), dim=1).indices  # (T, links)
    own = torch.eye(T, dtype=torch.bool, device=device)
    return own | (torch.zeros_like(past).scatter(1, chosen, True) & past)
