"""Candidates that cannot be copied, called or even looked at: judged where that is cheap, and never an exception."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from mha_course.checks.diagnosis.entry import diagnose
from tests.checks.bank.right_third import Plain, Whole, attend, heads_of, joined, with_norms

pytestmark = [pytest.mark.unchecked, pytest.mark.filterwarnings("ignore")]


def with_graph():
    """An attribute that a graph hangs on."""
    m = Whole()
    m.kept = m.q_proj.weight * 2
    m.more = [m.k_proj.weight.sum()]
    return m


class NoCopy(Whole):
    def __deepcopy__(self, memo):
        raise RuntimeError("not to be copied")


class NoCopyInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = NoCopy()

    def forward(self, query, key, value, mask=None):
        return self.attention(query, key, value, mask)


class Scriptable(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads, self.scale = 3, 0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, query, key, value, mask: torch.Tensor | None = None):
        q = self.q_proj(query).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k = self.k_proj(key).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        v = self.v_proj(value).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        s = q @ k.transpose(-2, -1) * self.scale
        if mask is not None:
            s = s.masked_fill(~mask, -float("inf"))
        return self.out_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Unscaled(Scriptable):
    def __init__(self):
        super().__init__()
        self.scale = 1.0


def frozen(make=Whole):
    return make().requires_grad_(False)


def shared_storage():
    """Three weights in one storage."""
    m, store = Whole(), torch.randn(36, 12)
    for i, layer in enumerate((m.q_proj, m.k_proj, m.v_proj)):
        layer.weight = nn.Parameter(store[12 * i : 12 * i + 12])
    return m


def pruned():
    m = Whole()
    prune.l1_unstructured(m.q_proj, "weight", amount=0.5)
    return m


class Weights:
    """No module, with layers and a bare weight."""

    def __init__(self):
        self.heads = 3
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(12, 12) for _ in range(3))
        self.W_o = torch.randn(12, 12)

    def __call__(self, query, key, value, mask=None):
        q, k, v = (
            heads_of(f(x), self.heads) for f, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        return joined(attend(q, k, v, mask)) @ self.W_o

    def run(self, query, key, value, mask=None):
        return self(query, key, value, mask)


JUDGED = {
    "old weight norm": lambda: with_norms(nn.utils.weight_norm),
    "a graph in attributes": with_graph,
    "deepcopy raises": NoCopy,
    "deepcopy raises inside": NoCopyInside,
    "scripted": lambda: torch.jit.script(Scriptable()),
    "frozen": frozen,
    "frozen scripted": lambda: torch.jit.script(frozen(Scriptable)),
    "one storage": shared_storage,
    "pruned": pruned,
    "compiled": lambda: torch.compile(Whole(), backend="eager"),
    "compiled function": lambda: torch.compile(attend, backend="eager"),
    "data parallel": lambda: nn.DataParallel(Whole()),
    "data parallel, compiled": lambda: nn.DataParallel(torch.compile(Whole(), backend="eager")),
    "partial of a module": lambda: functools.partial(Whole()),
    "partial with a keyword": lambda: functools.partial(
        nn.MultiheadAttention(12, 3, batch_first=True), need_weights=False
    ),
    "partial of forward": lambda: functools.partial(Whole().forward),
    "partial of a function": lambda: functools.partial(attend),
    "forward of a wrapper": lambda: nn.DataParallel(Whole()).module.forward,
    "an object with weights": Weights,
    "a method of an object with weights": lambda: Weights().run,
    "a method of an object without": lambda: Plain().attend,
    "in double": lambda: Whole().double(),
    "in bfloat16": lambda: Whole().bfloat16(),
    "in float16": lambda: Whole().half(),
}


@pytest.mark.parametrize("make", JUDGED.values(), ids=JUDGED)
def test_what_can_be_looked_through_is_judged(make):
    verdict = diagnose(make())
    assert verdict.ok, verdict
    assert verdict.judged


WRONG = {
    "scripted": lambda: torch.jit.script(Unscaled()),
    "compiled": lambda: torch.compile(Unscaled(), backend="eager"),
    "weight norm": lambda: with_norms_of(Unscaled(), nn.utils.parametrizations.weight_norm),
    "old weight norm": lambda: with_norms_of(Unscaled(), nn.utils.weight_norm),
    "partial": lambda: functools.partial(Unscaled()),
    "bound": lambda: Unscaled().forward,
}


def with_norms_of(m, norm):
    norm(m.q_proj), norm(m.out_proj)
    return m


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_a_fault_behind_a_wrapper_is_named(make):
    assert diagnose(make()).names == ("no_scale",)


class Inert(nn.Module):
    """Its copy is made, its call is not."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.LazyLinear(12) for _ in range(4))

    def forward(self, x, mask=None):
        return self.out_proj(x)


class LazyBuffer(Whole):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", nn.parameter.UninitializedBuffer())


class NoCopyAtAll(Whole):
    """Neither by its own copy nor by that of what it holds."""

    def __init__(self):
        super().__init__()
        self.lines = (x for x in range(3))


class Unshown(Whole):
    def __repr__(self):
        raise RuntimeError("no picture")

    def extra_repr(self):
        raise RuntimeError("no picture")


class NoNames:
    """Every question raises."""

    def __getattribute__(self, name):
        raise RuntimeError("no questions")

    def __call__(self, q, k, v):
        return v


class Leaving(NoNames):
    def __getattribute__(self, name):
        raise SystemExit("no questions")


class Lying:
    """A false signature."""

    __signature__ = 3

    def __call__(self, q, k, v):
        return v


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raises_without_text(q, k, v):
    raise NoText


class NoParameters(Whole):
    def named_parameters(self, *args, **kwargs):
        raise RuntimeError("no parameters")

    def parameters(self, recurse=True):
        raise RuntimeError("no parameters")


class NoDouble(Whole):
    def _apply(self, fn, recurse=True):
        raise RuntimeError("stays as it is")


class BadSchema:
    schema = 5
    __signature__ = "no"

    def __call__(self, q, k, v):
        return v


UNJUDGED = {
    "on the meta device": (lambda: Whole().to("meta"), "has no numbers yet"),
    "lazy": (Inert, "has no numbers yet"),
    "lazy buffer": (LazyBuffer, "its buffer table has no numbers yet"),
    "no copy at all": (NoCopyAtAll, "cannot be copied, its copy raises TypeError: cannot pickle 'generator' object"),
    "no double": (NoDouble, "cannot be copied, its copy raises RuntimeError: stays as it is"),
    "no parameters": (NoParameters, "no parameters"),
    "no names": (NoNames, "no questions"),
    "leaves": (Leaving, "no questions"),
}


@pytest.mark.parametrize(("make", "said"), UNJUDGED.values(), ids=UNJUDGED)
def test_what_cannot_be_judged_says_why(make, said):
    verdict = diagnose(make())
    assert (verdict.ok, verdict.judged, verdict.names) == (False, False, ())
    assert said in verdict.fault
    assert verdict.hints


QUIET = {
    "no repr": Unshown,
    "a false signature": Lying,
    "a bad schema": BadSchema,
    "an error without text": lambda: raises_without_text,
    "embedding": lambda: nn.Embedding(5, 12),
    "a norm": lambda: nn.LayerNorm(12),
    "nothing": nn.Identity,
    "empty": nn.Module,
    "a list": lambda: nn.ModuleList([Whole()]),
    "a dictionary": lambda: nn.ModuleDict({"a": Whole()}),
    "a sequence": lambda: nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12)),
    "quantized": lambda: torch.ao.nn.quantized.dynamic.Linear(12, 12),
    "recurrent": lambda: nn.LSTM(12, 12),
    "convolution": lambda: nn.Conv1d(12, 12, 3),
    "a builtin": lambda: len,
    "a tensor's method": lambda: torch.randn(3).add,
    "partial of a class": lambda: functools.partial(Whole, 12),
    "partial of a partial": lambda: functools.partial(functools.partial(Whole()), mask=None),
    "module that is its own child": lambda: own_child(),
}


def own_child():
    m = Whole()
    m.__dict__["again"] = m
    return m


@pytest.mark.parametrize("make", QUIET.values(), ids=QUIET)
def test_no_candidate_makes_it_raise(make):
    verdict = diagnose(make(), seconds=5)
    assert verdict.ok or verdict.fault


@pytest.mark.parametrize("make", [with_graph, NoCopy, frozen, shared_storage, pruned,
                                  lambda: with_norms(nn.utils.weight_norm),
                                  lambda: with_norms(nn.utils.parametrizations.weight_norm)])  # fmt: skip
def test_the_original_goes_on_as_before(make):
    m, x = make().eval(), torch.randn(2, 5, 12)
    names, flags = list(m.state_dict()), [p.requires_grad for p in m.parameters()]
    before = m(x, x, x)
    diagnose(m)
    assert torch.equal(m(x, x, x), before)
    assert list(m.state_dict()) == names
    assert [p.requires_grad for p in m.parameters()] == flags


def test_an_object_with_weights_is_left_as_it_is():
    thing, x = Weights(), torch.randn(2, 5, 12)
    kept, before = copy.copy(vars(thing)), thing(x, x, x)
    assert diagnose(thing).ok
    assert vars(thing) == kept
    assert torch.equal(thing(x, x, x), before)


def test_weights_in_a_closure_ask_for_a_module():
    m = Whole()

    def inside(q, k, v, mask=None):
        return m(q, k, v, mask)

    verdict = diagnose(inside)
    assert not verdict.judged
    assert "keeps weights of its own" in verdict.fault
    assert "forward(query, key, value, mask=None)" in verdict.hints[0]


@pytest.mark.parametrize("make", [lambda: Whole().forward, lambda: Whole().run])
def test_a_bound_method_gets_the_verdict_of_its_module(make):
    assert diagnose(make()).evidence == diagnose(Whole()).evidence
