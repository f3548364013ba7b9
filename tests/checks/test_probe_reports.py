"""Row sums and gradients: what they count, name and say, against right and wrong attention."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course import attention
from mha_course.checks.probe import Gradients, gradients, row_sums
from mha_course.masks import band, causal, padding, to_additive, to_blocked

B, H, T, S, E = 2, 4, 5, 7, 16
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
X = torch.randn(B, T, E, generator=torch.Generator().manual_seed(0))
future = ~causal(T)


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# Row sums


def test_row_sums_by_hand() -> None:
    weights = tensor([0.5, 0.5, 0], [0, 0, 0], [0.5, 0.25, 0], [1.5, -0.5, 0], [math.nan, 1, 0], [math.inf, 0, 0])
    found = row_sums(weights)
    assert (found.rows, found.ones, found.zeros, found.negative) == (6, 2, 1, 1)
    assert (found.off, found.nan) == (((2,),), ((4,), (5,)))
    assert (found.hidden, found.missing) == (None, ())
    assert (found.smallest, found.largest) == (0.0, 1.0)
    assert not found.ok
    assert not found
    assert str(found) == (
        "2 of 6 rows sum to 1, 1 are 0 throughout.\n"
        "Another sum: row 2; sums from 0.0000 to 1.0000.\n"
        "NaN or infinity: row 4, row 5.\n"
        "Weights below 0: 1."
    )


@pytest.mark.parametrize("row", [[0.5, 0.6], [0.3, 0.3], [1.5, -0.5], [math.nan, 0.0]])
def test_one_fault_is_enough(row: list[float]) -> None:
    assert row_sums(tensor([0.5, 0.5], [0, 0]))
    assert not row_sums(tensor([0.5, 0.5], row))


def test_rows_that_cancel_are_not_rows_of_zeros() -> None:
    found = row_sums(tensor([0.5, -0.5]))
    assert (found.zeros, found.off, found.negative) == (0, ((0,),), 1)


def test_row_sums_with_a_mask() -> None:
    mask = torch.tensor([[True, False], [True, True], [False, False], [False, False]])
    found = row_sums(tensor([0.5, 0.5], [0, 0], [0, 0], [0, 1]), mask)
    assert (found.hidden, found.missing) == (2, ((1,),))
    assert not found
    assert "Weights on keys that the mask hides: 2." in str(found)
    assert "0 throughout though the mask shows a key: row 1." in str(found)
    assert row_sums(tensor([1, 0], [0.5, 0.5], [0, 0], [0, 0]), mask)
    assert not row_sums(tensor([0.5, 0.5], [0.5, 0.5], [0, 0], [0, 0]), mask)
    assert not row_sums(tensor([1, 0], [0, 0], [0, 0], [0, 0]), mask)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("keys", [1, 7, 1000])
def test_softmax_is_right_in_every_type(dtype: torch.dtype, keys: int) -> None:
    scores = torch.randn(50, keys, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = row_sums(scores.softmax(-1))
    assert found.ok, found
    assert found.ones == found.rows == 50
    assert not row_sums(scores.softmax(-1) * 0.9)
    assert not row_sums(scores.softmax(-1) * 1.1)


@pytest.mark.parametrize("off", [2e-5, -2e-5])
def test_a_small_deviation_is_found_in_float32(off: float) -> None:
    assert not row_sums(torch.tensor([[0.5, 0.5 + off]]))
    assert row_sums(torch.tensor([[0.5, 0.5 + off / 4]]))


def test_our_attention_and_faults_that_people_make() -> None:
    scores = X @ X.mT / 4
    mask = causal(T) & padding(torch.tensor([3, 0]), T)[:, 0]
    found = row_sums(attention(X, X, X, mask=mask).weights, mask)
    assert (found.ok, found.ones, found.zeros) == (True, T, T)
    after = row_sums(scores.softmax(-1).masked_fill(future, 0), causal(T))
    assert (after.off[0], after.hidden) == ((0, 0), 0)
    assert row_sums(scores.softmax(-2)).off
    assert row_sums(scores.masked_fill(future, -math.inf).softmax(-1) + 0, causal(T))
    assert row_sums((scores + causal(T)).softmax(-1), causal(T)).hidden == B * 10
    assert row_sums(scores.masked_fill(~future, -math.inf).softmax(-1)).nan == ((0, 4), (1, 4))
    assert row_sums(torch.randn(6, 6, generator=torch.Generator().manual_seed(0))).negative > 10


def test_row_sums_of_layouts_and_empty_weights() -> None:
    weights = (X @ X.mT).softmax(-1)
    assert row_sums(weights.mT.contiguous().mT).ones == row_sums(weights.expand(3, B, T, T)[0]).ones == 10
    assert row_sums(weights.clone().requires_grad_())
    for shape in ((0, 3), (2, 0, 3)):
        found = row_sums(torch.zeros(shape))
        assert (found.ok, found.rows) == (True, 0)
        assert math.isnan(found.smallest)
    blind = row_sums(torch.zeros(3, 0))
    assert (blind.ok, blind.zeros, blind.ones) == (True, 3, 0)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("weights", "mask", "error", "match"),
    [
        ([[1.0]], None, TypeError, r"^weights must be a floating point tensor \(\.\.\., T, S\), got list$"),
        (torch.ones(2, 2).long(), None, TypeError, r"^weights must be a floating point tensor .* got torch\.int64$"),
        (torch.ones(2), None, ValueError, r"^weights must have at least two axes \(\.\.\., T, S\), got \(2,\)$"),
        (torch.ones(2, 2), torch.ones(2, 2), TypeError, r"^mask must be a bool tensor .* got torch\.float32$"),
        (torch.ones(2, 2), [[True]], TypeError, r"^mask must be a bool tensor .* got list$"),
        (torch.ones(2, 2), causal(3), ValueError, r"^mask must broadcast to the weights, \(2, 2\), got \(3, 3\)$"),
    ],
)
def test_row_sums_bad_input(weights: object, mask: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        row_sums(weights, mask)


# Gradients


class Attending(nn.Module):
    """Attention with projections, and parameters that something is wrong with."""

    def __init__(self, mask: Tensor | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(E, E) for _ in range(3))
        self.unused = nn.Parameter(torch.ones(3))
        self.times_zero = nn.Parameter(torch.ones(1))
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        out = attention(self.q_proj(x), self.k_proj(x), self.v_proj(x), mask=self.mask).out
        return (out + 0 * self.times_zero) * self.fixed


def test_parameters_are_sorted_by_what_their_gradient_is() -> None:
    module = Attending(causal(T))
    found = gradients(module, X)
    assert found.none == ("unused",)
    assert found.zero == ("times_zero",)
    assert found.rounding == ("k_proj.bias",), "softmax does not see what all scores of a row share"
    assert found.nan == ()
    assert found.frozen == ("fixed",)
    assert found.parameters == 9
    assert_close(found.tokens, causal(T))
    assert_close(found.samples, torch.eye(B).bool())
    assert (found.ahead, found.between_samples, found.nan_inputs) == ((), (), ())
    assert str(found) == (
        "Parameters without a gradient: unused.\n"
        "Parameters with gradient 0: times_zero.\n"
        "Parameters with gradient 0 but for rounding: k_proj.bias.\n"
        "Parameters that ask for none: fixed.\n"
        "Depends on a later token: no row.\n"
        "Depends on another sample: none."
    )


def test_gradients_that_are_there_stay_and_none_are_added() -> None:
    module, x = Attending(), X.clone().requires_grad_()
    module.q_proj.bias.grad = torch.ones(E)
    gradients(module, x)
    assert_close(module.q_proj.bias.grad, torch.ones(E))
    assert module.k_proj.weight.grad is None
    assert x.grad is None


def test_who_depends_on_whom() -> None:
    found = gradients(Attending(band(T, 1, 1)), X)
    assert found.ahead == ((0, 1), (1, 2), (2, 3), (3, 4))
    assert_close(found.tokens, band(T, 1, 1))
    assert "Depends on a later token: row 0 on token 1; row 1 on token 2; row 2 on token 3; row 3 on token 4." in str(
        found
    )
    assert len(gradients(Attending(), X).ahead) == 10
    assert " and 6 more.\n" in str(gradients(Attending(), X))
    mixed = gradients(lambda x: F.batch_norm(x.mT, None, None, training=True).mT, X)
    assert mixed.between_samples == ((0, 1), (1, 0))
    assert "Depends on another sample: sample 0 on sample 1; sample 1 on sample 0." in str(mixed)


def test_a_result_whose_plain_sum_is_constant_is_seen_through() -> None:
    norm = nn.LayerNorm(E)
    found = gradients(norm, X)
    assert_close(found.tokens, torch.eye(T).bool())
    assert found.parameters == 2
    assert str(found).startswith("All 2 parameters get a gradient.")


def test_one_row_that_is_nan_spoils_all_gradients() -> None:
    module = Attending()

    def fn(x: Tensor, hide: Callable[[Tensor], Tensor]) -> Tensor:
        return hide(module.q_proj(x) @ module.k_proj(x).mT).softmax(-1) @ module.v_proj(x)

    def found(hide: Callable[[Tensor], Tensor]) -> Gradients:
        return gradients(lambda x: fn(x, hide), X, module=module)

    filled = found(lambda scores: scores.masked_fill(~causal(T).tril(-1), -math.inf))
    assert filled.nan == ("v_proj.weight", "v_proj.bias")
    assert filled.nan_inputs[:2] == ((0, 0), (0, 1))
    assert "NaN or infinity in the gradient from row 0 to token 0; row 0 to token 1;" in str(filled)
    assert "Parameters with NaN or infinity in their gradient: v_proj.weight, v_proj.bias.\n" in str(filled)
    added = found(lambda scores: scores + to_additive(causal(T).tril(-1)))
    assert len(added.nan) == 6
    assert found(lambda scores: scores.masked_fill(~causal(T), -math.inf)).nan == ()
    ours = gradients(Attending(causal(T).tril(-1)), X)
    assert (ours.nan, ours.nan_inputs) == ((), ())


def test_modules_of_torch() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(E, H, batch_first=True)
    found = gradients(lambda x: module(x, x, x, attn_mask=to_blocked(causal(T))), X, module=module)
    assert_close(found.tokens, causal(T))
    assert (found.none, found.zero, found.nan, found.parameters) == ((), (), (), 4)
    assert str(found).endswith("fn returns a tuple: its first tensor, (2, 5, 16), was probed.")
    layer = nn.TransformerEncoderLayer(E, H, 32, batch_first=True).eval()
    found = gradients(layer, X)
    assert len(found.ahead) == 10
    assert (found.none, found.between_samples) == ((), ())
    turned = nn.MultiheadAttention(E, H)
    found = gradients(lambda x: turned(x, x, x), X.transpose(0, 1), batch_first=False)
    assert (found.tokens.shape, found.between_samples) == ((T, T), ())


def test_several_inputs_and_no_module() -> None:
    q, k = X, torch.randn(B, S, E, generator=torch.Generator().manual_seed(1))
    fn = lambda q, k: attention(q, k, k, mask=torch.ones(T, S).tril().bool()).out  # noqa: E731
    assert_close(gradients(fn, q, k, change=1).tokens, torch.ones(T, S).tril().bool())
    assert_close(
        gradients(fn, q, k, change=0).tokens, torch.eye(T).bool() & (torch.arange(T) > 0)
    )  # one key: no choice
    assert gradients(fn, q, k, change=0).parameters == 0
    assert str(gradients(fn, q, k, change=0)) == "Depends on a later token: no row.\nDepends on another sample: none."
    together = gradients(lambda q, k: attention(q, k, k, mask=causal(T)).out, q, k[:, :T])
    assert_close(together.tokens, causal(T))
    assert_close(gradients(lambda x: x.cumsum(0), X[0]).tokens, causal(T))


def test_a_result_without_a_graph_depends_on_nothing() -> None:
    module = Attending()
    found = gradients(lambda x: module(x).detach(), X, module=module)
    assert not found.tokens.any()
    assert not found.samples.any()
    assert len(found.none) == 8
    with torch.no_grad():
        assert_close(gradients(Attending(causal(T)), X).tokens, causal(T))


def test_in_place_and_repeatable() -> None:
    kept = X.clone()
    assert_close(gradients(lambda x: x.mul_(2).cumsum(1), X).tokens, causal(T))
    assert_close(X, kept, rtol=0, atol=0)
    module = Attending()
    state = torch.get_rng_state()
    assert str(gradients(module, X)) == str(gradients(module, X))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: gradients(torch.relu, X.long()),
            TypeError,
            r"^input 0 must be floating point to have a gradient, got",
        ),
        (lambda: gradients(torch.relu, X, module=3), TypeError, r"^module must be a torch\.nn\.Module, got int$"),
        (lambda: gradients(torch.relu), ValueError, r"^fn needs at least one input, got none$"),
        (lambda: gradients(torch.relu, X / 0), ValueError, r"^input 0 holds -?inf"),
        (lambda: gradients(lambda x: None, X), TypeError, r"^fn must return a tensor"),
        (lambda: gradients(torch.add, X, X[:, 1:]), ValueError, r"equally long, got lengths \[5, 4\]"),
    ],
)
def test_gradients_bad_input(call: Callable[[], object], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
