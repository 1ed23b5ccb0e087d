"""Operands of concatenations that are stored straight into the concatenation's buffer: which, with what values, and what that saves."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.fuse import placing
from keras_ocl.compiler.fuse.partition import partition
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.run import sources
from keras_ocl.gradient import value_and_grad
from keras_ocl.lowering import lower
from tests.compiler.fuse.test_rows import CPU, GPU
from tests.compiler.graphs import graph_of

ROWS, INNER = 5000, 24
X, W, V, Y = (ROWS, INNER), (INNER, 40), (INNER, 64), (ROWS, 40)


def product(a, b):
    return P.dot_general(a, b, ((a.ndim - 1,), (0,)))


def placed(record, function, *shapes):
    """(names of the nodes that kernels store in a concat, of those with a buffer of their own besides)."""
    graph, _ = graph_of(function, *((shape, "float32") for shape in shapes))
    found = partition(graph, runtime.read_record(record))
    return sorted(n.name for n in found.parts), sorted(n.name for n, (_, own) in found.parts.items() if own)


def total(c):
    """A product that reads `c` from memory."""
    return P.dot_general(c, c, ((0,), (0,)))


def two_products(x, w, v):
    return total(P.concat((product(x, w), product(x, v)), 1))


def product_and_input(x, w, y):
    return total(P.concat((y, product(x, w)), 1))


def read_by_a_kernel_too(x, w, y):
    a = P.tanh(product(x, w))
    return total(P.concat((a, y), 1)), P.reduce_sum(P.mul(a, P.exp(y)), (0,))


def read_by_a_product_too(x, w, y):
    a = product(x, w)
    return total(P.concat((a, y), 1)), P.dot_general(a, y, ((0,), (0,)))


def twice(x, w):
    a = product(x, w)
    return total(P.concat((a, a), 1))


def nested(x, w, v, y):
    inner = P.concat((product(x, w), y), 1)
    outer = P.concat((inner, product(x, v)), 1)
    return P.reduce_sum(P.exp(inner), (0,)), total(outer)


def across(x, w, v, y):
    """The outer concatenation runs along another axis, so the inner one is copied."""
    inner = P.concat((product(x, w), y), 1)
    outer = P.concat((inner, P.concat((y, product(x, w)), 1)), 0)
    return P.reduce_sum(P.exp(inner), (0,)), total(outer), product(x, v)


def below_each_other(x, w, y):
    return total(P.concat((product(x, w), y), 0))


def result(x, w, y):
    c = P.concat((P.neg(product(x, w)), y), 1)
    return c, P.reduce_sum(c, (0,))


CASES = {
    "two products": (two_products, (X, W, V)),
    "a product and an input": (product_and_input, (X, W, Y)),
    "read by another kernel": (read_by_a_kernel_too, (X, W, Y)),
    "read by a product": (read_by_a_product_too, (X, W, Y)),
    "one operand twice": (twice, (X, W)),
    "nested": (nested, (X, W, V, Y)),
    "along two axes": (across, (X, W, V, Y)),
    "along the first axis": (below_each_other, (X, W, Y)),
    "a result": (result, (X, W, Y)),
}


@pytest.mark.parametrize("record", [CPU, GPU])
@pytest.mark.parametrize(
    "case, parts",
    [
        ("two products", ["dot_general", "dot_general"]),
        ("a product and an input", ["concat", "dot_general"]),
        ("read by another kernel", ["concat", "tanh"]),
        ("read by a product", []),
        ("one operand twice", ["concat", "dot_general"]),
        ("nested", ["concat", "concat", "dot_general", "dot_general"]),
        ("along the first axis", ["concat", "dot_general"]),
        ("along two axes", ["concat", "concat"]),
        ("a result", ["concat", "neg"]),
    ],
)
def test_which_operands_are_placed(record, case, parts):
    """A "concat" among the parts is a copy of the other operands, or the inner concatenation."""
    function, shapes = CASES[case]
    found, own = placed(record, function, *shapes)
    assert found == parts and not own


@pytest.mark.parametrize("record", [CPU, GPU])
def test_what_is_computed_inside_the_concatenation_stays_there(record):
    """Elementwise operations alone, short runs of elements and small arrays: there is nothing to save."""

    def inside(x, y):
        return total(P.concat((P.exp(x), P.neg(y)), 1))

    assert placed(record, inside, X, Y)[0] == []
    assert placed(record, product_and_input, X, (INNER, 3), (ROWS, 3))[0] == []
    assert placed(record, product_and_input, (16, INNER), W, (16, 40))[0] == []


def test_a_new_value_of_a_state_is_stored_by_one_kernel():
    """It may overwrite the old value in place."""
    graph, _ = graph_of(result, *((shape, "float32") for shape in (X, W, Y)))
    assert partition(graph, runtime.read_record(CPU), whole={graph.outputs[0]}).parts == {}


@pytest.fixture(params=["cpu", "gpu", "reference"])
def device(request):
    device = runtime.current_device()
    before = device.traits
    device.traits = dataclasses.replace(before, schedule=request.param)
    yield device
    device.traits = before


def arrays(shapes, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-2, 3, shape).astype(dtype) / (1 if dtype == "int32" else 4) for shape in shapes]


def small(shapes, rows):
    """The shapes with few rows and odd numbers of columns."""
    odd = {ROWS: rows, INNER: 7, 40: 19, 64: 35}
    return [tuple(odd[n] for n in shape) for shape in shapes]


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_single_kernels(device, case, monkeypatch):
    """With a known number of rows and an unknown one, against the same function with nothing placed."""
    function, shapes = CASES[case]
    given = [arrays(small(shapes, rows), "float32", rows) for rows in (33, 6)]
    expected = [[to_numpy(r) for r in outputs(Jitted(function)(*some))] for some in given]
    monkeypatch.setattr(placing, "RUN", 0)
    monkeypatch.setattr(placing, "pays", lambda *_: True)
    any_rows = Jitted(function, dynamic=(0,))
    for some, wanted in zip(given, expected, strict=True):
        for compiled in (Jitted(function), any_rows):
            for got, want in zip(outputs(compiled(*some)), wanted, strict=True):
                np.testing.assert_allclose(to_numpy(got), want, rtol=1e-5, atol=1e-5)


def outputs(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "complex64"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_all_axes_and_dtypes(device, axis, dtype, monkeypatch):
    monkeypatch.setattr(placing, "RUN", 0)
    monkeypatch.setattr(placing, "pays", lambda *_: True)
    shape = (3, 5, 7)
    x, y = arrays([shape, (7, 7)], dtype)

    def function(x, y):
        sums = P.concat((P.cumsum(x, axis=1), P.neg(x), P.cumsum(P.neg(x), axis=0), product(x, y)), axis)
        return sums, P.mul(sums, sums)

    sums, squares = (to_numpy(r) for r in Jitted(function)(x, y))
    expected = np.concatenate((np.cumsum(x, 1), -x, np.cumsum(-x, 0), x @ y), axis)
    np.testing.assert_allclose(sums, expected, rtol=2e-3 if dtype == "float16" else 1e-5, atol=1e-3)
    np.testing.assert_allclose(squares, expected * expected, rtol=4e-3 if dtype == "float16" else 1e-5, atol=1e-2)


def test_gradients_read_placed_operands(monkeypatch):
    monkeypatch.setattr(placing, "RUN", 0)
    monkeypatch.setattr(placing, "pays", lambda *_: True)
    x, w, v, y = arrays(small((X, W, V, Y), 9), "float32")

    def loss(x, w, v, y):
        a = P.tanh(product(x, w))
        inner = P.concat((a, y), 1)
        outer = P.concat((inner, P.exp(product(x, v))), 1)
        return P.reduce_sum(P.add(P.reduce_sum(P.mul(outer, outer), (1,)), P.reduce_sum(a, (1,))), (0,))

    found = Jitted(value_and_grad(loss, (1, 2, 3)))(x, w, v, y)[1]
    x, w, v, y = (a.astype("float64") for a in (x, w, v, y))
    a, e = np.tanh(x @ w), np.exp(x @ v)
    expected = x.T @ ((2 * a + 1) * (1 - a * a)), x.T @ (2 * e * e), 2 * y
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(got), want, rtol=1e-4, atol=1e-4)


def u_net_block():
    i = keras.Input((32, 32, 24))
    level = keras.layers.Conv2D(32, 3, padding="same", activation="relu")(i)
    below = keras.layers.Conv2D(64, 3, padding="same", activation="relu")(keras.layers.MaxPooling2D()(level))
    x = keras.layers.Concatenate()([keras.layers.Conv2DTranspose(32, 2, strides=2)(below), level])
    model = keras.Model(i, keras.layers.Conv2D(32, 3, padding="same")(x))
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("record", [CPU, GPU])
def test_a_u_nets_skip_connection_is_not_copied(record, monkeypatch):
    traits = dataclasses.replace(runtime.read_record(record), keep="all")
    for join in ("in_one_group", "side_by_side"):  # a GPU's joined kernels
        monkeypatch.setattr(sources, join, lambda launches, *_: launches)
    train, predict = lower(u_net_block, traits)
    monkeypatch.setattr(placing, "pays", lambda *_: False)
    copied, copied_predict = lower(u_net_block, traits)
    level = 32 * 32 * 32 * 32 * 4  # bytes of each operand
    for now, before in ((train, copied), (predict, copied_predict)):
        assert sum(launch.written for launch in before.launches) - sum(launch.written for launch in now.launches) == 2 * level
        assert len(before.launches) - len(now.launches) == 1
        assert now.live_bytes <= before.live_bytes + level  # the buffer is there from its first operand on


@pytest.mark.parametrize("odd", [1, 3])
def test_the_rest_of_a_row_may_be_an_element(odd, monkeypatch):
    """Beside a product's result of 32 columns lies a copied column: lanes along the rows are stored apart."""
    monkeypatch.setattr(placing, "pays", lambda *_: True)
    monkeypatch.setattr(runtime.current_device().programs, "steps", None)
    rng = np.random.default_rng(4)
    x, w, c = (rng.normal(size=shape).astype("f4") for shape in ((64, 24), (24, 32), (64, odd)))

    def joined(x, w, c):
        return P.concat([P.dot_general(x, w, ((1,), (0,))), c], 1)

    found = to_numpy(Jitted(joined)(*map(from_numpy, (x, w, c))))
    np.testing.assert_allclose(found, np.concatenate([x @ w, c], 1), rtol=1e-4, atol=1e-5)
