"""Recurrent layers over sequences without a step: outputs of none, of the last one zeros, and the states as they were."""

import itertools

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_ocl

BATCH, UNITS = 2, 4


class Counter(layers.Layer):
    """A cell of the user's own, whose output is no state."""

    state_size = (3,)
    output_size = UNITS

    def call(self, x, states):
        return ops.sum(x, -1, keepdims=True) + ops.ones((1, UNITS)), [states[0] + 1.0]


MAKE = {
    "SimpleRNN": lambda **options: layers.SimpleRNN(UNITS, **options),
    "GRU": lambda **options: layers.GRU(UNITS, dropout=0.5, **options),
    "LSTM": lambda **options: layers.LSTM(UNITS, recurrent_dropout=0.5, **options),
    "stacked": lambda **options: layers.RNN([layers.GRUCell(3, dropout=0.5), layers.LSTMCell(UNITS)], **options),
    "own cell": lambda **options: layers.RNN(Counter(), **options),
    "ConvLSTM1D": lambda **options: layers.ConvLSTM1D(UNITS, 2, padding="same", **options),
}
NAMES = "return_sequences", "return_state", "go_backwards"
OPTIONS = [dict(zip(NAMES, flags, strict=True)) for flags in itertools.product([False, True], repeat=3)]
HOW = {"eager": lambda f: f, "compiled": keras_ocl.jit}


def flat(result):
    return [ops.convert_to_numpy(t) for t in keras.tree.flatten(result)]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", MAKE)
def test_layers(name, how):
    rest = (5, 3) if name == "ConvLSTM1D" else (3,)
    nothing, something = np.zeros((BATCH, 0, *rest), "float32"), np.ones((BATCH, 2, *rest), "float32")
    for options in OPTIONS:
        layer = MAKE[name](**options)
        layer(something)
        states = keras.tree.map_structure(lambda s: np.full(s.shape, 0.5, "float32"), layer.get_initial_state(BATCH))
        for training in (False, True):
            output, *after = flat(HOW[how](lambda x: layer(x, initial_state=states, training=training))(nothing))  # noqa: B023
            expected = layer.compute_output_shape(nothing.shape)
            assert output.shape == tuple(expected[0] if options["return_state"] else expected)
            assert output.shape[1] == 0 if options["return_sequences"] else not output.any()
            assert len(after) == (len(keras.tree.flatten(states)) if options["return_state"] else 0)
            assert all(s.shape == b.shape and (s == 0.5).all() for s, b in zip(after, keras.tree.flatten(states), strict=False))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("cell", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_both_directions(cell, how):
    for sequences, mode in itertools.product([False, True], ["concat", "sum", None]):
        layer = layers.Bidirectional(cell(UNITS, return_sequences=sequences, return_state=True), merge_mode=mode)
        layer.build((BATCH, None, 3))
        outputs = flat(HOW[how](layer)(np.zeros((BATCH, 0, 3), "float32")))
        first = (BATCH, 0) if sequences else (BATCH,)
        assert outputs[0].shape == (*first, 2 * UNITS if mode == "concat" else UNITS)
        assert not any(y.any() for y in outputs)


def test_states_that_are_kept_and_lengths_that_vary():
    inputs = keras.Input(batch_shape=(BATCH, None, 3))
    layer = layers.LSTM(UNITS, stateful=True, return_sequences=True)
    model = keras.Model(inputs, layer(inputs))
    model.predict_on_batch(np.ones((BATCH, 5, 3), "float32"))
    before = flat(layer.states)
    for steps in (0, 6, 0):
        assert model.predict_on_batch(np.ones((BATCH, steps, 3), "float32")).shape == (BATCH, steps, UNITS)
        if steps == 0:
            for now, old in zip(flat(layer.states), before, strict=True):
                np.testing.assert_array_equal(now, old)
        before = flat(layer.states)


def test_training():
    model = keras.Sequential([keras.Input((None, 3)), layers.Bidirectional(layers.GRU(UNITS)), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    before = model.get_weights()
    assert float(model.train_on_batch(np.zeros((BATCH, 0, 3)), np.ones((BATCH, 1)))) == 1.0  # what Dense makes of zeros is zero
    *rest, bias = (now - old for now, old in zip(model.get_weights(), before, strict=True))
    assert bias == 1.0 and not any(change.any() for change in rest)


@pytest.mark.parametrize("how", HOW)
def test_scans(how):
    def function(x):
        carry, (y, none) = ops.scan(lambda c, s: (c + s, (c * s, None)), ops.ones((2,)), x)
        return carry, y, ops.map(ops.sin, x), ops.scan(lambda c, _: (c, c), carry, length=x.shape[0])[1]

    call = HOW[how](function)
    for length in (0, 6, 7, 0):
        carry, *stacks = flat(call(np.ones((length, 2), "float32")))
        np.testing.assert_array_equal(carry, [1.0 + length] * 2)
        assert all(y.shape == (length, 2) for y in stacks)
