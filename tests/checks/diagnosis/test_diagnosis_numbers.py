"""What ordinary calls do not show: sizes of one, weak fills, faults with a number of their own, masks that pretend."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mha_course import checks

pytestmark = pytest.mark.unchecked


def attend(q, k, v, mask=None, *, fill=-math.inf, factor=1.0, add=0.0, cap=None):
    s = factor * (q @ k.mT) / math.sqrt(q.shape[-1])
    s = s if cap is None else cap * torch.tanh(s / cap)
    s = s + add * (torch.arange(s.shape[-1]) - torch.arange(s.shape[-2])[:, None]).abs()
    return (s if mask is None else s.masked_fill(~mask, fill)).softmax(-1) @ v


class Heads(nn.Module):
    """Self-attention without a mask whose weights a test may change."""

    def __init__(self, share=lambda s, mask: s.softmax(-1)):
        super().__init__()
        self.num_heads, self.share = 3, share
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(12, 12) for _ in range(4))

    def attend(self, x, mask):
        q, k, v = (f(x).unflatten(-1, (3, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        w = self.share(q @ k.mT / math.sqrt(q.shape[-1]), mask)
        return self.out_proj((w @ v).transpose(1, 2).flatten(2))

    def forward(self, x):
        return self.attend(x, None)


class Masked(Heads):
    """The same with a mask."""

    def forward(self, x, mask=None):
        return self.attend(x, mask)


def test_what_the_other_tests_change_is_right():
    assert checks.diagnose(lambda q, k, v, mask=None: attend(q, k, v, mask)).ok
    assert checks.diagnose(Heads()).ok
    assert checks.diagnose(Masked(lambda s, m: (s if m is None else s.masked_fill(~m, -math.inf)).softmax(-1))).ok


def test_a_squeezed_result_fails_with_one_sample():
    verdict = checks.diagnose(lambda q, k, v, mask=None: attend(q, k, v, mask).squeeze())
    assert verdict.names == ("fails_at_size_one",)
    assert "with one sample its result has shape" in verdict.fault


def test_a_squeezed_axis_of_tokens_fails_with_one_token():
    def squeezed(q, k, v):
        return attend(q, k, v) if q.shape[2] > 1 else attend(q, k, v).squeeze(2)

    verdict = checks.diagnose(squeezed)
    assert verdict.names == ("fails_at_size_one",)
    assert "with one token its result has shape" in verdict.fault


def test_other_numbers_with_one_sample_are_seen():
    verdict = checks.diagnose(lambda q, k, v: attend(q, k, v, factor=1.0 if len(q) > 1 else 2.0))
    assert verdict.names == ("fails_at_size_one",)
    assert "with one sample its numbers differ" in verdict.fault


def test_an_error_with_one_token_is_quoted():
    def raising(q, k, v):
        if q.shape[2] == 1:
            raise RuntimeError("no single token")
        return attend(q, k, v)

    assert "with one token it raises RuntimeError: no single token" in checks.diagnose(raising).fault


@pytest.mark.parametrize("fill", [-10.0, -30.0, -100.0, -200.0])
def test_a_weak_fill_is_found(fill):
    verdict = checks.diagnose(lambda q, k, v, mask=None: attend(q, k, v, mask, fill=fill))
    assert verdict.names == ("mask_fill_weak",)
    assert f"{fill:g}" in verdict.fault


@pytest.mark.parametrize("fill", [-1e4, -1e9, -math.inf])
def test_a_strong_fill_is_right(fill):
    assert checks.diagnose(lambda q, k, v, mask=None: attend(q, k, v, mask, fill=fill)).ok


def test_a_fill_that_nobody_listed_is_solved_for():
    verdict = checks.diagnose(lambda q, k, v, mask=None: attend(q, k, v, mask, fill=-3.7))
    assert verdict.names == ("mask_fill_weak",)
    assert "-3.7" in verdict.fault


def test_a_product_with_the_mask_that_seems_additive_is_weak():
    class Bert(Masked):
        def __init__(self, far):
            super().__init__(lambda s, m: (s if m is None else s + (1 - m.to(s.dtype)) * far).softmax(-1))

    assert checks.diagnose(Bert(-3.0)).names == ("mask_fill_weak",)
    assert checks.diagnose(Bert(-1e9)).ok


def test_an_additive_mask_stays_right():
    assert checks.diagnose(Masked(lambda s, mask: (s if mask is None else s + mask).softmax(-1))).ok


def test_a_large_number_on_visible_scores_is_no_mask():
    def signed(q, k, v, mask=None):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        return (s if mask is None else s + torch.where(mask, 0.0, 1e10).to(s.dtype)).softmax(-1) @ v

    verdict = checks.diagnose(signed)
    assert verdict.names == ("mask_fill_positive",)
    assert "lose their digits" in verdict.fault


@pytest.mark.parametrize(
    ("name", "said", "change"),
    [
        ("scale_other", "1.7", {"factor": math.sqrt(6) / 1.7}),
        ("soft_cap", "1.5", {"cap": 1.5}),
        ("position_bias", "-0.3", {"add": -0.3}),
    ],
)
def test_a_number_is_solved_for(name, said, change):
    verdict = checks.diagnose(lambda q, k, v: attend(q, k, v, **change))
    assert verdict.names == (name,)
    assert said in verdict.fault


def test_a_factor_on_the_result_is_told_from_one_on_the_weights():
    hooked = Heads()
    hooked.register_forward_hook(lambda module, args, out: out * 2)
    assert checks.diagnose(hooked).names == ("output_scaled",)
    assert checks.diagnose(Heads(lambda s, mask: 3 * s.softmax(-1))).names == ("weights_scaled",)


def test_a_root_of_the_input_width_is_named_after_it():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads = 4
            self.to_q, self.to_k, self.to_v = (nn.Linear(10, 12) for _ in range(3))
            self.to_out = nn.Linear(12, 10)

        def forward(self, x):
            q, k, v = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
            return self.to_out(((q @ k.mT * 10**-0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))

    verdict = checks.diagnose(Inner())
    assert verdict.names == ("scale_by_embed_dim",)
    assert "10, the width of the input" in verdict.fault


def test_underflow_is_told_from_overflow():
    def shared(s, mask):
        p = (s - s.max()).exp()
        return p / p.sum(-1, keepdim=True)

    def bare(s, mask):
        return s.exp() / s.exp().sum(-1, keepdim=True)

    assert checks.diagnose(Heads(shared)).names == ("softmax_underflows",)
    assert checks.diagnose(Heads(bare)).names == ("softmax_overflows",)


def test_a_finite_fill_is_no_second_fault_of_a_softmax_over_queries():
    def over(s, mask):
        return (s if mask is None else s.masked_fill(~mask, -1e9)).softmax(-2)

    assert checks.diagnose(Masked(over)).names == ("softmax_over_queries",)


def test_dropout_inside_torchs_own_function_is_dropout_in_eval():
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads = 3
            self.in_proj_weight, self.in_proj_bias = nn.Parameter(torch.randn(36, 12)), nn.Parameter(torch.zeros(36))
            self.out_proj = nn.Linear(12, 12)

        def forward(self, query, key, value):
            y, _ = F.multi_head_attention_forward(
                *(x.transpose(0, 1) for x in (query, key, value)), 12, 3, self.in_proj_weight, self.in_proj_bias,
                None, None, False, 0.3, self.out_proj.weight, self.out_proj.bias, training=True,
            )  # fmt: skip
            return y.transpose(0, 1)

    assert checks.diagnose(Drops()).names == ("dropout_in_eval",)


def zero_key(q, k, v):
    s = F.pad(q @ k.mT / math.sqrt(q.shape[-1]), (0, 1))
    return s.softmax(-1)[..., :-1] @ v


def softmax_off_by_one(q, k, v):
    return zero_key(q, k, v)


def test_a_key_of_zeros_is_right_only_if_it_says_so():
    assert checks.diagnose(zero_key).ok  # the name says it
    assert checks.diagnose(softmax_off_by_one).ok
    assert checks.diagnose(lambda q, k, v: zero_key(q, k, v)).names == ("softmax_plus_one",)
    assert checks.diagnose(nn.MultiheadAttention(12, 3, add_zero_attn=True, batch_first=True)).ok


def causal_unasked(q, k, v, attn_mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=attn_mask is None)


def test_hiding_the_future_where_no_mask_is_given_is_said():
    verdict = checks.diagnose(causal_unasked)
    assert verdict.ok
    assert any("where no mask is given" in remark for remark in verdict.remarks)
    assert checks.diagnose(causal_unasked, causal=False).names == ("causal_without_mask",)


@pytest.mark.parametrize(("start", "stop", "name"), [(0, -1, "last_key_lost"), (1, None, "first_key_lost")])
def test_a_lost_key_is_no_lost_tile(start, stop, name):
    verdict = checks.diagnose(lambda q, k, v: attend(q, k[:, :, start:stop], v[:, :, start:stop]))
    assert verdict.names == (name,)


def test_the_future_filled_with_zero_is_named():
    def tril(s, mask):
        return s.tril().softmax(-1)

    verdict = checks.diagnose(Heads(tril))
    assert verdict.names == ("mask_fill_zero",)
    assert "future" in verdict.fault
