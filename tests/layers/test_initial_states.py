"""States that do not fit the inputs of a recurrent layer: one sentence that names both, before anything runs."""

import keras
import numpy as np
import pytest

import keras_ocl
from keras_ocl import runtime

LAYERS = {"LSTM": keras.layers.LSTM, "GRU": keras.layers.GRU, "SimpleRNN": keras.layers.SimpleRNN}
X = np.ones((4, 6, 5), "float32")
MASK = np.ones((4, 6), bool)


def states_of(name, shape, times=1):
    return [np.ones(shape, "float32")] * ((2 if name == "LSTM" else 1) * times)


@pytest.mark.parametrize("how", ["plain", "masked", "unrolled", "bidirectional", "compiled"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(3, 2), (4, 3), (4, 1)], ids=str)
def test_initial_states_that_do_not_fit_are_named(name, how, shape):
    layer = LAYERS[name](2, unroll=how == "unrolled")
    if how == "bidirectional":
        layer = keras.layers.Bidirectional(layer)
    call = keras_ocl.jit(layer) if how == "compiled" else layer
    layer(X)
    enqueued = runtime.current_device().statistics.launches if name != "SimpleRNN" else None
    with pytest.raises(ValueError) as error:
        call(X, initial_state=states_of(name, shape, 2 if how == "bidirectional" else 1), mask=MASK if how == "masked" else None)
    said = str(error.value)
    assert "initial_state" in said and str(shape) in said and "(4, 6, 5)" in said
    if name != "SimpleRNN":
        assert "each needs shape (4, 2)" in said
        assert runtime.current_device().statistics.launches - enqueued <= 1  # Keras itself looks at the inputs of the first step
    assert np.isfinite(np.asarray(layer(X))).all()


@pytest.mark.parametrize("mask", [None, MASK], ids=["plain", "masked"])
@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_one_state_for_the_whole_batch(name, unroll, mask):
    """As on TensorFlow, eagerly."""
    layer = LAYERS[name](2, unroll=unroll)
    row = np.array([[0.5, -0.25]], "float32")
    count = 2 if name == "LSTM" else 1
    expected = layer(X, initial_state=[np.repeat(row, 4, 0)] * count, mask=mask)
    np.testing.assert_allclose(np.asarray(layer(X, initial_state=[row] * count, mask=mask)), np.asarray(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_a_stateful_layer_names_both_batch_sizes(name):
    model = keras.Sequential([keras.Input(batch_shape=(4, 6, 5)), LAYERS[name](2, stateful=True)])
    model.compile("sgd", "mse")
    model.predict(X, verbose=0)
    for call in (lambda: model.predict(X[:3], verbose=0), lambda: model.fit(X, np.zeros((4, 2)), batch_size=3, verbose=0)):
        with pytest.raises(ValueError, match=r"(?s)batch size.*Expected batch size: 4.*Received batch size: 3"):
            call()
    assert model.predict(X, verbose=0).shape == (4, 2)
