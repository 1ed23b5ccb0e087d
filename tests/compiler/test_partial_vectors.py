"""Rows whose rest is less than a vector: it is loaded, computed and stored as a vector of which some lanes exist, on CPUs."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core import dtypes
from tests.drivers import loses_int8_selects
from tests.primitives.checking import need_float64, same

DTYPES = ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "int8", "uint8", "int32", "int64", "bool"]


def along_rows(x, row):
    return P.broadcast(row, x.shape, (1,))


def along_columns(x, column):
    return P.broadcast(column, x.shape, (0,))


def after_rows(x, row):
    """What makes each row a loop of its own."""
    return P.max(x, along_rows(x, row))


def largest(x, row):
    y = after_rows(x, row)
    return P.eq(y, along_columns(y, P.reduce_max(y, (1,))))


def smallest(x, row):
    y = after_rows(x, row)
    return P.eq(y, along_columns(y, P.reduce_min(y, (1,))))


def neighbours(x, row):
    """Loads of lanes that lie beyond a row, and beyond the tensor's ends."""
    y, zero = after_rows(x, row), P.constant(0, x.dtype)
    return P.max(P.pad(y, zero, (0, 2), (0, -2)), P.pad(y, zero, (0, -1), (0, 1)))


def shifted(a, by):
    result, n = np.zeros_like(a), a.shape[1]
    result[:, max(0, by) : n + by] = a[:, max(0, -by) : n - by]
    return result


MOVED = [
    (after_rows, np.maximum),
    (largest, lambda a, row: np.maximum(a, row) == np.maximum(a, row).astype("f8").max(1, keepdims=True)),
    (smallest, lambda a, row: np.maximum(a, row) == np.maximum(a, row).astype("f8").min(1, keepdims=True)),
    (neighbours, lambda a, row: np.maximum(shifted(np.maximum(a, row), 2), shifted(np.maximum(a, row), -1))),
    (lambda x, row: P.concat((after_rows(x, row), x), 1), lambda a, row: np.concatenate((np.maximum(a, row), a), 1)),
    (lambda x, row: P.transpose(after_rows(x, row), (1, 0)), lambda a, row: np.maximum(a, row).T),
    (lambda x, row: P.ge(x, along_rows(x, row)), lambda a, row: a >= row),
]


def random(rng, shape, dtype):
    if dtype == "bool":
        return rng.random(shape) < 0.5
    return rng.integers(0 if dtype == "uint8" else -8, 9, shape).astype(dtypes.numpy_dtype(dtype))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(3, 50), st.sampled_from(DTYPES), st.sampled_from(MOVED))
@example(4, 17, "float16", MOVED[3])  # PoCL's own loads of 16 halves ended the process here
def test_rows_of_any_length_and_dtype(rows, length, dtype, case):
    if dtype == "float64" and not runtime.current_device().traits.fp64:
        return
    if dtype == "int8" and loses_int8_selects():
        return
    rng = np.random.default_rng(length)
    a, row = random(rng, (rows, length), dtype), random(rng, (length,), dtype)
    function, expected = case
    same(Jitted(function)(from_numpy(a), from_numpy(row)), expected(a, row))


FOLDS = {
    "max": (lambda x: P.reduce_max(P.neg(x), (1,)), lambda a: (-a).max(1)),
    "min": (lambda x: P.reduce_min(x, (1,)), lambda a: a.min(1)),
    "sum": (lambda x: P.reduce_sum(x, (1,)), lambda a: a.sum(1)),
    "prod": (lambda x: P.reduce_prod(x, (1,)), lambda a: a.prod(1)),
    "and": (lambda x: P.convert(P.reduce_and(P.lt(x, P.full(x.shape, 1.4, x.dtype)), (1,)), x.dtype), lambda a: (a < 1.4).all(1)),
    "or": (lambda x: P.convert(P.reduce_or(P.gt(x, P.full(x.shape, 1.4, x.dtype)), (1,)), x.dtype), lambda a: (a > 1.4).any(1)),
}


@pytest.mark.parametrize("kind", FOLDS)
def test_lanes_that_do_not_exist_are_left_out_of_reductions(kind):
    """The rest of a row is folded as a vector: its other lanes hold what the operation makes of zeros, such as infinities."""
    need_float64()
    reduce, expected = FOLDS[kind]
    for length in (3, 5, 7, 11, 14, 15, 19, 30, 35):
        a = np.random.default_rng(length).uniform(0.5, 1.5, (4, length))
        result = Jitted(lambda x: P.add(x, along_columns(x, reduce(P.div(P.mul(x, x), x)))))(from_numpy(a))
        same(result, a + expected(a)[:, None], 1e-12)


@pytest.mark.parametrize("length", [3, 6, 10, 14, 23, 30, 100])
def test_softmax_of_rows(length):
    a = np.random.default_rng(length).normal(size=(7, length)).astype("float32")

    def softmax(x):
        e = P.exp(P.sub(x, along_columns(x, P.reduce_max(x, (1,)))))
        return P.div(e, along_columns(e, P.reduce_sum(e, (1,))))

    e = np.exp(a.astype("float64") - a.max(1, keepdims=True))
    same(Jitted(softmax)(from_numpy(a)), (e / e.sum(1, keepdims=True)).astype("float32"), 1e-6)


def test_the_rest_of_a_row_is_a_vector():
    """One store of 16 lanes, and one vector of which 14 exist, in pieces of 8, 4 and 2."""
    if runtime.current_device().traits.schedule != "cpu":
        pytest.skip("the schedule of CPUs, whose kernels have explicit vectors")
    compiled = Jitted(lambda x, row: P.tanh(after_rows(x, row)))
    compiled(from_numpy(np.zeros((9, 30), "float32")), from_numpy(np.zeros(30, "float32")))
    (only,) = compiled.traces
    (kernel,) = only.executable.launches
    width = runtime.current_device().traits.vector_width
    rest = 30 % width
    assert kernel.body.count("tanh") == 1 + (rest > 0)
    assert [kernel.body.count(f"vstore{n}(") for n in (8, 4, 2) if n < width] == [int(bool(rest & n)) for n in (8, 4, 2) if n < width]
