"""What training traces, builds and reads back, and when."""

import keras
import numpy as np

from keras_ocl import runtime
from tests.hooks.regression import FEATURES, make_data, make_model


def convolutional():
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, activation="relu", padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Dropout(0.25),
            keras.layers.Conv2D(4, 3),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def test_other_batch_sizes_build_nothing(built):
    model = convolutional()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(70, 8, 8, 3)).astype("float32"), rng.integers(0, 5, 70)
    model.fit(x[:64], y[:64], batch_size=32, verbose=0)
    model.evaluate(x[:64], y[:64], batch_size=32, verbose=0)
    model.predict(x[:64], batch_size=32, verbose=0)
    assert built.since() > 0
    builds = runtime.current_device().statistics.builds
    model.fit(x, y, batch_size=32, verbose=0)  # a last batch of 6
    model.fit(x, y, batch_size=17, verbose=0)
    model.evaluate(x, y, batch_size=13, verbose=0)
    model.predict(x, batch_size=70, verbose=0)
    model.predict_on_batch(x[:1])
    assert built.since() == 0
    assert runtime.current_device().statistics.builds == builds


def test_partial_batches_are_right():
    model = convolutional()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(11, 8, 8, 3)).astype("float32"), rng.integers(0, 5, 11)
    whole = model.predict(x, batch_size=11, verbose=0)
    for size in (1, 2, 3, 4, 8):
        np.testing.assert_allclose(model.predict(x, batch_size=size, verbose=0), whole, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(model.evaluate(x, y, batch_size=size, verbose=0), model.evaluate(x, y, verbose=0), rtol=1e-4)


def test_a_step_is_traced_once_a_signature():
    traces = []

    class Model(keras.Sequential):
        def train_step(self, data):
            traces.append(data[0].shape)
            return super().train_step(data)

    x, y = make_data(20)
    model = Model([keras.layers.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=8, epochs=3, verbose=0)
    assert len(traces) == 2  # batches of 8, and the last of 4
    model.layers[0].trainable = False
    model.layers[0].trainable = True
    model.fit(x, y, batch_size=8, verbose=0)
    assert len(traces) == 2
    model.compile("adam", "mse")
    model.fit(x, y, batch_size=8, verbose=0)
    assert len(traces) == 4


def test_freezing_a_layer_between_calls():
    x, y = make_data()
    model = make_model()
    model.fit(x, y, verbose=0)
    before = model.get_weights()
    model.layers[0].trainable = False
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
    after = model.get_weights()
    np.testing.assert_array_equal(before[0], after[0])
    assert np.any(before[2] != after[2])


def test_a_training_step_reads_nothing_back():
    x, y = make_data()
    model = make_model()
    model.fit(x, y, batch_size=10, epochs=2, verbose=0)
    statistics = runtime.current_device().statistics
    before = statistics.downloads
    model.fit(x, y, batch_size=10, epochs=1, verbose=0)
    once = statistics.downloads - before
    before = statistics.downloads
    model.fit(x, y, batch_size=5, epochs=1, verbose=0)
    assert statistics.downloads - before == once  # twice the steps
