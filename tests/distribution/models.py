"""Models that are trained alone and by several ranks, with data for them."""

import keras
import numpy as np

layers = keras.layers


def _classes(*body, shape, dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *body, layers.Dense(5, activation="softmax")])


def _mlp():
    return _classes(layers.Dense(32, activation="relu"), layers.Dropout(0.3), shape=(20,)), "floats"


def _cnn():
    norm = layers.BatchNormalization(), layers.BatchNormalization(synchronized=True)
    body = layers.Conv2D(8, 3), norm[0], layers.ReLU(), layers.MaxPooling2D(), layers.Conv2D(8, 3, strides=2, padding="same"), norm[1]
    return _classes(*body, layers.Flatten(), shape=(8, 8, 3)), "floats"


def _recurrent():
    return _classes(layers.LSTM(8, return_sequences=True), layers.Bidirectional(layers.GRU(5)), shape=(11, 6)), "floats"


def _masked():
    body = layers.Embedding(50, 8, mask_zero=True), layers.LSTM(8)
    return _classes(*body, shape=(11,), dtype="int32"), "words"


def _transformer():
    words = keras.Input((12,), dtype="int32")
    x = layers.Embedding(50, 16)(words) + layers.Embedding(12, 16)(keras.ops.arange(12))
    x = x + layers.MultiHeadAttention(2, 8, dropout=0.1)(layers.LayerNormalization()(x), x, use_causal_mask=True)
    x = x + layers.Dense(16)(layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x)))
    return keras.Model(words, layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling1D()(x))), "words"


def _recommender():
    user, item = keras.Input((), dtype="int32"), keras.Input((3,), dtype="int32")
    chosen = layers.Embedding(50, 8)(user), layers.Flatten()(layers.Embedding(50, 8)(item))
    body = layers.Dense(16, activation="relu")(layers.Concatenate()(chosen))
    return keras.Model([user, item], layers.Dense(5, activation="softmax")(body)), "pairs"


MODELS = {
    "mlp": _mlp,
    "cnn": _cnn,
    "recurrent": _recurrent,
    "masked": _masked,
    "transformer": _transformer,
    "recommender": _recommender,
}


def make(name):
    """(model, x, y, sample weights): the same on every rank."""
    keras.utils.set_random_seed(1)
    model, kind = MODELS[name]()
    rng = np.random.default_rng(0)
    rows = 37
    shapes = [(rows, *i.shape[1:]) for i in model.inputs]
    if kind == "floats":
        x = [rng.normal(size=s).astype("float32") for s in shapes]
    else:
        x = [rng.integers(0, 50, s).astype("int32") for s in shapes]
    y = rng.integers(0, 5, rows)
    return model, x if len(x) > 1 else x[0], y, rng.uniform(0.5, 2, rows).astype("float32")
