"""Text of another length, images of another size in every batch: after the second nothing is traced or built."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_ocl

WORDS, FEATURES = 50, 8


class Trained:
    """A model, trained batch by batch, that remembers how often it was traced."""

    def __init__(self, make, run_eagerly):
        keras.utils.set_random_seed(3)
        self.calls = 0
        inputs, outputs, loss, metrics = make()

        class Model(keras.Model):
            def call(inner, *args, **kwargs):
                self.calls += 1
                return super().call(*args, **kwargs)

        self.model = Model(inputs, outputs)
        self.model.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics, run_eagerly=run_eagerly)

    def step(self, x, y):
        before = self.calls
        logs = self.model.train_on_batch(x, y, return_dict=True)
        logs["predicted"] = self.model.predict_on_batch(x[:1])
        logs.update({f"test_{k}": v for k, v in self.model.test_on_batch(x, y, return_dict=True).items()})
        return logs, self.calls - before


def sequence():
    return keras.Input((None, FEATURES))


def conv1d():
    x = inputs = sequence()
    x = layers.Conv1D(8, 3, padding="causal", activation="relu")(x)
    x = layers.Conv1D(8, 4, strides=2, padding="same", dilation_rate=1)(x)
    x = layers.MaxPooling1D(2, padding="same")(x)
    x = layers.BatchNormalization()(x)
    return inputs, layers.Dense(1)(layers.GlobalMaxPooling1D()(x)), "mse", ["mae"]


def lstm():
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(WORDS, 8, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(x)
    return inputs, layers.Dense(1, "sigmoid")(layers.GRU(5)(x)), "binary_crossentropy", ["accuracy", keras.metrics.AUC(name="auc")]


def generic_rnn():
    inputs = sequence()
    cells = [layers.SimpleRNNCell(6), layers.GRUCell(4, reset_after=False)]
    return inputs, layers.Dense(1)(layers.RNN(cells, return_sequences=False, go_backwards=True)(inputs)), "mse", []


def transformer():
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(WORDS, 8)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    x = layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(16, "gelu")(x)))
    return inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)), "mse", []


def tagger():
    """A label for every word."""
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(WORDS, 8)(inputs)
    x = layers.Dropout(0.0)(layers.LSTM(8, return_sequences=True)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return inputs, layers.Dense(WORDS)(x), loss, ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(3)]


def images():
    inputs = keras.Input((None, None, 3))
    x = layers.Rescaling(0.5)(inputs)
    x = layers.Conv2D(8, 3, strides=2, activation="relu")(x)
    x = layers.DepthwiseConv2D(3, padding="same")(x)
    x = layers.AveragePooling2D(3, 2)(x)
    x = layers.Resizing(4, 5)(layers.LayerNormalization()(x))
    return inputs, layers.Dense(1)(layers.Flatten()(x)), "mse", []


def unet():
    inputs = keras.Input((None, None, 3))
    a = layers.Conv2D(6, 3, padding="same", activation="relu")(layers.ZeroPadding2D(2)(inputs))
    b = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.MaxPooling2D()(a))
    up = layers.Conv2DTranspose(6, 3, strides=2, padding="same")(b)
    up = layers.Concatenate()([layers.UpSampling2D(2)(b), up])
    return inputs, layers.Dense(1)(layers.GlobalAveragePooling2D()(layers.Conv2D(4, 1)(up))), "mse", []


MODELS = {f.__name__: f for f in (conv1d, lstm, generic_rnn, transformer, tagger, images, unet)}


def batch(name, rows, length):
    rng = np.random.default_rng(length)
    if name in ("images", "unet"):
        x = rng.normal(size=(rows, length, length + 5, 3)).astype("float32")
    elif name in ("lstm", "transformer", "tagger"):
        x = rng.integers(1, WORDS, (rows, length)).astype("int32")
        x[: rows // 2, length // 2 :] = 0
    else:
        x = rng.normal(size=(rows, length, FEATURES)).astype("float32")
    y = x if name == "tagger" else rng.integers(0, 2, (rows, 1)).astype("float32")
    return x, y


@pytest.mark.parametrize("name", MODELS)
def test_any_length(name, built):
    compiled, eager = Trained(MODELS[name], False), Trained(MODELS[name], True)
    for k, (rows, length) in enumerate([(8, 16), (8, 17), (8, 21), (5, 14), (3, 30), (8, 16), (2, 40)]):
        built.since()
        logs, traces = compiled.step(*batch(name, rows, length))
        if k > 2:  # the third is the last that may look whether other batch sizes are the same function
            assert built.since() == 0 and traces == 0, (length, traces)
        expected, _ = eager.step(*batch(name, rows, length))
        for what, value in expected.items():
            np.testing.assert_allclose(logs[what], value, rtol=2e-3, atol=2e-4, err_msg=f"{what} at length {length}, batch {rows}")


def test_paddings_that_depend_on_parity_are_few_traces(built):
    inputs = keras.Input((None, 3))
    outputs = layers.GlobalMaxPooling1D()(layers.AveragePooling1D(3, 2, padding="same")(layers.Dense(4)(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    for k, length in enumerate((10, 11, 12, 13, 14, 15, 20, 30, 31)):
        built.since()
        model.train_on_batch(np.ones((4, length, 3), "float32"), np.zeros((4, 4), "float32"))
        assert k < 4 or built.since() == 0, length


def test_layers_built_inside_a_trace_remember_no_extent_of_it():
    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    step = keras_ocl.jit(Late(), dynamic=(0,))
    model = step.function
    step(np.ones((32, 3), "float32"))
    assert model.dense.get_build_config() == {"input_shape": (None, 3)}
    for rows in (5, 9, 40):
        assert step(np.ones((rows, 3), "float32")).shape == (rows, 2)


def test_a_model_that_is_built_while_it_is_traced():
    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = layers.Conv1D(4, 3, padding="same"), layers.LSTM(3)

        def call(self, x):
            return self.second(self.first(x))

    model = Late()
    x = np.random.default_rng(0).normal(size=(10, 7, 2)).astype("float32")
    np.testing.assert_allclose(model.predict(x, batch_size=4, verbose=0), model(x), rtol=1e-4, atol=1e-5)


def test_fit_evaluate_and_predict_on_batches_of_all_lengths():
    batches = [batch("lstm", rows, length) for rows, length in [(8, 9), (8, 11), (8, 16), (8, 10), (3, 14)]]

    def data():
        yield from batches

    def trained(run_eagerly):
        model = Trained(lstm, run_eagerly).model
        history = model.fit(data(), epochs=1, verbose=0).history
        predictions = [model.predict(x, verbose=0) for x, _ in batches]
        return history, model.evaluate(data(), verbose=0), np.concatenate(predictions)

    for got, expected in zip(trained(False), trained(True), strict=True):
        if isinstance(expected, dict):
            got, expected = ([h[k][0] for k in sorted(h)] for h in (got, expected))
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-4)
