"""Constants, broadcasts, reshapes, transposes, slices, pads and concatenations against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl import primitives as P
from keras_ocl.compiler import from_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core import dtypes
from tests.primitives.checking import check_gradient, same

RNG = np.random.default_rng(1)
few = settings(max_examples=25, deadline=None)
shapes = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)
some_dtypes = st.sampled_from(["float32", "float16", "bfloat16", "bool", "int8", "uint16", "int64", "complex64"])


def array(shape, dtype="float32"):
    values = RNG.integers(0, 100, shape)
    return (values > 50) if dtype == "bool" else values.astype(dtypes.numpy_dtype(dtype))


@few
@given(shapes, some_dtypes, st.data())
def test_transpose_and_reverse(shape, dtype, data):
    x = array(shape, dtype)
    perm = tuple(data.draw(st.permutations(range(len(shape)))))
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1))))
    same(P.transpose(from_numpy(x), perm), x.transpose(perm))
    same(P.reverse(from_numpy(x), axes), np.flip(x, axes) if axes else x)


@few
@given(shapes, some_dtypes, st.data())
def test_slice(shape, dtype, data):
    x = array(shape, dtype)
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    strides = [data.draw(st.integers(1, 3)) for _ in shape]
    starts, limits = zip(*bounds, strict=True)
    expected = x[tuple(slice(a, b, s) for (a, b), s in zip(bounds, strides, strict=True))]
    same(P.slice(from_numpy(x), starts, limits, strides), expected)


@few
@given(shapes, st.data())
def test_broadcast(shape, data):
    x = array(shape)
    x = x[tuple(slice(0, 1) if data.draw(st.booleans()) else slice(None) for _ in shape)]
    target, dims = [], []
    for n, m in zip(shape, x.shape, strict=True):
        target += data.draw(st.lists(st.integers(1, 3), max_size=2))
        dims.append(len(target))
        target.append(n if m == n else 4)
    placed = x.reshape([x.shape[dims.index(i)] if i in dims else 1 for i in range(len(target))])
    same(P.broadcast(from_numpy(x), target, dims), np.broadcast_to(placed, target))


@few
@given(shapes, some_dtypes, st.data())
def test_pad(shape, dtype, data):
    x = array(shape, dtype)
    interior = [data.draw(st.integers(0, 2)) for _ in shape]
    spread = [max(0, (n - 1) * (i + 1) + 1) for n, i in zip(shape, interior, strict=True)]
    low = [data.draw(st.integers(-n, 3)) for n in spread]
    high = [data.draw(st.integers(-(n + min(lo, 0)), 3)) for n, lo in zip(spread, low, strict=True)]
    value = array((), dtype)
    expected = np.full(spread, value, x.dtype)
    expected[tuple(slice(None, None, i + 1) for i in interior)] = x
    expected = np.pad(expected, [(max(lo, 0), max(hi, 0)) for lo, hi in zip(low, high, strict=True)], constant_values=value)
    crop = tuple(slice(max(-lo, 0), n - max(-hi, 0)) for lo, hi, n in zip(low, high, expected.shape, strict=True))
    same(P.pad(from_numpy(x), from_numpy(value), low, high, interior), expected[crop])


@few
@given(shapes, some_dtypes, st.data())
def test_concat(shape, dtype, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    xs = [array((*shape[:axis], n, *shape[axis + 1 :]), dtype) for n in sizes]
    same(P.concat([from_numpy(x) for x in xs], axis), np.concatenate(xs, axis))


@pytest.mark.parametrize("old,new", [((4, 6), (3, 8)), ((24,), (2, 3, 4)), ((2, 1, 12), (24, 1)), ((5, 0), (0, 3)), ((1, 1), ())])
def test_reshape(old, new):
    x = array(old)
    same(P.reshape(from_numpy(x), new), x.reshape(new))


def test_constants():
    same(P.full((2, 3), float("nan"), "float32"), np.full((2, 3), np.nan, "f4"))
    same(P.full((2, 3), float("-inf"), "bfloat16"), np.full((2, 3), -np.inf))
    same(P.full((0, 3), 1, "int8"), np.ones((0, 3), "i1"))
    same(P.full((5,), True, "bool"), np.ones(5, "?"))
    same(P.full((3,), 2 + 1j, "complex64"), np.full(3, 2 + 1j))
    same(P.full((3,), 2**64 - 1, "uint64"), np.full(3, 2**64 - 1, "u8"))
    same(P.constant(-(2**31), "int32"), np.int32(-(2**31)))
    for axis in (0, 1):
        expected = np.broadcast_to(np.arange((3, 17)[axis]).reshape((-1, 1) if axis == 0 else (1, -1)), (3, 17))
        for dtype in ("int32", "float32", "uint8", "int64", "float16"):
            same(P.iota((3, 17), axis, dtype), expected.astype(dtype))


def test_gradients():
    x = RNG.normal(size=(3, 4))
    check_gradient(lambda a: P.mul(P.broadcast(a, (2, 3, 5, 4), (1, 3)), P.broadcast(a, (2, 3, 5, 4), (1, 3))), x)
    check_gradient(lambda a: P.broadcast(P.mul(a, a), (6, 4), (0, 1)), RNG.normal(size=(1, 4)))
    check_gradient(lambda a: P.exp(P.reshape(a, (2, 6))), x)
    check_gradient(lambda a: P.exp(P.reverse(P.transpose(a, (1, 0)), (1,))), x)
    check_gradient(lambda a: P.exp(P.slice(a, (1, 0), (3, 4), (1, 3))), x)
    check_gradient(lambda a, v: P.exp(P.pad(a, v, (1, -1), (0, 2), (1, 0))), x, RNG.normal(size=()))
    check_gradient(lambda a, b: P.exp(P.concat((a, b, a), 1)), x, RNG.normal(size=(3, 2)))
    check_gradient(lambda a: P.mul(a, P.stop_gradient(P.full((3, 4), 2, "float64"))), x)


@pytest.mark.parametrize("channels", [(16, 32), (16, 16, 48), (16, 20), (3, 61)])
def test_joined_and_padded_channels_in_compiled_code(channels):
    """Lanes run along the channels, whose edges they meet or not."""
    xs = [RNG.normal(size=(5, 7, n)).astype("f4") for n in channels]
    total = sum(channels)

    def function(*xs):
        joined = P.concat(xs, 2)
        part = P.slice(joined, (0, 0, channels[0]), (5, 7, total))
        zero = P.constant(0.5, "float32")
        return P.exp(joined), P.pad(part, zero, (0, 0, channels[0]), (0, 0, 32)), P.pad(joined, zero, (1, 0, -16), (0, 2, -16))

    joined = np.concatenate(xs, 2)
    results = Jitted(function)(*xs)
    same(results[0], np.exp(joined), 1e-5)
    same(results[1], np.pad(joined[..., channels[0] :], [(0, 0), (0, 0), (channels[0], 32)], constant_values=0.5))
    same(results[2], np.pad(joined[..., 16:-16], [(1, 0), (0, 2), (0, 0)], constant_values=0.5))


def test_argument_errors():
    x = from_numpy(np.zeros((2, 3), "f4"))
    with pytest.raises(ValueError, match="broadcast"):
        P.broadcast(x, (2, 4), (0, 1))
    with pytest.raises(ValueError, match="reshape.*6 elements"):
        P.reshape(x, (4, 2))
    with pytest.raises(ValueError, match="transpose"):
        P.transpose(x, (0, 0))
    with pytest.raises(ValueError, match="slice"):
        P.slice(x, (0, 2), (2, 4))
    with pytest.raises(TypeError, match="pad"):
        P.pad(x, P.constant(0, "int32"), (0, 0), (0, 0))
    with pytest.raises(ValueError, match="concat"):
        P.concat((x, P.reshape(x, (3, 2))), 0)
    with pytest.raises(ValueError, match="iota"):
        P.iota((3,), 1, "int32")
