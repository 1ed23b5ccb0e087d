"""Kernels of row-sparse tensors against NumPy, with all schedules."""

import dataclasses

import numpy as np
import pytest

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.kernels import row_sparse
from keras_ocl.kernels.schedule import schedule_names
from tests.kernels.launching import launch, named
from tests.pairwise import pairwise


@pytest.fixture(params=schedule_names())
def traits(request, device):
    return dataclasses.replace(device.traits, schedule=request.param)


def distinct(device, traits, indices, extent, clip, wrap=lambda n: n, **options):
    count = indices.size
    specs = row_sparse.distinct(
        traits,
        extent=wrap(extent),
        count=wrap(count),
        clip=clip,
        indices=(named("i"), dtypes.canonical(indices.dtype)),
        slots=named("slots"),
        rows=named("rows"),
        **options,
    )
    buffers = {"i": device.upload(indices), **{name: device.upload(np.full(count, 77, "int32")) for name in ("slots", "rows")}}
    launch(device, specs, buffers)
    return [device.download(buffers[name], "int32", (count,)) for name in ("slots", "rows")]


CASES = [(1, 1), (1, 40), (7, 9), (10**6, 300), (2**31 - 1, 1000), (50, 2000)]  # extent, count


@pytest.mark.parametrize(
    "traits,case,dtype,clip", pairwise(schedule_names(), CASES, ["int32", "int64", "uint8", "uint32"], [True, False]), indirect=["traits"]
)
def test_distinct(device, traits, case, dtype, clip):
    extent, count = case
    rng, info = np.random.default_rng(1), np.iinfo(dtype)
    wanted = rng.integers(-3, extent + 3, count)
    indices = np.clip(wanted, info.min, info.max).astype(dtype)
    check_distinct(indices, extent, clip, *distinct(device, traits, indices, extent, clip))


def check_distinct(indices, extent, clip, slots, rows):
    named_rows = indices.astype("int64")
    inside = (named_rows >= 0) & (named_rows < extent)
    named_rows = np.clip(named_rows, 0, extent - 1) if clip else named_rows
    valid = np.ones_like(inside) if clip else inside
    assert (slots[~valid] == -1).all()
    np.testing.assert_array_equal(rows[slots[valid]], named_rows[valid])
    used = rows[rows != -1]
    assert sorted(used) == sorted(set(named_rows[valid]))


@pytest.mark.parametrize("traits", schedule_names(), indirect=True)
def test_of_unknown_extents_and_eager(device, traits):
    indices = np.random.default_rng(2).integers(0, 40, 100).astype("int32")
    for options in ({"wrap": lambda n: Dim(n, 6)}, {"all_arguments": True}):
        check_distinct(indices, 50, False, *distinct(device, traits, indices, 50, False, **options))


def test_slots_by_hashing_are_in_the_order_of_first_appearance(device):
    traits = dataclasses.replace(device.traits, schedule="cpu")
    slots, rows = distinct(device, traits, np.array([5, 9, 5, 0, 9], "int32"), 10, False)
    assert slots.tolist() == [0, 1, 0, 2, 1] and rows.tolist() == [5, 9, 0, -1, -1]


@pytest.mark.parametrize(
    "traits,columns,dtype,copied",
    pairwise(schedule_names(), [(), (1,), (3, 7), (64,)], ["float32", "float16", "bfloat16", "int8"], [True, False]),
    indirect=["traits"],
)
def test_put(device, traits, columns, dtype, copied):
    rng = np.random.default_rng(3)
    x, values = (rng.integers(-50, 50, (n, *columns)).astype(dtypes.numpy_dtype(dtype)) for n in (90, 20))
    rows = np.where(rng.random(20) < 0.3, -1, rng.permutation(90)[:20]).astype("int32")
    specs = row_sparse.put(
        traits,
        shape=x.shape,
        count=20,
        x=named("x") if copied else None,
        rows=named("rows"),
        values=named("values"),
        dtype=dtype,
        result=named("y"),
    )
    arrays = {"x": x, "rows": rows, "values": values, "y": np.zeros_like(x) if copied else x}
    buffers = {name: device.upload(a) for name, a in arrays.items()}
    launch(device, specs, buffers)
    want = x.copy()
    want[rows[rows >= 0]] = values[rows >= 0]
    np.testing.assert_array_equal(device.download(buffers["y"], dtype, x.shape), want)
