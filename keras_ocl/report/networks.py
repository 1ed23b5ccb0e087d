"""Three small networks whose training is timed, on random data: what counts is the shapes."""

import time

import keras
import numpy as np
from keras import layers

from keras_ocl.report.timing import rates, summary

EPOCHS = 5  # timed ones
MOST = 15.0  # seconds after which no epoch begins
CLASSES = 10


def mlp(rng, rows):
    """Keras's classic perceptron for MNIST: 784-512-512-10 with dropout."""
    widths = [keras.Input((784,))] + [layer for _ in range(2) for layer in (layers.Dense(512, "relu"), layers.Dropout(0.2))]
    model = keras.Sequential([*widths, layers.Dense(CLASSES, "softmax")])
    model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, rng.random((rows, 784), np.float32), rng.integers(0, CLASSES, rows)


def cnn(rng, rows):
    """Keras's classic network for CIFAR-10: two pairs of 3x3 convolutions, each with pooling and dropout, and a layer of 512."""
    stack = [keras.Input((32, 32, 3))]
    for filters in (32, 64):
        stack += [layers.Conv2D(filters, 3, padding="same", activation="relu"), layers.Conv2D(filters, 3, activation="relu")]
        stack += [layers.MaxPooling2D(), layers.Dropout(0.25)]
    stack += [layers.Flatten(), layers.Dense(512, "relu"), layers.Dropout(0.5), layers.Dense(CLASSES, "softmax")]
    model = keras.Sequential(stack)
    model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, rng.random((rows, 32, 32, 3), np.float32), rng.integers(0, CLASSES, rows)


def transformer(rng, rows, length=64, width=128, heads=4, words=1000):
    """A transformer that predicts the next of 64 tokens: two blocks of width 128 with 4 heads, Adam."""
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(tokens)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(y)
    logits = layers.Dense(words)(layers.LayerNormalization()(x))
    model = keras.Model(tokens, logits)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    text = rng.integers(0, words, (rows, length + 1))
    return model, text[:, :-1].astype("int32"), text[:, 1:]


# name -> (function of a generator and a number of rows that returns (model, x, y); batch size, steps of an epoch)
NETWORKS = {"MNIST MLP": (mlp, 128, 200), "CIFAR CNN": (cnn, 32, 100), "transformer": (transformer, 32, 30)}


class _Clock(keras.callbacks.Callback):
    """Seconds of each epoch; ends training after MOST."""

    def __init__(self):
        super().__init__()
        self.seconds, self._ends = [], time.perf_counter() + MOST

    def on_epoch_begin(self, epoch, logs=None):
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):  # the device has finished, since the logs are numbers
        self.seconds.append(time.perf_counter() - self._began)
        self.model.stop_training = time.perf_counter() > self._ends


def fit(name, small):
    """Time `fit` of a network after an epoch that is not timed, which compiles.

    Returns:
        {"best_ms", "median_ms" of a step, "n" of epochs, "steps_per_s": {"best", "median"}, "batch", "steps" of an epoch, "parameters"}.
    """
    make, batch, steps = NETWORKS[name]
    batch, steps = (2, 2) if small else (batch, steps)
    keras.utils.set_random_seed(0)
    model, x, y = make(np.random.default_rng(0), batch * steps)
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0)
    clock = _Clock()
    model.fit(x, y, batch_size=batch, epochs=EPOCHS, verbose=0, callbacks=[clock])
    times = summary([seconds / steps for seconds in clock.seconds])
    return {**times, "steps_per_s": rates(times, 1), "batch": batch, "steps": steps, "parameters": model.count_params()}
