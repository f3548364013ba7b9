"""The patients of explorer `clinic`, and what each measurement finds: small modules, measured for real."""

from collections.abc import Callable
from functools import cache
from itertools import combinations
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.checks import probe
from mha_course.masks import causal, padding
from mha_course.multihead import MultiHeadAttention

HEALTHY, NO_SCALE, QUERIES, LATE = "healthy", "no scale", "wrong axis", "late mask"
INVERTED, OTHERS, SCORES = "inverted mask", "wrong padding", "early dropout"
SPLIT, MERGE, SWAPPED = "wrong split", "wrong merge", "batch as time"
DIAGNOSES = {
    HEALTHY: "nothing is wrong with it",
    NO_SCALE: "the scores are not divided by the root of D",
    QUERIES: "the softmax runs over the queries",
    LATE: "the mask comes after the softmax",
    INVERTED: "the mask hides what it should show",
    OTHERS: "some heads get another sample's padding",
    SCORES: "dropout comes before the softmax",
    SPLIT: "the split into heads lacks its transpose",
    MERGE: "the merge of the heads lacks its transpose",
    SWAPPED: "samples are attended to in place of tokens",
}
PATIENTS = (LATE, SCORES, OTHERS, MERGE, HEALTHY, QUERIES, SWAPPED, NO_SCALE, SPLIT, INVERTED)  # 1, 2, ...
MEASUREMENTS = ("values", "row sums", "gradient", "leak probe", "overfit")

SIZE, WIDTH, HEADS = 5, 32, 2  # B = T, or a batch taken for time would raise
LENGTHS = (5, 3, 4, 5, 2)  # real tokens of each sample
SAMPLE, ROW = 3, 2  # of the output whose gradient is taken
STEPS, RATE, CLASSES, DROPOUT = 30, 5e-3, 4, 0.1
TOLERANCE, LEARNED = 1e-9, 0.9
STILL, MOVES, LEAK, BLIND = range(4)  # must not and does not, may and does, must not and does, may and does not


class Finding(NamedTuple):
    """What one measurement of a patient shows."""

    data: ndarray  # to be drawn
    sign: tuple[object, ...]  # what it tells, in few categories: the ground for a diagnosis
    said: str
    passes: int  # forward and backward passes through a module that it took


class Patient(nn.Module):
    """Causal multi-head attention over padded samples, with one fault or none."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.calls = fault, 0
        with torch.random.fork_rng(devices=[]):
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                setattr(self, name, nn.Linear(WIDTH, WIDTH, dtype=torch.float64))
        self.load_state_dict(_reference().state_dict())

    def trace(self, x: Float[Tensor, "B T E"], lengths: Int[Tensor, " B"]) -> tuple[Tensor, Tensor]:
        """Weights (B, H, T, S) and out (B, T, E)."""
        self.calls += 1
        x = x.transpose(0, 1) if self.fault == SWAPPED else x
        q, k, v = (self._split(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))  # (B, H, T, D)
        weights = self._weights(q, k, self._mask(lengths))
        if self.fault != SCORES:
            weights = F.dropout(weights, DROPOUT, self.training)
        heads = weights @ v  # (B, H, T, D)
        merged = (heads if self.fault == MERGE else heads.transpose(1, 2)).reshape(x.shape)  # (B, T, E)
        out = self.out_proj(merged)
        return weights, out.transpose(0, 1) if self.fault == SWAPPED else out

    def forward(self, x: Float[Tensor, "B T E"], lengths: Int[Tensor, " B"]) -> Float[Tensor, "B T E"]:
        """The output alone."""
        return self.trace(x, lengths)[1]

    def _split(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        if self.fault == SPLIT:
            return x.reshape(B, HEADS, T, WIDTH // HEADS)
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def _mask(self, lengths: Tensor) -> Tensor:
        real = padding(lengths, SIZE)  # (B, 1, 1, S)
        if self.fault == OTHERS:  # repeated in the wrong order: samples in turn, not heads
            real = real[:, 0].repeat(HEADS, 1, 1).view(SIZE, HEADS, 1, SIZE)
        mask = causal(SIZE) & real
        return ~mask if self.fault == INVERTED else mask

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        scale = 1.0 if self.fault == NO_SCALE else q.shape[-1] ** -0.5
        scores = scale * q @ k.transpose(-2, -1)  # (B, H, T, S)
        if self.fault == SCORES:
            scores = F.dropout(scores, DROPOUT, self.training)
        if self.fault == LATE:
            return scores.softmax(-1) * mask
        axis = -2 if self.fault == QUERIES else -1
        scores = scores.masked_fill(~mask, -torch.inf)
        return scores.softmax(axis).nan_to_num(0)  # rows that see nothing


@cache
def measure(fault: str, name: str) -> Finding:
    """Take one measurement of a patient."""
    return _TAKE[name](Patient(fault).eval())


@cache
@torch.no_grad()
def complaint(fault: str) -> str:
    """What an owner sees without any tool: that an answer changes with what it should not depend on."""
    drawn, patient = _drawn(), Patient(fault).eval()
    before = patient(drawn.x, drawn.lengths)
    own = torch.arange(SIZE) == SAMPLE
    batch = torch.where(own[:, None, None], drawn.x, drawn.other), torch.where(own, drawn.lengths, SIZE - 1)
    if not torch.equal(before[SAMPLE], patient(*batch)[SAMPLE]):
        return "the same sample gets another answer in another batch"
    first = slice(0, ROW + 1)
    ends = torch.cat([drawn.x[:, first], drawn.other[:, ROW + 1 :]], dim=1)
    if not torch.equal(before[:, first], patient(ends, drawn.lengths)[:, first]):
        return "answers to the first tokens change with the last ones"
    return "it learns, but its owner had hoped for more"


def fitting(fault: str, taken: tuple[str, ...]) -> tuple[str, ...]:
    """The diagnoses that explain the complaint and everything that was measured of a patient."""

    def fits(other: str) -> bool:
        same = (measure(other, name).sign == measure(fault, name).sign for name in taken)
        return complaint(other) == complaint(fault) and all(same)

    return tuple(other for other in DIAGNOSES if fits(other))


@cache
def fewest(fault: str) -> tuple[str, ...]:
    """The fewest measurements after which one diagnosis alone fits; of these the cheapest."""
    every = (taken for count in range(len(MEASUREMENTS) + 1) for taken in combinations(MEASUREMENTS, count))
    order = sorted(every, key=lambda taken: (len(taken), sum(measure(fault, name).passes for name in taken)))
    return next(taken for taken in order if fitting(fault, taken) == (fault,))


@cache
def allowed() -> Bool[ndarray, "B T S"]:
    """What may move each row: the keys that its query may attend to, and its own token, which asks."""
    mask = causal(SIZE) & padding(torch.tensor(LENGTHS), SIZE)
    return (mask[:, 0] | torch.eye(SIZE, dtype=torch.bool)).numpy()


def _values(patient: Patient) -> Finding:
    """(2, T): largest difference of a row from the reference with the same parameters, of weights and out."""
    drawn = _drawn()
    right = _reference().trace(drawn.x, mask=causal(SIZE) & padding(drawn.lengths, SIZE))
    ours = patient.trace(drawn.x, drawn.lengths)
    pairs = zip(ours, (right.weights, right.out), strict=True)
    data = torch.stack([(a - b).abs().transpose(0, -2).flatten(1).amax(1) for a, b in pairs]).detach().numpy()
    equal = tuple(int(count) for count in (data < TOLERANCE).sum(axis=1))
    said = f"equal rows: weights {equal[0]} of {SIZE}, out {equal[1]} of {SIZE}"
    return Finding(data, equal, said, patient.calls + 1)


def _row_sums(patient: Patient) -> Finding:
    """(2, B H T): sums of the rows of weights, in evaluation and in training."""
    drawn = _drawn()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = [patient.train(mode).trace(drawn.x, drawn.lengths)[0] for mode in (False, True)]
    data = torch.stack([x.sum(-1).flatten() for x in weights]).detach().numpy()
    off = data - 1
    kinds = (abs(off) < TOLERANCE, data == 0, (off < -TOLERANCE) & (data > 0), off > TOLERANCE)
    sign = (*(bool(kind[0].any()) for kind in kinds), bool(kinds[0][1].all()))
    ones, zeros = kinds[0].sum(axis=1), kinds[1].sum(axis=1)
    said = f"of {data.shape[1]} rows {ones[0]} are 1, {zeros[0]} are 0; in training {ones[1]} are 1"
    return Finding(data, sign, said, patient.calls)


def _gradient(patient: Patient) -> Finding:
    """(B, S): at which tokens one row of out has a gradient, as a verdict each."""
    drawn, may = _drawn(), np.zeros((SIZE, SIZE), dtype=bool)
    may[SAMPLE] = allowed()[SAMPLE, ROW]
    x = drawn.x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(patient(x, drawn.lengths)[SAMPLE, ROW].sum(), x)
    data = _judge((gradient != 0).any(-1).numpy(), may)
    own, others = data[SAMPLE], np.delete(data, SAMPLE, axis=0)
    sign = tuple(bool(x.any()) for x in (own == LEAK, others == LEAK, own == BLIND))
    return Finding(data, sign, _count(data), patient.calls + 1)


def _leak_probe(patient: Patient) -> Finding:
    """(B T, B S): which row moves with which token, as a verdict each; with another sample all rows or none."""
    drawn, may = _drawn(), allowed()
    with torch.no_grad():
        leaks = probe.leaks(lambda x: patient(x, drawn.lengths), drawn.x)
    own = _judge(leaks.moves.numpy(), may)  # (B, T, S)
    data = np.repeat(np.repeat(_judge(leaks.samples.numpy(), np.eye(SIZE, dtype=bool)), SIZE, 0), SIZE, 1)
    for b in range(SIZE):
        data[b * SIZE : (b + 1) * SIZE, b * SIZE : (b + 1) * SIZE] = own[b]
    at = np.arange(SIZE)
    later, hidden = at > at[:, None], at >= np.array(LENGTHS)[:, None, None]
    between = bool((data == LEAK).sum() > (own == LEAK).sum())
    sign = (*(bool(((own == LEAK) & x).any()) for x in (later, hidden)), between, bool((own == BLIND).any()))
    return Finding(data, sign, _count(data), patient.calls)


def _overfit(patient: Patient) -> Finding:
    """(steps + 1,): share of drawn labels that is right, of one batch without dropout, before training and on.

    Adam is written out: the first step of one of PyTorch's optimizers loads its compiler, which takes a second.
    """
    drawn, right = _drawn(), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        last = nn.Linear(WIDTH, CLASSES, dtype=torch.float64)
    tensors = [*patient.parameters(), *last.parameters()]
    means, squares = ([torch.zeros_like(x) for x in tensors] for _ in range(2))
    for step in range(1, STEPS + 2):
        logits = last(patient(drawn.x, drawn.lengths)).flatten(0, 1)
        right.append(float((logits.argmax(-1) == drawn.labels).double().mean()))
        if step > STEPS:
            break
        gradients = torch.autograd.grad(F.cross_entropy(logits, drawn.labels), tensors)
        for x, gradient, mean, square in zip(tensors, gradients, means, squares, strict=True):
            mean.lerp_(gradient, 1 - 0.9)
            square.lerp_(gradient**2, 1 - 0.999)
            x.data -= RATE * mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
    return Finding(
        np.array(right), (right[-1] > LEARNED,), f"{right[-1]:.2f} right after {STEPS} steps", patient.calls + STEPS
    )


_TAKE: dict[str, Callable[[Patient], Finding]] = dict(
    zip(MEASUREMENTS, (_values, _row_sums, _gradient, _leak_probe, _overfit), strict=True)
)


def _judge(moves: Bool[ndarray, "..."], may: Bool[ndarray, "..."]) -> Int[ndarray, "..."]:
    return np.select([moves & may, moves, may], [MOVES, LEAK, BLIND], STILL)


def _count(data: Int[ndarray, "..."]) -> str:
    return f"leaks {(data == LEAK).sum()}, blind {(data == BLIND).sum()}"


@cache
def _reference() -> MultiHeadAttention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MultiHeadAttention(WIDTH, HEADS, dropout=DROPOUT, dtype=torch.float64).eval()


@cache
def _drawn() -> SimpleNamespace:
    """A batch, tokens of another one, and a label for each token."""
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(2, SIZE, SIZE, WIDTH, generator=generator, dtype=torch.float64)  # (B, T, E) each
    # Two rows that see nothing under an inverted mask have one output, and here one label.
    labels = torch.randint(CLASSES, (SIZE * SIZE,), generator=generator.manual_seed(8))
    return SimpleNamespace(x=x, other=other, labels=labels, lengths=torch.tensor(LENGTHS))
