"""Arrays for cases: the same on every run."""

import zlib

import numpy as np

from keras_ocl.core import dtypes


def floats(traits, short=False):
    """Names of the floating dtypes that a device's kernels read and write; the usual ones where `short`."""
    return ["float32"] + ["float16"] * (not short) + ["float64"] * (traits.fp64 and not short)


def normal(name, *shape, dtype="float32", scale=1.0):
    """Random numbers for the array `name` of a case."""
    return (scale * _generator(name, shape).standard_normal(shape)).astype(dtypes.numpy_dtype(dtype))


def integers(name, low, high, *shape, dtype="int32"):
    """Random integers from `low` up to `high`, without it."""
    return _generator(name, shape).integers(low, high, shape).astype(dtypes.numpy_dtype(dtype))


def _generator(name, shape):
    return np.random.default_rng(zlib.crc32(f"{name} {shape}".encode()))


def wide(array):
    """The array in float64."""
    return np.asarray(array).astype(np.float64)
