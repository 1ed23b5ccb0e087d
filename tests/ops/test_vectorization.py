"""vectorized_map: every operation once for all slices, with the values and gradients of one slice after the other."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.core.primitive import Kind, Primitive
from keras_ocl.ops.control_flow import map as one_by_one

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

RNG = np.random.default_rng(3)


def tensor(*shape, dtype="float32"):
    return ops.convert_to_tensor(RNG.normal(size=shape).astype(dtype))


def indices(n, *shape):
    return ops.convert_to_tensor(RNG.integers(0, n, shape).astype("int32"))


W = tensor(4, 3)
IMAGE, FILTER = tensor(2, 6, 6, 4), tensor(3, 3, 2, 4)
TABLE = tensor(7, 4)
CONV = {"strides": (2, 1), "padding": ((1, 0), (1, 1)), "dilation": (1, 1), "input_dilation": (1, 1), "groups": 2}
SYMMETRIC = {"lower": True, "transposed": False}


def positive(x):
    """Symmetric, positive definite matrices."""
    return ops.matmul(x, ops.transpose(x)) + 3 * ops.eye(x.shape[-1])


def attended(q, k, v, **options):
    return P.attention(q, k, v, None, None, 0.5, True, **options)


def fibonacci(x):
    """A scan whose carry, slices and constants all depend on the example."""
    c = ops.sum(x)

    def step(carry, slice_):
        new = ops.tanh(carry * c + slice_)
        return new, new * slice_

    last, ys = ops.scan(step, ops.zeros_like(x[0]), x)
    return last + ops.sum(ys)


def halvings(x):
    """How often a number can be halved: another number of steps for each example."""
    return ops.while_loop(lambda v, n: ops.any(v > 1.0), lambda v, n: (v / 2.0, n + 1), (ops.abs(x) * 9, ops.zeros((), "int32")))


CASES = {
    "elementwise": (lambda a, b: ops.where(a > b, ops.exp(a), b * 2.0), lambda: (tensor(5, 4), tensor(5, 4))),
    "with a constant": (lambda a: a * W[0, 0] + ops.arange(4, dtype="float32"), lambda: (tensor(5, 4),)),
    "reduce": (lambda a: ops.sum(a, 0) + ops.max(a), lambda: (tensor(5, 4, 3),)),
    "argmax": (lambda a: ops.argmax(a, -1), lambda: (tensor(5, 4, 3),)),
    "transpose and reshape": (lambda a: ops.reshape(ops.transpose(a), (2, 6)), lambda: (tensor(5, 4, 3),)),
    "slice and flip": (lambda a: ops.flip(a, 0)[1:, ::2], lambda: (tensor(5, 4, 3),)),
    "pad": (lambda a: ops.pad(a, ((1, 2), (0, 1))), lambda: (tensor(5, 4, 3),)),
    "pad with a value of the example": (lambda a: P.pad(a, a[0], (1,), (2,)), lambda: (tensor(5, 4),)),
    "concat": (lambda a: ops.concatenate([a, W], 0), lambda: (tensor(5, 2, 3),)),
    "matmul, one side": (lambda a: ops.matmul(a, W), lambda: (tensor(5, 2, 4),)),
    "matmul, other side": (lambda a: ops.matmul(W, a), lambda: (tensor(5, 3, 2),)),
    "matmul, both": (ops.matmul, lambda: (tensor(5, 2, 4), tensor(5, 4, 3))),
    "einsum with a batch": (lambda a: ops.einsum("bij,bjk->bik", a, tensor_once()), lambda: (tensor(5, 2, 3, 4),)),
    "einsum with a batch, other side": (lambda a: ops.einsum("bij,bjk->bik", tensor_once(), a), lambda: (tensor(5, 2, 6, 3),)),
    "gather from one": (lambda i: ops.take(TABLE, i, 0), lambda: (indices(7, 5, 3),)),
    "gather from each": (lambda a, i: ops.take(a, i, 1), lambda: (tensor(5, 2, 7), indices(7, 5, 3))),
    "gather at the same places": (lambda a: ops.take(a, ops.convert_to_tensor([2, 0, 2]), 1), lambda: (tensor(5, 2, 7),)),
    "scatter": (lambda i, u: ops.scatter(i[:, None], u, (6,)), lambda: (indices(6, 5, 3), tensor(5, 3))),
    "scatter_update": (lambda a, u: ops.scatter_update(a, [[1], [0]], u), lambda: (tensor(5, 4, 3), tensor(5, 2, 3))),
    "slice at a place": (lambda a, i: ops.slice(a, (i, 0), (2, 3)), lambda: (tensor(5, 6, 4), indices(6, 5))),
    "slice of one at a place": (lambda i: ops.slice(TABLE, (i, 1), (3, 2)), lambda: (indices(7, 5),)),
    "slice at one place": (lambda a: P.dynamic_slice(a, (P.constant(2, "int32"),), (3,)), lambda: (tensor(5, 6),)),
    "slice_update": (lambda a, u, i: ops.slice_update(a, (i,), u), lambda: (tensor(5, 6), tensor(5, 2), indices(6, 5))),
    "slice_update at one place": (lambda a, u: ops.slice_update(a, (3,), u), lambda: (tensor(5, 6), tensor(5, 2))),
    "unpack_int4": (lambda a: P.unpack_int4(a, 0, 5), lambda: (ops.cast(indices(100, 4, 3, 2), "int8"),)),
    "cumsum": (lambda a: ops.cumsum(a, 0), lambda: (tensor(5, 4, 3),)),
    "sort and top_k": (lambda a: (ops.sort(a, -1), ops.top_k(a, 2)), lambda: (tensor(5, 4, 6),)),
    "pooling": (lambda a: ops.max_pool(a, 2, 2), lambda: (tensor(5, 2, 6, 6, 3),)),
    "average pooling": (lambda a: ops.average_pool(a, 3, 1, "same"), lambda: (tensor(5, 2, 6, 6, 3),)),
    "convolution of each": (lambda a: P.conv(a, FILTER, **CONV), lambda: (tensor(5, 2, 6, 6, 4),)),
    "convolution by each": (lambda w: P.conv(IMAGE, w, **CONV), lambda: (tensor(5, 3, 3, 2, 4),)),
    "convolution of each by each": (lambda a, w: P.conv(a, w, **CONV), lambda: (tensor(5, 2, 6, 6, 4), tensor(5, 3, 3, 2, 4))),
    "attention": (attended, lambda: (tensor(5, 2, 3, 2, 4), tensor(5, 2, 6, 2, 4), tensor(5, 2, 6, 2, 4))),
    "attention with a mask": (
        lambda q, k: P.attention(q, k, k, None, P.ge(P.full((1, 1, 3, 3), 1, "float32"), P.full((1, 1, 3, 3), 0, "float32")), 0.5, False),
        lambda: (tensor(5, 2, 3, 2, 4), tensor(5, 2, 3, 2, 4)),
    ),
    "solve": (lambda a, b: ops.solve(positive(a), b), lambda: (tensor(5, 3, 3), tensor(5, 3, 2))),
    "cholesky": (lambda a: ops.cholesky(positive(a)), lambda: (tensor(5, 3, 3),)),
    "scan": (fibonacci, lambda: (tensor(5, 6, 3),)),
    "while": (halvings, lambda: (tensor(5, 2),)),
    "nothing of the example": (lambda a: W * 2.0, lambda: (tensor(5, 2),)),
    "nested": (lambda a: ops.vectorized_map(lambda row: ops.sum(row) * row, a), lambda: (tensor(5, 4, 3),)),
}
_ONCE = tensor(2, 4, 6)


def tensor_once():
    return _ONCE


def as_floats(nest):
    return [np.asarray(ops.convert_to_numpy(x), "float64") for x in keras.tree.flatten(nest)]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("name", CASES)
def test_values(name, compiled):
    function, make = CASES[name]
    operands = make()

    def mapped(over):
        def run(*xs):
            return over(lambda slices: function(*slices), xs)

        return keras_ocl.jit(run) if compiled else run

    for ours, theirs in zip(as_floats(mapped(ops.vectorized_map)(*operands)), as_floats(mapped(one_by_one)(*operands)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


WITHOUT_GRADIENTS = ("argmax", "while", "unpack_int4", "gather from one", "slice of one at a place")


@pytest.mark.parametrize("name", [n for n in CASES if n not in WITHOUT_GRADIENTS])
def test_gradients(name):
    function, make = CASES[name]
    operands = make()
    floats = [x for x in operands if x.dtype == "float32"]

    def gradients(over):
        with keras_ocl.GradientTape() as tape:
            tape.watch(floats)
            parts = [y for y in keras.tree.flatten(over(lambda slices: function(*slices), operands)) if y.dtype == "float32"]
            loss = sum(ops.sum(y * y) for y in parts)
        return tape.gradient(loss, floats, unconnected_gradients="zero")

    for ours, theirs in zip(as_floats(gradients(ops.vectorized_map)), as_floats(gradients(one_by_one)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)


def launches(function, *arguments):
    """Kernels that a call launches, once everything is compiled."""
    function(*arguments)
    statistics = runtime.current_device().statistics
    before = statistics.launches
    function(*arguments)
    return statistics.launches - before


def test_as_many_kernels_as_one_row():
    def function(row):
        total = ops.sum(ops.exp(ops.sin(row)) + row)
        return ops.max(ops.tanh(ops.sqrt(ops.abs(total)) * row))

    x = tensor(1000, 5)
    assert 8 <= launches(function, x[0]) == launches(lambda rows: ops.vectorized_map(function, rows), x)


def test_variables_and_state():
    scale, count = keras.Variable(2.0), keras.Variable(0.0)
    x = tensor(4, 3)
    with keras_ocl.GradientTape() as tape:
        loss = ops.sum(ops.vectorized_map(lambda row: row * scale, x))
    np.testing.assert_allclose(tape.gradient(loss, scale), ops.sum(x), rtol=1e-5)

    def counting(row):
        count.assign_add(1.0)
        return row * count

    np.testing.assert_allclose(ops.vectorized_map(counting, x), x * ops.convert_to_tensor([[1.0], [2.0], [3.0], [4.0]]), rtol=1e-6)
    assert float(count) == 4


def test_draws_of_one_seed_generator_differ():
    seeds = keras.random.SeedGenerator(1)
    draws = ops.convert_to_numpy(ops.vectorized_map(lambda row: keras.random.normal((3,), seed=seeds), tensor(4, 2)))
    assert len(np.unique(draws)) == 12


@pytest.mark.parametrize("draw", ["normal", "gamma", "binomial"])
def test_draws_of_keys_of_their_own(draw):
    keys = ops.convert_to_tensor(np.arange(8, dtype="uint32").reshape(4, 2))
    function = {
        "normal": lambda key: P.random_bits(key, (3, 5)),
        "gamma": lambda key: P.random_gamma(key, P.full((6,), 1.5, "float32")),
        "binomial": lambda key: P.random_binomial(key, P.full((6,), 9, "float32"), P.full((6,), 0.25, "float32")),
    }[draw]
    ours = ops.convert_to_numpy(ops.vectorized_map(function, keys))
    np.testing.assert_array_equal(ours, np.stack([ops.convert_to_numpy(function(keys[i])) for i in range(4)]))


def test_custom_gradients_are_kept():
    weight = tensor(3)

    @ops.custom_gradient
    def clipped(x, w):
        def grad(upstream):
            return ops.clip(upstream * w, -0.1, 0.1), 7.0 * ops.ones_like(w) * upstream

        return x * w, grad

    x = tensor(4, 3)

    def gradients(over):
        with keras_ocl.GradientTape() as tape:
            tape.watch([x, weight])
            loss = ops.sum(over(lambda row: clipped(row, weight) * row, x))
        return tape.gradient(loss, [x, weight])

    for ours, theirs in zip(as_floats(gradients(ops.vectorized_map)), as_floats(gradients(one_by_one)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_custom_ops_run_one_by_one():
    double = keras_ocl.custom_op("out[i] = 2 * x[i];", inputs="x")
    x = tensor(4, 3)
    np.testing.assert_allclose(ops.vectorized_map(lambda row: double(row) + 1.0, x), 2 * ops.convert_to_numpy(x) + 1, rtol=1e-6)


def test_bad_input_and_asking_for_values():
    with pytest.raises(ValueError, match=r"vectorized_map: tensors of shapes \(4, 3\), \(5,\); they must have a first axis"):
        ops.vectorized_map(lambda pair: pair[0], (tensor(4, 3), tensor(5)))
    with pytest.raises(RuntimeError, match="value of a traced tensor"):
        ops.vectorized_map(lambda row: float(ops.sum(row)), tensor(4, 3))
    assert ops.vectorized_map(lambda row: ops.sum(row), ops.zeros((0, 3))).shape == (0,)


def test_every_primitive_has_a_rule():
    """But those without operands, those that only compiled graphs hold (of collectives, those that a partitioned step has), and the parts
    of split reductions."""
    without = {p.name for p in Primitive.registry.values() if p.batch is None}
    parts = {p.partial.name for p in Primitive.registry.values() if p.partial is not None} | {"partial_squares", "partial_deviations"}
    inside = {p.name for p in Primitive.registry.values() if p.kind in (Kind.SOURCE, Kind.PROJECTION)}
    assert without == parts | inside | {"hold", "step_index", "distinct_rows", "put_rows", "all_gather", "reduce_scatter"}
