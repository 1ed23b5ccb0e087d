"""Control flow, scattering, gradients of their own and shape inference."""

import keras
import numpy as np
import pytest
from keras import ops
from keras.src import backend

import keras_ocl
from keras_ocl.core.primitive import active_tapes


def value(x):
    return np.asarray(ops.convert_to_numpy(x))


def test_scatter():
    np.testing.assert_allclose(value(ops.scatter([[0], [2], [0]], [1.0, 2.0, 3.0], (4,))), [4, 0, 2, 0])
    np.testing.assert_allclose(value(ops.scatter_update(np.zeros((2, 2)), [[0, 1], [1, -1]], [5.0, 6.0])), [[0, 5], [0, 6]])
    np.testing.assert_allclose(value(ops.scatter_update(np.ones(3), [[1], [1]], [5.0, 6.0], reduction="mul")), [1, 30, 1])
    with pytest.raises(ValueError, match="Unsupported reduction"):
        backend.core.scatter_update(np.ones(3), [[1]], [5.0], reduction="xor")


def test_slices():
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(value(ops.slice(x, [1, 1], [2, 2])), x[1:, 1:3])
    np.testing.assert_allclose(value(ops.slice(x, ops.convert_to_tensor([1, 1]), [2, -1])), x[1:, 1:])
    expected = x.copy()
    expected[1:, 2:] = 9
    np.testing.assert_allclose(value(ops.slice_update(x, [1, 2], np.full((2, 2), 9.0))), expected)


def test_loops():
    assert int(ops.while_loop(lambda i: i < 7, lambda i: i + 2, 0)) == 8
    assert int(ops.while_loop(lambda i: i < 7, lambda i: i + 2, 0, maximum_iterations=2)) == 4
    assert int(ops.fori_loop(0, 4, lambda i, v: v + i, 10)) == 16
    carry, ys = ops.scan(lambda c, x: (c + x, c * x), ops.convert_to_tensor(0.0), ops.arange(4, dtype="float32"))
    assert float(carry) == 6
    np.testing.assert_allclose(value(ys), [0, 0, 2, 9])
    np.testing.assert_allclose(value(ops.map(lambda x: x * 2, ops.arange(3))), [0, 2, 4])
    np.testing.assert_allclose(value(ops.vectorized_map(lambda x: x[0] + x[1], (ops.arange(3), ops.arange(3)))), [0, 2, 4])
    for n in range(1, 7):
        for reverse in (False, True):
            x = np.arange(1.0, n + 1)
            expected = np.cumsum(x[::-1])[::-1] if reverse else np.cumsum(x)
            np.testing.assert_allclose(value(ops.associative_scan(ops.add, x, reverse=reverse)), expected)


def test_conditions():
    assert float(ops.cond(ops.convert_to_tensor(True), lambda: 1.0, lambda: 2.0)) == 1
    assert int(ops.switch(ops.convert_to_tensor(5), [lambda: 1, lambda: 2])) == 2


def test_condition_inside_jit_assigns_variables():
    a, b = keras.Variable(1.0), keras.Variable(2.0)

    @keras_ocl.jit
    def step(x):
        def positive():
            a.assign(a + x)
            return a * 1.0

        def negative():
            b.assign(b * x)
            return b * 1.0

        return ops.cond(x > 0, positive, negative)

    assert float(step(ops.convert_to_tensor(3.0))) == 4
    assert (float(a.value), float(b.value)) == (4, 2)
    assert float(step(ops.convert_to_tensor(-1.0))) == -2
    assert (float(a.value), float(b.value)) == (4, -2)


def test_traced_values_cannot_be_read():
    @keras_ocl.jit
    def branching(x):
        return x if x > 0 else -x

    with pytest.raises(TypeError, match="run_eagerly"):
        branching(ops.ones(()))

    @keras_ocl.jit
    def shaped_by_values(x):
        return ops.nonzero(x)

    with pytest.raises(RuntimeError, match="nonzero.*run_eagerly"):
        shaped_by_values(ops.ones(3))


def test_custom_gradient():
    @ops.custom_gradient
    def log1pexp(x):
        e = ops.exp(x)

        def grad(*args, upstream=None):
            (upstream,) = args if upstream is None else (upstream,)
            return ops.multiply(upstream, 1.0 - 1.0 / ops.add(1, e))

        return ops.log(1 + e), grad

    assert float(keras_ocl.grad(log1pexp)(ops.convert_to_tensor(100.0))) == 1.0
    assert float(keras_ocl.jit(keras_ocl.grad(log1pexp))(ops.convert_to_tensor(100.0))) == 1.0

    @ops.custom_gradient
    def reversed_(x):
        return x, lambda upstream: -upstream

    assert float(keras_ocl.grad(lambda x: reversed_(x) * 3)(ops.convert_to_tensor(2.0))) == -3.0


def test_remat_has_the_same_gradient():
    w = keras.Variable([[1.0, 2.0], [3.0, 4.0]])

    def block(x):
        return ops.sum(ops.tanh(ops.matmul(x, w)) ** 2)

    x = ops.convert_to_tensor([[0.1, -0.2]])
    for function in (block, ops.remat(block) if hasattr(ops, "remat") else keras.remat(block)):
        with keras_ocl.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        gradients = tape.gradient(y, [x, w])
        if function is block:
            expected = [value(g) for g in gradients]
    for g, e in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(value(g), e, rtol=1e-6)


def test_loops_whose_end_is_computed():
    def doubled(x, limit, most=None):
        return ops.while_loop(lambda n, x: ops.max(x) < limit, lambda n, x: (n + 1, x * 2.0), (0, x), maximum_iterations=most)

    x = np.array([1.0, 3.0], "float32")
    for most, limit, steps in ((None, 50.0, 5), (None, 2.0, 0), (9, 50.0, 5), (3, 50.0, 3), (400, 2.0, 0), (10**12, 50.0, 5)):
        n, y = keras_ocl.jit(lambda x, limit, most=most: doubled(x, limit, most))(x, np.float32(limit))
        assert value(n) == steps
        np.testing.assert_allclose(value(y), x * 2**steps)
        n, y = keras_ocl.jit(doubled)(x, np.float32(limit), np.int32(400 if most is None else min(most, 400)))  # the number is a tensor
        assert value(n) == steps
        np.testing.assert_allclose(value(y), x * 2**steps)
    assert value(doubled(x, 50.0, ops.convert_to_tensor(3))[0]) == 3
    for cut in (0, 2, 7):  # a condition that Python knows, and a number that it does not
        counted = keras_ocl.jit(lambda n: ops.while_loop(lambda n: True, lambda n: n + 1, ops.zeros((), "int32"), maximum_iterations=n))
        assert value(counted(np.int32(cut))) == cut
    most = keras.Variable(3, dtype="int32")
    assert value(keras_ocl.jit(lambda x: doubled(x, 50.0, most)[0])(x)) == 3
    gradient = keras_ocl.jit(lambda x, n: keras_ocl.grad(lambda x: ops.sum(doubled(x, 50.0, n)[1]))(x))(x, np.int32(3))
    np.testing.assert_allclose(value(gradient), [8, 8])
    gradient = keras_ocl.jit(keras_ocl.grad(lambda x: ops.sum(doubled(x, 50.0, 9)[1])))(ops.convert_to_tensor(x))
    np.testing.assert_allclose(value(gradient), [32, 32])
    power = keras_ocl.jit(lambda x, n: ops.fori_loop(0, n, lambda i, v: v * x + ops.cast(i, "float32"), ops.ones_like(x)))
    for n in (0, 1, 6):
        expected = np.ones(2)
        for i in range(n):
            expected = expected * x + i
        np.testing.assert_allclose(value(power(x, np.int32(n))), expected, rtol=1e-6)


def test_a_limit_of_steps_may_be_an_extent_that_varies():
    steps = keras_ocl.jit(
        lambda x, limit: ops.while_loop(lambda n: n < limit, lambda n: n + 1, ops.zeros((), "int32"), maximum_iterations=x.shape[0])
    )
    traces = []
    for length in (3, 5, 9, 12):
        assert value(steps(np.zeros(length, "float32"), np.int32(10))) == min(length, 10)
        traces.append(len(steps.traces))
    assert traces[1:] == [2, 2, 2]


def test_compiled_loops_carry_what_they_assign():
    total, seeds = keras.Variable(np.zeros(2, "float32")), keras.random.SeedGenerator(1)

    def step(_, x):
        total.assign_add(x)
        return (), (total.value, keras.random.uniform((2,), seed=seeds))

    def function(xs):
        return ops.scan(step, (), xs)[1]

    xs = np.arange(14, dtype="float32").reshape(7, 2)
    sums, noise = keras_ocl.jit(function)(xs)
    np.testing.assert_allclose(value(sums), np.cumsum(xs, 0))
    np.testing.assert_allclose(value(total), xs.sum(0))
    assert len(np.unique(value(noise))) == 14

    def stateless(xs):
        with keras.StatelessScope([(total, ops.ones(2))]) as scope:
            sums, _ = function(xs)
        return sums, scope.get_current_value(total)

    sums, last = keras_ocl.jit(stateless)(xs)
    np.testing.assert_allclose(value(sums), 1 + np.cumsum(xs, 0))
    np.testing.assert_allclose(value(last), 1 + xs.sum(0))
    np.testing.assert_allclose(value(total), xs.sum(0))


def test_remat_in_a_compiled_function_keeps_nothing():
    w = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(64, 64)).astype("float32") * 0.1)

    def deep(x, wrap):
        for _ in range(4):
            x = wrap(lambda v: ops.tanh(ops.matmul(ops.tanh(ops.matmul(ops.tanh(ops.matmul(v, w)), w)), w)))(x)
        return ops.sum(x)

    sizes, results = [], []
    for wrap in (lambda f: f, backend.core.remat):
        step = keras_ocl.jit(keras_ocl.grad(lambda x, wrap=wrap: deep(x, wrap)))
        results.append(value(step(ops.ones((256, 64)))))
        (compiled,) = step.traces
        sizes.append(compiled.executable.arena_bytes)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)
    assert sizes[1] < 0.7 * sizes[0], sizes


def test_gradients_of_movement_and_indexing():
    x = ops.convert_to_tensor(np.arange(12.0, dtype="float32").reshape(3, 4))

    def function(x):
        return ops.sum(x[::-1, 1] * ops.convert_to_tensor([1.0, 2.0, 3.0])) + ops.sum(ops.take(x, [0, 0], 0)) + ops.max(x)

    expected = np.zeros((3, 4))
    expected[:, 1] = [3, 2, 1]
    expected[0] += 2
    expected[2, 3] += 1
    np.testing.assert_allclose(value(keras_ocl.grad(function)(x)), expected)


def test_jvp():
    primal, tangent = backend.linalg.jvp(lambda x: ops.sin(x) * x, [ops.convert_to_tensor(0.5)], [ops.convert_to_tensor(2.0)])
    assert float(primal) == pytest.approx(np.sin(0.5) * 0.5, rel=1e-6)
    assert float(tangent) == pytest.approx(2 * (np.cos(0.5) * 0.5 + np.sin(0.5)), rel=1e-6)


def test_shape_inference_leaves_no_tape_or_trace():
    spec = backend.compute_output_spec(lambda x: ops.scan(lambda c, v: (c + v, v), ops.zeros(3), x)[1], keras.KerasTensor((None, 3)))
    assert spec.shape == (None, 3)
    assert active_tapes.get() == ()


@pytest.mark.parametrize("run", [lambda f: f, keras_ocl.jit], ids=["eager", "compiled"])
def test_a_scan_over_nothing(run):
    """Stacked results have the shapes that they have otherwise."""
    seen = keras.Variable(0.0)

    def step(carry, x):
        seen.assign_add(1.0)
        return carry + ops.sum(x), {"a": x * carry, "b": ops.cast(x[:2], "int32"), "c": None}

    last, ys = run(lambda xs: ops.scan(step, ops.ones(()), xs))(np.zeros((0, 3), "float32"))
    assert float(last) == 1 and float(seen) == 0 and ys["c"] is None
    assert {name: (ys[name].shape, keras.backend.standardize_dtype(ys[name].dtype)) for name in "ab"} == {
        "a": ((0, 3), "float32"),
        "b": ((0, 2), "int32"),
    }
    assert run(lambda xs: ops.map(ops.sum, xs))(np.zeros((0, 3), "float32")).shape == (0,)


def test_device_scope_needs_a_name():
    with pytest.raises(ValueError, match="Received: device_name='123'"):
        backend.device_scope(123)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_floats_saturate_as_integers(dtype):
    """As XLA converts them; host arrays give the same as tensors."""
    info = np.iinfo(dtype)
    x = np.array([-1.5, 2.5, 3e30, -3e30, np.inf, -np.inf, np.nan, 300.0, -300.0], "float32")
    clipped = [0 if np.isnan(v) else int(min(max(v, info.min), info.max)) for v in x.astype(object)]
    for source in (x, ops.convert_to_tensor(x)):
        np.testing.assert_array_equal(value(ops.cast(source, dtype)), np.array(clipped, dtype))
    if dtype == "uint8":
        step = keras_ocl.jit(lambda x: x + ops.cast(ops.cast(ops.full((), 300.0), "uint8"), "float32"))
        assert float(step(ops.zeros(()))) == 255
