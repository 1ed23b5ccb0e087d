"""GradientTape: what it records, when, and inside and around compiled functions."""

from collections import namedtuple

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl import GradientTape
from tests.fixtures import seeded  # noqa: F401


def number(x):
    return float(ops.convert_to_numpy(x))


def variable(value, **options):
    return keras.Variable(np.asarray(value, "float32"), **options)


def test_gradients_of_variables_in_any_nest():
    a, b = variable(2.0), variable(3.0)
    with GradientTape() as tape:
        y = a * a * b
    gradients = tape.gradient(y, {"a": a, "rest": [b, (a,)]})
    assert number(gradients["a"]) == 12.0
    assert number(gradients["rest"][0]) == 4.0
    assert number(gradients["rest"][1][0]) == 12.0


def test_named_tuples_keep_their_kind():
    pair = namedtuple("pair", "a b")(ops.array(2.0), {"b": ops.array(3.0)})
    with GradientTape() as tape:
        tape.watch(pair)
        y = pair.a * pair.a * pair.b["b"]
    gradients = tape.gradient(y, pair)
    assert number(gradients.a) == 12.0 and number(gradients.b["b"]) == 4.0


def test_a_tape_is_used_once_unless_persistent():
    a = variable(2.0)
    with GradientTape() as tape:
        y = a * a
    tape.gradient(y, a)
    with pytest.raises(RuntimeError, match="persistent=True"):
        tape.gradient(y, a)


def test_persistent_tape_differentiates_several_targets():
    a = variable([1.0, 2.0])
    with GradientTape(persistent=True) as tape:
        square = a * a
        cube = square * a
    np.testing.assert_allclose(tape.gradient(square, a), [2.0, 4.0])
    np.testing.assert_allclose(tape.gradient(cube, a), [3.0, 12.0])
    np.testing.assert_allclose(tape.gradient(cube, square), [1.0, 2.0])
    np.testing.assert_allclose(tape.gradient([square, cube], a), [5.0, 16.0])


def test_a_recording_tape_cannot_be_entered_again():
    with GradientTape() as tape, pytest.raises(ValueError, match="already recording"):
        tape.__enter__()


def test_output_gradients():
    a = variable([1.0, 2.0, 3.0])
    with GradientTape() as tape:
        y = a * a
    np.testing.assert_allclose(tape.gradient(y, a, output_gradients=ops.array([1.0, 0.0, -1.0])), [2.0, 0.0, -6.0])


@pytest.mark.parametrize(
    "error, message, changed",
    [
        (TypeError, "ndarray is neither a Tensor nor a Variable", {"target": np.ones(3)}),
        (TypeError, "float is neither", {"sources": [1.0]}),
        (TypeError, "ndarray is neither", {"output_gradients": np.ones(3)}),
        (ValueError, r"shape \(2,\), but its target \(3,\)", {"output_gradients": ops.ones(2)}),
        (ValueError, "1 targets, but 2 output_gradients", {"output_gradients": [ops.ones(3)] * 2}),
        (ValueError, '"none" or "zero"', {"unconnected_gradients": "zeros"}),
    ],
)
def test_bad_arguments(error, message, changed):
    a = variable([1.0, 2.0, 3.0])
    with GradientTape(persistent=True) as tape:
        y = a * a
    with pytest.raises(error, match=message):
        tape.gradient(**{"target": y, "sources": a, **changed})
    np.testing.assert_allclose(tape.gradient(y, a), [2.0, 4.0, 6.0])


def test_arrays_cannot_be_watched():
    with GradientTape() as tape, pytest.raises(TypeError, match="watch: a ndarray"):
        tape.watch(np.ones(3))


def test_unconnected_gradients():
    a, b = variable([1.0, 2.0]), variable([[1.0, 2.0]])
    with GradientTape(persistent=True) as tape:
        y = ops.sum(a * a)
    assert tape.gradient(y, b) is None
    assert tape.gradient(y, [a, b])[1] is None
    np.testing.assert_array_equal(tape.gradient(y, b, unconnected_gradients="zero"), np.zeros((1, 2)))


def test_non_trainable_variables_and_tensors_are_recorded_when_watched():
    constant, frozen = ops.array([1.0, 2.0]), variable([3.0, 4.0], trainable=False)
    with GradientTape() as tape:
        y = ops.sum(constant * frozen)
    assert tape.gradient(y, [constant, frozen]) == [None, None]
    with GradientTape() as tape:
        tape.watch([constant, frozen])
        y = ops.sum(constant * frozen)
    gradients = tape.gradient(y, [constant, frozen])
    np.testing.assert_allclose(gradients[0], [3.0, 4.0])
    np.testing.assert_allclose(gradients[1], [1.0, 2.0])


def test_nothing_but_what_is_watched():
    a, b = variable(2.0), variable(3.0)
    with GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(a)
        y = a * b
    gradients = tape.gradient(y, [a, b])
    assert number(gradients[0]) == 3.0
    assert gradients[1] is None


def test_integers_have_no_gradient():
    a = variable([1.0, 2.0])
    with GradientTape() as tape:
        y = ops.argmax(a)
    with pytest.raises(ValueError, match="int32"):
        tape.gradient(y, a)


def test_stop_gradient():
    a = variable(3.0)
    with GradientTape() as tape:
        y = a * ops.stop_gradient(a * a)
    assert number(tape.gradient(y, a)) == 9.0


def test_an_assignment_does_not_change_what_was_recorded():
    a = variable(2.0)
    with GradientTape() as tape:
        y = a * a
        a.assign(100.0)
    assert number(tape.gradient(y, a)) == 4.0


def test_second_order():
    a = variable([1.0, 2.0])
    with GradientTape() as outer:
        with GradientTape() as inner:
            y = ops.sum(ops.power(a, 4.0))
        first = inner.gradient(y, a)
        total = ops.sum(first)
    np.testing.assert_allclose(first, [4.0, 32.0], rtol=1e-6)
    np.testing.assert_allclose(outer.gradient(total, a), [12.0, 48.0], rtol=1e-6)


def test_third_order_through_a_layer():
    layer = keras.layers.Dense(1, activation="tanh", kernel_initializer=keras.initializers.Constant(0.5))
    x = ops.array([[0.3]])
    layer.build((1, 1))
    with GradientTape() as third:
        third.watch(x)
        with GradientTape() as second:
            second.watch(x)
            with GradientTape() as first:
                first.watch(x)
                y = layer(x)
            d1 = first.gradient(y, x)
        d2 = second.gradient(d1, x)
    d3 = third.gradient(d2, x)
    t, w = np.tanh(0.15), 0.5
    s = 1 - t * t
    np.testing.assert_allclose(ops.convert_to_numpy(d1), [[w * s]], rtol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(d2), [[-2 * w**2 * t * s]], rtol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(d3), [[w**3 * s * (6 * t * t - 2)]], rtol=1e-5)


def test_gradient_penalty_inside_the_tape():
    """The pattern of WGAN-GP: a gradient is part of the loss."""
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    x = ops.array(np.random.default_rng(0).normal(size=(5, 3)).astype("float32"))

    def loss_and_gradients():
        with GradientTape() as tape:
            with GradientTape() as inner:
                inner.watch(x)
                y = model(x)
            slope = inner.gradient(y, x)
            penalty = ops.mean(ops.square(ops.norm(slope, axis=1) - 1.0))
        return penalty, tape.gradient(penalty, model.trainable_variables)

    penalty, gradients = loss_and_gradients()
    step = 1e-3
    for v, g in zip(model.trainable_variables, gradients, strict=True):
        if g is None:  # the last bias does not change any slope
            assert v is model.layers[-1].bias
            continue
        value = ops.convert_to_numpy(v).copy()
        direction = np.random.default_rng(1).normal(size=value.shape).astype("float32")
        v.assign(value + step * direction)
        up = number(loss_and_gradients()[0])
        v.assign(value - step * direction)
        down = number(loss_and_gradients()[0])
        v.assign(value)
        assert abs((up - down) / (2 * step) - np.sum(ops.convert_to_numpy(g) * direction)) < 2e-3


def test_jit_around_a_tape():
    a = variable([1.0, 2.0])

    @keras_ocl.jit
    def function(x):
        with GradientTape() as tape:
            y = ops.sum(a * a * x)
        return y, tape.gradient(y, a)

    for scale in (1.0, 3.0):
        y, g = function(np.full(2, scale, "float32"))
        np.testing.assert_allclose(y, 5.0 * scale)
        np.testing.assert_allclose(g, [2.0 * scale, 4.0 * scale])
    a.assign([2.0, 3.0])
    np.testing.assert_allclose(function(np.ones(2, "float32"))[1], [4.0, 6.0])


def test_jit_inside_a_tape():
    a = variable([1.0, 2.0])
    function = keras_ocl.jit(lambda x: ops.sum(a * a * x))
    x = ops.ones(2)
    for _ in range(2):  # also once it has been compiled
        with GradientTape() as tape:
            y = function(x)
        np.testing.assert_allclose(tape.gradient(y, a), [2.0, 4.0])
        np.testing.assert_allclose(function(x), 5.0)


def test_second_order_in_jit():
    a = variable(2.0)

    @keras_ocl.jit
    def function():
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = a * a * a
            first = inner.gradient(y, a)
        return first, outer.gradient(first, a)

    first, second = function()
    assert (number(first), number(second)) == (12.0, 12.0)


def test_gradient_through_assignment_in_jit():
    """A variable that is assigned while it is traced: later reads see the new value, gradients are with respect to each read."""
    a = variable(3.0)

    @keras_ocl.jit
    def function():
        with GradientTape() as tape:
            y = a * a
        g = tape.gradient(y, a)
        a.assign_sub(0.5 * g)
        return g, a.value * 1.0

    assert [number(v) for v in function()] == [6.0, 0.0]
    assert number(a) == 0.0


def test_float16_variables_under_autocast():
    layer = keras.layers.Dense(2, dtype="mixed_float16")
    layer.build((None, 3))
    x = ops.ones((4, 3), "float16")
    with GradientTape() as tape:
        y = ops.sum(layer(x))
    gradients = tape.gradient(y, layer.trainable_variables)
    assert [g.shape for g in gradients] == [(3, 2), (2,)]
    np.testing.assert_allclose(ops.convert_to_numpy(gradients[0]).astype("float32"), np.full((3, 2), 4.0))


def test_embedding_and_integer_inputs():
    layer = keras.layers.Embedding(5, 2)
    layer.build()
    with GradientTape() as tape:
        y = ops.sum(layer(np.array([[1, 1, 3]])))
    np.testing.assert_array_equal(tape.gradient(y, layer.trainable_variables)[0], [[0, 0], [2, 2], [0, 0], [1, 1], [0, 0]])


def test_custom_gradient_on_a_tape():
    @ops.custom_gradient
    def clipped(x):
        def grad(*args, upstream=None):
            return ops.clip(args[0] if upstream is None else upstream, -1.0, 1.0)

        return x * 10.0, grad

    x = ops.array([5.0])
    with GradientTape() as tape:
        tape.watch(x)
        y = clipped(x) * 3.0
    np.testing.assert_allclose(tape.gradient(y, x), [1.0])


def test_tapes_of_threads_are_their_own():
    import threading

    a = variable(2.0)
    with GradientTape() as tape:
        thread = threading.Thread(target=lambda: a * a)
        thread.start()
        thread.join()
        y = a * 3.0
    assert number(tape.gradient(y, a)) == 3.0
    assert len(tape._equations) == 0
