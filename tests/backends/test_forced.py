"""One kernel for all that runs inside, and a reason when it does not take a call."""

import copy
import pickle
import re
import warnings

import pytest
import torch
from torch.nn import functional as F

from mha_course.backends import Refused, forced, which
from mha_course.backends.refusal import KERNELS, NO_REASON, _reason

Q = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("backend", ["math", "flash"])
def test_the_kernel_runs_inside_and_the_choice_is_as_before_after_it(backend):
    with forced(backend):
        assert which(F.scaled_dot_product_attention, Q, Q, Q) == {backend: 1}
    assert which(F.scaled_dot_product_attention, Q, Q, Q) == {"flash": 1}
    assert which(F.scaled_dot_product_attention, Q, Q, Q, dropout_p=0.5) == {"math": 1}


def test_a_refusal_names_the_reason_and_warns_of_nothing():
    message = 'backend "flash" does not take this call: does not support dropout'
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(Refused, match=f"^{re.escape(message)}$") as caught_error, forced("flash"):
            F.scaled_dot_product_attention(Q, Q, Q, dropout_p=0.1)
    assert caught == []
    assert (caught_error.value.backend, caught_error.value.reason) == ("flash", "does not support dropout")
    assert isinstance(caught_error.value, RuntimeError)
    assert which(F.scaled_dot_product_attention, Q, Q, Q) == {"flash": 1}


@pytest.mark.parametrize("backend", ["efficient", "cudnn", "overrideable"])
def test_what_a_cpu_does_not_have(backend):
    with pytest.raises(Refused, match=f'"{backend}" does not take this call: does not exist for this device'):
        with forced(backend):
            F.scaled_dot_product_attention(Q, Q, Q)


def test_where_pytorch_gives_no_reason_that_is_said():
    bias = torch.zeros(5, 5, requires_grad=True)
    with pytest.raises(Refused, match=re.escape(NO_REASON)), forced("flash"):
        F.scaled_dot_product_attention(Q, Q, Q, attn_mask=bias)


def test_of_several_refusals_inside_the_last_one_is_told():
    def calls():
        with pytest.raises(RuntimeError, match="No available kernel"):
            F.scaled_dot_product_attention(Q, Q, Q, dropout_p=0.1)
        F.scaled_dot_product_attention(Q, Q, Q[..., :3])

    with pytest.raises(Refused, match=r"take this call: needs values as wide as the keys \(Dv = D\)$"), forced("flash"):
        calls()


@pytest.mark.parametrize("others", [None, (), ("math",)])
@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_refusal_survives_being_copied_and_pickled(again, others):
    refused = Refused("flash", "does not support dropout", others)
    found = again(refused)
    assert type(found) is Refused
    assert str(found) == str(refused)
    assert (found.backend, found.reason, found.others) == ("flash", "does not support dropout", others)


def test_other_warnings_and_errors_go_their_way():
    with pytest.warns(UserWarning, match="of the model"), forced("flash"):
        warnings.warn("of the model", stacklevel=1)
    with pytest.raises(RuntimeError, match="must match"), forced("math"):
        F.scaled_dot_product_attention(Q, Q[:, :2], Q[:, :2])
    with pytest.raises(KeyError), forced("math"):
        raise KeyError


def test_of_all_kernels_that_a_gpu_explains_the_forced_one_is_heard():
    said = [
        "Memory efficient kernel not used because: (Triggered internally at sdp_utils.cpp:1.)",
        "Memory Efficient attention has been runtime disabled. (Triggered internally at sdp_utils.cpp:2.)",
        "Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:3.)",
        "Flash Attention does not support non-null attn_mask. (Triggered internally at sdp_utils.cpp:4.)",
        "CuDNN attention kernel not used because: (Triggered internally at sdp_utils.cpp:5.)",
        "CuDNN attention has been runtime disabled. (Triggered internally at sdp_utils.cpp:6.)",
    ]
    assert _reason("flash", "No available kernel.", said) == "does not support a mask"
    assert _reason("efficient", "No available kernel.", said) == "Memory Efficient attention has been runtime disabled"
    assert _reason("cudnn", "No available kernel.", said) == "CuDNN attention has been runtime disabled"
    assert _reason("overrideable", "No available kernel.", said) == NO_REASON


@pytest.mark.unchecked
@pytest.mark.parametrize("backend", ["sdpa", None, ["flash"]])
def test_another_name(backend):
    with pytest.raises(
        ValueError, match=f"backend must be one of {', '.join(KERNELS)}, got {re.escape(repr(backend))}"
    ):
        with forced(backend):
            pass
