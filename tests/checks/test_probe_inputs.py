"""The probe and what people pass to it: reused memory, inputs without a batch, huge numbers, no gradients."""

import math

import pytest
import torch
from torch import nn

from mha_course.checks import probe
from mha_course.masks import causal, padding

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def running_sum(x):
    return x.cumsum(1)


def test_a_function_that_reuses_its_memory():
    memory = torch.zeros(2, 5, 8)

    def future(x):
        torch.cumsum(x.flip(1), 1, out=memory)
        return memory

    assert probe.leaks(future, X).tokens.sum() == 15
    with pytest.raises(AssertionError, match="it sees the future"):
        probe.assert_causal(future, X)


def positioned(x, position):
    return (x + position).cumsum(1)


@pytest.mark.unchecked
@pytest.mark.parametrize("position", [torch.randn(5, 8), torch.randn(2, 8), torch.arange(5)])
def test_an_input_without_a_batch_is_not_changed_along_a_wrong_axis(position):
    with pytest.raises(
        ValueError, match=r"^inputs that change must have the batch of input 0, \(2, 5, 8\), got .* input 1"
    ):
        probe.assert_causal(lambda x, p: x.cumsum(1), X, position)
    with pytest.raises(ValueError, match="leave it out of change, or bind it by a lambda"):
        probe.gradients(lambda x, p: x.cumsum(1), X, position)
    assert torch.equal(probe.leaks(lambda x, p: x.cumsum(1), X, position, change=0).tokens, causal(5))


def test_nan_origins_leaves_lengths_and_positions_alone():
    bad = X.clone()
    bad[1, 2] = torch.nan
    for other in (torch.tensor([5, 3]), torch.randn(5, 8)):
        (origin,) = probe.nan_origins(lambda x, y: running_sum(x), bad, other).origins
        assert (origin.sample, origin.token) == (1, 2)


@pytest.mark.unchecked
def test_nan_origins_of_an_input_without_a_batch():
    with pytest.raises(ValueError, match="an input that is not finite must have the batch of input 0"):
        probe.nan_origins(positioned, X, torch.full((5, 8), math.inf))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 1000), (torch.float32, 1e36), (torch.bfloat16, 1e36)])
def test_huge_inputs_raise_no_false_alarm(dtype, size):
    weights = torch.tril(torch.ones(5, 5)) / torch.arange(1, 6)[:, None]
    probe.assert_causal(lambda x: weights.to(x) @ x, (X * size).to(dtype))


def test_gradients_under_inference_mode_are_those_without():
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.inference_mode():
        found = probe.gradients(lambda x: module(x, x, x)[0], X, module=module)
    assert found.ahead
    assert found.none == ()


def test_a_result_without_a_graph_is_said():
    with torch.no_grad():
        assert probe.gradients(running_sum, X).note == ""
    said = probe.gradients(lambda x: x.detach().cumsum(1), X).note
    assert said == "The result has no graph: nothing depends on anything by gradient."


@pytest.mark.unchecked
@pytest.mark.parametrize("wrong", [lambda x: x.sum(), lambda x: x.sum((1, 2)), lambda x: x[:1]])
@pytest.mark.parametrize("tool", [probe.leaks, probe.gradients, probe.nan_origins])
def test_a_result_without_rows_or_with_another_batch(tool, wrong):
    with pytest.raises(ValueError, match=r"^fn must return"):
        tool(wrong, X)


def test_a_mask_that_hides_everything():
    def attend(q, k, v):
        return torch.zeros_like(q)

    probe.assert_masked(attend, X, X, X, mask=torch.zeros(5, 5, dtype=torch.bool), change=(1, 2))


def test_the_guess_looks_at_every_sample():
    """Padding of another length in one sample is not "no mask at all"."""
    mask = padding(torch.tensor([4, 5]), 5)

    def attend(x):
        return x.masked_fill(~mask[:, 0, 0, :, None], 0).sum(1, keepdim=True).expand_as(x) + 0 * x

    with pytest.raises(AssertionError) as raised:
        probe.assert_masked(attend, X, mask=padding(torch.tensor([3, 5]), 5))
    assert "no mask at all" not in str(raised.value)
    assert "is there a mask at all?" not in str(raised.value)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"change": "a"}, TypeError, "^change must be an integer or a sequence of them, got str$"),
        ({"change": 1.0}, TypeError, "^change must be an integer or a sequence of them, got float$"),
        ({"change": True}, TypeError, "^change must be an integer or a sequence of them, got bool$"),
        ({"change": [0.0]}, TypeError, "^change must be .*, got float in it$"),
        ({"draws": 1.5}, TypeError, "^draws must be an integer, got float$"),
        ({"draws": 0}, ValueError, "^draws must be at least 1, got 0$"),
        ({"seed": "a"}, TypeError, "^seed must be an integer, got str$"),
        ({"seed": -1}, ValueError, "^seed must be at least 0, got -1$"),
        ({"value": "a"}, TypeError, "^value must be a number, got str$"),
        ({"value": 1e40}, ValueError, r"^value must fit torch\.float32, input 0, got 1e\+40$"),
    ],
)
def test_options_are_named(options, kind, match):
    with pytest.raises(kind, match=match):
        probe.leaks(running_sum, X, **options)


@pytest.mark.unchecked
@pytest.mark.parametrize("value", [2.5, math.nan, math.inf])
def test_token_ids_take_whole_numbers(value):
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(ValueError, match=r"^value must be a whole number for token ids, input 0"):
        probe.leaks(lambda x: x.cumsum(1)[..., None].float(), ids, value=value)
