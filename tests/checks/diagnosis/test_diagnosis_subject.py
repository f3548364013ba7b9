"""A candidate made ready to be compared: it stays as it is, and its inputs tell something."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from mha_course import MultiHeadAttention
from mha_course.checks.diagnosis import calling
from mha_course.checks.diagnosis.calling import AXES, Form
from mha_course.checks.diagnosis.layouts import Unreadable
from mha_course.checks.diagnosis.subject import Subject, draw_mask, draw_parameters, forms

SIZES = [(2, 5, 7), (2, 5, 5), (3, 5, 5), (2, 7, 11), (3, 5, 5), (2, 11, 13), (8, 5, 7)]


def plain(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", [0, 5, 7, 17])
def test_every_query_sees_some_keys_and_not_all(axes, sizes, seed):
    B, T, S = sizes
    mask = draw_mask(axes, B, T, S, torch.Generator().manual_seed(seed))
    expected = {"B S": (B, 1, 1, S), "T S": (1, 1, T, S)}.get(axes, (B, 1, T, S))
    assert mask.dtype == torch.bool
    assert mask.shape == expected
    assert mask.any(-1).all()
    assert not mask.all(-1).any()


@pytest.mark.parametrize("axes", [axes for axes in AXES if axes.startswith("B")])
@pytest.mark.parametrize("sizes", SIZES)
def test_masks_differ_between_neighbouring_samples(axes, sizes):
    mask = draw_mask(axes, *sizes, torch.Generator().manual_seed(0))
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(mask))


@pytest.mark.parametrize("axes", ["B 1 T S", "B T S", "T S"])
@pytest.mark.parametrize("sizes", SIZES)
def test_masks_differ_between_queries_and_leave_something_of_the_past(axes, sizes):
    _, T, S = sizes
    mask = draw_mask(axes, *sizes, torch.Generator().manual_seed(0))
    assert (mask[..., :1, :] != mask).any()
    assert (mask & torch.ones(T, S, dtype=torch.bool).tril()).any(-1).all()
    assert (mask[..., 0] != mask[..., -1]).any()
    assert T != S or (mask != mask.mT).any()


def state(module):
    return {
        name: (x.clone(), x.dtype, x.requires_grad) for name, x in [*module.named_parameters(), *module.named_buffers()]
    }


class Counting(MultiHeadAttention):
    def __init__(self):
        super().__init__(18, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, query, key, value, mask=None):
        self.calls += 1
        return super().forward(query, key, value, mask=mask)


def test_the_candidate_is_left_as_it_is():
    module = Counting().train()
    module.q_proj.weight.requires_grad_(False)
    before, flags = state(module), [m.training for m in module.modules()]
    subject = Subject(module)
    for name in subject.sizes():
        assert subject.outcome(Form("B T E"), name, axes="B S")[1].out is not None
    assert subject.original is module
    assert subject.fn is not module
    after = state(module)
    assert list(after) == list(before)
    for name, (x, *rest) in before.items():
        assert torch.equal(x, after[name][0])
        assert list(after[name][1:]) == rest
    assert [m.training for m in module.modules()] == flags
    assert all(p.grad is None for p in module.parameters())


def test_the_copy_is_in_double_and_in_eval_and_drawn():
    module = MultiHeadAttention(18, 3, dropout=0.5).train()
    subject = Subject(module)
    assert not subject.fn.training
    assert {p.dtype for p in subject.fn.parameters()} == {torch.float64}
    assert all(p.abs().max() > 0.1 for p in subject.fn.parameters())


def test_zero_weights_are_drawn_too():
    module = MultiHeadAttention(18, 3)
    for p in module.parameters():
        nn.init.zeros_(p)
    assert all(p.any() for p in Subject(module).fn.parameters())
    assert not any(p.any() for p in module.parameters())


def test_parameters_are_drawn_alike_every_time():
    one, two = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4))
    draw_parameters(one, 0)
    draw_parameters(two, 0)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    draw_parameters(two, 1)
    assert not any(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def changes_key(q, k, v, mask=None):
    out = plain(q, k, v, mask)
    k *= 2
    return out


def changes_mask(q, k, v, mask=None):
    out = plain(q, k, v, mask)
    if mask is not None:
        mask.fill_(True)
    return out


def test_changed_arguments_are_noticed_and_do_no_harm():
    subject = Subject(changes_key)
    x, got = subject.outcome(Form("B H T D"), "even")
    assert subject.changed == {"k"}
    kept = x.key.clone()
    assert torch.equal(subject.call(Form("B H T D"), x).out, got.out)
    assert torch.equal(x.key, kept)


def test_a_changed_mask_is_noticed():
    subject = Subject(changes_mask)
    subject.outcome(Form("B H T D"), "even")
    assert subject.changed == set()
    x, _ = subject.outcome(Form("B H T D"), "even", axes="B 1 T S")
    assert subject.changed == {"mask"}
    assert not x.mask.all()


def test_nothing_is_changed_by_a_right_function():
    subject = Subject(plain)
    for layout in calling.LAYOUTS["function"]:
        for name in subject.sizes():
            subject.outcome(Form(layout), name)
    assert subject.changed == set()


def test_errors_become_outcomes_and_an_interrupt_does_not():
    def raising(q, k, v):
        raise SystemExit

    x, got = Subject(raising).outcome(Form("B H T D"), "even")
    assert got.out is None
    assert isinstance(got.error, SystemExit)

    def interrupted(q, k, v):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Subject(interrupted).call(Form("B H T D"), x)


@pytest.mark.parametrize(
    "candidate", [plain, MultiHeadAttention(18, 3), MultiHeadAttention(8, 2), MultiHeadAttention(20, 5)]
)
def test_sizes_are_told_apart(candidate):
    subject = Subject(candidate)
    sizes = subject.sizes()
    assert set(sizes) == {"uneven", "even", "square"}
    B, T, S = sizes["uneven"][:3]
    E = subject.first.weights.q.weight.shape[0] if subject.first else subject.D
    assert len({B, T, S, subject.heads(), subject.head_dim, E}) == 6 if E != subject.D else 5
    assert sizes["even"].T == sizes["even"].S
    assert sizes["square"].B == subject.heads()


def test_without_a_second_input_there_is_no_uneven_case():
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))

        def forward(self, x):
            return x

    subject = Subject(One(), 2)
    assert "uneven" not in subject.sizes()
    x = subject.inputs(subject.sizes()["even"], "B T E")
    assert x.key is x.query
    assert x.value is x.query


@pytest.mark.parametrize("axes", AXES)
def test_inputs_have_the_mask_that_is_wanted(axes):
    subject = Subject(plain)
    x = subject.inputs(subject.sizes()["uneven"], "B H T D", axes=axes, bias=True)
    B, T, S = subject.sizes()["uneven"][:3]
    assert x.query.shape == (B, 3, T, 6)
    assert x.key.shape == x.value.shape == (B, 3, S, 6)
    assert torch.broadcast_shapes(x.mask.shape, (B, 3, T, S)) == (B, 3, T, S)
    assert torch.broadcast_shapes(x.bias.shape, (B, 3, T, S)) == (B, 3, T, S)
    assert (x.mask.shape[1] == 3) == (axes == "B H T S")
    assert x.query.dtype == torch.float64


def test_inputs_follow_the_seed():
    subject = Subject(plain)
    sizes = subject.sizes()["even"]
    one, again, other = (subject.inputs(sizes, "B H T D", axes="B S", seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one[:4], again[:4], strict=True))
    assert not torch.equal(one.query, other.query)


@pytest.mark.parametrize("axes", AXES)
def test_a_neutral_mask_hides_nothing(axes):
    def needs(q, k, v, mask):
        return plain(q, k, v, mask[:, None] if axes == "B T S" else mask[:, None, None] if axes == "B S" else mask)

    subject = Subject(needs)
    form = Form("B H T D", "may attend", axes)
    x, got = subject.outcome(form, "uneven")
    torch.testing.assert_close(got.out, plain(*x[:3]))


def test_outcomes_are_remembered_until_forgotten():
    calls = []

    def fn(q, k, v):
        calls.append(1)
        return v[..., :1, :].expand_as(q)

    subject = Subject(fn)
    first = subject.outcome(Form("B H T D"), "even")[1]
    assert subject.outcome(Form("B H T D"), "even")[1] is first
    assert len(calls) == 1
    assert subject.calls(Form("B H T D")) == 1
    subject.forget(torch.no_grad)
    assert subject.outcome(Form("B H T D"), "even")[1] is not first
    assert len(calls) == 2


def test_parameters_without_numbers_are_refused():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj = nn.LazyLinear(6)

        def forward(self, query, key, value):
            return query

    with pytest.raises(Unreadable, match=r"q_proj\.weight has no numbers"):
        Subject(Lazy())
    with pytest.raises(Unreadable, match="has no numbers"):
        Subject(MultiHeadAttention(18, 3, device="meta"))


@pytest.mark.parametrize(("name", "value", "width"), [("d_k", 8, 8), ("scale", 8**-0.5, 8), ("temperature", 8**0.5, 8),
                                                      ("head_dim", True, 6), ("rate", 8, 6)])  # fmt: skip
def test_a_module_without_weights_tells_its_width(name, value, width):
    class Bare(nn.Module):
        def forward(self, q, k, v):
            return v

    module = Bare()
    setattr(module, name, value)
    subject = Subject(module)
    assert not subject.is_module
    assert subject.D == subject.width == width


def test_parameters_beside_the_projections_are_named():
    module = MultiHeadAttention(18, 3)
    assert Subject(module).others == []
    module = copy.deepcopy(module)
    module.norm = nn.LayerNorm(18)
    assert Subject(module).others == ["norm.weight"] or Subject(module).others == ["norm.weight", "norm.bias"]


def test_forms_are_all_tried_or_the_stated_one():
    subject = Subject(plain)
    every = list(forms(subject, None, None, None))
    assert every[0] == Form("B H T D", "may attend", "B 1 T S")
    assert len(every) == len(set(every)) == 4 * len(calling.CONVENTIONS) * len(AXES)
    stated = list(forms(subject, "B T H D", "blocked", "B S"))
    assert stated == [Form("B T H D", "blocked", "B S")]
    assert len(list(forms(Subject(lambda q, k, v: v), None, None, None))) == 4


def test_batch_first_false_puts_the_batch_second():
    assert Subject(nn.MultiheadAttention(18, 3)).layouts == ("T B E", "B T E", "T E")
    assert Subject(nn.MultiheadAttention(18, 3, batch_first=True)).layouts == ("B T E", "T B E", "T E")


def test_convolutions_ask_for_channels_first():
    linear = nn.ModuleList([nn.Linear(18, 18) for _ in range(4)])
    convolutions = nn.ModuleList([nn.Conv1d(18, 18, 1) for _ in range(4)])
    images = nn.ModuleList([nn.Conv2d(18, 18, 1) for _ in range(4)])
    names = ("q", "k", "v", "o")
    found = [Subject(_Named(dict(zip(names, maps, strict=True)))).layouts for maps in (linear, convolutions, images)]
    assert found == [
        ("B T E", "T B E", "T E"),
        ("B T E", "T B E", "B E T", "T E"),
        ("B E 1 T", "B T E", "T B E", "T E"),
    ]


class _Named(nn.ModuleDict):
    def forward(self, x):
        return x
