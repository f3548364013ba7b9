"""Trainings of notebook 08: a head that should sometimes do nothing, and a decoder whose parts are taken away."""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.block import Block, Norm
from mha_course.cache import KVCache
from mha_course.dot_product import AttentionTrace, attention
from mha_course.experiments.scaling_training import at_least
from mha_course.models import Decoder
from mha_course.training import fit

Maybe = Bool[Tensor, "..."] | None
CLASSES, KEYS, HEAD_DIM, WIDTH, BATCH = 16, 8, 16, 4, 64  # of `idle_head`
PLACES = ("none", "first token", "sink logit", "gate")
TASKS = ("absent", "told")
VOCABULARY, LENGTH, EMBED_DIM, HEADS, NO_ANSWER = 16, 16, 32, 4, -100  # of `train_decoder`
PARTS = ("all", "no skip", "no MLP", "no norm")


class Idle(NamedTuple):
    """How well trained heads do nothing when they should; one entry a run.

    Attributes:
        idle_error: mean squared error of the output where it should be 0. The mean of 8 values has 1/8.
        busy_error: the same where it should be a value, which has variance 1.
        idle_sink, busy_sink: weight on the place for nothing in both cases; 0 where there is none.
        idle_largest: largest weight on one key with a value, where the output should be 0.
        first_value: length of the first token's value; about 2 before the training.
    """

    idle_error: Float[np.ndarray, " runs"]
    busy_error: Float[np.ndarray, " runs"]
    idle_sink: Float[np.ndarray, " runs"]
    busy_sink: Float[np.ndarray, " runs"]
    idle_largest: Float[np.ndarray, " runs"]
    first_value: Float[np.ndarray, " runs"]


class Asked(NamedTuple):
    """Questions to `Heads`, for R runs: who asks, keys and values, whether nothing is wanted, and the answer."""

    query: Integer[Tensor, "R B"]
    keys: Integer[Tensor, "R B S"]
    values: Float[Tensor, "R B S width"]
    idle: Bool[Tensor, "R B"]
    answer: Float[Tensor, "R B width"]


class Heads(nn.Module):
    """R heads of attention side by side, one a run: learned queries and keys for each class, given values.

    place "none": nothing else. "first token": one more token, with a learned key and a learned value. "sink logit":
    one more score, learned, with value 0. "gate": the output times sigmoid(g . q + b), with learned g and b.
    """

    def __init__(self, place: str, runs: int) -> None:
        super().__init__()
        self.place = place
        self.query = nn.Parameter(torch.randn(runs, CLASSES + 1, HEAD_DIM))  # the last: a query with no question
        self.key = nn.Parameter(torch.randn(runs, CLASSES, HEAD_DIM))
        self.first_key = nn.Parameter(torch.randn(runs, 1, 1, HEAD_DIM))
        self.first_value = nn.Parameter(torch.randn(runs, 1, 1, WIDTH))
        self.sink = nn.Parameter(torch.zeros(runs, 1, 1, 1))
        self.gate = nn.Parameter(torch.zeros(runs, 1, HEAD_DIM))
        self.gate_bias = nn.Parameter(torch.zeros(runs, 1, 1))

    def forward(
        self, query: Integer[Tensor, "R B"], keys: Integer[Tensor, "R B S"], values: Float[Tensor, "R B S width"]
    ) -> AttentionTrace:
        """Return (scores, weights, out); what was added for nothing comes first, and out is (R, B, 1, width)."""
        run = torch.arange(len(query))
        q = self.query[run[:, None], query][:, :, None]  # (R, B, 1, D)
        k, bias = self.key[run[:, None, None], keys], None  # (R, B, S, D)
        if self.place in ("first token", "sink logit"):
            first = self.place == "first token"
            more_k, more_v = (x if first else torch.zeros_like(x) for x in (self.first_key, self.first_value))
            k = torch.cat([more_k.expand(-1, k.shape[1], -1, -1), k], dim=2)  # (R, B, 1 + S, D)
            values = torch.cat([more_v.expand(-1, k.shape[1], -1, -1), values], dim=2)  # (R, B, 1 + S, width)
            bias = None if first else F.pad(self.sink, (0, KEYS))
        trace = attention(q, k, values, score_bias=bias)
        if self.place != "gate":
            return trace
        opened = ((q[:, :, 0] * self.gate).sum(-1, keepdim=True) + self.gate_bias).sigmoid()  # (R, B, 1)
        return trace._replace(out=trace.out * opened[:, :, None])


def idle_head(place: str, task: str, *, runs: int = 8, steps: int = 200, lr: float = 3e-2, seed: int = 0) -> Idle:
    """Train heads to fetch the value of a key, and to return 0 in half of the cases, with a place for nothing or not.

    Of 16 classes 8 stand in the sequence, each with a value N(0, 1) of width 4. The query asks for one.

    task "absent": half of the queries ask for a class that is not there. "told": they all ask for one that is there,
    but half of them are replaced by a query that wants nothing.

    Weights of a softmax sum to 1. Without a place for nothing a head can only spread them, and the mean of 8 values
    still has variance 1/8. A gate sees the query alone: it helps where the query says that nothing is wanted. Where
    only the keys can tell, it can make the output smaller, found or not: at a factor of 8/9 the sum of both errors,
    (1 - 1/9)^2 / 8 + (1/9)^2 = 1/9, is least, hardly below the 1/8 without a gate.

    Args:
        place: one of PLACES, see `Heads`.
        task: one of TASKS.
        runs: number of heads, each with its own start and its own data.
        steps: updates with Adam on 64 new questions each.
        lr: learning rate.
        seed: of the start and of the training data; all are tested on other data, the same for every place.

    Returns:
        Idle(idle_error, busy_error, idle_sink, busy_sink, idle_largest, first_value).

    Raises:
        TypeError: runs or steps is not an integer.
        ValueError: another place or task; runs or steps below 1; lr below 0 or not finite.

    Source: Xiao et al. 2023, "Efficient streaming language models with attention sinks", section 3 (first tokens);
        a sink logit: gpt-oss 2025; with logit 0 it is Miller 2023, "Attention is off by one"; a gate: Qiu et al. 2025,
        "Gated attention for large language models", section 2.
    """
    for name, value, known in (("place", place, PLACES), ("task", task, TASKS)):
        if value not in known:
            raise ValueError(f"{name} must be one of {known}, got {value!r}")
    at_least("runs", runs, 1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        heads = Heads(place, runs)
    generator = torch.Generator().manual_seed(seed)
    drawn = (ask(task, runs, BATCH, generator) for _ in itertools.count())
    batches = ((*asked[:3], asked.answer) for asked in drawn)
    # a sum over the runs: each gets the gradient that it would have alone
    fit(heads, batches, loss=lambda trace, y: _errors(trace, y).mean(1).sum(), steps=steps, lr=lr)
    asked = ask(task, runs, 1000, torch.Generator().manual_seed(1_000_000 + seed))
    with torch.no_grad():
        trace = heads(*asked[:3])
    weights = trace.weights[:, :, 0]
    sink = weights[..., 0] if weights.shape[-1] > KEYS else torch.zeros_like(weights[..., 0])
    largest = weights[..., -KEYS:].amax(-1)
    error, idle = _errors(trace, asked.answer), asked.idle

    def mean(x: Float[Tensor, "R B"], where: Bool[Tensor, "R B"]) -> Float[np.ndarray, " R"]:
        return ((x * where).sum(1) / where.sum(1)).double().numpy()

    first_value = heads.first_value.detach().norm(dim=-1).flatten().double().numpy()
    errors, sinks = ([mean(x, where) for where in (idle, ~idle)] for x in (error, sink))
    return Idle(errors[0], errors[1], sinks[0], sinks[1], mean(largest, idle), first_value)


def ask(task: str, runs: int, batch: int, generator: torch.Generator) -> Asked:
    """Draw questions of a task; see `idle_head`."""
    order = torch.rand(runs, batch, CLASSES, generator=generator).argsort(-1)
    keys, values = order[..., :KEYS], torch.randn(runs, batch, KEYS, WIDTH, generator=generator)
    idle = torch.rand(runs, batch, generator=generator) < 0.5
    # a class's place in the order is drawn, so the first key is as good as any
    other = order[..., KEYS] if task == "absent" else torch.full_like(order[..., 0], CLASSES)
    query = torch.where(idle, other, keys[..., 0])
    return Asked(query, keys, values, idle, values[:, :, 0].masked_fill(idle[..., None], 0.0))


def _errors(trace: AttentionTrace, answer: Float[Tensor, "R B width"]) -> Float[Tensor, "R B"]:
    return (trace.out[:, :, 0] - answer).square().mean(-1)


class Trained(NamedTuple):
    """A decoder after its training.

    Attributes:
        model: in evaluation mode.
        accuracy: share of right answers in new sequences.
        losses: (steps,), cross-entropy of each step's batch in nats; log 16 = 2.77 for a blind guess.
    """

    model: Decoder
    accuracy: float
    losses: Float[np.ndarray, " steps"]


class Unskipped(nn.Module):
    """A pre-norm block that passes on what its parts make of x, and not x itself."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(
        self, x: Float[Tensor, "B T E"], *, mask: Maybe = None, is_causal: bool = False, cache: KVCache | None = None
    ) -> Float[Tensor, "B T E"]:
        """Return mlp(mlp_norm(attention(attention_norm(x))))."""
        x = self.block.attention(self.block.attention_norm(x), mask=mask, is_causal=is_causal, cache=cache)
        return self.block.mlp(self.block.mlp_norm(x))


class Nothing(nn.Module):
    """Add nothing to the stream."""

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        """Return zeros."""
        return torch.zeros_like(x)


def decoder(depth: int, *, part: str = "all", norm: Norm = "pre") -> Decoder:
    """Make a small decoder with a part of every block taken away; E = 32, H = 4, learned places, 16 tokens."""
    if part not in PARTS:
        raise ValueError(f"part must be one of {PARTS}, got {part!r}")
    if part in ("no skip", "no norm") and norm != "pre":
        raise ValueError(f'part {part!r} is for norm "pre" alone, got {norm!r}')
    model = Decoder(VOCABULARY, EMBED_DIM, HEADS, depth, max_length=LENGTH, norm=norm, tied=False)
    for i, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        if part == "no skip":
            model.blocks[i] = Unskipped(block)
        elif part == "no MLP":
            block.register_module("mlp", Nothing())
        elif part == "no norm":
            for layer, name in ((block, "attention_norm"), (block, "mlp_norm"), (model, "norm")):
                layer.register_module(name, nn.Identity())
    return model


def train_decoder(
    depth: int = 2, *, part: str = "all", norm: Norm = "pre", steps: int = 300, lr: float = 3e-3, seed: int = 0
) -> Trained:
    """Train a decoder to go on with a sequence that repeats itself with an unknown period.

    4 to 8 different tokens of 16 are said again and again, 17 tokens in all. Once a token has been seen before, the
    next one is what followed it then. Its place does not tell where that is, since the period varies. A first layer
    can let each token know the one before it; a second can then look for the token that follows the present one's
    last appearance. One layer has nothing but the token itself to look for.

    Args:
        depth: number of blocks, 0 or more.
        part: one of PARTS, what is taken away from every block (with "no norm" from the read-out too).
        norm: "pre" or "post".
        steps: updates with AdamW on 32 new sequences each.
        lr: largest learning rate: reached after 20 steps, kept for half of the training, then down to 0.
        seed: of the model and of the training data; all are tested on the same 500 sequences.

    Returns:
        Trained(model, accuracy, losses).

    Raises:
        TypeError: depth or steps is not an integer.
        ValueError: depth below 0; another part or norm; "no skip" or "no norm" with "post"; steps below 1; lr below 0
            or not finite.

    Source: Olsson et al. 2022, "In-context learning and induction heads": the task and the two layers that solve it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = decoder(depth, part=part, norm=norm)
    generator = torch.Generator().manual_seed(seed)
    losses = fit(
        model,
        (repeated(32, generator) for _ in itertools.count()),
        loss=lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=NO_ANSWER),
        steps=steps,
        lr=lambda step: lr * min(step / 20, 1.0, 2 * (steps + 1 - step) / steps),
        optimizer=lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0, fused=True),
    ).losses
    tokens, target = repeated(500, torch.Generator().manual_seed(1_000_000))
    with torch.no_grad():
        right = model.eval()(tokens).argmax(-1) == target
    return Trained(model, right[target != NO_ANSWER].double().mean().item(), losses)


def repeated(batch: int, generator: torch.Generator) -> tuple[Integer[Tensor, "B T"], Integer[Tensor, "B T"]]:
    """Draw 16 tokens and the one that follows each, NO_ANSWER where a token is said for the first time."""
    period = torch.randint(4, 9, (batch, 1), generator=generator)
    order = torch.rand(batch, VOCABULARY, generator=generator).argsort(-1)
    place = torch.arange(LENGTH + 1)
    tokens = order.gather(1, place % period)  # (B, T + 1)
    return tokens[:, :-1], tokens[:, 1:].masked_fill(place[:-1] < period, NO_ANSWER)


@torch.no_grad()
def weight_on_answer(model: Decoder) -> Float[np.ndarray, "depth H"]:
    """Measure each head's weight on the tokens that follow an earlier appearance of the present one, (depth, H).

    It is the mean over the places of 200 new sequences that have an answer; (0, 4) if there is no block.

    Raises:
        ValueError: a block is not a whole pre-norm block.
    """
    tokens, target = repeated(200, torch.Generator().manual_seed(2_000_000))
    asked = (target != NO_ANSWER)[:, None, :, None]  # (B, 1, T, 1)
    answer = F.pad(tokens[:, :, None] == tokens[:, None, :-1], (1, 0))[:, None]  # (B, 1, T, T)
    x, found = model.positions(model.embedding(tokens)), []
    for block in model.blocks:
        gone = any(isinstance(part, Nothing | nn.Identity) for part in block.children())
        if gone or not isinstance(block, Block) or block.norm != "pre":
            raise ValueError("model must have whole pre-norm blocks")
        weights = block.attention.trace(block.attention_norm(x), is_causal=True).weights
        found.append((weights * (asked & answer)).sum((0, 2, 3)) / asked.sum())
        x = block(x, is_causal=True)
    return torch.stack(found).numpy() if found else np.zeros((0, HEADS), dtype=np.float32)
