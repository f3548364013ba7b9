"""Random states of a check's own, so that a candidate that draws gets one verdict."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def own_random_state() -> Iterator[None]:
    """Fixed random states inside, so that a solution that draws gets one verdict; restored after.

    NumPy's and Python's global states are those that a solution may draw from. PyTorch's gradient mode and its default
    type are restored as well.
    """
    kept, kept_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    gradients, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # torch.manual_seed would reseed GPUs too
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            yield
    finally:
        torch.set_grad_enabled(gradients)
        torch.set_default_dtype(dtype)
        random.setstate(kept)
        np.random.set_state(kept_numpy)  # noqa: NPY002
