"""The networks whose memory `python -m comparisons.memory` measures: plain Keras, of a size that a CPU trains in seconds a step.

Each function returns (compiled model, x, y, batch size); of the data only shapes and dtypes count. Some are those of the golden file.
"""

import functools

import keras
import numpy as np
from keras import layers as L

from tests.golden import models as golden

NETWORKS = {
    "transformer encoder": golden.transformer,
    "WRN-16-2": golden.wide_residual,
    "LSTM": golden.reviews_lstm,
    "CNN": golden.cifar_cnn,
}


def network(name):
    """Decorator: adds the function to NETWORKS."""

    def add(function):
        NETWORKS[name] = function
        return function

    return add


def _attended(x, heads, causal=False):
    """A transformer's block with normalisation before both parts."""
    width = x.shape[-1]
    h = L.LayerNormalization()(x)
    x = x + L.MultiHeadAttention(heads, width // heads)(h, h, use_causal_mask=causal)
    return x + L.Dense(width)(L.Dense(4 * width, activation="gelu")(L.LayerNormalization()(x)))


class Positions(L.Layer):
    """Adds a vector to each position, which is learnt."""

    def build(self, shape):
        self.vectors = self.add_weight(shape=shape[1:], initializer="normal")

    def call(self, x):
        return x + self.vectors


@network("causal decoder")
def decoder(length=128, width=128, words=2000, heads=4, depth=4):
    i = keras.Input((length,), dtype="int32")
    x = L.Dropout(0.1)(Positions()(L.Embedding(words, width)(i)))
    for _ in range(depth):
        x = _attended(x, heads, causal=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return golden.compiled(keras.Model(i, L.Dense(words)(L.LayerNormalization()(x))), "adamw", loss, 16, words)


@network("ViT")
def vision_transformer(size=64, patch=8, width=128, heads=4, depth=4):
    i = keras.Input((size, size, 3))
    x = Positions()(L.Reshape((-1, width))(L.Conv2D(width, patch, strides=patch)(i)))
    for _ in range(depth):
        x = _attended(x, heads)
    x = L.GlobalAveragePooling1D()(L.LayerNormalization()(x))
    return golden.compiled(keras.Model(i, L.Dense(10, "softmax")(x)), batch=32, **golden.CLASSES)


def application(make, batch, size=64):
    """A network of keras.applications for images of size x size."""
    model = make(weights=None, input_shape=(size, size, 3), classes=10)
    return golden.compiled(model, batch=batch, **golden.CLASSES)


NETWORKS["ResNet50"] = lambda: application(keras.applications.ResNet50, 16)
NETWORKS["MobileNetV2"] = lambda: application(keras.applications.MobileNetV2, 32)


@network("U-Net")
def u_net(size=64):
    def twice(x, filters):
        for _ in range(2):
            x = L.ReLU()(L.BatchNormalization()(L.Conv2D(filters, 3, padding="same", use_bias=False)(x)))
        return x

    x = i = keras.Input((size, size, 3))
    levels = []
    for filters in (16, 32, 64):
        x = twice(x, filters)
        levels.append(x)
        x = L.MaxPooling2D()(x)
    x = twice(x, 128)
    for level in reversed(levels):
        filters = level.shape[-1]
        x = twice(L.Concatenate()([L.Conv2DTranspose(filters, 2, strides=2)(x), level]), filters)
    return golden.compiled(keras.Model(i, L.Conv2D(1, 1, activation="sigmoid")(x)), loss="binary_crossentropy", batch=16)


@network("GRU")
def gru():
    layers = [L.Embedding(2000, 64), L.GRU(128, return_sequences=True), L.GRU(128), L.Dense(1, "sigmoid")]
    return golden.stack(*layers, shape=(100,), dtype="int32", batch=64, loss="binary_crossentropy")


class Sampling(L.Layer):
    """A sample of the normal distribution with this mean and logarithm of the variance; its divergence from the standard one is a loss."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, mean, log_variance):
        divergence = 1 + log_variance - keras.ops.square(mean) - keras.ops.exp(log_variance)
        self.add_loss(-0.5 * keras.ops.mean(keras.ops.sum(divergence, axis=-1)))
        return mean + keras.ops.exp(0.5 * log_variance) * keras.random.normal(keras.ops.shape(mean), seed=self.seeds)


@network("VAE")
def autoencoder():
    x = i = keras.Input((28, 28, 1))
    for filters in (32, 64):
        x = L.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    x = L.Dense(128, "relu")(L.Flatten()(x))
    x = Sampling()(L.Dense(16)(x), L.Dense(16)(x))
    x = L.Reshape((7, 7, 64))(L.Dense(7 * 7 * 64, "relu")(x))
    for filters in (64, 32):
        x = L.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(x)
    model = keras.Model(i, L.Conv2D(1, 3, padding="same", activation="sigmoid")(x))
    return golden.compiled(model, loss="binary_crossentropy", batch=128)


@network("recommender")
def recommender(entries=20_000, width=32):
    inputs = [keras.Input((), dtype="int32") for _ in range(3)]
    x = L.Concatenate()([L.Embedding(entries, width)(i) for i in inputs])
    for units in (512, 256, 128):
        x = L.Dropout(0.2)(L.BatchNormalization()(L.Dense(units, "relu")(x)))
    return golden.compiled(keras.Model(inputs, L.Dense(1, "sigmoid")(x)), loss="binary_crossentropy", batch=2048)


class Block(L.Layer):
    """x + Dense(Dense(LayerNormalization(x))), whose inner values are computed again for the gradient if `remat`."""

    def __init__(self, remat):
        super().__init__()
        self.inner = [L.LayerNormalization(), L.Dense(512, activation="gelu"), L.Dense(128)]
        self.remat = remat

    def build(self, shape):
        for layer in self.inner:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, x):
        def inner(x):
            for layer in self.inner:
                x = layer(x)
            return x

        return x + (keras.remat(inner) if self.remat else inner)(x)


def blocks(number, remat=False):
    """So many blocks, one after the other."""
    x = i = keras.Input((128, 128))
    for _ in range(number):
        x = Block(remat)(x)
    model = keras.Model(i, L.Dense(1)(x))
    model.compile("adam", "mse")
    return model, np.zeros((32, 128, 128), "float32"), np.zeros((32, 128, 1), "float32"), 32


NETWORKS["4 blocks"] = functools.partial(blocks, 4)
NETWORKS["16 blocks"] = functools.partial(blocks, 16)
NETWORKS["16 blocks, remat"] = functools.partial(blocks, 16, remat=True)
