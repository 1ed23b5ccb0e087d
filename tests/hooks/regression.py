"""A small regression model, its reference in NumPy and what else the tests of training share."""

import keras
import numpy as np
import pytest

SAMPLES, FEATURES = 50, 4


def make_data(samples=SAMPLES, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, FEATURES)).astype("float32")
    w = rng.normal(size=(FEATURES, 1)).astype("float32")
    return x, x @ w + 0.1


def make_model(optimizer="sgd", metrics=("mae",), seed=0, **options):
    model = keras.Sequential([keras.layers.Input((FEATURES,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(scale=0.5, size=w.shape).astype("float32") for w in model.weights])
    model.compile(optimizer=optimizer, loss="mse", metrics=list(metrics), **options)
    return model


class Reference:
    """The same model, trained by SGD on the mean squared error, in NumPy's float64."""

    def __init__(self, model):
        self.w = [w.astype("float64") for w in model.get_weights()]

    def forward(self, x):
        self.h = np.tanh(x @ self.w[0] + self.w[1])
        return self.h @ self.w[2] + self.w[3]

    def gradients(self, x, y, weight=None):
        x, y = x.astype("float64"), y.astype("float64")
        p = self.forward(x)
        weight = np.ones(len(x)) if weight is None else weight
        loss = np.mean(weight[:, None] * (p - y) ** 2)
        d = 2 * weight[:, None] * (p - y) / len(x)
        dh = d @ self.w[2].T * (1 - self.h**2)
        return loss, [x.T @ dh, dh.sum(0), self.h.T @ d, d.sum(0)]

    def step(self, x, y, weight=None, rate=0.01):
        loss, gradients = self.gradients(x, y, weight)
        self.w = [w - rate * g for w, g in zip(self.w, gradients, strict=True)]
        return loss

    def check(self, model, tolerance=1e-5):
        for ours, w in zip(model.get_weights(), self.w, strict=True):
            np.testing.assert_allclose(ours, w, rtol=tolerance, atol=tolerance)


class Steps(keras.callbacks.Callback):
    """Records the logs of every batch."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


MODES = pytest.mark.parametrize("mode", [{}, {"jit_compile": False}, {"run_eagerly": True}], ids=["jit", "no_jit", "eager"])


def batches(x, y, size):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
