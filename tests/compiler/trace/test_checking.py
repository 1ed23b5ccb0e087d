"""Compiled with checks: the operation that first made a NaN or an infinity is named, results are the same, and nothing else is raised."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_ocl
from tests.drivers import joins_here_and_there
from tests.fixtures import seeded  # noqa: F401


def trained(build, loss, x, y, checked):
    keras.utils.set_random_seed(1)
    model = build()
    model.compile("adam", loss)
    if checked:
        with keras_ocl.checks():
            model.fit(x, y, batch_size=8, epochs=2, verbose=0)
            result = model.predict(x, batch_size=8, verbose=0)
    else:
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        result = model.predict(x, batch_size=8, verbose=0)
    return [*model.get_weights(), result]


def convolutional():
    return keras.Sequential(
        [
            keras.Input((9, 9, 3)),
            layers.Conv2D(5, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(2, padding="same"),
            layers.Dropout(0.3),
            layers.Flatten(),
            layers.Dense(4, activation="softmax"),
        ]
    )


def recurrent():
    x = keras.Input((7,), dtype="int32")
    h = layers.Embedding(11, 6, mask_zero=True)(x)
    h = layers.Bidirectional(layers.LSTM(5, return_sequences=True))(h)
    return keras.Model(x, layers.Dense(4)(layers.GRU(3)(h)))


def attentive():
    x = keras.Input((7,), dtype="int32")
    h = layers.Embedding(11, 6)(x)
    h = layers.LayerNormalization()(h + layers.MultiHeadAttention(2, 3)(h, h, use_causal_mask=True))
    return keras.Model(x, layers.Dense(4, activation="softmax")(layers.GlobalMaxPooling1D()(h)))


SPARSE = keras.losses.SparseCategoricalCrossentropy
MODELS = {
    "convolutional": (convolutional, SPARSE(), (9, 9, 3)),
    "recurrent": (recurrent, SPARSE(from_logits=True), None),
    "attentive": (attentive, SPARSE(), None),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same(name):
    build, loss, shape = MODELS[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, *shape)).astype("float32") if shape else rng.integers(0, 11, (20, 7)).astype("int32")
    y = rng.integers(0, 4, 20)
    plain, checked = (trained(build, loss, x, y, how) for how in (False, True))
    for a, b in zip(plain, checked, strict=True):
        if joins_here_and_there():
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # the bias of keys is nothing but rounding
        else:
            np.testing.assert_array_equal(a, b)


class Root(layers.Layer):
    """A layer of a user's own, with a gradient that is infinite at 0."""

    def call(self, x):
        return ops.sqrt(x)


def test_layers_and_gradients_are_named():
    parts = layers.Dense(2, name="first"), Root(name="root"), layers.Dense(1, name="last")
    model = keras.Sequential([keras.Input((3,)), *parts], name="net")
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
    model.get_layer("first").set_weights([np.ones((3, 2)), np.zeros(2)])
    with keras_ocl.checks():
        with pytest.raises(FloatingPointError, match=r"^net\.train_step: the gradient of Root in net/root gave an infinity; what it was"):
            model.train_on_batch(0 * x, y)
        model.get_layer("first").set_weights([np.full((3, 2), 3e38), np.zeros(2)])
        with pytest.raises(
            FloatingPointError, match=r"^net\.predict_step: MatMul in net/first gave an infinity; what it was given is finite\.$"
        ):
            model.predict_on_batch(x)


def test_what_is_given_is_named():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="first")], name="net")
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    with keras_ocl.checks():
        with pytest.raises(FloatingPointError, match=r"^net\.train_step: array 1 of the arguments holds a NaN\.$"):
            model.train_on_batch(x * np.nan, y)
        model.layers[0].set_weights([np.full((3, 2), np.nan), np.zeros(2)])
        with pytest.raises(FloatingPointError, match=r"^net\.predict_step: the variable net/first/kernel holds a NaN\.$"):
            model.predict_on_batch(x)


def test_variables_hold_the_step_that_failed():
    v = keras.Variable(np.zeros(3, "float32"))

    @keras_ocl.jit
    def step(x):
        v.assign(ops.log(x))
        return v + 1

    with keras_ocl.checks():
        with pytest.raises(FloatingPointError):
            step(np.array([1, 0, 1], "float32"))
        np.testing.assert_array_equal(v, [0, -np.inf, 0])
        np.testing.assert_array_equal(step(np.ones(3, "float32")), np.ones(3))


def test_infinities_that_the_program_wrote_are_its_own_business():
    @keras_ocl.jit
    def masked(x, keep):
        return ops.softmax(ops.where(keep, x, -float("inf")))

    x = np.ones((2, 3), "float32")
    keep = np.array([[True, False, True], [True, True, True]])
    with keras_ocl.checks():
        masked(x, keep)
        with pytest.raises(FloatingPointError, match=r"^masked: Softmax gave a NaN\.$"):
            masked(x, keep & np.array([[False], [True]]))


def test_what_is_selected_away_within_an_operation():
    function = keras_ocl.jit(lambda x, y: ops.divide_no_nan(x, y))
    with keras_ocl.checks():
        np.testing.assert_array_equal(function(np.ones(3, "float32"), np.array([0, 1, 2], "float32")), [0, 1, 0.5])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_all_float_types_at_odd_sizes(dtype):
    function = keras_ocl.jit(lambda x: ops.log(x))
    with keras_ocl.checks():
        for n in (1, 3, 67, 1031):
            x = np.ones(n, "float32")
            function(ops.cast(x, dtype))
            x[n // 2] = 0
            with pytest.raises(FloatingPointError):
                function(ops.cast(x, dtype))
        function(ops.zeros((0,), dtype))
