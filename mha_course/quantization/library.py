"""The library people use for it: torchao."""

import copy
import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from torch import nn

from mha_course.quantization._inputs import check_bool
from mha_course.quantization.modules import find_linears


def torchao_int8(module: nn.Module, *, dynamic: bool = False) -> nn.Module:
    """Copy a module and quantize every nn.Linear in it, subclasses too, with torchao, to 8 bits.

    The weights get a scale for each output feature (Int8WeightOnlyConfig). With dynamic, each token gets one too, and
    the product is one of integers (Int8DynamicActivationInt8WeightConfig). Meant for `torch.compile`: eager, each
    linear map pays for the conversion at every call.

    Args:
        module: it is left as it is.
        dynamic: whether the inputs are quantized as well.

    Returns:
        The copy; its weights are torchao's tensors.

    Raises:
        TypeError: module is not an nn.Module; dynamic is not a bool.
        ValueError: as in `quantize_module`. (torchao itself leaves an nn.MultiheadAttention as it is, and says
            nothing.)
        ImportError: torchao is not installed.
    """
    check_bool("dynamic", dynamic)
    find_linears(module)
    with _silence():
        library = _torchao()
        config = library.Int8DynamicActivationInt8WeightConfig if dynamic else library.Int8WeightOnlyConfig
        made = copy.deepcopy(module)
        library.quantize_(made, config())
    return made


def _torchao() -> ModuleType:
    try:
        return importlib.import_module("torchao.quantization")
    except ImportError as error:
        raise ImportError(
            "torchao_int8 needs torchao, which is not installed: pip install --no-deps torchao==0.18.0"
        ) from error


@contextmanager
def _silence() -> Iterator[None]:
    """Hold back warnings and log lines: torchao says at import that kernels for other machines did not load."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
