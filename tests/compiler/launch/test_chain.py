"""Chains: small kernels that follow one another are one launch, and compute what they compute one by one, to the last bit."""

import keras
import numpy as np
import pytest

import keras_ocl
from keras_ocl import runtime
from keras_ocl.compiler import to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.launch import joining
from keras_ocl.compiler.launch.loops import lower
from keras_ocl.compiler.run import sources
from keras_ocl.kernels.schedule import schedule_of
from tests.compiler.launch.loops.test_loops import loops, recurrent, recurrent_reference

RNG = np.random.default_rng(5)


def normal(*shape):
    return (RNG.normal(size=shape) * 0.5).astype("float32")


@pytest.fixture
def joins():
    if not schedule_of(runtime.current_device().traits).chained:
        pytest.skip("the device's schedule has no chains")


@pytest.fixture
def one_by_one(monkeypatch):
    """A function that runs another without chains."""

    def run(function):
        with monkeypatch.context() as patched:
            for module in (lower, sources):
                patched.setattr(module, "chained", lambda launches, traits: launches)
            return function()

    return run


def launches(compiled, *arrays):
    statistics = runtime.current_device().statistics
    before = statistics.launches
    result = compiled(*arrays)
    return statistics.launches - before, result


@pytest.mark.parametrize("reverse", [False, True])
def test_a_step_of_small_kernels_is_one_launch(joins, one_by_one, reverse):
    c, u, xs = normal(5, 7), normal(7, 7), normal(9, 5, 7)

    def steps():
        compiled = Jitted(lambda *arrays: recurrent(*arrays, reverse=reverse))
        compiled(c, u, xs)
        return compiled, *launches(compiled, c, u, xs)

    compiled, number, joined = steps()
    (loop,) = loops(compiled)
    assert len(loop.launches) == 1 and "part_" in loop.launches[0].body
    plain, more, separate = one_by_one(steps)
    assert more - number == 9 * (len(loops(plain)[0].launches) - 1) > 0
    for a, b, expected in zip(joined, separate, recurrent_reference(c, u, xs, reverse), strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
        np.testing.assert_allclose(to_numpy(a), expected, rtol=1e-5, atol=1e-6)


def small_model():
    keras.utils.set_random_seed(2)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((4,)), dense(5, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3), dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def test_a_training_step_of_a_small_model_is_one_launch(joins, one_by_one):
    x, y = normal(10, 4), normal(10, 1)

    def steps():
        model = small_model()
        logs = [model.train_on_batch(x[:n], y[:n]) for n in (10, 10, 3)]  # the last with the kernels of the first
        number, _ = launches(lambda: model.train_on_batch(x, y))
        return number, [*map(np.asarray, logs), *model.get_weights()]

    (number, joined), (more, separate) = steps(), one_by_one(steps)
    assert number == 1 < more
    for a, b in zip(joined, separate, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_of_many_times_the_size_is_for_all_units(joins, one_by_one):
    def composite(x):
        return keras.ops.softmax(keras.ops.matmul(x, w)), keras.ops.mean(x, axis=0)

    w = keras.ops.convert_to_tensor(normal(16, 16))
    compiled = keras_ocl.jit(composite, dynamic=(0,))
    for batch, expected in [(8, 1), (64, 1), (5000, 2), (20_000, 2), (8, 1)]:
        x = normal(batch, 16)
        number, results = launches(compiled, x)
        assert (number > 1) == (expected > 1), batch
        for a, b in zip(results, one_by_one(lambda x=x: composite(keras.ops.convert_to_tensor(x))), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_kernel_of_the_users_own_stays_by_itself(joins):
    """Its text may ask for its place among all work-items in any way."""
    place = keras_ocl.custom_op("out[i] = x[i] + get_group_id(0) + get_global_size(0) + get_global_id( 0 );", "x", group=lambda x: 1)
    x = normal(5)
    result = keras_ocl.jit(lambda x: keras.ops.flip(place(keras.ops.cumsum(x * 2))))(x)
    np.testing.assert_allclose(result, (np.cumsum(x * 2) + 2 * np.arange(5) + 5)[::-1], rtol=1e-5, atol=1e-6)


def test_large_kernels_stay_by_themselves(joins):
    if runtime.current_device().traits.compute_units < 2:
        pytest.skip("one compute unit does all the work anyway")
    c, u, xs = normal(512, 512), normal(512, 512), normal(2, 512, 512)
    compiled = Jitted(recurrent)
    compiled(c, u, xs)
    assert all("part_" not in launch.body for launch in loops(compiled)[0].launches)


def test_other_batches_and_lengths_run_the_same_chain(joins, built):
    compiled, u = Jitted(recurrent, dynamic=True), normal(7, 7)
    for k, (batch, length) in enumerate([(5, 9), (3, 4), (17, 30), (0, 4)]):
        c, xs = normal(batch, 7), normal(length, batch, 7)
        for a, expected in zip(compiled(c, u, xs), recurrent_reference(c, u, xs), strict=True):
            np.testing.assert_allclose(to_numpy(a), expected, rtol=1e-5, atol=1e-6)
        assert k != 2 or built.since() == 0
        built.since()


@pytest.mark.parametrize("limit", [1, 4, 37])
def test_a_while_loop_ends_where_it_did(joins, one_by_one, limit):
    def steps():
        @keras_ocl.jit
        def power(x, limit):
            def step(k, x, y):
                x = keras.ops.matmul(x, x) / 2
                return k + 1, x, keras.ops.softmax(y + keras.ops.sum(x, 0))

            return keras.ops.while_loop(lambda k, *_: k < limit, step, (0, x, x[0]))

        return [np.asarray(v) for v in power(X, np.int32(limit))]

    joined = steps()
    assert joined[0] == limit
    for a, b in zip(joined, one_by_one(steps), strict=True):
        np.testing.assert_array_equal(a, b)


X = normal(6, 6)


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "cells"])
def test_training_is_the_same_to_the_last_bit(one_by_one, layer):
    layers = keras.layers
    make = {
        "LSTM": lambda: layers.Bidirectional(layers.LSTM(5)),
        "GRU": lambda: layers.GRU(5, recurrent_dropout=0.2, dropout=0.2),
        "cells": lambda: layers.RNN([layers.LSTMCell(5), layers.GRUCell(3)]),
    }[layer]
    x, y = normal(8, 6, 4), normal(8, 1)

    def weights():
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((None, 4)), layers.Masking(), make(), layers.Dense(1)])
        model.compile("adam", "mse")
        model.fit(x, y, batch_size=3, epochs=2, verbose=0)
        return model.get_weights()

    for a, b in zip(weights(), one_by_one(weights), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_profile_divides_a_chain_among_its_layers(joins):
    model = keras.Sequential([keras.Input((6, 4)), keras.layers.RNN([keras.layers.LSTMCell(5), keras.layers.GRUCell(3)])])
    x = normal(2, 6, 4)
    model.predict_on_batch(x)
    with keras_ocl.profile() as profile:
        model.predict_on_batch(x)
    assert any(" to " in label for label, _ in profile.launches)
    rows = profile.table(by="layer")
    assert {"lstm_cell", "gru_cell"} <= {row.name.split("/")[-1].rstrip("_0123456789") for row in rows if row.device_ms}
    assert sum(row.device_ms for row in rows) == pytest.approx(sum(row.device_ms for row in profile.table(by="kernel")))


def test_a_kernel_with_many_arguments_begins_another_chain(joins, monkeypatch):
    monkeypatch.setattr(joining, "ARGUMENTS", 5)
    c, u, xs = normal(5, 7), normal(7, 7), normal(9, 5, 7)
    compiled = Jitted(recurrent)
    results = compiled(c, u, xs)
    assert len(loops(compiled)[0].launches) > 1 and all(len(launch.args) <= 5 for launch in loops(compiled)[0].launches)
    for a, expected in zip(results, recurrent_reference(c, u, xs), strict=True):
        np.testing.assert_allclose(to_numpy(a), expected, rtol=1e-5, atol=1e-6)
