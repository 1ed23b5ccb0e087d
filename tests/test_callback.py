"""callback: Python functions that see values in compiled code."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl


def test_it_sees_the_values_of_each_run():
    seen = []

    @keras_ocl.jit
    def doubled(x, y):
        return keras_ocl.callback(lambda *arrays: seen.append(arrays), x * 2, y) + 1

    for k in range(3):
        np.testing.assert_array_equal(doubled(np.full(2, k, "float32"), np.arange(k + 1)), [2 * k + 1] * 2)
    assert [[a.tolist() for a in arrays] for arrays in seen] == [[[0, 0], [0]], [[2, 2], [0, 1]], [[4, 4], [0, 1, 2]]]
    assert all(type(a) is np.ndarray for arrays in seen for a in arrays)


def test_it_may_keep_and_change_what_it_sees():
    seen = []

    @keras_ocl.jit
    def doubled(x):
        def change(x, y):
            seen.append(y)
            x += 1

        return keras_ocl.callback(change, x * 2, x * 3) + 1

    for k in range(3):
        np.testing.assert_array_equal(doubled(np.full(2, k, "float32")), [2 * k + 1] * 2)
    assert [y.tolist() for y in seen] == [[0, 0], [3, 3], [6, 6]]


@pytest.mark.parametrize("limit", [3, 9])
def test_it_sees_each_step_of_a_while_loop_in_order(limit):
    seen = []

    @keras_ocl.jit
    def count(limit):
        def step(k):
            return keras_ocl.callback(lambda k: seen.append(int(k)), k + 1)

        return ops.while_loop(lambda k: k < limit, step, ops.convert_to_tensor(0))

    assert int(count(np.int32(limit))) == limit
    assert seen == list(range(1, limit + 1))


def test_it_sees_each_step_of_a_scan():
    seen = []

    @keras_ocl.jit
    def sums(xs):
        return ops.scan(lambda total, x: (keras_ocl.callback(lambda t: seen.append(float(t)), total + x), x), 0.0, xs)[0]

    assert float(sums(np.arange(6, dtype="float32"))) == 15
    assert seen == [0, 1, 3, 6, 10, 15]


def test_eager_code_calls_it_at_once():
    seen = []
    x = keras_ocl.callback(lambda x: seen.append(x.tolist()), [1, 2])
    assert seen == [[1, 2]]
    np.testing.assert_array_equal(x, [1, 2])


@pytest.mark.parametrize("wrap", [lambda f: f, keras_ocl.jit])
def test_gradients_pass_through_the_first_tensor(wrap):
    gradient = wrap(keras_ocl.grad(lambda x, y: ops.sum(keras_ocl.callback(lambda *_: None, x * x, y) * 3)))
    np.testing.assert_array_equal(gradient(np.array([1.0, 2.0], "float32"), np.ones(1, "float32")), [6, 12])


class Watched(keras.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return keras_ocl.callback(self.function, x)


def test_a_layer_calls_it_in_fit_and_an_error_leaves_the_weights():
    seen = []

    def look(x):
        seen.append(x.shape)
        if len(seen) == 4:
            raise FloatingPointError("seen enough")

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), Watched(look), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    model.fit(x, y, batch_size=4, verbose=0)
    assert seen == [(4, 2)] * 2
    model.train_on_batch(x[:4], y[:4])
    before = model.get_weights()
    with pytest.raises(FloatingPointError, match="seen enough"):
        model.train_on_batch(x[:4], y[:4])
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    model.train_on_batch(x[:4], y[:4])
    assert any((old != new).any() for old, new in zip(before, model.get_weights(), strict=True))


def test_it_may_compute_on_the_device():
    @keras_ocl.jit
    def f(x):
        return keras_ocl.callback(lambda x: seen.append(float(ops.sum(ops.exp(x)))), x + 1) * 2

    seen = []
    np.testing.assert_array_equal(f(np.zeros(2, "float32")), [2, 2])
    assert seen == [pytest.approx(2 * np.e)]


def test_what_it_does_not_take():
    with pytest.raises(TypeError, match=r"keras_ocl\.callback takes a function first, which can be hashed, not int\."):
        keras_ocl.callback(3, 4)
    with pytest.raises(TypeError, match=r"cannot take a KerasTensor: call it in the `call` method of a layer"):
        keras_ocl.callback(print, keras.Input((3,)))
