"""Mean and variance in one pass over memory: launches, loops, and values where digits could cancel (primitives/moments.py)."""

import re

import numpy as np
import pytest
from keras import ops

from keras_ocl import gradient, jit, runtime
from keras_ocl.compiler.jit import Jitted

CPU, GPU = "intel-cpu", "sm_90"
SHAPE, AXES = (128, 16, 16, 64), [0, 1, 2]
# Odd extents, a last part that is smaller, rows instead of columns, one axis, axes apart.
SHAPES = [
    ((128, 16, 16, 64), [0, 1, 2]),
    ((67, 33, 31, 5), [0, 1, 2]),
    ((30011, 7), [0]),
    ((9, 50021), [1]),
    ((100003,), [0]),
    ((203, 17, 130), [0, 2]),
    ((3, 64, 65, 33), [0, 2, 3]),
]


def launches(record, function, *shapes):
    device = runtime.RecordDevice(record, runtime.read_record(record))
    with runtime.device_scope(device):
        return Jitted(function).compiled(*(np.zeros(s, "float32") for s in shapes)).executable.launches


def moments(x, axes):
    """(mean, variance) in float64, from a compiled function."""
    compute = jit(lambda x: [ops.cast(m, "float32") for m in ops.moments(x, axes=axes)])
    return [ops.convert_to_numpy(m).astype("float64") for m in compute(ops.convert_to_tensor(x))]


def variance(x):
    return ops.var(x, axis=AXES, keepdims=True)


def normalised(x, scale, offset):
    mean, spread = ops.moments(x, axes=AXES)
    return ops.batch_normalization(x, mean, spread, -1, offset, scale)


def gradients(upstream, x, scale, offset):
    return gradient.grad(lambda *given: ops.sum(normalised(*given) * upstream), (0, 1, 2))(x, scale, offset)


@pytest.mark.parametrize("record", [CPU, GPU])
def test_x_is_read_once_for_both_moments(record):
    assert len(launches(record, lambda x: ops.moments(x, axes=AXES), SHAPE)) == 2
    assert len(launches(record, variance, SHAPE)) == 2
    assert len(launches(record, normalised, SHAPE, SHAPE[-1:], SHAPE[-1:])) == 3


def test_sums_of_the_same_parts_share_a_loop():
    """Those of deviations and of their squares, and two sums of an array, as for the gradients of a normalisation's scale and offset."""

    def sums(x, y):
        return ops.sum(x, axis=AXES), ops.sum(x * y, axis=AXES)

    (moments, *_), (two, *_) = launches(CPU, lambda x: ops.moments(x, axes=AXES), SHAPE), launches(CPU, sums, SHAPE, SHAPE)
    assert [len(re.findall(r"for \(int g", launch.body)) for launch in (moments, two)] == [4, 3]  # the first two: over parts, over columns


@pytest.mark.parametrize("shape,axes", SHAPES)
@pytest.mark.parametrize("drift", [False, True])
def test_moments_of_numbers_far_from_zero(shape, axes, drift):
    """`drift`: the parts' means differ as much as the numbers in a part, so that errors of these means would show."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=shape)
    if drift:
        noise += np.linspace(-2, 2, shape[axes[0]]).reshape([-1 if a == axes[0] else 1 for a in range(len(shape))])
    for ratio in (0, 1e3, 1e5, 1e6):
        x = (noise + ratio).astype("float32")
        mean, spread = moments(x, axes)
        exact = x.astype("float64")
        off = exact.mean(tuple(axes)) - mean
        np.testing.assert_allclose(off, 0, atol=1e-6 * max(1, ratio))
        np.testing.assert_allclose(spread, exact.var(tuple(axes)) + off**2, rtol=1e-5)  # as in two passes: about the float32 mean


def test_what_is_not_finite_stays_in_its_column():
    x = np.random.default_rng(0).normal(size=(128, 16, 16, 8)).astype("float32")
    x[3, 2, 1, 1], x[3, 2, 1, 2], x[100, 2, 1, 3], x[5, 5, 5, 4], x[6, 5, 5, 5] = np.nan, np.inf, -np.inf, 3e38, 1e15
    mean, spread = moments(x, AXES)
    with np.errstate(all="ignore"):
        exact = [x.astype("float64").mean((0, 1, 2)), x.astype("float64").var((0, 1, 2))]
    exact[1][4] = np.inf  # its square is none of float32's numbers
    np.testing.assert_allclose(mean, exact[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(spread, exact[1], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_are_summed_in_float32(dtype):
    x = ops.cast(np.random.default_rng(0).normal(size=(128, 16, 16, 8)) + 8, dtype)
    exact = ops.convert_to_numpy(ops.cast(x, "float32")).astype("float64")
    mean, spread = moments(x, AXES)
    np.testing.assert_allclose(mean, exact.mean((0, 1, 2)), rtol=5e-3)
    np.testing.assert_allclose(spread, exact.var((0, 1, 2)), rtol=5e-3)


def test_any_length():
    """With an unknown extent the last part's number of elements is a formula; parts, as many as there are, may be one or none."""
    compute = jit(lambda x: ops.moments(x, axes=[0, 1]), dynamic=(0,))
    for count in (600, 601, 599, 17, 1, 600):
        x = np.random.default_rng(count).normal(size=(count, 16, 8)).astype("float32") + 10
        mean, spread = map(ops.convert_to_numpy, compute(ops.convert_to_tensor(x)))
        np.testing.assert_allclose(mean, x.astype("float64").mean((0, 1)), rtol=1e-6)
        np.testing.assert_allclose(spread, x.astype("float64").var((0, 1)), rtol=2e-6)
    assert all(np.isnan(ops.convert_to_numpy(m)).all() for m in compute(ops.zeros((0, 16, 8))))


def test_results_are_the_same_each_time():
    x = ops.convert_to_tensor(np.random.default_rng(0).normal(size=SHAPE).astype("float32"))
    compute = jit(variance)
    first, second = (ops.convert_to_numpy(compute(x)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_gradients():
    rng = np.random.default_rng(0)
    shape, axes = (64, 9, 15, 8), (0, 1, 2)
    upstream, x = (rng.normal(size=shape) for _ in range(2))
    scale, offset = (rng.normal(size=shape[-1]) for _ in range(2))
    found = jit(gradients)(*(ops.convert_to_tensor(a.astype("float32")) for a in (upstream, x + 3, scale, offset)))
    inverse = 1 / np.sqrt(x.var(axes) + 1e-3)
    unit, scaled = (x - x.mean(axes)) * inverse, upstream * scale
    exact = inverse * (scaled - scaled.mean(axes) - unit * (scaled * unit).mean(axes)), (upstream * unit).sum(axes), upstream.sum(axes)
    for f, e in zip(found, exact, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(f), e, rtol=1e-4, atol=1e-4)
