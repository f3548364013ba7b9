"""Functions that never come back, each in another way."""

import time

import torch

from tests.checks.bank.badly import right
from tests.checks.bank.right_item import Badly


def loops(q, k, v, mask=None):
    while True:
        pass


def loops_catching(q, k, v, mask=None):
    while True:
        try:
            q @ k.mT
        except Exception:
            pass


def loops_catching_all(q, k, v, mask=None):
    while True:
        try:
            time.sleep(0.01)
        except:  # noqa: E722
            pass


def sleeps(q, k, v, mask=None):
    while True:
        time.sleep(10**6)


def loops_with_a_mask(q, k, v, mask=None):
    while mask is not None:
        pass
    return right(q, k, v)


def loops_in_torch(q, k, v, mask=None):
    x = torch.eye(200)
    while x.isfinite().all():
        x = x @ x
    return x


ITEMS = [
    Badly(f.__name__, lambda f=f: f, "endless_loop", {"seconds": 3})
    for f in (loops, loops_catching, loops_catching_all, sleeps, loops_with_a_mask, loops_in_torch)
]
