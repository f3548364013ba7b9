"""Which kernels take a call: on a CPU, the table of the lesson, found by calling."""

import warnings

import pytest
import torch

from mha_course.backends import Support, supported, supported_for
from mha_course.backends.refusal import in_words

ABSENT = "does not exist for this device"
B, H, T, S, D = 2, 3, 5, 7, 11


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


Q, K, V = numbers(B, H, T, D), numbers(B, H, S, D, seed=1), numbers(B, H, S, D, seed=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_cpu_has_math_and_flash_and_picks_flash(dtype, requires_grad):
    found = supported("cpu", dtype, requires_grad=requires_grad)
    assert found.refusals == {"math": None, "flash": None, "efficient": ABSENT, "cudnn": ABSENT, "overrideable": ABSENT}
    assert found.works == ("math", "flash")
    assert found.default == "flash"


@pytest.mark.parametrize(
    ("asked", "flash"),
    [
        ({"dropout_p": 0.1}, "does not support dropout"),
        ({"mask": "learned"}, "does not support a mask that needs a gradient"),
        ({"value_dim": 13}, "needs values as wide as the keys (Dv = D)"),
        ({"dtype": torch.float8_e4m3fn}, "needs one of the types Float, Double, BFloat16, Half"),
        ({"head_dim": 1}, None),
        ({"head_dim": 512}, None),
        ({"num_heads": 6, "num_kv_heads": 2}, None),
        ({"num_kv_heads": 1, "requires_grad": True}, None),
        ({"mask": "bool", "T": 3, "S": 5}, None),
        ({"mask": "float"}, None),
        ({"T": 1, "S": 7, "is_causal": True}, None),
        ({"mask": "bool", "is_causal": True}, None),
    ],
    ids=str,
)
def test_what_flash_refuses_on_a_cpu(asked, flash):
    assert supported(**asked).refusals["flash"] == flash


def test_math_does_not_take_a_mask_and_is_causal_together():
    found = supported(mask="bool", is_causal=True)
    assert found.refusals["math"] == "does not take a mask and is_causal together"
    assert found.default == "flash"


def test_math_takes_dropout_and_pytorch_picks_it():
    found = supported(dropout_p=0.5)
    assert (found.works, found.default) == (("math",), "math")


@pytest.mark.parametrize(
    ("call", "flash", "works"),
    [
        ({"q": Q[0], "k": K[0], "v": V[0]}, "needs four axes (B, H, T, D) in q, k and v", ("math",)),
        ({"attn_mask": torch.ones(H, T, S).bool()}, "needs a mask of two or four axes", ("math",)),
        ({"k": K[:, :1], "v": V[:, :1]}, "needs as many heads in k and v as in q, or enable_gqa=True", ("math",)),
        ({"k": K[:, :1], "v": V[:, :1], "enable_gqa": True}, None, ("math", "flash")),
        ({"q": Q[:1]}, "needs one batch size B in q, k and v", ("math",)),
        (
            {"k": numbers(B, H, D, S).transpose(2, 3)},
            "needs the last axis of q, k and v to have stride 1",
            ("math",),
        ),
        ({"q": numbers(B, T, H, D).transpose(1, 2)}, None, ("math", "flash")),
    ],
    ids=["3-D", "3-D mask", "MQA without flag", "MQA", "B", "stride", "transposed heads"],
)
def test_the_very_tensors_are_tried(call, flash, works):
    found = supported_for(**{"q": Q, "k": K, "v": V, **call})
    assert found.refusals["flash"] == flash
    assert found.works == works
    assert found.default == works[-1]


def test_a_wrong_argument_is_said_in_pytorchs_words_by_each_kernel():
    found = supported_for(Q, K.double(), V)
    assert found.works == ()
    assert found.default is None
    assert found.refusals["math"].startswith("Expected query, key, and value to have the same dtype")
    assert str(found).endswith("Left alone, the call fails.")


def test_prints_as_a_table():
    assert str(supported(dropout_p=0.1)) == (
        "math          works\n"
        "flash         does not support dropout\n"
        "efficient     does not exist for this device\n"
        "cudnn         does not exist for this device\n"
        "overrideable  does not exist for this device\n"
        "Left alone, PyTorch picks math."
    )
    assert repr(Support({"math": None}, "math")) == "math  works\nLeft alone, PyTorch picks math."


def test_gradients_are_tried_and_left_nowhere():
    q = Q.clone().requires_grad_()
    before = torch.get_rng_state()
    k = (K * q.mean()).requires_grad_()
    assert supported_for(q, k, V, dropout_p=0.5).works == ("math",)
    assert q.grad is None
    k.sum().backward()  # the caller's graph is still there
    assert torch.equal(torch.get_rng_state(), before)


def test_the_graph_behind_the_tensors_is_not_walked():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise RuntimeError("no such backward pass")

    q = Q.clone().requires_grad_()
    assert supported_for(Bad.apply(q), K, V).works == ("math", "flash")
    with torch.no_grad():
        assert supported_for(q, K, V).works == ("math", "flash")


def test_a_backward_pass_that_fails_is_a_refusal(monkeypatch):
    def fails(*args):
        raise RuntimeError("no such backward pass. More words")

    monkeypatch.setattr(torch.autograd, "grad", fails)
    assert supported(requires_grad=True).refusals["flash"] == "no such backward pass"
    assert supported(mask="learned").refusals["math"] == "no such backward pass"
    assert supported().works == ("math", "flash")


def test_a_device_where_no_kernel_can_be_forced_says_so():
    found = supported("meta")
    assert found.works == ("math",)
    assert found.refusals["flash"] == "cannot be forced here: math runs instead"


@pytest.mark.parametrize("sizes", [(B, 0, T), (0, S, T), (B, S, 0)], ids=str)
def test_where_there_is_nothing_to_compute_every_kernel_takes_the_call(sizes):
    samples, keys, queries = sizes
    q, k = torch.zeros(samples, H, queries, D), torch.zeros(samples, H, keys, D)
    found = supported_for(q, k, k)
    assert set(found.refusals.values()) == {None}
    assert found.default == "none"
    assert str(found).endswith("Left alone, PyTorch picks none.")


def test_no_warning_of_pytorch_appears():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        supported(dropout_p=0.1, value_dim=3)
    assert caught == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Flash Attention does not support non-null attn_mask.", "does not support a mask"),
        ("Torch was not compiled with flash attention.", "is not part of this build of PyTorch"),
        (
            "Flash attention only supports gpu architectures in the range [sm80, sm121]. Attempting to run on sm 7.5",
            "does not support this GPU",
        ),
        (
            "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float",
            "needs one of the types Half, BFloat16",
        ),
        ("Something else. And more (Triggered internally at sdp_utils.cpp:1.)", "Something else"),
        ("dtype torch.float8 has no kernel (Triggered internally at x)", "dtype torch.float8 has no kernel"),
    ],
)
def test_what_a_gpu_says_becomes_words(said, words):
    assert in_words(said) == words


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("asked", "error", "match"),
    [
        ({"dtype": torch.int64}, TypeError, r"dtype must be a floating point type of torch, got torch\.int64"),
        ({"dtype": "float32"}, TypeError, "dtype must be a floating point type of torch, got float32"),
        ({"head_dim": 8.0}, TypeError, "head_dim must be an integer, got float"),
        ({"dropout_p": "0"}, TypeError, "dropout_p must be a number, got str"),
        ({"device": "cuda:99"}, ValueError, "device must be one that is there, got cuda:99"),
        ({"T": 0}, ValueError, "T must be at least 1, got 0"),
        ({"S": 0}, ValueError, "S must be at least 1, got 0"),
        ({"value_dim": 0}, ValueError, "value_dim must be at least 1, got 0"),
        ({"num_heads": 6, "num_kv_heads": 4}, ValueError, "num_kv_heads must divide num_heads, got 4 and 6"),
        ({"mask": "causal"}, ValueError, 'mask must be None, "bool", "float" or "learned", got \'causal\''),
        ({"dropout_p": 1.5}, ValueError, r"dropout_p must lie in \[0, 1\], got 1\.5"),
    ],
    ids=str,
)
def test_bad_input(asked, error, match):
    with pytest.raises(error, match=match):
        supported(**asked)


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ["q", "k", "v", "attn_mask"])
def test_what_is_no_tensor(name):
    with pytest.raises(TypeError, match=f"{name} must be a tensor, got list"):
        supported_for(**{"q": Q, "k": K, "v": V, name: [1.0]})
