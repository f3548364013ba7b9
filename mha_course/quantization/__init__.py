"""Quantization: numbers as small integers with a scale, for weights, activations and the KV cache.

An `Affine` says how numbers become codes. `quantize_module` stores the weights of a module as codes; `observe` finds
static ranges for what goes into them; `prepare_qat` and `convert` train with rounded weights; `torchao_int8` is the
library people use for it.
"""

from mha_course.quantization.affine import Affine, affine_from_range, dequantize, fake_quantize, quantize
from mha_course.quantization.aware import convert, prepare_qat, straight_through
from mha_course.quantization.calibration import Observer, find_affine, min_max, mse, percentile
from mha_course.quantization.kv_cache import Int8KVCache
from mha_course.quantization.library import torchao_int8
from mha_course.quantization.linear import QuantizedLinear
from mha_course.quantization.modules import observe, quantize_module, size_in_bytes

__all__ = [
    "Affine",
    "Int8KVCache",
    "Observer",
    "QuantizedLinear",
    "affine_from_range",
    "convert",
    "dequantize",
    "fake_quantize",
    "find_affine",
    "min_max",
    "mse",
    "observe",
    "percentile",
    "prepare_qat",
    "quantize",
    "quantize_module",
    "size_in_bytes",
    "straight_through",
    "torchao_int8",
]
