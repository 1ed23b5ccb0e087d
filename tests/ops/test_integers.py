"""int64 and uint64 beyond what floats represent, against NumPy and Python's integers."""

import math

import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl.ops import numpy as knp

RNG = np.random.default_rng(9)
DTYPES = pytest.mark.parametrize("dtype", ["int64", "uint64"])


def operands(dtype):
    """Numbers of every magnitude, most above 2^53, next to one another; small ones that are not 0."""
    info = np.iinfo(dtype)
    edges = [0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 + 1, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, info.max, info.max - 1, info.max // 3]
    edges += [info.min, info.min + 1, -1, -(2**53) - 1, -(2**31) - 1] if info.min else []
    x = np.concatenate([np.array(edges, dtype), RNG.integers(info.min, info.max, 29, dtype)])
    small = RNG.integers(1, 60, len(x)).astype(dtype)
    return np.resize(x, (4, 12)), np.resize(small, (4, 12))


def value(x):
    return np.asarray(ops.convert_to_numpy(x))


# Given NumPy or keras_ocl, x and small positive numbers y.
FUNCTIONS = {
    "add": lambda k, x, y: k.add(x, y),
    "subtract": lambda k, x, y: k.subtract(x, y),
    "multiply": lambda k, x, y: k.multiply(x, y),
    "floor_divide": lambda k, x, y: k.floor_divide(x, y),
    "mod": lambda k, x, y: k.mod(x, y),
    "fmod": lambda k, x, y: k.fmod(x, y),
    "power": lambda k, x, y: k.power(x, y % 5),
    "square": lambda k, x, y: k.square(x),
    "absolute": lambda k, x, y: k.absolute(x),
    "sign": lambda k, x, y: k.sign(x),
    "maximum": lambda k, x, y: k.maximum(x, y),
    "minimum": lambda k, x, y: k.minimum(x, y),
    "clip": lambda k, x, y: k.clip(x, 5, 2**60 + 1),
    "left_shift": lambda k, x, y: k.left_shift(x, y),
    "right_shift": lambda k, x, y: k.right_shift(x, y),
    "bitwise_xor": lambda k, x, y: k.bitwise_xor(x, y),
    "equal": lambda k, x, y: k.equal(x, x - 1),
    "less": lambda k, x, y: k.less(x - 1, x),
    "where": lambda k, x, y: k.where(x > 2**53, x, y),
    "sum": lambda k, x, y: k.sum(x, 1),
    "prod": lambda k, x, y: k.prod(x, 0),
    "max": lambda k, x, y: k.max(x, 1),
    "min": lambda k, x, y: k.min(x, 0),
    "ptp": lambda k, x, y: k.ptp(x // 3, 0),
    "cumsum": lambda k, x, y: k.cumsum(x, 1),
    "cumprod": lambda k, x, y: k.cumprod(y, 1),
    "diff": lambda k, x, y: k.diff(x),
    "sort": lambda k, x, y: k.sort(x, 1),
    "argmax": lambda k, x, y: k.argmax(x, 0),
    "argsort": lambda k, x, y: k.argsort(x[0], **({"kind": "stable"} if k is np else {})),
    "searchsorted": lambda k, x, y: k.searchsorted(k.sort(x[0]), x[1]),
    "isin": lambda k, x, y: k.isin(x, x[0] + 1),
    "matmul": lambda k, x, y: k.matmul(x, k.transpose(y)),
    "dot": lambda k, x, y: k.dot(x[0], x[1]),
    "trace": lambda k, x, y: k.trace(x),
    "take": lambda k, x, y: k.take(x, [3, 0], 1),
    "diag": lambda k, x, y: k.diag(x[0]),
}


@DTYPES
def test_functions(dtype):
    x, y = operands(dtype)
    step = keras_ocl.jit(lambda x, y: [function(knp, x, y) for function in FUNCTIONS.values()])
    for name, ours in zip(FUNCTIONS, step(ops.convert_to_tensor(x, dtype), ops.convert_to_tensor(y, dtype)), strict=True):
        with np.errstate(over="ignore"):
            expected = np.asarray(FUNCTIONS[name](np, x, y))
        assert expected.dtype == ours.dtype or ours.dtype in ("int32", "bool"), name
        np.testing.assert_array_equal(value(ours), expected.astype(ours.dtype), err_msg=name)


@DTYPES
def test_divisors_and_rounding(dtype):
    x, y = operands(dtype)
    x = x // 64  # so that multiples fit
    left, right = ops.convert_to_tensor(x, dtype), ops.convert_to_tensor(y, dtype)
    for ours, reference in ((ops.gcd(left, right), math.gcd), (ops.lcm(left, right), math.lcm)):
        expected = [reference(int(a), int(b)) for a, b in zip(x.flat, y.flat, strict=True)]
        np.testing.assert_array_equal(value(ours), np.array(expected, dtype).reshape(x.shape))
    for decimals in (-1, -3, -25):
        expected = [round(int(a), decimals) for a in x.flat]
        np.testing.assert_array_equal(value(ops.round(left, decimals)), np.array(expected, dtype).reshape(x.shape))


@DTYPES
def test_segments_and_counts(dtype):
    x, _ = operands(dtype)
    ids = np.array([0, 2, 0, 1])
    expected = np.zeros((3, 12), dtype)
    with np.errstate(over="ignore"):
        np.add.at(expected, ids, x)
    tensor = ops.convert_to_tensor(x, dtype)
    np.testing.assert_array_equal(value(ops.segment_sum(tensor, ids, 3)), expected)
    np.testing.assert_array_equal(value(ops.segment_max(tensor, ids, 3))[0], np.maximum(x[0], x[2]))
    distinct, counts = ops.unique(ops.convert_to_tensor(np.repeat(x, 2), dtype), return_counts=True)
    for ours, reference in zip((distinct, counts), np.unique(np.repeat(x, 2), return_counts=True), strict=True):
        np.testing.assert_array_equal(value(ours), reference)
    np.testing.assert_array_equal(value(ops.bincount(ops.convert_to_tensor([3, 1, 3], dtype))), [0, 1, 0, 2])
    values, places = ops.top_k(tensor, 2)
    np.testing.assert_array_equal(value(values), np.sort(x, 1)[:, :-3:-1])
    np.testing.assert_array_equal(np.take_along_axis(x, value(places), 1), value(values))


@DTYPES
def test_ranges(dtype):
    start = np.iinfo(dtype).max - 10
    np.testing.assert_array_equal(value(ops.arange(start, start + 7, 3, dtype=dtype)), [start, start + 3, start + 6])
    np.testing.assert_array_equal(value(ops.arange(start, start - 7, -3, dtype=dtype)), [start, start - 3, start - 6])
    np.testing.assert_array_equal(value(ops.full((2,), start, dtype=dtype)), [start] * 2)


def test_host_integers_that_need_64_bits_keep_them():
    assert ops.convert_to_tensor(np.array([1, 2])).dtype == "int32"
    big = ops.convert_to_tensor(np.array([2**40]))
    assert big.dtype == "int64" and int(big[0] + np.int64(2**50)) == 2**40 + 2**50


@pytest.mark.parametrize("function", [ops.minimum, ops.add, lambda x, n: ops.where(x > 1, x, n), lambda x, n: ops.clip(x, 0, 300 + n)])
def test_numbers_that_do_not_fit_are_refused(function):
    x = ops.convert_to_tensor(np.array([0, 2, 255], "uint8"))
    for call in (function, keras_ocl.jit(lambda x: function(x, -1))):
        with pytest.raises(OverflowError, match="the number (-1|299) does not fit in uint8.*cast"):
            call(x, -1) if call is function else call(x)
    np.testing.assert_array_equal(value(ops.minimum(x, 7)), [0, 2, 7])
