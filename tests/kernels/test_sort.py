"""Sort kernels against NumPy, on the current device, with all schedules."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.kernels import sort
from keras_ocl.kernels.schedule import schedule_names
from tests.kernels.launching import launch

RNG = np.random.default_rng(4)


@pytest.fixture(params=schedule_names())
def traits(request):
    return dataclasses.replace(runtime.current_device().traits, schedule=request.param)


def sorted_rows(traits, operands, keys, all_arguments=False):
    """`operands` (rows, n) in the order that the kernels give them."""
    device, names = runtime.current_device(), [dtypes.canonical(x.dtype) for x in operands]
    buffers = {("in", i): device.upload(x) for i, x in enumerate(operands)}
    buffers |= {("out", i): device.allocate(max(1, x.nbytes)) for i, x in enumerate(operands)}
    given, results = [(("in", i), name) for i, name in enumerate(names)], [("out", i) for i in range(len(operands))]
    shape = operands[0].shape
    specs = sort.plan(traits, shape=shape, operands=given, keys=keys, results=results, all_arguments=all_arguments)
    launch(device, specs, buffers)
    return [device.download(buffers[r], x.dtype, x.shape) for r, x in zip(results, operands, strict=True)]


def rows(shape, dtype):
    if dtypes.is_float(dtype):
        return RNG.integers(-50, 50, shape).astype(dtypes.numpy_dtype(dtype)) / 4
    return RNG.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtypes.numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 1), (2, 37), (1, 2500)])
def test_rows_are_sorted_and_equal_keys_keep_their_order(traits, shape, dtype):
    x = rows(shape, dtype)
    place = np.broadcast_to(np.arange(shape[1], dtype="int32"), shape).copy()
    order = np.argsort(x, axis=1, kind="stable")
    values, places = sorted_rows(traits, [x, place], 1)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


def test_two_keys(traits):
    x, y, z = RNG.integers(0, 4, (2, 90)), RNG.integers(0, 4, (2, 90)), RNG.integers(0, 99, (2, 90))
    operands = [x.astype("int32"), y.astype("float32"), z.astype("int32")]
    order = np.lexsort((y, x), axis=1)
    for found, given in zip(sorted_rows(traits, operands, 2, all_arguments=True), operands, strict=True):
        np.testing.assert_array_equal(found, np.take_along_axis(given, order, 1))


def test_nan_comes_last_and_zeros_of_both_signs_are_equal(traits):
    x = np.array([[np.nan, 0.0, -0.0, np.inf, -np.inf, 1.0, np.nan, -0.0]], "float32")
    place = np.arange(8, dtype="int32")[None]
    np.testing.assert_array_equal(sorted_rows(traits, [x, place], 1)[1], [[4, 1, 2, 7, 5, 3, 0, 6]])


def test_empty_rows_need_no_kernel(traits):
    assert sort.plan(traits, shape=(3, 0), operands=[("x", "float32")], keys=1, results=["y"]) == []


@pytest.mark.parametrize("dtype", ["int32", "float32", "float16"])
def test_greatest_of_rows(traits, dtype):
    device, x = runtime.current_device(), rows((3, 60), dtype)
    buffers = {"x": device.upload(x), "v": device.allocate(3 * 7 * x.itemsize), "p": device.allocate(3 * 7 * 4)}
    launch(device, sort.top_k(traits, shape=x.shape, k=7, x="x", dtype=dtype, results=["v", "p"]), buffers)
    order = np.argsort(-x.astype("float64"), axis=1, kind="stable")[:, :7]
    np.testing.assert_array_equal(device.download(buffers["p"], "int32", (3, 7)), order)
    np.testing.assert_array_equal(device.download(buffers["v"], x.dtype, (3, 7)), np.take_along_axis(x, order, 1))
