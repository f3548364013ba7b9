"""Notebook 09: six patients, each with one fault, and the measurements that show it."""

import inspect
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mha_course import masks
from mha_course.checks import clinic, probe
from mha_course.multihead import MultiHeadAttention

LETTERS = "ABCDEF"
X = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(7))
CONTEXT = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(8))
REAL = masks.padding(torch.tensor([3, 5]), 5)


def healthy() -> clinic.Attention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return clinic.Attention(12, 3).eval()


def reference(module: nn.Module) -> MultiHeadAttention:
    right = MultiHeadAttention(12, 3)
    right.load_state_dict(module.state_dict())
    return right


def test_the_healthy_one_is_multi_head_attention() -> None:
    module = healthy()
    right = reference(module)
    torch.testing.assert_close(module(X, X, REAL), right(X, mask=REAL))
    torch.testing.assert_close(module(X, CONTEXT), right(X, CONTEXT))
    torch.testing.assert_close(module.weights(X, X, REAL), right.trace(X, mask=REAL).weights)
    chart = clinic.examine(module)
    assert chart[:5] == (True,) * 5
    assert chart.difference < 1e-6
    assert str(chart) == "nothing found"


SIGNS = {
    "A": ("two calls", "values"),
    "B": ("row sums", "values"),
    "C": ("leak probe, one sample", "leak probe, two samples", "values"),
    "D": ("change of the context", "values"),
    "E": ("values",),
    "F": ("leak probe, two samples", "values"),
}


@pytest.mark.parametrize("letter", LETTERS)
def test_each_patient_is_told_by_its_measurements(letter: str) -> None:
    chart = clinic.examine(clinic.patient(letter))
    assert chart.shown_by == SIGNS[letter]
    assert str(chart) == ", ".join(SIGNS[letter])
    assert chart.difference > 1e-2


def test_no_two_patients_show_the_same() -> None:
    assert len(set(SIGNS.values())) == 6


@pytest.mark.parametrize("seed", range(1, 6))
def test_other_weights_show_the_same(seed: int) -> None:
    for letter in LETTERS:
        chart = clinic.examine(clinic.patient(letter, seed))
        assert chart.shown_by == SIGNS[letter]
        assert chart.difference > 1e-2


@pytest.mark.parametrize("letter", LETTERS)
def test_each_has_one_step_of_its_own_and_says_nothing_about_it(letter: str) -> None:
    cls = clinic.PATIENTS[letter]
    own = [name for name in vars(cls) if not name.startswith("_")]
    assert len(own) == 1
    assert cls.__doc__ == "Attention with one fault."
    assert "fault" not in inspect.getsource(cls).split('"""', 2)[2]
    assert vars(cls)[own[0]].__doc__ == {
        "weigh": "Weights of every query.",
        "drop": "Drop weights.",
        "project": "Return q, k and v, split into heads.",
    }.get(own[0])
    right = healthy()
    for name in own:
        setattr(right, name, getattr(clinic.patient(letter), name))
    torch.manual_seed(0)
    ill = clinic.patient(letter)(X, CONTEXT)
    torch.manual_seed(0)
    torch.testing.assert_close(right(X, CONTEXT), ill)


def test_a_is_right_without_dropout() -> None:
    module = clinic.patient("A")
    module.dropout = 0.0
    torch.testing.assert_close(module(X, X, REAL), reference(module)(X, mask=REAL))


def test_b_shrinks_every_row_alike() -> None:
    sums = clinic.patient("B").weights(X, X, REAL).sum(-1)
    torch.testing.assert_close(sums, torch.full_like(sums, 1 / math.sqrt(4)))


def test_c_sees_what_it_should_not_alone() -> None:
    weights = clinic.patient("C").weights(X, X, masks.causal(5))
    assert not weights[..., :-1, :].tril().any()
    torch.testing.assert_close(clinic.patient("C")(X, X), reference(clinic.patient("C"))(X))


def test_d_is_right_where_query_and_context_are_one() -> None:
    module = clinic.patient("D")
    torch.testing.assert_close(module(X, X, REAL), reference(module)(X, mask=REAL))
    assert not probe.gradients(module, X, CONTEXT, change=1).tokens.any()


def test_e_is_flatter() -> None:
    module = clinic.patient("E")
    q, k, v = module.project(X, CONTEXT)
    torch.testing.assert_close(module.weights(X, CONTEXT), (q @ k.mT / 4).softmax(-1))
    out = F.scaled_dot_product_attention(q, k, v, scale=1 / 4).transpose(1, 2).flatten(2)
    torch.testing.assert_close(module(X, CONTEXT), module.out_proj(out))


def test_f_is_right_with_one_sample_or_one_mask() -> None:
    module = clinic.patient("F")
    torch.testing.assert_close(module(X[:1], X[:1], REAL[:1]), reference(module)(X[:1], mask=REAL[:1]))
    torch.testing.assert_close(module(X, X, masks.causal(5)), reference(module)(X, mask=masks.causal(5)))
    assert probe.leaks(lambda x: module(x, x, REAL), X).moves[0, :3, 3:].any()


class Broken(clinic.Attention):
    """NaN in its result."""

    def forward(self, query, context, mask=None):
        return super().forward(query, context, mask) / torch.zeros(()) * 0


class BrokenWeights(clinic.Attention):
    """NaN in its weights, in one row alone."""

    def weigh(self, q, k, mask):
        weights = super().weigh(q, k, mask)
        return torch.cat([weights[..., :-1, :], weights[..., -1:, :] * math.nan], -2)


def test_a_module_that_returns_nan_is_measured() -> None:
    chart = clinic.examine(Broken(12, 3).eval())
    assert math.isnan(chart.difference)
    assert chart.shown_by[-1] == "values"
    assert not chart.alone
    chart = clinic.examine(BrokenWeights(12, 3).eval())
    assert chart.shown_by == ("row sums", "leak probe, one sample", "leak probe, two samples", "values")
    assert chart.same_twice
    assert math.isnan(chart.difference)


def test_random_state_and_module_stay_as_they_are() -> None:
    before = torch.get_rng_state()
    module = clinic.patient("A")
    kept = {name: x.clone() for name, x in module.state_dict().items()}
    clinic.examine(module)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(kept[name], x) for name, x in module.state_dict().items())
    assert not module.training
    assert all(parameter.grad is None for parameter in module.parameters())


def test_every_patient_has_a_diagnosis() -> None:
    assert clinic.DIAGNOSES.keys() == clinic.PATIENTS.keys() == set(LETTERS)


@pytest.mark.unchecked
def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"^letter must be one of A, B, C, D, E, F, got 'G'$"):
        clinic.patient("G")
    with pytest.raises(ValueError, match=r"^num_heads must divide embed_dim, got 5 and 12$"):
        clinic.Attention(12, 5)


def test_one_token() -> None:
    for letter in LETTERS:
        assert clinic.patient(letter)(X[:, :1], CONTEXT[:, :1]).shape == (2, 1, 12)
