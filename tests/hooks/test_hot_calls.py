"""Layers that eager code calls again and again: compiled, with the results, state, marks and freedom to change of op by op."""

import functools
import gc
import threading
import time
import weakref

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_ocl
from keras_ocl import runtime
from keras_ocl.compiler import eager
from keras_ocl.core.primitive import current_trace
from keras_ocl.core.trace import ConditionUnknown, ValueUnknown
from keras_ocl.hooks import hot_calls

RNG = np.random.default_rng(0)


def tensor(*shape):
    return ops.convert_to_tensor(RNG.normal(size=shape).astype("float32"))


def heat(call):
    """What `call` gives op by op; after it the layers that it calls are hot."""
    first = call()
    for _ in range(hot_calls.HOT):
        call()
    return first


def executed(call):
    """(number of operations that eager code runs in a call, the result): none where a layer is compiled."""
    before = eager.executed()
    result = call()
    return eager.executed() - before, result


def functional():
    x = keras.Input((6, 6, 3))
    y = layers.MaxPooling2D()(layers.Conv2D(4, 3, padding="same", activation="relu")(x))
    return keras.Model(x, [layers.Dense(3, activation="softmax")(layers.Flatten()(y)), ops.sum(y + 1.0, axis=-1)])


MADE = {
    "dense": (lambda: layers.Dense(5, activation="gelu"), (4, 7)),
    "normalization": (layers.LayerNormalization, (4, 7)),
    "attention": (lambda: layers.MultiHeadAttention(2, 3), (2, 5, 8)),
    "lstm": (lambda: layers.LSTM(4, return_sequences=True), (2, 5, 8)),
    "bidirectional": (lambda: layers.Bidirectional(layers.GRU(4)), (2, 5, 8)),
    "any cell": (lambda: layers.RNN(layers.SimpleRNNCell(3)), (2, 5, 8)),
    "sequential": (lambda: keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(2)]), (3, 5)),
    "functional": (functional, (2, 6, 6, 3)),
}


@pytest.mark.parametrize("name", MADE)
def test_results_are_those_of_op_by_op(name):
    make, shape = MADE[name]
    layer, x = make(), tensor(*shape)
    arguments = (x, x) if name == "attention" else (x,)
    expected = heat(lambda: layer(*arguments))
    count, got = executed(lambda: layer(*arguments))
    assert count == 0
    assert type(got) is type(expected)
    for a, b in zip(keras.tree.flatten(got), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_training_updates_state_and_draws_the_numbers_of_op_by_op():
    def run(hot):
        keras.utils.set_random_seed(4)
        layer = keras.Sequential([layers.BatchNormalization(), layers.Dropout(0.5, seed=1), layers.GaussianNoise(0.1, seed=2)])
        x = ops.convert_to_tensor(np.random.default_rng(1).normal(size=(8, 4)).astype("float32"))
        results = [layer(x, training=True) for _ in range(hot_calls.HOT + 3)] if hot else []
        if not hot:
            for _ in range(hot_calls.HOT + 3):
                hot_calls._layers.clear()
                results.append(layer(x, training=True))
        return results, layer.get_weights()

    (hot, hot_weights), (plain, plain_weights) = run(True), run(False)
    for a, b in zip([*hot, *hot_weights], [*plain, *plain_weights], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(hot[-1], hot[-2])


def test_what_is_changed_takes_effect_at_once():
    inner = layers.Dense(3)
    layer, x = keras.Sequential([inner, layers.Activation("relu")]), tensor(4, 5)
    heat(lambda: layer(x))
    kernel = np.asarray(inner.kernel)
    inner.kernel.assign(-kernel)
    np.testing.assert_allclose(layer(x), np.maximum(-np.asarray(x) @ kernel, 0), rtol=1e-5, atol=1e-6)
    assert executed(lambda: layer(x))[0] == 0
    inner.activation = keras.activations.tanh
    np.testing.assert_allclose(layer(x), np.maximum(np.tanh(-np.asarray(x) @ kernel), 0), rtol=1e-5, atol=1e-6)
    assert executed(lambda: layer(x))[0] > 0  # not hot any more

    normal, statistics = layers.BatchNormalization(), tensor(6, 5)
    heat(lambda: normal(statistics, training=True))
    before = normal.get_weights()
    normal.trainable = False  # means inference
    normal(statistics, training=True)
    np.testing.assert_array_equal(normal.get_weights()[2], before[2])


def test_code_of_the_users_runs_as_it_is_written():
    seen = []

    class Mine(layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3, activation="relu")

        def call(self, x):
            seen.append("call")
            return self.dense(x)

    def activation(x):
        seen.append("activation")
        return x

    x, mine = tensor(2, 4), Mine()
    for layer in (mine, layers.Dense(2, activation=activation), layers.Lambda(activation), keras.Sequential([mine, layers.ReLU()])):
        seen.clear()
        for _ in range(hot_calls.HOT + 4):
            layer(x)
        assert len(seen) >= hot_calls.HOT + 4
    assert executed(lambda: mine.dense(x))[0] == 0


def test_threads_that_call_the_same_layer_do_not_compile_code_of_the_users():
    seen, barrier = [], threading.Barrier(4)

    def activation(x):
        seen.append(1)
        time.sleep(0.001)  # the others come in between
        return x

    layer, x = layers.Dense(2, activation=activation), tensor(2, 4)
    layer.build((None, 4))

    def work():
        barrier.wait()
        for _ in range(hot_calls.HOT):
            layer(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4 * hot_calls.HOT


def test_masks_and_logits_stay_with_their_tensors():
    embedding, ids = layers.Embedding(9, 4, mask_zero=True), ops.convert_to_tensor(np.array([[1, 2, 0], [3, 0, 0]], "int32"))
    model = keras.Sequential([embedding, layers.LSTM(3, return_sequences=True)])
    expected = heat(lambda: model(ids))
    got = model(ids)
    np.testing.assert_array_equal(got._keras_mask, np.asarray(ids) != 0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    lstm, x = layers.LSTM(3), tensor(2, 3, 4)
    heat(lambda: lstm(x))
    keras.src.backend.set_keras_mask(x, ops.convert_to_tensor(np.array([[True, True, False], [True, False, False]])))
    shorter = lstm(x)  # the mask counts, though the layer is hot without one
    np.testing.assert_allclose(shorter[0], lstm(ops.convert_to_tensor(np.asarray(x)[:1, :2]))[0], rtol=1e-5, atol=1e-6)

    last = layers.Dense(3, activation="softmax")
    last.build((None, 2))
    last.kernel.assign([[400.0, 0, 0], [0, 400, 0]])
    far = ops.convert_to_tensor(np.array([[1.0, -1.0]], "float32"))
    heat(lambda: last(far))
    loss = keras.losses.sparse_categorical_crossentropy(np.array([1]), last(far))
    np.testing.assert_allclose(loss, [800.0], rtol=1e-5)  # of the logits: probabilities would have lost it


def test_other_contexts_are_not_mistaken_for_the_one_that_was_traced():
    dense, x = layers.Dense(3), tensor(2, 4)
    heat(lambda: dense(x))
    kernel = np.asarray(dense.kernel)
    given = [ops.convert_to_tensor(2 * kernel), dense.bias.value]
    np.testing.assert_allclose(dense.stateless_call(given, [], x)[0], 2 * np.asarray(x) @ kernel, rtol=1e-5, atol=1e-6)
    with keras_ocl.GradientTape() as tape:
        tape.watch(x)
        loss = ops.sum(dense(x))
    np.testing.assert_allclose(tape.gradient(loss, x), np.tile(kernel.sum(1), (2, 1)), rtol=1e-5)
    assert dense.compute_output_spec(keras.KerasTensor((None, 4))).shape == (None, 3)
    with keras_ocl.checks(), pytest.raises(FloatingPointError):
        dense(ops.convert_to_tensor(np.full((2, 4), np.nan, "float32")))
    halves = layers.Dense(3, dtype="mixed_float16")
    assert heat(lambda: halves(x)).dtype == halves(x).dtype == "float16"


def test_lengths_that_vary_are_traced_twice_at_most(built):
    layer = layers.Conv1D(4, 3, padding="same", activation="relu")
    heat(lambda: layer(tensor(2, 9, 3)))
    for length in (9, 11):
        layer(tensor(2, length, 3))
    built.since()
    for length in (5, 14, 23):
        x = tensor(2, length, 3)
        got = layer(x)
        assert got.shape == (2, length, 4)
    assert built.since() == 0
    assert len(hot_calls._layers[layer].plain.step.traces) <= 2


def in_traces(activation, error):
    """An activation of Keras's, as far as its module tells, that raises `error` while it is traced."""

    def function(x):
        if current_trace.get() is not None:
            raise error
        return activation(x)

    function.__module__ = activation.__module__
    return function


@pytest.mark.parametrize("error, said", [(ValueUnknown("a value is needed"), 0), (ConditionUnknown("x > 0"), 0), (KeyError("lost"), 1)])
def test_a_layer_that_cannot_be_traced_stays_op_by_op(error, said, caplog):
    dense, x = layers.Dense(3, activation="tanh"), tensor(2, 4)
    expected = heat(lambda: dense(x))
    dense.activation = in_traces(dense.activation, error)
    heat(lambda: dense(x))
    with caplog.at_level("WARNING", logger="keras_ocl"):
        for _ in range(3):
            np.testing.assert_array_equal(dense(x), expected)
    assert hot_calls._layers[dense].plain.hot is False
    assert len(caplog.messages) == said and all("lost" in message and dense.name in message for message in caplog.messages)


@pytest.mark.parametrize("error", [runtime.OutOfMemory("full"), ZeroDivisionError("a bug")])
def test_what_fails_in_compiling_a_layer_is_raised(error, monkeypatch):
    dense, x = layers.Dense(3, activation="tanh", kernel_initializer="ones"), ops.abs(tensor(2, 4)) / 8  # no terms cancel
    for _ in range(hot_calls.HOT):  # the next call compiles it
        expected = dense(x)

    def compile(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(hot_calls.Jitted, "_compile", compile)
        with pytest.raises(type(error), match=str(error)):
            dense(x)
    np.testing.assert_allclose(dense(x), expected, rtol=1e-6)
    assert hot_calls._layers[dense].plain.hot


def test_layers_that_are_dropped_are_forgotten():
    layer, x = keras.Sequential([layers.Dense(3, activation="relu"), layers.Dense(2)]), tensor(2, 4)
    call, kept = functools.partial(layer, x), weakref.ref(layer)
    heat(call)
    call()
    del layer, call
    gc.collect()
    assert kept() is None


def test_it_goes_on_after_the_caches_are_emptied():
    dense, x = layers.Dense(3), tensor(2, 4)
    expected = heat(lambda: dense(x))
    dense(x)
    keras_ocl.clear_cache()
    np.testing.assert_allclose(dense(x), expected, rtol=1e-5, atol=1e-6)
