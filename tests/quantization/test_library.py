"""torchao behind one silent function; and nothing of it before that is called."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mha_course import MultiHeadAttention
from mha_course.quantization import quantize_module, size_in_bytes, torchao_int8
from tests.quantization.drawn import drawn, relative

ROOT = Path(__file__).parents[2]
TORCHAO = pytest.mark.skipif("not __import__('importlib').util.find_spec('torchao')", reason="torchao is not installed")


def run(program: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


def layer() -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(66, 6, num_kv_heads=2).eval()


@TORCHAO
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_library_is_as_near_and_as_small_as_ours(dynamic):
    source, x = layer(), drawn(2, 5, 66)
    theirs = torchao_int8(source, dynamic=dynamic)
    ours = quantize_module(source, activations="dynamic" if dynamic else None)
    with torch.no_grad():
        out = source(x)
        # below VNNI the library's product of bytes can saturate: seen up to 0.19
        limit = 0.3 if dynamic else 1.5 * relative(ours(x), out)
        assert 0.5 * relative(ours(x), out) < relative(theirs(x), out) < limit
    assert abs(size_in_bytes(theirs) / size_in_bytes(ours) - 1) < 0.02
    assert type(source.q_proj.weight.data) is torch.Tensor, "a copy"


@TORCHAO
def test_saved_and_loaded():
    made, x = torchao_int8(layer()), drawn(2, 5, 66)
    torch.manual_seed(5)
    fresh = torchao_int8(MultiHeadAttention(66, 6, num_kv_heads=2).eval())
    fresh.load_state_dict(made.state_dict(), assign=True)
    with torch.no_grad():
        torch.testing.assert_close(fresh(x), made(x), rtol=0, atol=0)


@TORCHAO
def test_the_library_itself_leaves_pytorchs_attention_as_it_is():
    torchao_int8(nn.Linear(3, 2))  # imports it in silence
    import torchao.quantization as library

    theirs = nn.MultiheadAttention(64, 4)
    before = size_in_bytes(theirs)
    library.quantize_(theirs, library.Int8WeightOnlyConfig())
    assert size_in_bytes(theirs) == before


@TORCHAO
def test_nothing_is_printed_and_nothing_is_imported_before():
    done = run(
        "import sys, logging, torch, mha_course.quantization as q\n"
        "print('torchao' in sys.modules)\n"
        "made = q.torchao_int8(torch.nn.Linear(8, 3)); made(torch.ones(1, 8))\n"
        "print('torchao' in sys.modules, logging.root.manager.disable)"
    )
    assert done.stdout.split() == ["False", "True", "0"]
    assert done.stderr == ""


def test_without_torchao_it_says_what_to_install():
    done = run(
        "import sys; sys.modules['torchao'] = sys.modules['torchao.quantization'] = None\n"
        "import torch, mha_course.quantization as q\n"
        "try: q.torchao_int8(torch.nn.Linear(8, 3))\n"
        "except ImportError as error: print(error)"
    )
    assert done.stdout.startswith("torchao_int8 needs torchao, which is not installed: pip install --no-deps torchao")


@pytest.mark.unchecked
def test_bad_input():
    with pytest.raises(ValueError, match=r"nothing would be quantized in module, an nn.MultiheadAttention"):
        torchao_int8(nn.MultiheadAttention(6, 2))
    with pytest.raises(ValueError, match=r"module.q_proj is quantized already"):
        torchao_int8(quantize_module(layer()))
    with pytest.raises(TypeError, match=r"dynamic must be True or False, got int"):
        torchao_int8(layer(), dynamic=1)
    with pytest.raises(TypeError, match=r"module must be an nn.Module, got int"):
        torchao_int8(3)


@TORCHAO
@pytest.mark.unchecked
def test_twice():
    with pytest.raises(ValueError, match=r"module.q_proj is quantized already"):
        torchao_int8(torchao_int8(layer()))
    with pytest.raises(ValueError, match=r"module.q_proj is quantized already"):
        quantize_module(torchao_int8(layer()))
