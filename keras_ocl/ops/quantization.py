"""Quantised weights, for Keras."""

from keras_ocl import primitives as P
from keras_ocl.core.tensor import Tensor


def unpacked(packed, length, axis, dtype):
    """What `keras.quantizers.unpack_int4` returns, as one operation, which products read without storing it; None for what that refuses,
    and for what is no tensor yet."""
    if not isinstance(packed, Tensor) or packed.dtype not in ("int8", "uint8") or dtype not in ("int8", "uint8"):
        return None
    axis = axis + packed.ndim if axis < 0 else axis
    return P.unpack_int4(packed, axis, length, dtype)
