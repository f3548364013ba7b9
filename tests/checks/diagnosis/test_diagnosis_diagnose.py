"""The front door, `diagnose`: what it takes, what it leaves alone, and where it can be called."""

import math
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from mha_course import MultiHeadAttention
from mha_course.checks.diagnosis.entry import diagnose
from mha_course.checks.verdict import Verdict


def attention(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v


def unscaled(q, k, v, mask=None):
    return attention(q * math.sqrt(q.shape[-1]), k, v, mask)


class Attention(nn.Module):
    """Right but for what `broken` says."""

    def __init__(self, embed_dim, num_heads, *, broken="", output=True):
        super().__init__()
        self.num_heads, self.broken = num_heads, broken
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(3))
        if output:
            self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        q, k, v = (
            m(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for m in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.mT
        if self.broken != "scale":
            scores = scores / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        out = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.out_proj(out) if hasattr(self, "out_proj") else out


@pytest.mark.parametrize(
    ("candidate", "options", "error", "said"),
    [
        (3, {}, TypeError, "candidate must be a module, a class or a function, got int"),
        (None, {}, TypeError, "got NoneType"),
        (attention, {"mask": 1}, TypeError, "mask must be a string, got int"),
        (
            attention,
            {"mask": "bool"},
            ValueError,
            "mask must be one of 'may attend', 'blocked', 'additive', got 'bool'",
        ),
        (attention, {"mask_axes": ("B", "S")}, TypeError, "mask_axes must be a string, got tuple"),
        (attention, {"mask_axes": "S B"}, ValueError, "mask_axes must be one of .*'B 1 T S'.*got 'S B'"),
        (attention, {"layout": 0}, TypeError, "layout must be a string, got int"),
        (attention, {"layout": "E T B"}, ValueError, "layout must be one of 'B T E', .* got 'E T B'"),
        (attention, {"num_heads": 2.0}, TypeError, "num_heads must be an integer, got float"),
        (attention, {"num_heads": True}, TypeError, "num_heads must be an integer, got bool"),
        (attention, {"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        (attention, {"num_heads": -3}, ValueError, "num_heads must be at least 1, got -3"),
        (attention, {"seconds": 0}, ValueError, "seconds must be a number above 0, got 0"),
        (attention, {"seconds": math.inf}, ValueError, "seconds must be a number above 0"),
        (attention, {"seconds": "3"}, TypeError, "seconds must be a number, got str"),
    ],
)
@pytest.mark.unchecked
def test_bad_arguments_are_named(candidate, options, error, said):
    with pytest.raises(error, match=said):
        diagnose(candidate, **options)


def is_right(verdict):
    return verdict.ok and verdict.judged and verdict.fault is None and verdict.names == ()


@pytest.mark.parametrize(
    "candidate",
    [attention, Attention, Attention(18, 3), Attention(18, 3, output=False), MultiHeadAttention(18, 3),
     nn.MultiheadAttention(18, 3, batch_first=True), torch.nn.functional.scaled_dot_product_attention],
    ids=["function", "class", "module", "no output", "course", "torch", "fused"],
)  # fmt: skip
def test_what_is_right_is_called_right(candidate):
    verdict = diagnose(candidate)
    assert isinstance(verdict, Verdict)
    assert is_right(verdict), verdict


@pytest.mark.parametrize(
    "candidate", [unscaled, Attention(18, 3, broken="scale"), Attention(18, 3, broken="scale", output=False)]
)
def test_a_fault_is_named(candidate):
    verdict = diagnose(candidate)
    assert (verdict.ok, verdict.judged, verdict.names) == (False, True, ("no_scale",))
    assert verdict.fault == "the scores are not scaled"
    assert verdict.evidence
    assert len(verdict.hints) == 2


@pytest.mark.parametrize("fill", [-1.0, -5.0, -20.0, -50.0, -200.0])
def test_a_weak_fill_is_found_whatever_it_is(fill):
    def weak(q, k, v, mask=None):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return (scores if mask is None else scores.masked_fill(~mask, fill)).softmax(-1) @ v

    verdict = diagnose(weak)
    assert verdict.names == ("mask_fill_weak",)
    assert f"become {fill:g}," in verdict.fault


@pytest.mark.parametrize("fill", [-1e3, -1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_strong_fill_is_right(fill):
    def strong(q, k, v, mask=None):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return (scores if mask is None else scores.masked_fill(~mask, fill)).softmax(-1) @ v

    assert is_right(diagnose(strong))


def test_what_is_stated_is_checked():
    def blocked(q, k, v, mask=None):
        return attention(q, k, v, None if mask is None else ~mask)

    assert diagnose(blocked).ok
    assert diagnose(blocked, mask="blocked").ok
    assert diagnose(blocked, mask="may attend").names == ("mask_inverted",)
    assert diagnose(attention, causal=False).ok
    assert diagnose(attention, causal=True).names == ("causal_missing",)
    assert diagnose(attention, layout="B H T D", mask="may attend", mask_axes="B 1 T S").ok


def test_the_number_of_heads_is_stated_where_no_attribute_tells_it():
    class Silent(Attention):
        def __init__(self):
            super().__init__(18, 3)
            del self.num_heads

        num_heads = property(lambda self: [3][0], lambda self, value: None, lambda self: None)

    assert is_right(diagnose(Silent(), num_heads=3))


class Strange(nn.Module):
    def __init__(self, colour):
        super().__init__()


class Raising(nn.Module):
    def __init__(self):
        super().__init__()
        raise RuntimeError("no luck")


class NoModule:
    pass


@pytest.mark.parametrize(
    ("candidate", "said", "judged"),
    [
        (Strange, "`colour` would be needed", False),
        (Raising, "constructor raises", True),
        (NoModule, "is a class, and no nn.Module", False),
        (nn.LayerNorm(4), "takes input", False),
        (lambda q, k, v, rate: v, "needs `rate`", False),
        (nn.Linear(4, 4), "depends on its own token alone", False),
    ],
)
def test_what_cannot_be_judged_says_why(candidate, said, judged):
    verdict = diagnose(candidate)
    assert not verdict.ok
    assert verdict.judged == judged
    assert said in verdict.fault
    assert judged or verdict.hints


def test_a_loop_without_end_is_stopped():
    def endless(q, k, v):
        while True:
            pass

    verdict = diagnose(endless, seconds=0.3)
    assert verdict.names == ("endless_loop",)
    assert "0.3 s" in verdict.fault


def drawing(q, k, v, mask=None):
    """Draws from, and changes, all that is global."""
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    return attention(q, k, v, mask)


def global_state():
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_rng_state().tolist(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        random.getstate(),
    )


@pytest.mark.parametrize("candidate", [attention, unscaled, drawing, Attention, 3])
@pytest.mark.unchecked
def test_global_state_is_restored(candidate):
    kept = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        torch.rand(3), random.random(), np.random.rand(3)  # noqa: NPY002
        before = global_state()
        try:
            diagnose(candidate)
        except TypeError:
            assert candidate == 3
        assert global_state() == before
    finally:
        torch.set_grad_enabled(kept[0])
        torch.set_default_dtype(kept[1])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_verdict_is_the_same_in_every_mode(mode):
    with mode():
        before = global_state()
        module = Attention(18, 3)
        right, wrong = diagnose(module), diagnose(Attention(18, 3, broken="scale"))
        after = global_state()
    assert is_right(right)
    assert wrong.names == ("no_scale",)
    assert before[:3] == after[:3]


def test_the_default_type_does_not_matter():
    torch.set_default_dtype(torch.float64)
    try:
        verdicts = diagnose(Attention), diagnose(unscaled)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert is_right(verdicts[0])
    assert verdicts[1].names == ("no_scale",)


def test_it_works_in_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.extend([diagnose(Attention), diagnose(unscaled)]))
    thread.start()
    thread.join(60)
    assert is_right(found[0])
    assert found[1].names == ("no_scale",)


def test_the_verdict_does_not_depend_on_chance_or_on_calls_before():
    texts = set()
    for seed in range(3):
        torch.manual_seed(seed)
        texts.add(repr(diagnose(unscaled)) + repr(diagnose(Attention(18, 3, broken="scale"))))
    assert len(texts) == 1


def test_the_candidate_is_left_as_it_is():
    module = Attention(18, 3).train()
    before = {name: p.clone() for name, p in module.state_dict().items()}
    assert diagnose(module).ok
    assert module.training
    assert all(torch.equal(p, before[name]) for name, p in module.state_dict().items())
    assert all(p.requires_grad and p.grad is None and p.dtype == torch.float32 for p in module.parameters())


def test_what_the_candidate_prints_is_kept_short(capsys):
    def loud(q, k, v, mask=None):
        print("x" * 1000)
        return attention(q, k, v, mask)

    assert diagnose(loud).ok
    assert len(capsys.readouterr().out) < 20_000


def test_a_wrapper_for_several_devices_is_looked_through():
    inner = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    assert diagnose(torch.nn.DataParallel(inner)) == diagnose(inner)
