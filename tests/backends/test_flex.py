"""FlexAttention, not compiled: the numbers of an explicit loop, and errors before PyTorch's."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex
from torch.testing import assert_close

from mha_course import attention, masks
from mha_course.backends import flex, flexible
from tests import reference

pytestmark = pytest.mark.unchecked

ROOT = Path(__file__).parents[2]
B, H, T, S, D, DV = 2, 6, 5, 7, 11, 13
F64 = torch.float64


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


Q, K, V = numbers(B, H, T, D), numbers(B, H, S, D, seed=1), numbers(B, H, S, DV, seed=2)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("Hkv", [H, 2, 1])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_equals_the_loops(scale, Hkv):
    k, v = K[:, :Hkv], V[:, :Hkv]
    groups = H // Hkv
    want = reference.attention(Q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), scale=scale)[2]
    assert_close(flex(Q, k, v, scale=scale), want)


def test_a_soft_cap_equals_a_loop_over_every_score():
    cap = 0.5
    want = torch.zeros(B, H, T, DV, dtype=F64)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                dots = [sum(Q[b, h, t, d].item() * K[b, h, s, d].item() for d in range(D)) for s in range(S)]
                parts = [math.exp(cap * math.tanh(dot / math.sqrt(D) / cap)) for dot in dots]
                for e in range(DV):
                    values = (part * V[b, h, s, e].item() for s, part in enumerate(parts))
                    want[b, h, t, e] = sum(values) / sum(parts)
    assert_close(flex(Q, K, V, score_mod=lambda score, b, h, t, s: cap * torch.tanh(score / cap)), want)


def test_a_mask_may_depend_on_sample_and_head_and_hide_a_row():
    lengths = torch.tensor([4, 6])

    def may(b, h, t, s):
        return (s < lengths[b]) & (s != h) & (t != 3)

    b, h, t, s = (torch.arange(n).view([-1 if i == j else 1 for j in range(4)]) for i, n in enumerate((B, H, T, S)))
    mask = may(b, h, t, s)
    want = reference.attention(Q, K, V, mask=mask)[2]
    assert_close(flex(Q, K, V, mask_mod=may), want)
    assert (flex(Q, K, V, mask_mod=may)[:, :, 3] == 0).all()
    block_mask = torch_flex.create_block_mask(may, B, H, T, S, device="cpu")
    assert_close(flex(Q, K, V, block_mask=block_mask), want)


def test_the_block_mask_has_a_sample_and_a_head_for_each(monkeypatch):
    seen = []
    monkeypatch.setattr(torch_flex, "flex_attention", lambda q, k, v, *, block_mask, **_: seen.append(block_mask) or q)
    flex(Q, K, V[..., :D], mask_mod=lambda b, h, t, s: s != h)  # a compiled kernel skips by it what is empty
    assert seen[0].shape == (B, H, T, S)


def test_score_and_mask_together():
    want = reference.attention(Q[:, :, :T], K, V, mask=masks.causal(T, S, alignment="upper_left"), score_bias=0.1 * REL)
    got = flex(Q, K, V, score_mod=lambda score, b, h, t, s: score + 0.1 * (s - t), mask_mod=lambda b, h, t, s: s <= t)
    assert_close(got, want[2])


REL = (torch.arange(S) - torch.arange(T)[:, None]).double()


def test_pytorch_does_not_warn_and_neither_does_importing_load_dynamo():
    flex(Q, K, V)  # warnings are errors here
    program = "import sys, mha_course, mha_course.backends; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_gradients_on_a_cpu(name):
    given = {"q": Q, "k": K, "v": V}
    given[name] = given[name].clone().requires_grad_()
    with pytest.raises(RuntimeError, match=f"no gradients on a CPU, and {name} needs one"):
        flex(**given)
    with torch.no_grad(), pytest.raises(RuntimeError, match="no_grad does not help"):
        flex(**given)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):  # PyTorch's: still true
        torch_flex.flex_attention(*given.values())
    assert_close(flex(**{**given, name: given[name].detach()}), flex(Q, K, V))


def test_compiled_without_a_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match=r"compiled=True needs a C\+\+ compiler, such as g\+\+, and none was found"):
        flex(Q, K, V, compiled=True)
    flex(Q, K, V, compiled=False)
    flex(Q, K, V)


def test_the_compiler_is_the_one_that_pytorch_names(monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name == "clang" else None)
    for cxx, found in (((None, "g++"), None), ((None, "g++", "clang"), "/bin/clang"), ("clang", "/bin/clang")):
        monkeypatch.setattr(config.cpp, "cxx", cxx)
        assert flexible._compiler() == found


def test_a_compiler_that_fails(monkeypatch):
    from torch._inductor.exc import InductorError

    def fails(*args, **kwargs):
        raise InductorError(OSError("the linker is missing\nand more"), None)

    monkeypatch.setattr(flexible, "_compiler", lambda: "c++")
    monkeypatch.setattr(flexible, "_compiled", lambda: fails)
    with pytest.raises(
        RuntimeError, match=r"^FlexAttention could not be compiled here \(OSError: the linker is missing\)"
    ):
        flex(Q, K, V, compiled=True)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # PyTorch imports it itself
def test_compiled_is_what_is_called(monkeypatch):
    monkeypatch.setattr(flexible, "_compiler", lambda: "c++")
    monkeypatch.setattr(flexible, "_compiled", lambda: lambda q, k, v, **options: options)
    options = flex(Q, K[:, :2], V[:, :2], compiled=True, scale=0.3)
    assert options == {"score_mod": None, "block_mask": None, "scale": 0.3, "enable_gqa": True}
    monkeypatch.undo()
    assert isinstance(flexible._compiled(), type(lambda: 0))
    assert flexible._compiled() is flexible._compiled()


def blocks(B, H):
    return torch_flex.create_block_mask(lambda b, h, t, s: s <= t, B, H, T, S, device="cpu")


@pytest.mark.parametrize("sizes", [(None, None), (2, 1), (1, 6), (2, 6)], ids=str)
def test_a_block_mask_serves_every_sample_and_head_or_one(sizes):
    may = torch.ones(T, S, dtype=torch.bool).tril()
    assert_close(flex(Q, K, V, block_mask=blocks(*sizes)), attention(Q, K, V, mask=may).out)


BLOCKS = torch_flex.create_block_mask(lambda b, h, t, s: s <= t, None, None, S, T, device="cpu")


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"q": [1]}, TypeError, "q must be a tensor, got list"),
        ({"k": K.float()}, TypeError, r"k must have the type of q, torch\.float64, got torch\.float32"),
        ({"score_mod": 2}, TypeError, "score_mod must be a function, got int"),
        ({"mask_mod": torch.ones(T, S)}, TypeError, "mask_mod must be a function, got Tensor"),
        ({"block_mask": torch.ones(T, S)}, TypeError, "block_mask must be a BlockMask, got Tensor"),
        ({"scale": "1"}, TypeError, "scale must be a number, got str"),
        ({"compiled": 1}, TypeError, "compiled must be None, True or False, got int"),
        ({"q": Q[0]}, ValueError, "q must have four axes"),
        ({"k": K[:, :, :3]}, ValueError, "one length S"),
        ({"k": K[:, :, :0], "v": V[:, :, :0]}, ValueError, r"length S of at least 1 .*, got \(2, 6, 0, 11\)"),
        ({"mask_mod": lambda *_: True, "block_mask": BLOCKS}, ValueError, "two ways to say one thing"),
        ({"block_mask": BLOCKS}, ValueError, r"block_mask must be made for \(T, S\) = \(5, 7\), got \(7, 5\)"),
        ({"block_mask": blocks(3, 1)}, ValueError, r"made for \(B, H\) = \(2, 6\), or 1 in .*, got \(3, 1\)"),
        ({"block_mask": blocks(1, 3)}, ValueError, r"made for \(B, H\) = \(2, 6\), or 1 in .*, got \(1, 3\)"),
        ({"scale": math.nan}, ValueError, "scale must be finite, got nan"),
        ({"scale": -math.inf}, ValueError, "scale must be finite, got -inf"),
    ],
)
def test_bad_input(wrong, error, match):
    with pytest.raises(error, match=match):
        flex(**{"q": Q, "k": K, "v": V, **wrong})
