"""Scatter kernels against NumPy in float64, with all schedules."""

import dataclasses
import itertools

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.kernels import scatter
from keras_ocl.kernels.schedule import schedule_names
from keras_ocl.kernels.schedules import gpu
from tests.kernels.launching import launch, named
from tests.pairwise import pairwise

COMBINE = {"set": lambda a, b: b, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
WIDE = ["int32", "uint32", "int64", "uint64", "float32", "float64", "complex64", "complex128"]  # what sums and products are formed in
PRECISION = {"float32": 2e-6, "complex64": 2e-6, "float64": 1e-13, "complex128": 1e-13}


SCHEDULES = [*schedule_names(), "gpu, sorted"]


@pytest.fixture(params=SCHEDULES)
def traits(request, device, monkeypatch):
    """Traits of each schedule, and of one that sorts all updates, of which it takes few at a time."""
    name, *is_sorted = request.param.split(", ")
    if is_sorted:
        monkeypatch.setattr(gpu, "_TUNING", dataclasses.replace(gpu._TUNING, scatter_walked=0, scatter_chunk=5))
    return dataclasses.replace(device.traits, schedule=name)


def values(rng, shape, dtype):
    if dtypes.needs_double(dtype) and not runtime.current_device().traits.fp64:
        pytest.skip("the device has no float64")
    if dtypes.is_float(dtype) or dtypes.is_complex(dtype):
        array = rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)
        return (array * (1 + 0.3j) if dtypes.is_complex(dtype) else array).astype(dtypes.numpy_dtype(dtype))
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


def expected(shape, mode, clip, x, indices, updates):
    """One update after another, sums and products in float64."""
    dtype = dtypes.canonical(updates.dtype)
    wide = dtype if mode not in ("add", "mul") or dtypes.is_integer(dtype) else "complex128" if dtypes.is_complex(dtype) else "float64"
    result = (np.zeros(shape, updates.dtype) if x is None else x).astype(dtypes.numpy_dtype(wide))
    for at in itertools.product(*map(range, indices[0].shape)):
        place = [int(i[at]) for i in indices]
        if clip:
            place = [min(max(p, 0), n - 1) for p, n in zip(place, shape, strict=False)]
        if all(0 <= p < n for p, n in zip(place, shape, strict=False)):
            with np.errstate(over="ignore"):
                result[tuple(place)] = COMBINE[mode](result[tuple(place)], updates[at].astype(result.dtype))
    return result


def check(device, traits, shape, indices, updates, mode="add", clip=False, x=None, wrap=lambda n: n, **options):
    dtype = dtypes.canonical(updates.dtype)
    names = [(f"i{k}", dtypes.canonical(i.dtype)) for k, i in enumerate(indices)]
    specs = scatter.plan(
        traits,
        shape=tuple(map(wrap, shape)),
        count=tuple(map(wrap, indices[0].shape)),
        mode=mode,
        clip=clip,
        x=None if x is None else named("x"),
        indices=[(named(name), dtype) for name, dtype in names],
        updates=named("u"),
        dtype=dtype,
        result=named("y"),
        **options,
    )
    arrays = {"u": updates, "y": np.ones(shape, updates.dtype), **{name: i for (name, _), i in zip(names, indices, strict=True)}}
    if x is not None:
        arrays["x"] = x
    buffers = {name: device.upload(a if a.size else np.zeros(1, a.dtype)) for name, a in arrays.items()}
    launch(device, specs, buffers)
    got, want = device.download(buffers["y"], updates.dtype, shape), expected(shape, mode, clip, x, indices, updates)
    if mode in ("add", "mul") and dtype in PRECISION:
        np.testing.assert_allclose(got.astype(want.dtype), want, rtol=PRECISION[dtype], atol=PRECISION[dtype] * 8)
    else:
        np.testing.assert_array_equal(got, want)


def drawn(rng, shape, count, columns, dtype, index_dtype="int32", beyond=2):
    """Index tensors, some of them beyond either end, and updates."""
    low = -beyond if dtypes.is_signed(index_dtype) else 0
    indices = [rng.integers(low, n + beyond, count).astype(index_dtype) for n in shape]
    return indices, values(rng, (*count, *columns), dtype)


CASES = [  # rows, count, columns
    ((1,), (1,), ()), ((5,), (40,), ()), ((7,), (3,), (1,)), ((7,), (9,), (19,)), ((1,), (4,), (33,)), ((70,), (90,), (3,)),
    ((3, 4), (6, 5), (2, 7)), ((9, 2), (50,), ()), ((300,), (100,), ()), ((2, 3, 4), (30,), (5,)),
]  # fmt: skip


@pytest.mark.parametrize("traits,mode_and_start,case", pairwise(SCHEDULES, [("add", False), ("set", True)], CASES), indirect=["traits"])
def test_shapes(device, traits, mode_and_start, case):
    (mode, start), (rows, count, columns) = mode_and_start, case
    rng = np.random.default_rng(1)
    indices, updates = drawn(rng, rows, count, columns, "float32")
    check(device, traits, (*rows, *columns), indices, updates, mode, x=values(rng, (*rows, *columns), "float32") if start else None)


def exists(mode, dtype):
    """Sums and products of smaller dtypes are formed in wider ones before they come here."""
    return dtype in WIDE if mode in ("add", "mul") else mode == "set" or not dtypes.is_complex(dtype) and dtype != "bool"


@pytest.mark.parametrize(
    "traits,mode,dtype",
    pairwise(SCHEDULES, COMBINE, dtypes.NAMES, allowed=lambda schedule, mode, dtype: exists(mode, dtype)),
    indirect=["traits"],
)
def test_dtypes(device, traits, mode, dtype):
    rng = np.random.default_rng(2)
    indices, updates = drawn(rng, (6,), (17,), (19,), dtype)
    check(device, traits, (6, 19), indices, updates, mode, x=values(rng, (6, 19), dtype))


@pytest.mark.parametrize(
    "traits,clip,index_dtype", pairwise(SCHEDULES, [False, True], [d for d in dtypes.NAMES if dtypes.is_integer(d)]), indirect=["traits"]
)
def test_indices_beyond_the_ends(device, traits, index_dtype, clip):
    """Dropped, or clipped; those that do not fit in 32 bits too."""
    rng, limits = np.random.default_rng(3), np.iinfo(index_dtype)
    indices, updates = drawn(rng, (5, 3), (40,), (2,), "float32", index_dtype, beyond=3)
    indices[0][:4] = [limits.max, limits.min, limits.max - 1, 0]
    indices[1][2:5] = [limits.max, limits.min, limits.max // 2 + 1]
    check(device, traits, (5, 3, 2), indices, updates, clip=clip)


def test_the_last_of_several_is_set(device, traits):
    """Whatever the block: all see the updates in the same order."""
    indices = [np.array([3, 1, 3, 3, 1, 0], "i4")]
    for columns in (1, 8, 21):
        updates = np.arange(6 * columns, dtype="f4").reshape(6, columns)
        check(device, traits, (5, columns), indices, updates, "set")


def test_sums_have_one_order(device, traits):
    """Floats are added in the order of the updates: 1 is lost beside 1e8 before that is taken away, and not after."""
    updates = np.array([1e8, 1, -1e8, 1, 1e8, -1e8], "f4")
    buffers = {"i": device.upload(np.zeros(6, "i4")), "u": device.upload(updates), "y": device.upload(np.ones(3, "f4"))}
    specs = scatter.plan(
        traits,
        shape=(3,),
        count=(6,),
        mode="add",
        clip=False,
        x=None,
        indices=[(named("i"), "int32")],
        updates=named("u"),
        dtype="float32",
        result=named("y"),
    )
    launch(device, specs, buffers)
    np.testing.assert_array_equal(device.download(buffers["y"], "f4", (3,)), [0, 0, 0])


@pytest.mark.parametrize("mode", ["set", "add", "max", "min"])
def test_nan_and_infinities(device, traits, mode):
    rng = np.random.default_rng(5)
    indices, updates = drawn(rng, (4,), (25,), (9,), "float32")
    for value in (np.nan, np.inf, -np.inf):
        updates[rng.random(updates.shape) < 0.1] = value
    x = values(rng, (4, 9), "float32")
    x[0, :3] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        check(device, traits, (4, 9), indices, updates, mode, x=x)


@pytest.mark.parametrize("start", [False, True])
def test_no_updates(device, traits, start):
    x = values(np.random.default_rng(6), (5, 3), "float32") if start else None
    check(device, traits, (5, 3), [np.zeros(0, "i4")], np.zeros((0, 3), "f4"), x=x)


def test_empty_results(traits):
    for shape in ((0, 3), (4, 0)):
        plan = scatter.plan(
            traits,
            shape=shape,
            count=(2,),
            mode="add",
            clip=True,
            x=None,
            indices=[(named("i"), "int32")],
            updates=named("u"),
            dtype="float32",
            result=named("y"),
        )
        assert plan == []


@pytest.mark.parametrize(
    "traits,case,options",
    pairwise(
        SCHEDULES,
        [((5,), (9,), (19,)), ((40, 3), (7,), (2,)), ((300,), (5,), ())],
        [{"all_arguments": True}, {"wrap": lambda n: Dim(n, 6)}, {"wrap": lambda n: Dim(n, 400)}],
    ),
    indirect=["traits"],
)
def test_extents_that_are_arguments(device, traits, case, options):
    """Blocks are cut by the hints of other calls and cover all of this one's result."""
    rows, count, columns = case
    rng = np.random.default_rng(7)
    indices, updates = drawn(rng, rows, count, columns, "float32")
    for clip in (False, True):
        check(device, traits, (*rows, *columns), indices, updates, clip=clip, **options)
