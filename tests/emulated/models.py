"""Training steps of small models, the same on the emulated GPU as on a CPU runtime.

`python -m tests.emulated.models --write FILE` stores what they give on the machine's own device; without it they are compared with the
file of EMULATED_EXPECTED, and the exit status is 1 if one differs. Names choose some.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "ocl")

import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers as L  # noqa: E402

STEPS = 4
TOLERANCE, HALF_TOLERANCE = 2e-5, 2e-3  # relative to the largest value
rng = np.random.default_rng(0)


def floats(*shape):
    return rng.normal(size=shape).astype("float32")


def classes(n, *shape):
    return rng.integers(0, n, shape)


class Block(L.Layer):
    """Attention and a dense layer, with residual connections."""

    def __init__(self, **options):
        super().__init__(**options)
        self.attention, self.norm, self.dense = L.MultiHeadAttention(2, 4), L.LayerNormalization(), L.Dense(8, "gelu")

    def call(self, x):
        x = self.norm(x + self.attention(x, x))
        return x + self.dense(x)


@dataclass
class Case:
    """A model's layers, its loss and a batch. `half`: whether it computes with 16 bits."""

    layers: Any
    loss: str
    x: np.ndarray
    y: np.ndarray
    optimizer: str = "adam"
    half: bool = False


def mixed(dtype, norm):
    return lambda: [L.Dense(40, "relu", dtype=dtype), norm(dtype=dtype), L.Dense(3, dtype=dtype), L.Activation("softmax", dtype="float32")]


def cnn():
    # No bias before the normalisation: its gradient is nothing but rounding errors, of which Adam makes whole steps.
    convolution, dense = L.Conv2D(4, 3, padding="same", use_bias=False), L.Dense(3, "softmax")
    return [convolution, L.BatchNormalization(), L.ReLU(), L.MaxPooling2D(), L.Flatten(), L.Dropout(0.25), dense]


def convolutions():
    parts = [L.Conv2D(5, 3, strides=2, padding="same", activation="relu"), L.SeparableConv2D(6, 3), L.GroupNormalization(2)]
    return [*parts, L.Conv2DTranspose(2, 2, strides=2), L.AveragePooling2D(2), L.Flatten(), L.Dense(2)]


def other_ranks():
    parts = [L.Conv3D(3, 2, activation="tanh"), L.MaxPooling3D(2), L.Reshape((4, 3))]
    return [*parts, L.Conv1D(4, 2, dilation_rate=2, padding="causal"), L.GlobalMaxPooling1D(), L.Dense(1)]


def wide():
    return [L.Dense(130, "relu"), L.Dropout(0.4), L.Dense(70, "swish"), L.UnitNormalization(), L.Dense(5, "softmax")]


def transformer():
    return [L.Embedding(11, 8), Block(), L.GlobalAveragePooling1D(), L.Dense(4, "softmax")]


def perceptron():
    return [L.Dense(128, "relu"), L.Dense(10, "softmax")]


SPARSE = "sparse_categorical_crossentropy"
XOR = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "float32"), np.array([[0], [1], [1], [0]], "float32")
MODELS = {
    "xor": Case(lambda: [L.Dense(8, "tanh"), L.Dense(1, "sigmoid")], "binary_crossentropy", *XOR, optimizer="sgd"),
    "mlp": Case(perceptron, SPARSE, floats(64, 784), classes(10, 64)),
    "cnn": Case(cnn, SPARSE, floats(16, 8, 8, 1), classes(3, 16)),
    "lstm": Case(lambda: [L.LSTM(6), L.Dense(1)], "mse", floats(5, 7, 3), floats(5, 1), "rmsprop"),
    "gru": Case(lambda: [L.GRU(6, return_sequences=True), L.Dense(2)], "mse", floats(4, 5, 3), floats(4, 5, 2), "adagrad"),
    "transformer": Case(transformer, SPARSE, classes(11, 6, 9), classes(4, 6)),
    "convolutions": Case(convolutions, "mse", floats(3, 11, 11, 2), floats(3, 2), "nadam"),
    "other_ranks": Case(other_ranks, "huber", floats(2, 5, 5, 3, 1), floats(2, 1), "ftrl"),
    "wide": Case(wide, "categorical_crossentropy", floats(37, 50), np.eye(5, dtype="float32")[classes(5, 37)], "adamw"),
    "float16": Case(mixed("mixed_float16", L.LayerNormalization), SPARSE, floats(9, 20), classes(3, 9), half=True),
    "bfloat16": Case(mixed("mixed_bfloat16", L.BatchNormalization), SPARSE, floats(9, 20), classes(3, 9), half=True),
}


def trained(case):
    """The losses of some steps, the loss of an evaluation, and some predictions, as one array."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(case.layers())
    model.compile(case.optimizer, case.loss)
    losses = [float(model.train_on_batch(case.x, case.y)) for _ in range(STEPS)]
    predictions = np.asarray(model.predict(case.x, verbose=0), "float64").ravel()[:20]
    return np.array([*losses, model.evaluate(case.x, case.y, verbose=0), *predictions])


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.emulated.models", description=__doc__)
    parser.add_argument("--write", metavar="FILE", help="store what the models give")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in MODELS]:
        parser.error(f"there is no model {unknown[0]}; there are {', '.join(MODELS)}")
    found, wrong, known = {}, 0, {} if options.write else np.load(os.environ["EMULATED_EXPECTED"])
    for name in options.names or MODELS:
        begin, case = time.monotonic(), MODELS[name]
        try:
            found[name] = trained(case)
        except Exception as error:  # of one model; the others run
            print(f"{name:13s} {type(error).__name__}: {str(error)[:500]}", flush=True)
            wrong += 1
            continue
        if not options.write:
            error = np.abs(found[name] - known[name]).max() / np.abs(known[name]).max()
            right = error < (HALF_TOLERANCE if case.half else TOLERANCE)
            wrong += not right
            losses = " ".join(f"{loss:.6f}" for loss in found[name][:STEPS])
            print(f"{name:13s} {'right' if right else 'WRONG'}, {error:.1e}, losses {losses}, {time.monotonic() - begin:.0f} s", flush=True)
    if options.write:
        np.savez(options.write, **found)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
