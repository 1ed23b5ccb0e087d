"""NumPy arrays to tensors and back."""

import numpy as np

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.core.tensor import Tensor


def from_numpy(array, dtype=None, device=None):
    """A concrete Tensor with the contents of `array` (copied before this returns), on the current device.

    Raises TypeError for dtypes that the backend or the device does not have.
    """
    array = np.asarray(array) if dtype is None else np.asarray(array, dtypes.numpy_dtype(dtype))
    name = dtypes.canonical(array.dtype)
    device = device or runtime.current_device()
    if dtypes.needs_double(name) and not device.traits.fp64:
        usable = "complex64" if dtypes.is_complex(name) else "float32"
        raise TypeError(f"{device} has no {name}: convert the array (shape {array.shape}) to {usable}")
    return Tensor(tuple(array.shape), name, device.upload(array))


def to_numpy(tensor):
    """The tensor's value as a new NumPy array; waits for everything enqueued before."""
    if tensor.storage is None:
        raise RuntimeError(
            f"a traced tensor of shape {tuple(tensor.shape)} has no value yet: Python code in a compiled step cannot read it."
            " Use keras.ops, or run eagerly (run_eagerly=True)."
        )
    return tensor.storage.device.download(tensor.storage, dtypes.numpy_dtype(tensor.dtype), tensor.shape)
