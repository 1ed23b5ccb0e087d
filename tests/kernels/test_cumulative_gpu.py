"""Running sums, products and extremes in three launches, as a GPU of many units does few long rows, against NumPy in float64."""

import dataclasses

import numpy as np
import pytest

from keras_ocl.core.dim import Dim
from keras_ocl.kernels import cumulative
from keras_ocl.kernels.spec import Sink
from tests.kernels.launching import launch, named
from tests.kernels.test_cumulative import KINDS, check, values


@pytest.fixture
def many(device):
    """Traits of a device that has units for all pieces."""
    return dataclasses.replace(device.traits, schedule="gpu", compute_units=512)


def results(device, traits, kind, x):
    """What the kernels make of float32 `x` along its first axis."""
    sink = Sink(named("y"), x.shape, "float32")
    specs = cumulative.plan(traits, kind=kind, shape=x.shape, axis=0, reverse=False, handles=[named("x")], dtype="float32", sink=sink)
    buffers = {"x": device.upload(x), "y": device.upload(np.zeros_like(x))}
    launch(device, specs, buffers)
    return device.download(buffers["y"], "float32", x.shape)


LONG = [((40_007,), 0), ((2, 33_333), 1), ((20_011, 1), 0), ((1003, 3), 0), ((2, 517, 2, 5), 1)]


@pytest.mark.parametrize("shape,axis", LONG)
@pytest.mark.parametrize("kind", KINDS)
def test_three_launches(device, many, kind, shape, axis):
    rng = np.random.default_rng(1)
    x = rng.choice([-1, 1], shape) * np.where(rng.uniform(size=shape) < 0.01, rng.uniform(0.9, 1.1, shape), 1)
    for reverse in (False, True):
        assert len(check(device, many, kind, [x.astype("f4")], axis, reverse)) == 3


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "float16", "bfloat16", "float64", "complex64"])
@pytest.mark.parametrize("kind", ["cumsum", "cumprod", "cummax"])
def test_dtypes(device, many, kind, dtype):
    """Integers wrap, and are exact in any order."""
    if dtype == "complex64" and kind != "cumsum":
        pytest.skip("they have no order, and products of their own")
    x = values(np.random.default_rng(2), (20_001,), dtype)
    if kind == "cumprod":
        x = np.where(x == 0, 3, np.sign(x) if dtype == "bfloat16" else x).astype(x.dtype)
        x[1::2] = (1 / x[::2][: x[1::2].size]).astype(x.dtype) if dtype.startswith(("float", "bf")) else x[1::2]
    assert len(check(device, many, kind, [x], 0)) == 3


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_nan_and_infinities_reach_later_pieces(device, many, kind, axis):
    for found in (np.nan, np.inf, -np.inf, 0.0):
        x = np.ones((24_000, 2), "f4")
        x[5000, 0], x[19_000, 1] = found, found
        check(device, many, kind, [x if axis == 0 else x.T.copy()], axis)
    x[12_000] = np.inf, -np.inf
    check(device, many, kind, [x if axis == 0 else x.T.copy()], axis)


@pytest.mark.parametrize("shape", [(24_000,), (24_000, 2)])
def test_products_that_leave_the_range_on_the_way(device, many, shape):
    """Where a piece's product overflows or vanishes, results are right all the same: a 0 before it stays 0."""
    for first, then in ((0.0, 1e20), (1e-30, 1e20), (1e30, 1e-20)):
        x = np.ones(shape, "f4")
        x[100], x[6000:6003], x[21_000:21_003] = first, then, 1 / then
        np.testing.assert_allclose(results(device, many, "cumprod", x), np.cumprod(x, 0, "f8"), rtol=1e-5)


def test_many_short_rows_share_groups(device, many):
    for shape in ((301, 33), (5, 7, 100), (1000, 47)):
        (spec,) = check(device, many, "cumsum", [values(np.random.default_rng(3), shape, "float32")], len(shape) - 1)
        assert spec.group[1] > 1


@pytest.mark.parametrize("hint", [40, 100_000])
def test_extents_that_are_arguments(device, many, hint):
    """A row is right whatever its length was at the first trace: of one block and many, in one launch and three."""
    for shape, axis in (((9001,), 0), ((2, 77), 1), ((501, 2), 0)):
        x = values(np.random.default_rng(4), shape, "float32")
        check(device, many, "cumsum", [x], axis, True, wrap=lambda n: Dim(n, hint) if n > 2 else n)


def test_runs_are_equal_and_errors_small(device, many):
    """Of a million sums: blocks keep errors below those of adding one by one."""
    x = np.random.default_rng(5).uniform(0, 1, 1_000_003).astype("f4")
    first = results(device, many, "cumsum", x)
    np.testing.assert_array_equal(first, results(device, many, "cumsum", x))
    np.testing.assert_allclose(first, np.cumsum(x, dtype="f8"), rtol=1e-6)
