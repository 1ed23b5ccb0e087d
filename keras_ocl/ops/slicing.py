"""Tensors taken apart and put together along an axis, and indices counted from its start."""

import numpy as np
from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.ops.conversion import convert_to_tensor, from_host
from keras_ocl.ops.promotion import scalar_like


def cut(x, axis, low, high):
    """x[low:high] along an axis, for bounds within range."""
    starts = tuple(low if i == axis else 0 for i in range(x.ndim))
    limits = tuple(high if i == axis else n for i, n in enumerate(x.shape))
    return P.slice(x, starts, limits)


def unstacked(x, axis=0):
    """The slices along an axis."""
    axis = canonicalize_axis(axis, x.ndim)
    rest = tuple(n for i, n in enumerate(x.shape) if i != axis)
    return [P.reshape(cut(x, axis, i, i + 1), rest) for i in range(x.shape[axis])]


def stacked(xs, axis=0):
    """Tensors of one shape and dtype joined along a new axis."""
    shape = xs[0].shape
    if any(x.shape != shape for x in xs):
        raise ValueError(f"stack: all tensors must have the same shape, got {[tuple(x.shape) for x in xs]}.")
    axis = canonicalize_axis(axis, len(shape) + 1)
    xs = [P.reshape(x, (*shape[:axis], 1, *shape[axis:])) for x in xs]
    return xs[0] if len(xs) == 1 else P.concat(xs, axis)


def index_dtype(*extents):
    """The dtype of indices along axes of these extents: int64 where int32 does not hold all of them."""
    return "int32" if all(n < 2**31 for n in extents) else "int64"


def wrapped(indices, extent):
    """Integer indices with negative ones counted from the end of an axis."""
    if not dtypes.is_integer(indices.dtype):
        if indices.dtype == "bool":
            indices = P.convert(indices, "int32")
        else:
            raise TypeError(f"indices must be integers, got {indices.dtype}.")
    if not dtypes.is_signed(indices.dtype):
        return indices
    if dtypes.itemsize(indices.dtype) < dtypes.itemsize(index_dtype(extent)):
        indices = P.convert(indices, index_dtype(extent))
    negative = P.lt(indices, scalar_like(0, indices))
    return P.select(negative, P.add(indices, scalar_like(extent, indices)), indices)


def from_start(indices, extent):
    """Integer indices of any kind as a Tensor in which none is negative; host values are wrapped before they are uploaded."""
    if isinstance(indices, (int, list, np.ndarray, np.generic)) and not isinstance(extent, Dim):
        array = np.asarray(indices)
        if array.dtype.kind == "i":
            return from_host(np.where(array < 0, array.astype(np.int64) + extent, array), index_dtype(extent))
    return wrapped(convert_to_tensor(indices), extent)
