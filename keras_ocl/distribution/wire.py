"""How arrays are transferred: the dtype that MPI reduces, the order of elements in its buffers, and the conversion back."""

import functools
import os

import ml_dtypes
import numpy as np

KINDS = ("sum", "prod", "max", "min", "and", "or")
WIRE = "KERAS_OCL_WIRE"
HALF = np.dtype(ml_dtypes.bfloat16)
_TURNED = {"float32": np.dtype("int32"), "float64": np.dtype("int64")}  # floats -> integers of the same size, used in the same order


def wire_dtype():
    """The dtype in which sums of float32 are transferred, as `KERAS_OCL_WIRE` says: float32 or bfloat16.

    Raises:
        ValueError: the variable names another dtype.
    """
    name = os.environ.get(WIRE) or "float32"
    if name not in ("float32", "bfloat16"):
        raise ValueError(f"{WIRE}={name}: sums of float32 travel as float32 (the default) or bfloat16.")
    return HALF if name == "bfloat16" else np.dtype(np.float32)


@functools.lru_cache(maxsize=256)
def carrier(dtype, kind):
    """The dtype in which arrays of `dtype` are combined: `dtype` itself if MPI combines it as NumPy does.

    Floats narrower than float32 are combined in float32. For "max" and "min", floats become integers in the same order, and the integers'
    extremes stand for NaN: MPI's own comparison loses NaN, and orders 0.0 and -0.0 as it meets them.

    Raises:
        ValueError: an unknown kind.
        TypeError: a dtype that the kind does not support.
    """
    if kind not in KINDS:
        raise ValueError(f"Ranks combine arrays by {', '.join(KINDS)}; {kind!r} is none of them.")
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind in "iu":
        return dtype
    if dtype.kind == "c" and kind in ("sum", "prod"):
        return dtype
    if _is_float(dtype) and kind not in ("and", "or"):
        wide = dtype if dtype.itemsize > 2 else np.dtype(np.float32)
        if kind in ("sum", "prod"):
            return wide
        if wide.name in _TURNED:
            return _TURNED[wide.name]
    raise TypeError(f"all_reduce: {kind!r} does not go with {dtype.name}.")


def combined(dtype, kind):
    """The kind by which carriers of `dtype` are combined; for bool either "or" or "and"."""
    if dtype.kind != "b":
        return kind
    return "or" if kind in ("sum", "max", "or") else "and"


def encode(array, buffer, kind):
    """Write `array` into `buffer`, which has its shape and the dtype of its carrier."""
    if _is_float(array.dtype) and buffer.dtype.kind == "i":
        values = buffer.view(f"f{buffer.itemsize}")
        np.copyto(values, array, casting="unsafe")
        nan = np.isnan(values)
        _turn(buffer)
        limits = np.iinfo(buffer.dtype)
        buffer[nan] = limits.max if kind == "max" else limits.min
    else:
        np.copyto(buffer, array, casting="unsafe")


def decode(buffer, dtype):
    """The combined values as `dtype`; `buffer` is reused if possible."""
    if buffer.dtype == dtype:
        return buffer
    if dtype.kind == "b":
        return buffer.view(np.bool_)
    if buffer.dtype.kind == "i":
        _turn(buffer)
        buffer = buffer.view(f"f{buffer.itemsize}")
    return buffer.astype(dtype, copy=False)


def ravelled(array):
    """The array's elements in row-major order, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1)


def packed(arrays, carrier, kind):
    """One new buffer with the encoded elements of all arrays."""
    buffer = np.empty(sum(array.size for array in arrays), carrier)
    for part, array in zip(cut(buffer, arrays), arrays, strict=True):
        encode(array, part.reshape(array.shape), kind)
    return buffer


def cut(buffer, arrays):
    """The slices of a buffer that hold the elements of each array."""
    ends = np.cumsum([array.size for array in arrays], dtype=np.int64)
    return [buffer[end - array.size : end] for end, array in zip(ends, arrays, strict=True)]


def parts(array, axis, extents):
    """Views of an array's parts, of these extents along an axis."""
    ends = np.cumsum(extents)
    return [array[(slice(None),) * axis + (slice(end - n, end),)] for end, n in zip(ends, extents, strict=True)]


def lie_in_order(shape, axis):
    """Whether parts along an axis are contiguous in memory, one after the other."""
    return all(n == 1 for n in shape[:axis])


def _turn(bits):
    """Convert bits of floats to integers in the same order, or back, in place: bits of negative floats grow with the magnitude."""
    bits ^= (bits >> (8 * bits.itemsize - 1)) & np.iinfo(bits.dtype).max


def _is_float(dtype):
    if dtype.kind == "f":
        return True
    try:
        ml_dtypes.finfo(dtype)
    except ValueError:
        return False
    return dtype.kind != "c"
