"""How arrays travel: the dtype that MPI adds up, the order of the elements in its buffers, and the way back."""

import functools
import os

import ml_dtypes
import numpy as np

KINDS = ("sum", "prod", "max", "min", "and", "or")
WIRE = "KERAS_OCL_WIRE"
HALF = np.dtype(ml_dtypes.bfloat16)
_TURNED = {"float32": np.dtype("int32"), "float64": np.dtype("int64")}  # floats -> integers of the same size, which order them


def wire_dtype():
    """The dtype in which sums of float32 travel, as `KERAS_OCL_WIRE` says: float32 or bfloat16.

    Raises:
        ValueError: the variable names another.
    """
    name = os.environ.get(WIRE) or "float32"
    if name not in ("float32", "bfloat16"):
        raise ValueError(f"{WIRE}={name}: sums of float32 travel as float32 (the default) or bfloat16.")
    return HALF if name == "bfloat16" else np.dtype(np.float32)


@functools.lru_cache(maxsize=256)
def carrier(dtype, kind):
    """The dtype in which arrays of `dtype` are combined, itself wherever MPI combines it as NumPy does.

    Floats narrower than float32 are combined in float32. For "max" and "min" floats become integers of the same order, whose ends stand for
    NaN: MPI's own comparison loses NaN, and orders 0.0 and -0.0 as it meets them.

    Raises:
        ValueError: an unknown kind.
        TypeError: a dtype that the kind does not go with.
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
    """The kind by which the carriers of `dtype` are combined: bool has two."""
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
    """What was combined, as `dtype`; `buffer` is given up to it where it can be."""
    if buffer.dtype == dtype:
        return buffer
    if dtype.kind == "b":
        return buffer.view(np.bool_)
    if buffer.dtype.kind == "i":
        _turn(buffer)
        buffer = buffer.view(f"f{buffer.itemsize}")
    return buffer.astype(dtype, copy=False)


def ravelled(array):
    """The array's elements in order, without a copy where they lie so."""
    return np.ascontiguousarray(array).reshape(-1)


def packed(arrays, carrier, kind):
    """The elements of all arrays in one new buffer, encoded."""
    buffer = np.empty(sum(array.size for array in arrays), carrier)
    for part, array in zip(cut(buffer, arrays), arrays, strict=True):
        encode(array, part.reshape(array.shape), kind)
    return buffer


def cut(buffer, arrays):
    """The pieces of a buffer that hold the elements of each of the arrays."""
    ends = np.cumsum([array.size for array in arrays], dtype=np.int64)
    return [buffer[end - array.size : end] for end, array in zip(ends, arrays, strict=True)]


def parts(array, axis, extents):
    """Views of an array's parts along an axis."""
    ends = np.cumsum(extents)
    return [array[(slice(None),) * axis + (slice(end - n, end),)] for end, n in zip(ends, extents, strict=True)]


def lie_in_order(shape, axis):
    """Whether parts along an axis lie one after the other in memory."""
    return all(n == 1 for n in shape[:axis])


def _turn(bits):
    """Bits of floats to integers of the same order, or back, in place: negative floats grow with their magnitude's bits."""
    bits ^= (bits >> (8 * bits.itemsize - 1)) & np.iinfo(bits.dtype).max


def _is_float(dtype):
    if dtype.kind == "f":
        return True
    try:
        ml_dtypes.finfo(dtype)
    except ValueError:
        return False
    return dtype.kind != "c"
