"""Which kernels ran: PyTorch's own modules, written-out attention, and what is none."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mha_course import MultiHeadAttention, attention
from mha_course.backends import Ran, flex, which

B, H, T, S, D = 2, 3, 5, 7, 11


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = numbers(B, H, T, D), numbers(B, H, S, D, seed=1), numbers(B, H, S, D, seed=2)
X = numbers(B, T, 12)
sdpa = F.scaled_dot_product_attention


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_sdpa_by_name_in_every_mode(mode):
    with mode():
        assert which(sdpa, Q, K, V) == {"flash": 1}
        assert which(sdpa, Q, K, V, dropout_p=0.5) == {"math": 1}
        assert which(lambda: [sdpa(Q, K, V, dropout_p=p) for p in (0, 0.5, 0)]) == {"flash": 2, "math": 1}
        assert which(attention, Q, K, V) == {"explicit": 1}


@pytest.mark.parametrize("backward", [False, True])
def test_backward_passes_are_not_counted(backward):
    q = Q.clone().requires_grad_()

    def run(fn):
        out = fn()
        if backward:
            out.sum().backward()

    assert which(run, lambda: sdpa(q, K, V)) == {"flash": 1}
    assert which(run, lambda: sdpa(q, K, V, dropout_p=0.5)) == {"math": 1}
    assert which(run, lambda: attention(q, K, V, dropout_p=0.5).out) == {"explicit": 1}
    assert (q.grad is not None) == backward


def test_a_checkpoint_runs_twice():
    q = Q.clone().requires_grad_()
    out = []
    assert which(lambda: out.append(checkpoint(sdpa, q, K, V, use_reentrant=False))) == {"flash": 1}
    assert which(lambda: checkpoint(sdpa, q, K, V, use_reentrant=False).sum().backward()) == {"flash": 2}
    assert which(lambda: checkpoint(lambda: attention(q, K, V).out, use_reentrant=False).sum().backward()) == {
        "explicit": 2
    }


def test_multihead_attention_of_pytorch():
    module = nn.MultiheadAttention(12, 4, batch_first=True)
    assert which(module, X, X, X) == {"explicit": 1}
    assert which(module, X, X, X, attn_mask=torch.zeros(T, T)) == {"explicit": 1}  # one product adds the mask
    assert which(module, X, X, X, need_weights=False) == {"flash": 1}
    module.eval()
    assert which(module, X, X, X, need_weights=False) == {"flash": 1}
    with torch.no_grad():
        assert which(module, X, X, X) == {"native": 1}
        assert which(module, X, X, X, need_weights=False) == {"native": 1}
        odd = nn.MultiheadAttention(12, 3, batch_first=True).eval()
        assert which(odd, X, X, X) == {"explicit": 1}  # the fast path wants an even number of heads


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_transformer_encoder_of_pytorch():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, 16, dropout=0.1, batch_first=True), 2)
    assert which(encoder, X) == {"math": 2}  # training: dropout
    encoder.eval()
    assert which(encoder, X) == {"flash": 2}
    with torch.no_grad():
        assert which(encoder, X) == {"native": 2}
        padded = torch.arange(T).expand(B, T) > 3
        assert which(encoder, X, src_key_padding_mask=padded) == {"native": 2}  # nested tensors


@pytest.mark.parametrize("backend", ["sdpa", "explicit"])
def test_our_module(backend):
    name = {"sdpa": "flash"}.get(backend, backend)
    assert which(MultiHeadAttention(12, 3, backend=backend), X) == {name: 1}


WRITTEN = {
    "matmul": lambda: (Q @ K.mT / 3).softmax(-1) @ V,
    "one head": lambda: (Q[0, 0] @ K[0, 0].T).softmax(-1) @ V[0, 0],
    "one query": lambda: (K[0, 0] @ Q[0, 0, 0]).softmax(-1) @ V[0, 0],
    "einsum": lambda: torch.einsum("bhts,bhsd->bhtd", torch.einsum("bhtd,bhsd->bhts", Q, K).softmax(-1), V),
    "mask": lambda: (Q @ K.mT).masked_fill(torch.ones(T, S).bool().triu(1), -math.inf).softmax(-1).nan_to_num(0) @ V,
    "bias, in place": lambda: (Q @ K.mT).mul_(0.3).add_(numbers(H, T, S)).softmax(-1) @ V,
    "dropout": lambda: F.dropout((Q @ K.mT).softmax(-1), 0.5) @ V,
    "soft cap": lambda: (30 * torch.tanh(Q @ K.mT / 30)).softmax(-1) @ V,
    "softmax in float32": lambda: (Q.half() @ K.half().mT).softmax(-1, dtype=torch.float32).half() @ V.half(),
    "values first": lambda: (V.mT @ (Q @ K.mT).softmax(-1).mT).mT,
    "heads talk": lambda: torch.einsum("bhts,hg->bgts", (Q @ K.mT).softmax(-1), torch.ones(H, H)) @ V,
}


@pytest.mark.parametrize("fn", WRITTEN.values(), ids=WRITTEN)
def test_written_out_attention_is_recognised(fn):
    assert which(fn) == {"explicit": 1}


NONE = {
    "nothing": lambda: None,
    "a product": lambda: Q @ K.mT,
    "scores and weights alone": lambda: (Q @ K.mT).softmax(-1),
    "weights that nothing is multiplied by": lambda: (Q @ K.mT).softmax(-1) + Q @ K.mT,
    "softmax of no product": lambda: Q.softmax(-1) @ K.mT,
    "a classifier": lambda: nn.Linear(12, 4)(X).softmax(-1) @ numbers(4, 3),
    "a product of other things": lambda: ((Q @ K.mT).softmax(-1), Q @ K.mT @ V),
    "the largest weight of each row": lambda: (Q @ K.mT).softmax(-1).amax(-1, keepdim=True).mT @ Q,
    "linear attention": lambda: Q.exp() @ (K.exp().mT @ V),
}


@pytest.mark.parametrize("fn", NONE.values(), ids=NONE)
def test_what_is_no_attention_is_not_counted(fn):
    assert which(fn) == {}


def test_memory_used_again_is_not_mistaken():
    def run():
        for _ in range(50):
            (Q @ K.mT).softmax(-1)  # freed at once: the next tensor may lie in the same place
            Q @ K.mT @ V

    assert which(run) == {}


@pytest.mark.unchecked
def test_flex_is_seen_and_works_afterwards():
    want = sdpa(Q, K, V)
    out = []
    assert which(lambda: out.append(flex(Q, K, V))) == {"flex": 1}
    torch.testing.assert_close(out[0], want)
    torch.testing.assert_close(flex(Q[:, :, :2], K, V), want[:, :, :2])


@pytest.mark.unchecked
def test_inside_a_compiled_function():
    torch._dynamo.reset()
    compiled = torch.compile(lambda: sdpa(Q, K, V) + sdpa(Q, K, V, dropout_p=0.5), backend="aot_eager")
    assert which(compiled) == which(compiled) == {"flash": 1, "math": 1}
    torch._dynamo.reset()


def test_operators_of_other_libraries_with_attention_in_their_name():
    library = torch.library.Library("mha_course_test", "FRAGMENT")
    names = ("fast_attn_fwd", "fast_attn_bwd", "attention_backward", "attention", "other")
    for name in names:
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, torch.clone, "CompositeExplicitAutograd")
    ran = which(lambda: [getattr(torch.ops.mha_course_test, name)(X) for name in names])
    assert ran == {"mha_course_test.fast_attn_fwd": 1, "mha_course_test.attention": 1}


def test_kernels_of_a_gpu_by_their_operators():
    with torch.device("meta"):
        q = torch.empty(B, H, T, 8, dtype=torch.float16)
        aten = torch.ops.aten
        assert which(lambda: aten._scaled_dot_product_efficient_attention(q, q, q, None, False)) == {"efficient": 1}
        assert which(lambda: aten._scaled_dot_product_flash_attention(q, q, q)) == {"flash": 1}
        assert which(lambda: aten._scaled_dot_product_cudnn_attention(q, q, q, None, False)) == {"cudnn": 1}


def test_prints_in_words_and_is_a_dict():
    assert str(Ran(flash=2, math=1)) == repr(Ran(flash=2, math=1)) == "flash: 2 calls, math: 1 call"
    assert str(Ran()) == "no attention that `which` knows ran"
    assert list(which(lambda: (attention(Q, K, V), sdpa(Q, K, V)))) == ["explicit", "flash"]


def test_what_fn_raises_is_passed_on():
    with pytest.raises(RuntimeError, match="must match"):
        which(sdpa, Q, K[:, :2], V[:, :2], dropout_p=0.5)
    assert which(sdpa, Q, K, V) == {"flash": 1}


@pytest.mark.unchecked
def test_what_cannot_be_called():
    with pytest.raises(TypeError, match="fn must be a function or module, got Tensor"):
        which(Q)
