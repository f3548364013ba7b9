"""Compiled, exported, under autocast, as a function of its parameters, copied, saved, on other devices."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state
from torch.testing import assert_close

from mha_course import MultiHeadAttention, masks
from mha_course.multihead.steps import sdpa, split_heads
from tests.multihead.modules import BACKENDS, EK, EV, B, D, E, S, T, bools, leaf, numbers, ours

EVERYTHING = "is_causal, mask and score_bias"
KINDS = ("plain", "cross", "mask", "score_bias", "is_causal", EVERYTHING)
# tracing takes time: every kind with SDPA, two with each of the others
TRACED = [pytest.param("sdpa", kind, id=f"sdpa, {kind}") for kind in KINDS]
TRACED += [
    pytest.param(BACKENDS[x], kind, id=f"{x}, {kind}")
    for x in BACKENDS
    if x != "sdpa"
    for kind in ("cross", EVERYTHING)
]


def grouped(backend="sdpa", **options) -> MultiHeadAttention:
    return ours(E, 6, num_kv_heads=2, head_dim=D, backend=backend, **options)


def call(kind: str, dtype: torch.dtype = torch.float64, T: int = T) -> tuple[tuple[Tensor, ...], dict]:
    x = numbers(B, T, E, dtype=dtype)
    options = {
        "mask": bools(B, 1, T, T) if "mask" in kind else None,
        "score_bias": numbers(6, T, T, dtype=dtype) if "score_bias" in kind else None,
        "is_causal": "is_causal" in kind,
    }
    return ((x, numbers(B, S, E, dtype=dtype)) if kind == "cross" else (x,)), options


def with_gradients(module: nn.Module, args: tuple, options: dict) -> list[Tensor]:
    query = leaf(args[0])
    out = module(query, *args[1:], **options)
    weights = [x for name, x in module.named_parameters() if "k_proj.bias" not in name]  # its gradient is rounding
    return [out, *torch.autograd.grad(out.square().sum(), [query, *weights])]


@pytest.mark.unchecked
@pytest.mark.parametrize(("backend", "kind"), TRACED)
def test_compiles_whole(backend, kind: str) -> None:
    torch._dynamo.reset()
    module = grouped(backend)
    args, options = call(kind)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert_close(with_gradients(compiled, args, options), with_gradients(module, args, options))


@pytest.mark.unchecked
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_one_graph_serves_every_length_and_batch(backend) -> None:
    torch._dynamo.reset()
    module = grouped(backend)
    compiled = torch.compile(module, backend="eager", fullgraph=True, dynamic=True)
    for length in range(3, 15):  # more lengths than there may be graphs
        args, options = call("mask", T=length)
        assert_close(compiled(*args, **options), module(*args, **options))


@pytest.mark.unchecked
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # inductor's own
def test_compiles_with_inductor() -> None:
    torch._dynamo.reset()
    module = grouped()
    args, options = call("is_causal")
    with torch.no_grad():  # backwards it takes half a minute
        compiled = torch.compile(module, fullgraph=True)
        assert_close(compiled(*args, **options), module(*args, **options))


@pytest.mark.unchecked
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
@pytest.mark.parametrize(("backend", "kind"), TRACED)
def test_exports_with_free_sizes(backend, kind: str, strict: bool) -> None:
    module = grouped(backend).eval()
    args, options = call(kind)
    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", max=64)
    x = {0: batch, 1: length}
    shapes = {
        "query": x,
        "mask": None if options["mask"] is None else {0: batch, 2: length, 3: length},
        "score_bias": None if options["score_bias"] is None else {1: length, 2: length},
        "is_causal": None,
    }
    if kind == "cross":
        shapes["key"] = {0: batch, 1: torch.export.Dim("keys", max=64)}
    program = torch.export.export(module, args, options, dynamic_shapes=shapes, strict=strict).module()
    assert_close(program(*args, **options), module(*args, **options))
    args, options = call(kind, T=13)
    assert_close(program(*args, **options), module(*args, **options))


@pytest.mark.unchecked
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["sdpa", "explicit"])
def test_autocast_computes_in_the_low_type_and_stays_close(backend: str, kind: str) -> None:
    module = grouped(backend, dtype=torch.float32)
    args, options = call(kind, torch.float32)
    exact = with_gradients(module, args, options)
    with torch.autocast("cpu", torch.bfloat16):
        low = with_gradients(module, args, options)
        assert module(*args, **options).dtype == torch.bfloat16
        assert module(args[0].bfloat16(), *args[1:], **options).dtype == torch.bfloat16
    assert {x.dtype for x in low[1:]} == {torch.float32}
    for x, y in zip(low, exact, strict=True):
        assert (x - y).norm() <= 3e-2 * y.norm() + 2e-2
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        assert_close(compiled(*args, **options), module(*args, **options))


@pytest.mark.unchecked
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # the fused kernel under vmap
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_as_a_function_of_its_parameters_and_for_several_at_once(backend) -> None:
    module = grouped(backend)
    args, options = call("mask")
    other = MultiHeadAttention(E, 6, num_kv_heads=2, head_dim=D, backend=backend, dtype=torch.float64)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(other, parameters, (x,), options).square().sum()

    parameters = dict(module.named_parameters())
    assert_close(functional_call(other, parameters, args, options), module(*args, **options))
    want = torch.autograd.grad(module(*args, **options).square().sum(), list(parameters.values()))
    found = grad(loss)({name: x.detach() for name, x in parameters.items()}, *args)
    assert_close(list(found.values()), list(want))

    both, _ = stack_module_state([module, other])
    outs = torch.vmap(lambda p: functional_call(other, p, args, options))(both)
    assert_close(outs, torch.stack([module(*args, **options), other(*args, **options)]))
    x = numbers(4, B, T, E)
    assert_close(torch.vmap(module)(x), torch.stack([module(part) for part in x]))


# Copies and files


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_deepcopy_is_equal_and_apart(backend) -> None:
    module = grouped(backend, dropout=0.2).eval()
    twin = copy.deepcopy(module)
    x = numbers(B, T, E)
    assert_close(twin(x), module(x), rtol=0, atol=0)
    assert repr(twin) == repr(module)
    with torch.no_grad():
        twin.q_proj.weight.zero_()
    assert module.q_proj.weight.any()


def test_state_dict_round_trip_and_a_wrong_shape() -> None:
    module, other = grouped(kdim=EK, vdim=EV), grouped(kdim=EK, vdim=EV)
    other.reset_parameters()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert list(state) == [f"{x}_proj.{kind}" for x in ("q", "k", "v", "out") for kind in ("weight", "bias")]
    other.load_state_dict(state)
    inputs = numbers(B, T, E), numbers(B, S, EK), numbers(B, S, EV)
    assert_close(other(*inputs), module(*inputs), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match=r"size mismatch for k_proj\.weight: .*\[22, 17\].*\[66, 17\]"):
        ours(E, 6, head_dim=D, kdim=EK, vdim=EV).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "q_proj\.bias"'):
        grouped(kdim=EK, vdim=EV, bias=False).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "q_proj\.weight"'):
        grouped().load_state_dict(nn.MultiheadAttention(E, 6 // 2).state_dict())


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_a_call_keeps_nothing(backend) -> None:
    module = grouped(backend, dropout=0.5)
    before = copy.copy(module.__dict__), {name: x.clone() for name, x in module.state_dict().items()}
    x = numbers(B, T, E)
    module(x, mask=bools(T, T), score_bias=numbers(T, T), is_causal=True)
    module.trace(x)
    assert module.__dict__ == before[0]
    assert_close(dict(module.state_dict()), before[1], rtol=0, atol=0)
    assert all(x.grad is None for x in module.parameters())


def test_a_projection_may_be_replaced() -> None:
    class Low(nn.Module):  # for example quantized: no weight, and a type of its own
        def forward(self, x: Tensor) -> Tensor:
            return x.float() @ torch.ones(E, E)

    class Scaled(nn.Linear):  # takes other types than that of its weight
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(self.weight.dtype)).float()

    module = MultiHeadAttention(E, 3)
    module.q_proj, module.k_proj = Low(), Scaled(E, E, dtype=torch.float64)
    assert module(numbers(B, T, E, dtype=torch.float32)).shape == (B, T, E)


# Devices


@pytest.mark.parametrize("backend", ["sdpa", "explicit"])
def test_meta_device_and_from_there(backend: str) -> None:
    module = grouped(backend, device="meta")
    x = torch.empty(B, T, E, dtype=torch.float64, device="meta")
    out = module(x, mask=masks.causal(T, device="meta"), is_causal=True)
    assert out.is_meta
    assert out.shape == (B, T, E)
    module = module.to_empty(device="cpu")
    module.reset_parameters()
    assert module(numbers(B, T, E)).isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_cuda(backend) -> None:
    for kind in KINDS:
        args, options = call(kind)
        if kind == "mask":
            options["mask"][:, :, 1] = False
        module = grouped(backend)
        want = with_gradients(module, args, options)
        there = {name: x.cuda() if isinstance(x, Tensor) else x for name, x in options.items()}
        got = with_gradients(copy.deepcopy(module).cuda(), tuple(x.cuda() for x in args), there)
        assert_close([x.cpu() for x in got], want)


@pytest.mark.unchecked
def test_compiles_where_the_width_of_a_head_is_not_fixed() -> None:
    def attend(x: Tensor, head_dim: int) -> Tensor:
        q = split_heads(x, head_dim)
        return sdpa(q, q, q, mask=None, score_bias=None, scale=None, is_causal=False, dropout_p=0.0)

    torch._dynamo.reset()
    compiled, x = torch.compile(attend, backend="eager", fullgraph=True), numbers(B, T, 12)
    for head_dim in (6, 3, 4):
        assert_close(compiled(x, head_dim), attend(x, head_dim))
