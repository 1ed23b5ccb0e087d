"""Elementwise kernels of the gpu schedule: tiles where an operand is transposed, a few elements per item where all memory is contiguous."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from tests.drivers import loses_int8_selects
from tests.kernels.pointwise.test_team import EXTENTS, WIDTHS, array, device, run, teams  # noqa: F401
from tests.pairwise import pairwise
from tests.primitives.checking import need_float64


def tiled(executable):
    """How many kernels compute square tiles."""
    return sum("column" in launch.body for launch in executable.launches)


kept = teams  # how many kernels have local memory, here for operands


TRANSPOSED = [  # shape, order, how many kernels compute tiles
    ((16, 16), (1, 0), 1), ((33, 70), (1, 0), 1), ((64, 96), (1, 0), 1), ((0, 40), (1, 0), 0), ((3, 40, 50), (0, 2, 1), 1),
    ((20, 3, 40), (2, 0, 1), 1), ((2, 3, 17, 19), (0, 3, 1, 2), 1), ((5, 40), (1, 0), 0), ((3, 40, 50), (2, 1, 0), 0),
    ((2, 17, 3, 19), (3, 1, 2, 0), 0),
]  # fmt: skip


@pytest.mark.parametrize("device,case,extents", pairwise(WIDTHS, TRANSPOSED, EXTENTS), indirect=["device"])
def test_transposes(device, case, extents):  # noqa: F811
    """Those whose last axis is shorter than a tile, before or after, are not tiled."""
    shape, order, tiles = case
    x = array(*shape)
    got, executable = run(device, lambda x: P.neg(P.transpose(x, order)), x, extents=extents)
    np.testing.assert_array_equal(got, -np.transpose(x, order))
    if extents == "known":
        assert tiled(executable) == kept(executable) == tiles


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "bfloat16", "float16", "int64", "float64", "complex64"])
def test_elements_of_all_sizes(device, dtype):  # noqa: F811
    if dtype == "float64":
        need_float64()
    x = (100 * array(2, 35, 44)).astype(dtypes.numpy_dtype(dtype))
    got, executable = run(device, lambda x: P.transpose(x, (0, 2, 1)), x)
    np.testing.assert_array_equal(got, x.transpose(0, 2, 1))
    assert kept(executable) == 1


@pytest.mark.parametrize("most", [40, 100, 256])
def test_several_transposed_operands(device, most):  # noqa: F811
    """In groups of any size; as many of them as there is local memory for."""
    device.traits = dataclasses.replace(device.traits, max_group=most)
    arrays = [array(70, 50) + k for k in range(5)]

    def summed(*arrays):
        total = arrays[0]
        for x in arrays[1:]:
            total = P.add(total, x)
        return P.add(P.transpose(total, (1, 0)), P.reshape(arrays[0], total.shape[::-1]))

    got, executable = run(device, summed, *arrays)
    np.testing.assert_allclose(got, sum(a.astype("f8") for a in arrays).T + arrays[0].reshape(50, 70), rtol=1e-5, atol=1e-5)
    (launch,) = executable.launches
    assert sum(a.kind == "local" for a in launch.args) == 3 and launch.group[0] == min(256, {40: 32, 100: 64}.get(most, most))


def test_what_is_read_in_a_sum_is_not_kept(device):  # noqa: F811
    x = array(3, 40, 50)
    got, executable = run(device, lambda x: P.transpose(P.reduce_sum(x, (0,)), (1, 0)), x)
    np.testing.assert_allclose(got, x.astype("f8").sum(0).T, rtol=1e-5, atol=1e-5)
    assert tiled(executable) == 1 and kept(executable) == 0


def test_with_an_operand_that_is_not_transposed(device):  # noqa: F811
    x, y, z = array(130, 70), array(70, 130), array(130)
    got, executable = run(device, lambda x, y, z: P.mul(P.sub(P.transpose(x, (1, 0)), y), P.broadcast(z, y.shape, (1,))), x, y, z)
    np.testing.assert_allclose(got, (x.T - y) * z, rtol=1e-5)
    assert tiled(executable) == 1


def test_what_is_contiguous_is_not_tiled(device):  # noqa: F811
    x = array(40, 3, 50)
    got, executable = run(device, lambda x: P.exp(P.transpose(x, (1, 0, 2))), x)
    np.testing.assert_allclose(got, np.exp(x.astype("f8")).transpose(1, 0, 2), rtol=1e-6)
    assert tiled(executable) == 0


@pytest.fixture
def small(device):  # noqa: F811
    """A device that few items fill."""
    device.traits = dataclasses.replace(device.traits, compute_units=1)
    return device


def packs(executable):
    """How many elements an item of each kernel takes."""
    return [2 if "* 2;" in launch.body else 4 if "begin = " in launch.body else 1 for launch in executable.launches]


def long(n):
    """An unknown extent of a hint that fills the device."""
    return Dim(n, 5000)


@pytest.mark.parametrize("extents", ["known", "arguments", long])
@pytest.mark.parametrize("n", [3, 2047, 2048, 2049, 6003])
def test_a_few_elements_of_flat_arrays(small, n, extents):
    """Where the device is full all the same; the rest of an array is computed by the last item."""
    x, y, c = array(n), array(n + 1)[1:].copy(), np.array(0.3, "f4")
    got, executable = run(small, lambda x, y, c: P.max(P.mul(x, y), P.broadcast(c, x.shape, ())), x, y, c, extents=extents)
    np.testing.assert_allclose(got, np.maximum(x * y, c), rtol=1e-6)
    assert packs(executable) == [4 if n >= 2048 or extents is long else 1]


@pytest.mark.parametrize("extents", ["known", "arguments", long])
@pytest.mark.parametrize("n", [2048, 2051])
def test_what_is_the_same_for_all_packs(small, n, extents):
    """It is computed once more between the packs and the rest of an array, where no `else` may stand."""
    x, low, high = array(n), np.array(-1.5, "f4"), np.array(2.5, "f4")

    def function(x, low, high):
        low, high = (P.broadcast(bound, x.shape, ()) for bound in (low, high))
        return P.add(low, P.mul(P.sub(high, low), x))

    got, executable = run(small, function, x, low, high, extents=extents)
    np.testing.assert_allclose(got, low + (high - low) * x, rtol=1e-5, atol=1e-6)
    assert packs(executable) == [4]


@pytest.mark.parametrize("shape,count", [((70, 40), 4), ((70, 42), 1), ((3, 50, 5, 8), 4)])
def test_a_few_elements_of_rows(small, shape, count):
    """Where rows are whole packs: an operand may have a row's elements for all rows, or one for each row."""
    x, row, column = array(*shape), array(shape[-1]), array(*shape[:-1])
    last = len(shape) - 1

    def function(x, row, column):
        return P.add(P.mul(x, P.broadcast(row, x.shape, (last,))), P.broadcast(column, x.shape, tuple(range(last))))

    def hinted(n):
        return Dim(n, 60)  # longer hints are those of an array that takes several launches on GPUs

    for extents, found in (("known", count), ("arguments", count), (lambda n: n if n == shape[-1] else hinted(n), count), (hinted, 1)):
        got, executable = run(small, function, x, row, column, extents=extents)
        np.testing.assert_allclose(got, x * row + column[..., None], rtol=1e-5, atol=1e-6)
        assert packs(executable) == [found]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "bfloat16", "float16", "float8_e5m2", "int64", "float64"])
def test_packs_of_elements_of_all_sizes(small, dtype):
    if dtype == "float64":
        need_float64()
    if dtype == "int8" and loses_int8_selects():
        pytest.skip("the driver may end the process where an int8 is selected")
    x = (20 * array(2051)).astype(dtypes.numpy_dtype(dtype))
    got, executable = run(small, lambda x: P.select(P.eq(x, P.full(x.shape, 3, dtype)), P.full(x.shape, 1, dtype), x), x)
    np.testing.assert_array_equal(got, np.where(x == x.dtype.type(3), x.dtype.type(1), x))
    assert packs(executable) == [2 if dtype in ("int64", "float64") else 4]


def test_what_is_not_aligned_is_computed_one_by_one(small):
    x = array(3000)
    got, executable = run(small, lambda x: P.neg(P.slice(x, (1,), (2997,))), x)
    np.testing.assert_array_equal(got, -x[1:2997])
    assert packs(executable) == [1]
    got, executable = run(small, lambda x: P.neg(P.slice(x, (4,), (2996,))), x)
    np.testing.assert_array_equal(got, -x[4:2996])
    assert packs(executable) == [4]


def test_draws_are_those_of_one_element_per_item(small):
    key = np.array([3, 5], "u4")
    packed, executable = run(small, lambda key: P.random_bits(key, (3001,)), key)
    assert packs(executable) == [4]
    small.traits = dataclasses.replace(small.traits, compute_units=1000)
    single, executable = run(small, lambda key: P.random_bits(key, (3001,)), key)
    assert packs(executable) == [1]
    np.testing.assert_array_equal(packed, single)
