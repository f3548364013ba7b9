"""All faults that `diagnose` finds by reproducing the numbers, in the order in which they are tried."""

import itertools
from collections.abc import Iterable, Iterator

from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.faults_causal import (
    CAUSAL,
    CAUSAL_INSIDE,
    CAUSAL_LATE,
    CAUSAL_MISSING,
    CAUSAL_UNASKED,
    TOP_LEFT,
    unasked,
)
from mha_course.checks.diagnosis.faults_folds import FOLDS
from mha_course.checks.diagnosis.faults_heads import BATCH, HEADS
from mha_course.checks.diagnosis.faults_keys import KEYS
from mha_course.checks.diagnosis.faults_mask import MASK
from mha_course.checks.diagnosis.faults_projections import ADDED, ROLES, SOURCES
from mha_course.checks.diagnosis.faults_scores import SCALE
from mha_course.checks.diagnosis.faults_softmax import SOFTMAX
from mha_course.checks.diagnosis.faults_tiles import TILED
from mha_course.checks.diagnosis.faults_values import VALUES

MODULE_ONLY = frozenset({"project", "split_q", "split_k", "split_v", "merge", "finish"})
RARE: tuple[Fault, ...] = (*FOLDS, *KEYS)  # no part of pairs: each pair of all faults costs its time
FAULTS: tuple[Fault, ...] = (
    *SCALE, *SOFTMAX, *SOURCES, *ROLES, *VALUES, *HEADS, *BATCH, *CAUSAL, *MASK, *RARE, *TILED
)  # fmt: skip


def of_functions() -> tuple[Fault, ...]:
    """The faults that a function of q, k and v can have."""
    return tuple(fault for fault in FAULTS if fault is ADDED or not fault.touches & MODULE_ONLY)


def pairs(faults: Iterable[Fault]) -> Iterator[tuple[Fault, Fault]]:
    """All pairs in different steps; tiles with a scale alone."""
    rare = {id(fault) for fault in RARE}
    plain = [fault for fault in faults if "attend" not in fault.changes and id(fault) not in rare]
    for one, two in itertools.combinations(plain, 2):
        if not one.touches & two.touches:
            yield one, two
    yield from itertools.product(TILED, SCALE[:-1])


__all__ = [
    "CAUSAL_INSIDE",
    "CAUSAL_LATE",
    "CAUSAL_MISSING",
    "CAUSAL_UNASKED",
    "FAULTS",
    "TOP_LEFT",
    "Fault",
    "of_functions",
    "pairs",
    "unasked",
]
