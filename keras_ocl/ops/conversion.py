"""Between Python, NumPy and Keras values and Tensors."""

import numpy as np
from keras.src.backend import config
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.common.variables import Variable as KerasVariable
from keras.src.backend.common.variables import standardize_dtype

from keras_ocl import compiler
from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.core.origin import current_origin
from keras_ocl.core.primitive import current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import ValueUnknown
from keras_ocl.ops.result_types import dtype_of, host_dtype, result_type


def is_tensor(x):
    """Whether `x` is a Tensor of this backend."""
    return isinstance(x, Tensor)


def shape(x):
    """The shape of `x`, a tuple."""
    return x.shape if hasattr(x, "shape") else convert_to_tensor(x).shape


def cast(x, dtype):
    """`x` as a Tensor of `dtype`."""
    return convert_to_tensor(x, dtype=dtype)


def convert_to_tensor(x, dtype=None, sparse=None, ragged=None):
    """`x` (Tensor, Variable, NumPy array, number, nested sequence, anything with `__array__`) as a Tensor.

    Without `dtype` a Tensor keeps its own, host values of 64 bits become 32-bit ones (integers if they fit) and Python floats `floatx()`.
    Raises ValueError for sparse or ragged, TypeError for a dtype the backend lacks.
    """
    if isinstance(x, Tensor):
        if dtype is None or dtype == x.dtype:
            return x
        return P.convert(x, dtypes.canonical(standardize_dtype(dtype)))
    if sparse:
        raise ValueError("`sparse=True` is not supported with the ocl backend; pass a dense tensor.")
    if ragged:
        raise ValueError("`ragged=True` is not supported with the ocl backend; pad to a dense tensor.")
    if isinstance(x, KerasVariable):
        return convert_to_tensor(x.value, dtype)
    if dtype is not None:
        dtype = dtypes.canonical(standardize_dtype(dtype))
    if isinstance(x, (bool, int, float)) and not isinstance(x, np.generic):
        return scalar(x, dtype or scalar_dtype(x))
    if isinstance(x, (list, tuple)) and _holds_computed(x):
        return _stacked(x, dtype)
    return from_host(x, dtype)


def scalar(value, dtype):
    """A Python number (or Dim) as a rank-0 Tensor. OverflowError for an integer that the dtype cannot hold."""
    if isinstance(value, int) and not isinstance(value, Dim) and dtypes.is_integer(dtype):
        bits, signed = 8 * dtypes.itemsize(dtype), dtypes.is_signed(dtype)
        if not -(signed << bits - 1) <= value < 1 << bits - signed:
            raise OverflowError(f"the number {value} does not fit in {dtype}, the dtype of what it meets; cast that to a wider one first.")
    return P.constant(value, dtype)


def scalar_dtype(x):
    """The dtype of a Python number on its own."""
    if isinstance(x, bool):
        return "bool"
    if isinstance(x, float):
        return config.floatx()
    return "int32" if -(2**31) <= x < 2**31 else "uint32" if 0 <= x < 2**32 else "int64"


def from_host(x, dtype=None):
    """Upload a host value."""
    array = np.asarray(x)
    if array.dtype == object and not isinstance(x, (np.ndarray, list, tuple)):
        raise TypeError(f"convert_to_tensor: cannot convert {type(x).__name__} {x!r:.80} to a tensor; its elements are not numbers.")
    dtypes.check_numbers(f"convert_to_tensor: the {type(x).__name__}", array.dtype)
    dtype = dtypes.canonical(dtype or host_dtype(array, weak=isinstance(x, (list, tuple))))
    trace = current_trace.get()
    if trace is not None and in_symbolic_scope():
        return Tensor(array.shape, dtype, None, trace)  # shape inference must not touch the device
    if dtypes.is_integer(dtype) and array.dtype.kind == "f":
        array = _saturated(array, dtypes.numpy_dtype(dtype))
    return compiler.from_numpy(np.asarray(array, dtypes.numpy_dtype(dtype), order="C"))


def _saturated(array, dtype):
    """Floats truncated to an integer dtype as the device does it: out-of-range ones give the nearest limit, NaN gives 0."""
    info = np.iinfo(dtype)
    above, below = array >= float(info.max) + 1, array <= float(info.min) - 1
    if not (above.any() or below.any() or np.isnan(array).any()):
        return array
    inside = np.where(above | below | np.isnan(array), 0, array).astype(dtype)
    return np.where(above, info.max, np.where(below, info.min, inside)).astype(dtype)


def _holds_computed(x):
    """Whether a sequence holds what is no number yet: tensors, variables or unknown extents."""
    return any(isinstance(e, (Tensor, KerasVariable, Dim)) or (isinstance(e, (list, tuple)) and _holds_computed(e)) for e in x)


def _stacked(x, dtype):
    parts = [_stacked(e, dtype) if isinstance(e, (list, tuple)) else e for e in x]
    dtype = dtype or result_type(*[dtype_of(e) for e in parts])
    parts = [convert_to_tensor(e, dtype) for e in parts]
    if any(p.shape != parts[0].shape for p in parts):
        raise ValueError(f"convert_to_tensor: elements of a sequence differ in shape: {[tuple(p.shape) for p in parts]}.")
    return P.concat([P.reshape(p, (1, *p.shape)) for p in parts], 0)


def convert_to_numpy(x):
    """The value of `x` as a NumPy array; waits for the device."""
    if isinstance(x, KerasVariable):
        x = x.value
    if isinstance(x, Tensor):
        return read(x)
    return np.array(x)


def read(x):
    """A concrete Tensor's value as a NumPy array. ValueUnknown inside a trace, where there is no value yet."""
    if x.is_symbolic():
        raise ValueUnknown(
            f"The value of a traced tensor (shape {tuple(x.shape)}, {x.dtype}) was asked for{_where(x)}: it exists only when the compiled"
            " function runs. Use keras.ops instead of NumPy or Python control flow on it, or run eagerly (run_eagerly=True)."
        )
    return compiler.to_numpy(x)


def _where(x):
    origin = current_origin.get().layer
    return f" in {origin}" if origin else ""
