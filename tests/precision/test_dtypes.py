"""Which types operations use: found by running them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mha_course import MultiHeadAttention
from mha_course.precision import DtypeTrace, Op, trace_dtypes

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
PRODUCTS = ("mm", "bmm")


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return MultiHeadAttention(12, 3, backend="explicit", dropout=0.5)


@pytest.fixture
def x():
    return torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))


def types(trace, *names, phase=None):
    return {d for r in trace.only(*names).rows for d in (*r.inputs, *r.outputs) if phase in (None, r.phase)}


class TestALinearMap:
    def test_every_row(self):
        trace = trace_dtypes(nn.Linear(3, 2), torch.randn(5, 3))
        assert trace.rows == (
            Op("_to_copy", "forward", (FP32,), (BF16,), 3),
            Op("addmm", "forward", (BF16, BF16, BF16), (BF16,), 1),
            Op("mm", "backward", (BF16, BF16), (BF16,), 1),  # the input needs no gradient
            Op("sum", "backward", (BF16,), (BF16,), 1),
            Op("_to_copy", "backward", (BF16,), (FP32,), 2),
        )

    def test_an_input_that_needs_a_gradient(self):
        trace = trace_dtypes(nn.Linear(3, 2), torch.randn(5, 3, requires_grad=True))
        (row,) = (r for r in trace.only("mm").rows if r.phase == "backward")
        assert row.count == 2

    def test_table(self):
        trace = trace_dtypes(nn.Linear(3, 2), torch.randn(5, 3), backward=False)
        assert str(trace) == repr(trace)
        assert str(trace).splitlines() == [
            "         operation  takes       gives     times",
            "forward  _to_copy   float32     bfloat16  3",
            "forward  addmm      3 bfloat16  bfloat16  1",
        ]

    def test_mixed_types_are_listed_in_order(self):
        trace = DtypeTrace((Op("x", "forward", (FP32, BF16, BF16, FP32), (FP16,), 7),))
        assert "float32, 2 bfloat16, float32  float16  7" in str(trace)


class TestAttention:
    @pytest.mark.parametrize("dtype", [BF16, FP16])
    def test_products_are_low_forward_and_backward(self, layer, x, dtype):
        trace = trace_dtypes(layer, x, dtype=dtype)
        assert types(trace, *PRODUCTS, phase="forward") == {dtype}
        assert types(trace, *PRODUCTS, phase="backward") == {dtype}

    def test_off_is_float32(self, layer, x):
        assert types(trace_dtypes(layer, x, enabled=False), "") == {FP32}

    def test_backward_can_be_left_out(self, layer, x):
        trace = trace_dtypes(layer, x, backward=False)
        assert {row.phase for row in trace.rows} == {"forward"}

    def test_cross_entropy_is_float32(self):
        def loss(x, target):
            return F.cross_entropy(x @ x.T, target)

        trace = trace_dtypes(loss, torch.randn(3, 3, requires_grad=True), torch.arange(3))
        assert types(trace, "log_softmax") == {FP32}
        assert types(trace, "mm") == {BF16}


class TestNesting:
    @pytest.mark.parametrize("enabled", [True, False])
    def test_an_autocast_around_it_changes_nothing(self, layer, x, enabled):
        alone = trace_dtypes(layer, x, enabled=enabled)
        with torch.autocast("cpu", dtype=FP16):
            layer(x)  # its converted weights are kept by the outer autocast
            assert trace_dtypes(layer, x, enabled=enabled) == alone
            assert torch.is_autocast_enabled("cpu")
            assert torch.get_autocast_dtype("cpu") == FP16

    def test_weights_converted_outside_are_not_touched(self, layer, x):
        with torch.autocast("cpu", dtype=BF16):
            trace_dtypes(layer, x)
            out = layer(x)
        out.sum().backward()
        assert layer.q_proj.weight.grad is not None

    def test_without_gradients_around_it(self, layer, x):
        with torch.no_grad():
            assert trace_dtypes(layer, x) == trace_dtypes(layer, x)
            assert {row.phase for row in trace_dtypes(layer, x).rows} == {"forward", "backward"}
            assert not torch.is_grad_enabled()


class TestState:
    def test_gradients_mode_and_random_numbers(self, layer, x):
        layer.q_proj.weight.grad = torch.ones(12, 12)
        state = torch.get_rng_state()
        trace_dtypes(layer, x)
        assert torch.equal(layer.q_proj.weight.grad, torch.ones(12, 12))
        assert layer.k_proj.weight.grad is None
        assert layer.training
        assert torch.equal(torch.get_rng_state(), state)

    def test_buffers(self):
        norm = nn.BatchNorm1d(3)
        trace_dtypes(norm, torch.randn(5, 3) + 7)
        assert norm.running_mean.tolist() == [0, 0, 0]
        assert norm.num_batches_tracked.item() == 0

    def test_buffers_that_the_module_replaces(self):
        class Replaces(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(3))
                self.register_buffer("mean", torch.zeros(3))
                self.register_buffer("made", None)

            def forward(self, x):
                self.mean = self.mean + x.mean(0)
                self.made = torch.ones(3)
                return self.weight * x

        module = Replaces()
        mean = module.mean
        trace_dtypes(module, torch.ones(5, 3))
        assert module.mean is mean
        assert module.mean.tolist() == [0, 0, 0]
        assert module.made is None

    def test_a_graph_that_waits_for_its_backward(self):
        class Table(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.ones(3))

            def forward(self, x):
                return x * self.table

        table, x = Table(), torch.ones(3, requires_grad=True)
        out = table(x)
        trace_dtypes(table, x)
        out.sum().backward()  # refused if the buffer had been written to
        assert x.grad.tolist() == [1, 1, 1]

    def test_after_an_error(self):
        class Fails(nn.BatchNorm1d):
            def forward(self, x):
                super().forward(x)
                raise RuntimeError("on purpose")

        norm, state = Fails(3), torch.get_rng_state()
        with pytest.raises(RuntimeError, match="on purpose"):
            trace_dtypes(norm, torch.randn(5, 3, generator=torch.Generator()) + 7)
        assert norm.running_mean.tolist() == [0, 0, 0]
        assert torch.equal(torch.get_rng_state(), state)
        assert not torch.is_autocast_enabled("cpu")

    def test_after_an_error_of_the_backward_pass(self, layer, x):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, g):
                raise RuntimeError("on purpose")

        with pytest.raises(RuntimeError, match="on purpose"):
            trace_dtypes(lambda x: Fails.apply(layer(x)), x)
        assert not _get_current_dispatch_mode_stack()
        assert not torch.is_autocast_enabled("cpu")
        assert all(p.grad is None for p in layer.parameters())

    def test_a_function_that_holds_a_module(self):
        linear, x = nn.Linear(3, 2), torch.randn(5, 3)
        assert trace_dtypes(lambda x: linear(x), x) == trace_dtypes(linear, x)
        assert linear.weight.grad is None

    def test_backward_ends_at_the_arguments(self):
        x = torch.randn(5, 3, requires_grad=True).exp()
        trace = trace_dtypes(nn.Linear(3, 2), x)
        assert {r.name for r in trace.rows if r.phase == "backward"} == {"mm", "sum", "_to_copy"}

    def test_outputs_in_a_tuple(self):
        x = torch.randn(3, 3, requires_grad=True)
        trace = trace_dtypes(lambda x: (x.detach(), {"b": [x @ x]}), x)
        assert types(trace, "mm", phase="backward") == {BF16}


@pytest.mark.unchecked
class TestBadInput:
    def test_no_function(self):
        with pytest.raises(TypeError, match="module must be a module or a function, got int"):
            trace_dtypes(3)

    @pytest.mark.parametrize("dtype", [torch.int8, "bfloat16"])
    def test_no_floating_type(self, layer, x, dtype):
        with pytest.raises(TypeError, match="dtype must be a floating point type, got"):
            trace_dtypes(layer, x, dtype=dtype)

    def test_nothing_needs_a_gradient(self, x):
        for fn, of in ((torch.exp, x), (torch.detach, x.clone().requires_grad_())):
            with pytest.raises(ValueError, match="must need a gradient, got none that does: pass backward=False"):
                trace_dtypes(fn, of)
