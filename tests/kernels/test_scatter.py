"""Scatter kernels against NumPy, on the current device, with all schedules."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.kernels import scatter
from keras_ocl.kernels.schedule import schedule_names
from tests.kernels.launching import launch

RNG = np.random.default_rng(6)
OPS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.fixture(params=schedule_names())
def traits(request):
    return dataclasses.replace(runtime.current_device().traits, schedule=request.param)


def scattered(traits, mode, shape, indices, updates, x=None, clip=False, all_arguments=False):
    """What the kernel of a scatter gives; `indices` are arrays for the leading axes of `shape`."""
    device, dtype = runtime.current_device(), dtypes.canonical(updates.dtype)
    buffers = {i: device.upload(at) for i, at in enumerate(indices)}
    buffers |= {"u": device.upload(updates), "out": device.allocate(int(np.prod(shape)) * updates.itemsize)}
    if x is not None:
        buffers["x"] = device.upload(x)
    given = [(i, dtypes.canonical(at.dtype)) for i, at in enumerate(indices)]
    options = {"mode": mode, "clip": clip, "x": None if x is None else "x", "dtype": dtype, "all_arguments": all_arguments}
    count = indices[0].shape
    specs = scatter.plan(traits, shape=shape, count=count, indices=given, updates="u", result="out", **options)
    launch(device, specs, buffers)
    return device.download(buffers["out"], updates.dtype, shape)


@pytest.mark.parametrize("all_arguments", [False, True])
@pytest.mark.parametrize("columns", [(), (5,), (33,), (3, 16)])
@pytest.mark.parametrize("mode", [*OPS, "set"])
def test_modes(traits, mode, columns, all_arguments):
    x = RNG.integers(1, 9, (11, *columns)).astype("float32")
    at = RNG.integers(0, 11, 20).astype("int32")
    updates = RNG.integers(1, 4, (20, *columns)).astype("float32")
    expected = x.copy()
    for place, update in zip(at, updates, strict=True):
        expected[place] = update if mode == "set" else OPS[mode](expected[place], update)
    np.testing.assert_array_equal(scattered(traits, mode, x.shape, [at], updates, x, all_arguments=all_arguments), expected)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float64", "complex64"])
def test_dtypes(traits, dtype):
    at, updates = RNG.integers(0, 7, 9).astype("int32"), RNG.integers(0, 2, (9, 6)).astype(dtypes.numpy_dtype(dtype))
    expected = np.zeros((7, 6), updates.dtype)
    for place, update in zip(at, updates, strict=True):
        expected[place] = update
    np.testing.assert_array_equal(scattered(traits, "set", (7, 6), [at], updates), expected)


@pytest.mark.parametrize("index", ["int32", "uint8", "int64"])
def test_indices_out_of_range_are_dropped_or_clipped(traits, index):
    at = np.array([0, 9, 3, 4], index) if index == "uint8" else np.array([-1, 9, 3, 4], index)
    updates = np.arange(1, 13, dtype="float32").reshape(4, 3)
    dropped, clipped = np.zeros((5, 3), "float32"), np.zeros((5, 3), "float32")
    for place, update in zip(at.astype(int), updates, strict=True):
        if 0 <= place < 5:
            dropped[place] += update
        clipped[min(max(place, 0), 4)] += update
    np.testing.assert_array_equal(scattered(traits, "add", (5, 3), [at], updates), dropped)
    np.testing.assert_array_equal(scattered(traits, "add", (5, 3), [at], updates, clip=True), clipped)


def test_indices_of_two_axes(traits):
    i, j = RNG.integers(0, 4, (2, 3, 8)).astype("int32")
    updates = RNG.integers(0, 9, (3, 8, 10)).astype("int32")
    expected = np.zeros((4, 4, 10), "int32")
    np.add.at(expected, (i, j), updates)
    np.testing.assert_array_equal(scattered(traits, "add", (4, 4, 10), [i, j], updates), expected)
