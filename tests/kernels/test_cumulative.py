"""Running sums, products, extremes and recurrences, against NumPy in float64, with all schedules."""

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.kernels import cumulative
from keras_ocl.kernels.schedule import schedule_names
from keras_ocl.kernels.spec import Sink
from tests.kernels.launching import launch, named
from tests.pairwise import pairwise

KINDS = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}
NUMBERS = [d for d in dtypes.NAMES if d != "bool"]
PRECISION = {
    "float64": 1e-12, "complex128": 1e-12, "float32": 3e-6, "complex64": 3e-6, "float16": 2e-3, "bfloat16": 1e-2, "float8_e4m3fn": 0.1,
    "float8_e5m2": 0.2,
}  # fmt: skip


def values(rng, shape, dtype):
    """Near 1, so that products stay in range."""
    if dtypes.needs_double(dtype) and not runtime.current_device().traits.fp64:
        pytest.skip("the device has no float64")
    if dtypes.is_integer(dtype):
        return rng.integers(-3 if dtypes.is_signed(dtype) else 0, 4, shape).astype(dtype)
    sign = rng.choice([-1.0, 1.0], shape)
    turn = np.exp(1j * rng.uniform(0, 6, shape)) if dtypes.is_complex(dtype) else 1
    return (sign * turn * rng.uniform(0.9, 1.1, shape)).astype(dtypes.numpy_dtype(dtype))


def expected(kind, arrays, axis, reverse):
    """In float64, and integers, which wrap, in their own dtype."""
    dtype = dtypes.canonical(arrays[0].dtype)
    wide = None if dtypes.is_integer(dtype) else "c16" if dtypes.is_complex(dtype) else "f8"
    arrays = [np.flip(a, axis) if reverse else a for a in arrays]
    arrays = [np.moveaxis(a if wide is None else a.astype(wide), axis, 0) for a in arrays]
    if kind == "linear_recurrence":
        result, state = np.empty_like(arrays[0]), 0
        for k, (a, b) in enumerate(zip(*arrays, strict=True)):
            state = (a * state + b).astype(result.dtype)
            result[k] = state
    else:
        result = KINDS[kind].accumulate(arrays[0], 0, dtype=arrays[0].dtype)
    result = np.moveaxis(result, 0, axis)
    return np.flip(result, axis) if reverse else result


def check(device, traits, kind, arrays, axis, reverse=False, wrap=lambda n: n, **options):
    """Returns the KernelSpecs."""
    shape, dtype = arrays[0].shape, dtypes.canonical(arrays[0].dtype)
    handles = [f"x{k}" for k in range(len(arrays))]
    shape_given = tuple(map(wrap, shape))
    specs = cumulative.plan(
        traits,
        kind=kind,
        shape=shape_given,
        axis=axis,
        reverse=reverse,
        handles=[named(h) for h in handles],
        dtype=dtype,
        sink=Sink(named("y"), shape_given, dtype),
        **options,
    )
    buffers = {h: device.upload(a) for h, a in zip(handles, arrays, strict=True)}
    buffers["y"] = device.upload(np.full(shape, 77).astype(arrays[0].dtype))
    launch(device, specs, buffers)
    got, want = device.download(buffers["y"], arrays[0].dtype, shape), expected(kind, arrays, axis, reverse)
    if dtypes.is_integer(dtype):
        np.testing.assert_array_equal(got, want)
    else:
        precision = PRECISION[dtype]
        scale = np.maximum.accumulate(np.abs(np.nan_to_num(want, posinf=0, neginf=0)).ravel())[-1]  # of what was summed on the way
        np.testing.assert_allclose(got.astype(want.dtype), want, rtol=precision, atol=precision * scale)
    return specs


SHAPES = [
    ((1,), 0),
    ((7,), 0),
    ((33, 1), 0),
    ((1, 33), 0),
    ((5, 17), 0),
    ((5, 17), 1),
    ((4, 3, 19), 1),
    ((2, 3, 5, 9), 1),
    ((2, 3, 5, 9), 0),
]


@pytest.mark.parametrize(
    "traits,kind,at,reverse", pairwise(schedule_names(), ["cumsum", "cummax"], SHAPES, [False, True]), indirect=["traits"]
)
def test_shapes(device, traits, kind, at, reverse):
    shape, axis = at
    check(device, traits, kind, [values(np.random.default_rng(axis), shape, "float32")], axis, reverse)


@pytest.mark.parametrize("traits,at,reverse", pairwise(schedule_names(), SHAPES, [False, True]), indirect=["traits"])
def test_recurrences(device, traits, at, reverse):
    shape, axis = at
    rng = np.random.default_rng(2)
    check(
        device, traits, "linear_recurrence", [values(rng, shape, "float32") * np.float32(0.7), values(rng, shape, "float32")], axis, reverse
    )


def exists(kind, dtype):
    """Complex numbers have no order."""
    return not dtypes.is_complex(dtype) or kind not in ("cummax", "cummin")


@pytest.mark.parametrize(
    "traits,kind,dtype",
    pairwise(schedule_names(), [*KINDS, "linear_recurrence"], NUMBERS, allowed=lambda schedule, kind, dtype: exists(kind, dtype)),
    indirect=["traits"],
)
def test_dtypes(device, traits, kind, dtype):
    """Small floats are kept in float32 on the way; integers wrap."""
    rng, small = np.random.default_rng(3), dtype.startswith("float8")
    shape = (3, 6, 5) if small else (3, 21, 5)
    for axis in (1, 2):
        check(device, traits, kind, [values(rng, shape, dtype) for _ in range(2 if kind == "linear_recurrence" else 1)], axis)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint64"])
def test_integers_wrap(device, traits, dtype):
    x = np.random.default_rng(4).integers(1, 120, (9, 10)).astype(dtype)
    for kind in ("cumsum", "cumprod"):
        check(device, traits, kind, [x], 0)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_and_infinities(device, traits, kind):
    """NaN stays from where it comes, in extremes too."""
    rows = [[1, np.nan, 2, 3], [1, np.inf, 2, -np.inf], [-np.inf, 1, np.nan, 5], [0.0, -0.0, np.inf, 0.0], [np.nan] * 4]
    x = np.array(rows, "f4")
    for axis in (0, 1):
        for reverse in (False, True):
            check(device, traits, kind, [x], axis, reverse)


LONG = [((4096,), 0), ((5003,), 0), ((3, 4500, 5), 1), ((4111, 7), 0), ((2, 4099), 1)]


@pytest.mark.parametrize("traits,kind,at", pairwise(schedule_names(), KINDS, LONG), indirect=["traits"])
def test_long_axes_are_cut_into_parts(device, traits, kind, at):
    """Where the schedule says so."""
    shape, axis = at
    x = (
        np.random.default_rng(5).integers(-1, 2, shape).astype("i4")
        if kind == "cumprod"
        else values(np.random.default_rng(5), shape, "float32")
    )
    if kind == "cumprod":
        x = np.where(x == 0, 1, x).astype("i4")
    for reverse in (False, True):
        specs = check(device, traits, kind, [x], axis, reverse)
        assert len(specs) in {"cpu": (2,), "reference": (1,), "gpu": (1, 3)}[traits.schedule]


def test_nan_in_one_part_reaches_the_next(device, traits):
    x = values(np.random.default_rng(6), (4200,), "float32")
    x[1000] = np.nan
    for kind in KINDS:
        check(device, traits, kind, [x], 0)
        check(device, traits, kind, [x], 0, True)


@pytest.mark.parametrize("options", [{"all_arguments": True}, {"wrap": lambda n: Dim(n, 16)}, {"wrap": lambda n: Dim(n, 5000)}])
@pytest.mark.parametrize("kind", ["cumsum", "cummin"])
def test_extents_that_are_arguments(device, traits, kind, options):
    """Hints of other calls say how, the extents of this one what."""
    for shape, axis in (((19,), 0), ((3, 19), 1), ((3, 19, 4), 1), ((19, 17), 0)):
        check(device, traits, kind, [values(np.random.default_rng(7), shape, "float32")], axis, True, **options)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_empty(traits, shape):
    sink = Sink(named("y"), shape, "float32")
    given = {"handles": [named("x")], "dtype": "float32", "sink": sink}
    assert cumulative.plan(traits, kind="cumsum", shape=shape, axis=0, reverse=False, **given) == []
