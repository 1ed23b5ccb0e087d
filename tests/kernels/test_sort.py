"""Sorting kernels and the greatest elements of rows, against NumPy, with all schedules."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.kernels import sort
from keras_ocl.kernels.schedule import schedule_names
from tests.kernels.launching import launch, named
from tests.pairwise import pairwise

ORDERED = [d for d in dtypes.NAMES if not dtypes.is_complex(d)]
SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 127, 200, 1025]  # around the runs and blocks of the schedules


def values(rng, shape, dtype):
    """Many equal ones, and the least, the greatest, zeros of both signs, infinities and NaN where there are."""
    if dtypes.needs_double(dtype) and not runtime.current_device().traits.fp64:
        pytest.skip("the device has no float64")
    array = rng.integers(0 if not dtypes.is_signed(dtype) else -9, 9, shape)
    if dtype == "bool":
        return array > 4
    array = array.astype(dtypes.numpy_dtype(dtype))
    special = [dtypes.least(dtype), dtypes.greatest(dtype)]
    if dtypes.is_float(dtype):
        special += [0.0, -0.0, float("nan"), -float("nan")]
    flat = array.reshape(-1)
    for value in special:
        flat[rng.random(flat.size) < 0.05] = value
    return array


def comparable(array):
    """As a dtype that NumPy sorts; exact."""
    return array.astype("f8") if dtypes.is_float(dtypes.canonical(array.dtype)) else array


def bits(array):
    """The bits of each element, those of one NaN for all: a device may give another when it converts float16."""
    if dtypes.is_float(dtypes.canonical(array.dtype)):
        array = np.where(np.isnan(array), np.asarray(np.nan, array.dtype), array)
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def run_sort(device, traits, operands, keys, wrap=lambda n: n, **options):
    shape = operands[0].shape
    names = [(f"x{k}", dtypes.canonical(x.dtype)) for k, x in enumerate(operands)]
    results = [f"y{k}" for k in range(len(operands))]
    given = {"operands": [(named(name), dtype) for name, dtype in names], "results": [named(y) for y in results]}
    specs = sort.plan(traits, shape=tuple(map(wrap, shape)), keys=keys, **given, **options)
    buffers = {name: device.upload(x) for (name, _), x in zip(names, operands, strict=True)}
    buffers |= {y: device.upload(np.zeros_like(x)) for y, x in zip(results, operands, strict=True)}
    launch(device, specs, buffers)
    return [device.download(buffers[y], x.dtype, shape) for y, x in zip(results, operands, strict=True)]


def check_sort(device, traits, operands, keys, **options):
    """Stable: every operand comes as a stable sort by the keys has it, zeros with their signs."""
    order = np.lexsort([comparable(x) for x in operands[:keys][::-1]], axis=-1)
    for got, x in zip(run_sort(device, traits, operands, keys, **options), operands, strict=True):
        np.testing.assert_array_equal(bits(got), bits(np.take_along_axis(x, order, -1)))


def with_positions(*operands):
    return [*operands, np.broadcast_to(np.arange(operands[0].shape[-1], dtype="i4"), operands[0].shape).copy()]


# Keys packed with positions, and looked up.
@pytest.mark.parametrize("traits,dtype,n", pairwise(schedule_names(), ["float32", "int64"], SIZES), indirect=["traits"])
def test_lengths(device, traits, dtype, n):
    check_sort(device, traits, with_positions(values(np.random.default_rng(n), (3, n), dtype)), 1)


def test_a_long_row(device, traits):
    """Of several merges, in several pieces each."""
    if traits.schedule == "reference":
        pytest.skip("it compares each with each")
    check_sort(device, traits, with_positions(values(np.random.default_rng(0), (1, 9001), "float32")), 1)


@pytest.mark.parametrize("dtypes", [["int64"], ["float16", "uint32"]])
def test_tiles_of_wide_elements(device, traits, dtypes):
    """Several merges of runs that end within a tile, of keys that take more than 32 bits."""
    if traits.schedule == "reference":
        pytest.skip("it compares each with each")
    rng = np.random.default_rng(9)
    check_sort(device, traits, with_positions(*(values(rng, (2, 5001), d) for d in dtypes)), len(dtypes))


def test_short_rows_on_gpus_are_one_launch(traits):
    given = {"operands": [(named("x"), "float32")], "keys": 1, "results": [named("y")]}
    specs = [len(sort.plan(dataclasses.replace(traits, schedule="gpu"), shape=(3, n), **given)) for n in (1, 33, 2048, 2049, 4097)]
    assert specs == [1, 1, 1, 2, 3]


@pytest.mark.parametrize("dtype", ORDERED)
def test_dtypes(device, traits, dtype):
    check_sort(device, traits, with_positions(values(np.random.default_rng(1), (5, 77), dtype)), 1)


@pytest.mark.parametrize("dtype", ORDERED)
def test_a_second_key_decides_between_equals(device, traits, dtype):
    rng = np.random.default_rng(2)
    check_sort(device, traits, with_positions(values(rng, (2, 131), "bool"), values(rng, (2, 131), dtype)), 2)


def test_three_keys(device, traits):
    rng = np.random.default_rng(3)
    check_sort(device, traits, with_positions(*(values(rng, (2, 70), d) for d in ("bool", "float16", "float32"))), 3)


def test_all_equal_stay_where_they_are(device, traits):
    for value in (0.0, float("nan"), float("inf")):
        check_sort(device, traits, with_positions(np.full((2, 90), value, "f4")), 1)


def test_the_greatest_unsigned_integers_are_above_the_others(device, traits):
    for dtype in ("uint32", "uint64"):
        x = np.array([[0, 2**31, 2**31 - 1, 2**32 - 1, 1]], dtype)
        check_sort(device, traits, with_positions(x if dtype == "uint32" else x << np.uint64(20)), 1)


@pytest.mark.parametrize(
    "traits,n,options",
    pairwise(
        schedule_names(), [7, 40, 300, 2100], [{"all_arguments": True}, {"wrap": lambda n: Dim(n, 40)}, {"wrap": lambda n: Dim(n, 2)}]
    ),
    indirect=["traits"],
)
def test_extents_that_are_arguments(device, traits, n, options):
    """A hint says how much a work-item sorts, the extent how many merges follow."""
    for dtype in ("float32", "float16", "int64"):
        check_sort(device, traits, with_positions(values(np.random.default_rng(4), (3, n), dtype)), 1, **options)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_rows_of_any_length_share_kernels(traits, dtype, eager):
    """Up to a block; there are as many launches as for rows that were as long at first."""
    wrap, options = (int, {"all_arguments": True}) if eager else (lambda n: Dim(n, 9), {})
    x, y, p = named("x"), named("y"), named("p")

    def plans(n):
        ordered = sort.plan(traits, shape=(3, n), operands=[(x, dtype)], keys=1, results=[y], **options)
        return ordered, sort.top_k(traits, shape=(3, n), k=3, x=x, dtype=dtype, results=[y, p], **options)

    found = [plans(wrap(n)) for n in (5, 9, 40, 1000)]
    assert len({tuple(spec.source("k") for specs in both for spec in specs) for both in found}) == 1
    assert [len(specs) for specs in found[0]] == [len(specs) for specs in plans(Dim(1000))]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_empty(device, traits, shape):
    assert sort.plan(traits, shape=shape, operands=[(named("x"), "float32")], keys=1, results=[named("y")]) == []
    assert sort.top_k(traits, shape=(0, 4), k=2, x=named("x"), dtype="float32", results=[named("v"), named("p")]) == []
    assert sort.top_k(traits, shape=(3, 4), k=0, x=named("x"), dtype="float32", results=[named("v"), named("p")]) == []


# ---- the greatest of each row


def check_top_k(device, traits, x, k, wrap=lambda n: n, **options):
    """Descending, NaN first; of equals the first."""
    dtype = dtypes.canonical(x.dtype)
    shape = (*x.shape[:-1], k)
    specs = sort.top_k(traits, shape=tuple(map(wrap, x.shape)), k=k, x=named("x"), dtype=dtype, results=[named("v"), named("p")], **options)
    buffers = {"x": device.upload(x), "v": device.upload(np.zeros(shape, x.dtype)), "p": device.upload(np.full(shape, -1, "i4"))}
    launch(device, specs, buffers)
    wide = comparable(x)[..., ::-1]
    order = x.shape[-1] - 1 - np.argsort(wide, axis=-1, kind="stable")[..., ::-1][..., :k]
    np.testing.assert_array_equal(device.download(buffers["p"], "i4", shape), order)
    got = device.download(buffers["v"], x.dtype, shape)
    np.testing.assert_array_equal(comparable(got), comparable(np.take_along_axis(x, order, -1)))


@pytest.mark.parametrize("dtype", ORDERED)
def test_top_k_of_all_dtypes(device, traits, dtype):
    check_top_k(device, traits, values(np.random.default_rng(5), (7, 53), dtype), 9)


@pytest.mark.parametrize("n,k", [(1, 1), (2, 1), (17, 17), (100, 3), (1000, 20), (2048, 2048), (4100, 5), (5000, 600), (70000, 100)])
def test_top_k_of_lengths(device, traits, n, k):
    """Whole rows in local memory, blocks of rows in several launches, and what is left of a sort."""
    if k > 100 and traits.schedule != "gpu":
        pytest.skip("it moves half of what is kept for each element")
    check_top_k(device, traits, values(np.random.default_rng(n), (3, n), "float32"), k)


def test_top_k_of_long_rows_of_wide_elements(device, traits):
    check_top_k(device, traits, values(np.random.default_rng(8), (2, 3001), "int64"), 7)


@pytest.mark.parametrize("rows", [1, 2, 5, 300])
def test_top_k_of_rows_that_share_a_group(device, traits, rows):
    check_top_k(device, traits, values(np.random.default_rng(rows), (rows, 11), "float16"), 3)


@pytest.mark.parametrize("options", [{"all_arguments": True}, {"wrap": lambda n: Dim(n, 9)}, {"wrap": lambda n: Dim(n, 9000)}])
@pytest.mark.parametrize("n", [31, 4500])
def test_top_k_of_extents_that_are_arguments(device, traits, options, n):
    check_top_k(device, traits, values(np.random.default_rng(6), (5, n), "float32"), 4, **options)


def test_top_k_of_ascending_and_descending_rows(device, traits):
    x = np.arange(40, dtype="i4")
    check_top_k(device, traits, np.stack([x, x[::-1], np.zeros_like(x)]), 6)
