"""Scan kernels against NumPy in float64, on the current device, with all schedules."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.kernels import cumulative
from keras_ocl.kernels.schedule import schedule_names
from keras_ocl.kernels.spec import Sink
from tests.kernels.launching import launch

RNG = np.random.default_rng(5)
EXPECTED = {"cumsum": np.cumsum, "cumprod": np.cumprod, "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate}


@pytest.fixture(params=schedule_names())
def traits(request):
    return dataclasses.replace(runtime.current_device().traits, schedule=request.param)


def scanned(traits, kind, operands, axis, reverse=False, all_arguments=False):
    """What the kernels of a running sum, product or extreme give for `operands` of one shape and dtype."""
    device, x = runtime.current_device(), operands[0]
    buffers = {i: device.upload(o) for i, o in enumerate(operands)} | {"out": device.allocate(max(1, x.nbytes))}
    dtype = dtypes.canonical(x.dtype)
    sink = Sink("out", x.shape, dtype)
    given = {"handles": list(range(len(operands))), "dtype": dtype, "sink": sink, "all_arguments": all_arguments}
    launch(device, cumulative.plan(traits, kind=kind, shape=x.shape, axis=axis, reverse=reverse, **given), buffers)
    return device.download(buffers["out"], x.dtype, x.shape)


@pytest.mark.parametrize("all_arguments", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", EXPECTED)
def test_along_each_axis(traits, kind, reverse, all_arguments):
    x = RNG.uniform(0.5, 1.5, (3, 7, 37)).astype("float32")
    for axis in range(3):
        turned = np.flip(x, axis) if reverse else x
        expected = EXPECTED[kind](turned.astype("float64"), axis=axis)
        found = scanned(traits, kind, [x], axis, reverse, all_arguments)
        np.testing.assert_allclose(found, np.flip(expected, axis) if reverse else expected, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("kind", ["cumsum", "cummax", "cummin"])
def test_dtypes(traits, kind, dtype):
    x = RNG.integers(0, 5, (5, 19)).astype(dtypes.numpy_dtype(dtype))
    np.testing.assert_array_equal(scanned(traits, kind, [x], 0).astype("float64"), EXPECTED[kind](x.astype("float64"), axis=0))


@pytest.mark.parametrize("kind", ["cumsum", "cummax"])
def test_a_long_axis(traits, kind):
    x = RNG.standard_normal((9001, 2)).astype("float32")
    np.testing.assert_allclose(scanned(traits, kind, [x], 0), EXPECTED[kind](x.astype("float64"), axis=0), rtol=1e-4, atol=1e-3)


def test_linear_recurrence(traits):
    a, b = RNG.uniform(-1, 1, (2, 30, 18)).astype("float32"), RNG.standard_normal((2, 30, 18)).astype("float32")
    expected, state = np.empty(b.shape), np.zeros((2, 18))
    for i in range(30):
        state = a[:, i] * state + b[:, i]
        expected[:, i] = state
    np.testing.assert_allclose(scanned(traits, "linear_recurrence", [a, b], 1), expected, rtol=1e-4, atol=1e-5)


def test_an_empty_result_needs_no_kernel(traits):
    sink = Sink("out", (0, 3), "float32")
    assert cumulative.plan(traits, kind="cumsum", shape=(0, 3), axis=1, reverse=False, handles=["x"], dtype="float32", sink=sink) == []
