"""Gradients of loops whose number of steps is computed: as in eager code, which runs Python's own loop."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_ocl
from keras_ocl import GradientTape
from keras_ocl.primitives import while_gradient

X = np.array([0.5, 1.0, -1.3], "float32")
W = np.array([1.1, 0.7, 1.9], "float32")


@pytest.fixture(params=[128, 2], ids="{} kept".format)
def kept(request, monkeypatch):
    """How many states are kept."""
    monkeypatch.setattr(while_gradient, "_SLOTS", request.param)


def flat(result):
    return [np.zeros(()) if r is None else ops.convert_to_numpy(r) for r in result]


def compare(function, *arguments, rtol=1e-5):
    """That `function` gives the same compiled as eagerly; the compiled function."""
    compiled = keras_ocl.jit(function)
    for given in arguments:
        given = [ops.convert_to_tensor(a) for a in given]
        for found, expected in zip(flat(compiled(*given)), flat(function(*given)), strict=True):
            np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=rtol, atol=1e-6)
    return compiled


def grown(x, w, n):
    """(number of steps, loss, gradients) of n steps with loop variables of several dtypes."""
    with GradientTape() as tape:
        tape.watch([x, w])

        def step(i, y, even, half):
            y = ops.where(even, ops.sin(y * w) + 0.1 * y, y + 0.05 * w * ops.cast(half, "float32"))
            return i + 1, y, ops.logical_not(even), ops.cast(ops.cast(half, "float32") * 0.9, "float16")

        i, y, _, _ = ops.while_loop(lambda i, y, even, half: i < n, step, (ops.zeros_like(n), x, n > -1, ops.cast(x, "float16")))
        loss = ops.sum(y * y)
    return i, loss, *tape.gradient(loss, [x, w])


def test_numbers_of_steps(kept):
    compare(grown, *((X, W, n) for n in (0, 1, 8, 9, 16, 33)), rtol=2e-3)  # one variable is float16


def test_one_trace_for_all_numbers():
    compiled = keras_ocl.jit(grown)
    for n in (3, 30, 300):
        compiled(X, W, np.int32(n))
    assert len(compiled.traces) == 1


def test_gradients_of_gradients(monkeypatch):
    monkeypatch.setattr(while_gradient, "_SLOTS", 2)

    def function(x, w, n):
        with GradientTape() as outer:
            outer.watch([x, w])
            with GradientTape() as inner:
                inner.watch([x, w])
                y = ops.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, ops.sin(y * w)), (ops.zeros_like(n), x))[1]
                y = ops.sum(y * y * y)
            first = inner.gradient(y, [x, w])
            total = ops.sum(first[0] * w) + ops.sum(first[1] * x)
        return *first, *outer.gradient(total, [x, w])

    compare(function, (X, W, 3), (X, W, 19))


@pytest.mark.parametrize("most", [None, 7])
def test_a_step_beyond_the_last_leaves_no_nan(most):
    """The loop ends where another step would divide by zero: d/dx of x / (n! 2) is 1 / (n! 2)."""

    def function(x, n):
        with GradientTape() as tape:
            tape.watch(x)
            step = lambda n, y: (n - 1, y * ops.log(n) / (n * ops.log(n)))  # noqa: E731
            y = ops.while_loop(lambda n, y: n > 0, step, (n, x), maximum_iterations=most)[1]
        return y, tape.gradient(y, x)

    for n, expected in ((0.5, 2.0), (2.5, 1 / (2.5 * 1.5 * 0.5))):
        y, gradient = keras_ocl.jit(function)(np.float32(3), np.float32(n))
        np.testing.assert_allclose([float(y), float(gradient)], [3 * expected, expected], rtol=1e-5)


def test_what_a_body_may_hold():
    """Variables that it assigns, gradients of its own, values computed again, a loop, and a condition of values."""

    @ops.custom_gradient
    def doubled(x):
        return x * 1.0, lambda upstream: upstream * 2.0

    v = keras.Variable([0.5, 0.25, 0.125])

    def function(x, w):
        v.assign([0.5, 0.25, 0.125])
        with GradientTape() as tape:
            tape.watch([x, w])

            def step(y):
                v.assign(v * 0.9)
                y = keras.remat(lambda y: ops.tanh(doubled(y) * w) + 0.05 * v)(y)
                return ops.while_loop(lambda z: ops.sum(z) > 1.0, lambda z: z * 0.8, y) * 0.95 + ops.stop_gradient(y) * 0.01

            y = ops.while_loop(lambda y: ops.max(ops.abs(y)) > 0.35, step, x)
            loss = ops.sum(y * y)
        return loss, *tape.gradient(loss, [x, w, v])

    compare(function, (X, W * 0.5), (X * 3, W * 0.55))


def test_counts_that_are_computed():
    def function(x, w, n):
        with GradientTape() as tape:
            tape.watch([x, w])
            y = ops.fori_loop(n - n, n, lambda i, y: ops.sin(y * w) + ops.cast(i, "float32") * 0.1, x)
            y = ops.while_loop(lambda y: True, lambda y: y * w, y, maximum_iterations=n // 2)
            loss = ops.sum(y * y)
        return tape.gradient(loss, [x, w])

    compare(function, (X, W, 11), (X, W, 2), (X, W, 0))


def test_a_constant_that_a_body_has_twice():
    """A variable's value that is also a tensor: d/dv of v (v v)^n."""
    v = keras.Variable(1.5)

    def function(n):
        with GradientTape() as tape:
            value = ops.convert_to_tensor(v)
            y = ops.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * v * value), (ops.zeros_like(n), value))[1]
        return y, tape.gradient(y, v)

    compare(function, (3,))


def test_each_example_of_a_vectorized_map_has_its_own_number():
    def one(x):
        return keras_ocl.grad(lambda x: ops.while_loop(lambda y: y < 100.0, lambda y: y * y, x))(x)

    x = np.array([2.0, 3.0, 11.0, 200.0, 1.1], "float32")  # squared 3, 3, 1, 0 and 6 times
    found = keras_ocl.jit(lambda x: ops.vectorized_map(one, x))(x)
    powers = np.array([8, 8, 2, 1, 64])
    np.testing.assert_allclose(ops.convert_to_numpy(found), powers * x.astype("float64") ** (powers - 1), rtol=1e-4)


class Shrink(layers.Layer):
    """As often times 0.9 and a weight as it takes."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return ops.while_loop(lambda a: ops.max(a) > 0.5, lambda a: (a * 0.9 * self.scale,), (x,))[0]

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def test_fit():
    x, y = np.random.default_rng(0).normal(size=(22, 4)) + 1, np.zeros((22, 3))

    def losses(**options):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3), Shrink()])
        model.compile(keras.optimizers.SGD(0.05), "mse", **options)
        return model.fit(x, y, batch_size=8, epochs=3, verbose=0, shuffle=False).history["loss"]

    found = losses()
    np.testing.assert_allclose(found, losses(run_eagerly=True), rtol=1e-5)
    assert found[-1] < found[0]


def test_stacks_are_limited(monkeypatch):
    """A state of 4 kB in 12 kB of stacks: three beginnings are kept, of 38 blocks."""
    monkeypatch.setattr(while_gradient, "_BYTES", 12_300)

    def function(x, n):
        with GradientTape() as tape:
            tape.watch(x)
            y = ops.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 1.001), (ops.zeros_like(n), x))[1]
        return tape.gradient(y, x)

    found = keras_ocl.jit(function)(np.ones(1000, "float32"), np.int32(300))
    np.testing.assert_allclose(ops.convert_to_numpy(found), np.full(1000, 1.001**300), rtol=1e-4)
