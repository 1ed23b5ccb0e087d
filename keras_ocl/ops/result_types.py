"""Which dtype a value has, and which one operands have in common: Keras's rules."""

from functools import lru_cache

import numpy as np
from keras.src.backend import config
from keras.src.backend.common import dtypes as keras_dtypes
from keras.src.backend.common.variables import Variable as KerasVariable
from keras.src.backend.common.variables import standardize_dtype

from keras_ocl.core.tensor import Tensor

# What Keras makes of 64-bit host values that come without an explicit dtype (its rule for every backend but TensorFlow). Integers that do
# not fit stay as they are.
_REDUCED = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}

_WIDE = {"float32": "float64", "int32": "int64", "uint32": "uint64", "complex64": "complex128"}


def result_type(*kinds):
    """Keras's `result_type`, except that a 64-bit operand keeps the result at 64 bits, as on TensorFlow.

    Args are dtype names, or `int` and `float` for Python numbers, which are weak.
    """
    return _result_type(config.floatx(), kinds)


@lru_cache(None)
def _result_type(floatx, kinds):
    dtype = keras_dtypes.result_type(*kinds)
    if dtype == "complex64" and "float64" in kinds:
        return "complex128"
    wide = _WIDE.get(dtype)
    if wide in kinds or (wide == "float64" and floatx == "float64" and float in kinds and not any(_small_float(k) for k in kinds)):
        return wide
    return dtype


def _small_float(kind):
    return isinstance(kind, str) and "float" in kind and kind != "float64"


def dtype_of(x):
    """What `result_type` takes for an operand: its dtype, or `int` or `float` for a Python number."""
    if isinstance(x, Tensor):
        return x.dtype
    if isinstance(x, bool):
        return "bool"
    if isinstance(x, (np.generic, np.ndarray)):
        return host_dtype(x)
    if isinstance(x, int):
        return int
    if isinstance(x, float):
        return float
    if isinstance(x, KerasVariable):
        return x.dtype
    if isinstance(x, complex):
        return "complex64"
    if not hasattr(x, "dtype"):
        raise TypeError(f"{x!r:.60} is neither a tensor nor a number.")
    return standardize_dtype(x.dtype)


def host_dtype(array, weak=False):
    """The dtype a NumPy array gets when none is asked for; `weak`: it was made of Python numbers."""
    name = array.dtype.name
    if name == "float64" and (weak or config.floatx() == "float64"):
        return config.floatx()
    reduced = _REDUCED.get(name, name)
    if reduced in ("int32", "uint32") and name != reduced and array.size:
        info = np.iinfo(reduced)
        if array.min() < info.min or array.max() > info.max:
            return name
    return reduced
