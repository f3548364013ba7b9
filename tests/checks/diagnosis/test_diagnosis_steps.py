"""The steps that a candidate is compared with are the course's own attention, and can be changed one by one."""

import itertools

import pytest
import torch
from torch import nn

import mha_course
from mha_course import MultiHeadAttention, masks, positions
from mha_course.checks.diagnosis import bases, layouts
from mha_course.checks.diagnosis.catalogue import FAULTS
from mha_course.checks.diagnosis.steps import DEFAULT, FRONT, MIDDLE, Inputs, Linear, Weights, causal, run
from mha_course.checks.diagnosis.subject import Subject, draw_parameters

B, T, S, H, D, E = 2, 5, 7, 3, 6, 18
NUMBERS = torch.Generator().manual_seed(0)


def draw(*shape):
    return torch.randn(shape, generator=NUMBERS, dtype=torch.float64)


def heads(Hkv=H):
    return draw(B, H, T, D), draw(B, Hkv, S, D), draw(B, Hkv, S, D)


MASK = torch.rand(B, 1, T, S, generator=NUMBERS) < 0.6
MASK[..., 2] = True


def attention(q, k, v, mask=None, bias=None):
    return mha_course.attention(q, k, v, mask=mask, score_bias=bias).out


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mask", [None, MASK, MASK[:1], MASK[..., :1, :], MASK.expand(B, H, T, S)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_function_is_the_course_attention(mask, biased):
    q, k, v = heads()
    bias = draw(B, 1, T, S) if biased else None
    trace = run(Inputs(q, k, v, mask, bias), None, {})
    close(trace.out, attention(q, k, v, mask, bias))
    assert trace.projected is None
    assert trace.merged is None


def test_rows_that_see_nothing_are_0():
    q, k, v = heads()
    mask = MASK.clone()
    mask[:, :, 1] = False
    out = run(Inputs(q, k, v, mask), None, {}).out
    assert (out[:, :, 1] == 0).all()
    close(out, attention(q, k, v, mask))


def weights_of(module):
    return layouts.readings(module)[0].weights


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("Hkv", [None, 1, 3])
@pytest.mark.parametrize("masked", [True, False])
def test_a_module_is_the_course_module(bias, Hkv, masked):
    module = MultiHeadAttention(36, 6, num_kv_heads=Hkv, bias=bias, kdim=5, vdim=7, dtype=torch.float64)
    draw_parameters(module, 0)
    x = Inputs(draw(B, T, 36), draw(B, S, 5), draw(B, S, 7), MASK if masked else None)
    trace = run(x, weights_of(module), {})
    close(trace.out, module(*x[:3], mask=x.mask))
    assert trace.merged.shape == (B, T, 36)
    assert trace.weights.shape == (B, 6, T, S)


def test_weights_that_are_copied_give_the_same_numbers():
    module = MultiHeadAttention(E, H, dtype=torch.float64)
    draw_parameters(module, 1)
    q, k, v, o = (
        Linear(m.weight.detach().T.clone(), m.bias.detach().clone())
        for m in (module.q_proj, module.k_proj, module.v_proj, module.out_proj)
    )
    x = draw(B, T, E)
    close(run(Inputs(x, x, x, MASK[..., :T]), Weights(q, k, v, o, H, H), {}).out, module(x, mask=MASK[..., :T]))


@pytest.mark.parametrize("Hkv", [1, 3])
def test_query_heads_share_grouped_keys_in_their_order(Hkv):
    q = draw(B, 6, T, D)
    k, v = draw(B, Hkv, S, D), draw(B, Hkv, S, D)
    out = run(Inputs(q, k, v), None, {}).out
    for h in range(6):
        alone = run(Inputs(q[:, h : h + 1], *(y[:, h // (6 // Hkv), None] for y in (k, v))), None, {}).out
        close(out[:, h : h + 1], alone)


def test_what_is_seen_lies_beside_the_mask():
    q, k, v = heads()
    x = Inputs(q, k, v, MASK)
    close(run(x, None, {"see": causal}).out, attention(q, k, v, MASK & masks.causal(T, S, alignment="lower_right")))
    assert torch.equal(causal(T, S), masks.causal(T, S, alignment="lower_right"))


def test_attend_gets_what_the_middle_gets():
    q, k, v = heads()
    bias = draw(B, 1, T, S)

    def attend(q, k, v, mask, bias, scale):
        scores = (q @ k.mT * scale + bias).masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ v

    x = Inputs(q, k, v, MASK, bias)
    close(run(x, None, {"attend": attend}).out, run(x, None, {}).out)
    own = {"see": lambda T, S: causal(T, S) | torch.eye(T, S, dtype=torch.bool)}
    close(run(x, None, {"attend": attend, **own}).out, run(x, None, own).out)
    only = run(x._replace(mask=None), None, {"attend": attend, **own}).out
    close(only, run(x._replace(mask=None), None, own).out)


def test_every_step_is_used_and_remembered_by_a_part():
    assert set(FRONT) | set(MIDDLE) | {"merge", "finish"} == set(DEFAULT) | {"attend"}
    module = Subject(MultiHeadAttention(E, H))
    x = module.inputs(module.sizes()["uneven"], "B T E", axes="B S")
    for name, step in DEFAULT.items():
        used = []
        run(x, module.first.weights, {name: lambda *args, step=step, used=used: used.append(1) or step(*args)})
        assert used, name


def changed_two_by_two():
    plain = [fault for fault in FAULTS if "attend" not in fault.changes][::3]
    for one, two in itertools.combinations(plain, 2):
        if not one.touches & two.touches:
            yield {**one.changes, **two.changes}


def outcome(x, w, changes, memo):
    try:
        return run(x, w, changes, memo).out
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError) as error:
        return type(error)


@pytest.mark.parametrize("masked", [False, True])
def test_a_memo_changes_no_numbers(masked):
    subject = Subject(MultiHeadAttention(E, H))
    x = subject.inputs(subject.sizes()["uneven"], "B T E", axes="B 1 T S" if masked else "")
    w, memo = subject.first.weights, {}
    tried = [{}, *(fault.changes for fault in FAULTS), *itertools.islice(changed_two_by_two(), 0, None, 5)]
    for changes in tried:
        got, expected = outcome(x, w, changes, memo), outcome(x, w, changes, None)
        assert type(got) is type(expected)
        if isinstance(got, torch.Tensor):
            assert torch.equal(got.nan_to_num(), expected.nan_to_num())
        else:
            assert got is expected
    assert len(memo) < 2 * len(tried)


def test_a_memo_keeps_errors():
    q, k, v = heads()
    calls = []

    def score(q, k):
        calls.append(1)
        raise ValueError("no")

    memo = {}
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            run(Inputs(q, k, v), None, {"score": score}, memo)
    assert len(calls) == 1


@pytest.mark.parametrize("pairing", ["halves", "neighbours"])
@pytest.mark.parametrize("which", ["halves", "neighbours"])
def test_rotary_is_the_course_rotary_in_its_own_pairing(pairing, which):
    q, k, v = heads()
    rotary = positions.Rotary(D, interleaved=which == "neighbours")
    base = bases._rotary(D, pairing == "neighbours")
    got = run(Inputs(q, k, v), None, base.changes).out
    expected = attention(rotary(q), rotary(k), v)
    assert torch.allclose(got, expected, 1e-6, 1e-6) == (pairing == which)
    assert ("halves" in base.remarks[0]) == (pairing == "halves")


def test_alibi_is_the_course_alibi():
    q, k, v = heads()
    base = next(b for b in bases.bases(Subject(lambda q, k, v: v), None) if "ALiBi" in "".join(b.remarks))
    slopes = positions.alibi(T, S, num_heads=H, offset=S - T, dtype=torch.float64)
    close(run(Inputs(q, k, v), None, base.changes).out, attention(q, k, v, None, slopes))


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("both", [True, False])
def test_a_window_sees_its_width(width, both):
    seen = bases._window(width, both).changes["see"](T, S)
    t, s = torch.arange(T)[:, None] + S - T, torch.arange(S)
    expected = (t - s < width) & ((s - t < width) if both else (s <= t))
    assert torch.equal(seen, expected)
    assert torch.equal(bases._window(width, False).changes["see"](T, T), masks.sliding_window(T, width))


def test_one_more_key_of_score_0_takes_weight():
    scores = draw(B, H, T, S)
    weights = bases.plus_one(scores)
    close(weights, scores.exp() / (1 + scores.exp().sum(-1, keepdim=True)))


def test_bases_follow_what_is_stated():
    subject = Subject(lambda q, k, v: v)
    every = list(bases.bases(subject, None))
    assert every[:3] == [bases.PLAIN, bases.CAUSAL, bases.UPPER_LEFT]
    assert not bases.PLAIN.remarks
    assert all(base.remarks for base in every[1:])
    assert len({base.remarks for base in every}) == len(every)
    for stated in (True, False):
        some = list(bases.bases(subject, stated))
        assert some[0] == (bases.CAUSAL if stated else bases.PLAIN)
        assert all(("see" in base.changes) == stated for base in some)


class Block(nn.Module):
    def __init__(self, before, residual):
        super().__init__()
        self.before, self.residual = before, residual
        self.norm, self.attention = nn.LayerNorm(E), MultiHeadAttention(E, H)

    def forward(self, x):
        y = self.attention(self.norm(x) if self.before else x)
        y = x + y if self.residual else y
        return y if self.before else self.norm(y)


@pytest.mark.parametrize(("before", "residual"), [(True, True), (True, False), (False, True)])
def test_a_norm_and_a_residual_have_a_base(before, residual):
    subject = Subject(Block(before, residual))
    x = subject.inputs(subject.sizes()["even"], "B T E")
    expected = subject.fn(x.query)
    fitting = []
    for base in bases.bases(subject, False):
        got = run(x, subject.first.weights, base.changes).out
        if torch.allclose(got, expected, 1e-6, 1e-6):
            fitting.append(base)
    assert len(fitting) == 1
    assert ("first" in fitting[0].remarks[0]) == before
    assert ("residual" in fitting[0].remarks[0]) == residual


def test_an_odd_width_has_no_rotary():
    class Bare(nn.Module):
        head_dim = 7

        def forward(self, q, k, v):
            return v

    for module, rotates in ((Bare(), False), (lambda q, k, v: v, True)):
        said = [remark for base in bases.bases(Subject(module), None) for remark in base.remarks]
        assert any("rotates" in remark for remark in said) == rotates
