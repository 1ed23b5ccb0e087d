"""Recurrence over time against a loop in NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.hooks import rnn as module
from tests.ops.checking import both
from tests.primitives.checking import check_gradient

RNG = np.random.default_rng(12)


def cell(x, states):
    new = ops.tanh(x + 0.5 * states[0])
    return new * 2.0, [new]


def reference(x, state, mask=None, backwards=False, zero=False):
    outputs, previous = [], np.zeros_like(state)
    for t in range(x.shape[1])[:: -1 if backwards else 1]:
        new = np.tanh(x[:, t] + 0.5 * state)
        on = np.ones((len(x), 1), bool) if mask is None else mask[:, t, None]
        previous = np.where(on, 2 * new, 0 if zero else previous)
        state = np.where(on, new, state)
        outputs.append(previous)
    return previous, np.stack(outputs, 1), state


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("masked", [None, "keep", "zero"])
@pytest.mark.parametrize("time_major", [False, True])
def test_rnn(backwards, masked, time_major):
    x, state = RNG.normal(size=(3, 5, 2)).astype("f4"), RNG.normal(size=(3, 2)).astype("f4")
    mask = RNG.uniform(size=(3, 5)) < 0.5 if masked else None
    expected = reference(x, state, mask, backwards, masked == "zero")
    if time_major:
        x = x.transpose(1, 0, 2).copy()
        mask = None if mask is None else mask.T.copy()

    def run(x, state):
        last, outputs, states = module.rnn(
            cell, x, [state], go_backwards=backwards, mask=mask, time_major=time_major, zero_output_for_mask=masked == "zero"
        )
        return last, outputs, states[0]

    last, outputs, final = (to_numpy(v) for v in run(from_numpy(x), from_numpy(state)))
    for found, wanted in zip((last, outputs.transpose(1, 0, 2) if time_major else outputs, final), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_compiled_nests_constants_and_last_output():
    x, y = RNG.normal(size=(2, 4, 3)).astype("f4"), RNG.normal(size=(2, 4, 3)).astype("f4")

    def step(inputs, states):
        a, b = inputs
        new = a * b + states[0] + states[1]  # states[1] is the constant
        return new, [new]

    def run(x, y):
        start, constants = [ops.zeros((2, 3))], [ops.ones((2, 3))]
        return module.rnn(step, (x, y), start, constants=constants, return_all_outputs=False, unroll=True)[:2]

    last, outputs = both(lambda x, y: run(x, y), x, y)
    np.testing.assert_allclose(last, (x * y).sum(1) + 4, rtol=1e-5)
    assert outputs.shape == (2, 1, 3)
    check_gradient(lambda x: module.rnn(cell, x, [x[:, 0] * 0])[1], x, second=False)


@pytest.mark.parametrize("layer", [keras.layers.SimpleRNN, keras.layers.GRU, keras.layers.LSTM])
def test_layers_of_unknown_length(layer):
    inputs = keras.Input((None, 3))
    outputs = keras.layers.Bidirectional(layer(4, return_sequences=True))(inputs)
    assert outputs.shape == (None, None, 8)
    model = keras.Model(inputs, outputs)
    assert model.predict(np.ones((2, 5, 3)), verbose=0).shape == (2, 5, 8)
    assert model.predict(np.ones((3, 6, 3)), verbose=0).shape == (3, 6, 8)


def test_errors():
    with pytest.raises(ValueError, match="no time steps"):
        module.rnn(cell, from_numpy(np.ones((2, 0, 3), "f4")), [from_numpy(np.ones((2, 3), "f4"))])
    x, h = from_numpy(np.ones((2, 3, 4), "f4")), from_numpy(np.ones((2, 5), "f4"))
    with pytest.raises(NotImplementedError, match="no mask"):
        module.gru(x, h, x[:, :, 0] > 0, None, from_numpy(np.ones((5, 15), "f4")), None, ops.tanh, ops.sigmoid)
