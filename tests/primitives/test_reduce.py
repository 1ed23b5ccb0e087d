"""Reductions, positions of extremes and cumulative operations against NumPy in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl import primitives as P
from keras_ocl.compiler import from_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core import dtypes
from keras_ocl.core.autodiff import GradientTape
from tests.primitives.checking import check_gradient, need_float64, same

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

RNG = np.random.default_rng(2)
few = settings(max_examples=25, deadline=None)
SUMS = {"sum": np.sum, "prod": np.prod}
EXTREMES = {"max": np.max, "min": np.min}
RUNNING = {"cumsum": np.cumsum, "cumprod": np.cumprod, "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate}


@few
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple), st.sampled_from(["float32", "int32", "float16", "int8"]), st.data())
def test_reductions(shape, dtype, data):
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    x = RNG.integers(-2, 3, shape).astype(dtypes.numpy_dtype(dtype))
    for name, function in SUMS.items():
        expected = function(x.astype("i8"), axis=axes).astype(x.dtype)
        same(getattr(P, f"reduce_{name}")(from_numpy(x), axes), expected)
    if all(shape[a] for a in axes):
        for name, function in EXTREMES.items():
            same(getattr(P, f"reduce_{name}")(from_numpy(x), axes), function(x, axis=axes))


@pytest.mark.parametrize("shape,axes", [((33, 70), (1,)), ((70, 33), (0,)), ((3, 5000), (1,)), ((5000, 3), (0,)), ((7, 9, 300), (0, 2))])
def test_sums_of_floats(shape, axes):
    x = RNG.normal(size=shape).astype("f4")
    same(P.reduce_sum(from_numpy(x), axes), x.astype("f8").sum(axes), 1e-4)


def test_sums_of_rows_that_lie_far_apart_are_summed_in_parts():
    """A CPU follows few streams of memory at once. NaN and infinities come through."""
    x = RNG.normal(size=(1030, 1027)).astype("f4")
    x[500, 3], x[1029, 4], x[7, 5] = np.nan, np.inf, -np.inf
    compiled = Jitted(lambda a: P.reduce_sum(a, (0,)))
    same(compiled(from_numpy(x)), x.astype("f8").sum(0), 1e-4)
    (only,) = compiled.traces
    assert [launch.name for launch in only.executable.launches] == ["partial_reduce_sum", "reduce_sum"]
    for name, function in EXTREMES.items():
        same(Jitted(getattr(P, f"reduce_{name}"))(from_numpy(x), (0,)), function(x, axis=0))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"])
def test_extremes_of_narrow_floats(dtype):
    """float8_e4m3fn has no infinity to begin with."""
    x = np.array([[-3, -1, -448], [2, 448, 0.5]]).astype(dtypes.numpy_dtype(dtype))
    for name, function in EXTREMES.items():
        same(getattr(P, f"reduce_{name}")(from_numpy(x), (1,)), function(x.astype("f4"), axis=1).astype(x.dtype))


def test_half_precision_sums_in_float32():
    x = np.full((4, 5000), 1.0, "f2")
    same(P.reduce_sum(from_numpy(x), (1,)), np.full(4, 5000, "f2"))
    x = np.full((3, 300), 100, "i1")
    same(P.reduce_sum(from_numpy(x), (1,)), np.full(3, 30000).astype("i1"))


def test_nan_and_infinities():
    x = np.array([[1, np.nan, 3], [np.inf, -np.inf, 0], [-np.inf, -np.inf, -np.inf]], "f4")
    with np.errstate(invalid="ignore"):
        same(P.reduce_sum(from_numpy(x), (1,)), x.sum(1))
    same(P.reduce_max(from_numpy(x), (1,)), x.max(1))
    same(P.reduce_min(from_numpy(x), (1,)), x.min(1))
    same(P.argmax(from_numpy(x), 1), x.argmax(1).astype("i4"))
    same(P.argmin(from_numpy(x), 1), x.argmin(1).astype("i4"))


def test_logical_reductions():
    x = RNG.random((4, 37)) > 0.1
    same(P.reduce_and(from_numpy(x), (1,)), x.all(1))
    same(P.reduce_or(from_numpy(x), (0,)), x.any(0))
    same(P.reduce_max(from_numpy(x), (1,)), x.max(1))


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "float16", "bool"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_positions(dtype, axis):
    x = RNG.integers(0, 4, (5, 17, 3)).astype(dtypes.numpy_dtype(dtype))
    same(P.argmax(from_numpy(x), axis), x.argmax(axis).astype("i4"))
    same(P.argmin(from_numpy(x), axis, "int64"), x.argmin(axis))


def test_reduction_gradients():
    x = RNG.normal(size=(3, 4, 2))
    check_gradient(lambda a: P.reduce_sum(P.mul(a, a), (0, 2)), x)
    check_gradient(lambda a: P.reduce_prod(a, (0, 2)), x)
    check_gradient(lambda a: P.exp(P.reduce_max(a, (1,))), x)
    check_gradient(lambda a: P.exp(P.reduce_min(a, (0, 1))), x)


def test_product_gradient_with_zeros():
    for values in ([2.0, 0.0, 3.0], [0.0, 0.0, 3.0]):
        check_gradient(lambda a: P.reduce_prod(a, (0,)), np.array(values))


def test_ties_share_the_gradient():
    need_float64()
    x = from_numpy(np.array([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]]))
    with GradientTape() as tape:
        tape.watch(x)
        y = P.reduce_max(x, (1,))
    same(tape.gradient(y, x), [[0, 0.5, 0.5], [1 / 3] * 3])


@pytest.mark.parametrize("name", sorted(RUNNING))
@pytest.mark.parametrize("shape,axis", [((7,), 0), ((5, 33), 0), ((5, 33), 1), ((3, 4, 5), 1), ((2, 9000), 1), ((9000, 3), 0), ((0, 3), 0)])
@pytest.mark.parametrize("reverse", [False, True])
def test_running(name, shape, axis, reverse):
    for dtype, tolerance in (("f4", 1e-3), ("i4", 0)):
        x = RNG.normal(size=shape).astype("f4") if dtype == "f4" else RNG.integers(-2, 3, shape).astype("i4")
        if name == "cumprod":
            x = np.where(RNG.random(shape) > 0.5, 1, -1).astype(x.dtype)
        expected = np.flip(RUNNING[name](np.flip(x, axis), axis=axis), axis) if reverse else RUNNING[name](x, axis=axis)
        same(getattr(P, name)(from_numpy(x), axis, reverse), expected, tolerance)


def test_running_extreme_keeps_nan():
    x = np.array([1, 3, np.nan, 5], "f4")
    same(P.cummax(from_numpy(x), 0), [1, 3, np.nan, np.nan])


@pytest.mark.parametrize("name", sorted(RUNNING))
@pytest.mark.parametrize("reverse", [False, True])
def test_running_gradients(name, reverse):
    x = RNG.permutation(np.linspace(-2, 2, 18)).reshape(3, 6)  # far apart: extremes have a kink where two are equal
    for axis in (0, 1):
        check_gradient(lambda a, axis=axis: P.mul(getattr(P, name)(a, axis, reverse), a), x)


def test_cumprod_gradient_with_zeros():
    check_gradient(lambda a: P.cumprod(a, 0), np.array([2.0, 0.0, 3.0, 0.0, 1.5]))


@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrence(reverse):
    a, b = RNG.uniform(-1, 1, (2, 3, 20)).astype("f4")
    state, expected = np.zeros(3), np.zeros((3, 20))
    for i in reversed(range(20)) if reverse else range(20):
        state = a[:, i] * state + b[:, i]
        expected[:, i] = state
    same(P.linear_recurrence(from_numpy(a), from_numpy(b), 1, reverse), expected, 1e-5)
    check_gradient(lambda a, b: P.linear_recurrence(a, b, 1, reverse), a[:, :5], b[:, :5])


def test_argument_errors():
    x = from_numpy(np.zeros((2, 3), "?"))
    with pytest.raises(TypeError, match="reduce_sum.*bool"):
        P.reduce_sum(x, (0,))
    with pytest.raises(ValueError, match="axes"):
        P.reduce_or(x, (2,))
    with pytest.raises(ValueError, match="argmax"):
        P.argmax(x, 2)
    with pytest.raises(TypeError, match="cumsum"):
        P.cumsum(x, 0)
